"""Answers of a model that was taught to answer: many conversations at once."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate.batch import Row
from helpers.generate.generate import MAX_ROWS, write_rows
from helpers.generate.settings import DEFAULT, Sample, Settings
from helpers.vocab.chat import Message, encode_messages


def answer_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    conversations: Sequence[Sequence[Message]],
    settings: Settings = DEFAULT,
) -> list[Sample]:
    """Return one answer to the last message of each conversation, in order; the texts hold the answers only.

    With a seed, each conversation has random numbers of its own, by its place: a question that is asked several times
    gets different answers, and the same ones in the next call.
    """
    prompts = [encode_messages(tokenizer, messages, generation_prompt=True).ids for messages in conversations]
    rows = [Row(ids, settings, number) for number, ids in enumerate(prompts)]
    write_rows(model, tokenizer, rows, MAX_ROWS)
    return [row.result(tokenizer, "") for row in rows]


def ask(question: str) -> list[Message]:
    """Return a conversation that begins with a question."""
    return [{"role": "user", "content": question}]
