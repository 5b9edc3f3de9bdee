"""Direct preference optimisation (DPO): of two endings of one opening the right one is to win, without any sampling.

Rafailov et al. 2023. The reference is the model before; how far the policy has moved from it is the reward that the
loss compares.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.reward.policy import Branch, Scored
from helpers.reward.rollout import Group


class Pair(NamedTuple):
    """Two endings of one opening, of which the first earned more."""

    opening: list[int]
    won: list[int]
    lost: list[int]

    @property
    def branch(self) -> Branch:
        """The pair as `policy.score` takes it: won, lost."""
        return self.opening, (self.won, self.lost)


def pairs(groups: Iterable[Group]) -> list[Pair]:
    """Return one pair of each mixed group: the first ending of those that earned most, and of those that earned least.

    They are in the order in which they were drawn, so the first is as good as any.
    """
    return [
        Pair(
            group.opening.ids,
            group.endings[group.rewards.index(max(group.rewards))],
            group.endings[group.rewards.index(min(group.rewards))],
        )
        for group in groups
        if group.mixed
    ]


def totals(scored: Scored, endings: int) -> Tensor:
    """Return the log-probability of each whole ending, (endings,)."""
    return torch.zeros(endings, dtype=scored.chosen.dtype, device=scored.chosen.device).index_add(
        0, scored.ending, scored.chosen
    )


def preference_loss(policy: Tensor, reference: Tensor, beta: float) -> Tensor:
    """Return the mean of −log σ(β · ((policy − reference of won) − (policy − reference of lost))).

    policy, reference: (2P,) log-probabilities of whole endings, in turns won and lost.
    """
    moved = (policy - reference).view(-1, 2)  # (P, 2)
    return -F.logsigmoid(beta * (moved[:, 0] - moved[:, 1])).mean()
