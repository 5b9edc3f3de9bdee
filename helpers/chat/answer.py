"""Answers of a chat model, to many conversations at once. Knows nothing of training."""

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
    """Return one answer to the last message of each conversation, in order, without the conversation.

    With a seed, the random numbers go by the conversation's place: a question asked several times gets different
    answers, and the same ones in the next call.
    """
    prompts = [encode_messages(tokenizer, messages, generation_prompt=True).ids for messages in conversations]
    rows = [Row(ids, settings, number) for number, ids in enumerate(prompts)]
    write_rows(model, tokenizer, rows, MAX_ROWS)
    return [row.result(tokenizer, "") for row in rows]


def as_messages(question: str) -> list[Message]:
    """Return the conversation that a question begins."""
    return [{"role": "user", "content": question}]
