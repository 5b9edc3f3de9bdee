"""Answers of a model that was taught to answer: many conversations at once."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate.generate import generate_batch
from helpers.generate.settings import DEFAULT_SETTINGS, Sample, Settings
from helpers.vocab.chat import Message, encode_messages


def answer_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    conversations: Sequence[Sequence[Message]],
    settings: Settings = DEFAULT_SETTINGS,
) -> list[Sample]:
    """Return one answer to the last message of each conversation, in order; the texts hold the answers only.

    With a seed, each conversation has random numbers of its own, by its place: a question that is asked several times
    gets different answers, and the same ones in the next call.
    """
    prompts = [encode_messages(tokenizer, messages, generation_prompt=True).ids for messages in conversations]
    return generate_batch(model, tokenizer, prompts, settings, numbered=True) if prompts else []


def ask(question: str) -> list[Message]:
    """Return a conversation that begins with a question."""
    return [{"role": "user", "content": question}]
