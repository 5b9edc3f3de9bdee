"""Preference pairs and their loss, against numpy by hand."""

import math
import random

import numpy as np
import pytest
import torch

from helpers.corpus import built_in
from helpers.reward import dpo
from helpers.reward.policy import Scored
from helpers.reward.rollout import Group, Opening

QUESTION = built_in.ask_story(built_in.combinations()[0], random.Random(0))


def group(rewards):
    endings = [[10 + i] for i in range(len(rewards))]
    return Group(Opening(QUESTION, [1, 2], "它"), endings, ["" for _ in endings], rewards)


def test_only_mixed_groups_give_a_pair():
    found = dpo.pairs([group([1.0, 1.0]), group([0.0, 0.0]), group([0.0, 1.0, 0.0, 1.0])])
    assert found == [dpo.Pair([1, 2], [11], [10])]
    assert found[0].branch == ([1, 2], ([11], [10]))


def test_totals_are_sums_per_ending():
    scored = Scored(torch.zeros(4, 2), torch.tensor([-1.0, -2.0, -4.0, -8.0]), torch.tensor([0, 0, 1, 2]))
    assert dpo.totals(scored, 3).tolist() == [-3.0, -4.0, -8.0]


def test_the_loss_by_hand():
    policy, reference = np.array([-3.0, -2.5, -1.0, -4.0]), np.array([-3.5, -2.0, -2.0, -2.0])
    margins = 0.3 * np.array([(0.5) - (-0.5), (1.0) - (-2.0)])
    by_hand = np.mean(np.log1p(np.exp(-margins)))
    loss = dpo.preference_loss(torch.tensor(policy), torch.tensor(reference), 0.3)
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)


def test_at_the_start_both_are_as_likely_as_before_and_the_winner_is_pulled_up():
    policy = torch.tensor([-3.0, -2.0], requires_grad=True)
    loss = dpo.preference_loss(policy, policy.detach(), 0.1)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert policy.grad.tolist() == pytest.approx([-0.05, 0.05])  # β σ(0), downhill is up for the first
