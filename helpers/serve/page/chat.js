// The conversation: questions and answers in turns. What both views need is in page.js, which comes first.
const turns = byId("turns");
const asking = byId("asking");
const question = byId("question");
const halt = byId("halt");
const mostMessages = Number(asking.dataset.messages);
const mostBytes = Number(asking.dataset.bytes) - 1024; // the settings stand in the same body
const MOST_CALLS = 3; // of tools, for one question
let talk = []; // of `Turn`, from the oldest on
let answering = null; // the AbortController of the answer under way

// ---- turns ----

class Turn {
  constructor(role, content) {
    this.role = role;
    this.content = content;
    this.attempt = 0; // how often this question was answered before
    this.steps = []; // messages before the answer: calls of tools, and their results
    this.item = document.createElement("li");
    this.item.className = role;
    this.text = document.createElement("p");
    this.text.className = "text";
    this.text.textContent = content;
    this.state = document.createElement("span");
    const copy = button("copy", "复制", "Copy", () => copyText(this.content, this.text));
    const more = role === "user" ? [] : [button("again", "重答", "Again", again)];
    const who = document.createElement("b");
    who.append(...(role === "user" ? both("你", "You") : both("模型", "Model")));
    this.item.append(who, this.text, foot(this.state, copy, ...more));
    talk.push(this);
    turns.append(this.item);
  }

  add(text) {
    const below = turns.scrollHeight - turns.scrollTop - turns.clientHeight;
    this.content += text;
    this.text.append(text);
    if (below < 40) turns.scrollTop = turns.scrollHeight; // who has scrolled up to read is left there
  }

  // What a request says of this turn.
  get said() {
    return [...this.steps, { role: this.role, content: this.content }];
  }

  // Carry the calls of a message out, and show them folded.
  call(message) {
    const given = message.tool_calls.map((each) => {
      const made = this.steps.filter(({ role }) => role === "tool").length;
      return { call: each, content: made < MOST_CALLS ? carryOut(each.function) : "错误：查得太多了" };
    });
    this.steps.push(message, ...given.map(({ call, content }) => ({ role: "tool", tool_call_id: call.id, content })));
    for (const { call, content } of given) {
      const step = document.createElement("details");
      const [line, result] = [document.createElement("summary"), document.createElement("p")];
      line.append(...both(`用工具 ${call.function.name}`, `calls ${call.function.name}`));
      result.textContent = `${call.function.arguments} → ${content}`;
      step.append(line, result);
      this.text.before(step);
    }
  }

  end(kind, ...words) {
    this.item.classList.remove("writing");
    this.item.classList.add(kind);
    this.state.replaceChildren(...both(`${[...this.content].length} 字${words.length ? ` · ${words[0]}` : ""}`, words[1] ?? ""));
  }
}

function drop(from) {
  for (const turn of talk.splice(from)) turn.item.remove();
}

// ---- tools ----

// Return the result of a call, as text. What the model asks is its own invention: nothing of it is taken on trust.
function carryOut({ name, arguments: written }) {
  const asked = JSON.parse(written);
  const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);
  if (name === "look_up") return own(own(tools.table, asked.plant), asked.topic) ?? "错误：表里没有";
  const numbers = Object.values(asked).flat();
  if (name === "add" && numbers.length && numbers.every((each) => typeof each === "number")) {
    return String(Number(numbers.reduce((sum, each) => sum + each, 0).toPrecision(12))); // 0.1 + 0.2 is 0.3
  }
  return `错误：${name} 用不了`;
}

// ---- questions and answers ----

// Return the messages to send, and how many of the oldest a request has no place for.
function messages() {
  const system = byId("system").value.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  const spoken = (from) => [...first, ...talk.slice(from).flatMap((turn) => turn.said)];
  const size = (from) => new TextEncoder().encode(JSON.stringify([spoken(from), tools?.definitions])).length;
  let from = 0;
  while (from + 2 < talk.length && (spoken(from).length > mostMessages || size(from) > mostBytes)) from += 2;
  return { sent: spoken(from), unsent: spoken(0).length - spoken(from).length };
}

