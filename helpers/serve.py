"""Answer over HTTP: `make_app(engine)` is the application, `python -m helpers.serve --run NAME` serves a trained run.

Knows routes, streams, and how a server begins and ends. Who may come in is `guard`'s matter, what a request may say
is `api`'s, and the text is the engine's.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from multiprocessing.connection import Connection, wait
from pathlib import Path

from aiohttp import hdrs, web
from pydantic import BaseModel

from helpers import api, generate, guard, paths
from helpers.engine import Engine, Full
from helpers.guard import Refusal
from helpers.metering import Metrics

log = logging.getLogger(__name__)

KEY = "CHINESE_GPT_API_KEY"  # the environment variable
QUEUE_SECONDS = 30.0  # a request that found no place in the batch for so long is sent away
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = {  # address -> file in helpers/page
    "/" if file.name == "index.html" else f"/{file.name}": file.name
    for file in sorted(resources.files("helpers").joinpath("page").iterdir(), key=lambda file: file.name)
    if Path(file.name).suffix in TYPES
}


@dataclass
class State:
    """What one application remembers while it runs."""

    name: str
    limits: api.Limits
    max_body: int
    body_seconds: float
    timeout: float
    grace: float
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    running: set[asyncio.Timeout] = field(default_factory=set)  # of the requests that are under way


ENGINE = web.AppKey("engine", Engine)
STATE = web.AppKey("state", State)
GUARD = web.AppKey("guard", guard.Guard)
DOOR = web.AppKey("door", guard.Door)
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
    words = api.refusal(path, refusal.status, refusal.words, refusal.code, refusal.key)
    response = answer(words, refusal.status, **refusal.headers)
    if refusal.status in (408, 503):
        response.force_close()
    return response


def known(error: Exception, request: web.Request) -> Refusal:
    """Return the refusal that an error means; a failure of ours is logged and told without its details."""
    match error:
        case Refusal():
            return error
        case api.Invalid():
            return Refusal(400, str(error), "invalid", error.key)
        case Full():
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
        if app[STATE].draining and request.path != guard.OPEN:
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
    """Return the checked body of a request; raises Refusal, api.Invalid, or Full.

    When the queue is full nothing is read: under a flood, refusals must not take the time that texts are written in.
    """
    state = request.app[STATE]
    if request.app[ENGINE].full:
        raise Full
    return api.read(model, await guard.read_json(request, state.max_body, state.body_seconds))


def count_tokens(app: web.Application, prompts: list[str]) -> int:
    """Return how many tokens the prompts have; raises Refusal above the limit."""
    count = sum(len(generate.prompt_ids(app[ENGINE].tokenizer, prompt)) for prompt in prompts)
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


async def results(futures: list[Future]) -> list[list[generate.Sample]]:
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
    writer = api.Writer(name, wanted, count_tokens(app, wanted.prompts))
    with app[GUARD].visit(request):
        if wanted.stream:
            return await stream(request, wanted, writer)
        async with in_time(app):
            return answer(writer.whole(await results(submit(app, wanted))))


class Pieces:
    """Pieces on their way from the engine's thread to the event loop; what waits together is taken together."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque = deque()
        self._there = asyncio.Event()
        self._called = False

    def put(self, number: int, piece: generate.Piece | None) -> None:
        """Add a piece of prompt `number`, or None: this prompt is done. For the engine's thread: returns at once."""
        self._waiting.append((number, piece))
        if not self._called:  # one call wakes the loop for all that comes until it looks
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(self._there.set)

    async def take(self) -> list[tuple[int, generate.Piece | None]]:
        """Wait for something, and return all that is there."""
        await self._there.wait()
        self._there.clear()
        self._called = False  # before looking: what comes from here on calls again
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


async def events(wanted: BaseModel, writer: api.Writer, pieces: Pieces, futures: list[Future]) -> AsyncIterator[bytes]:
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


async def stream(request: web.Request, wanted: BaseModel, writer: api.Writer) -> web.StreamResponse:
    """Send the text as it is written; the last line is [DONE], also after a failure, which is told before it.

    The answer begins with its first piece: until then a refusal is still an ordinary one.
    """
    pieces = Pieces()
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
        words = api.refusal(request.path, refusal.status, refusal.words, refusal.code)
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
    return answer(api.models(state.name, state.created))


