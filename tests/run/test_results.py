"""A sweep's table, and the share of the variance that each parameter explains."""

import itertools
import json

import numpy as np
import pytest

from helpers import paths
from helpers.run import halving, results
from helpers.run.results import Row, differing, effects, header, table


def row(bits, end="finished", chosen=None, **combination):
    return Row("r", combination, {} if bits is None else {"val_bits_per_char": bits}, chosen or {}, end)


def test_of_a_sum_of_two_effects_each_explains_its_part():
    """Two factors that add up, balanced: the shares are those of their variances, and add up to 1."""
    a, b = {1: 0.0, 2: 3.0}, {"x": 0.0, "y": 1.0, "z": 5.0}
    found = effects(row(10 + a[i] + b[j], lr=i, kind=j) for i, j in itertools.product(a, b))
    parts = {"lr": np.var(list(a.values())), "kind": np.var(list(b.values()))}
    assert {each.name: each.share for each in found} == pytest.approx(
        {name: part / sum(parts.values()) for name, part in parts.items()}
    )
    assert found[0].name == "kind" and list(found[0].means) == ["x", "y", "z"]
    assert found[0].means["z"] == pytest.approx(10 + 1.5 + 5)


def test_a_parameter_without_effect_explains_nothing_and_an_effect_of_both_belongs_to_none():
    assert effects([row(1.0, a=1, b=1), row(2.0, a=2, b=1), row(1.0, a=1, b=2), row(2.0, a=2, b=2)])[-1].share == 0
    xor = effects([row(1.0, a=1, b=1), row(2.0, a=2, b=1), row(2.0, a=1, b=2), row(1.0, a=2, b=2)])
    assert [each.share for each in xor] == [0, 0]


def test_runs_that_ended_early_or_failed_do_not_count():
    found = effects([row(1.0, a=1), row(2.0, a=2), row(99.0, end="behind at 25%", a=1), row(None, "not trained", a=2)])
    assert found[0].means == {"1": 1.0, "2": 2.0}
    assert effects([row(1.0, a=1), row(9.0, end="stopped", a=2)]) == []
    assert effects([row(1.0, a=1), row(1.0, a=2)]) == []


def test_the_table_shows_what_rules_chose_differently():
    found = [
        row(1.0, chosen={"lr": 0.1, "n_layer": 3}, n_embd=8),
        row(2.0, chosen={"lr": 0.2, "n_layer": 3}, n_embd=16),
    ]
    assert differing(found) == ["lr"]
    assert header(found) == ["run", "n_embd", "lr", "val_bits_per_char", "end"]
    assert table(found) == [["r", 8, 0.1, 1.0, "finished"], ["r", 16, 0.2, 2.0, "finished"]]
    assert table([*found, row(None, "not trained", n_embd=9)])[2] == ["r", 9, "", "", "not trained"]


def test_a_validation_that_is_not_a_number_is_none(monkeypatch):
    found = {"r-1": row(float("nan"), a=1), "r-2": row(2.0, a=2), "r-3": row(1.0, a=3)}
    monkeypatch.setattr(results, "known_members", lambda sweep: {i: {} for i in (1, 2, 3)})
    monkeypatch.setattr(results, "_row", lambda run, combination: found[run])
    assert results.rows("r") == [found["r-3"], found["r-2"], found["r-1"]]
    assert effects(found.values())[0].means == {"3": 1.0, "2": 2.0}


@pytest.mark.parametrize("last", ["", '{"event": "end", "reason": "fin', '{"event": "end", "reason": "fin\xff'])
def test_a_row_that_a_full_disk_left_torn_harms_no_page(tmp_path, monkeypatch, last):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    log = paths.room("r", "train") / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    rows = [
        {"event": "step", "step": 5, "total_steps": 10},
        {"event": "validation", "step": 5, "bits_per_char": 3.5},
        {"event": "end", "step": 10, "reason": "stopped"},
    ]
    log.write_bytes(("".join(json.dumps(row) + "\n" for row in rows) + last).encode("latin-1"))
    assert results._end("r") == "stopped" and halving.curve("r") == [(0.5, 3.5)]
