"""Rollouts: the model answers questions itself, several times each, with the batch decoding of room 05.

An answer may begin with a given text, from which all answers of a group then go on. Knows nothing of losses.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from transformers import PreTrainedTokenizerFast

from helpers.corpus.built_in import Question
from helpers.generate.batch import Row
from helpers.generate.dialogue import as_messages
from helpers.generate.generate import write_rows
from helpers.generate.settings import Settings
from helpers.model.gpt import GPT
from helpers.vocab.chat import encode_messages
from helpers.vocab.tokenizer import decode, encode

Judge = Callable[[Question, str], float]  # what an answer to a question earns
_ROWS = 512  # answers written at once
_LONGEST = 48  # most tokens of an answer


@dataclass(frozen=True)
class Group:
    """Several answers to one question, and what each of them earned."""

    question: Question
    opening: list[int]  # ids up to where the answers part: the question, and what they all begin with
    endings: list[list[int]]  # ids of the rest of each answer
    texts: list[str]  # the whole answers
    rewards: list[float]

    @property
    def mean(self) -> float:
        """The mean reward."""
        return fmean(self.rewards)

    @property
    def mixed(self) -> bool:
        """Whether some answers earned more than others: only then does comparing them teach something."""
        return min(self.rewards) < max(self.rewards)


def prompt_of(tokenizer: PreTrainedTokenizerFast, question: Question) -> list[int]:
    """Return the ids of a conversation up to where the answer begins."""
    return encode_messages(tokenizer, as_messages(question.prompt.strip()), generation_prompt=True).ids


def draw_groups(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    answers: int,
    judge: Judge,
    rng: random.Random,
    temperature: float = 1.0,
    begun: Sequence[str] | None = None,
) -> list[Group]:
    """Return `answers` answers to each question, with what each earned.

    They are drawn without any filter, so that at temperature 1 what is drawn and what is learnt are the same
    distribution. begun: what the answers to each question begin with; by default nothing.
    """
    said = begun or [""] * len(questions)
    openings = [prompt_of(tokenizer, q) + encode(tokenizer, text) for q, text in zip(questions, said, strict=True)]
    settings = Settings(max_new_tokens=_LONGEST, temperature=temperature, seed=rng.getrandbits(32))
    rows = [Row(ids, settings, n * answers + i) for n, ids in enumerate(openings) for i in range(answers)]
    write_rows(model, tokenizer, rows, _ROWS)
    groups = []
    for n, (question, opening, text) in enumerate(zip(questions, openings, said, strict=True)):
        own = rows[n * answers : (n + 1) * answers]
        # ending the turn was a choice too, and is learnt
        endings = [row.new + [tokenizer.eos_token_id] * (row.reason == "end") for row in own]
        texts = [text + decode(tokenizer, row.new) for row in own]
        groups.append(Group(question, opening, endings, texts, [judge(question, each) for each in texts]))
    return groups
