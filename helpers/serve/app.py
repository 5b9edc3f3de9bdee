"""The application: its routes, and how each asks the engine for text, waits for it, and streams it.

A stream is sent as server-sent events, as OpenAI's API has it. This module knows routes only: `auth` says who may call,
`schema` what a request may say, `answers` what it is told, `engine` writes the text, `server` opens the port.
"""

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from string import Template

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from helpers.generate import dialogue
from helpers.generate.batch import check_bias, prompt_ids
from helpers.generate.settings import RANGES, Sample, Settings
from helpers.generate.surprisal import LEVELS
from helpers.serve import answers, auth, connections, openapi, schema
from helpers.serve.answers import ChatWriter, CompletionWriter, Writer
from helpers.serve.auth import Refusal
from helpers.serve.engine import Engine, NotRunning, QueueFull
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.serve.metrics import Metrics
from helpers.serve.overload import Shedder
from helpers.serve.streams import ChunkQueue, event, events
from helpers.vocab.chat import ChatError, TooLong

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
    requests: schema.RequestModels
    no_chat: str | None = None  # why the model holds no conversation, and what to do; None: it does
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


def queue_full() -> Refusal:
    """Return the refusal of a request for which the queue has no place."""
    message = "too many requests are waiting: try again in a moment"
    return Refusal(429, message, "full", **{hdrs.RETRY_AFTER: "1"})


def stopping() -> Refusal:
    """Return the refusal of a request that comes, or is not finished, when the server stops."""
    return Refusal(503, "the server is stopping: ask another one, or later", "stopping")


def to_refusal(error: Exception, request: web.Request) -> Refusal:
    """Return the refusal for an error; an unexpected error is logged, and its details are not sent."""
    match error:
        case Refusal(code="body_too_slow") if request.app[STATE].draining:
            return stopping()  # it may have come in time: aiohttp hears nothing more once it is told to stop
        case Refusal():
            return error
        case schema.Invalid():
            return Refusal(400, str(error), "invalid", error.key)
        case QueueFull():
            return queue_full()
        case NotRunning():
            return Refusal(503, "the server cannot generate text right now: try again later", "not_ready")
        case TimeoutError():
            if request.app[STATE].draining:
                return stopping()
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
            raise stopping()
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
        body = answers.refusal(request.path, status, refusal.message, refusal.code, refusal.key)
        response = answer(body, status, **refusal.headers)
        if status in (408, 503):  # the client cannot go on
            response.force_close()
        return response
    finally:
        app[METRICS].answered(route(request), status, time.perf_counter() - since)


@contextlib.asynccontextmanager
async def deadline(app: web.Application) -> AsyncIterator[None]:
    """Limit the time of a request; a server that stops may shorten it. Raises TimeoutError, or Refusal if it does."""
    state = app[STATE]
    if state.draining:  # since this request began: no time is left for it
        raise stopping()
    async with asyncio.timeout(state.limits.text_seconds) as limit:
        state.deadlines.add(limit)
        try:
            yield
        finally:
            state.deadlines.discard(limit)


WRITING = ("/generate", "/v1/completions", "/v1/chat/completions")  # the routes that need the engine


def make_shedder(engine: Engine, state: AppState, metrics: Metrics) -> Shedder:
    """Return what refuses requests for text while the queue is full, with the answer that the routes give then.

    Neither key nor host is looked at for it: it says nothing that a stranger must not know.
    """

    def refusal(path: str) -> bytes:
        full = queue_full()
        body = answers.refusal(path, full.status, full.message, full.code)
        return connections.in_bytes(answer(body, full.status, **{hdrs.VARY: "Origin"}, **full.headers))

    def on_refused(path: str) -> None:
        metrics.refused("full")
        metrics.answered(path, 429, 0)

    refusals = {path.encode(): refusal(path) for path in WRITING}
    return Shedder(lambda: engine.full and not state.draining, refusals, on_refused)


async def read(request: web.Request, model: type[schema.Body]) -> schema.Body:
    """Return the checked body of a request; raises Refusal, schema.Invalid, or QueueFull.

    If the queue is full, nothing is read: in a flood, refusals must not take the time that texts are written in.
    """
    if request.app[ENGINE].full:
        raise QueueFull
    return schema.read(model, await auth.read_json(request, request.app[STATE].limits))


