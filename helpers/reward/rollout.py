"""Rollouts: the model answers questions itself, in two parts, with the batch decoding of room 05.

An opening goes up to where only the verdict is missing; from there several endings are drawn. Within a group only the
verdict differs, so the reward is about the verdict and not about the greeting. Branching where it counts is an old idea
in policy search ("vine"; Schulman et al. 2015). Knows nothing of losses.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedTokenizerFast

from helpers.corpus.built_in import Question
from helpers.generate.batch import Row
from helpers.generate.dialogue import as_messages
from helpers.generate.generate import write_rows
from helpers.generate.settings import Settings
from helpers.model.gpt import GPT
from helpers.reward import judge
from helpers.vocab.chat import encode_messages
from helpers.vocab.tokenizer import decode

_ROWS = 512  # answers written at once
_OPENING, _ENDING, _WHOLE = 24, 16, 48  # most tokens of each part, and of an answer without an opening
_SENTENCE_ENDS = ("。", "！", "？")


@dataclass(frozen=True)
class AnswerOpening:
    """A question, and the first part of an answer to it."""

    question: Question
    ids: list[int]  # of the conversation up to where the verdict begins
    text: str  # the answer's first part; may be empty


@dataclass(frozen=True)
class Group:
    """Several endings of one opening, and what each of them earned."""

    opening: AnswerOpening
    endings: list[list[int]]  # ids
    texts: list[str]
    rewards: list[float]

    @property
    def mean(self) -> float:
        """The mean reward."""
        return fmean(self.rewards)

    @property
    def mixed(self) -> bool:
        """Whether some endings earned more than others: only then does comparing them teach something."""
        return min(self.rewards) < max(self.rewards)


def _drawn(most: int, stop: tuple[str, ...], rng: random.Random) -> Settings:
    # no filter, so that what is drawn and what is learnt are the same distribution
    return Settings(max_new_tokens=most, stop=stop, seed=rng.getrandbits(32))


def write_openings(
    model: GPT, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], rng: random.Random
) -> list[AnswerOpening]:
    """Return an opening for each question, except where the answer begins with its verdict; see `judge.opening`."""
    settings = _drawn(_OPENING, _SENTENCE_ENDS, rng)
    talks = [as_messages(each.prompt.strip()) for each in questions]
    prompts = [encode_messages(tokenizer, talk, generation_prompt=True).ids for talk in talks]
    rows = [Row(ids, settings, number) for number, ids in enumerate(prompts)]
    write_rows(model, tokenizer, rows, _ROWS)
    openings = []
    for question, prompt, row in zip(questions, prompts, rows, strict=True):
        text = judge.opening(question, decode(tokenizer, row.new))  # what ended the sentence is among the ids
        # the first ids that spell it; where a token reaches over its end, none do
        kept = next((n for n in range(len(row.new) + 1) if decode(tokenizer, row.new[:n]) == text), None)
        if text is not None and kept is not None:
            openings.append(AnswerOpening(question, prompt + row.new[:kept], text))
    return openings


def write_endings(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    openings: Sequence[AnswerOpening],
    answers: int,
    rng: random.Random,
) -> list[Group]:
    """Return `answers` endings for each opening, with what each earned.

    An ending goes up to the end of its sentence; without an opening it is the whole answer.
    """
    short, whole = _drawn(_ENDING, _SENTENCE_ENDS, rng), _drawn(_WHOLE, (), rng)
    rows = [
        [Row(each.ids, short if each.text else whole, n * answers + i) for i in range(answers)]
        for n, each in enumerate(openings)
    ]
    for settings in (short, whole):  # apart, because one long answer makes all rows of the cache long
        write_rows(model, tokenizer, [row for own in rows for row in own if row.settings is settings], _ROWS)
    groups = []
    for each, own in zip(openings, rows, strict=True):
        # ending the turn was a choice too, and is learnt
        endings = [row.new + [tokenizer.eos_token_id] * (row.reason == "end") for row in own]
        texts = [decode(tokenizer, row.new) for row in own]
        groups.append(Group(each, endings, texts, [judge.reward(each.question, each.text + text) for text in texts]))
    return groups
