"""From rows to arrays: one field over the steps, a long run thinned, steps turned into seconds or tokens.

Knows nothing of figures. What is no finite number becomes NaN, what is missing is left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from helpers.show.metrics_file import finite, step_of

Field = str | Callable[[Mapping], float | None]  # a field of a row, or how to work one out


def measured(rows: Sequence[Mapping], event: str, field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of the rows of one event that have the field; what is no finite number is NaN."""
    found = []
    for row in rows:
        if row.get("event") == event and finite(row.get("step")):
            value = field(row) if callable(field) else row.get(field)
            if value is not None:
                found.append((row["step"], value if finite(value) else math.nan))
    return np.array(found, dtype=float).reshape(-1, 2).T


def newest(rows: Sequence[Mapping], event: str, field: Field) -> float | None:
    """Return the last finite value of a field, or None."""
    for row in reversed(rows):
        if row.get("event") == event and finite(row.get("step")):
            value = field(row) if callable(field) else row.get(field)
            if finite(value):
                return float(value)
    return None


def parts(n: int, points: int) -> np.ndarray:
    """Return where each of at most `points` equal parts of n values begins."""
    return np.linspace(0, n, min(n, points) + 1).astype(int)[:-1]


def banded(
    rows: Sequence[Mapping], event: str, field: Field, points: int = 400
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (steps, means, lowest, highest) of a field; a long run is cut into at most `points` equal parts.

    A mean alone would hide what lasted one step.
    """
    steps, values = measured(rows, event, field)
    if len(steps) <= points:
        return steps, values, values, values
    at = parts(len(steps), points)
    known = np.isfinite(values)
    n = np.add.reduceat(known, at, dtype=float)
    total = np.add.reduceat(np.where(known, values, 0), at)
    means = np.divide(total, n, out=np.full(len(at), np.nan), where=n > 0)
    steps = np.add.reduceat(steps, at) / np.diff([*at, len(steps)])
    return steps, means, np.fmin.reduceat(values, at), np.fmax.reduceat(values, at)


def series(rows: Sequence[Mapping], event: str, field: Field, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of the rows of one event; a long run is averaged down to at most `points`."""
    return banded(rows, event, field, points)[:2]


AXES = {"step": "step", "train_seconds": "seconds of training", "tokens": "tokens seen"}


def places(rows: Sequence[Mapping], x: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (steps, where on the axis `x` each of them lies), or None where the rows do not tell.

    Seconds only grow: where a session of a resumed run began again at 0, it goes on from where the last one was.
    Tokens are added up from tokens a second and seconds.
    """
    if x not in AXES:
        raise ValueError(f"x is '{x}': choose one of {', '.join(AXES)}")
    steps = [row for row in rows if row.get("event") == "step" and finite(row.get("step"))]
    if x == "step":
        found = np.array([0.0, *sorted(step_of(row) for row in rows)])
        return found, found
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
