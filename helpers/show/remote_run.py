"""A training run of another process or machine, watched and stopped through the folder of its metrics.jsonl."""

import contextlib
import time
from pathlib import Path

from helpers.show.metrics_file import Tail, last, locate
from helpers.wording import duration

PATIENCE = 600.0  # seconds without a row after which a run counts as dead


class RemoteRun:
    """A run of which only its metrics.jsonl is known; it has what the dashboard needs of a `Training`.

    It counts as running until its file has an `end`, or until no row has come for `patience` seconds.
    """

    total_steps = 0  # not known: the rows say it

    def __init__(self, metrics_path: Path, patience: float = PATIENCE):
        self.metrics_path, self.patience = metrics_path, patience
        self._tail = Tail(metrics_path)
        self._changed = time.monotonic()  # or before: when rows are first seen, the date of their file counts

    @property
    def running(self) -> bool:
        """Return whether more rows can be expected."""
        first = not self._tail.rows
        if self._tail.read():
            self._changed = time.monotonic()
            with contextlib.suppress(OSError):  # moved away in this moment
                age = time.time() - self.metrics_path.stat().st_mtime
                self._changed -= max(0.0, age) if first else 0.0
        return not self._ended and self.quiet < self.patience

    @property
    def _ended(self) -> bool:
        return bool(last(self._tail.rows, "end"))

    @property
    def quiet(self) -> float:
        """Seconds since the last new row."""
        return time.monotonic() - self._changed

    @property
    def complaint(self) -> str:
        """Why the watching ended although the run did not say that it ended; empty if it did."""
        going_on = self.running
        if self._ended:
            return ""
        if not self._tail.rows:
            waited = duration(self.quiet)
            return f"no {self.metrics_path.name} came in {waited}: has the run started, and is its name correct?"
        if going_on:
            return "no longer watched, the run goes on; attach to it again to see more"
        return f"no new row for {duration(self.quiet)}: the run was killed or hangs; start it again to resume it"

    def stop(self) -> None:
        """Ask the run to save and end, by a file STOP beside its metrics."""
        (self.metrics_path.parent / "STOP").touch()

    def wait(self) -> None:
        """Return at once: the run's results and errors stay in its own process, and it may go on unwatched."""


def attach(run: str | Path, patience: float = PATIENCE) -> RemoteRun:
    """Return a run of another process, to be watched: `await watch(attach("runs/x/model"))`.

    `run` is a metrics.jsonl (it need not be there yet), a folder that holds it, a run's folder, or a run's name. The
    Stop button puts a file STOP beside it; stopping the cell only ends the watching.
    """
    return RemoteRun(locate(run), patience)
