"""Room 04: plain numbers about a run: means, its length, a loss that stands out."""

import itertools
import math

import numpy as np
import pytest

from helpers.train.state import FIRST_GUESS, Progress, RunningMeans, SpikeDetector, StepBudget, early_stop


def test_means_weigh_each_label_the_same():
    means = RunningMeans()
    means.add(loss=8.0, correct=1, labels=2, seconds=0.5)
    means.add(loss=4.0, correct=5, labels=6, seconds=0.25)
    assert means.means(0.5) == {"loss": 1.5, "bits_per_char": 0.75, "accuracy": 0.75}
    assert means.seconds == 0.75
    assert RunningMeans(**vars(means)) == means  # as a checkpoint holds them


@pytest.mark.parametrize(("step", "epoch", "position"), [(0, 0, 0), (3, 0, 24), (4, 1, 0), (5, 1, 8), (12, 3, 0)])
def test_epochs_are_exact_from_wherever_the_run_is(step, epoch, position):
    """25 windows, 8 an update: 4 updates an epoch, the last one smaller."""
    budget = StepBudget(epochs=3, max_minutes=0.0, windows=25, windows_per_update=8, val_tokens=50)
    assert not budget.by_clock
    assert budget.total_steps(Progress(step=step, epoch=epoch, position=position)) == 12
    assert budget.warmup(500, 12) == 500


def test_a_time_budget_follows_the_measured_pace():
    """60 s; 20 are gone, the last validation will take 4: 36 s are left for updates of half a second."""
    budget = StepBudget(epochs=3, max_minutes=1.0, windows=25, windows_per_update=8, val_tokens=50)
    assert budget.by_clock and budget.total_steps(Progress()) == FIRST_GUESS
    budget.update_seconds.extend([0.5, 0.5, 9.0])  # one that was slow changes nothing
    assert budget.total_steps(Progress(step=30, seconds=20.0, validating=4.0, updating=15.0, tokens=900)) == 30 + 72
    assert budget.total_steps(Progress(step=30, seconds=59.0, validating=4.0, updating=15.0, tokens=900)) == 30
    assert budget.warmup(500, 100) == 20 and budget.warmup(5, 100) == 5


def test_a_time_budget_counts_the_validations_on_the_way():
    """60 s, 20 are gone; each update takes half a second, and after every eighth one a validation takes 4."""
    budget = StepBudget(epochs=3, max_minutes=1.0, windows=25, windows_per_update=8, val_tokens=50, eval_step=8)
    budget.update_seconds.append(0.5)
    # 36 s: two updates to update 32, and 32.5 s of the cycles of 4 + 8 × 0.5 s that follow: four, 16 updates each 16 s
    assert budget.total_steps(Progress(step=30, seconds=20.0, validating=4.0, updating=15.0, tokens=900)) == 30 + 34
    # none comes on the way where fewer than eight updates are left
    assert budget.total_steps(Progress(step=24, seconds=54.0, validating=4.0, updating=15.0, tokens=900)) == 24 + 4
    # from one moment to the next, the end moves by what has passed, and by no more
    ends = [
        budget.total_steps(Progress(step=16, seconds=s / 10, validating=4.0, updating=15.0, tokens=900))
        for s in range(560)
    ]
    assert all(0 <= one - two <= 1 for one, two in itertools.pairwise(ends))


def test_before_a_validation_is_measured_it_counts_a_third_of_the_work():
    """A resumed run has no pace yet: the mean since its beginning. 100 tokens/s forward and back, 300 forward only."""
    budget = StepBudget(epochs=3, max_minutes=1.0, windows=25, windows_per_update=8, val_tokens=900)
    assert budget.total_steps(Progress(step=10, seconds=27.0, updating=20.0, tokens=2000)) == 10 + math.ceil(30 / 2)


def test_a_spike_is_noticed_and_noise_is_not():
    random = np.random.default_rng(0)
    spikes = SpikeDetector()
    assert not any(spikes.check(4 - 0.02 * i + 0.05 * random.standard_normal()) for i in range(60))
    assert spikes.check(6.0) == pytest.approx(3.3, abs=0.2)


def test_the_first_losses_are_no_spikes():
    spikes = SpikeDetector()
    assert not any(spikes.check(loss) for loss in [1.0] * 19 + [50.0])


def test_patience_counts_validations_without_a_better_one():
    for stale, patience, ends in ((2, 3, False), (3, 3, True), (9, 0, False)):
        assert bool(early_stop(Progress(step=10, stale=stale), 100, 2.0, patience, [])) == ends


@pytest.mark.parametrize(
    ("step", "bits", "words"),
    [
        (19, 9.0, ""),  # no rung reached yet
        (20, 4.0, ""),
        (20, 4.1, "behind at 20%: 4.100 bits per character, not 4.000"),
        (49, 4.1, "behind at 20%: 4.100 bits per character, not 4.000"),
        (50, 3.9, "behind at 50%: 3.900 bits per character, not 3.000"),  # the higher one counts
        (99, 3.0, ""),
        (60, float("inf"), ""),  # killed before its first validation, and resumed: not judged yet
    ],
)
def test_a_rung_asks_for_so_many_bits_at_a_share_of_the_run(step, bits, words):
    assert early_stop(Progress(step=step), 100, bits, 0, [[0.2, 4.0], [0.5, 3.0]]) == words
