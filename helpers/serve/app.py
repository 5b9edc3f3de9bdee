"""The application: which address answers what, how text is asked of the engine, waited for and streamed.

Knows routes and streams. Who may come in is `guard`'s matter, what a request may say is `api`'s, the text is the
engine's, and on which port all this happens is `serve`'s.
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
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from aiohttp import hdrs, web
from pydantic import BaseModel

from helpers.generate.batch import prompt_ids
from helpers.generate.settings import Chunk, Sample
from helpers.serve import auth, connections, schema
from helpers.serve.auth import Refusal
from helpers.serve.engine import Engine, QueueFull
from helpers.serve.metrics import Metrics

log = logging.getLogger(__name__)

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = {  # address -> file in helpers/page
    "/" if file.name == "index.html" else f"/{file.name}": file.name
    for file in sorted(resources.files("helpers.serve").joinpath("page").iterdir(), key=lambda file: file.name)
    if Path(file.name).suffix in TYPES
}


@dataclass
class State:
    """What one application remembers while it runs."""

    name: str
    limits: schema.Limits
    max_body: int
    body_seconds: float
    timeout: float
    grace: float
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    running: set[asyncio.Timeout] = field(default_factory=set)  # of the requests that are under way


ENGINE = web.AppKey("engine", Engine)
STATE = web.AppKey("state", State)
GUARD = web.AppKey("guard", auth.Guard)
LISTENER = web.AppKey("door", connections.Listener)
METRICS = web.AppKey("metrics", Metrics)
MODELS = web.AppKey("models", tuple)  # of a body for /generate and for /v1/completions
OPENAPI = web.AppKey("openapi", str)


# ---- answers ----


def answer(data, status: int = 200, **headers: str) -> web.Response:
    """Return a JSON response in UTF-8; Chinese stays readable. `data`: a pydantic model, JSON text, or plain data."""
    if isinstance(data, BaseModel):
        data = data.model_dump_json()
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def refuse(path: str, refusal: Refusal) -> web.Response:
    """Return a refusal in the form of its address; it closes the connection where the client cannot go on."""
    words = schema.refusal(path, refusal.status, refusal.words, refusal.code, refusal.key)
    response = answer(words, refusal.status, **refusal.headers)
    if refusal.status in (408, 503):
        response.force_close()
    return response


def known(error: Exception, request: web.Request) -> Refusal:
    """Return the refusal that an error means; a failure of ours is logged and told without its details."""
    match error:
        case Refusal():
            return error
        case schema.Invalid():
            return Refusal(400, str(error), "invalid", error.key)
        case QueueFull():
            words = "too many requests are waiting: try again in a moment"
            return Refusal(429, words, "full", **{hdrs.RETRY_AFTER: "1"})
        case TimeoutError():
            seconds = request.app[STATE].timeout
            return Refusal(503, f"no answer within {seconds:g} seconds: ask for fewer tokens or samples", "timeout")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            words = f"{request.method[:20]} does not work here: use {allowed}"
            return Refusal(405, words, "method_not_allowed", **{hdrs.ALLOW: allowed})
        case web.HTTPNotFound():
            words = "there is nothing at this address: send POST /generate, or open / in a browser"
            return Refusal(404, words, "not_found")
        case web.HTTPException():
            return Refusal(error.status, error.reason, "http")
    # where it failed, and not what it said: the words of an error may quote a prompt
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", route(request), type(error).__name__, trace)
    return Refusal(500, "the server failed; the reason is in its log", "failed")


def route(request: web.Request) -> str:
    """Return the application's own name for where a request goes: what the client typed stays out of logs."""
    resource = request.match_info.route.resource
    return resource.canonical if resource else "elsewhere"


@web.middleware
async def watched(request: web.Request, handler) -> web.StreamResponse:
    """Check, answer, count: every refusal comes out as JSON, every answer is in the figures."""
    app, since, status = request.app, time.perf_counter(), 499  # the client has gone: nginx's number for it
    try:
        if app[STATE].draining and request.path != auth.OPEN:
            raise Refusal(503, "the server is stopping: ask another one, or later", "stopping")
        app[GUARD].check(request)
        response = await handler(request)
        status = response.status
        return response
    except ConnectionError:
        raise
    except Exception as error:
        refusal = known(error, request)
        status = refusal.status
        app[METRICS].refused(refusal.code)
        return refuse(request.path, refusal)
    finally:
        app[METRICS].answered(route(request), status, time.perf_counter() - since)


# ---- text: asked of the engine, waited for, streamed ----


@contextlib.asynccontextmanager
async def in_time(app: web.Application) -> AsyncIterator[None]:
    """Give a request its time; a server that ends may shorten it. Raises TimeoutError."""
    state = app[STATE]
    async with asyncio.timeout(state.timeout) as limit:
        state.running.add(limit)
        try:
            yield
        finally:
            state.running.discard(limit)


async def read(request: web.Request, model: type[BaseModel]) -> BaseModel:
    """Return the checked body of a request; raises Refusal, schema.Invalid, or QueueFull.

    When the queue is full nothing is read: under a flood, refusals must not take the time that texts are written in.
    """
    state = request.app[STATE]
    if request.app[ENGINE].full:
        raise QueueFull
    return schema.read(model, await auth.read_json(request, state.max_body, state.body_seconds))


