"""The service: what it answers, what it refuses and in which words, and that it stays awake while text is made."""

import asyncio
import contextlib
import json
import re
import socket
import threading
from concurrent.futures import Future

import aiohttp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import serve, tokenizer
from helpers.engine import Engine, Full
from helpers.generate import Settings

JSON = {"Content-Type": "application/json"}
KEYS = ["context", "maxlength", "samples", "temperature", "top_k", "top_p", "repetition_penalty", "seed"]


class FakeEngine:
    """Stands in for the engine: answers at once, or (held) when `release` is called; remembers what it was asked."""

    def __init__(self, held: bool = False, room: int = 1000, max_rows: int = 16):
        self.held, self.room, self.max_rows = held, room, max_rows
        self.asked, self.futures = [], []

    def submit(self, prompt, settings, samples):
        if len(self.futures) >= self.room:
            raise Full
        self.asked.append((prompt, settings, samples))
        self.futures.append(Future())
        if not self.held:
            self.release()
        return self.futures[-1]

    def release(self):
        for (prompt, _, samples), future in zip(self.asked, self.futures, strict=True):
            if not future.done():
                future.set_result([f"{prompt}，第{n}份" for n in range(samples)])


class BrokenEngine:
    max_rows = 16

    def submit(self, prompt, settings, samples):
        raise RuntimeError(f"secret detail about {prompt}")


@contextlib.asynccontextmanager
async def serving(engine, **limits):
    runner, address = await serve.start(serve.make_app(engine, **limits))
    try:
        async with aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(20)) as session:
            yield session
    finally:
        await serve.stop(runner)


def fetch(method, path, engine=None, limits=None, **request):
    """Start a server, send one request, stop the server; return (status, headers, body as JSON)."""

    async def once():
        async with serving(engine or FakeEngine(), **limits or {}) as session:
            async with session.request(method, path, **request) as response:
                body = await response.read()
                return response.status, response.headers, json.loads(body) if body else None

    return asyncio.run(once())


