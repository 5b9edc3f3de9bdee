"""The same questions before and after: how many answers were put right, how many broken, how sure that is.

Knows nothing of how the model was trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers.corpus.built_in import Question
from helpers.generate.dialogue import answer_batch, as_messages
from helpers.generate.settings import Settings
from helpers.model.gpt import GPT
from helpers.reward import judge

GREEDY = Settings(max_new_tokens=80, temperature=0.0)
_RESAMPLED = 2000
Interval = tuple[float, float]


def marks(
    model: GPT, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], settings: Settings = GREEDY
) -> np.ndarray:
    """Return which questions a model answers right, (questions,); by default it always takes the likeliest token."""
    answers = answer_batch(model, tokenizer, [as_messages(each.prompt.strip()) for each in questions], settings)
    return np.array([judge.reward(question, each.text) > 0 for question, each in zip(questions, answers, strict=True)])


@dataclass(frozen=True)
class Comparison:
    """What became of the answers to the same questions; shares with their 95 % intervals."""

    before: float  # share that was right
    after: float
    gain: float  # after − before
    gain_interval: Interval
    put_right: float  # of the answers that were wrong, the share that is right now; 0 if none was
    put_right_interval: Interval
    broken: float  # the share of the others that is wrong now
    broken_interval: Interval


def compare_marks(questions: Sequence[Question], before: np.ndarray, after: np.ndarray, seed: int = 0) -> Comparison:
    """Return the comparison of two models' marks on the same questions.

    The intervals come from drawing combinations anew (cluster bootstrap; Efron 1979, Field and Welsh 2007): questions
    on one combination go right or wrong together, so many of them say little more than one.
    """
    # 1. per combination: questions, right before, right after, put right, broken
    kinds = [(each.plant, each.topic, each.situation) for each in questions]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    columns = np.stack([np.ones(len(before)), before, after, ~before & after, before & ~after], 1)  # (Q, 5)
    table = np.zeros((len(numbers), 5))
    np.add.at(table, [numbers[kind] for kind in kinds], columns)
    # 2. their sums, and the sums of combinations drawn with replacement
    drawn = np.random.default_rng(seed).integers(len(table), size=(_RESAMPLED, len(table)))
    sums = np.concatenate([table.sum(0)[None], table[drawn].sum(1)])  # (1 + _RESAMPLED, 5)
    n, was, now, righted, spoiled = sums.T
    shares = np.stack([(now - was) / n, righted / np.maximum(n - was, 1), spoiled / np.maximum(was, 1)])
    low, high = np.quantile(shares[:, 1:], [0.025, 0.975], axis=1)
    gain, put_right, broken = shares[:, 0].tolist()
    intervals: list[Interval] = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    right = float(was[0] / n[0]), float(now[0] / n[0])
    return Comparison(*right, gain, intervals[0], put_right, intervals[1], broken, intervals[2])
