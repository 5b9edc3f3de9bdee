// Without a server: what page.js asks for, a worker of this page answers. It stands before page.js only in a static folder.
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map(); // id of a request -> what to do with a message about it
worker.onmessage = ({ data }) => waiting.get(data.id)?.(data);
worker.onerror = () => waiting.forEach((tell, id) => tell({ id, error: ["模型没有载入。", "The model was not loaded."] }));

let requests = 0;

// Yield the events of an answer, as `post` of page.js does.
async function* askWorker(path, body, signal) {
  const id = ++requests;
  const arrived = [];
  let wake = () => {};
  const tell = (message) => {
    arrived.push(message);
    wake();
  };
  waiting.set(id, tell);
  signal?.addEventListener("abort", () => tell({ cancelled: true }));
  worker.postMessage({ id, path, body });
  try {
    for (;;) {
      if (!arrived.length) await new Promise((resume) => (wake = resume));
      const { event, error, cancelled, done } = arrived.shift();
      if (cancelled) throw new DOMException("cancelled", "AbortError");
      if (error) throw Object.assign(new Refused(), { words: error });
      if (done) return;
      yield event;
    }
  } finally {
    waiting.delete(id);
    worker.postMessage({ id, cancelled: true });
  }
}