def check_settings(app: web.Application, settings: Settings) -> Settings:
    """Return the settings of a request; raises Refusal where they name tokens that the model does not have."""
    try:
        check_bias(settings, len(app[ENGINE].tokenizer))
    except ValueError as error:
        raise Refusal(400, str(error), "invalid", "logit_bias") from None
    return settings


def encode_prompts(app: web.Application, prompts: list[str]) -> list[list[int]]:
    """Return the ids of each prompt; raises Refusal if they are too many together."""
    ids = [prompt_ids(app[ENGINE].tokenizer, prompt) for prompt in prompts]
    count, most = sum(map(len, ids)), app[STATE].limits.max_prompt_tokens
    if count > most:
        message = f"the prompt has {count} tokens, and {most} are allowed: give a shorter beginning"
        raise Refusal(400, message, "context_length_exceeded", "prompt")
    return ids


@dataclass
class Job:
    """Texts to write: how each begins, how it goes on, and how many there are of each."""

    prompts: list[str]  # a sample's text starts with its prompt
    ids: list[list[int]]  # what the model reads of each prompt
    settings: Settings
    samples: int


def submit(app: web.Application, job: Job, chunks: ChunkQueue | None = None) -> list[Future]:
    """Hand every prompt to the engine and return the futures, all or none; `chunks` receives the texts as they grow."""
    engine, futures = app[ENGINE], []
    if not engine.alive:
        raise NotRunning
    try:
        for number, (prompt, ids) in enumerate(zip(job.prompts, job.ids, strict=True)):
            listener = None if chunks is None else partial(chunks.put, number)
            futures.append(engine.submit(prompt, job.settings, job.samples, ids=ids, listener=listener))
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
    wanted = await read(request, app[STATE].requests.generate)
    job = Job(wanted.prompts, encode_prompts(app, wanted.prompts), wanted.settings(), wanted.samples)
    with app[GUARD].track_request(request):
        async with deadline(app):
            (samples,) = await results(submit(app, job))
            return answer([sample.text for sample in samples])


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/completions does, whole or as a stream of server-sent events."""
    app = request.app
    wanted = await read(request, app[STATE].requests.completion)
    check_model(app, wanted.model)
    settings = check_settings(app, wanted.settings())
    job = Job(wanted.prompts, encode_prompts(app, wanted.prompts), settings, wanted.samples)
    return await write(request, CompletionWriter(app[STATE].name, wanted, sum(map(len, job.ids))), job)


async def post_chat(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/chat/completions does; the oldest messages are left out where the context is full."""
    app = request.app
    wanted = await read(request, app[STATE].requests.chat)
    check_model(app, wanted.model)
    opening = open_answer(app, wanted)
    settings = replace(check_settings(app, wanted.settings()), max_new_tokens=opening.max_new_tokens)
    writer = ChatWriter(app[STATE].name, wanted, len(opening.ids), opening.left_out)
    return await write(request, writer, Job([""], [opening.ids], settings, wanted.samples))


def check_model(app: web.Application, model: str | None) -> None:
    """Raise Refusal if a request names another model than this server has."""
    name = app[STATE].name
    if model not in (None, name):
        raise Refusal(404, f"this server has no such model: its model is '{name}'", "model_not_found", "model")


def open_answer(app: web.Application, wanted: schema.ChatRequest) -> dialogue.AnswerPrompt:
    """Return what the model reads of a conversation; raises Refusal if it cannot answer it."""
    state, engine = app[STATE], app[ENGINE]
    if state.no_chat:
        raise Refusal(400, state.no_chat, "no_chat")
    try:
        return dialogue.answer_prompt(
            engine.tokenizer, wanted.conversation, engine.n_ctx, wanted.longest, state.limits.max_prompt_tokens
        )
    except TooLong as error:
        raise Refusal(400, str(error), "context_length_exceeded", "messages") from None
    except ChatError as error:
        raise Refusal(400, str(error), "invalid", "messages") from None


async def write(request: web.Request, writer: Writer, job: Job) -> web.StreamResponse:
    """Let the engine write, and answer whole or as a stream, as the request has it."""
    app = request.app
    with app[GUARD].track_request(request):
        if writer.request.stream:
            return await stream(request, writer, job)
        async with deadline(app):
            samples = await results(submit(app, job))
            if job.settings.logprobs is None:  # written sooner than a thread begins
                return answer(writer.whole(samples))
            # with 20 alternatives per token, long answers hold 100,000 of them: the loop must not wait for that
            return answer(await asyncio.to_thread(writer.whole, samples))


