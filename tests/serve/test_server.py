"""The service: what it answers, what it refuses and in which words, and that it stays awake while text is made."""

import asyncio
import json
import os
import re
import signal
import socket
import threading

import aiohttp
import pytest
import torch
from service import JSON, FakeEngine, fetch, make_run, post, serving, tasks, tiny_engine, until

from helpers.generate.settings import Settings
from helpers.serve import server
from helpers.serve.app import GUARD, PAGE, STATE, make_app

KEYS = ["context", "maxlength", "samples", "temperature", "top_k", "top_p", "repetition_penalty", "seed"]


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


def test_alive_ready_and_described():
    assert fetch("GET", "/healthz")[2] == {"status": "ok"}
    assert fetch("GET", "/readyz")[2] == {"status": "ready"}
    schema = fetch("GET", "/openapi.json", limits={"max_length": 77})[2]["components"]["schemas"]["GenerateRequest"]
    assert set(schema["properties"]) >= set(KEYS)
    assert schema["required"] == ["context"]
    assert schema["properties"]["maxlength"]["maximum"] == 77


def test_an_engine_that_does_not_run():
    engine = FakeEngine()
    engine.alive = False
    assert fetch("GET", "/readyz", engine=engine)[0] == 503
    assert post({"context": "x"}, engine=engine)[0] == 503
    assert fetch("GET", "/healthz", engine=engine)[0] == 200


def test_the_page_asks_nobody_else():
    async def page():
        async with serving(FakeEngine()) as session:
            answers = {}
            for path in PAGE:
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
    assert {f"/{name}" for name in named} == set(PAGE) - {"/"}


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


@pytest.mark.parametrize("path, key", [("/generate", "context"), ("/v1/completions", "prompt")])
def test_a_failure_of_ours_tells_no_detail(caplog, path, key):
    """The words of an error may quote a prompt: they reach neither the client nor the log."""
    status, answer = post({key: "x"}, path, engine=FakeEngine(error=RuntimeError("secret detail about x")))
    assert status == 500
    assert "secret" not in str(answer)
    assert "secret" not in caplog.text
    assert f"{path} failed: RuntimeError" in caplog.text and "app.py" in caplog.text


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
        runner, address = await server.start(make_app(engine))
        async with aiohttp.ClientSession(address) as session:
            running = asyncio.create_task(session.post("/generate", json={"context": "x", "samples": 2}))
            await until(lambda: engine.futures)
            stopping = asyncio.create_task(server.stop(runner))
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


def test_what_outlasts_the_grace_time_is_told_so():
    """Not cut in two: a whole refusal, a stream that says why it ends."""

    async def scene():
        engine = FakeEngine(held=True)
        runner, address = await server.start(make_app(engine, grace=0.3))
        async with aiohttp.ClientSession(address) as session:
            whole = asyncio.create_task(session.post("/generate", json={"context": "x"}))
            piecewise = asyncio.create_task(session.post("/v1/completions", json=STREAM))
            await until(lambda: len(engine.futures) == 2)
            engine.tell(1 if engine.listeners[1] else 0, 0, "你")
            response = await piecewise
            await asyncio.wait_for(server.stop(runner), 5)
            assert "ask for fewer" in lines(await response.content.read())[-1]["error"]["message"]
            refused = await whole
            assert refused.status == 503 and (await refused.json())["error"]
            assert engine.waiting == 0

    asyncio.run(scene())


# ---- the real engine ----


def test_with_the_real_engine():
    """Samples of one request differ (the book's upstream printed one n times); a seed brings the same ones again."""
    with tiny_engine() as engine:
        body = {"context": "绿萝怎么浇水？", "maxlength": 12, "samples": 4, "seed": 3}
        status, first = post(body, engine=engine)
        assert status == 200
        assert all(text.startswith(body["context"]) for text in first)
        assert len(first) == 4 and len(set(first)) > 1
        assert post(body, engine=engine) == (200, first)


def test_the_edges_of_what_is_allowed():
    """The book's service crashed past the context window and at any top_p above 0."""
    edges = [{"context": "浇水" * 200, "maxlength": 70}]  # the model's window has 64 places
    edges += [{"context": text} for text in ("\0", " ", "\n", "[CLS]", "[PAD][UNK]", "<0x41>", "龘😀", "x" * 2000)]
    edges += [{"temperature": value} for value in (0, 5e-324, 1e-30, 2)]
    edges += [{"top_p": value} for value in (0, 5e-324, 0.9, 1)] + [{"top_k": 1}, {"top_k": 1000}]
    edges += [{"min_p": 1}, {"min_p": 5e-324}, {"typical_p": 1}, {"typical_p": 5e-324}, {"no_repeat_ngram": 1}]
    edges += [{"presence_penalty": 2, "frequency_penalty": -2}, {"no_repeat_ngram": 20, "maxlength": 40}]
    edges += [{"repetition_penalty": 2}, {"seed": 0}, {"seed": 2**32 - 1}, {"maxlength": 1, "samples": 10}]

    async def scene(engine):
        async with serving(engine) as session:
            for edge in edges:
                body = {"context": "植物", "maxlength": 5, "samples": 2} | edge
                async with session.post("/generate", json=body) as response:
                    answer = await response.json()
                assert response.status == 200, (edge, answer)
                assert len(answer) == body["samples"]
                assert all(text.startswith(body["context"]) for text in answer)

    with tiny_engine() as engine:
        asyncio.run(scene(engine))


