"""Runs compared: in one figure and a table, whatever they are called."""

import json

import pytest
from displays import full_rows, rows_of

from helpers.show import notebook as show
from helpers.show import text


def test_compare_names_what_differs(shown, tmp_path):
    for name, changes in (("slow", {"lr": 1e-4, "seed": 1}), ("quick", {"lr": 3e-3, "seed": 1})):
        (tmp_path / name).mkdir()
        rows = "".join(json.dumps(row) + "\n" for row in full_rows(200 if name == "slow" else 300))
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        (tmp_path / name / "parameters.json").write_text(json.dumps({"run": name, "log_step": 5} | changes))
    show.compare({"slow": tmp_path / "slow", "quick": str(tmp_path / "quick")}, floor=1.0, x="train_seconds")
    picture, table = (output["data"] for output in shown)
    assert picture["text/plain"] == "validation bits per character: slow 1.301, quick 1.280"
    assert [line.replace("␣", " ").split() for line in table["text/plain"].splitlines()[1:]] == [
        ["slow", "200", "20", "s", "1.201", "1.301", "50,000", "0.58", "lr", "0.0001"],
        ["quick", "300", "30", "s", "1.180", "1.280", "50,000", "0.553", "lr", "0.003"],
    ]


def test_the_time_is_that_of_any_row_and_unknown_columns_are_left_out(shown):
    """A short trial may log no step with its time, but its end has it; nobody measured its gradient."""
    rows = [*rows_of(3), {"event": "end", "step": 3, "train_seconds": 70.0}]
    show.compare({"a": rows, "b": rows_of(3)})
    assert [line.split() for line in shown[1]["data"]["text/plain"].splitlines()] == [
        ["run", "steps", "time", "training", "bits/char", "tokens/s"],
        ["a", "3", "1", "min", "10", "s", "4.000", "5,000"],
        ["b", "3", "–", "4.000", "5,000"],
    ]


@pytest.mark.filterwarnings("error")  # matplotlib warns of letters that its font lacks
@pytest.mark.parametrize("name", ["我的模型", "a" * 99, "$x$ ^ _", ""])
def test_any_name_of_a_run_can_be_compared(shown, name):
    show.compare({name: rows_of(3), "other": rows_of(3)})
    assert text.visible_at_edges(name) in shown[1]["data"]["text/plain"]
