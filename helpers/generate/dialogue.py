"""A conversation becomes ids that leave room for an answer; a model answers in it, or in many at once.

The window never slides under a conversation: where it is full, the oldest questions leave with their answers, so that
the system line and the beginnings of the turns stay what the model was taught. Knows no terminal and no HTTP.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from helpers.generate import generate
from helpers.generate.settings import DEFAULT_SETTINGS, Sample, Settings
from helpers.model.gpt import GPT
from helpers.vocab import chat
from helpers.vocab.chat import ASSISTANT, SYSTEM, USER, ChatError, Message
from helpers.wording import say


class AnswerPrompt(NamedTuple):
    """What a model reads before it answers."""

    ids: list[int]
    max_new_tokens: int  # the longest answer that the window has room for, and that was asked for
    left_out: int  # the oldest messages, which no longer fit


def check_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise ChatError, which says what to do, unless a model with this tokenizer can hold a conversation."""
    if not chat.has_template(tokenizer):
        words = "this model has no chat template: it continues texts. To teach it to answer: {}"
        raise ChatError(say(words, "python -m helpers.run chat --run NAME"))
    end = chat.end_of_turn(tokenizer)
    if end != tokenizer.eos_token_id:
        turn, text = (tokenizer.decode([token]) for token in (end, tokenizer.eos_token_id))
        raise ChatError(
            f"the chat template of this model ends an answer with {turn}, and its tokenizer ends a text with {text}: "
            f"no answer would ever end. Set eos_token to {turn} in the model's tokenizer_config.json"
        )


def answer_prompt(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    n_ctx: int,
    max_new_tokens: int,
    most: int = 2**63,
    tools: chat.Tools = (),
) -> AnswerPrompt:
    """Return the ids of a conversation up to where the answer begins, and how long the answer may be.

    A quarter of the window is kept for the answer, or less if `max_new_tokens` is less; `most` limits the ids further.
    Raises TooLong where the last question alone does not fit, ChatError for messages that cannot be used.
    """
    reserved = min(max_new_tokens, n_ctx // 4)
    ids, left_out = chat.fit_messages(tokenizer, messages, min(n_ctx - reserved, most), tools)
    return AnswerPrompt(ids, min(max_new_tokens, n_ctx - len(ids)), left_out)


def as_messages(question: str) -> list[Message]:
    """Return the conversation that a question begins."""
    return [{"role": USER, "content": question}]


def answer_batch(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    conversations: Sequence[Sequence[Message]],
    settings: Settings = DEFAULT_SETTINGS,
    tools: chat.Tools = (),
) -> list[Sample]:
    """Return one answer to the last message of each conversation, in order, without the conversation.

    An answer may be a call of one of the `tools`, see `chat.encode_messages`; `chat.call_form` reads it.
    With a seed, the random numbers go by the conversation's place: a question asked several times gets different
    answers, and the same ones in the next call.
    """
    prompts = [chat.encode_messages(tokenizer, messages, True, tools).ids for messages in conversations]
    return generate.generate_batch(model, tokenizer, prompts, settings, numbered=True) if prompts else []


@dataclass
class Dialogue:
    """A conversation with a model in this process. Raises ChatError if the model cannot hold one."""

    model: GPT
    tokenizer: PreTrainedTokenizerFast
    system: str = ""  # what the assistant is told before the first question
    messages: list[Message] = field(default_factory=list)  # without the system line
    left_out: int = 0  # the oldest messages, which the last answer was written without

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenizer)
        self.n_ctx = self.model.config.window

    def ask(
        self, question: str, settings: Settings = DEFAULT_SETTINGS, stop: threading.Event | None = None
    ) -> Iterator[str]:
        """Yield the answer as it is written; setting `stop` ends it within one token, and what is written counts.

        Raises ChatError for a question that does not fit. Such a question is not part of the conversation, nor is one
        whose answer fails, or is stopped, before anything is written.
        """
        system: list[Message] = [{"role": SYSTEM, "content": self.system}] if self.system else []
        asked = [*self.messages, *as_messages(question)]
        opening = answer_prompt(self.tokenizer, [*system, *asked], self.n_ctx, settings.max_new_tokens)
        self.left_out = opening.left_out
        settings = replace(settings, max_new_tokens=opening.max_new_tokens)
        answer: Message = {"role": ASSISTANT, "content": ""}
        self.messages = [*asked, answer]
        is_whole = False
        try:
            for text in generate.stream_text(self.model, self.tokenizer, opening.ids, settings, stop):
                answer["content"] += text
                yield text
            is_whole = not (stop and stop.is_set())
        finally:
            if not is_whole and not answer["content"]:
                self.messages = asked[:-1]  # as if the question had not been asked
