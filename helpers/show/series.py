"""From rows of metrics to arrays: one field over the steps, long runs averaged, steps as seconds or tokens.

What is no finite number becomes NaN, what is missing is left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from helpers.show.metrics_file import finite, step_of

Field = str | Callable[[Mapping], float | None]  # a field of a row, or a function that computes it from the row


def measured(rows: Sequence[Mapping], event: str, field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of the rows of one event that have the field; what is no finite number is NaN."""
    steps, values = [], []
    for row in rows:
        if row.get("event") == event and finite(row.get("step")):
            value = field(row) if callable(field) else row.get(field)
            if value is not None:
                steps.append(row["step"])
                values.append(value if finite(value) else math.nan)
    return np.array(steps, dtype=float), np.array(values, dtype=float)


def last_value(rows: Sequence[Mapping], event: str, field: Field) -> float | None:
    """Return the last finite value of a field, or None."""
    for row in reversed(rows):
        if row.get("event") == event and finite(row.get("step")):
            value = field(row) if callable(field) else row.get(field)
            if finite(value):
                return float(value)
    return None


def part_starts(n: int, points: int) -> np.ndarray:
    """Return the first index of each of at most `points` equal parts of n values."""
    return np.linspace(0, n, min(n, points) + 1).astype(int)[:-1]


def averaged(
    rows: Sequence[Mapping], event: str, field: Field, points: int = 400
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (steps, means, lowest, highest) of a field in at most `points` equal parts of a run.

    Lowest and highest, because a mean hides what lasted one step.
    """
    steps, values = measured(rows, event, field)
    if len(steps) <= points:
        return steps, values, values, values
    at = part_starts(len(steps), points)
    known = np.isfinite(values)
    n = np.add.reduceat(known, at, dtype=float)
    total = np.add.reduceat(np.where(known, values, 0), at)
    means = np.divide(total, n, out=np.full(len(at), np.nan), where=n > 0)
    steps = np.add.reduceat(steps, at) / np.diff([*at, len(steps)])
    return steps, means, np.fmin.reduceat(values, at), np.fmax.reduceat(values, at)


AXES = {"step": "step", "train_seconds": "seconds of training", "tokens": "tokens seen"}


def axis_positions(rows: Sequence[Mapping], x: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (steps, position of each on the axis `x`), or None if the rows lack what `x` needs.

    Seconds only grow: if a session of a resumed run counts from 0 again, it continues from the end of the last one.
    Tokens are summed from tokens per second and seconds. Raises ValueError for an `x` that is not in `AXES`.
    """
    if x not in AXES:
        raise ValueError(f"x is '{x}': choose one of {', '.join(AXES)}")
    steps = [row for row in rows if row.get("event") == "step" and finite(row.get("step"))]
    if x == "step":
        every = np.array([0.0, *sorted(step_of(row) for row in rows)])
        return every, every
    clock = "train_seconds" if any(finite(row.get("train_seconds")) for row in steps) else "seconds"
    needed = (clock, "tokens_per_second") if x == "tokens" else (clock,)
    steps = [row for row in steps if all(finite(row.get(name)) for name in needed)]
    if not steps:
        return None
    at = np.array([0.0, *(row[clock] for row in steps)])
    laps = np.diff(at)
    laps = np.where(laps < 0, at[1:], laps)
    if x == "tokens":
        laps = laps * [row["tokens_per_second"] for row in steps]
    return np.array([0.0, *map(step_of, steps)]), np.cumsum([0.0, *laps])
