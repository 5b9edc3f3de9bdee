// The GPT of notebook 04, its tokenizer and the filters of notebook 05, for a browser: no server, no library.
// It writes token by token, so x is one position of the stream, (C,), and a cache holds the keys and values of those
// before. Names are those of helpers/model/gpt.py and helpers/generate/sampling.py. Knows no page.

// ---- weights: safetensors, a table of contents in JSON and then the numbers ----

// Return {name: numbers} of a file; a matrix in 8 bits stands there with a scale for each row, "name.scale".
export function readTensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const contents = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const kinds = { F32: Float32Array, I8: Int8Array };
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(contents)) {
    if (name === "__metadata__") continue;
    const kind = kinds[dtype];
    tensors[name] = Object.assign(new kind(buffer, 8 + size + begin, (end - begin) / kind.BYTES_PER_ELEMENT), { shape });
  }
  return tensors;
}

class Linear {
  constructor(tensors, name) {
    this.weight = tensors[`${name}.weight`]; // (out, in)
    this.scale = tensors[`${name}.weight.scale`]; // (out,), or none
    this.bias = tensors[`${name}.bias`]; // (out,), or none
    [this.rows, this.columns] = this.weight.shape;
  }

  row(number) {
    const row = this.weight.subarray(number * this.columns, (number + 1) * this.columns);
    return Float32Array.from(row, (value) => value * (this.scale ? this.scale[number] : 1));
  }

  // Return W x + b, (out,), of x (in,); four sums at once, for a processor has several adders.
  of(x) {
    const { weight, scale, bias, rows, columns } = this;
    const wide = Float64Array.from(x);
    const out = new Float32Array(rows);
    for (let r = 0, at = 0; r < rows; r++) {
      let [a, b, c, d, i] = [0, 0, 0, 0, 0];
      for (; i + 3 < columns; i += 4, at += 4) {
        a += weight[at] * wide[i];
        b += weight[at + 1] * wide[i + 1];
        c += weight[at + 2] * wide[i + 2];
        d += weight[at + 3] * wide[i + 3];
      }
      for (; i < columns; i++, at++) a += weight[at] * wide[i];
      out[r] = (a + b + c + d) * (scale ? scale[r] : 1) + (bias ? bias[r] : 0);
    }
    return out;
  }
}

// ---- the model ----

class Norm {
  constructor(tensors, name, { norm_eps: eps }) {
    Object.assign(this, { weight: tensors[`${name}.weight`], bias: tensors[`${name}.bias`], eps });
  }

  // LayerNorm has a bias, and takes the mean away first; RMSNorm does not.
  of(x) {
    const mean = this.bias ? x.reduce((sum, value) => sum + value, 0) / x.length : 0;
    const square = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(square + this.eps);
    return x.map((value, i) => (value - mean) * scale * this.weight[i] + (this.bias ? this.bias[i] : 0));
  }
}

export class Cache {
  constructor({ n_layer: L, n_kv_head: K, head_size: D }, window) {
    this.length = 0; // tokens that it holds
    this.keys = Array.from({ length: L }, () => new Float32Array(window * K * D)); // (T, K, D) for each block
    this.values = Array.from({ length: L }, () => new Float32Array(window * K * D));
  }

  copy() {
    const same = (all) => all.map((each) => each.slice());
    return Object.assign(Object.create(Cache.prototype), { length: this.length, keys: same(this.keys), values: same(this.values) });
  }
}

// The first id that a model with so many positions sees of a text: with one too many, the last half is read again.
export function windowStart(length, window) {
  const hop = window + 1 - Math.max(1, Math.floor(window / 2));
  return Math.max(0, Math.ceil((length - window) / hop)) * hop;
}

const silu = (x) => x / (1 + Math.exp(-x));
const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))); // GPT-2's approximation
const add = (x, more) => x.forEach((_, i) => (x[i] += more[i]));

export class GPT {
  constructor(config, tensors) {
    const linear = (name) => (tensors[`${name}.weight`] ? new Linear(tensors, name) : null);
    const norm = (name) => (tensors[`${name}.weight`] ? new Norm(tensors, name, config) : null);
    this.config = config;
    this.embed = linear("embed_tokens");
    this.positions = linear("embed_positions");
    this.layers = Array.from({ length: config.n_layer }, (_, i) => {
      const [attention, mlp] = [`layers.${i}.self_attn`, `layers.${i}.mlp`];
      return {
        before: norm(`layers.${i}.input_layernorm`), between: norm(`layers.${i}.post_attention_layernorm`),
        q: linear(`${attention}.q_proj`), k: linear(`${attention}.k_proj`), v: linear(`${attention}.v_proj`), o: linear(`${attention}.o_proj`),
        qNorm: norm(`${attention}.q_norm`), kNorm: norm(`${attention}.k_norm`),
        gate: linear(`${mlp}.gate_proj`), up: linear(`${mlp}.up_proj`), down: linear(`${mlp}.down_proj`),
      };
    });
    this.norm = norm("norm");
    this.head = linear("lm_head") ?? this.embed; // tied: the token table is the output matrix, too
    const half = config.head_size / 2;
    this.speeds = Float32Array.from({ length: half }, (_, i) => 1 / config.rope_theta ** Math.fround(i / half));
  }

