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
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from helpers.generate import dialogue
from helpers.generate.batch import prompt_ids
from helpers.generate.settings import Chunk, Settings
from helpers.serve import answers, auth, schema, static
from helpers.serve.answers import ChatWriter, CompletionWriter
from helpers.serve.auth import Refusal
from helpers.serve.engine import Engine, NotRunning, QueueFull
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.serve.metrics import ServiceMetrics
from helpers.vocab import chat

_log = logging.getLogger(__name__)

SENT = [file for file in static.FILES if file.name not in static.LOCAL]
PAGE = {"/" if file.name == "index.html" else f"/{file.name}": file for file in SENT}  # address -> file
# what each view of the page begins with
ABOUT = {"defaults": {"texts": chat.TEXT_SAMPLING, "chat": chat.ANSWER_SAMPLING}}
NO_TOOLS = (
    "this server calls no tools, for the chat template of its model writes none: leave 'tools' out, or serve a model "
    "that was taught to call them, as notebook deeper/tools teaches one"
)


@dataclass
class AppState:
    """What one application knows while it runs."""

    engine: Engine
    limits: Limits
    guard: auth.Guard
    metrics: ServiceMetrics
    requests: schema.RequestModels
    name: str  # of the model
    no_chat: str | None  # why the model holds no conversation, and what to do; None: it does
    about: Mapping[str, Any]  # what the page is told about the model
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False  # the server is stopping: new requests are refused
    deadlines: set[asyncio.Timeout] = field(default_factory=set)  # of the requests under way


STATE = web.AppKey("state", AppState)


def answer(data: object, status: int = 200, **headers: str) -> web.Response:
    """Return a JSON response in UTF-8; Chinese stays readable. `data`: JSON text, or what becomes it."""
    text = data if isinstance(data, str) else answers.compact_json(data)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


# ---- refusals ----


def _stopping() -> Refusal:
    """Return the refusal of a request that comes, or is not finished, when the server stops."""
    return Refusal(503, "the server is stopping: ask another one, or later", "stopping")


def to_refusal(error: Exception, request: web.Request) -> Refusal:
    """Return the refusal for an error; an unexpected error is logged, and its details are not sent."""
    state = request.app[STATE]
    match error:
        case Refusal(code="body_too_slow") if state.draining:
            return _stopping()  # it may have come in time: aiohttp hears nothing more once it is told to stop
        case Refusal():
            return error
        case schema.Invalid():
            return Refusal(400, str(error), "invalid", error.key)
        case QueueFull():
            message = "too many requests are waiting: try again in a moment"
            return Refusal(429, message, "full", **{hdrs.RETRY_AFTER: "1"})
        case NotRunning():
            return Refusal(503, "the server cannot generate text right now: try again later", "not_ready")
        case TimeoutError() if state.draining:
            return _stopping()
        case TimeoutError():
            seconds = state.limits.text_seconds
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
    _log.error("%s failed: %s\n%s", _route(request), type(error).__name__, trace)
    return Refusal(500, "the server failed; the reason is in its log", "failed")


