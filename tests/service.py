"""What the tests of the service share: an engine that needs no model, a tiny real one, a server to call."""

import asyncio
import contextlib
import copy
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import cache
from types import SimpleNamespace

import aiohttp
import aiohttp.web
import torch
from models import PLANTS, add_tools
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.generate import generate
from helpers.generate.settings import Chunk, Sample, Settings, TokenLogprob
from helpers.manifest import write_manifest
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import save_model
from helpers.serve import server
from helpers.serve.app import make_app
from helpers.serve.engine import Engine, QueueFull
from helpers.serve.limits import Limits
from helpers.vocab import tokenizer
from helpers.vocab.chat import add_template, encode_messages

JSON = {"Content-Type": "application/json"}


def message(role, content):
    return {"role": role, "content": content}


TALK = [message("user", "绿萝怎么浇水？"), message("assistant", "看土。"), message("user", "冬天？")]


@cache
def tiny_tokenizer():
    return tokenizer.build_words(
        {"绿萝": 5, "浇水": 4, "怎么": 3, "龟背竹": 2, "散射光": 2}, set(PLANTS + "你好春天第份")
    )


@cache
def tiny_model():
    """Return a random model of two layers that never ends a document: a text is as long as it was asked for."""
    shape = make_config("gpt2", len(tiny_tokenizer()), n_ctx=64, n_embd=32, n_layer=2, n_head=2)
    net = GPT(shape).init_weights(0)
    with torch.no_grad():  # every last state x has a sum of 32, so the end's logit is about -320
        net.norm.bias.fill_(1)
        net.embed_tokens.weight[tiny_tokenizer().all_special_ids] = -10
    return net.eval().requires_grad_(False)


@cache
def chat_tokenizer():
    """Return the same tokenizer with our chat template."""
    made = copy.deepcopy(tiny_tokenizer())
    add_template(made)
    return made


@cache
def tools_tokenizer():
    """Return the same tokenizer with a template that calls tools."""
    return add_tools(copy.deepcopy(chat_tokenizer()))


