"""The routes: what they answer, what they refuse and in which words, streams, and that the event loop stays free."""

import asyncio
import json
import re
import threading

import pytest
from service import FakeEngine, chat_tokenizer, events_of, fetch, post, serving, tiny_engine, until

from helpers.generate.settings import RANGES, Settings
from helpers.generate.surprisal import LEVELS
from helpers.serve.answers import CompletionWriter
from helpers.serve.app import PAGE

# ---- what it answers ----


@pytest.mark.parametrize(
    "wishes, settings, samples",
    [
        ({"context": "你好", "maxlength": 50, "samples": 5}, {}, 5),
        ({"context": "x"}, {}, 5),
        ({"context": " <eos>\n", "maxlength": 3, "samples": 7}, {"max_new_tokens": 3}, 7),
    ],
)
def test_the_books_request_is_one_job(wishes, settings, samples):
    """The book made its samples one after another: here one submission asks for all of them."""
    engine, chosen = FakeEngine(), {"temperature": 0, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7}
    assert post(wishes, engine=engine) == (200, [f"{wishes['context']}，第{n}份" for n in range(samples)])
    assert post(wishes | chosen, engine=engine)[0] == 200
    wanted = {"max_new_tokens": 50} | settings
    assert engine.asked == [(wishes["context"], Settings(**wanted | more), samples) for more in ({}, chosen)]


async def test_chinese_is_sent_as_it_is():
    async with serving(FakeEngine()) as session, session.post("/generate", json={"context": "你好"}) as response:
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        assert "你好".encode() in await response.read()


@pytest.mark.parametrize("alive, full, status", [(True, False, 200), (False, False, 503), (True, True, 200)])
def test_alive_and_ready(alive, full, status):
    """A full queue is no reason to leave the rotation."""
    engine = FakeEngine(room=0 if full else 1000)
    engine.alive = alive
    assert fetch("GET", "/healthz", engine)[2] == {"status": "ok"}
    assert fetch("GET", "/readyz", engine)[0] == status
    assert post({"context": "x"}, engine=engine)[0] == (503 if not alive else 429 if full else 200)


async def test_the_page_asks_nobody_else():
    answers = {}
    async with serving(FakeEngine()) as session:
        for path in PAGE:
            async with session.get(path) as response:
                assert response.status == 200
                answers[path] = (response.content_type, await response.text())
    assert answers["/"][0] == "text/html"
    everything = "".join(text for _, text in answers.values()).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.\w|<script>|style=|\son\w+=", everything)
    named = set(re.findall(r'(?:href|src)="([^"]+)"', answers["/"][1]))
    assert {f"/{name}" for name in named} == set(PAGE) - {"/"}


# ---- what it refuses ----

WRONG = {
    "context": ["", None, ["你好"], "好" * 2001],
    "maxlength": ["50", 5.0, True, None, 0, 501],
    "samples": [0, 11, 10**30],
    "temperature": [float("nan"), float("inf"), True, -0.1],
    "top_k": [-1],
    "top_p": [1.1],
    "repetition_penalty": [0],
    "seed": [-1, 2**32],
}
BAD = [({"context": "好", key: value}, f"'{key}'") for key, values in WRONG.items() for value in values]
BAD += [({"context": "好", "length": 5}, "'length' is not known: the keys are context, maxlength, samples")]
BAD += [({}, "'context' is missing"), ({"Context": "好"}, "'context' is missing; 'Context' is not known")]
BAD += [(wrong, "must be a JSON object") for wrong in ([], None, "你好")]
BAD += [(wrong, "not JSON") for wrong in (b"", b"context=%E4%BD%A0", b'{"context": "\xff"}', b'{"context": "\\ud800"}')]
BAD += [(b"[" * 9999, "not JSON"), (b'{"context": "a"', "not JSON")]