def _route(request: web.Request) -> str:
    """Return the application's own name of the route: what the client typed stays out of logs and metrics."""
    resource = request.match_info.route.resource
    return resource.canonical if resource else "elsewhere"


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check a request, answer it, count it; every error becomes a refusal in JSON."""
    state, since, status = request.app[STATE], time.perf_counter(), 499  # nginx's status of a client that has left
    try:
        if state.draining and request.path != auth.KEYLESS_PATH:
            raise _stopping()
        state.guard.check(request)
        response = await handler(request)
        status = response.status
        return response
    except ConnectionError:
        raise
    except Exception as error:
        refusal = to_refusal(error, request)
        status = refusal.status
        state.metrics.refused(refusal.code)
        body = answers.refusal(request.path, status, refusal.message, refusal.code, refusal.key)
        response = answer(body, status, **refusal.headers)
        if status in (408, 503):  # the client cannot go on
            response.force_close()
        return response
    finally:
        state.metrics.answered(_route(request), status, time.perf_counter() - since)


# ---- texts ----


@dataclass
class Job:
    """Texts to write: how each begins, how it goes on, and how many there are of each."""

    prompts: list[str]  # a sample's text starts with its prompt
    ids: list[list[int]]  # what the model reads of each prompt
    settings: Settings
    samples: int


async def post_generate(request: web.Request) -> web.StreamResponse:
    """Answer {"context", "maxlength", "samples", …} with a list of strings; each starts with the context."""
    state = request.app[STATE]
    wanted = await _read_body(request, state.requests.generate)
    job = Job([wanted.context], _encode(state, [wanted.context]), wanted.settings(), wanted.samples)
    return await _send(request, job, lambda results: json.dumps([each.text for each in results[0]], ensure_ascii=False))


async def post_completions(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/completions does, whole or as a stream of server-sent events."""
    state = request.app[STATE]
    wanted = await _read_body(request, state.requests.completion)
    _check_model(state, wanted.model)
    job = Job(wanted.prompts, _encode(state, wanted.beginnings), wanted.settings(), wanted.n)
    writer = CompletionWriter(state.name, wanted, sum(map(len, job.ids)))
    return await _send(request, job, writer.whole, writer if wanted.stream else None)


async def post_chat(request: web.Request) -> web.StreamResponse:
    """Answer as OpenAI's /v1/chat/completions does; the oldest messages are left out where the context is full."""
    state = request.app[STATE]
    wanted = await _read_body(request, state.requests.chat)
    _check_model(state, wanted.model)
    if state.no_chat:
        raise Refusal(400, state.no_chat, "no_chat")
    settings, talk, tools, tokenizer = wanted.settings(), wanted.talk, wanted.offered, state.engine.tokenizer
    form = chat.call_form(tokenizer)
    if not form and (tools or any("tool_calls" in each for each in talk.messages)):
        raise Refusal(400, NO_TOOLS, "no_tools", "tools")
    longest, most = settings.max_new_tokens, state.limits.max_prompt_tokens
    try:
        opening = dialogue.answer_prompt(
            tokenizer, talk.messages, state.engine.model.config.window, longest, most, tools
        )
    except chat.ChatError as error:
        code = "context_length_exceeded" if isinstance(error, chat.TooLong) else "invalid"
        raise Refusal(400, str(error), code, "messages") from None
    job = Job([""], [opening.ids], replace(settings, max_new_tokens=opening.max_new_tokens), wanted.n)
    left_out = sum(talk.counts[: opening.left_out])
    writer = ChatWriter(state.name, wanted, len(opening.ids), left_out, form if tools else None)
    return await _send(request, job, writer.whole, writer if wanted.stream else None)


async def _read_body(request: web.Request, model: type[schema.Body]) -> schema.Body:
    """Return the checked body of a request; raises Refusal, schema.Invalid, or QueueFull.

    If the queue is full, nothing is read: in a flood, refusals must not take the time that texts are written in.
    """
    state = request.app[STATE]
    if state.engine.full:
        raise QueueFull
    return schema.read_request(model, await auth.read_json(request, state.limits))


def _check_model(state: AppState, model: str | None) -> None:
    if model not in (None, state.name):
        raise Refusal(404, f"this server has no such model: its model is '{state.name}'", "model_not_found", "model")


