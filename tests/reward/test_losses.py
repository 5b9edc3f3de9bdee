"""GRPO and DPO against numpy by hand, and GRPO against the exact gradient of the expected reward."""

import math
import random

import numpy as np
import pytest
import torch

from helpers.corpus import built_in
from helpers.reward import losses
from helpers.reward.policy import EndingScores
from helpers.reward.rollout import AnswerOpening, Group

QUESTION = built_in.ask_story(built_in.combinations()[0], random.Random(0))


def group(endings, rewards):
    return Group(AnswerOpening(QUESTION, [1, 2, 3], "它"), endings, ["" for _ in endings], rewards)


def scored(logits, endings):
    """Score endings whose tokens are drawn independently from one row of logits."""
    ids = torch.tensor([i for ending in endings for i in ending])
    log_p = logits.log_softmax(-1).expand(len(ids), -1)
    owner = torch.tensor([n for n, ending in enumerate(endings) for _ in ending])
    return EndingScores(log_p, log_p.gather(1, ids[:, None])[:, 0], owner)


def test_equal_endings_stand_once_and_weigh_together():
    branch, weights = losses.distinct_endings(group([[5, 6], [7], [5, 6], [7]], [1.0, 0.0, 1.0, 1.0]))
    assert branch == ([1, 2, 3], [(5, 6), (7,)])
    assert weights == pytest.approx([0.25 + 0.25, -0.75 + 0.25])


def test_on_average_it_is_the_gradient_of_the_expected_reward():
    """Enumerated, not sampled: all groups of three answers, each with its probability.

    Subtracting the group's own mean shrinks the gradient by (size − 1) / size, and leaves its direction as it is.
    """
    logits = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    (exact,) = torch.autograd.grad((logits.softmax(-1) * rewards).sum(), logits)
    p, size = logits.detach().softmax(-1), 3
    mean = torch.zeros(3, dtype=torch.float64)
    for drawn in np.ndindex(3, 3, 3):
        (_, distinct), weights = losses.distinct_endings(
            group([[i] for i in drawn], [float(rewards[i]) for i in drawn])
        )
        loss = losses.policy_loss(scored(logits, distinct), weights, size)
        (gradient,) = torch.autograd.grad(loss, logits)
        mean -= p[list(drawn)].prod() * gradient
    torch.testing.assert_close(mean, exact * (size - 1) / size, rtol=1e-10, atol=1e-12)


def test_only_mixed_groups_give_a_pair():
    rewards = [1.0, 1.0], [0.0, 0.0], [0.0, 1.0, 0.0, 1.0]
    found = losses.preference_pairs(group([[10], [11], [12], [13]][: len(each)], each) for each in rewards)
    assert found == [losses.Pair([1, 2, 3], [11], [10])]
    assert found[0].branch == ([1, 2, 3], ([11], [10]))


def test_totals_are_sums_per_ending():
    scores = EndingScores(torch.zeros(4, 2), torch.tensor([-1.0, -2.0, -4.0, -8.0]), torch.tensor([0, 0, 1, 2]))
    assert losses.ending_totals(scores, 3).tolist() == [-3.0, -4.0, -8.0]


def test_the_preference_loss_by_hand():
    policy, reference = np.array([-3.0, -2.5, -1.0, -4.0]), np.array([-3.5, -2.0, -2.0, -2.0])
    margins = 0.3 * np.array([(0.5) - (-0.5), (1.0) - (-2.0)])
    by_hand = np.mean(np.log1p(np.exp(-margins)))
    loss = losses.preference_loss(torch.tensor(policy), torch.tensor(reference), 0.3)
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)


def test_at_the_start_both_are_as_likely_as_before_and_the_winner_is_pulled_up():
    policy = torch.tensor([-3.0, -2.0], requires_grad=True)
    loss = losses.preference_loss(policy, policy.detach(), 0.1)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert policy.grad.tolist() == pytest.approx([-0.05, 0.05])  # β σ(0), downhill is up for the first
