"""A training run of another process or machine, watched and stopped through the folder of its metrics.jsonl."""

import math
import time
from pathlib import Path

from helpers.show.metrics_file import locate, parse_row
from helpers.wording import duration

PATIENCE = 600.0  # seconds without a row after which a run counts as dead
_TAIL = 2**18  # bytes at the end of the file in which its last events are looked for
_OVER, _GOING = ("end",), ("start", "resume", "step", "validation")


class RemoteRun:
    """A run of which only its metrics.jsonl is known; it has what `dashboard.Training` asks for.

    It counts as running until its file has an `end`, or until no row has come for `patience` seconds.
    """

    def __init__(self, metrics_path: Path, patience: float = PATIENCE):
        self.metrics_path, self.patience = metrics_path, patience
        self._state: tuple[int, int] | None = None  # inode and size of the file when it was last read
        self._ended = False
        self._changed = time.monotonic()  # or before: when the file is first seen, its own date counts
        self._look()

    def _look(self) -> None:
        """Note whether the file has changed, and whether its last events say that the run has ended."""
        try:
            status = self.metrics_path.stat()
            state = (status.st_ino, status.st_size)
            if state == self._state:
                return
            with open(self.metrics_path, "rb") as file:
                file.seek(max(0, status.st_size - _TAIL))
                lines = file.read().splitlines()
        except OSError:  # not there yet, or moved away
            return
        age = max(0.0, time.time() - status.st_mtime) if self._state is None else 0.0
        self._state, self._changed = state, time.monotonic() - age
        events = (parse_row(line).get("event") for line in reversed(lines))
        self._ended = next((event for event in events if event in _OVER + _GOING), None) in _OVER

    @property
    def total_steps(self) -> int:
        """0, for not known: the rows say it."""
        return 0

    @property
    def running(self) -> bool:
        """Return whether more rows can be expected."""
        self._look()
        return not self._ended and self.quiet < self.patience

    @property
    def quiet(self) -> float:
        """Seconds since the file last grew."""
        return time.monotonic() - self._changed

    @property
    def complaint(self) -> str:
        """Why the watching ended although the run did not say that it ended; empty if it did."""
        if self._ended:
            return ""
        if self._state is None:
            return f"no {self.metrics_path.name} came in {duration(self.quiet)}: is the run started, is the name right?"
        if self.running:
            return "no longer watched, the run goes on; attach to it again to see more"
        return f"no new row for {duration(self.quiet)}: the run was killed or hangs; start it again to resume it"

    def stop(self) -> None:
        """Ask the run to save and end, by a file STOP beside its metrics."""
        (self.metrics_path.parent / "STOP").touch()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the run has ended, or `timeout` seconds; its results and errors stay in its own process."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self.running and time.monotonic() < until:
            time.sleep(0.2)


def attach(run: str | Path, patience: float = PATIENCE) -> RemoteRun:
    """Return a run of another process, to be watched: `await watch(attach("runs/x/model"))`.

    `run` is a metrics.jsonl (it need not be there yet), a folder that holds it, a run's folder, or a run's name. The
    Stop button puts a file STOP beside it; stopping the cell only ends the watching. A run that writes nothing for
    `patience` seconds counts as dead.
    """
    return RemoteRun(locate(run), patience)
