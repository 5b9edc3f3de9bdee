"""Read a run's metrics.jsonl while it grows.

A row may lack any field, a number may be NaN or null, the file may be half written or gone: what can be read is
returned, and nothing is raised for the rest.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

from helpers import paths
from helpers.files import log_rows

Metrics = str | Path | Sequence[Mapping]  # rows, or where they are: a file, a folder, a run's name


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


def step_of(row: Mapping) -> float:
    """Return a row's step, or 0 if it has none."""
    return row["step"] if finite(row.get("step")) else 0


def last(rows: Sequence[Mapping], event: str) -> Mapping:
    """Return the last row of an event, or an empty one."""
    return next((row for row in reversed(rows) if row.get("event") == event), {})


def locate(run: str | Path) -> Path:
    """Return the metrics.jsonl of a run, given that file, a folder that holds it, a run's folder or a run's name."""
    path = Path(run)
    if path.suffix == ".jsonl":
        return path
    if path.is_dir():
        inner = path / paths.STAGES["train"][1] / "metrics.jsonl"
        return inner if inner.parent.is_dir() else path / "metrics.jsonl"
    if isinstance(run, Path) or len(path.parts) > 1:
        raise FileNotFoundError(f"{run} is no folder and no metrics.jsonl: give the file that notebook 04_train writes")
    return paths.room(str(run), "train") / "metrics.jsonl"


def read_metrics(run: str | Path) -> list[dict]:
    """Return the rows of a metrics.jsonl; after a resume, steps that were taken again replace the older ones.

    `run` is the file, a folder, or a run's name. Raises FileNotFoundError if there is no such file.
    """
    path = locate(run)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: notebook 04_train writes it")
    tail = Tail(path)
    tail.read()
    return tail.rows


def rows_of(metrics: Metrics) -> Sequence[Mapping]:
    """Return rows as they are, or those of a file or a run."""
    return read_metrics(metrics) if isinstance(metrics, str | Path) else list(metrics)


def planned_steps(rows: Sequence[Mapping], otherwise: int = 0) -> int:
    """Return how many steps the run will have according to its newest row: with a time budget, the number changes."""
    totals = (row["total_steps"] for row in reversed(rows) if finite(row.get("total_steps")))
    return int(next(totals, otherwise))
