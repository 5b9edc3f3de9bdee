"""The routes: what they answer, what they refuse and in which words, streams, and that the event loop stays free."""

import asyncio
import gc
import json
import re
import threading
import time
from importlib import resources
from pathlib import Path

import pytest
from service import JSON, FakeEngine, chat_tokenizer, events_of, fetch, post, serving, tasks, tiny_engine, until

from helpers.generate.batch import prompt_ids
from helpers.generate.settings import RANGES, Chunk, Sample, Settings, TokenLogprob
from helpers.generate.surprisal import LEVELS
from helpers.serve.app import GUARD, PAGE, STATE, fill_page, make_app
from helpers.serve.limits import Limits

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
    assert post({"context": " <eos>\n", "maxlength": 3, "samples": 1, **chosen}, engine=engine)[0] == 200
    assert engine.asked == [(" <eos>\n", Settings(max_new_tokens=3, **chosen), 1)]


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
    schema = fetch("GET", "/openapi.json", options={"max_length": 77})[2]["components"]["schemas"]["GenerateRequest"]
    assert set(schema["properties"]) >= set(KEYS)
    assert schema["required"] == ["context"]
    assert schema["properties"]["maxlength"]["maximum"] == 77


def test_an_engine_that_does_not_run():
    engine = FakeEngine()
    engine.alive = False
    assert fetch("GET", "/readyz", engine=engine)[0] == 503
    assert post({"context": "x"}, engine=engine)[0] == 503
    assert fetch("GET", "/healthz", engine=engine)[0] == 200


def test_a_full_queue_is_no_reason_to_leave_the_rotation():
    assert fetch("GET", "/readyz", engine=FakeEngine(room=0))[0] == 200


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
                async with asyncio.timeout(20), session.get("/healthz") as response:
                    assert response.status == 200
            assert not any(task.done() for task in slow)
            threading.Thread(target=engine.release).start()
            return await asyncio.gather(*slow)

    assert [len(texts) for texts in asyncio.run(scene())] == [5, 5, 5]


class Huge(FakeEngine):
    """Answers at once, with all that a conversation may ask for: ten answers, 500 tokens each, 20 rivals per token."""

    def release(self):
        rivals = tuple((letter, -1.25) for letter in "绿萝怎么浇龟背竹散射光你好春天第份喜阴常")
        token = TokenLogprob(5, "水", -1.25, 1, rivals)
        for (_, _, samples), listener, future in zip(self.asked, self.listeners, self.futures, strict=True):
            if listener:
                for sample in range(samples):
                    listener(Chunk(sample, "水" * 500, (token,) * 500, "length"))
            future.set_result([Sample("水" * 500, False, [5] * 500, "length", (token,) * 500)] * samples)


@pytest.mark.parametrize("stream", [False, True])
def test_the_event_loop_is_free_while_a_huge_answer_is_put_into_words(stream):
    """Written in the loop it stopped all others for more than a second."""
    body = {"messages": [{"role": "user", "content": "绿萝"}], "n": 10, "max_tokens": 500, "stream": stream}
    body |= {"logprobs": True, "top_logprobs": 20}

    async def scene():
        async with serving(Huge(tokenizer=chat_tokenizer())) as session:

            async def ask():
                async with session.post("/v1/chat/completions", json=body) as response:
                    assert response.status == 200
                    return await response.read()

            asking, pauses = asyncio.create_task(ask()), []
            while not asking.done():
                since = time.perf_counter()
                await asyncio.sleep(0.001)
                pauses.append(time.perf_counter() - since)
            assert (await asking).count(b'"top_logprobs"') == 5000
            return max(pauses)

    gc.collect()
    gc.freeze()  # as `serve` does
    try:
        assert asyncio.run(scene()) < 0.8
    finally:
        gc.unfreeze()


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
    status, answer = post({"context": "x"}, engine=engine, options={"text_seconds": 0.1})
    assert status == 503
    assert answer == {"error": "no answer within 0.1 seconds: ask for fewer tokens or samples"}
    assert engine.futures[0].cancelled()


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
    edges += [{"context": text} for text in ("\0", " ", "\n", "<eos>", "<pad><user>", "<0x41>", "龘😀", "x" * 2000)]
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

STREAM = {"prompt": "x", "n": 2, "stream": True}
ENDLESS = 10**6  # tokens: hours


def test_a_stream_arrives_as_it_is_written():
    """Pieces that come together go out together; a piece that comes alone is not kept waiting."""

    async def scene():
        engine = FakeEngine(held=True)
        async with serving(engine) as session:
            asking = asyncio.create_task(session.post("/v1/completions", json=STREAM))
            await until(lambda: engine.futures)
            engine.write(0, 1, "你")
            response = await asyncio.wait_for(asking, 20)
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["X-Accel-Buffering"] == "no"
            first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 20)
            assert "你".encode() in first
            choice = json.loads(first.removeprefix(b"data: "))["choices"][0]
            assert choice == {"index": 1, "text": "你", "finish_reason": None, "logprobs": None}
            for text in "好春天":
                engine.write(0, 1, text)
            engine.release()
            rest = events_of(await response.content.read())
            assert [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in rest] == [
                (1, "好春天，第1份"), (0, "，第0份"),
            ]  # fmt: skip
            assert all("usage" not in event for event in rest)

    asyncio.run(scene())


