"""A run's metrics.jsonl: read while it grows, its rows as arrays, its state in words. Draws nothing.

A row may lack any field, a number may be NaN or null, the file may be half written or gone: what can be read is
returned, and nothing is raised for the rest.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np

from helpers.files import log_rows
from helpers.wording import duration, say

RunRows = str | Path | Sequence[Mapping]  # rows, or the file that holds them
UNKNOWN = "–"  # stands for a figure that the rows lack
Field = str | Callable[[Mapping], float | None]  # a field of a row, or a function that computes it from the row


class Tail:
    """The rows of a metrics.jsonl that is still being written; `read` costs only what is new."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows: list[dict] = []
        self._offset = 0  # of the first byte that was not yet read
        self._inode = 0

    def read(self) -> list[dict]:
        """Add what was written since the last call to `rows` and return it; a half-written last line waits."""
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if file.seek(0, os.SEEK_END) < self._offset or inode != self._inode:  # another file: start again
                    self._offset, self._inode, self.rows = 0, inode, []
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except (PermissionError, IsADirectoryError):
            raise
        except OSError:  # not yet written, or moved away, or a network disk is not there for a moment
            return []
        self._offset += len(whole) + len(newline)
        new = []
        for row in log_rows(whole.splitlines()):
            new.append(row)
            if row.get("event") in ("resume", "start") and finite(row.get("step")):  # later steps will be taken again
                self.rows = [old for old in self.rows if step_of(old) <= row["step"] and old.get("event") != "end"]
            self.rows.append(row)
        return new


def finite(value: object) -> TypeGuard[int | float]:
    """Return whether a field holds a number that can be drawn: not missing, not null, not NaN, not infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def fixed(value: object, form: str = ".2f") -> str:
    """Return a number in this format, or a dash if there is none."""
    return f"{value:{form}}" if finite(value) else UNKNOWN


def step_of(row: Mapping) -> float:
    """Return a row's step, or 0 if it has none."""
    return row["step"] if finite(row.get("step")) else 0


def last(rows: Sequence[Mapping], event: str) -> Mapping:
    """Return the last row of an event, or an empty one."""
    return next((row for row in reversed(rows) if row.get("event") == event), {})


def read_metrics(file: str | Path) -> list[dict]:
    """Return the rows of a metrics.jsonl; after a resume, steps that were taken again replace the older ones.

    Raises FileNotFoundError if there is no such file.
    """
    if not Path(file).is_file():
        raise FileNotFoundError(f"{file} is not there: notebook 04_train writes it")
    tail = Tail(file)
    tail.read()
    return tail.rows


def rows_of(metrics: RunRows) -> Sequence[Mapping]:
    """Return rows as they are, or those of a file."""
    return read_metrics(metrics) if isinstance(metrics, str | Path) else metrics


def planned_steps(rows: Sequence[Mapping], otherwise: int = 0) -> int:
    """Return how many steps the run will have according to its newest row: with a time budget, the number changes."""
    totals = (row["total_steps"] for row in reversed(rows) if finite(row.get("total_steps")))
    return int(next(totals, otherwise))


# ---- rows as arrays: what is no finite number becomes NaN, what is missing is left out ----


