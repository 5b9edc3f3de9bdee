"""Group-relative policy optimisation (GRPO): an ending is raised as far as it earned more than the others of its group.

Shao et al. 2024 (DeepSeekMath), in the form of Liu et al. 2025 (Dr. GRPO): the mean of the group is subtracted, and
nothing is divided by its deviation or by an ending's length. Each group is drawn by the model as it is now and used
once, so the ratio of new to old probability is 1 and clipping it would never act: there is no clip.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from helpers.reward.policy import Branch, Scored
from helpers.reward.rollout import Group


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return how much more than the mean of the group each ending earned; they sum to 0."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def distinct(group: Group) -> tuple[Branch, list[float]]:
    """Return a branch in which equal endings stand once, and the sum of the advantages of each."""
    weights: dict[tuple[int, ...], float] = {}
    for ending, advantage in zip(group.endings, advantages(group.rewards), strict=True):
        weights[tuple(ending)] = weights.get(tuple(ending), 0.0) + advantage
    return (group.opening.ids, list(weights)), list(weights.values())


def policy_loss(scored: Scored, weights: Sequence[float], answers: int) -> Tensor:
    """Return −Σ advantage · log-probability / answers, whose gradient is the policy gradient (Williams 1992).

    weights: of each ending in `scored`, see `distinct`; answers: how many were drawn in these groups.
    """
    each = torch.tensor(weights, dtype=scored.chosen.dtype, device=scored.chosen.device)  # (E,)
    return -(each[scored.ending] * scored.chosen).sum() / answers
