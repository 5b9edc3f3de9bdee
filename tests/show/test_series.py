"""Rows as arrays: long runs averaged, gaps kept, steps as seconds."""

import math

import pytest

from helpers.show import series


def test_a_long_run_is_averaged_not_sampled():
    rows = [{"event": "step", "step": i, "bits_per_char": float(i % 2)} for i in range(10_000)]
    steps, values, *_ = series.averaged(rows, "step", "bits_per_char", points=100)
    assert len(steps) == len(values) == 100
    assert values == pytest.approx(0.5)


def test_a_nan_is_a_gap_and_hides_no_number():
    rows = [{"event": "step", "step": i, "grad_norm": math.nan if i == 3 else 1.0 + (i == 5)} for i in range(1, 9)]
    steps, values, *_ = series.averaged(rows, "step", "grad_norm")
    assert list(steps) == list(range(1, 9)) and math.isnan(values[2])
    _, values, *_ = series.averaged(rows, "step", "grad_norm", points=4)
    assert list(values) == [1.0, 1.0, 1.5, 1.0]
    *_, low, high = series.averaged(rows, "step", "grad_norm", points=4)  # the step that stood out is still seen
    assert list(low) == [1.0] * 4 and list(high) == [1.0, 1.0, 2.0, 1.0]
    assert series.last_value([*rows, {"event": "step", "step": 9, "grad_norm": None}], "step", "grad_norm") == 1.0


def test_steps_are_put_at_their_seconds():
    rows = [{"event": "step", "step": 10 * i, "train_seconds": t} for i, t in enumerate((1.0, 2.0, math.nan, 2.5), 1)]
    steps, at = series.axis_positions(rows, "train_seconds")
    assert list(steps) == [0, 10, 20, 40] and list(at) == [0, 1, 2, 2.5]
    assert series.axis_positions([{"event": "step", "step": 1}], "train_seconds") is None
    # a race writes no rows of training, only validations with their seconds
    validations = [{"event": "validation", "step": 5 * i, "train_seconds": 2.0 * i} for i in (1, 2)]
    steps, at = series.axis_positions(validations, "train_seconds")
    assert list(steps) == [0, 5, 10] and list(at) == [0, 2, 4]
    with pytest.raises(ValueError, match="choose one of step, train_seconds"):
        series.axis_positions(rows, "hours")
