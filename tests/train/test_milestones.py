"""Room 04: how long a run is (test_trainer: what a run does between updates)."""

import itertools
import math

import pytest

from helpers.train.milestones import FIRST_GUESS, Progress, StepBudget
from helpers.train.settings import TrainSettings


def budget_of(max_minutes, val_tokens=50, eval_step=0):
    """Return the budget of 25 windows, 8 an update."""
    return StepBudget(TrainSettings(epochs=3, max_minutes=max_minutes, eval_step=eval_step), 25, 8, val_tokens)


@pytest.mark.parametrize(("step", "epoch", "position"), [(0, 0, 0), (3, 0, 24), (4, 1, 0), (5, 1, 8), (12, 3, 0)])
def test_epochs_are_exact_from_wherever_the_run_is(step, epoch, position):
    """25 windows, 8 an update: 4 updates an epoch, the last one smaller."""
    budget = budget_of(0.0)
    assert not budget.by_clock
    assert budget.total_steps(Progress(step=step, epoch=epoch, position=position)) == 12
    assert budget.warmup(500, 12) == 500


def test_a_time_budget_follows_the_measured_pace():
    """60 s; 20 are gone, the last validation will take 4: 36 s are left for updates of half a second."""
    budget = budget_of(1.0)
    assert budget.by_clock and budget.total_steps(Progress()) == FIRST_GUESS
    budget.update_seconds.extend([0.5, 0.5, 9.0])  # one that was slow changes nothing
    assert budget.total_steps(Progress(step=30, seconds=20.0, validating=4.0, updating=15.0, tokens=900)) == 30 + 72
    assert budget.total_steps(Progress(step=30, seconds=59.0, validating=4.0, updating=15.0, tokens=900)) == 30
    assert budget.warmup(500, 100) == 20 and budget.warmup(5, 100) == 5


def test_a_time_budget_counts_the_validations_on_the_way():
    """60 s, 20 are gone; each update takes half a second, and after every eighth one a validation takes 4."""
    budget = budget_of(1.0, eval_step=8)
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
    budget = budget_of(1.0, val_tokens=900)
    assert budget.total_steps(Progress(step=10, seconds=27.0, updating=20.0, tokens=2000)) == 10 + math.ceil(30 / 2)
