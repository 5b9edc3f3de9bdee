"""What a run knows of itself: where it is, what its updates added up to, how long it will be, when a loss stands out.

Plain numbers that fit into a checkpoint. Knows no model, no data and no file.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field


class RunningMeans:
    """Adds up what updates report, until a row of the log is due."""

    def __init__(self, loss: float = 0.0, correct: float = 0.0, labels: float = 0, seconds: float = 0.0):
        self.loss, self.correct, self.labels, self.seconds = loss, correct, labels, seconds

    def add(self, loss: float, correct: float, labels: int, seconds: float) -> None:
        """Add one update's sums over all processes."""
        self.__init__(self.loss + loss, self.correct + correct, self.labels + labels, self.seconds + seconds)

    def means(self, bits_a_nat: float) -> dict[str, float]:
        """Return loss (nats a token), bits a character and accuracy over all labels, each weighed the same."""
        loss = self.loss / self.labels
        return {"loss": loss, "bits_per_char": loss * bits_a_nat, "accuracy": self.correct / self.labels}


@dataclass
class Progress:
    """Where a run is: with weights and optimizer state all that a checkpoint needs to go on. Times in seconds."""

    step: int = 0  # updates done
    epoch: int = 0  # epochs done
    position: int = 0  # windows done of this epoch
    best: float = math.inf  # lowest validation loss so far
    seconds: float = 0.0  # since the run began, in all sessions
    updating: float = 0.0  # of these in updates
    validating: float = 0.0  # of the last validation
    tokens: int = 0  # learnt from, with repetitions
    skipped: int = 0  # updates without a finite gradient
    in_epoch: dict = field(default_factory=dict)  # RunningMeans of this epoch


class StepBudget:
    """How many updates a run has: exactly so many epochs, or what fits into so many minutes.

    With a time budget the number is estimated anew before each update from the measured pace; so the schedule,
    which is a function of that number, comes to its end when the time does.
    """

    def __init__(self, epochs: int, max_minutes: float, windows: int, per_update: int, val_tokens: int):
        self.epochs, self.seconds = epochs, 60 * max_minutes
        self.windows, self.per_update, self.val_tokens = windows, per_update, val_tokens
        self.pace: deque = deque(maxlen=20)  # seconds of the last updates

    def total(self, at: Progress) -> int:
        """Return the number of the run's last update, seen from where it is."""
        if not self.seconds:
            rest = math.ceil((self.windows - at.position) / self.per_update) if at.epoch < self.epochs else 0
            return at.step + rest + max(0, self.epochs - at.epoch - 1) * math.ceil(self.windows / self.per_update)
        if not at.step:
            return 1000  # nothing is measured yet: somewhere in the warm-up
        pace = statistics.median(self.pace) if self.pace else at.updating / at.step
        # the last validation is part of the time; until one is measured: forward only, a third of the work
        validating = at.validating or self.val_tokens / 3 * at.updating / at.tokens
        return at.step + max(0, round((self.seconds - at.seconds - validating) / pace))

    def warmup(self, warmup_steps: int, total_steps: int) -> int:
        """Return the updates of warm-up; in a time budget at most a fifth, for nobody can know their number before."""
        return min(warmup_steps, total_steps // 5) if self.seconds else warmup_steps


class SpikeDetector:
    """Notices an update whose loss stands out from those before it."""

    def __init__(self):
        self.losses: deque = deque(maxlen=50)

    def usual(self, loss: float) -> float | None:
        """Take the next loss; return the mean of those before it if this one is a spike, else None."""
        before = list(self.losses)
        self.losses.append(loss)
        if len(before) < 20:
            return None
        usual = statistics.mean(before)
        return usual if loss - usual > max(5 * statistics.stdev(before), 0.1 * usual) else None
