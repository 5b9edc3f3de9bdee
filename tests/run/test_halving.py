"""Which bits per character a rung asks for: the better half of those that came there before."""

import json

import pytest

from helpers import paths
from helpers.run import halving


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))


def write_run(run, validations, total=100, more=()):
    folder = paths.room(run, "train")
    folder.mkdir(parents=True)
    rows = [{"event": "start", "step": 0, "total_steps": None}, {"event": "step", "step": 1, "total_steps": total}]
    rows += [{"event": "validation", "step": step, "bits_per_char": bits} for step, bits in validations]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + "".join(more), "utf-8")


def test_the_curve_of_a_run_survives_a_resume_and_a_torn_line():
    again = json.dumps({"event": "validation", "step": 30, "bits_per_char": 3.0}) + "\n"
    write_run("a", [(30, 3.0), (60, 2.0)], more=[again, '{"event": "valid'])
    assert halving.curve("a") == [(0.3, 3.0), (0.6, 2.0)]
    assert halving.curve("nobody") == []


def test_a_rung_counts_the_best_up_to_the_first_validation_there():
    curve = [(0.1, 4.0), (0.2, 3.0), (0.3, 3.5), (0.4, 2.0)]
    assert [halving.at(share, curve) for share in (0.05, 0.25, 0.4, 0.5)] == [4.0, 3.0, 2.0, None]


@pytest.mark.parametrize(
    ("earlier", "asked"),
    [
        ([], []),
        ([3.0], [[0.25, 3.0]]),  # of two the better one
        ([3.0, 5.0], [[0.25, 5.0]]),  # of three the better two
        ([3.0, 5.0, 4.0], [[0.25, 4.0]]),  # of four the better two
        ([3.0, 5.0, 4.0, 6.0], [[0.25, 5.0]]),
    ],
)
def test_the_better_half_goes_on(earlier, asked):
    for i, bits in enumerate(earlier):
        write_run(f"r{i}", [(30, bits)])
    assert halving.rungs(f"r{i}" for i in range(len(earlier))) == asked


def test_a_run_that_ended_at_the_first_rung_says_nothing_about_the_second():
    write_run("a", [(25, 4.0), (50, 3.0)])
    write_run("b", [(25, 6.0)])
    assert halving.rungs(["a", "b"]) == [[0.25, 6.0], [0.5, 3.0]]
