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
    """Return one answer to the last message of each conversation, in order; the texts hold the answers only."""
    rows = [
        Row(encode_messages(tokenizer, messages, generation_prompt=True).ids, settings) for messages in conversations
    ]
    write_rows(model, tokenizer, rows, MAX_ROWS)
    return [row.result(tokenizer, "") for row in rows]


def ask(question: str) -> list[Message]:
    """Return a conversation that begins with a question."""
    return [{"role": "user", "content": question}]