def post(body, **kwargs):
    """POST /generate with a dict (sent as JSON) or raw bytes; return (status, answer)."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = fetch("POST", "/generate", data=data, headers=JSON, **kwargs)
    return status, answer


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


# ---- what it answers ----


def test_the_books_request():
    engine = FakeEngine()
    status, answer = post({"context": "你好", "maxlength": 50, "samples": 5}, engine=engine)
    assert status == 200
    assert answer == [f"你好，第{n}份" for n in range(5)]
    assert engine.asked == [("你好", Settings(max_new_tokens=50), 5)]


def test_samples_are_one_job():
    """The book made its samples one after another: here one submission asks for all of them."""
    engine = FakeEngine()
    assert len(post({"context": "你好", "samples": 7}, engine=engine)[1]) == 7
    assert len(engine.asked) == 1


def test_only_the_context_is_required():
    engine = FakeEngine()
    assert post({"context": "x"}, engine=engine)[0] == 200
    assert engine.asked == [("x", Settings(max_new_tokens=50), 5)]


def test_optional_keys_reach_the_engine():
    engine = FakeEngine()
    chosen = {"temperature": 0, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7}
    assert post({"context": " [CLS]\n", "maxlength": 3, "samples": 1, **chosen}, engine=engine)[0] == 200
    assert engine.asked == [(" [CLS]\n", Settings(max_new_tokens=3, **chosen), 1)]


def test_chinese_is_sent_as_it_is():
    async def raw():
        async with serving(FakeEngine()) as session, session.post("/generate", json={"context": "你好"}) as response:
            return response.headers["Content-Type"], await response.read()

    content_type, body = asyncio.run(raw())
    assert content_type == "application/json; charset=utf-8"
    assert "你好".encode() in body


def test_healthz_and_schema():
    assert fetch("GET", "/healthz")[2] == {"status": "ok"}
    schema = fetch("GET", "/schema", limits={"max_length": 77})[2]
    assert list(schema["properties"]) == KEYS
    assert schema["required"] == ["context"]
    assert schema["properties"]["maxlength"]["maximum"] == 77


def test_the_page_asks_nobody_else():
    async def page():
        async with serving(FakeEngine()) as session:
            answers = {}
            for path in serve.PAGE:
                async with session.get(path) as response:
                    assert response.status == 200
                    assert response.headers["Content-Security-Policy"].startswith("default-src 'self'")
                    assert response.headers["X-Content-Type-Options"] == "nosniff"
                    answers[path] = (response.content_type, await response.text())
            return answers

    answers = asyncio.run(page())
    assert answers["/"][0] == "text/html"
    everything = "".join(text for _, text in answers.values()).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.\w|<script>|style=|\son\w+=", everything)
    named = set(re.findall(r'(?:href|src)="([^"]+)"', answers["/"][1]))
    assert {f"/{name}" for name in named} == set(serve.PAGE) - {"/"}
    assert set(re.findall(r'name="(\w+)"', answers["/"][1])) >= set(KEYS)


# ---- what it refuses ----

BAD = [
    ({}, "'context' is missing"),
    ({"maxlength": 50}, "'context' is missing"),
    ({"context": ""}, "'context' is empty"),
    ({"context": None}, "'context': input should be a valid string"),
    ({"context": ["你好"]}, "'context': input should be a valid string"),
    ({"context": "好" * 2001}, "at most 2000 characters"),
    ({"context": "好", "maxlength": 0}, "'maxlength': input should be greater than or equal to 1"),
    ({"context": "好", "maxlength": 501}, "less than or equal to 500"),
    ({"context": "好", "maxlength": "50"}, "'maxlength': input should be a valid integer"),
    ({"context": "好", "maxlength": 5.0}, "valid integer"),
    ({"context": "好", "maxlength": True}, "valid integer"),
    ({"context": "好", "maxlength": None}, "valid integer"),
    ({"context": "好", "samples": 0}, "'samples'"),
    ({"context": "好", "samples": 11}, "less than or equal to 10"),
    ({"context": "好", "samples": 10**30}, "'samples'"),
    ({"context": "好", "temperature": float("nan")}, "'temperature': input should be a finite number"),
    ({"context": "好", "temperature": float("inf")}, "finite number"),
    ({"context": "好", "temperature": True}, "valid number"),
    ({"context": "好", "temperature": -0.1}, "'temperature'"),
    ({"context": "好", "top_k": -1}, "'top_k'"),
    ({"context": "好", "top_p": 1.1}, "'top_p'"),
    ({"context": "好", "repetition_penalty": 0}, "'repetition_penalty'"),
    ({"context": "好", "seed": -1}, "'seed'"),
    ({"context": "好", "seed": 2**32}, "'seed'"),
    ({"context": "好", "length": 5}, "'length' is not known: the keys are context, maxlength, samples"),
    ({"Context": "好"}, "'context' is missing; 'Context' is not known"),
    ([], "must be a JSON object"),
    (None, "must be a JSON object"),
    ("你好", "must be a JSON object"),
    (b"", "not JSON"),
    (b"context=%E4%BD%A0", "not JSON"),
    (b'{"context": "\xb4\xba"}', "not JSON"),
    (b'{"context": "\\ud800"}', "not JSON"),
    (b'{"context": "a"} {"context": "b"}', "not JSON"),
    (b"[" * 60_000, "not JSON: recursion limit"),
    (b'{"context": "a", "seed": ' + b"9" * 5000 + b"}", "not JSON: number out of range"),
]


@pytest.mark.parametrize("body, why", BAD, ids=[f"{n}-{why[:30]}" for n, (_, why) in enumerate(BAD)])
def test_a_bad_request_hears_the_reason(body, why):
    """A missing key was a 500, an empty context gave "[]", lengths and samples had no limit."""
    engine = FakeEngine()
    status, answer = post(body, engine=engine)
    assert status == 400
    assert why in answer["error"]
    assert engine.asked == []


def test_reasons_stay_short():
    status, answer = post({f"key{n}" * 20: n for n in range(400)})
    assert status == 400
    assert len(answer["error"]) < 1000


@pytest.mark.parametrize(
    "headers, why",
    [
        ({"Content-Type": "text/plain"}, "Content-Type: application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "Content-Type: application/json"),
        ({"Content-Type": "application/json; charset=gbk"}, "UTF-8"),
        ({**JSON, "Content-Encoding": "gzip"}, "must not be compressed"),
    ],
)
def test_only_plain_json_is_read(headers, why):
    status, _, answer = fetch("POST", "/generate", data=b'{"context": "x"}', headers=headers)
    assert status == 415
    assert why in answer["error"]


def test_samples_never_exceed_the_engines_rows():
    engine = FakeEngine(max_rows=3)
    assert len(post({"context": "x"}, engine=engine)[1]) == 3  # the default of 5 gives way
    status, answer = post({"context": "x", "samples": 4}, engine=engine)
    assert (status, answer) == (400, {"error": "'samples': input should be less than or equal to 3"})


def test_too_large_a_body():
    status, answer = post(b'{"context": "' + b"x" * 70_000 + b'"}')
    assert status == 413
    assert answer == {"error": "the body is larger than 65536 bytes"}


@pytest.mark.parametrize(
    "method, path, status, why",
    [
        ("GET", "/nothing", 404, "nothing at this address"),
        ("GET", "/../serve.py", 404, "nothing at this address"),
        ("POST", "/nothing", 404, "nothing at this address"),
        ("GET", "/generate", 405, "use OPTIONS, POST"),
        ("DELETE", "/generate", 405, "use OPTIONS, POST"),
        ("POST", "/", 405, "use GET, HEAD"),
        ("PATCH", "/healthz", 405, "use GET, HEAD"),
    ],
)
def test_wrong_address_or_method(method, path, status, why):
    got, headers, answer = fetch(method, path)
    assert got == status
    assert why in answer["error"]
    assert headers["Content-Type"] == "application/json; charset=utf-8"


def test_a_full_queue_says_come_back():
    status, headers, answer = fetch("POST", "/generate", engine=FakeEngine(room=0), json={"context": "x"})
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert "too many" in answer["error"]


def test_a_failure_of_ours_tells_no_detail(caplog):
    status, answer = post({"context": "x"}, engine=BrokenEngine())
    assert status == 500
    assert "secret" not in answer["error"]
    assert "secret" in caplog.text


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)
nearly_right = st.fixed_dictionaries(
    {"context": st.text(st.characters())},
    optional={key: st.integers(-1, 3) | st.floats(0, 1) | anything for key in KEYS[1:]} | {"extra": anything},
)


def test_no_body_makes_it_fail():
    with asyncio.Runner() as loop:
        server, seen = serving(FakeEngine()), set()
        session = loop.run(server.__aenter__())

        @settings(max_examples=400, deadline=None, database=None)
        @given(st.binary() | st.one_of(anything, nearly_right).map(lambda value: json.dumps(value).encode()))
        def try_one(body):
            async def send():
                async with session.post("/generate", data=body, headers=JSON) as response:
                    return response.status, await response.json()

            status, answer = loop.run(send())
            assert status in (200, 400)
            seen.add(status)
            if status == 200:
                assert answer and all(text.startswith(json.loads(body)["context"]) for text in answer)
            else:
                assert answer["error"]

        try_one()
        loop.run(server.__aexit__(None, None, None))
    assert seen == {200, 400}


# ---- who may call ----


def test_foreign_origins_are_closed_by_default():
    """The book answered every origin, with credentials."""
    foreign = {"Origin": "https://evil.example"}
    status, headers, _ = fetch("POST", "/generate", json={"context": "x"}, headers=foreign)
    assert status == 200  # the server cannot know who asks; the browser keeps the answer from the page
    assert not [name for name in headers if name.startswith("Access-Control")]
    status, headers, answer = fetch("OPTIONS", "/generate", headers=foreign)
    assert status == 403
    assert "--origin" in answer["error"]
    assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("body, status", [({"context": "x"}, 200), ({}, 400)])
def test_a_named_origin_may_read_answers_and_refusals(body, status):
    friend = {"origins": ["https://friend.example"]}
    got, headers, _ = fetch("POST", "/generate", limits=friend, json=body, headers={"Origin": "https://friend.example"})
    assert got == status
    assert headers["Access-Control-Allow-Origin"] == "https://friend.example"
    assert "Access-Control-Allow-Credentials" not in headers
    assert headers["Vary"] == "Origin"
    for other in ("https://friend.example.evil", "http://friend.example", "https://friend.example:8443", "null"):
        _, headers, _ = fetch("POST", "/generate", limits=friend, json=body, headers={"Origin": other})
        assert "Access-Control-Allow-Origin" not in headers


def test_preflight_of_a_named_origin():
    asked = {"Origin": "https://friend.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = fetch("OPTIONS", "/generate", limits={"origins": [asked["Origin"]]}, headers=asked)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://friend.example"
    assert headers["Access-Control-Allow-Methods"] == "POST"
    assert headers["Access-Control-Allow-Headers"] == "Content-Type"


@pytest.mark.parametrize("origin", ["*", "https://*.example.org", "example.org", "https://example.org/", "null", ""])
def test_an_origin_is_named_exactly(origin):
    with pytest.raises(ValueError, match="is not an origin"):
        serve.make_app(FakeEngine(), origins=[origin])


# ---- staying awake ----


def test_the_event_loop_is_free_while_text_is_made():
    """The book called the model inside the handler: nobody else was answered meanwhile."""

    async def scene():
        engine = FakeEngine(held=True)
        async with serving(engine) as session:

            async def ask():
                async with session.post("/generate", json={"context": "慢"}) as response:
                    return await response.json()

            slow = [asyncio.create_task(ask()) for _ in range(3)]
            await until(lambda: len(engine.futures) == 3)
            for _ in range(20):
                async with asyncio.timeout(1), session.get("/healthz") as response:
                    assert response.status == 200
            assert not any(task.done() for task in slow)
            threading.Thread(target=engine.release).start()
            return await asyncio.gather(*slow)

    assert [len(texts) for texts in asyncio.run(scene())] == [5, 5, 5]


def test_a_client_that_leaves_takes_its_rows_along():
    async def scene():
        engine = FakeEngine(held=True)
        async with serving(engine) as session:
            task = asyncio.create_task(session.post("/generate", json={"context": "x"}))
            await until(lambda: engine.futures)
            task.cancel()
            await until(engine.futures[0].cancelled)

    asyncio.run(scene())


def test_generation_has_a_time_limit():
    engine = FakeEngine(held=True)
    status, answer = post({"context": "x"}, engine=engine, limits={"timeout": 0.1})
    assert status == 503
    assert answer == {"error": "no answer within 0.1 seconds: ask for fewer tokens or samples"}
    assert engine.futures[0].cancelled()


def test_stopping_lets_a_running_request_finish():
    async def scene():
        engine = FakeEngine(held=True)
        runner, address = await serve.start(serve.make_app(engine))
        async with aiohttp.ClientSession(address) as session:
            running = asyncio.create_task(session.post("/generate", json={"context": "x", "samples": 2}))
            await until(lambda: engine.futures)
            stopping = asyncio.create_task(serve.stop(runner))
            await asyncio.sleep(0.1)
            assert not stopping.done()
            async with aiohttp.ClientSession(address) as late:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await late.get("/healthz")
            engine.release()
            response = await running
            assert (response.status, await response.json()) == (200, ["x，第0份", "x，第1份"])
            await asyncio.wait_for(stopping, 5)

    asyncio.run(scene())


# ---- the real engine, and the command ----


@pytest.fixture(scope="module")
def tiny():
    """Return a random model of two layers and a tokenizer of a few characters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    made = tokenizer.build({"植物": 3, "浇水": 2}, "你好，植物浇水多久一次？春天。\n")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(made), n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=made.bos_token_id,
        eos_token_id=made.eos_token_id,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval(), made


