"""Answers of a chat model, to many conversations at once. Knows nothing of training."""

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
    """Return one answer to the last message of each conversation, in order, without the conversation.

    With a seed, the random numbers go by the conversation's place: a question asked several times gets different
    answers, and the same ones in the next call.
    """
    prompts = [encode_messages(tokenizer, messages, generation_prompt=True).ids for messages in conversations]
    return generate_batch(model, tokenizer, prompts, settings, numbered=True) if prompts else []


def as_messages(question: str) -> list[Message]:
    """Return the conversation that a question begins."""
    return [{"role": "user", "content": question}]
