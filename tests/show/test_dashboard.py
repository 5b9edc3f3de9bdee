"""The dashboard: live, with a Stop button that works while the cell runs; and in lines, for headless notebooks."""

import asyncio
import json
import math
import random
import time
from types import SimpleNamespace

import pytest
from displays import FakeTraining, check_left_behind, final, rows_of, steps_written

from helpers.show import curves, dashboard, figures, series, status
from helpers.show import notebook as show

NUMBERS = """step total_steps loss bits_per_char lr grad_norm update_ratio tokens_per_second mfu memory seconds
train_seconds seconds_left skipped scale usual in_a_row micro_batch epoch accuracy""".split()


ODD = [None, True, 0, -1, 3, 7.5, 1e-9, 1e15, math.nan, math.inf, -math.inf, "12"]
OTHERS = {
    "expert_load": [None, 1.0, [], [[]], [[0.5, None]], [[1.0], [2, 3]], [[0.5, 0.5]], "?"],
    "windows": [None, [], [{}], [{"index": None, "loss": math.nan, "text": None}]],
    "text": [None, "", "<b>", 3], "reason": [None, "", "full"], "complaints": [None, [], ["damaged"]],
}  # fmt: skip


EVENTS = """start step step step step epoch validation validation sample spike skipped out_of_memory checkpoint
checkpoint_failed resume end unheard_of""".split()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(12))
def test_no_row_however_odd_breaks_the_dashboard(shown, tmp_path, seed):
    """Every field missing, null, NaN, infinite, negative or a word now and then; a reader must not fall over it."""
    chance = random.Random(seed)
    rows = []
    for i in range(chance.randrange(30)):
        row = {"event": chance.choice(EVENTS), "step": i}
        row |= {name: chance.choice([*ODD, 1.5, 2.5, 3.5]) for name in NUMBERS if chance.random() < 0.3}
        row |= {name: chance.choice(values) for name, values in OTHERS.items() if chance.random() < 0.3}
        rows.append({name: value for name, value in row.items() if name != "step" or chance.random() < 0.9})
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # NaN and Infinity as Python writes them
    read = show.read_metrics(path)
    for line in (
        status.progress(read),
        status.summary(read, 10, 1.0),
        dashboard.bar(read, 0),
        *status.troubles(read),
    ):
        assert isinstance(line, str) and line
    show.samples_over_time(read)
    show.spikes(read)
    show.expert_load(read)
    show.compare({"odd": read}, x=chance.choice(list(series.AXES)))
    figures.png(curves.run_figure(read, 1.0))


def test_headless_prints_lines_and_leaves_the_figure(shown, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADLESS", "1")
    training = FakeTraining(tmp_path, 40)
    assert asyncio.run(show.watch(training, floor=1.1, baselines={"unigram": 8.0}, interval=0.001)) is None
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 7  # the four validations at most, the first step, the end
    assert lines[-1] == "finished at step 40 of 40 · 1 min 05 s · validation 1.325 bits/char, 20 % above the floor"
    assert [next(iter(output["data"])) for output in shown] == ["image/png", "text/html"]
    assert training.stops == 0


def test_live_leaves_no_widget(shown, tmp_path):
    asyncio.run(show.watch(FakeTraining(tmp_path, 40), floor=1.1, interval=0.01))
    assert "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    check_left_behind(shown, "finished at step 40 of 40")


def test_stop_button_works_while_the_cell_runs(shown, tmp_path, views):
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_click():
        watching = asyncio.create_task(show.watch(training, interval=0.01))
        await steps_written(training)
        assert not watching.done()
        views[0].button.click()
        assert views[0].button.disabled
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_click())
    assert training.stops == 1 and not training.running
    check_left_behind(shown, "stopped at step")


@pytest.mark.parametrize("live", [True, False])
def test_the_kernels_stop_saves_and_ends_cleanly(shown, tmp_path, live):
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0.01, live=live))
        await steps_written(training)
        watching.cancel()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert training.stops == 1 and not training.running
    assert any("image/png" in data for data in final(shown).values())


