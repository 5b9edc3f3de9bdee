"""The policy: the model as the chooser of an ending's tokens, with the log-probability of each choice.

Several endings share one opening, which is read once: in a row behind it, each sees the opening and itself, and the
gradient flows through all. How far apart two policies are is their KL divergence. Knows nothing of rewards.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from helpers.model.gpt import GPT

Branch = tuple[Sequence[int], Sequence[Sequence[int]]]  # ids of an opening, and of each of its endings


class EndingScores(NamedTuple):
    """What a model says of endings: a row per token, all endings in a row."""

    log_p: Tensor  # (N, V) log-probabilities of all tokens in this place
    chosen: Tensor  # (N,) of the token that came
    ending: Tensor  # (N,) which ending it belongs to, counted through all branches


def score_endings(model: GPT, branches: Sequence[Branch]) -> EndingScores:
    """Return the log-probabilities of all endings, each after its opening; the model should be in eval mode.

    Openings have two ids or more, endings one or more.
    """
    # 1. a row for each branch: its opening, then all endings, each of which begins with the opening's last id
    rows: list[tuple[list[int], ...]] = []  # per branch: ids, label (-1: none), place, piece (0: opening), ending
    count = 0
    for opening, endings in branches:
        known = len(opening) - 1
        row = [*opening[:-1]], [-1] * known, [*range(known)], [0] * known, [-1] * known
        for piece, ending in enumerate(endings, 1):
            n = len(ending)
            more = [opening[-1], *ending[:-1]], ending, range(known, known + n), [piece] * n, [count] * n
            for own, new in zip(row, more, strict=True):
                own.extend(new)
            count += 1
        rows.append(row)
    ids, labels, places, pieces, whose = (
        pad_sequence([torch.tensor(each) for each in column], batch_first=True, padding_value=fill).to(model.device)
        for column, fill in zip(zip(*rows, strict=True), (0, -1, 0, -1, -1), strict=True)
    )  # (B, R) each
    # 2. an id sees its opening, and what is before it in its own ending
    seen = (pieces[:, None] == 0) | (pieces[:, None] == pieces[:, :, None])  # (B, R, R)
    hidden = model.hidden(ids, positions=places, visible=seen.tril())  # (B, R, C)
    # 3. logits where there is a token
    real, weight = labels >= 0, model.lm_head.weight  # (B, R), (V, C)
    log_p = (hidden[real] @ weight.T).log_softmax(-1)  # (N, V)
    chosen = log_p.gather(1, labels[real][:, None])[:, 0]  # (N,)
    return EndingScores(log_p, chosen, whose[real])


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the KL divergence KL(p ‖ q) in nats of each row, (N,), over all tokens: exact, not from a sample."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """Return the entropy in nats of each row, (N,)."""
    return -(log_p.exp() * log_p).sum(-1)