async def get_healthz(request: web.Request) -> web.Response:
    """Say that the event loop is alive."""
    return answer(api.Status(status="ok"))


async def get_readyz(request: web.Request) -> web.Response:
    """Say whether a request would be taken."""
    if not request.app[ENGINE].alive:
        raise Refusal(503, "the engine does not run", "not_ready")
    return answer(api.Status(status="ready"))


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
    text = resources.files("helpers").joinpath("page", name).read_text("utf-8")
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
    limits = api.Limits(max_context, max_prompt_tokens, max_length, min(max_samples, engine.max_rows))
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
    app[GUARD] = guard.Guard(api_key, hosts, origins, proxies, max_concurrent)
    app[DOOR] = guard.Door(
        lambda path, status, words: answer(api.refusal(path, status, words, "bad_http"), status),
        on_broken, max_connections, header_seconds, write_seconds,
    )  # fmt: skip
    app[MODELS] = api.request_models(limits)
    app[OPENAPI] = json.dumps(api.openapi(*app[MODELS], key=app[GUARD].key), ensure_ascii=False)
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


# ---- a server: inside a running event loop (a notebook, a test), or a process of its own ----


def url(host: str, port: int) -> str:
    """Return the address of a server; an IPv6 host stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(address: str, key: bool = False) -> str:
    """Return a shell command that asks the server at `address` for text; `key`: it shows the key of the environment."""
    body = '{"context": "你好", "maxlength": 50, "samples": 5}'
    shown = f' -H "Authorization: Bearer ${KEY}"' if key else ""
    return f"curl {address}/generate -H 'Content-Type: application/json'{shown} -d '{body}'"


async def start(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, str]:
    """Serve `app` in the running event loop; return (runner, URL). Port 0 takes any free port.

    Raises OSError if the port is taken, ValueError if other machines could call and there is no API key.
    """
    guard.check_open(host, app[GUARD].key)
    return await start_on(app, guard.bind(host, port), host)


async def start_on(app: web.Application, listening: socket.socket, host: str) -> tuple[web.AppRunner, str]:
    """Serve `app` on a bound socket; see `start`."""
    app[GUARD].hosts.add(guard.host_name(host))
    # the time of the requests under way ends first, so that they can say so
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=app[STATE].grace + 2)
    await runner.setup()
    try:
        await app[DOOR].open(runner.server, listening)
    except OSError:
        listening.close()
        await runner.cleanup()
        raise
    return runner, url(host, listening.getsockname()[1])


async def stop(runner: web.AppRunner) -> None:
    """Take no new request, let the running ones finish within their grace time, close the port."""
    state, last = runner.app[STATE], asyncio.get_running_loop().time() + runner.app[STATE].grace
    state.draining = True
    runner.app[DOOR].close()
    for limit in state.running:
        limit.reschedule(min(limit.when(), last))
    await runner.cleanup()


def read_key(file: str | None) -> str | None:
    """Return the API key: of a file, or else of the environment; None if neither has one. Raises ValueError."""
    if file is None:
        key = os.environ.get(KEY)
        return guard.check_key(key) if key else None
    try:
        return guard.check_key(Path(file).read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API key from {file}: {error}") from None


def serve(options: argparse.Namespace, key: str | None, listening: socket.socket, ready=lambda: None) -> int:
    """Serve a run on a bound socket until told to stop; return the exit code."""
    try:
        engine = Engine(*generate.load(options.run), max_wait=QUEUE_SECONDS)
        app = make_app(
            engine, name=options.run, api_key=key, hosts=options.allow_host, origins=options.origin,
            proxies=options.proxy,
        )  # fmt: skip
    except (paths.RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1

    async def until_told() -> None:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        if parent := multiprocessing.parent_process():  # without it nobody would tell
            loop.add_reader(parent.sentinel, told.set)
        else:
            loop.add_signal_handler(signal.SIGINT, told.set)
        runner, address = await start_on(app, listening, options.host)
        ready()
        if not parent:
            print(f"run '{options.run}' answers at {address} until Ctrl-C. Try: {curl(address, bool(key))}", flush=True)
        await told.wait()
        if parent:
            loop.remove_reader(parent.sentinel)
        else:
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends at once
        await stop(runner)

    engine.start()
    try:
        asyncio.run(until_told())
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    finally:
        engine.close(cancel=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Serve a trained run until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.serve",
        description="Serve a trained run over HTTP.",
        epilog=f"The API key comes from the environment variable {KEY}, or from --api-key-file.",
    )
    parser.add_argument("--run", required=True, help="the run whose model answers")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can call")
    parser.add_argument("--port", type=int, default=5005, help="default 5005; 0 takes any free port")
    parser.add_argument("--processes", type=int, default=1, help="servers that share the port, each with its own model")
    parser.add_argument("--api-key-file", help="a file that holds the key that callers must show")
    parser.add_argument("--allow-host", action="append", default=[], help="a name of this server; repeatable")
    parser.add_argument("--origin", action="append", default=[], help="a web origin whose pages may call; repeatable")
    parser.add_argument("--proxy", action="append", default=[], help="a reverse proxy's address; repeatable")
    options = parser.parse_args(arguments)
    try:
        key = read_key(options.api_key_file)
        guard.check_open(options.host, bool(key))
        if options.processes < 1:
            raise ValueError(f"--processes is {options.processes}: it must be 1 or more")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    try:  # the port before the model: it is the quicker to fail
        listening = guard.bind(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {options.host}:{options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    with listening:
        if options.processes == 1:
            return serve(options, key, listening)
        options.port = listening.getsockname()[1]
    return Processes(options, key).run()


# ---- several processes ----


def worker(options: argparse.Namespace, key: str | None, ready: Connection) -> None:
    """Be one of several servers on one port; tell through `ready` when requests are taken."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent passes it on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(serve(options, key, guard.bind(options.host, options.port, shared=True), partial(ready.send, True)))