async def stream(request: web.Request, writer: Writer, job: Job) -> web.StreamResponse:
    """Send the text as it is written; an error is sent as an event, and the last event is always [DONE].

    The answer begins with the first chunk: until then a refusal is an ordinary response.
    """
    chunks = ChunkQueue()
    # a proxy that buffers the answer would make a stream useless
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    futures = submit(request.app, job, chunks)
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
        body = answers.refusal(request.path, refusal.status, refusal.message, refusal.code)
        await response.write(event(body.model_dump_json()))
    finally:
        cancel(futures)
    await response.write(event("[DONE]"))
    await response.write_eof()
    return response


def fill_page(html: str, limits: Limits, has_chat: bool) -> str:
    """Return index.html with the ranges of its sliders, the limits of a request, and the levels of its colours.

    has_chat: the model holds conversations, which then come first.
    """
    values: dict[str, object] = {
        "view": "chat" if has_chat else "texts",
        "views": "" if has_chat else "hidden",
        "max_messages": limits.max_messages,
        "max_body": limits.max_body_bytes,
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
        text = fill_page(text, request.app[STATE].limits, has_chat=request.app[STATE].no_chat is None)
    return web.Response(text=text, content_type=TYPES[file.suffix])


def model_card(app: web.Application) -> answers.ModelCard:
    """Return the name of the model, as OpenAI's API tells it."""
    return answers.ModelCard(id=app[STATE].name, created=app[STATE].created, owned_by="chinese-gpt")


async def get_models(request: web.Request) -> web.Response:
    """Name all models, which is one, as OpenAI's /v1/models does."""
    return answer(answers.ModelList(data=[model_card(request.app)]))


async def get_model(request: web.Request) -> web.Response:
    """Name the model that is asked for, if it is this one."""
    check_model(request.app, request.match_info["model"])
    return answer(model_card(request.app))


async def get_healthz(request: web.Request) -> web.Response:
    """Report that the event loop is alive."""
    return answer(answers.Status(status="ok"))


async def get_readyz(request: web.Request) -> web.Response:
    """Report whether the engine runs and the server is not stopping.

    A full queue is no reason to leave a load balancer's rotation: it has places again in a moment.
    """
    if not request.app[ENGINE].alive:
        raise Refusal(503, "the engine does not run", "not_ready")
    return answer(answers.Status(status="ready"))


async def get_metrics(request: web.Request) -> web.Response:
    """Return this process's metrics in the format of Prometheus."""
    body, content_type = request.app[METRICS].text()
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


async def get_openapi(request: web.Request) -> web.Response:
    """Describe what this service takes and returns."""
    return answer(request.app[OPENAPI])


def why_no_chat(engine: Engine) -> str | None:
    """Return why the engine's model cannot hold a conversation and what to do; None if it can."""
    try:
        dialogue.check_tokenizer(engine.tokenizer)
    except ChatError as error:
        return str(error)
    return None


def add_routes(app: web.Application) -> None:
    """Connect each address with its handler."""
    for path, post in zip(WRITING, (post_generate, post_completions, post_chat), strict=True):
        app.router.add_post(path, post)
    gets = {
        "/v1/models": get_models,
        "/v1/models/{model}": get_model,
        "/healthz": get_healthz,
        "/readyz": get_readyz,
        "/metrics": get_metrics,
    }
    for path, get in (gets | {"/openapi.json": get_openapi} | dict.fromkeys(PAGE, get_page)).items():
        app.router.add_get(path, get)
    for path in (*WRITING, "/v1/models", "/v1/models/{model}"):
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
        return answer(answers.refusal(path, status, message, "bad_http"), status)

    def on_broken(status: int, error: BaseException | None) -> None:
        metrics.refused("bad_http" if error else "too_many_connections")
        if status >= 500 and error:
            log.error("a connection failed: %s", type(error).__name__)

    guard = auth.Guard(api_key, hosts, origins, proxies, limits)
    requests = schema.request_models(limits)
    app = web.Application(middlewares=[error_middleware])
    app[ENGINE], app[METRICS], app[GUARD] = engine, metrics, guard
    app[STATE] = state = AppState(name, limits, requests, why_no_chat(engine))
    app[LISTENER] = connections.Listener(refuse_broken, on_broken, make_shedder(engine, state, metrics), limits)
    app[OPENAPI] = json.dumps(openapi.describe(requests, guard.has_key), ensure_ascii=False)
    app.on_response_prepare.append(guard.add_headers)
    add_routes(app)
    return app
