"""The words that benchmarks compute from figures, and what their reports hold."""

import json

import pytest
import torch

from benchmarks import block_speed, machine, tournament


def test_one_beats_another_where_each_of_its_seeds_is_better_and_two_seeds_are_few():
    assert tournament.beaten({"a": [3, 4], "b": [1, 2], "c": [3.5, 5]}) == {"a": [], "b": ["a", "c"], "c": []}
    assert [round(1 / tournament.luck(seeds)) for seeds in (2, 3, 4)] == [3, 10, 35]


@pytest.mark.parametrize("units", [True, False, None])
def test_a_machine_has_a_name_and_says_whether_it_has_bf16_units(monkeypatch, units):
    monkeypatch.setattr(machine, "has_bf16_units", lambda: units)
    monkeypatch.setattr(machine, "_processor", lambda: "Some(R) CPU")
    described = machine.describe_machine(torch.device("cpu"))
    assert described["processor"] == "Some CPU" and described["bf16_units"] is units and described["cores"] > 0


def test_a_report_is_printed_as_one_line_and_kept_on_request(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "REPORTS", tmp_path)
    machine.report("x", {}, {"a": {"b": 1}}, {}, "kept", title="西游记")
    before, last = capsys.readouterr().out.splitlines()
    assert before.split() == ["a/b", "1"] and json.loads(last)["title"] == "西游记"
    assert json.loads(last) == json.loads((tmp_path / "kept.json").read_text("utf-8"))
    machine.report("x", {}, {}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["kept.json"]


def test_an_aim_is_met_from_above_or_from_below():
    found = machine.met({"speed": 3, "memory": 9, "late": None}, {"speed": 2, "memory": 8, "late": 1}, {"memory"})
    assert found == {
        "speed": {"value": 3, "aim": 2, "met": True},
        "memory": {"value": 9, "aim": 8, "met": False},
    }


def test_a_first_turn_does_not_count_and_ratios_are_of_one_turn():
    values = {"ours": iter([99, 1, 2, 4]), "theirs": iter([99, 2, 6, 4])}
    turns = machine.take_turns({name: lambda each=each: next(each) for name, each in values.items()}, 3)
    assert turns == {"ours": [1, 2, 4], "theirs": [2, 6, 4]}
    assert machine.median_ratio(turns["theirs"], turns["ours"]) == 2


def test_the_kernels_are_measured_beside_the_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["block_speed", "--quick"])
    monkeypatch.setattr(block_speed, "TEXTS", {"short": (8, 50)})
    block_speed.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    ways = result["figures"]["short"]
    assert result["aims"] == {} and ways["ours"]["times_ours"] == 1 and set(ways) == set(block_speed.WAYS)