  // Read one more token: return the logits (V,) of the next one, or nothing where they are not wanted.
  step(id, cache, wanted = true) {
    const at = cache.length;
    const x = this.embed.row(id); // (C,)
    if (this.positions) add(x, this.positions.row(at));
    this.layers.forEach((layer, number) => {
      add(x, this.attention(layer, layer.before.of(x), cache.keys[number], cache.values[number], at));
      const h = layer.between.of(x);
      const up = layer.up.of(h); // (F,)
      const gate = layer.gate?.of(h);
      add(x, layer.down.of(gate ? up.map((value, i) => silu(gate[i]) * value) : up.map(gelu)));
    });
    cache.length++;
    return wanted ? this.head.of(this.norm.of(x)) : undefined;
  }

  // What position `at` takes from itself and those before it, (C,); groups of heads share one head of keys and values.
  attention(layer, h, keys, values, at) {
    const { n_head: H, n_kv_head: K, head_size: D } = this.config;
    const heads = (x, norm) => Array.from({ length: x.length / D }, (_, i) => this.turn(norm ? norm.of(x.slice(i * D, (i + 1) * D)) : x.subarray(i * D, (i + 1) * D), at));
    const q = heads(layer.q.of(h), layer.qNorm); // H times (D,)
    heads(layer.k.of(h), layer.kNorm).forEach((k, i) => keys.set(k, (at * K + i) * D));
    values.set(layer.v.of(h), at * K * D);
    const mixed = new Float32Array(H * D);
    const scores = new Float64Array(at + 1);
    for (let head = 0; head < H; head++) {
      const shared = Math.floor((head * K) / H) * D; // where its head of keys begins
      for (let t = 0; t <= at; t++) {
        let dot = 0;
        for (let i = 0, k = t * K * D + shared; i < D; i++) dot += q[head][i] * keys[k + i];
        scores[t] = dot / Math.sqrt(D);
      }
      const p = softmax(scores);
      for (let t = 0; t <= at; t++) for (let i = 0, v = t * K * D + shared; i < D; i++) mixed[head * D + i] += p[t] * values[v + i];
    }
    return layer.o.of(mixed);
  }

  // Rotary positions: turn the pairs i and i + D/2 of x (D,); a table of positions needs none.
  turn(x, at) {
    if (this.positions) return x;
    const turned = new Float32Array(x.length);
    const half = this.speeds.length;
    this.speeds.forEach((speed, i) => {
      const angle = Math.fround(at * speed);
      turned[i] = x[i] * Math.cos(angle) - x[i + half] * Math.sin(angle);
      turned[i + half] = x[i + half] * Math.cos(angle) + x[i] * Math.sin(angle);
    });
    return turned;
  }
}

export function softmax(scores) {
  const best = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const p = Float64Array.from(scores, (score) => Math.exp(score - best));
  const sum = p.reduce((total, value) => total + value, 0);
  return p.map((value) => value / sum);
}

// ---- the tokenizer: tokenizer.json of Hugging Face ----

export class Tokenizer {
  constructor({ model }) {
    const unigram = model.type === "Unigram";
    this.pieces = unigram ? model.vocab.map(([piece]) => piece) : Object.keys(model.vocab).sort((a, b) => model.vocab[a] - model.vocab[b]);
    this.ids = new Map(this.pieces.map((piece, id) => [piece, id]));
    this.scores = unigram ? model.vocab.map(([, score]) => score) : null;
    this.ranks = new Map((model.merges ?? []).map((pair, rank) => [pair.join("\n"), rank])); // no merge holds a line break
    this.longest = Math.max(...this.pieces.map((piece) => piece.length));
    this.unknown = unigram ? Math.min(...this.scores) - 10 : 0; // score of a character that is no piece: the library's
    this.bytes = this.pieces.map((piece) => (/^<0x[0-9A-F]{2}>$/.test(piece) ? parseInt(piece.slice(3, 5), 16) : null));
  }