def count_tokens(app: web.Application, prompts: list[str]) -> int:
    """Return how many tokens the prompts have; raises Refusal above the limit."""
    count = sum(len(prompt_ids(app[ENGINE].tokenizer, prompt)) for prompt in prompts)
    most = app[STATE].limits.max_prompt_tokens
    if count > most:
        words = f"the prompt has {count} tokens, and {most} are allowed: give a shorter beginning"
        raise Refusal(400, words, "context_length_exceeded", "prompt")
    return count


def submit(app: web.Application, wanted: BaseModel, listener=None) -> list[Future]:
    """Hand every prompt to the engine and return the futures; all or none. `listener` hears (future, piece)."""
    engine, futures = app[ENGINE], []
    if not engine.alive:
        raise Refusal(503, "the server does not write at the moment: try again later", "not_ready")
    settings = wanted.settings()
    try:
        for number, prompt in enumerate(wanted.prompts):
            heard = None if listener is None else partial(listener, number)
            futures.append(engine.submit(prompt, settings, wanted.samples, listener=heard))
    except BaseException:
        cancel(futures)
        raise
    return futures


def cancel(futures: list[Future]) -> None:
    """Take out of the engine what is not done."""
    for future in futures:
        future.cancel()


async def results(futures: list[Future]) -> list[list[Sample]]:
    """Wait for the samples of each prompt. Whoever stops waiting takes the rows out of the engine's batch."""
    try:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        cancel(futures)


async def post_generate(request: web.Request) -> web.Response:
    """Answer {"context", "maxlength", "samples", …} with a list of strings; each starts with the context.

    The event loop only waits here: tokens are computed in the engine's thread. If the client goes away,
    aiohttp cancels this coroutine, which cancels the future, which takes the rows out of the engine's batch.
    """
    app = request.app
    wanted = await read(request, app[MODELS][0])
    count_tokens(app, wanted.prompts)
    with app[GUARD].visit(request):
        async with in_time(app):
            (samples,) = await results(submit(app, wanted))
            return answer([sample.text for sample in samples])


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/completions does, whole or as a stream of server-sent events."""
    app = request.app
    wanted = await read(request, app[MODELS][1])
    name = app[STATE].name
    if wanted.model not in (None, name):
        raise Refusal(404, f"this server has no such model: its model is '{name}'", "model_not_found", "model")
    writer = schema.Writer(name, wanted, count_tokens(app, wanted.prompts))
    with app[GUARD].visit(request):
        if wanted.stream:
            return await stream(request, wanted, writer)
        async with in_time(app):
            return answer(writer.whole(await results(submit(app, wanted))))


class ChunkQueue:
    """Pieces on their way from the engine's thread to the event loop; what waits together is taken together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque = deque()
        self._there = asyncio.Event()
        self._called = False

    def put(self, number: int, piece: Chunk | None) -> None:
        """Add a piece of prompt `number`, or None: this prompt is done. For the engine's thread: returns at once."""
        self._waiting.append((number, piece))
        if not self._called:  # one call wakes the loop for all that comes until it looks
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(self._there.set)

    async def take(self) -> list[tuple[int, Chunk | None]]:
        """Wait for something, and return all that is there."""
        await self._there.wait()
        self._there.clear()
        self._called = False  # before looking: what comes from here on calls again
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


async def events(
    wanted: BaseModel, writer: schema.Writer, pieces: ChunkQueue, futures: list[Future]
) -> AsyncIterator[bytes]:
    """Yield events as they come, several at once when they came faster than they were sent."""
    for number, future in enumerate(futures):
        future.add_done_callback(partial(lambda number, _: pieces.put(number, None), number))
    open_prompts = len(futures)
    while open_prompts:
        news = defaultdict(list)  # text -> its new pieces
        for number, piece in await pieces.take():
            if piece is None:
                open_prompts -= 1
            else:
                news[number * wanted.samples + piece.sample].append(piece)
        lines = []
        for index, new in news.items():
            choices = [choice for piece in new for choice in piece.choices]
            lines.append(writer.piece(index, "".join(piece.text for piece in new), choices, new[-1].reason))
        if lines:
            yield b"".join(map(event, lines))
    ending = writer.ending([future.result() for future in futures])  # raises what went wrong
    if ending:
        yield event(ending)


def event(data: str) -> bytes:
    """Return a server-sent event; JSON text has no line break of its own."""
    return f"data: {data}\n\n".encode()