# ---- streams ----


def lines(data: bytes) -> list:
    """Return the events of a stream; the last one is [DONE]."""
    *events, done, rest = data.decode().split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


STREAM = {"prompt": "x", "n": 2, "stream": True}


def test_a_stream_arrives_as_it_is_written():
    """Pieces that come together go out together; a piece that comes alone is not kept waiting."""

    async def scene():
        engine = FakeEngine(held=True)
        async with serving(engine) as session:
            asking = asyncio.create_task(session.post("/v1/completions", json=STREAM))
            await until(lambda: engine.futures)
            engine.tell(0, 1, "你")
            response = await asyncio.wait_for(asking, 2)
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["X-Accel-Buffering"] == "no"
            first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 2)
            assert "你".encode() in first
            choice = json.loads(first.removeprefix(b"data: "))["choices"][0]
            assert choice == {"index": 1, "text": "你", "finish_reason": None, "logprobs": None}
            for text in "好春天":
                engine.tell(0, 1, text)
            engine.release()
            rest = lines(await response.content.read())
            assert [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in rest] == [
                (1, "好春天，第1份"), (0, "，第0份"),
            ]  # fmt: skip
            assert all("usage" not in event for event in rest)

    asyncio.run(scene())


def test_a_stream_that_fails_says_so():
    async def scene(limits, fail, words):
        engine = FakeEngine(held=True)
        async with serving(engine, **limits) as session:
            asking = asyncio.create_task(session.post("/v1/completions", json=STREAM))
            await until(lambda: engine.futures)
            engine.tell(0, 0, "你")
            response = await asking
            fail(engine)
            events = lines(await response.content.read())
            assert events[0]["choices"][0]["text"] == "你"
            assert words in events[1]["error"]["message"]
            assert engine.waiting == 0

    asyncio.run(scene({}, lambda engine: engine.futures[0].set_exception(RuntimeError("secret")), "server failed"))
    asyncio.run(scene({"timeout": 0.3}, lambda engine: None, "no answer within 0.3 seconds"))


def test_a_stream_that_is_left_takes_its_rows_along():
    async def scene():
        with tiny_engine() as engine:
            async with serving(engine) as session:
                body = STREAM | {"max_tokens": 500}
                async with session.post("/v1/completions", json=body) as response:
                    await response.content.readuntil(b"\n\n")
                    assert engine.rows == 2
                await until(lambda: engine.rows == 0)
                assert engine.tokens < 900

    asyncio.run(scene())


def test_two_hundred_disconnects_leave_nothing_behind():
    async def scene():
        with tiny_engine(max_queue=200) as engine:
            app = make_app(engine, max_concurrent=1000)
            async with serving(app) as session:
                before = len(await tasks())

                async def leave(number):
                    key, path = [("context", "/generate"), ("prompt", "/v1/completions")][number % 2]
                    body = {key: "绿萝"} | ({"max_tokens": 400, "stream": True} if number % 2 else {"maxlength": 400})
                    try:
                        async with asyncio.timeout(0.05 + number % 7 / 50), session.post(path, json=body) as response:
                            while await response.content.readany():
                                pass
                    except TimeoutError:
                        left.append(number)

                left = []
                for begin in range(0, 200, 50):
                    await asyncio.gather(*map(leave, range(begin, begin + 50)))
                assert len(left) > 150  # the others' texts came to their end before
                await until(lambda: engine.rows == engine.waiting == 0)
                await until(lambda: not app[STATE].running and not app[GUARD].under_way)
                async with session.get("/healthz") as response:
                    assert response.status == 200
                await asyncio.sleep(0.05)
                assert len(await tasks()) <= before + 2  # the connection of this last request

    asyncio.run(scene())


# ---- the command ----


