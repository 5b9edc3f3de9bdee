"""Room 04: one row an event, whatever happens to the process or the disk."""

import json
import sys
from types import SimpleNamespace

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


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", Tracker(init=lambda **_: pytest.fail("begun")))
    log = MetricsLog(tmp_path, False, "wandb")
    log.write("step", step=1, loss=2.5)
    log.close()
    assert not list(tmp_path.iterdir())


class Tracker(SimpleNamespace):
    """A stand-in for wandb or swanlab: it notes what it is told, and may fail."""

    def __init__(self, fails_at=None, **functions):
        self.told = []

        def log(values, step):
            if step == fails_at:
                raise ConnectionError("no net")
            self.told.append((step, values))

        super().__init__(log=log, finish=lambda: self.told.append("finish"), **functions)


def test_a_tracker_gets_the_curves_and_the_parameters(tmp_path, monkeypatch):
    begun = []
    wandb = Tracker(init=lambda project, config, name: begun.append((project, config, name)))
    swanlab = Tracker(init=lambda project, config, experiment_name: begun.append((project, config, experiment_name)))
    for name, tracker in (("wandb", wandb), ("swanlab", swanlab)):
        monkeypatch.setitem(sys.modules, name, tracker)
        (tmp_path / name).mkdir()
        log = MetricsLog(tmp_path / name, True, name, {"run": "songci", "lr": 0.1})
        log.write("step", step=3, loss=2.5, text="今")
        log.write("sample", step=3, text="今天")
        log.close()
        assert tracker.told == [(3, {"step/loss": 2.5}), "finish"]
    assert begun == [("chinese-gpt", {"run": "songci", "lr": 0.1}, "songci")] * 2


def test_a_tracker_that_fails_ends_nothing(tmp_path, monkeypatch, capsys):
    tracker = Tracker(fails_at=2, init=lambda project, config, name: None)
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    log = MetricsLog(tmp_path, True, "wandb", {"run": "r"})
    for step in (1, 2, 3):
        log.write("step", step=step, loss=2.5)
    log.close()
    assert tracker.told == [(1, {"step/loss": 2.5})] and len(rows(tmp_path)) == 3
    assert "failed at step 2 and gets no more (no net)" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [
    ("nowhere_to_be_found", "which is not there: pip install"), ("../x", "give the name of a module"),
    ("package.curves", "which has no init"), ("lacking", "cannot be imported"), ("json", "no init, log and finish"),
])  # fmt: skip
def test_a_tracker_that_is_none_is_refused(tmp_path, monkeypatch, name, words):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "curves.py").write_text("def log(): pass", "ascii")
    (tmp_path / "lacking.py").write_text("import nowhere_to_be_found", "ascii")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=words):
        MetricsLog(tmp_path, True, name)


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