@pytest.mark.parametrize("body, why", BAD, ids=range(len(BAD)))
def test_a_bad_body_hears_the_reason(body, why):
    """A missing key was a 500, an empty context gave "[]", lengths and samples had no limit."""
    engine = FakeEngine()
    status, answer = post(body, engine=engine)
    assert (status, engine.asked) == (400, [])
    assert why in answer["error"]


def test_reasons_stay_short():
    assert len(post({f"key{n}" * 20: n for n in range(400)})[1]["error"]) < 1000


def test_samples_never_exceed_the_engines_rows():
    engine = FakeEngine(max_rows=3)
    assert len(post({"context": "x"}, engine=engine)[1]) == 3  # the default of 5 gives way
    assert post({"context": "x", "samples": 4}, engine=engine)[0] == 400


@pytest.mark.parametrize("path", ["/nothing", "/../serve.py", "/generate", "/", "/healthz"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_wrong_address_or_method(method, path):
    allowed = {"/generate": "OPTIONS, POST", "/": "GET, HEAD", "/healthz": "GET, HEAD"}.get(path, "")
    if method not in allowed:
        status, headers, answer = fetch(method, path)
        assert (status, headers["Content-Type"]) == (405 if allowed else 404, "application/json; charset=utf-8")
        assert (f"use {allowed}" if allowed else "nothing at this address") in answer["error"]


def test_generation_has_a_time_limit():
    engine = FakeEngine(held=True)
    status, answer = post({"context": "x"}, engine=engine, options={"text_seconds": 0.1})
    assert status == 503 and "no answer within 0.1 seconds" in answer["error"]
    assert engine.futures[0].cancelled()


# ---- staying awake ----


def test_the_event_loop_is_free_while_a_whole_answer_is_put_into_words(monkeypatch):
    threads, whole = [], CompletionWriter.whole
    monkeypatch.setattr(
        CompletionWriter, "whole", lambda *given: threads.append(threading.current_thread()) or whole(*given)
    )
    assert post({"prompt": "x"}, "/v1/completions")[0] == 200
    assert threads[0] is not threading.main_thread()


async def test_between_the_events_of_two_texts_others_have_their_turn(monkeypatch):
    written, turns, event = [], [], CompletionWriter.event
    monkeypatch.setattr(CompletionWriter, "event", lambda *given: written.append(len(turns)) or event(*given))

    async def others():
        while True:
            turns.append(await asyncio.sleep(0))

    async with serving(FakeEngine()) as session:
        waiting = asyncio.create_task(others())
        async with session.post("/v1/completions", json=STREAM) as response:
            assert response.status == 200
        waiting.cancel()
    assert len(set(written)) == 2


# ---- the real engine ----


EDGES = [{"context": "浇水" * 200, "maxlength": 70}]  # the model's window has 64 places
EDGES += [{"context": text} for text in ("\0", " ", "\n", "<eos>", "<pad><user>", "<0x41>", "龘😀", "x" * 2000)]
EDGES += [{"temperature": value} for value in (0, 5e-324, 1e-30, 2)]
EDGES += [{"top_p": value} for value in (0, 5e-324, 0.9, 1)] + [{"top_k": 1}, {"top_k": 1000}]
EDGES += [{"min_p": 1}, {"min_p": 5e-324}, {"typical_p": 1}, {"typical_p": 5e-324}, {"no_repeat_ngram": 1}]
EDGES += [{"presence_penalty": 2, "frequency_penalty": -2}, {"no_repeat_ngram": 20, "maxlength": 40}]
EDGES += [{"repetition_penalty": 2}, {"seed": 0}, {"seed": 2**32 - 1}, {"maxlength": 1, "samples": 10}]


async def test_the_edges_of_what_is_allowed():
    """The book's service crashed past the context window and at any top_p above 0."""
    with tiny_engine() as engine:
        async with serving(engine) as session:
            for edge in EDGES:
                body = {"context": "植物", "maxlength": 5, "samples": 2} | edge
                async with session.post("/generate", json=body) as response:
                    answer = await response.json()
                assert response.status == 200, (edge, answer)
                assert [text[: len(body["context"])] for text in answer] == [body["context"]] * body["samples"]


# ---- streams ----

STREAM = {"prompt": "x", "n": 2, "stream": True}
TALK = {"messages": [{"role": "user", "content": "绿萝"}], "stream": True}


async def test_a_stream_arrives_as_it_is_written():
    """Pieces that come together go out together; a piece that comes alone is not kept waiting."""
    engine = FakeEngine(held=True)
    async with serving(engine) as session:
        asking = asyncio.create_task(session.post("/v1/completions", json=STREAM))
        await until(lambda: engine.futures)
        engine.write(0, 1, "你")
        response = await asking
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Accel-Buffering"] == "no"
        first = json.loads((await response.content.readuntil(b"\n\n")).removeprefix(b"data: "))
        assert first["choices"] == [{"index": 1, "text": "你", "finish_reason": None, "logprobs": None}]
        for text in "好春天":
            engine.write(0, 1, text)
        engine.release()
        rest = events_of(await response.content.read())
        told = [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in rest]
        assert told == [(1, "好春天，第1份"), (0, "，第0份")]
        assert all("usage" not in event for event in rest)


@pytest.mark.parametrize("path, body", [("/v1/completions", STREAM), ("/v1/chat/completions", TALK)])
@pytest.mark.parametrize(
    "error, words", [(RuntimeError("secret"), "server failed"), (TimeoutError(), "no answer within")]
)
async def test_a_stream_that_fails_says_so(path, body, error, words):
    engine = FakeEngine(held=True, tokenizer=chat_tokenizer())
    async with serving(engine) as session:
        asking = asyncio.create_task(session.post(path, json=body))
        await until(lambda: engine.futures)
        engine.write(0, 0, "你")
        response = await asking
        engine.futures[0].set_exception(error)
        first, last = events_of(await response.content.read())
        assert "你" in str(first["choices"][0])
        assert words in last["error"]["message"] and "secret" not in str(last)


@pytest.mark.parametrize(
    "path, body",
    [("/generate", {"context": "x"}), ("/v1/completions", STREAM), ("/v1/chat/completions", TALK | {"stream": False}),
     ("/v1/chat/completions", TALK)],
)  # fmt: skip
async def test_a_client_that_leaves_takes_its_rows_along(path, body, caplog):
    engine = FakeEngine(held=True, tokenizer=chat_tokenizer())
    async with serving(engine) as session:
        task = asyncio.create_task(session.post(path, json=body))
        await until(lambda: engine.futures)
        if body.get("stream"):
            engine.write(0, 0, "你")
            (await task).close()
        task.cancel()
        await until(engine.futures[0].cancelled)
    assert not caplog.records


# ---- the page ----


async def test_the_page_offers_what_the_tables_say():
    """Ranges, defaults and limits of the sliders, and the levels of the colours, are written nowhere else."""
    async with serving(FakeEngine(), max_length=77) as session, session.get("/") as response:
        html = await response.text()
    sliders = {
        name: dict(re.findall(r'(\w+)="([^"]*)"', rest)) for name, rest in re.findall(r'name="(\w+)"([^>]*)>', html)
    }
    for name, allowed in RANGES.items():
        assert (name in sliders) == (allowed.slider is not None)
        if allowed.slider:
            offered = [float(sliders[name][key]) for key in ("min", "max", "step", "value")]
            assert offered == [*allowed.slider, allowed.off]
    assert (sliders["max_tokens"]["max"], sliders["n"]["max"], sliders["prompt"]["maxlength"]) == ("77", "10", "2000")
    assert json.loads(re.search(r'data-levels="([^"]*)"', html)[1]) == list(LEVELS)
    legend = re.search(r'<ul id="legend".*?</ul>', html)[0]
    assert re.findall(r">([^<]+)</span>", legend) == ["≥ 50 %", "20–50", "5–20", "1–5", "&lt; 1 %"]
    assert not {"{{", "{%"} & {html[i : i + 2] for i in range(len(html))}