def _encode(state: AppState, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """Return the ids of each prompt, which may have come as ids; raises Refusal if they are too many together."""
    tokenizer = state.engine.tokenizer
    ids = [prompt if isinstance(prompt, list) else prompt_ids(tokenizer, prompt) for prompt in prompts]
    if any(max(each) >= len(tokenizer) for each in ids):
        message = f"the prompt has an id that no token has: they go from 0 to {len(tokenizer) - 1}"
        raise Refusal(400, message, "invalid", "prompt")
    count, most = sum(map(len, ids)), state.limits.max_prompt_tokens
    if count > most:
        message = f"the prompt has {count} tokens, and {most} are allowed: give a shorter beginning"
        raise Refusal(400, message, "context_length_exceeded", "prompt")
    return ids


@contextlib.asynccontextmanager
async def deadline(state: AppState) -> AsyncIterator[None]:
    """Limit the time of a request; a server that stops may shorten it. Raises TimeoutError, or Refusal if it does."""
    if state.draining:  # since this request began: no time is left for it
        raise _stopping()
    async with asyncio.timeout(state.limits.text_seconds) as limit:
        state.deadlines.add(limit)
        try:
            yield
        finally:
            state.deadlines.discard(limit)


@contextlib.contextmanager
def submitted(state: AppState, job: Job, chunks: asyncio.Queue | None = None) -> Iterator[list[Future]]:
    """Hand every prompt to the engine, all or none; on leaving, remove from it what is not done.

    chunks: receives (number of the prompt, chunk) as the texts grow, and (number, None) when this prompt is done.
    """
    futures: list[Future] = []
    if not state.engine.alive:
        raise NotRunning
    loop = asyncio.get_running_loop()

    def put(number: int, chunk: Chunk | None) -> None:  # in any thread
        if chunks is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the reader
                loop.call_soon_threadsafe(chunks.put_nowait, (number, chunk))

    try:
        for number, (prompt, ids) in enumerate(zip(job.prompts, job.ids, strict=True)):
            listener = None if chunks is None else partial(put, number)
            futures.append(state.engine.submit(prompt, job.settings, job.samples, ids=ids, listener=listener))
            futures[-1].add_done_callback(partial(lambda number, _: put(number, None), number))
        yield futures
    finally:
        for future in futures:
            future.cancel()


async def _send(
    request: web.Request, job: Job, whole: Callable[[list], str], writer: CompletionWriter | None = None
) -> web.StreamResponse:
    """Let the engine write, and answer by `whole`, or with a writer as a stream.

    The event loop only waits here: tokens are computed in the engine's thread. If the client disconnects, aiohttp
    cancels this coroutine, which cancels the futures, which removes the rows from the engine's batch.
    """
    state = request.app[STATE]
    with state.guard.track_request(request):
        if writer:
            return await _send_stream(request, job, writer)
        async with deadline(state):
            with submitted(state, job) as futures:
                samples = await asyncio.gather(*map(asyncio.wrap_future, futures))
            # with 20 alternatives per token, long answers hold 100,000 of them: the loop must not wait for that
            return answer(await asyncio.to_thread(whole, samples))


# ---- streams ----


async def _events(writer: CompletionWriter, chunks: asyncio.Queue, futures: list[Future]) -> AsyncIterator[bytes]:
    """Yield events as the texts grow, several at once if they grow faster than events are sent."""
    unfinished = len(futures)
    while unfinished:
        new: dict[int, list[Chunk]] = defaultdict(list)
        for number, chunk in [await chunks.get(), *(chunks.get_nowait() for _ in range(chunks.qsize()))]:
            if chunk is None:
                unfinished -= 1
            else:
                new[number * writer.request.n + chunk.sample].append(chunk)
        lines = []
        for index, parts in new.items():
            tokens = [token for part in parts for token in part.logprobs]
            line = writer.event(index, "".join(part.text for part in parts), tokens, parts[-1].reason)
            lines += [line] if line else []
            await asyncio.sleep(0)  # an event of many tokens takes milliseconds to write: others have their turn
        if lines:
            yield b"".join(map(sse_event, lines))
    ending = writer.ending([future.result() for future in futures])  # raises the error of a failed request
    if ending:
        yield sse_event(ending)


def sse_event(data: str) -> bytes:
    """Return a server-sent event; JSON text has no line break of its own."""
    return f"data: {data}\n\n".encode()


async def _send_stream(request: web.Request, job: Job, writer: CompletionWriter) -> web.StreamResponse:
    """Send the text as it is written; an error is sent as an event, and the last event is always [DONE].

    The answer begins with the first chunk: until then a refusal is an ordinary response.
    """
    state = request.app[STATE]
    chunks: asyncio.Queue[tuple[int, Chunk | None]] = asyncio.Queue()
    # a proxy that buffers the answer would make a stream useless
    response = web.StreamResponse(headers={"X-Accel-Buffering": "no"})
    response.content_type, response.charset = "text/event-stream", "utf-8"
    try:
        with submitted(state, job, chunks) as futures:
            async with deadline(state):
                async for data in _events(writer, chunks, futures):
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
        state.metrics.refused(refusal.code)
        body = answers.refusal(request.path, refusal.status, refusal.message, refusal.code)
        await response.write(sse_event(answers.compact_json(body)))
    await response.write(sse_event("[DONE]"))
    await response.write_eof()
    return response


# ---- what needs no text ----


async def get_page(request: web.Request) -> web.Response:
    """Send a file of the page."""
    file, state = PAGE[request.path], request.app[STATE]
    text = static.fill_in(file, state.limits, has_chat=state.no_chat is None)
    return web.Response(text=text, content_type=static.TYPES[file.suffix])


async def get_models(request: web.Request) -> web.Response:
    """Name all models, which is one, as OpenAI's /v1/models does; or the one that is asked for, if it is this one."""
    state = request.app[STATE]
    card = answers.model_card(state.name, state.created, state.about)
    if "model" not in request.match_info:
        return answer({"object": "list", "data": [card]})
    _check_model(state, request.match_info["model"])
    return answer(card)


async def get_health(request: web.Request) -> web.Response:
    """Report that the event loop is alive, and at /readyz whether the engine runs and the server is not stopping.

    A full queue is no reason to leave a load balancer's rotation: it has places again in a moment.
    """
    asks_for_engine = request.path != auth.KEYLESS_PATH
    if asks_for_engine and not request.app[STATE].engine.alive:
        raise Refusal(503, "the engine does not run", "not_ready")
    return answer({"status": "ready" if asks_for_engine else "ok"})


async def get_metrics(request: web.Request) -> web.Response:
    """Return this process's metrics in the format of Prometheus."""
    body, content_type = request.app[STATE].metrics.text()
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


async def get_openapi(request: web.Request) -> web.Response:
    """Describe what this service takes and returns."""
    state = request.app[STATE]
    return answer(answers.describe_api(state.requests, state.guard.has_key))


POSTS = {"/generate": post_generate, "/v1/completions": post_completions, "/v1/chat/completions": post_chat}
GETS = dict.fromkeys(PAGE, get_page) | {
    "/v1/models": get_models,
    "/v1/models/{model}": get_models,
    "/healthz": get_health,
    "/readyz": get_health,
    "/metrics": get_metrics,
    "/openapi.json": get_openapi,
}


def make_app(
    engine: Engine,
    limits: Limits = DEFAULT_LIMITS,
    *,
    name: str = "model",
    api_key: str | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    proxies: Iterable[str] = (),
    about: Mapping[str, Any] = ABOUT,
) -> web.Application:
    """Return the application over a started engine; the caller closes the engine.

    name: of the model, in /v1/models. api_key: required on every address but /healthz; None requires none, and then
    the server must listen on this machine only. hosts: names of this server, besides localhost and the address that
    it listens on. origins: foreign origins (`https://example.org`, exact) whose pages may call. proxies: addresses of
    reverse proxies, which are trusted to name the client. about: what the page is told about the model, with the
    settings that each of its views begins with; over HTTP, who names none gets the model's own distribution.
    """
    no_chat = None
    try:
        dialogue.check_tokenizer(engine.tokenizer)
    except chat.ChatError as error:
        no_chat = str(error)
    limits = replace(limits, max_samples=min(limits.max_samples, engine.max_rows))
    metrics = ServiceMetrics(lambda: (engine.waiting, engine.rows, engine.tokens))
    if engine.on_first_token is None:
        engine.on_first_token = metrics.first_token
    guard = auth.Guard(api_key, hosts, origins, proxies, limits)
    app = web.Application(middlewares=[error_middleware], client_max_size=limits.max_body_bytes)
    app[STATE] = AppState(engine, limits, guard, metrics, schema.request_models(limits), name, no_chat, about)
    app.on_response_prepare.append(guard.add_headers)
    for path, post in POSTS.items():
        app.router.add_post(path, post)
    for path, get in GETS.items():
        app.router.add_get(path, get)
    for path in (*POSTS, *(path for path in GETS if path.startswith("/v1/"))):
        app.router.add_route("OPTIONS", path, guard.allow_origin)
    return app
