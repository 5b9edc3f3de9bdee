// The page talks to the server that sent it, by relative addresses, so it also works behind a proxy's prefix; in a static
// folder there is none, and local.js answers.
const byId = (id) => document.getElementById(id);
const form = byId("form");
const settings = byId("settings");
const go = byId("go");
const cancel = byId("cancel");
const keep = byId("keep");
const results = byId("results");
const tip = byId("tip");
const LEVELS = JSON.parse(byId("legend").dataset.levels); // class p0 from this probability on, then p1, p2, p3; below p4
const STATIC = document.body.classList.contains("static"); // no server
const SEEDS = Number(byId("seed").max) + 1;
const alternatives = Number(form.dataset.logprobs); // how many rivals of each token to ask for
let model; // its name
let defaults = {}; // view -> the settings that suit this model in it
let tools = null; // what this model may call, and the table that it looks things up in; a static page has none
const wishes = { chat: {}, texts: {} }; // what the user has chosen instead
let running = null; // the AbortController of the request under way

// ---- words: Chinese first, English small ----

function both(zh, en) {
  const small = document.createElement("span");
  small.lang = "en";
  small.textContent = en;
  return [zh, " ", small];
}

function say(zh, en) {
  byId("status").replaceChildren(...(zh ? both(zh, en) : []));
}

function complain(zh, en) {
  byId("error").replaceChildren(...both(zh, en));
  byId("error").hidden = false;
}

function button(name, zh, en, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = name;
  made.append(...both(zh, en));
  made.addEventListener("click", act);
  return made;
}

function foot(...parts) {
  const made = document.createElement("p");
  made.className = "foot";
  made.append(...parts);
  return made;
}

const percent = (p) => (p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);
const visible = (text) => text.replaceAll("\n", "↵").replaceAll(" ", "␣");

// ---- settings: the server has written its limits into the sliders, and tells its defaults with the model ----

function showValue(input) {
  const marks = JSON.parse(input.dataset.marks || "{}");
  input.parentElement.querySelector(".value").textContent = marks[input.value] ?? input.value;
}

function showSettings() {
  for (const [name, value] of Object.entries({ ...defaults[view()], ...wishes[view()] })) {
    const input = settings.querySelector(`[name=${name}]`);
    if (!input) continue; // not all settings have a slider
    input.value = value;
    showValue(input);
  }
}

async function models() {
  if (!STATIC) return (await fetch("v1/models")).json();
  for await (const event of askWorker("v1/models")) return event;
}

async function readModel() {
  const { data } = await models();
  const { id, parameters, context, examples = [] } = data[0];
  [model, defaults] = [id, data[0].defaults];
  if (!STATIC) tools = data[0].tools ?? null;
  showSettings();
  const millions = parameters ? `${(parameters / 1e6).toFixed(1)} M` : "";
  const facts = parameters ? both(`${id} · ${millions} 参数，看 ${context} 个词元`, `${millions} parameters, sees ${context} tokens`) : [id];
  byId("model").replaceChildren(...facts);
  const { prompt } = form.elements;
  if (examples.length && prompt.value === prompt.defaultValue) prompt.value = examples[0];
  for (const place of document.querySelectorAll(".examples")) place.replaceChildren(...examples.map((text) => button("example", text, "", () => beginWith(text))));
}

// What the settings say, as keys of a request: those that this view shows.
function chosen() {
  const body = { stream: true };
  if (model) body.model = model;
  for (const input of settings.querySelectorAll("input")) {
    const hidden = input.closest(".only-texts") && view() !== "texts";
    if (input.value !== "" && !hidden) body[input.name] = Number(input.value);
  }
  // an empty field: any seed, shown to the user, who can then get the same texts again
  body.seed ??= crypto.getRandomValues(new Uint32Array(1))[0] % SEEDS;
  return body;
}

function offerSeed(seed) {
  keep.hidden = false;
  keep.dataset.seed = seed;
  keep.replaceChildren(...both("沿用", `reuse ${seed}`));
}

