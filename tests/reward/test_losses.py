"""GRPO against the exact gradient of the expected reward, and which groups give a pair; more is in test_trl.py."""

import random

import numpy as np
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