function showLeftOut(count) {
  let before = 0;
  for (const turn of talk) {
    turn.item.classList.toggle("out", before < count);
    before += turn.said.length;
  }
  byId("left-out").hidden = !count;
  byId("left-out").replaceChildren(...both(`上下文满了：最早的 ${count} 条，模型没有看到。`, `The context is full: the model did not see the oldest ${count} messages.`));
}

function ask(text) {
  new Turn("user", text);
  answer();
}

function again() {
  if (answering) return;
  const [old] = talk.slice(-1);
  drop(talk.length - 1);
  question.focus();
  answer(old);
}

// Let the model answer, and call tools before it does.
async function converse(body, unsent, turn, signal) {
  for (let called = true; called; ) {
    called = false;
    const messages = [...body.messages, ...turn.steps];
    // after so many calls it has to answer
    const offered = tools && turn.steps.length < 2 * MOST_CALLS ? { tools: tools.definitions } : {};
    for await (const { choices, messages_left_out: leftOut } of post("v1/chat/completions", { ...body, ...offered, messages }, signal)) {
      if (leftOut !== undefined) showLeftOut(unsent + leftOut);
      for (const { delta, finish_reason: reason } of choices) {
        if (delta.tool_calls) {
          turn.call({ role: "assistant", content: delta.content, tool_calls: delta.tool_calls });
          called = true;
        } else if (delta.content) turn.add(delta.content);
        if (reason === "length") turn.end("long", "到了长度", "reached the length");
        else if (reason && !called) turn.end("whole");
      }
    }
  }
  say("答好了。", "Answered."); // read aloud after the answer: the seed stands on its button
}

// Answer the last question; `old`: the answer that a new one replaces, and that comes back if there is none.
async function answer(old) {
  const controller = (answering = new AbortController());
  const { sent, unsent } = messages();
  const body = { ...chosen(), messages: sent };
  const turn = new Turn("assistant", "");
  if (old) turn.attempt = old.attempt + 1;
  body.seed = (body.seed + turn.attempt) % SEEDS; // a kept seed must not bring the same answer again
  offerSeed(body.seed);
  byId("error").hidden = true;
  halt.disabled = false;
  turn.item.classList.add("writing");
  turns.setAttribute("aria-busy", "true");
  turns.scrollTop = turns.scrollHeight;
  say("正在写…", "Writing…");
  try {
    await converse(body, unsent, turn, controller.signal);
  } catch (error) {
    if (answering !== controller) return; // a new conversation has begun
    if (turn.content) {
      turn.end("cut", ...cutWords(error));
    } else {
      drop(talk.length - 1);
      if (old) giveBack(old);
      else takeBack();
    }
    sayWhy(error, Boolean(turn.content));
  } finally {
    if (answering === controller) rest();
  }
}

function giveBack(old) {
  talk.push(old);
  turns.append(old.item);
}

// A question without an answer goes back to where it was typed.
function takeBack() {
  question.value ||= talk.at(-1).content;
  drop(talk.length - 1);
}

function rest() {
  answering = null;
  turns.removeAttribute("aria-busy");
  if (document.activeElement === halt) question.focus(); // a disabled button would lose the keyboard's place
  halt.disabled = true;
}

asking.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value;
  if (answering || !text.trim() || !byId("seed").reportValidity()) return;
  question.value = "";
  ask(text);
});
question.addEventListener("keydown", (event) => {
  // Shift+Enter breaks the line; the Enter that ends a composition belongs to the input method
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  asking.requestSubmit();
});
halt.addEventListener("click", () => answering?.abort());
byId("new").addEventListener("click", () => {
  const left = answering;
  rest();
  left?.abort();
  drop(0);
  showLeftOut(0);
  byId("error").hidden = true;
  say();
  question.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && view() === "chat") answering?.abort();
});
