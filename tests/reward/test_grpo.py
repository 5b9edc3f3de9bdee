"""The group-relative step against numpy by hand, and against the exact gradient of the expected reward."""

import random

import numpy as np
import pytest
import torch

from helpers.corpus import built_in
from helpers.reward import grpo
from helpers.reward.policy import Scored
from helpers.reward.rollout import Group, Opening

QUESTION = built_in.ask_story(built_in.combinations()[0], random.Random(0))


def group(endings, rewards):
    return Group(Opening(QUESTION, [1, 2, 3], "它"), endings, ["" for _ in endings], rewards)


def scored(logits, endings):
    """Score endings whose tokens are drawn independently from one row of logits."""
    ids = torch.tensor([i for ending in endings for i in ending])
    log_p = logits.log_softmax(-1).expand(len(ids), -1)
    owner = torch.tensor([n for n, ending in enumerate(endings) for _ in ending])
    return Scored(log_p, log_p.gather(1, ids[:, None])[:, 0], owner)


def test_advantages_are_what_is_above_the_mean():
    assert grpo.advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert grpo.advantages([1.0, 1.0]) == [0.0, 0.0]
    assert sum(grpo.advantages([1.0, 0.0, 0.0])) == pytest.approx(0)


def test_equal_endings_stand_once_and_weigh_together():
    branch, weights = grpo.distinct(group([[5, 6], [7], [5, 6], [7]], [1.0, 0.0, 1.0, 1.0]))
    assert branch == ([1, 2, 3], [(5, 6), (7,)])
    assert weights == pytest.approx([0.25 + 0.25, -0.75 + 0.25])


def test_the_step_by_hand():
    endings, rewards = [[0, 2], [1], [0, 2], [3, 3, 1]], [1.0, 0.0, 1.0, 0.0]
    logits = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64, requires_grad=True)
    (_, distinct), weights = grpo.distinct(group(endings, rewards))
    loss = grpo.policy_loss(scored(logits, distinct), weights, len(endings))
    loss.backward()
    # the same in numpy, answer by answer: d/dz Σ_t log p(x_t) = counts − length · p
    z = logits.detach().numpy()
    p = np.exp(z) / np.exp(z).sum()
    advantage = np.array(rewards) - np.mean(rewards)
    value = -sum(a * sum(np.log(p[i]) for i in ending) for a, ending in zip(advantage, endings, strict=True)) / 4
    gradient = -sum(
        a * (np.bincount(ending, minlength=4) - len(ending) * p) for a, ending in zip(advantage, endings, strict=True)
    )
    assert loss.item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(logits.grad.numpy(), gradient / 4, rtol=1e-12)


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
        (_, distinct), weights = grpo.distinct(group([[i] for i in drawn], [float(rewards[i]) for i in drawn]))
        loss = grpo.policy_loss(scored(logits, distinct), weights, size)
        (gradient,) = torch.autograd.grad(loss, logits)
        mean -= p[list(drawn)].prod() * gradient
    torch.testing.assert_close(mean, exact * (size - 1) / size, rtol=1e-10, atol=1e-12)


def test_a_group_without_differences_moves_nothing():
    same = group([[1], [2]], [1.0, 1.0])
    assert not same.mixed and same.mean == 1.0
    logits = torch.zeros(4, requires_grad=True)
    (_, distinct), weights = grpo.distinct(same)
    grpo.policy_loss(scored(logits, distinct), weights, 2).backward()
    assert not logits.grad.any()
