"""Which groups give a pair; the losses and their gradients are in test_trl.py."""

import random

from helpers.corpus import built_in
from helpers.reward import losses
from helpers.reward.rollout import Group

QUESTION = built_in.ask_story(built_in.combinations()[0], random.Random(0))


def test_only_mixed_groups_give_a_pair():
    rewards = [1.0, 1.0], [0.0, 0.0], [0.0, 1.0, 0.0, 1.0]
    endings = [[10], [11], [12], [13]]
    groups = [Group(QUESTION, [1, 2, 3], endings[: len(each)], [""] * len(each), each) for each in rewards]
    assert losses.preference_pairs(groups) == [losses.Pair([1, 2, 3], [11], [10])]
