"""Room 04: one row an event, whatever happens to the process or the disk."""

import json

from helpers.train.log import MetricsLog


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_rows_are_lines_and_curves_go_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, writes=True)
    log.write("start", step=0, precision="fp32")
    log.write("step", step=1, loss=2.5, seconds=1.0, skipped=0)
    log.write("sample", step=1, text="今天浇水")
    assert [row["event"] for row in rows(tmp_path)] == ["start", "step", "sample"]  # at once, not when it closes
    assert "今天浇水" in (tmp_path / "metrics.jsonl").read_text("utf-8")
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(board.Tags()["scalars"]) == ["step/loss", "step/seconds"]
    assert [(event.step, event.value) for event in board.Scalars("step/loss")] == [(1, 2.5)]


def test_a_row_that_a_killed_run_left_half_harms_no_other(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"event": "step"}) + '\n{"event": "st', "utf-8")
    log = MetricsLog(tmp_path, writes=True)
    log.write("resume", step=3)
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 3 and json.loads(lines[2]) == {"event": "resume", "step": 3}


def test_other_processes_write_nothing(tmp_path):
    log = MetricsLog(tmp_path, writes=False)
    log.write("step", step=1, loss=2.5)
    log.close()
    assert not list(tmp_path.iterdir())
