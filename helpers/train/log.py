"""The log of a training run: `metrics.jsonl`, one row per event, and the same curves for TensorBoard.

A row of an update holds loss, learning rate, gradient norm, throughput (tokens per second), memory and more. Also here
are the plain numbers of rows: running means, and what makes a loss spike. Knows no model and no data.
"""

import contextlib
import json
import statistics
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CURVES = ("step", "validation", "epoch")  # events whose numbers make curves
SPIKE_MEMORY, SPIKE_MINIMUM = 50, 20  # updates that a loss is compared with, at most and at least
# how far above their mean: 5 standard deviations, and 10 % of it, for late in a run the deviations are tiny
SPIKE_DEVIATIONS, SPIKE_FRACTION = 5, 0.1


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each number in a row; of a list of numbers `name/0`, `name/1`, …"""
    for name, value in row.items():
        if isinstance(value, list | tuple):
            yield from scalars({f"{name}/{i}": each for i, each in enumerate(value)})
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


class MetricsLog:
    """Appends rows to `metrics.jsonl` and the same scalars to TensorBoard; only a process that `writes` does so."""

    def __init__(self, folder: Path, writes: bool):
        self.writes = writes
        self.board: Any = None  # TensorBoard's
        if writes:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only where it is used

            self.file = open(folder / "metrics.jsonl", "a+", encoding="utf-8")
            self.file.seek(0)
            if (text := self.file.read()) and not text.endswith("\n"):  # a run was killed while it wrote a row
                self.file.write("\n")
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, event: str, **row: Any) -> None:
        """Write one row; numbers of a step also go to TensorBoard under `event/name`."""
        if not self.writes:
            return
        with contextlib.suppress(OSError):  # a full disk costs a line of the log, not the run
            self.file.write(json.dumps({"event": event, **row}, ensure_ascii=False) + "\n")
            self.file.flush()
        if event in _CURVES and self.board:
            with self._goes_on_without_board(f"step {row['step']}"):
                for name, value in scalars(row):
                    if name != "step":
                        self.board.add_scalar(f"{event}/{name}", value, row["step"])

    def close(self) -> None:
        """Close the file and the board."""
        if self.writes:
            with contextlib.suppress(OSError):
                self.file.close()
        if self.board:
            with self._goes_on_without_board("the end"):
                self.board.close()

    @contextlib.contextmanager
    def _goes_on_without_board(self, when: str) -> Iterator[None]:
        """Let a board that fails go, also by what its own thread met: training is not to end with it."""
        try:
            yield
        except Exception as error:
            print(f"TensorBoard failed at {when} and gets no more ({error}); training goes on", file=sys.stderr)
            self.board = None


# ---- the numbers of a row ----


@dataclass
class RunningMeans:
    """Sums over several updates and all processes, for means in which each label counts the same."""

    loss: float = 0.0  # summed cross-entropy, nats
    correct: float = 0.0  # right first guesses
    labels: int = 0
    seconds: float = 0.0

    def add(self, loss: float, correct: float, labels: int, seconds: float) -> None:
        """Add one update's sums."""
        self.loss += loss
        self.correct += correct
        self.labels += labels
        self.seconds += seconds

    def means(self, bits_per_char: float) -> dict[str, float]:
        """Return loss (nats per token), bits per character and accuracy; a nat per token is `bits_per_char`."""
        loss = self.loss / self.labels
        return {"loss": loss, "bits_per_char": loss * bits_per_char, "accuracy": self.correct / self.labels}


class SpikeDetector:
    """Detects a loss spike: an update whose loss stands out from those before it."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=SPIKE_MEMORY)

    def check(self, loss: float) -> float | None:
        """Take the next loss; return the mean of those before it if this one is a spike, else None."""
        before = list(self.losses)
        self.losses.append(loss)
        if len(before) < SPIKE_MINIMUM:
            return None
        usual = statistics.mean(before)
        allowed = max(SPIKE_DEVIATIONS * statistics.stdev(before), SPIKE_FRACTION * usual)
        return usual if loss - usual > allowed else None
