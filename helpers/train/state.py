"""The state of a training run: progress, running means, step budget, loss spikes, and when to end early.

Plain numbers that fit into a checkpoint. Knows no model, no data and no file.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SPIKE_MEMORY, SPIKE_MINIMUM = 50, 20  # updates that a loss is compared with, at most and at least
# how far above their mean: 5 standard deviations, and 10 % of it, for late in a run the deviations are tiny
SPIKE_DEVIATIONS, SPIKE_FRACTION = 5, 0.1
FIRST_GUESS = 1000  # total of a time budget before an update is measured: large, so that the first is in the warm-up
PACE_UPDATES = 20  # last updates whose median time is the pace


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


@dataclass
class Progress:
    """Where a run is: with weights and optimizer state all that a checkpoint needs to go on. Times in seconds."""

    step: int = 0  # updates done
    epoch: int = 0  # epochs done
    position: int = 0  # windows done of this epoch
    best: float = math.inf  # lowest validation loss so far
    stale: int = 0  # validations since then
    unjudged: bool = False  # a validation is due, and the run was stopped before it
    seconds: float = 0.0  # since the run began, in all sessions
    updating: float = 0.0  # of these in updates
    validating: float = 0.0  # of the last validation
    tokens: int = 0  # learnt from, with repetitions
    skipped: int = 0  # updates without a finite gradient
    in_epoch: dict = field(default_factory=dict)  # RunningMeans of this epoch


class StepBudget:
    """How many updates a run has: exactly so many epochs, or what fits into so many minutes.

    With a time budget the number is estimated again before each update from the measured pace; so the schedule,
    which is a function of that number, comes to its end when the time does.
    """

    def __init__(
        self,
        epochs: int,
        max_minutes: float,
        windows: int,
        windows_per_update: int,
        val_tokens: int,
        eval_step: int = 0,
    ):
        """val_tokens: of a validation, of which there is one after each `eval_step` updates (0: none), and one more."""
        self.epochs, self.limit = epochs, 60 * max_minutes  # seconds; 0 means that epochs decide
        self.eval_step = eval_step
        self.by_clock = max_minutes > 0
        self.windows, self.windows_per_update, self.val_tokens = windows, windows_per_update, val_tokens
        self.update_seconds: deque[float] = deque(maxlen=PACE_UPDATES)

    def total_steps(self, progress: Progress) -> int:
        """Return the number of the run's last update, seen from where the run is."""
        if not self.by_clock:
            if progress.epoch >= self.epochs:
                return progress.step
            rest = math.ceil((self.windows - progress.position) / self.windows_per_update)
            per_epoch = math.ceil(self.windows / self.windows_per_update)
            return progress.step + rest + (self.epochs - progress.epoch - 1) * per_epoch
        if not progress.step:
            return FIRST_GUESS
        pace = statistics.median(self.update_seconds) if self.update_seconds else progress.updating / progress.step
        # validations are part of the time; until one is measured: forward only, a third of the work
        validating = progress.validating or self.val_tokens / 3 * progress.updating / progress.tokens
        left = self.limit - progress.seconds - validating
        return progress.step + max(0, round(self._updates_in(left, pace, validating, progress.step)))

    def _updates_in(self, seconds: float, pace: float, validating: float, step: int) -> float:
        """Return how many updates fit into so many seconds beside the validations on the way, begun after `step`."""
        first = self.eval_step - step % self.eval_step if self.eval_step else math.inf  # updates to the next validation
        if seconds <= first * pace:
            return seconds / pace
        # of each validation and the updates up to the next one; in the last cycle perhaps only a part of either
        cycles, rest = divmod(seconds - first * pace, validating + self.eval_step * pace)
        return first + cycles * self.eval_step + max(0.0, rest - validating) / pace

    def warmup(self, warmup_steps: int, total_steps: int) -> int:
        """Return the updates of warm-up; by the clock at most a fifth, because the total is not known in advance."""
        return min(warmup_steps, total_steps // 5) if self.by_clock else warmup_steps


def early_stop(
    progress: Progress, total_steps: int, bits_per_char: float, patience: int, rungs: Sequence[Sequence[float]]
) -> str:
    """Return why a run should end before its last update, "" if it should not.

    bits_per_char: its best validation, infinite before the first one. It ends after `patience` validations without a
    better one (0: never), and where it has passed a share of its updates without having come down to the bits of that
    rung: successive halving (Li et al. 2020) gives each run rungs that the better half of the others has reached.
    """
    if patience and progress.stale >= patience:
        return f"no better for {progress.stale} validations"
    if bits_per_char == math.inf:  # not judged yet: a run that was killed before its first validation goes on
        return ""
    for share, most in sorted(rungs, key=lambda rung: rung[0], reverse=True):
        if progress.step >= share * total_steps:  # the highest rung that it has passed
            hopeless = bits_per_char > most
            return f"behind at {share:.0%}: {bits_per_char:.3f} bits per character, not {most:.3f}" if hopeless else ""
    return ""


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
