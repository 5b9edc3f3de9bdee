"""From rows of metrics to arrays: one field over the steps, long runs averaged, steps as seconds.

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
    _, values = measured(rows, event, field)
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


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


AXES = {"step": "step", "train_seconds": "seconds of training"}


def axis_positions(rows: Sequence[Mapping], x: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (steps, position of each on the axis `x`), or None if the rows lack what `x` needs.

    Raises ValueError for an `x` that is not in `AXES`.
    """
    if x not in AXES:
        raise ValueError(f"x is '{x}': choose one of {', '.join(AXES)}")
    if x == "step":
        every = np.array([0.0, *sorted(step_of(row) for row in rows)])
        return every, every
    known = sorted({(row["step"], row[x]) for row in rows if finite(row.get("step")) and finite(row.get(x))})
    return (np.array([0, *(step for step, _ in known)]), np.array([0, *(at for _, at in known)])) if known else None