def test_the_port_is_taken(capsys, monkeypatch):
    monkeypatch.setattr(server.generate, "load", lambda run: pytest.fail("the model was loaded for nothing"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert server.main(["--run", "any", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_run_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    assert server.main(["--run", "nowhere", "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert "nowhere" in error and "04_train" in error


def test_the_model_is_there_before_the_first_request(monkeypatch, capsys):
    """The book's first request loaded the model; and it listened on every address of the machine."""
    happened = []

    class Recorded(FakeEngine):
        def __init__(self, model, tokenizer, max_wait, threads):
            super().__init__()
            assert threads == torch.get_num_threads()  # one process has all
            happened.append((model, tokenizer))

        def start(self):
            happened.append("start")

        def close(self, cancel):
            happened.append("close")

    async def start_on(app, listening, host):
        assert listening.getsockname()[0] == host == "127.0.0.1"
        happened.append("serve")
        os.kill(os.getpid(), signal.SIGTERM)
        return await start_really(app, listening, host)

    start_really = server.start_on
    monkeypatch.setattr(server.generate, "load", lambda run: (run, "tokenizer"))
    monkeypatch.setattr(server, "Engine", Recorded)
    monkeypatch.setattr(server, "start_on", start_on)
    assert server.main(["--run", "sample", "--port", "0"]) == 0
    assert happened == [("sample", "tokenizer"), "start", "serve", "close"]
    assert "curl http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--host", "0.0.0.0"], "other machines can call 0.0.0.0, and there is no API key"),
        (["--host", ""], "other machines can call every address"),
        (["--host", "::"], "other machines"),
        (["--host", "example.org"], "other machines"),
        (["--api-key-file", "/nowhere"], "cannot read the API key from /nowhere"),
        (["--processes", "0"], "it must be 1 or more"),
        (["--origin", "*"], "is not an origin"),
    ],
)
def test_it_refuses_to_start(monkeypatch, capsys, arguments, words):
    monkeypatch.delenv(server.KEY, raising=False)
    monkeypatch.setattr(server.generate, "load", lambda run: pytest.fail("the model was loaded for nothing"))
    if arguments[0] == "--origin":
        monkeypatch.setattr(server.generate, "load", lambda run: ())
        monkeypatch.setattr(server, "Engine", lambda **_: FakeEngine())
    assert server.main(["--run", "any", "--port", "0", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_where_the_key_comes_from(monkeypatch, tmp_path):
    """Not from a flag's value, which every user of the machine can read in the list of processes."""
    monkeypatch.delenv(server.KEY, raising=False)
    assert server.read_key(None) is None
    monkeypatch.setenv(server.KEY, "from-the-environment")
    assert server.read_key(None) == "from-the-environment"
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    assert server.read_key(str(file)) == "from-a-file"
    for wrong in ("", "two words", "钥匙"):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="one word of ASCII"):
            server.read_key(str(file))


def test_a_process_that_never_serves_ends_all(monkeypatch, capfd):
    monkeypatch.setattr(server, "worker", max)  # ends at once, with an error
    kept = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    environment = dict(os.environ)
    try:
        assert server.main(["--run", "any", "--port", "0", "--processes", "2"]) == 1
        assert dict(os.environ) == environment
    finally:
        signal.signal(signal.SIGTERM, kept[0])
        signal.signal(signal.SIGINT, kept[1])
    assert "ended with code 1 before it could serve: all are stopped" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="several processes need SO_REUSEPORT")
def test_processes_share_a_port_replace_the_dead_and_end_in_order(monkeypatch, capfd):
    """Two servers under load: one is killed, then all are told to end. Nobody gets half an answer."""
    monkeypatch.setenv(server.KEY, "a-key")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made, clients = [], []
    monkeypatch.setattr(server.Processes, "_start", remember(server.Processes._start, made))

    def call():
        try:
            asyncio.run(two_processes(made, capfd))
            clients.append("satisfied")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    client = threading.Thread(target=call)
    try:
        client.start()
        assert server.main(["--run", make_run(), "--port", "0", "--processes", "2"]) == 0
    finally:
        client.join()
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert clients == ["satisfied"]
    assert "another one takes its place" in capfd.readouterr().err
    assert len(made) == 3 and not any(process.is_alive() for process in made)


def remember(start, made):
    """Return `start`, which starts a server process, such that the process is put into `made`."""

    def start_and_remember(processes):
        start(processes)
        made.append(list(processes._workers.values())[-1])

    return start_and_remember


async def two_processes(made, capfd):
    said = ""

    def told():
        nonlocal said
        said += capfd.readouterr().out
        return "in 2 processes" in said

    await until(told, 60)
    assert "$CHINESE_GPT_API_KEY" in said and "a-key" not in said
    address = re.search(r"http://[\d.:]+", said)[0]
    answers, stopping = [], []

    async def ask(session, number):
        """Ask for one text after the other, each on a connection of its own: answers are whole, or there is none."""
        body = {"prompt": "绿萝", "max_tokens": 300, "stream": bool(number % 2)}
        while True:
            status = None
            try:
                async with session.post(f"{address}/v1/completions", json=body) as response:
                    status = response.status
                    data = await response.read()
            except aiohttp.ClientError as error:
                assert status is None, f"half an answer: {error!r}"
                assert stopping, "refused by a server that runs"
                return
            if status != 200:
                assert stopping and (status, json.loads(data)["error"]["code"]) == (503, "stopping")
                return
            events = lines(data) if number % 2 else [json.loads(data)]
            assert events[-1]["choices"][0]["finish_reason"] in ("length", "stop")
            answers.append(number)

    async with aiohttp.ClientSession(
        headers={"Authorization": "Bearer a-key"}, connector=aiohttp.TCPConnector(force_close=True)
    ) as session:
        made[0].kill()
        await until(lambda: len(made) == 3, 10)
        asking = [asyncio.create_task(ask(session, number)) for number in range(6)]
        await until(lambda: len(answers) > 12, 20)
        stopping.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*asking), 20)
