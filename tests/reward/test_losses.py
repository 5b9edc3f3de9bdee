"""Which endings weigh together and which groups give a pair; the losses and their gradients are in test_trl.py."""

import random

import pytest

from helpers.corpus import built_in
from helpers.reward import losses
from helpers.reward.rollout import AnswerOpening, Group

QUESTION = built_in.ask_story(built_in.combinations()[0], random.Random(0))


def group(endings, rewards):
    return Group(AnswerOpening(QUESTION, [1, 2, 3], "它"), endings, ["" for _ in endings], rewards)


def test_equal_endings_stand_once_and_weigh_together():
    branch, weights = losses.distinct_endings(group([[5, 6], [7], [5, 6], [7]], [1.0, 0.0, 1.0, 1.0]))
    assert branch == ([1, 2, 3], [(5, 6), (7,)])
    assert weights == pytest.approx([0.25 + 0.25, -0.75 + 0.25])


def test_only_mixed_groups_give_a_pair():
    rewards = [1.0, 1.0], [0.0, 0.0], [0.0, 1.0, 0.0, 1.0]
    found = losses.preference_pairs(group([[10], [11], [12], [13]][: len(each)], each) for each in rewards)
    assert found == [losses.Pair([1, 2, 3], [11], [10])]
