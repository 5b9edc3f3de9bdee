"""Room 04: one row an event, whatever happens to the process or the disk."""

import json

import numpy as np
import pytest
from models import rows

from helpers.train.log import MetricsLog, RunningMeans, SpikeDetector


def test_rows_are_lines_and_curves_go_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, writes=True)
    log.write("start", step=0, precision="fp32")
    log.write("step", step=1, loss=2.5, seconds=1.0, skipped=0, expert_load=[[0.5, 0.75], [1.0, 0.25]], torn=True)
    log.write("sample", step=1, text="今天浇水")
    assert [row["event"] for row in rows(tmp_path)] == ["start", "step", "sample"]
    assert "今天浇水" in (tmp_path / "metrics.jsonl").read_text("utf-8")
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    load = [f"step/expert_load/{block}/{expert}" for block in (0, 1) for expert in (0, 1)]
    assert sorted(board.Tags()["scalars"]) == [*load, "step/loss", "step/seconds", "step/skipped"]
    assert [event.value for event in board.Scalars("step/expert_load/0/1")] == [0.75]
    assert [(event.step, event.value) for event in board.Scalars("step/loss")] == [(1, 2.5)]


def test_a_row_that_a_killed_run_left_half_harms_no_other(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"event": "step"}) + '\n{"event": "st', "utf-8")
    log = MetricsLog(tmp_path, writes=True)
    log.write("resume", step=3)
    log.close()
    assert len((tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()) == 3
    assert rows(tmp_path) == [{"event": "step"}, *rows(tmp_path, "resume")]


def test_other_processes_write_nothing(tmp_path):
    log = MetricsLog(tmp_path, writes=False)
    log.write("step", step=1, loss=2.5)
    log.close()
    assert not list(tmp_path.iterdir())


# ---- the numbers of a row ----


def test_means_weigh_each_label_the_same():
    means = RunningMeans()
    means.add(loss=8.0, correct=1, labels=2, seconds=0.5)
    means.add(loss=4.0, correct=5, labels=6, seconds=0.25)
    assert means.means(0.5) == {"loss": 1.5, "bits_per_char": 0.75, "accuracy": 0.75}
    assert means.seconds == 0.75
    assert RunningMeans(**vars(means)) == means  # as a checkpoint holds them


def test_a_spike_is_noticed_and_noise_is_not():
    random = np.random.default_rng(0)
    spikes = SpikeDetector()
    assert not any(spikes.check(4 - 0.02 * i + 0.05 * random.standard_normal()) for i in range(60))
    assert spikes.check(6.0) == pytest.approx(3.3, abs=0.2)


def test_the_first_losses_are_no_spikes():
    spikes = SpikeDetector()
    assert not any(spikes.check(loss) for loss in [1.0] * 19 + [50.0])