def field_values(rows: Sequence[Mapping], event: str, field: Field) -> tuple[np.ndarray, np.ndarray]:
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
    _, values = field_values(rows, event, field)
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def averaged(
    rows: Sequence[Mapping], event: str, field: Field, points: int = 400
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (steps, means, lowest, highest) of a field in at most `points` equal parts of a run.

    Lowest and highest, because a mean hides what lasted one step.
    """
    steps, values = field_values(rows, event, field)
    if len(steps) <= points:
        return steps, values, values, values
    at = np.linspace(0, len(steps), points + 1).astype(int)[:-1]  # where each part starts
    known = np.isfinite(values)
    n = np.add.reduceat(known, at, dtype=float)
    total = np.add.reduceat(np.where(known, values, 0), at)
    means = np.divide(total, n, out=np.full(len(at), np.nan), where=n > 0)
    steps = np.add.reduceat(steps, at) / np.diff([*at, len(steps)])
    return steps, means, np.fmin.reduceat(values, at), np.fmax.reduceat(values, at)


def step_and_total(step: float, total: int) -> str:
    """Return "step 3 of 10", or "step 3" if the number of steps is not known."""
    return say("step {:,.0f} of {:,}", step, total) if total else say("step {:,.0f}", step)


def progress_in_words(rows: Sequence[Mapping], total_steps: int = 0) -> str:
    """Return the state of a run in one line; `total_steps` is used if no row has it."""
    step, validation = last(rows, "step"), last(rows, "validation")
    facts = [step_and_total(step_of(step), planned_steps(rows, total_steps))]
    for name, row in ((say("training"), step), (say("validation"), validation)):
        if finite(row.get("bits_per_char")):
            facts.append(say("{} {:.3f} bits/char", name, row["bits_per_char"]))
    if finite(step.get("tokens_per_second")):
        share = say(" ({:.0f} % of the machine's peak)", 100 * step["mfu"]) if finite(step.get("mfu")) else ""
        facts.append(say("{:,.0f} tokens/s", step["tokens_per_second"]) + share)
    if finite(step.get("memory")):
        memory = step["memory"]
        facts.append(f"{memory / 1e9:.1f} GB" if memory >= 1e9 else f"{memory / 1e6:.0f} MB")
    if finite(step.get("seconds_left")):
        facts.append(say("{} left", duration(step["seconds_left"])))
    return " · ".join(facts)


def end_in_words(rows: Sequence[Mapping], total_steps: int = 0, floor: float | None = None) -> str:
    """Return how a run ended, in one line."""
    end, step, validation = last(rows, "end"), last(rows, "step"), last(rows, "validation")
    total, done = planned_steps(rows, total_steps), step_of(end) or step_of(step)
    how = end.get("reason") if end else "broke off"  # without a last row: it raised an error, or was killed
    if how not in ("finished", "stopped", "broke off"):
        how = say("ended ({})", how)
    facts = [say("{} at {}", say(how), step_and_total(done, total))]
    if finite(end.get("seconds")):
        facts.append(duration(end["seconds"]))
    if finite(validation.get("bits_per_char")):
        bits = validation["bits_per_char"]
        above = say(", {:.0f} % above the floor", 100 * (bits / floor - 1)) if floor else ""
        facts.append(say("{} {:.3f} bits/char", say("validation"), bits) + above)
    return " · ".join(facts)


def troubles(rows: Sequence[Mapping]) -> list[str]:
    """Return what went wrong so far, one sentence per kind: a spike, a skipped update, a full disk …"""
    others = [row for row in rows if row.get("event") != "step"]  # few

    def of(event: str) -> tuple[int, Mapping, str]:
        """Return how many rows an event has, the last of them, and when that was."""
        row = last(others, event)
        count = sum(other.get("event") == event for other in others)
        return count, row, f"{'last ' if count > 1 else ''}at step {step_of(row):,.0f}"

    words = []
    count, row, when = of("skipped")
    counted = last(rows, "step").get("skipped")  # more than there are rows: a resume drops some
    if n := max(count, int(counted) if finite(counted) else 0):
        detail = f", {when} ({row.get('reason') or 'no reason given'})" if count else ""
        words.append(f"{n} {'update' if n == 1 else 'updates'} skipped, no weight changed{detail}")
    count, row, when = of("out_of_memory")
    if count:
        words.append(f"out of memory {when}: a micro-batch now has {row.get('micro_batch', 'fewer')} windows")
    count, row, when = of("checkpoint_failed")
    if count:
        saved = step_of(last(others, "checkpoint"))
        since = f"saved again at step {saved:,.0f}" if saved > step_of(row) else "training goes on"
        times = f" {count} times" if count > 1 else ""
        words.append(f"checkpoint not saved{times}, {when} ({row.get('reason') or 'no reason given'}); {since}")
    count, row, when = of("spike")
    if count:
        size = "".join(f", {name} {row[key]:.2f}" for key, name in (("loss", "loss"), ("usual", "usually"))
                       if finite(row.get(key)))  # fmt: skip
        words.append(f"{count} {'spike' if count == 1 else 'spikes'} of the loss, {when}{size}")
    for row in others:
        if row.get("event") == "resume" and row.get("complaints"):
            words.append(f"resumed at step {step_of(row):,.0f}: {'; '.join(map(str, row['complaints']))}")
    return words
