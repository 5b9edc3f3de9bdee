"""The dashboard: live, with a Stop button that works while the cell runs; headless, in lines; a run's texts."""

import asyncio
import json
import math
import random
import time
from types import SimpleNamespace

import pytest
from displays import FakeTraining, check_left_behind, final, full_rows, rows_of, steps_taken, stripped

from helpers.show import curves, dashboard, figures, metrics_file
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
@pytest.mark.parametrize("seed", range(6))
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
    words = [metrics_file.progress_in_words(read), metrics_file.end_in_words(read, 10, 1.0)]
    assert all([*words, dashboard.progress_bar(read, 0), *metrics_file.troubles(read)])
    show.spikes(read)
    figures.png(curves.run_figure(read, 1.0, {}))


def test_headless_prints_lines_and_leaves_the_figure(shown, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADLESS", "1")
    training = FakeTraining(tmp_path, 40)
    assert asyncio.run(show.watch(training, floor=1.1, baselines={"unigram": 8.0}, interval=0)) is None
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 7  # the four validations at most, the first step, the end
    assert lines[-1] == "finished at step 40 of 40 · 1 min 05 s · validation 1.325 bits/char, 20 % above the floor"
    assert [next(iter(output["data"])) for output in shown] == ["image/png", "text/html"]
    assert training.stops == 0


def test_stop_button_works_while_the_cell_runs_and_no_widget_is_left(shown, tmp_path, views):
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_click():
        watching = asyncio.create_task(show.watch(training, interval=0))
        await steps_taken(training)
        assert not watching.done()
        views[0].button.click()
        assert views[0].button.disabled
        await watching

    asyncio.run(watch_and_click())
    assert "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    assert training.stops == 1 and training.step < 5_000
    check_left_behind(shown, "stopped at step")


@pytest.mark.parametrize("headless", ["", "1"])
def test_the_kernels_stop_saves_and_ends_cleanly(shown, tmp_path, monkeypatch, headless):
    monkeypatch.setenv("HEADLESS", headless)
    training = FakeTraining(tmp_path, 5_000)

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0))
        await steps_taken(training)
        watching.cancel()
        await watching

    asyncio.run(watch_and_cancel())
    assert training.stops == 1 and not training.running
    assert any("image/png" in data for data in final(shown))


def test_asked_twice_the_watching_ends_at_once(shown, tmp_path, monkeypatch):
    training = FakeTraining(tmp_path, 5_000)
    monkeypatch.setattr(training, "stop", lambda: None)  # a run that takes long to save

    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(training, interval=0))
        for steps in (20, 40):
            await steps_taken(training, steps)
            watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    asyncio.run(watch_and_cancel())
    assert training.running
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in final(shown))


def test_the_error_of_the_run_is_the_error_of_the_cell(shown, tmp_path):
    with pytest.raises(RuntimeError, match="not finite"):
        asyncio.run(show.watch(FakeTraining(tmp_path, 20, fails=True), interval=0))
    assert any("image/png" in data for data in final(shown))


def test_a_picture_that_came_too_soon_is_drawn_when_it_is_due(shown, tmp_path):
    view = dashboard.Live(SimpleNamespace(total_steps=10, metrics_path=tmp_path), None, {})
    rows = rows_of(5)
    view.due = math.inf
    view.update(rows, rows)
    assert view.picture is None and view.stale
    view.due = 0.0
    view.update(rows, [])
    assert view.picture and not view.stale
    assert view.due > time.monotonic()
    view.close(rows)


def test_troubles_are_seen_live_and_headless(shown, tmp_path, capsys):
    training = SimpleNamespace(total_steps=10, metrics_path=tmp_path, stop=None)
    rows = [{"event": "step", "step": 1}, {"event": "checkpoint_failed", "step": 1, "reason": "<disk> full"}]
    view = dashboard.Live(training, None, {})
    view.update(rows, rows)
    assert "⚠ checkpoint not saved, at step 1 (&lt;disk&gt; full)" in view.line.value
    view.close(rows)
    assert "⚠ checkpoint not saved" in final(shown)[0]["text/html"]
    lines = dashboard.Lines(training, None, {})
    many = [{"event": "skipped", "step": step, "reason": "NaN"} for step in range(2, 500)]
    for i in range(len(many)):
        lines.update(many[: i + 1], many[i : i + 1])
    out = capsys.readouterr().out
    assert out == "  1 update skipped, no weight changed, at step 2 (NaN)\n"  # not 498 lines
    lines.close(many)
    assert "497 updates skipped, no weight changed, last at step 499" in capsys.readouterr().out


# ---- what a run wrote ----


def test_a_spike_shows_the_text_it_came_from(shown):
    show.spikes(full_rows(20))
    words = shown[0]["data"]["text/plain"]
    assert words.splitlines()[1].split() == ["20", "4.00", "1.00"]
    assert "[step 20 · window 7 · loss 5.50]\n乱码<##>" in words and words.index("乱码") < words.index("第二")
    assert "A spike (尖峰) is an update whose loss" in words.splitlines()[-1]
    lines = stripped(shown[0]).splitlines()
    assert lines[:2] == ["step\tloss (nats per token)\tusually", "20\t4.00\t1.00"]
    assert lines[2:4] == ["step 20 · window 7 · loss 5.50", "乱码<##>"]
    show.spikes(rows_of(5))
    assert shown[1]["data"]["text/plain"] == "no spike"