def test_with_the_real_engine(tiny):
    """Samples of one request differ (the book's upstream printed one n times); a seed brings the same ones again."""
    engine = Engine(*tiny).start()
    try:
        body = {"context": "植物多久浇水一次？", "maxlength": 12, "samples": 4, "seed": 3}
        status, first = post(body, engine=engine)
        assert status == 200
        assert all(text.startswith(body["context"]) for text in first)
        assert len(first) == 4 and len(set(first)) > 1
        assert post(body, engine=engine) == (200, first)
    finally:
        engine.close()


def test_the_edges_of_what_is_allowed(tiny):
    """The book's service crashed past the context window and at any top_p above 0."""
    edges = [{"context": "浇水" * 200, "maxlength": 70}]  # the model's window has 64 places
    edges += [{"context": text} for text in ("\0", " ", "\n", "[CLS]", "[PAD][UNK]", "<0x41>", "龘😀", "x" * 2000)]
    edges += [{"temperature": value} for value in (0, 5e-324, 1e-30, 2)]
    edges += [{"top_p": value} for value in (0, 5e-324, 0.9, 1)] + [{"top_k": 1}, {"top_k": 1000}]
    edges += [{"repetition_penalty": 2}, {"seed": 0}, {"seed": 2**32 - 1}, {"maxlength": 1, "samples": 10}]
    engine = Engine(*tiny).start()
    try:
        for edge in edges:
            body = {"context": "植物", "maxlength": 5, "samples": 2} | edge
            status, answer = post(body, engine=engine)
            assert status == 200, (edge, answer)
            assert len(answer) == body["samples"]
            assert all(text.startswith(body["context"]) for text in answer)
    finally:
        engine.close()


def test_the_port_is_taken(capsys, monkeypatch):
    monkeypatch.setattr(serve.generate, "load", lambda run: pytest.fail("the model was loaded for nothing"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert serve.main(["--run", "any", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_run_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    assert serve.main(["--run", "nowhere", "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert "nowhere" in error and "04_train" in error


def test_the_model_is_there_before_the_first_request(monkeypatch, capsys):
    """The book's first request loaded the model; and it listened on every address of the machine."""
    happened = []

    class Recorded(FakeEngine):
        def __init__(self, model, tokenizer):
            super().__init__()
            happened.append((model, tokenizer))

        def start(self):
            happened.append("start")

        def close(self):
            happened.append("close")

    def run_app(app, *, sock, **_):
        assert sock.getsockname()[0] == "127.0.0.1"
        happened.append("serve")

    monkeypatch.setattr(serve.generate, "load", lambda run: (run, "tokenizer"))
    monkeypatch.setattr(serve, "Engine", Recorded)
    monkeypatch.setattr(serve.web, "run_app", run_app)
    assert serve.main(["--run", "sample", "--port", "0"]) == 0
    assert happened == [("sample", "tokenizer"), "start", "serve", "close"]
    assert "curl http://127.0.0.1:" in capsys.readouterr().out