  encode(text) {
    const pieces = this.scores ? this.viterbi(text.toWellFormed()) : this.merge(text.toWellFormed());
    return pieces.flatMap((piece) => this.ids.get(piece) ?? this.spell(piece));
  }

  spell(piece) {
    return Array.from(new TextEncoder().encode(piece), (byte) => this.ids.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`));
  }

  // The cut whose scores have the highest sum: the best way to each place is the best way to an earlier one, and a piece.
  viterbi(text) {
    const best = new Float64Array(text.length + 1);
    const from = new Int32Array(text.length + 1).fill(-1);
    const offer = (start, end, score) => {
      if (from[end] < 0 || best[start] + score > best[end]) [best[end], from[end]] = [best[start] + score, start];
    };
    for (let start = 0; start < text.length; start += text.codePointAt(start) > 0xffff ? 2 : 1) {
      const one = start + (text.codePointAt(start) > 0xffff ? 2 : 1);
      for (let end = one; end <= Math.min(text.length, start + this.longest); end++) {
        const id = this.ids.get(text.slice(start, end));
        if (id !== undefined) offer(start, end, this.scores[id]);
        else if (end === one) offer(start, end, this.unknown);
      }
    }
    const pieces = [];
    for (let end = text.length; end > 0; end = from[end]) pieces.unshift(text.slice(from[end], end));
    return pieces;
  }

  // BPE: join the pair that was merged first in training, the leftmost of equal ones, until no pair is left.
  merge(text) {
    const parts = [...text].flatMap((letter) => (this.ids.has(letter) ? letter : this.spell(letter).map((id) => this.pieces[id])));
    for (;;) {
      let [at, least] = [-1, Infinity];
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]}\n${parts[i + 1]}`) ?? Infinity;
        if (rank < least) [at, least] = [i, rank];
      }
      if (at < 0) return parts;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  text(id) {
    return this.bytes[id] === null ? this.pieces[id] : new TextDecoder().decode(Uint8Array.of(this.bytes[id]));
  }
}

// Tokens become text one by one, and never half a character: bytes wait until they spell one, four at most.
export class Detokenizer {
  constructor(tokenizer) {
    Object.assign(this, { tokenizer, waiting: [] });
  }

  // Return the characters that a token makes whole.
  push(id) {
    const byte = this.tokenizer.bytes[id];
    const strays = "\ufffd".repeat(this.waiting.length);
    if (byte === null) {
      this.waiting = [];
      return strays + this.tokenizer.pieces[id];
    }
    this.waiting.push(byte);
    let text = this.waiting.length < 4 ? "" : `${strays}\ufffd`;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(this.waiting));
    } catch {}
    if (text) this.waiting = [];
    return text;
  }
}

// ---- the filters, in the order of helpers/generate/sampling.py ----

// Return {left: ids, the likeliest first, p: their probabilities, gone: id -> the filter that removed it}.
// logits (V,), -Infinity where a token must not be written; seen: the ids that the penalty looks at.
export function filtered(logits, seen, { temperature = 1, top_k = 0, top_p = 1, min_p = 0, repetition_penalty = 1 }) {
  const scores = Float64Array.from(logits);
  for (const id of new Set(seen)) scores[id] *= scores[id] < 0 ? repetition_penalty : 1 / repetition_penalty;
  if (temperature < 1e-6 || top_p === 0) {
    const best = scores.indexOf(scores.reduce((most, score) => Math.max(most, score), -Infinity));
    return { left: [best], p: [1], gone: (id) => (id === best ? null : temperature < 1e-6 ? "temperature" : "top_p") };
  }
  const kth = top_k && top_k < scores.length ? scores.toSorted()[scores.length - top_k] : -Infinity;
  let left = [];
  scores.forEach((score, id) => score >= kth && score > -Infinity && left.push(id));
  left.sort((a, b) => scores[b] - scores[a] || a - b);
  const gone = new Map();
  const cut = (length, name) => {
    for (const id of left.splice(length)) gone.set(id, name);
  };
  let p = softmax(left.map((id) => scores[id] / temperature));
  if (top_p < 1) {
    let length = left.length;
    for (let tail = p[length - 1]; length > 1 && tail <= 1 - top_p; tail += p[length - 1]) length--;
    cut(length, "top_p");
  }
  const enough = left.findIndex((_, i) => p[i] < min_p * p[0]);
  if (enough > 0) cut(enough, "min_p");
  p = softmax(left.map((id) => scores[id] / temperature));
  const names = new Set(left);
  return { left, p, gone: (id) => (names.has(id) ? null : gone.get(id) ?? "top_k") };
}

// Return a function that gives numbers between 0 and 1, the same ones for the same seed: Mulberry32.
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}
