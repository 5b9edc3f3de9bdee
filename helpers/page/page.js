// The page talks to the server that sent it, by relative addresses, so it also works behind a proxy's prefix.
const form = document.getElementById("form");
const cancel = document.getElementById("cancel");
const statusLine = document.getElementById("status");
const errorLine = document.getElementById("error");
const results = document.getElementById("results");
let running = null; // the AbortController of the request under way

function showValue(input) {
  const marks = JSON.parse(input.dataset.marks || "{}");
  input.parentElement.querySelector("output").textContent = marks[input.value] ?? input.value;
}

// The server knows its limits and defaults; the sliders take them from its schema.
async function readLimits() {
  const { properties } = await (await fetch("schema")).json();
  for (const input of form.querySelectorAll("input[type=range]")) {
    const { maximum, default: usual } = properties[input.name];
    input.max = Math.min(input.max, maximum);
    input.value = usual;
    showValue(input);
  }
  form.elements.context.maxLength = properties.context.maxLength;
}

function body() {
  const values = { context: form.elements.context.value };
  for (const input of form.querySelectorAll("input")) {
    if (input.value !== "") values[input.name] = Number(input.value);
  }
  return values;
}

function showTexts(context, texts) {
  for (const text of texts) {
    const given = document.createElement("mark");
    given.textContent = context;
    const card = document.createElement("li");
    card.append(given, text.slice(context.length));
    results.append(card);
  }
}

function showError(words) {
  errorLine.textContent = words;
  errorLine.hidden = false;
}

async function generate() {
  running?.abort();
  const mine = (running = new AbortController());
  const request = body();
  const since = performance.now();
  cancel.disabled = false;
  errorLine.hidden = true;
  results.replaceChildren();
  statusLine.textContent = "正在生成… Generating…";
  try {
    const response = await fetch("generate", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal: mine.signal,
    });
    const answer = await response.json();
    const seconds = ((performance.now() - since) / 1000).toFixed(1);
    statusLine.textContent = response.ok ? `${answer.length} 份，${seconds} 秒 · ${answer.length} in ${seconds} s` : "";
    if (response.ok) showTexts(request.context, answer);
    else showError(`${response.status}: ${answer.error}`);
  } catch (error) {
    if (running !== mine) return; // a newer request has taken over
    const cancelled = error.name === "AbortError";
    statusLine.textContent = cancelled ? "已取消 Cancelled" : "";
    if (!cancelled) showError("服务器没有回答 The server does not answer");
  } finally {
    if (running === mine) {
      running = null;
      cancel.disabled = true;
    }
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
form.addEventListener("input", (event) => {
  if (event.target.type === "range") showValue(event.target);
});
cancel.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  if (event.key === "Escape") running?.abort();
});
form.querySelectorAll("input[type=range]").forEach(showValue);
readLimits().catch(() => showError("服务器没有回答 The server does not answer"));
