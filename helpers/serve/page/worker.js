// Answers what page.js would send to a server, in a thread of its own, so that the page never stands still.
// Messages come in as {id, path, body} or {id, cancelled}, and go out as {id, event}, {id, done} or {id, error}.
import { Cache, Detokenizer, GPT, Tokenizer, filtered, randomNumbers, readTensors, windowStart } from "./gpt.js";

const FRAME = 16; // ms between two looks at what the page wants
const calls = new Set(); // of requests that nobody has cancelled
const loaded = load();

async function load() {
  const [about, tokenizer, weights] = await Promise.all(["model.json", "tokenizer.json", "model.safetensors"].map((name) => fetch(name)));
  const model = await about.json();
  return { ...model, gpt: new GPT(model.config, readTensors(await weights.arrayBuffer())), tokenizer: new Tokenizer(await tokenizer.json()) };
}

class Refusal extends Error {
  constructor(zh, en) {
    super(en);
    this.words = [zh, en];
  }
}

// ---- texts ----

class Row {
  constructor(model, ids, body, index) {
    Object.assign(this, { model, body, index, ids: [...ids], written: 0, unsent: [], reason: null });
    this.random = randomNumbers(body.seed + index * 0x9e3779b9);
    this.detokenizer = new Detokenizer(model.tokenizer);
  }

  read(ids) {
    this.cache = new Cache(this.model.config, this.model.window);
    ids.forEach((id, i) => (this.logits = this.model.gpt.step(id, this.cache, i === ids.length - 1)));
  }

  // Write one token; return the choice of an event, or nothing if no character is whole yet.
  step() {
    const { model, body, ids } = this;
    const start = windowStart(ids.length, model.window);
    for (const id of model.never) this.logits[id] = -Infinity;
    const { left, p, gone } = filtered(this.logits, ids.slice(start), body);
    let at = 0;
    for (let u = this.random(); at + 1 < p.length && u >= p[at]; at++) u -= p[at];
    const id = left[at];
    const told = body.logprobs === undefined ? null : this.told(id, gone);
    let text = "";
    if (model.ends.includes(id)) this.reason = "stop";
    else {
      ids.push(id);
      text = this.detokenizer.push(id);
      if (told) this.unsent.push(told);
      if (++this.written >= body.max_tokens) this.reason = "length";
      else if (windowStart(ids.length, model.window) > windowStart(ids.length - 1, model.window)) this.read(ids.slice(windowStart(ids.length, model.window)));
      else this.logits = model.gpt.step(id, this.cache);
    }
    return text || this.reason ? this.choice(text) : null;
  }

  choice(text) {
    const tokens = text ? this.unsent.splice(0) : [];
    const logprobs = this.body.logprobs === undefined ? null : {
      tokens: tokens.map((each) => each.text),
      token_logprobs: tokens.map((each) => each.logprob),
      top_logprobs: tokens.map((each) => each.rivals),
      removed: tokens.map((each) => each.removed), // only here: a server does not tell what a filter did
    };
    return { index: this.index, text, logprobs, finish_reason: this.reason };
  }

  // A token's probability before the filters, its likeliest rivals, and which filter removed which of them.
  told(id, gone) {
    const best = this.logits.reduce((most, score) => Math.max(most, score), -Infinity);
    const sum = best + Math.log(this.logits.reduce((total, score) => total + Math.exp(score - best), 0));
    const order = Array.from({ length: this.body.logprobs }, () => -1);
    this.logits.forEach((score, other) => {
      let place = order.length;
      while (place > 0 && (order[place - 1] < 0 || score > this.logits[order[place - 1]])) place--;
      if (place < order.length) order.splice(place, 0, other), order.pop();
    });
    const { tokenizer } = this.model;
    const named = [...new Set([...order, id])].filter((each) => this.logits[each] > -Infinity).map((each) => [tokenizer.text(each), each]).reverse();
    const rivals = Object.fromEntries(named.map(([text, each]) => [text, this.logits[each] - sum])); // of equal texts the likeliest
    const removed = Object.fromEntries(named.filter(([, each]) => gone(each)).map(([text, each]) => [text, gone(each)]));
    return { text: tokenizer.text(id), logprob: this.logits[id] - sum, rivals, removed };
  }
}

// Yield {choices} of all rows, a token of each in turn, about once a frame.
async function* write(id, rows) {
  let since = performance.now();
  let choices = [];
  while (rows.some((row) => !row.reason)) {
    for (const row of rows) if (!row.reason) choices.push(row.step());
    if (performance.now() - since < FRAME) continue;
    yield choices.filter(Boolean);
    choices = [];
    await new Promise((resume) => {
      const { port1, port2 } = new MessageChannel(); // unlike a timer, it does not wait
      port1.onmessage = resume;
      port2.postMessage(null);
    });
    if (!calls.has(id)) return;
    since = performance.now();
  }
  yield choices.filter(Boolean);
}

// ---- requests ----

async function* completions(id, model, body) {
  const ids = [model.bos, ...model.tokenizer.encode(body.prompt)];
  const rows = Array.from({ length: body.n }, (_, index) => new Row(model, ids, body, index));
  rows[0].read(ids.slice(windowStart(ids.length, model.window)));
  for (const row of rows.slice(1)) Object.assign(row, { cache: rows[0].cache.copy(), logits: rows[0].logits.slice() });
  for await (const choices of write(id, rows)) yield { choices };
}

async function* chat(id, model, { messages, ...body }) {
  const { tokenizer, window, bos, chat: roles } = model;
  const opens = { system: [bos], user: [roles.user], assistant: [roles.assistant] };
  const said = messages.map(({ role, content }) => [...opens[role], ...tokenizer.encode(content), ...(role === "assistant" ? [roles.end] : [])]);
  const first = messages[0].role === "system" ? said.shift() : [bos];
  const reserved = Math.min(model.max_length, Math.floor(window / 4)); // for the answer
  let leftOut = 0;
  const ids = () => [...first, ...said.slice(leftOut).flat(), roles.assistant];
  while (leftOut + 1 < said.length && ids().length > window - reserved) leftOut += 2;
  const free = window - reserved;
  if (ids().length > free) throw new Refusal("问题太长：请说得短一些。", `the question has ${ids().length} tokens, and ${free} are free: ask in fewer words`);
  const row = new Row(model, ids(), { ...body, max_tokens: Math.min(model.max_length, window - ids().length) }, 0);
  row.read(row.ids);
  yield { choices: [], messages_left_out: leftOut };
  for await (const choices of write(id, [row])) {
    yield { choices: choices.map(({ text, ...more }) => ({ ...more, delta: { content: text } })) };
  }
}

const routes = { "v1/completions": completions, "v1/chat/completions": chat };

async function answer({ id, path, body }) {
  calls.add(id);
  try {
    const model = await loaded;
    if (path === "v1/models") postMessage({ id, event: { data: [model.about] } });
    else for await (const event of routes[path](id, model, body)) if (calls.has(id)) postMessage({ id, event });
    postMessage({ id, done: true });
  } catch (error) {
    postMessage({ id, error: error.words ?? ["出错了：", String(error.message)] });
  }
  calls.delete(id);
}

onmessage = ({ data }) => (data.cancelled ? calls.delete(data.id) : answer(data));
