"""The application: its routes, and how each asks the engine for text, waits for it, and streams it.

A stream is sent as server-sent events, as OpenAI's API has it. This module knows routes and streams only: `auth` says
who may call, `schema` what a request may say, `engine` writes the text, `server` opens the port.
"""

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from string import Template

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from helpers.generate.batch import prompt_ids
from helpers.generate.settings import RANGES, Chunk, Sample
from helpers.generate.surprisal import LEVELS
from helpers.serve import auth, connections, schema
from helpers.serve.auth import Refusal
from helpers.serve.engine import Engine, QueueFull
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.serve.metrics import Metrics

log = logging.getLogger(__name__)

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = {  # address -> file
    "/" if file.name == "index.html" else f"/{file.name}": file
    for file in sorted(Path(__file__).with_name("page").iterdir())
    if file.suffix in TYPES
}


@dataclass
class AppState:
    """What one application knows while it runs."""

    name: str  # of the model
    limits: Limits
    generate_request: type[schema.GenerateRequest]  # the model of a body, within these limits
    completion_request: type[schema.CompletionRequest]
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False  # the server is stopping: new requests are refused
    deadlines: set[asyncio.Timeout] = field(default_factory=set)  # of the requests under way


ENGINE = web.AppKey("engine", Engine)
STATE = web.AppKey("state", AppState)
GUARD = web.AppKey("guard", auth.Guard)
LISTENER = web.AppKey("listener", connections.Listener)
METRICS = web.AppKey("metrics", Metrics)
OPENAPI = web.AppKey("openapi", str)


def answer(data: object, status: int = 200, **headers: str) -> web.Response:
    """Return a JSON response in UTF-8; Chinese stays readable. `data`: a pydantic model, JSON text, or plain data."""
    if isinstance(data, BaseModel):
        data = data.model_dump_json()
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def to_refusal(error: Exception, request: web.Request) -> Refusal:
    """Return the refusal for an error; an unexpected error is logged, and its details are not sent."""
    match error:
        case Refusal():
            return error
        case schema.Invalid():
            return Refusal(400, str(error), "invalid", error.key)
        case QueueFull():
            message = "too many requests are waiting: try again in a moment"
            return Refusal(429, message, "full", **{hdrs.RETRY_AFTER: "1"})
        case TimeoutError():
            seconds = request.app[STATE].limits.text_seconds
            return Refusal(503, f"no answer within {seconds:g} seconds: ask for fewer tokens or samples", "timeout")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.method[:20]} does not work here: use {allowed}"
            return Refusal(405, message, "method_not_allowed", **{hdrs.ALLOW: allowed})
        case web.HTTPNotFound():
            message = "there is nothing at this address: send POST /generate, or open / in a browser"
            return Refusal(404, message, "not_found")
        case web.HTTPException():
            return Refusal(error.status, error.reason, "http")
    # log where it failed, without the message: the message of an error may quote a prompt
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", route(request), type(error).__name__, trace)
    return Refusal(500, "the server failed; the reason is in its log", "failed")


def route(request: web.Request) -> str:
    """Return the application's own name of the route: what the client typed stays out of logs and metrics."""
    resource = request.match_info.route.resource
    return resource.canonical if resource else "elsewhere"


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check a request, answer it, count it; every error becomes a refusal in JSON."""
    app, since, status = request.app, time.perf_counter(), 499  # nginx's status of a client that has disconnected
    try:
        if app[STATE].draining and request.path != auth.KEYLESS_PATH:
            raise Refusal(503, "the server is stopping: ask another one, or later", "stopping")
        app[GUARD].check(request)
        response = await handler(request)
        status = response.status
        return response
    except ConnectionError:
        raise
    except Exception as error:
        refusal = to_refusal(error, request)
        status = refusal.status
        app[METRICS].refused(refusal.code)
        body = schema.refusal(request.path, status, refusal.message, refusal.code, refusal.key)
        response = answer(body, status, **refusal.headers)
        if status in (408, 503):  # the client cannot go on
            response.force_close()
        return response
    finally:
        app[METRICS].answered(route(request), status, time.perf_counter() - since)


@contextlib.asynccontextmanager
async def deadline(app: web.Application) -> AsyncIterator[None]:
    """Limit the time of a request; a server that stops may shorten it. Raises TimeoutError."""
    state = app[STATE]
    async with asyncio.timeout(state.limits.text_seconds) as limit:
        state.deadlines.add(limit)
        try:
            yield
        finally:
            state.deadlines.discard(limit)


async def read(request: web.Request, model: type[schema.Body]) -> schema.Body:
    """Return the checked body of a request; raises Refusal, schema.Invalid, or QueueFull.

    If the queue is full, nothing is read: in a flood, refusals must not take the time that texts are written in.
    """
    if request.app[ENGINE].full:
        raise QueueFull
    return schema.read(model, await auth.read_json(request, request.app[STATE].limits))


def encode_prompts(app: web.Application, prompts: list[str]) -> list[list[int]]:
    """Return the ids of each prompt; raises Refusal if they are too many together."""
    ids = [prompt_ids(app[ENGINE].tokenizer, prompt) for prompt in prompts]
    count, most = sum(map(len, ids)), app[STATE].limits.max_prompt_tokens
    if count > most:
        message = f"the prompt has {count} tokens, and {most} are allowed: give a shorter beginning"
        raise Refusal(400, message, "context_length_exceeded", "prompt")
    return ids


def submit(
    app: web.Application, wanted: schema.TextRequest, ids: list[list[int]], chunks: "ChunkQueue | None" = None
) -> list[Future]:
    """Hand every prompt to the engine and return the futures, all or none; `chunks` receives the texts as they grow."""
    engine, futures = app[ENGINE], []
    if not engine.alive:
        raise Refusal(503, "the server does not write at the moment: try again later", "not_ready")
    settings = wanted.settings()
    try:
        for number, prompt in enumerate(wanted.prompts):
            listener = None if chunks is None else partial(chunks.put, number)
            futures.append(engine.submit(prompt, settings, wanted.samples, ids=ids[number], listener=listener))
    except BaseException:
        cancel(futures)
        raise
    return futures


def cancel(futures: list[Future]) -> None:
    """Remove from the engine what is not done."""
    for future in futures:
        future.cancel()


async def results(futures: list[Future]) -> list[list[Sample]]:
    """Wait for the samples of each prompt; a cancelled wait removes the rows from the engine's batch."""
    try:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        cancel(futures)


