"""A run of another process: watched, stopped by its button only, given up when it is dead."""

import asyncio
import json
import os
import re
import time
from types import SimpleNamespace

import pytest
from displays import check_left_behind, final, rows_of, steps_written, until

from helpers.show import notebook as show


def test_a_run_of_another_process_is_watched_and_stopped(shown, tmp_path, elsewhere, views):
    async def watch_and_click():
        watching = asyncio.create_task(show.watch(show.attach(tmp_path / "metrics.jsonl"), interval=0.01))
        await steps_written(SimpleNamespace(metrics_path=tmp_path / "metrics.jsonl"))
        assert not watching.done() and elsewhere.poll() is None
        views[0].button.click()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_click())
    assert elsewhere.wait(10) == 0 and (tmp_path / "STOP").exists()
    left = [data for data in final(shown).values() if data]
    assert re.match(r"stopped at step \d+ of 100,000 · 1 s$", left[0]["text/plain"])


@pytest.mark.parametrize("live", [True, False])
def test_the_kernels_stop_leaves_a_run_of_another_process_alone(shown, tmp_path, elsewhere, live, capsys):
    async def watch_and_cancel():
        watching = asyncio.create_task(show.watch(show.attach(tmp_path), interval=0.01, live=live))
        await steps_written(SimpleNamespace(metrics_path=tmp_path / "metrics.jsonl"))
        watching.cancel()
        await asyncio.wait_for(watching, 10)

    asyncio.run(watch_and_cancel())
    assert elsewhere.poll() is None and not (tmp_path / "STOP").exists()
    words = [data for data in final(shown).values() if data][0]["text/plain"] if live else capsys.readouterr().out
    assert "no longer watched, the run goes on" in words and "broke off" not in words


def test_a_killed_run_is_given_up_and_said(shown, tmp_path, elsewhere):
    until(lambda: len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) > 5)
    elsewhere.kill()
    began = time.monotonic()
    asyncio.run(show.watch(show.attach(tmp_path, patience=0.5), interval=0.01))
    assert time.monotonic() - began < 8
    words = [data for data in final(shown).values() if data][0]["text/plain"]
    assert words.startswith("broke off at step ") and "the run was killed or hangs" in words


def test_a_finished_run_is_shown_at_once(shown, tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [*rows_of(40, 40), {"event": "end", "step": 40, "reason": "finished", "seconds": 9.0},
            {"event": "sample", "step": 40, "text": "叶子<黄>"}]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    attached = show.attach(path)
    assert not attached.running and attached.complaint == ""
    asyncio.run(asyncio.wait_for(show.watch(attached), 10))
    check_left_behind(shown, "finished at step 40 of 40 · 9 s")
    path.write_text(path.read_text() + '{"event": "resume", "step": 40}\n')  # and goes on
    assert attached.running and attached.quiet < 5


def test_an_old_file_without_an_end_is_given_up_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    os.utime(path, (time.time() - 900, time.time() - 900))
    attached = show.attach(path)
    assert not attached.running and "no new row for 15 min" in attached.complaint
    path.rename(tmp_path / "elsewhere.jsonl")  # a file that vanishes changes nothing
    assert not attached.running and attached.wait() is None


def test_a_run_that_never_starts_is_said(shown, tmp_path, capsys):
    asyncio.run(show.watch(show.attach(tmp_path / "metrics.jsonl", patience=0.1), interval=0.01, live=False))
    assert "no metrics.jsonl came in 0 s: has the run started, and is its name correct?" in capsys.readouterr().out
