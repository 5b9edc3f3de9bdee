"""A run's metrics.jsonl: read while it grows, put in words, and followed when another process writes it.

Knows nothing of figures or widgets, nor of how a run comes by its numbers. A row may lack any field, a number may be
NaN or null, the file may be half written or gone: whoever reads here gets what there is.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers import paths
from helpers.wording import duration

PATIENCE = 600.0  # seconds without a row after which a run elsewhere counts as dead
END = 2**18  # bytes from the end of a file in which its last events are looked for
_OVER, _GOING = ("end",), ("start", "resume", "step", "validation")


class Tail:
    """The rows of a metrics.jsonl that is still being written; `read` costs only what is new."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows: list[dict] = []
        self._offset, self._file = 0, None

    def read(self) -> list[dict]:
        """Add what was written since the last call to `rows` and return it; a half-written last line waits."""
        try:
            with open(self.path, "rb") as file:
                which = os.fstat(file.fileno()).st_ino
                if file.seek(0, os.SEEK_END) < self._offset or which != self._file:  # the file was begun anew
                    self._offset, self._file, self.rows = 0, which, []
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except (PermissionError, IsADirectoryError):
            raise
        except OSError:  # not written yet, or moved away, or the network's disk is off for a moment
            return []
        self._offset += len(whole) + len(newline)
        new = []
        for line in whole.splitlines():
            row = parsed(line)
            if not row:
                continue
            new.append(row)
            if row.get("event") in ("resume", "start") and finite(row.get("step")):  # what came after is done again
                self.rows = [old for old in self.rows if step_of(old) <= row["step"] and old.get("event") != "end"]
            self.rows.append(row)
        return new


def parsed(line: bytes) -> dict:
    """Return a line's row, or an empty one where it was cut short by a crash."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def finite(value: object) -> bool:
    """Whether a field holds a number that can be drawn: not missing, not null, not NaN, not infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def step_of(row: Mapping) -> float:
    """Return a row's step, 0 where it has none."""
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
    """Return the rows of a metrics.jsonl; where a run was resumed, the steps it took again replace the older ones.

    `run` is the file, a folder, or a run's name. Raises FileNotFoundError if nothing is there.
    """
    path = locate(run)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: notebook 04_train writes it")
    tail = Tail(path)
    tail.read()
    return tail.rows


def rows_of(metrics: str | Path | Sequence[Mapping]) -> list[Mapping]:
    """Return rows as they are, or those of a file or a run."""
    return read_metrics(metrics) if isinstance(metrics, str | Path) else list(metrics)


# ---------------------------------------------------------------- in words