def test_a_keyboard_interrupt_stops_the_run_too(shown, tmp_path, monkeypatch):
    training, sleep, calls = FakeTraining(tmp_path, 5_000), asyncio.sleep, []

    async def interrupted(seconds):
        calls.append(seconds)
        if len(calls) == 3:
            raise KeyboardInterrupt
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", interrupted)
    asyncio.run(show.watch(training, interval=0.01))
    assert training.stops == 1 and not training.running


def test_asked_twice_the_watching_ends_at_once(shown, tmp_path, monkeypatch):
    training = FakeTraining(tmp_path, 5_000)
    monkeypatch.setattr(training, "stop", lambda: None)  # a run that takes long to save

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0.01))
        for _ in range(2):
            await asyncio.sleep(0.1)
            watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert training.running
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in final(shown).values())
    training.stops = 1
    training.wait(10)


def test_the_error_of_the_run_is_the_error_of_the_cell(shown, tmp_path):
    with pytest.raises(RuntimeError, match="not finite"):
        asyncio.run(show.watch(FakeTraining(tmp_path, 20, fails=True), interval=0.01))
    assert any("image/png" in data for data in final(shown).values())


def test_pictures_take_a_small_share_of_the_time(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "REDRAW", 0.0)
    view = dashboard.Live(SimpleNamespace(total_steps=10, metrics_path=tmp_path), None, {})
    rows = rows_of(5)
    view.draw(rows)  # the first one is not counted
    began = time.thread_time()
    view.draw(rows)
    cost = time.thread_time() - began
    assert view.due - time.monotonic() == pytest.approx(cost / 0.05, rel=0.3)
    before = len(shown)
    view.update(rows, rows)  # too soon
    assert len(shown) == before and view.stale
    view.due = 0.0
    view.update(rows, [])  # nothing new since, but that picture is still owed
    assert len(shown) > before and not view.stale
    view.close(rows)


def test_a_stop_that_cannot_be_asked_is_said(shown, tmp_path):
    attached = show.attach(tmp_path / "metrics.jsonl")
    attached.metrics_path = tmp_path / "gone" / "metrics.jsonl"
    view = dashboard.Live(attached, None, {})
    view.button.click()
    assert not view.button.disabled and "cannot ask the run to stop" in view.line.value
    view.button.click()
    assert view.line.value.count("cannot ask the run to stop") == 1
    # the folder is there again: what was said is no longer true
    attached.metrics_path.parent.mkdir()
    view.button.click()
    assert view.button.disabled and "cannot ask" not in view.line.value
    rows = rows_of(3)
    view.update(rows, rows)
    assert "3" in view.line.value and "cannot ask" not in view.line.value
    view.close([])


def test_troubles_are_seen_live_and_headless(shown, tmp_path, capsys):
    training = SimpleNamespace(total_steps=10, metrics_path=tmp_path)
    rows = [{"event": "step", "step": 1}, {"event": "checkpoint_failed", "step": 1, "reason": "<disk> full"}]
    view = dashboard.Live(training, None, {})
    view.update(rows, rows)
    assert "⚠ checkpoint not saved, at step 1 (&lt;disk&gt; full)" in view.line.value
    view.close(rows)
    assert "⚠ checkpoint not saved" in final(shown)[next(iter(final(shown)))]["text/html"]
    lines = dashboard.Lines(training, None, {})
    many = [{"event": "skipped", "step": step, "reason": "NaN"} for step in range(2, 500)]
    for i in range(len(many)):
        lines.update(many[: i + 1], many[i : i + 1])
    out = capsys.readouterr().out
    assert out == "  1 update skipped, no weight changed, at step 2 (NaN)\n"  # not 498 lines
    lines.update([*many, *rows_of(3)], [{"event": "resume", "step": 2, "complaints": []}])
    assert capsys.readouterr().out == ""
    lines.close(many)
    assert "497 updates skipped, no weight changed, last at step 499" in capsys.readouterr().out


def test_a_long_silence_is_said(shown, tmp_path, monkeypatch):
    view = dashboard.Live(SimpleNamespace(total_steps=10, metrics_path=tmp_path), None, {})
    rows = rows_of(5)
    view.update(rows, rows)
    assert "no new row" not in view.line.value
    view.heard = time.monotonic() - 125
    view.update(rows, [])
    assert "no new row for 2 min 05 s" in view.line.value
    view.close(rows)