class Processes:
    """Several servers on one port: the kernel shares the connections out, each process has its own model and queue.

    One that dies after it has served is started again; one that never served ends all: it would only die again.
    """

    def __init__(self, options: argparse.Namespace, key: str | None) -> None:
        self.options, self.key = options, key
        self.stopping = False
        self.code = 0
        # each process comes from one that has imported everything and done nothing: ready soon, and safe with a GPU
        self._spawn = multiprocessing.get_context("forkserver")
        self._spawn.set_forkserver_preload(["aiohttp.web", "helpers.api", "helpers.engine", "helpers.metering"])
        self._workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._served: set[Connection] = set()

    def run(self) -> int:
        """Start them, mend them, and end when told to; return the exit code."""
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.options.processes)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        # holds the port while no worker does; it never listens, so the kernel gives it no connection
        with guard.bind(self.options.host, self.options.port, shared=True):
            for _ in range(self.options.processes):
                self._start()
            while self._workers:
                for pipe in wait(list(self._workers)):
                    self._hear(pipe)
        return self.code

    def stop(self) -> None:
        """Let every process finish what it has."""
        self.stopping = True
        for process in self._workers.values():
            process.terminate()

    def _start(self) -> None:
        mine, theirs = self._spawn.Pipe(duplex=False)
        process = self._spawn.Process(target=worker, args=(self.options, self.key, theirs))
        process.start()
        theirs.close()  # so that the pipe ends when the process does
        self._workers[mine] = process
        if self.stopping:  # told while it was being started
            process.terminate()

    def _hear(self, pipe: Connection) -> None:
        process = self._workers[pipe]
        try:
            pipe.recv()
        except EOFError:
            self._ended(pipe, process)
            return
        self._served.add(pipe)
        if len(self._served) == self.options.processes:
            address = url(self.options.host, self.options.port)
            shown = f"Try: {curl(address, bool(self.key))}"
            print(
                f"run '{self.options.run}' answers at {address} in {len(self._served)} processes. {shown}", flush=True
            )

    def _ended(self, pipe: Connection, process: multiprocessing.process.BaseProcess) -> None:
        process.join()
        del self._workers[pipe]
        pipe.close()
        if self.stopping:
            return
        what = f"server process {process.pid} ended with code {process.exitcode}"
        if pipe in self._served:
            self._served.remove(pipe)
            print(f"{what}: another one takes its place", file=sys.stderr, flush=True)
            self._start()
        else:
            print(f"{what} before it could serve: all are stopped", file=sys.stderr, flush=True)
            self.code = 1
            self.stop()


if __name__ == "__main__":
    sys.exit(main())
