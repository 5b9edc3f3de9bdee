"""The page of a sweep says what its table says, and stands before anything has trained."""

import json

import pytest

from helpers import paths
from helpers.files import write_text
from helpers.manifest import write_manifest
from helpers.run.grid import number
from helpers.show import sweep


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))


def train(run, bits, end="finished"):
    rows = [{"event": "step", "step": i, "total_steps": 4, "bits_per_char": bits + 4 - i} for i in range(1, 5)]
    rows += [{"event": "validation", "step": 4, "bits_per_char": bits}, {"event": "end", "step": 4, "reason": end}]
    write_text(paths.room(run, "train") / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_manifest(run, "train", parameters={}, inputs=[], outputs=[], result={"val_bits_per_char": bits, "steps": 4})


def test_before_anything_has_trained_there_is_a_table():
    number("s", [{"lr": 0.1}, {"lr": 0.2}])
    page = sweep.write("s").read_text("utf-8")
    assert page.count("not trained") == 2 and "<img" not in page and "best so far" not in page


def test_a_sweep_that_is_not_there(capsys):
    assert sweep.main(["nosuch"]) == sweep.main(["../nosuch"]) == 2
    assert "there is no sweep 'nosuch'" in capsys.readouterr().err


def test_the_best_its_curve_and_what_mattered():
    number("s", [{"lr": 0.1, "kind": "<b>"}, {"lr": 0.2, "kind": "<b>"}, {"lr": 0.3, "kind": "<b>"}])
    train("s-1", 3.25)
    train("s-2", 2.75)
    train("s-3", 9.5, end="behind at 25%: 9.500 bits per character, not 3.250")
    page = sweep.write("s").read_text("utf-8")
    assert "The best so far: <b>s-2, 2.7500 bits per character (lr 0.2 · kind &lt;b&gt;)</b>" in page
    assert page.index("s-2</td>") < page.index("s-1</td>") < page.index("s-3</td>") and "behind at 25%" in page
    assert "alt='validation, bits per character: s-2 2.750, s-1 3.250, s-3 9.500'" in page
    assert (
        "<td>lr</td><td><div class='bar' style='width:100%'></div></td><td>100%</td><td>0.2: 2.750 · 0.1: 3.250" in page
    )
    assert "<b>\n" not in page.replace("<b>s-2", "")  # a value is text, not HTML


def test_the_figure_holds_the_best_few():
    number("s", [{"seed": i} for i in range(12)])
    for i in range(1, 13):
        train(f"s-{i}", 1 + i)
    page = sweep.write("s").read_text("utf-8")
    assert "The best 7 of 12 runs." in page and "s-7 8.000'" in page