// ---- two views: a conversation, if the model holds one, and continuations ----

const view = () => (document.body.classList.contains("chat") ? "chat" : "texts");

function show(name) {
  document.body.classList.remove("chat", "texts");
  document.body.classList.add(name);
  for (const button of document.querySelectorAll("nav button")) button.setAttribute("aria-pressed", button.dataset.view === name);
  document.querySelector(`.only-${name} .notes`).append(byId("error"), byId("status"));
  byId("error").hidden = true;
  say();
  hideTip();
  showSettings();
  (name === "chat" ? byId("question") : form.elements.prompt).focus();
}

// An example is a question in a conversation, and a beginning elsewhere.
function beginWith(text) {
  if (view() === "chat") return answering || ask(text);
  form.elements.prompt.value = text;
  form.requestSubmit();
}

// ---- a continuation ----

// Cut a text where its tokens meet. A character that was written in several byte pieces stays whole, and
// its probability is their product; so does the rest of a token whose end was cut off.
function cutAtTokens(text, { tokens, token_logprobs: logprobs, top_logprobs: rivals, removed }) {
  const parts = [];
  let at = 0;
  let group = [];
  const close = (end) => {
    if (end > at) {
      const sum = group.reduce((total, i) => total + logprobs[i], 0);
      const one = group.length === 1 ? group[0] : -1;
      parts.push({ text: text.slice(at, end), p: group.length ? Math.exp(sum) : null, rivals: rivals?.[one], removed: removed?.[one] });
      group = [];
      at = end;
    }
  };
  tokens.forEach((token, i) => {
    const start = token === "" ? -1 : text.indexOf(token, at);
    if (start > at) close(start);
    group.push(i);
    if (start >= 0) close(start + token.length);
  });
  close(text.length);
  return parts;
}

// The class of a token's colour, by its probability, as in the notebooks.
function surprisal({ p }) {
  const level = LEVELS.findIndex((least) => p >= least);
  return `p${level < 0 ? LEVELS.length : level}`;
}

class Card {
  constructor(number, prompt) {
    this.prompt = prompt;
    this.written = "";
    this.open = true;
    this.item = document.createElement("li");
    this.item.className = "writing";
    this.text = document.createElement("p");
    this.text.className = "text";
    const given = document.createElement("mark");
    given.textContent = prompt;
    this.text.append(given);
    this.state = document.createElement("span");
    this.state.textContent = number;
    const copy = button("copy", "复制", "Copy", () => copyText(this.prompt + this.written, this.text));
    this.item.append(this.text, foot(this.state, copy));
    results.append(this.item);
  }

  add(text, logprobs) {
    this.written += text;
    const parts = logprobs ? cutAtTokens(text, logprobs) : [{ text, p: null }];
    for (const part of parts) {
      const last = this.text.lastElementChild;
      if (logprobs && part.p === null && last.part_) {
        last.append(part.text); // the end of a token that began in the event before
        last.part_.text += part.text;
        last.classList.replace(last.classList[0], surprisal(last.part_));
        continue;
      }
      const span = document.createElement("span");
      span.textContent = part.text;
      if (part.p !== null) {
        span.className = surprisal(part);
        span.dataset.p = part.p.toPrecision(4);
        span.part_ = part;
        span.tabIndex = this.text.querySelector("[tabindex]") ? -1 : 0; // one stop a card; the arrows go on from there
      }
      if (part.text.startsWith("\n")) span.classList.add("break");
      this.text.append(span);
    }
  }

  end(kind, zh, en) {
    if (!this.open) return;
    this.open = false;
    this.item.classList.remove("writing");
    this.item.classList.add(kind);
    this.state.replaceChildren(...both(`${[...this.written].length} 字 · ${zh}`, en));
  }
}