async def post_generate(request: web.Request) -> web.Response:
    """Answer {"context", "maxlength", "samples", …} with a list of strings; each starts with the context.

    The event loop only waits here: tokens are computed in the engine's thread. If the client disconnects, aiohttp
    cancels this coroutine, which cancels the future, which removes the rows from the engine's batch.
    """
    app = request.app
    wanted = await read(request, app[STATE].generate_request)
    ids = encode_prompts(app, wanted.prompts)
    with app[GUARD].track_request(request):
        async with deadline(app):
            (samples,) = await results(submit(app, wanted, ids))
            return answer([sample.text for sample in samples])


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/completions does, whole or as a stream of server-sent events."""
    app = request.app
    wanted = await read(request, app[STATE].completion_request)
    name = app[STATE].name
    if wanted.model not in (None, name):
        raise Refusal(404, f"this server has no such model: its model is '{name}'", "model_not_found", "model")
    ids = encode_prompts(app, wanted.prompts)
    writer = schema.CompletionWriter(name, wanted, sum(map(len, ids)))
    with app[GUARD].track_request(request):
        if wanted.stream:
            return await stream(request, writer, ids)
        async with deadline(app):
            return answer(writer.whole(await results(submit(app, wanted, ids))))


class ChunkQueue:
    """Chunks on their way from the engine's thread to the event loop; all that are waiting are taken at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Chunk | None]] = deque()
        self._ready = asyncio.Event()
        self._called = False  # the loop is on its way: one call wakes it for everything that arrives until it looks

    def put(self, number: int, chunk: Chunk | None) -> None:
        """Add a chunk of prompt `number`, or None when this prompt is done; callable in any thread, returns at once."""
        self._waiting.append((number, chunk))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the reader
                self._loop.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[tuple[int, Chunk | None]]:
        """Wait until there is something, and return all of it."""
        await self._ready.wait()
        self._ready.clear()
        self._called = False  # before looking: what arrives from now on calls again
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


async def events(writer: schema.CompletionWriter, chunks: ChunkQueue, futures: list[Future]) -> AsyncIterator[bytes]:
    """Yield events as the texts grow, several at once if they grow faster than events are sent."""
    for number, future in enumerate(futures):
        future.add_done_callback(partial(lambda number, _: chunks.put(number, None), number))
    unfinished = len(futures)
    while unfinished:
        # 1. take all that is new, by text
        new: dict[int, list[Chunk]] = defaultdict(list)
        for number, chunk in await chunks.take():
            if chunk is None:
                unfinished -= 1
            else:
                new[number * writer.request.samples + chunk.sample].append(chunk)
        # 2. one event per text
        lines = []
        for index, parts in new.items():
            tokens = [token for part in parts for token in part.logprobs]
            lines.append(writer.event(index, "".join(part.text for part in parts), tokens, parts[-1].reason))
        if lines:
            yield b"".join(map(event, lines))
    ending = writer.ending([future.result() for future in futures])  # raises the error of a failed request
    if ending:
        yield event(ending)


def event(data: str) -> bytes:
    """Return a server-sent event; JSON text has no line break of its own."""
    return f"data: {data}\n\n".encode()


async def stream(request: web.Request, writer: schema.CompletionWriter, ids: list[list[int]]) -> web.StreamResponse:
    """Send the text as it is written; an error is sent as an event, and the last event is always [DONE].

    The answer begins with the first chunk: until then a refusal is an ordinary response.
    """
    chunks = ChunkQueue()
    # a proxy that buffers the answer would make a stream useless
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    futures = submit(request.app, writer.request, ids, chunks)
    try:
        async with deadline(request.app):
            async for data in events(writer, chunks, futures):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(data)
            if not response.prepared:  # nothing to send, not even an empty last chunk
                await response.prepare(request)
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        refusal = to_refusal(error, request)
        request.app[METRICS].refused(refusal.code)
        body = schema.refusal(request.path, refusal.status, refusal.message, refusal.code)
        await response.write(event(body.model_dump_json()))
    finally:
        cancel(futures)
    await response.write(event("[DONE]"))
    await response.write_eof()
    return response


