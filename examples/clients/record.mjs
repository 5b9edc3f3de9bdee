// The programs in JavaScript that record.py lets talk to its server: `node record.mjs ADDRESS`.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const baseURL = process.argv[2];
const model = "tiny";
const messages = [
  { role: "user", content: "绿萝怎么浇水？" },
  { role: "assistant", content: "看土。" },
  { role: "user", content: "冬天呢？" },
];
const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
const named = (client, call) => ({ "X-client": `${client} ${version(client)} (node)`, "X-call": encodeURIComponent(call).replaceAll("%20", " ") });

async function record(client, call, act) {
  try {
    await act(named(client, call));
  } catch (error) {
    console.error(`${client}, ${call}: ${error}`);
  }
}

const drain = async (stream) => {
  for await (const part of stream) if (part?.error) console.error(part.error);
};

const openai = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
const ask = (body) => (headers) => openai.chat.completions.create({ model, messages, ...body }, { headers });
await record("openai", "a conversation", ask({}));
await record("openai", "a seed of the clock", ask({ seed: 1764265000123 }));
await record("openai", "a stream", async (headers) => drain(await ask({ stream: true })(headers)));
await record("openai", "a helper's stream", async (headers) => openai.chat.completions.stream({ model, messages }, { headers }).finalContent());
await record("openai", "a text", (headers) => openai.completions.create({ model, prompt: "绿萝" }, { headers }));

const compatible = (headers, options) => createOpenAICompatible({ name: "own", baseURL, apiKey: "x", headers, ...options });
for (const [client, make] of [
  ["@ai-sdk/openai-compatible", (headers) => compatible(headers).chatModel(model)],
  ["@ai-sdk/openai", (headers) => createOpenAI({ baseURL, apiKey: "x", headers }).chat(model)],
]) {
  const given = { system: "短", messages, maxRetries: 0 };
  await record(client, "a conversation", async (headers) => generateText({ ...given, model: make(headers) }));
  await record(client, "all settings", async (headers) =>
    generateText({ ...given, model: make(headers), temperature: 0.5, maxOutputTokens: 20, seed: 7, stopSequences: ["。"], presencePenalty: 0, frequencyPenalty: 0 }));
  await record(client, "a stream", async (headers) => drain(streamText({ ...given, model: make(headers) }).fullStream));
}
await record("@ai-sdk/openai-compatible", "a stream with usage", async (headers) =>
  drain(streamText({ messages, model: compatible(headers, { includeUsage: true }).chatModel(model) }).fullStream));
await record("@ai-sdk/openai-compatible", "a text", async (headers) => generateText({ model: compatible(headers).completionModel(model), prompt: "绿萝" }));