// A page that came over plain http from another machine has no clipboard: then its text is selected.
async function copyText(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    say("已复制。", "Copied.");
  } catch {
    getSelection().selectAllChildren(element);
    say("文字已选中，请按 Ctrl+C。", "The text is selected: press Ctrl+C.");
  }
}

// ---- a token's probability and its rivals ----

function showTip(span) {
  const { text, p, rivals, removed } = span.part_;
  const head = document.createElement("p");
  const name = document.createElement("strong");
  name.textContent = visible(text);
  head.append(name, percent(p));
  const list = document.createElement("ol");
  const shares = new Map(Object.entries(rivals ?? {}).map(([token, logprob]) => [token, Math.exp(logprob)]));
  shares.set(text, p);
  for (const [token, share] of [...shares].sort((one, other) => other[1] - one[1])) {
    const row = document.createElement("li");
    const filter = removed?.[token];
    row.className = token === text ? "chosen" : filter ? "removed" : "";
    const bar = document.createElement("i");
    bar.style.width = `${100 * share}%`;
    const [word, number] = [document.createElement("span"), document.createElement("span")];
    word.textContent = visible(token);
    number.textContent = filter ? `${percent(share)} · ${filter.replace("_", "-")}` : percent(share);
    row.append(bar, word, number);
    list.append(row);
  }
  tip.replaceChildren(head, list);
  tip.hidden = false;
  const [place] = span.getClientRects();
  const { width, height } = tip.getBoundingClientRect();
  const below = place.bottom + 8 + height < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${scrollY + (below ? place.bottom + 8 : Math.max(8, place.top - height - 8))}px`;
  span.setAttribute("aria-describedby", "tip");
}

function hideTip() {
  tip.hidden = true;
  results.querySelector("[aria-describedby]")?.removeAttribute("aria-describedby");
}

function tipFor({ type, target }) {
  hideTip();
  if (type === "focusout" || !byId("colours").checked) return;
  const span = target.part_ ? target : document.activeElement; // the mouse has left: back to the keyboard's place
  if (span.part_) showTip(span);
}

function walk(event) {
  const span = event.target;
  if (!span.part_) return;
  const all = [...span.parentElement.querySelectorAll("[tabindex]")];
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -all.length, End: all.length };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(span) + steps[event.key]))];
  span.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// ---- asking ----

class Refused extends Error {} // the answer is no; `words` are [Chinese, English]

async function refusal(response) {
  const error = new Refused();
  let [why, code] = [response.statusText, ""];
  try {
    const { error: told } = await response.json();
    [why, code] = [told.message ?? told, told.code];
  } catch {} // a proxy's page, perhaps: the status must do
  const seconds = response.headers.get("Retry-After");
  const later = seconds ? [`${seconds} 秒后再试`, `try again in ${seconds} s`] : ["请稍后再试", "try again later"];
  const known = {
    401: ["要有钥匙：请重新打开本页，密码填钥匙（用户名随意）。", "A key is needed: reload the page and give the key as the password, any name will do."],
    429: [`人太多，${later[0]}。`, `Too many requests: ${later[1]}.`],
    503: [`服务器眼下做不到，${later[0]}。`, `The server cannot do it now (${why}): ${later[1]}.`],
  };
  error.words = known[response.status] ?? [code === "context_length_exceeded" ? "太长了：请说得短一些。" : "服务器不接受：", why];
  error.words[0] = `${response.status} · ${error.words[0]}`;
  return error;
}

// Yield the data of each server-sent event; an end without [DONE] is a connection lost.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) throw new TypeError("the stream ended early");
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

// Yield the events of a streamed answer, and throw what the server refuses, at first or midway.
async function* post(path, body, signal) {
  if (STATIC) return yield* askWorker(path, body, signal);
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response.body)) {
    if (event.error) throw Object.assign(new Refused(), { words: ["服务器中途停了：", event.error.message] });
    yield event;
  }
}

// Say why a text ended early; `begun`: something was written, and stays.
function sayWhy(error, begun) {
  const kept = begun ? ["，已写的留着", "; what was written stays"] : ["", ""];
  say();
  if (error.name === "AbortError") say(`已取消${kept[0]}。`, `Cancelled${kept[1]}.`);
  else if (error.words) complain(...error.words);
  else if (begun) complain(`连接断了${kept[0]}。`, `The connection was lost${kept[1]}.`);
  else complain("服务器没有回答。", "The server does not answer.");
}

const cutWords = (error) => (error.name === "AbortError" ? ["已取消", "cancelled"] : ["断了", "cut off"]);

async function write(body, cards, signal) {
  const since = performance.now();
  let first = 0;
  for await (const { choices } of post("v1/completions", body, signal)) {
    for (const { index, text, logprobs, finish_reason: reason } of choices) {
      first ||= performance.now() - since;
      if (text) cards[index].add(text, logprobs);
      if (reason === "length") cards[index].end("long", "到了长度", "reached the length");
      else if (reason) cards[index].end("whole", "写完了", "finished");
    }
  }
  const [one, all] = [first, performance.now() - since].map((ms) => (ms / 1000).toFixed(2));
  say(`${cards.length} 份写好。第一个字 ${one} 秒，全部 ${all} 秒，种子 ${body.seed}。`,
    `${cards.length} written. First token after ${one} s, all after ${all} s, seed ${body.seed}.`);
}

async function generate() {
  running?.abort();
  const controller = (running = new AbortController());
  const body = { ...chosen(), prompt: form.elements.prompt.value, logprobs: alternatives };
  cancel.disabled = false;
  byId("error").hidden = true;
  hideTip();
  results.replaceChildren();
  results.setAttribute("aria-busy", "true");
  say("正在写…", "Writing…");
  const cards = Array.from({ length: body.n }, (_, i) => new Card(i + 1, body.prompt));
  offerSeed(body.seed);
  try {
    await write(body, cards, controller.signal);
  } catch (error) {
    if (running !== controller) return; // a newer request has taken over
    const begun = cards.some((card) => card.written);
    if (!begun) results.replaceChildren(); // nothing that could be kept
    for (const card of cards) card.end("cut", ...cutWords(error));
    sayWhy(error, begun);
  } finally {
    if (running === controller) {
      running = null;
      results.removeAttribute("aria-busy");
      if (document.activeElement === cancel) go.focus(); // a disabled button would lose the keyboard's place
      cancel.disabled = true;
    }
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
settings.addEventListener("input", (event) => {
  if (event.target.type !== "range") return;
  wishes[view()][event.target.name] = event.target.value;
  showValue(event.target);
});
settings.addEventListener("invalid", () => (settings.open = true), true); // a closed drawer would hide the reason
cancel.addEventListener("click", () => running?.abort());
keep.addEventListener("click", () => (byId("seed").value = keep.dataset.seed));
byId("colours").addEventListener("change", (event) => {
  document.body.classList.toggle("plain", !event.target.checked);
  hideTip();
});
results.addEventListener("mouseover", tipFor);
results.addEventListener("mouseleave", tipFor);
results.addEventListener("focusin", tipFor);
results.addEventListener("focusout", tipFor);
results.addEventListener("keydown", walk);
document.addEventListener("keydown", (event) => {
  if (event.isComposing) return; // Enter and Esc belong to the input method while it composes
  if (view() !== "texts") return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  if (event.key === "Escape") {
    hideTip();
    running?.abort();
  }
});
document.querySelector("nav").addEventListener("click", ({ target }) => {
  const chosenView = target.closest("button")?.dataset.view;
  if (chosenView) show(chosenView);
});
show(view()); // the server has said which comes first
settings.open = view() === "texts" && matchMedia("(min-width: 40rem)").matches;
settings.querySelectorAll("input[type=range]").forEach(showValue);
readModel().catch((error) => complain(...(error.words ?? ["服务器没有回答。", "The server does not answer."])));