def fill_page(html: str, limits: Limits) -> str:
    """Return index.html with the ranges of its sliders, the limits of a request, and the levels of its colours."""
    values: dict[str, object] = {
        "max_context": limits.max_context,
        "n": f'min="1" max="{limits.max_samples}"',
        "max_tokens": f'min="1" max="{limits.max_length}"',
        "logprobs": schema.MAX_LOGPROBS,
    }
    for name, allowed in RANGES.items():
        if allowed.slider:
            least, most, step = allowed.slider
            values[name] = f'min="{least:g}" max="{most:g}" step="{step:g}" value="{allowed.off:g}"'
    percents = [f"{100 * level:g}" for level in LEVELS]
    between = [f"{low}–{high}" for high, low in zip(percents, percents[1:], strict=False)]
    names = [f"≥ {percents[0]} %", *between, f"&lt; {percents[-1]} %"]
    values["legend"] = "".join(f'<li><span class="p{n}">{name}</span></li>' for n, name in enumerate(names))
    return Template(html).substitute(values, levels=json.dumps(LEVELS))


async def get_page(request: web.Request) -> web.Response:
    """Send a file of the page."""
    file = PAGE[request.path]
    text = file.read_text("utf-8")
    if file.name == "index.html":
        text = fill_page(text, request.app[STATE].limits)
    return web.Response(text=text, content_type=TYPES[file.suffix])


async def get_models(request: web.Request) -> web.Response:
    """Name the model, as OpenAI's /v1/models does."""
    state = request.app[STATE]
    card = schema.ModelCard(id=state.name, created=state.created, owned_by="chinese-gpt")
    return answer(schema.ModelList(data=[card]))


async def get_healthz(request: web.Request) -> web.Response:
    """Report that the event loop is alive."""
    return answer(schema.Status(status="ok"))


async def get_readyz(request: web.Request) -> web.Response:
    """Report whether a request would be accepted."""
    if not request.app[ENGINE].alive:
        raise Refusal(503, "the engine does not run", "not_ready")
    return answer(schema.Status(status="ready"))


async def get_metrics(request: web.Request) -> web.Response:
    """Return this process's metrics in the format of Prometheus."""
    body, content_type = request.app[METRICS].text()
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


async def get_openapi(request: web.Request) -> web.Response:
    """Describe what this service takes and returns."""
    return answer(request.app[OPENAPI])


def add_routes(app: web.Application) -> None:
    """Connect each address with its handler."""
    app.router.add_post("/generate", post_generate)
    app.router.add_post("/v1/completions", post_completions)
    gets = {"/v1/models": get_models, "/healthz": get_healthz, "/readyz": get_readyz, "/metrics": get_metrics}
    for path, get in (gets | {"/openapi.json": get_openapi} | dict.fromkeys(PAGE, get_page)).items():
        app.router.add_get(path, get)
    for path in ("/generate", "/v1/completions", "/v1/models"):
        app.router.add_route("OPTIONS", path, app[GUARD].allow_origin)


def make_app(
    engine: Engine,
    limits: Limits = DEFAULT_LIMITS,
    *,
    name: str = "model",
    api_key: str | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    proxies: Iterable[str] = (),
) -> web.Application:
    """Return the application over a started engine; the caller closes the engine.

    name: of the model, in /v1/models. api_key: required on every address but /healthz; None requires none, and then
    the server must listen on this machine only. hosts: names by which callers may call this server, besides localhost
    and the address that it listens on. origins: foreign origins (`https://example.org`, exact) whose pages may call.
    proxies: addresses of reverse proxies, which are trusted to name the client.
    """
    limits = replace(limits, max_samples=min(limits.max_samples, engine.max_rows))
    metrics = Metrics()
    metrics.watch(lambda: engine.waiting, lambda: engine.rows, lambda: engine.tokens)
    if engine.on_first_token is None:
        engine.on_first_token = metrics.first_token

    def refuse_broken(path: str, status: int, message: str) -> web.Response:
        return answer(schema.refusal(path, status, message, "bad_http"), status)

    def on_broken(status: int, error: BaseException | None) -> None:
        metrics.refused("bad_http" if error else "too_many_connections")
        if status >= 500 and error:
            log.error("a connection failed: %s", type(error).__name__)

    guard = auth.Guard(api_key, hosts, origins, proxies, limits)
    models = schema.request_models(limits)
    app = web.Application(middlewares=[error_middleware])
    app[ENGINE], app[METRICS], app[GUARD] = engine, metrics, guard
    app[STATE] = AppState(name, limits, *models)
    app[LISTENER] = connections.Listener(refuse_broken, on_broken, limits)
    app[OPENAPI] = json.dumps(schema.openapi(*models, has_key=guard.has_key), ensure_ascii=False)
    app.on_response_prepare.append(guard.add_headers)
    add_routes(app)
    return app