def bytes_in_words(n: float) -> str:
    """Return a number of bytes in words: 740 MB, 2.1 GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def planned(rows: Sequence[Mapping], otherwise: int = 0) -> int:
    """Return how many steps the run is to have, as its newest row says it: under a time budget that changes."""
    found = (row["total_steps"] for row in reversed(rows) if finite(row.get("total_steps")))
    return int(next(found, otherwise))


def place(step: float, total: int) -> str:
    """Return "step 3 of 10", or "step 3" where the end is not known."""
    return f"step {step:,.0f} of {total:,}" if total else f"step {step:,.0f}"


def progress(rows: Sequence[Mapping], total_steps: int = 0) -> str:
    """Return the state of a run in one line; `total_steps` counts where no row has it."""
    step, validation = last(rows, "step"), last(rows, "validation")
    parts = [place(step_of(step), planned(rows, total_steps))]
    for name, row in (("training", step), ("validation", validation)):
        if finite(row.get("bits_per_char")):
            parts.append(f"{name} {row['bits_per_char']:.3f} bits/char")
    if finite(step.get("tokens_per_second")):
        share = f" ({100 * step['mfu']:.0f} % of the machine's peak)" if finite(step.get("mfu")) else ""
        parts.append(f"{step['tokens_per_second']:,.0f} tokens/s{share}")
    if finite(step.get("memory")):
        parts.append(bytes_in_words(step["memory"]))
    if finite(step.get("seconds_left")):
        parts.append(f"{duration(step['seconds_left'])} left")
    return " · ".join(parts)


def summary(rows: Sequence[Mapping], total_steps: int = 0, floor: float | None = None) -> str:
    """Return how a run ended, in one line."""
    end, step, validation = last(rows, "end"), last(rows, "step"), last(rows, "validation")
    total, done = planned(rows, total_steps), step_of(end) or step_of(step)
    if not end:
        how = "broke off"  # the run wrote no last row: it raised an error, or was killed
    elif not end.get("reason"):
        how = "finished" if done >= total else "stopped"
    else:
        how = end["reason"] if end["reason"] in ("finished", "stopped") else f"ended ({end['reason']})"
    parts = [f"{how} at {place(done, total)}"]
    if finite(end.get("seconds")):
        parts.append(duration(end["seconds"]))
    if finite(validation.get("bits_per_char")):
        bits = validation["bits_per_char"]
        above = f", {100 * (bits / floor - 1):.0f} % above the floor" if floor else ""
        parts.append(f"validation {bits:.3f} bits/char{above}")
    return " · ".join(parts)


def troubles(rows: Sequence[Mapping]) -> list[str]:
    """Return in words what went wrong so far, a sentence a kind: a spike, a skipped update, a full disk …"""
    others = [row for row in rows if row.get("event") != "step"]  # few

    def of(event: str) -> tuple[list[Mapping], Mapping, str]:
        found = [row for row in others if row.get("event") == event]
        newest = found[-1] if found else {}
        return found, newest, f"{'last ' if len(found) > 1 else ''}at step {step_of(newest):,.0f}"

    words = []
    found, newest, when = of("skipped")
    counted = last(rows, "step").get("skipped")
    if n := max(len(found), int(counted) if finite(counted) else 0):
        detail = f", {when} ({newest.get('reason') or 'no reason given'})" if found else ""
        words.append(f"{n} {'update' if n == 1 else 'updates'} skipped, no weight changed{detail}")
    found, newest, when = of("out_of_memory")
    if found:
        words.append(f"out of memory {when}: a micro-batch now has {newest.get('micro_batch', 'fewer')} windows")
    found, newest, when = of("checkpoint_failed")
    if found:
        since = last(others, "checkpoint")
        again = f"saved again at step {step_of(since):,.0f}" if step_of(since) > step_of(newest) else "training goes on"
        times = f" {len(found)} times" if len(found) > 1 else ""
        words.append(f"checkpoint not saved{times}, {when} ({newest.get('reason') or 'no reason given'}); {again}")
    found, newest, when = of("spike")
    if found:
        size = "".join(f", {name} {newest[key]:.2f}" for key, name in (("loss", "loss"), ("usual", "usually"))
                       if finite(newest.get(key)))  # fmt: skip
        words.append(f"{len(found)} {'spike' if len(found) == 1 else 'spikes'} of the loss, {when}{size}")
    for row in others:
        if row.get("event") == "resume" and row.get("complaints"):
            words.append(f"resumed at step {step_of(row):,.0f}: {'; '.join(map(str, row['complaints']))}")
    return words


# ---------------------------------------------------------------- a run in another process


class Attached:
    """A run that some other process or machine trains, known by its metrics.jsonl alone; as `Training`, to watch it.

    It runs until its file has an `end`, or until no row came for `patience` seconds.
    """

    def __init__(self, metrics_path: Path, patience: float = PATIENCE):
        self.metrics_path, self.patience = metrics_path, patience
        self._seen: tuple | None = None
        self._ended = False
        self._changed = time.monotonic()  # or before: when the file is first seen, its own date counts
        self._look()

    def _look(self) -> None:
        """Take note of whether the file changed, and whether its last events say that the run is over."""
        try:
            found = self.metrics_path.stat()
            state = (found.st_ino, found.st_size)
            if state == self._seen:
                return
            with open(self.metrics_path, "rb") as file:
                file.seek(max(0, found.st_size - END))
                lines = file.read().splitlines()
        except OSError:  # not there yet, or moved away: the patience runs
            return
        age = max(0.0, time.time() - found.st_mtime) if self._seen is None else 0.0
        self._seen, self._changed = state, time.monotonic() - age
        events = (parsed(line).get("event") for line in reversed(lines))
        self._ended = next((event for event in events if event in _OVER + _GOING), None) in _OVER

    @property
    def total_steps(self) -> int:
        """0: the rows say it."""
        return 0

    @property
    def running(self) -> bool:
        """Say whether more rows can be expected."""
        self._look()
        return not self._ended and self.quiet < self.patience

    @property
    def quiet(self) -> float:
        """Seconds since the file last grew."""
        return time.monotonic() - self._changed

    @property
    def complaint(self) -> str:
        """Why the watching ended if the run did not say that it ended, in words; else nothing."""
        if self._ended:
            return ""
        if self._seen is None:
            return f"no {self.metrics_path.name} came in {duration(self.quiet)}: is the run started, is the name right?"
        if self.running:
            return "no longer watched, the run goes on; attach to it again to see more"
        return f"no new row for {duration(self.quiet)}: the run was killed or hangs; start it again to resume it"

    def stop(self) -> None:
        """Ask the run to save and end, by a file STOP beside its metrics."""
        (self.metrics_path.parent / "STOP").touch()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run has ended (or `timeout` seconds); its figures and errors stay with who trains it."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self.running and time.monotonic() < until:
            time.sleep(0.2)


def attach(run: str | Path, patience: float = PATIENCE) -> Attached:
    """Return a handle on a run in another process, to be watched: `await watch(attach("runs/x/model"))`.

    `run` is a metrics.jsonl (it may not be there yet), a folder that holds it, a run's folder, or a run's name. The
    Stop button puts a file STOP beside it; stopping the cell only ends the watching. A run that writes nothing for
    `patience` seconds is given up.
    """
    return Attached(locate(run), patience)