def called(arguments):
    """Return a call of the tool look_up as OpenAI's API has it."""
    return {"id": "call-0", "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def ids_of(messages, tools=()):
    made = tools_tokenizer() if tools else chat_tokenizer()
    return encode_messages(made, messages, generation_prompt=True, tools=tools).ids


def directly(ids, **settings):
    """Return what the tiny model writes after these ids, without any server."""
    return "".join(generate.stream_text(tiny_model(), chat_tokenizer(), ids, Settings(**settings)))


@contextlib.contextmanager
def tiny_engine(tokenizer=None, **limits):
    engine = Engine(tiny_model(), tokenizer or tiny_tokenizer(), Limits(**limits)).start()
    try:
        yield engine
    finally:
        engine.close(cancel=True)


def make_run(stage: str = "train", began: str = "train", **parameters) -> str:
    """Make a run in RUNS_DIR that has this model, as room 04 or a side door leaves it; return its name."""
    folder = paths.room("tiny", stage) / "final_model"
    save_model(folder, tiny_model())
    (tiny_tokenizer() if stage == "train" else chat_tokenizer()).save_pretrained(folder)
    inputs = [] if stage == "train" else (paths.room("tiny", began) / "final_model").iterdir()
    write_manifest("tiny", stage, parameters=parameters, inputs=inputs, outputs=folder.iterdir(), result={})
    return "tiny"


class FakeEngine:
    """Stands in for the engine: answers at once, or (held) when `release` is called; remembers what it was asked."""

    def __init__(
        self,
        held: bool = False,
        room: int = 1000,
        max_rows: int = 16,
        error: Exception | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
        answers: Sequence[str] = (),
        window: int = 64,
    ):
        self.model = SimpleNamespace(config=SimpleNamespace(window=window))
        self.held, self.room, self.max_rows, self.error = held, room, max_rows, error
        self.tokenizer, self.on_first_token, self.alive = tokenizer or tiny_tokenizer(), None, True
        self.tokens, self.answers = 0, answers  # to each request, in place of the same to all
        self.asked, self.encoded, self.futures, self.listeners = [], [], [], []

    @property
    def waiting(self):
        return sum(not future.done() for future in self.futures)

    rows = waiting

    @property
    def full(self):
        return len(self.futures) >= self.room

    def submit(self, prompt, settings, samples=1, *, ids=None, listener=None):
        if self.full:
            raise QueueFull
        self.asked.append((prompt, settings, samples))
        self.encoded.append(ids)
        self.futures.append(Future())
        self.listeners.append(listener)
        if not self.held:
            self.release()
        return self.futures[-1]

    def write(self, request, sample, text, reason=None):
        """Let one sample of a held request grow by a chunk of text."""
        choices = tuple(TokenLogprob(0, letter, -0.5, 1, ((letter, -0.5),)) for letter in text)
        settings = self.asked[request][1]
        self.listeners[request](Chunk(sample, text, choices if settings.logprobs is not None else (), reason))

    def release(self):
        for number, ((prompt, _, samples), future) in enumerate(zip(self.asked, self.futures, strict=True)):
            if not future.done():
                if self.error:
                    future.set_exception(self.error)
                    continue
                self.tokens += samples
                texts = [self.answers[number] if self.answers else f"，第{n}份" for n in range(samples)]
                for sample, text in enumerate(texts if self.listeners[number] else ()):
                    for letter in text if self.answers else ():
                        self.write(number, sample, letter)
                    self.write(number, sample, "" if self.answers else text, "end")
                future.set_result([Sample(prompt + text, True, [5, 6, 7], "end") for text in texts])


def app_with(engine, **options):
    """Return an application with these limits and other options of `make_app`."""
    limits = {limit.name: options.pop(limit.name) for limit in fields(Limits) if limit.name in options}
    return make_app(engine, Limits(**limits), **options)


@contextlib.asynccontextmanager
async def listening(engine, **options):
    """Serve an engine, or an application that is made already; give a client's session and the port."""
    app = engine if isinstance(engine, aiohttp.web.Application) else app_with(engine, **options)
    runner, address = await server.start_server(app)
    try:
        async with aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(60)) as session:
            yield session, runner.addresses[0][1]
    finally:
        await server.stop_server(runner)


@contextlib.asynccontextmanager
async def serving(engine, **options):
    """Do the same; give the session only."""
    async with listening(engine, **options) as (session, _):
        yield session


def fetch(method, path, engine=None, options=None, **request):
    """Start a server, send one request, stop the server; return (status, headers, body as JSON)."""

    async def once():
        async with serving(engine or FakeEngine(), **options or {}) as session:
            async with session.request(method, path, **request) as response:
                body = await response.read()
                return response.status, response.headers, json.loads(body) if body else None

    return asyncio.run(once())


def post(body, path="/generate", **kwargs):
    """POST a dict (sent as JSON) or raw bytes; return (status, answer)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = fetch("POST", path, data=data, headers=JSON, **kwargs)
    return status, answer


async def until(condition):
    """Wait until a condition is true; the time is for a busy machine. Without an event loop: `until` of displays."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def events_of(data):
    """Return the events of a stream; the last one is [DONE]."""
    *events, done, rest = data.decode().split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


@contextlib.contextmanager
def in_thread(engine, **options):
    """Serve in a thread of its own, for clients that block; yield the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def begin():
        return await server.start_server(app_with(engine, **options))

    try:
        runner, address = run(begin())
        try:
            yield address
        finally:
            run(server.stop_server(runner))
            assert not [task for task in run(tasks()) if not task.done()]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def tasks():
    """Return the tasks of the running loop, apart from this one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def raw(port, data=b"", drip=b""):
    """Send bytes over a bare connection, and perhaps some more in drips; return all that comes until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)

    async def send_slowly():
        with contextlib.suppress(ConnectionError):
            for byte in drip:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)

    dripping, received = asyncio.create_task(send_slowly()), b""
    try:
        async with asyncio.timeout(60):
            while chunk := await reader.read(65536):
                received += chunk
    except ConnectionResetError:  # what came before it counts
        pass
    finally:
        dripping.cancel()
        writer.close()
    return received


HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
