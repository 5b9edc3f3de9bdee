"""The losses of GRPO and DPO, from log-probabilities of endings. Knows nothing of models, questions or judges.

Group-relative policy optimisation (GRPO; Shao et al. 2024) raises an answer as far as it earned more than the others of
its group. In the form of Liu et al. 2025 (Dr. GRPO) nothing is divided by the group's deviation or an answer's length.
Each group is drawn by the model as it is and used once, so the ratio of new to old probability is 1: there is no clip.

Direct preference optimisation (DPO; Rafailov et al. 2023) needs no sampling: of two endings of one opening the right
one is to win. How far the policy has moved from the model before is the reward that the loss compares.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.reward.policy import EndingScores
from helpers.reward.rollout import Group

# ---- GRPO ----


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return how much more than the mean of the group each ending earned; they sum to 0."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def policy_loss(scores: EndingScores, groups: Sequence[Group]) -> Tensor:
    """Return −Σ advantage · log-probability / answers, whose gradient is the policy gradient (Williams 1992)."""
    each = [advantage for group in groups for advantage in advantages(group.rewards)]
    weights = torch.tensor(each, dtype=scores.chosen.dtype, device=scores.chosen.device)  # (E,)
    return -(weights[scores.ending] * scores.chosen).sum() / len(each)


# ---- DPO ----


class Pair(NamedTuple):
    """Two endings of one opening, of which the first earned more."""

    opening: list[int]
    won: list[int]
    lost: list[int]


def preference_pairs(groups: Iterable[Group]) -> list[Pair]:
    """Return a pair of each mixed group: the first ending that earned most, and the first that earned least."""
    pairs = []
    for group in groups:
        won, lost = (group.endings[group.rewards.index(best(group.rewards))] for best in (max, min))
        pairs += [Pair(group.opening, won, lost)] if group.mixed else []
    return pairs


def ending_totals(scores: EndingScores, endings: int) -> Tensor:
    """Return the log-probability of each whole ending, (endings,)."""
    return scores.chosen.new_zeros(endings).index_add(0, scores.ending, scores.chosen)


def preference_loss(policy: Tensor, reference: Tensor, beta: float) -> Tensor:
    """Return the mean of −log σ(β · ((policy − reference of won) − (policy − reference of lost))).

    policy, reference: (2P,) log-probabilities of whole endings, in turns won and lost.
    """
    moved = (policy - reference).view(-1, 2)  # (P, 2)
    return -F.logsigmoid(beta * (moved[:, 0] - moved[:, 1])).mean()