async def stream(request: web.Request, wanted: BaseModel, writer: schema.Writer) -> web.StreamResponse:
    """Send the text as it is written; the last line is [DONE], also after a failure, which is told before it.

    The answer begins with its first piece: until then a refusal is still an ordinary one.
    """
    pieces = ChunkQueue()
    # a proxy that gathers the answer before it passes it on would make a stream useless
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    futures = submit(request.app, wanted, pieces.put)
    try:
        async with in_time(request.app):
            async for data in events(wanted, writer, pieces, futures):
                if not response.prepared:
                    await response.prepare(request)
                await response.write(data)
            if not response.prepared:  # nothing to send, not even an empty last piece
                await response.prepare(request)
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        refusal = known(error, request)
        request.app[METRICS].refused(refusal.code)
        words = schema.refusal(request.path, refusal.status, refusal.words, refusal.code)
        await response.write(event(words.model_dump_json()))
    finally:
        cancel(futures)
    await response.write(event("[DONE]"))
    await response.write_eof()
    return response


# ---- other routes ----


async def get_models(request: web.Request) -> web.Response:
    """Name the model, as OpenAI's /v1/models does."""
    state = request.app[STATE]
    return answer(schema.models(state.name, state.created))


async def get_healthz(request: web.Request) -> web.Response:
    """Say that the event loop is alive."""
    return answer(schema.Status(status="ok"))


async def get_readyz(request: web.Request) -> web.Response:
    """Say whether a request would be taken."""
    if not request.app[ENGINE].alive:
        raise Refusal(503, "the engine does not run", "not_ready")
    return answer(schema.Status(status="ready"))


async def get_metrics(request: web.Request) -> web.Response:
    """Tell the figures of this process, in Prometheus's format."""
    body, content_type = request.app[METRICS].text()
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


async def get_openapi(request: web.Request) -> web.Response:
    """Tell what this service takes and gives; the page sets its sliders by it."""
    return answer(request.app[OPENAPI])


async def get_page(request: web.Request) -> web.Response:
    """Send a file of the page."""
    name = PAGE[request.path]
    text = resources.files("helpers.serve").joinpath("page", name).read_text("utf-8")
    return web.Response(text=text, content_type=TYPES[Path(name).suffix])


async def preflight(request: web.Request) -> web.Response:
    """Answer a browser that asks whether a page may call."""
    return request.app[GUARD].allow_origin(request)


def make_app(
    engine: Engine,
    *,
    name: str = "model",
    api_key: str | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    proxies: Iterable[str] = (),
    max_body: int = 64 * 1024,
    max_context: int = 2000,
    max_prompt_tokens: int = 4096,
    max_length: int = 500,
    max_samples: int = 10,
    max_concurrent: int = 32,
    max_connections: int = 900,  # many systems allow a process 1024 open files
    header_seconds: float = 8.0,
    body_seconds: float = 5.0,
    write_seconds: float = 20.0,
    timeout: float = 120.0,
    grace: float = 25.0,
) -> web.Application:
    """Return the application over a started engine; whoever made the engine closes it.

    name: what /v1/models calls the model. api_key: asked of everybody on every address but /healthz; None asks for
    none, and then the server must listen on this machine only. hosts: names that callers may use for this server,
    beside localhost and the address it listens on. origins: foreign origins (`https://example.org`, exact) whose
    pages may call. proxies: addresses of reverse proxies, whose word is taken for who calls.
    Limits: max_body in bytes, max_context in characters, max_prompt_tokens, max_length in new tokens, max_samples a
    request; max_concurrent requests under way a client; max_connections open at a time; a header, a body must arrive
    within header_seconds, body_seconds; who does not read for write_seconds is cut off; `timeout` seconds for a text,
    `grace` seconds for the texts under way when the server ends.
    """
    limits = schema.Limits(max_context, max_prompt_tokens, max_length, min(max_samples, engine.max_rows))
    metrics = Metrics()
    metrics.watch(lambda: engine.waiting, lambda: engine.rows, lambda: engine.tokens)
    if engine.on_first_token is None:
        engine.on_first_token = metrics.first_token

    def on_broken(status: int, words: str, error: BaseException | None) -> None:
        metrics.refused("bad_http" if error else "too_many_connections")
        if status >= 500 and error:
            log.error("a connection failed: %s", type(error).__name__)

    app = web.Application(middlewares=[watched])
    app[ENGINE], app[METRICS] = engine, metrics
    app[STATE] = State(name, limits, max_body, body_seconds, timeout, grace)
    app[GUARD] = auth.Guard(api_key, hosts, origins, proxies, max_concurrent)
    app[LISTENER] = connections.Listener(
        lambda path, status, words: answer(schema.refusal(path, status, words, "bad_http"), status),
        on_broken, max_connections, header_seconds, write_seconds,
    )  # fmt: skip
    app[MODELS] = schema.request_models(limits)
    app[OPENAPI] = json.dumps(schema.openapi(*app[MODELS], key=app[GUARD].key), ensure_ascii=False)
    app.on_response_prepare.append(app[GUARD].add_headers)
    for path, handler in (("/generate", post_generate), ("/v1/completions", post_completions)):
        app.router.add_post(path, handler)
        app.router.add_route("OPTIONS", path, preflight)
    app.router.add_get("/v1/models", get_models)
    app.router.add_route("OPTIONS", "/v1/models", preflight)
    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/readyz", get_readyz)
    app.router.add_get("/metrics", get_metrics)
    app.router.add_get("/openapi.json", get_openapi)
    for path in PAGE:
        app.router.add_get(path, get_page)
    return app
