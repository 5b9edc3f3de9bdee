"""The engine: texts as if alone, a bounded queue, cancellation within a token, and no thread left behind."""

import threading
from concurrent.futures import CancelledError, wait

import pytest
import service
import torch
from displays import until as wait_until
from models import PLANTS

from helpers.generate import generate
from helpers.generate.batch import Row
from helpers.generate.settings import Settings
from helpers.model.decoder import decoder_of
from helpers.serve.engine import Engine, NotRunning, QueueFull
from helpers.serve.limits import Limits

ENDLESS = Settings(max_new_tokens=10**6, seed=0)


@pytest.fixture(scope="module")
def tok():
    return service.tiny_tokenizer()


@pytest.fixture(scope="module")
def net():
    """A tiny model that never ends a document by itself."""
    return service.tiny_model()


@pytest.fixture
def widths(net, monkeypatch):
    """How many rows each step of the model's decoder had."""
    seen, step = [], decoder_of(net).advance
    monkeypatch.setattr(decoder_of(net), "advance", lambda ids, *rest: (seen.append(len(ids)), step(ids, *rest))[1])
    return seen


@pytest.fixture
def start(net, tok):
    """Start engines, and cancel whatever a test has left in them."""
    engines = []

    def make(**limits) -> Engine:
        engine = Engine(net, tok, Limits(**limits))
        engines.append(engine.start())
        return engines[-1]

    yield make
    for engine in engines:
        engine.close(cancel=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


def test_text_is_the_one_a_request_gets_alone(start, net, tok):
    """Eighteen requests of all kinds in one batch of five rows: each gets what `generate` gives it."""
    settings = [Settings(max_new_tokens=3 + 7 * (i % 4), temperature=i % 3 / 2, top_k=10 * (i % 2), seed=i)
                for i in range(18)]  # fmt: skip
    wishes = [(PLANTS[i : i + i % 5], each, 1 + i % 3) for i, each in enumerate(settings)]
    engine = start(max_rows=5)
    futures = [engine.submit(*wish) for wish in wishes]
    for wish, future in zip(wishes, futures, strict=True):
        assert future.result(60) == generate.generate(net, tok, *wish)


def test_requests_share_the_batch_and_short_ones_overtake(start):
    """One sample is not written after another, nor one request after another: a short one leaves while a long runs."""
    engine = start(max_rows=4)
    long = engine.submit("绿萝", ENDLESS)
    assert len(engine.submit("水", Settings(max_new_tokens=5, seed=1), 3).result(60)) == 3
    assert not long.done()


def test_no_more_rows_than_there_are_places(start, widths):
    engine = start(max_rows=3)
    wait([engine.submit("水", Settings(max_new_tokens=4, seed=i), 1 + i % 3) for i in range(12)], 60)
    assert max(widths) == 3


def test_full_queue_refuses(start):
    engine = start(max_rows=1, max_queue=2)
    running = engine.submit("", ENDLESS)
    wait_until(lambda: engine._running)
    queued = [engine.submit("", Settings(max_new_tokens=1)) for _ in range(2)]
    with pytest.raises(QueueFull, match="ask again later"):
        engine.submit("", Settings(max_new_tokens=1))
    assert queued[0].cancel()
    queued.append(engine.submit("", Settings(max_new_tokens=1)))  # who went away takes no place
    running.cancel()
    assert [len(future.result(60)) for future in queued[1:]] == [1, 1]


def test_cancelled_rows_leave_within_a_token(start, widths):
    engine = start(max_rows=2)
    future, other = engine.submit("绿萝", ENDLESS), engine.submit("水", ENDLESS)
    wait_until(lambda: engine.rows == 2)
    assert future.cancel()
    widths.clear()
    wait_until(lambda: len(widths) > 5)
    assert widths.count(2) <= 1 and set(widths[1:]) == {1}
    assert future.cancelled() and not other.done() and len(engine._running) == 1


def test_the_end_of_a_sample_is_told_once_also_while_others_go_on(start, net, tok):
    settings = Settings(max_new_tokens=12, seed=3)
    first = generate.generate(net, tok, "水", settings)[0].text[3]
    heard, settings = [], Settings(max_new_tokens=12, seed=3, stop=(first,))
    samples = start().submit("水", settings, 3, listener=heard.append).result(60)
    assert len({len(sample.tokens) for sample in samples}) > 1
    assert sorted(piece.sample for piece in heard if piece.reason) == [0, 1, 2]


@pytest.mark.parametrize("small", [True, False])
def test_a_small_model_has_one_thread(start, net, monkeypatch, small):
    seen, step, before = [], decoder_of(net).advance, torch.get_num_threads()
    monkeypatch.setattr(
        decoder_of(net), "advance", lambda *args: (seen.append(torch.get_num_threads()), step(*args))[1]
    )
    monkeypatch.setattr("helpers.serve.engine._SMALL", 10**9 if small else 0)
    torch.set_num_threads(3)  # of this thread, and of new ones
    try:
        start().submit("绿萝", Settings(max_new_tokens=2, seed=0)).result(60)
        assert set(seen) == {1 if small else 3} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_who_waits_too_long_is_told(start):
    engine = start(max_rows=1, queue_seconds=0.05)
    running = engine.submit("", ENDLESS)
    wait_until(lambda: engine.rows == 1)
    late = engine.submit("", Settings(max_new_tokens=1))
    with pytest.raises(QueueFull, match="no place was free in time"):
        late.result(60)
    assert not running.done()


class Impossible:
    def begin(self, *_):
        raise ValueError("this cannot be met")


@pytest.mark.parametrize(
    "prompt, settings, words",
    [
        ("水", Settings(constraint=Impossible()), "cannot be met"),
        ("\ud800", Settings(max_new_tokens=20), "surrogate"),  # a prompt that cannot be encoded
        ("水", Settings(max_new_tokens=3), "no text"),  # a text that cannot be read
    ],
)
def test_an_error_is_its_callers_alone(start, monkeypatch, prompt, settings, words):
    """The others and the engine go on."""

    def result(row, *rest):
        if row.settings.max_new_tokens == 3:
            raise ValueError("no text")
        return really(row, *rest)

    really = Row.result
    monkeypatch.setattr(Row, "result", result)
    engine = start()
    good = engine.submit("绿萝", Settings(max_new_tokens=20, seed=0))
    with pytest.raises(ValueError, match=words):
        engine.submit(prompt, settings).result(60)
    assert good.result(60)[0].text.startswith("绿萝")


QUOTING = "an error that quotes 水"


def fail(*_):
    raise RuntimeError(QUOTING)


@pytest.mark.parametrize("running", [0, 2])
@pytest.mark.parametrize("part", ["read", "advance"])
def test_a_failing_model_is_told_and_the_engine_goes_on(start, net, monkeypatch, part, running):
    """While it reads a new prompt or writes a token, alone or beside requests that are being written."""
    engine = start()
    futures = [engine.submit("水", ENDLESS) for _ in range(running)]
    wait_until(lambda: engine.rows == running)
    with monkeypatch.context() as patch:
        patch.setattr(decoder_of(net), part, fail)
        for future in [*futures, engine.submit("绿萝", Settings(max_new_tokens=5))]:
            with pytest.raises(RuntimeError, match="quotes"):
                future.result(60)
    assert engine.submit("绿萝", Settings(max_new_tokens=5)).result(60)[0].text.startswith("绿萝")


@pytest.mark.parametrize("closing", [False, True])
def test_an_engine_that_fails_for_good_leaves_nobody_waiting(start, net, monkeypatch, caplog, closing):
    """As with a GPU that answers each call with the same error: no step works any more, and no new batch."""
    engine, heard = start(max_rows=1), []
    engine.on_failure = lambda: heard.append(engine.alive)
    running, waiting = (engine.submit("水", ENDLESS) for _ in range(2))
    wait_until(lambda: engine.rows == 1)
    if closing:
        threading.Thread(target=engine.close).start()
        wait_until(lambda: not engine.alive)
    monkeypatch.setattr("helpers.serve.engine.DecodeBatch", fail)
    monkeypatch.setattr(decoder_of(net), "advance", fail)
    with pytest.raises(RuntimeError, match="quotes"):
        running.result(60)
    with pytest.raises(NotRunning, match="start another one"):
        waiting.result(60)
    engine._thread.join(20)
    assert heard == ([] if closing else [False])  # who closes it waits for its end, and needs no call
    with pytest.raises(NotRunning, match="not running"):
        engine.submit("水")
    assert "the engine has failed: RuntimeError" in caplog.text and "水" not in caplog.text


def test_close_finishes_what_is_here(start):
    engine = start(max_rows=1)
    futures = [engine.submit("水", Settings(max_new_tokens=10, seed=i)) for i in range(4)]
    engine.close()
    assert all(future.done() and future.result()[0].text.startswith("水") for future in futures)
    with pytest.raises(RuntimeError, match="not running"):
        engine.submit("水")
    engine.close()  # twice does no harm


def test_close_can_cancel(start):
    engine = start(max_rows=1)
    futures = [engine.submit("水", ENDLESS) for _ in range(3)]
    engine.close(cancel=True)
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(60)


def test_impossible_wishes_are_refused_in_words(start, net, tok):
    engine = start(max_rows=2)
    for samples in (0, 3):
        with pytest.raises(ValueError, match=f"samples is {samples}.*1 to 2"):
            engine.submit("水", samples=samples)
    idle = Engine(net, tok)
    with pytest.raises(RuntimeError, match=r"start\(\)"):
        idle.submit("水")
    idle.close()  # never started: nothing to wait for