def test_a_stream_that_fails_says_so():
    async def scene(options, fail, words):
        engine = FakeEngine(held=True)
        async with serving(engine, **options) as session:
            asking = asyncio.create_task(session.post("/v1/completions", json=STREAM))
            await until(lambda: engine.futures)
            engine.write(0, 0, "你")
            response = await asking
            fail(engine)
            events = events_of(await response.content.read())
            assert events[0]["choices"][0]["text"] == "你"
            assert words in events[1]["error"]["message"]
            assert engine.waiting == 0

    asyncio.run(scene({}, lambda engine: engine.futures[0].set_exception(RuntimeError("secret")), "server failed"))
    asyncio.run(scene({"text_seconds": 0.3}, lambda engine: None, "no answer within 0.3 seconds"))


def test_a_stream_that_is_left_takes_its_rows_along():
    async def scene():
        with tiny_engine() as engine:
            async with serving(engine, max_length=ENDLESS) as session:
                body = STREAM | {"max_tokens": ENDLESS}
                async with session.post("/v1/completions", json=body) as response:
                    await response.content.readuntil(b"\n\n")
                    assert engine.rows == 2
                await until(lambda: engine.rows == 0)
                assert engine.tokens < ENDLESS

    asyncio.run(scene())


@pytest.mark.slow
def test_two_hundred_disconnects_leave_nothing_behind():
    async def scene():
        with tiny_engine(max_queue=200) as engine:
            app = make_app(engine, Limits(max_concurrent=1000, max_length=ENDLESS))
            async with serving(app) as session:
                before = len(await tasks())

                async def leave(number):
                    key, path = [("context", "/generate"), ("prompt", "/v1/completions")][number % 2]
                    body = {key: "绿萝"} | (
                        {"max_tokens": ENDLESS, "stream": True} if number % 2 else {"maxlength": ENDLESS}
                    )
                    try:
                        async with asyncio.timeout(0.05 + number % 7 / 50), session.post(path, json=body) as response:
                            while await response.content.readany():
                                pass
                    except TimeoutError:
                        left.append(number)

                left = []
                for begin in range(0, 200, 50):
                    await asyncio.gather(*map(leave, range(begin, begin + 50)))
                assert len(left) == 200
                await until(lambda: engine.rows == engine.waiting == 0)
                await until(lambda: not app[STATE].deadlines and not app[GUARD].under_way)
                async with session.get("/healthz") as response:
                    assert response.status == 200
                await asyncio.sleep(0.05)
                assert len(await tasks()) <= before + 2  # the connection of this last request

    asyncio.run(scene())


# ---- encoded once ----


@pytest.mark.parametrize(
    "path, body", [("/generate", {"context": "浇水"}), ("/v1/completions", {"prompt": ["浇水", "春天"]})]
)
def test_a_prompt_is_encoded_once(path, body, monkeypatch):
    encoded = []

    def count(tokenizer, prompt):
        encoded.append(prompt)
        return prompt_ids(tokenizer, prompt)

    for module in ("app", "engine"):
        monkeypatch.setattr(f"helpers.serve.{module}.prompt_ids", count)
    with tiny_engine() as engine:
        assert post(body, path, engine=engine)[0] == 200
    assert encoded == (["浇水"] if path == "/generate" else ["浇水", "春天"])


# ---- the page ----


def test_the_page_offers_what_the_tables_say():
    """Ranges, defaults and limits of the sliders, and the levels of the colours, are written nowhere else."""
    html = fill_page(
        Path(resources.files("helpers.serve") / "page" / "index.html").read_text("utf-8"),
        Limits(max_length=77),
        has_chat=True,
    )
    sliders = {
        name: dict(re.findall(r'(\w+)="([^"]*)"', rest)) for name, rest in re.findall(r'name="(\w+)"([^>]*)>', html)
    }
    for name, allowed in RANGES.items():
        if allowed.slider is None:
            assert name not in sliders
            continue
        offered = [float(sliders[name][key]) for key in ("min", "max", "step", "value")]
        assert offered == [*allowed.slider, allowed.off]
    assert (sliders["max_tokens"]["max"], sliders["n"]["max"], sliders["prompt"]["maxlength"]) == ("77", "10", "2000")
    assert json.loads(re.search(r'data-levels="([^"]*)"', html)[1]) == list(LEVELS)
    legend = re.search(r'<ul id="legend".*?</ul>', html)[0]
    assert re.findall(r'class="p(\d)">([^<]*)<', legend) == [
        ("0", "≥ 50 %"), ("1", "20–50"), ("2", "5–20"), ("3", "1–5"), ("4", "&lt; 1 %"),
    ]  # fmt: skip
    assert "$" not in html
