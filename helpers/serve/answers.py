"""What an answer looks like, whole or as the events of a stream: OpenAI's completions and conversations, refusals.

Knows no server and no engine: samples and chunks come in, JSON goes out.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from helpers.generate.settings import Sample, TokenLogprob
from helpers.serve.schema import ChatRequest, CompletionRequest

LOWEST = -9999.0  # in place of a log probability of minus infinity, which JSON cannot write
FinishReason = Literal["stop", "length"]
FINISH: dict[str | None, FinishReason | None] = {"end": "stop", "stop": "stop", "length": "length", None: None}


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Logprobs(BaseModel):
    """Per new token: its text, its natural log probability, the likeliest tokens with theirs, its start in `text`."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """A text, or in a stream a part of it; finish_reason is null until its last part."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: Logprobs | None


class Completion(BaseModel):
    """The answer of /v1/completions, or one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


# of these an answer may hold a hundred thousand: dataclasses are made several times as fast as pydantic's models
@dataclass(slots=True)
class ChatLogprob:
    """A token with its natural log probability; its bytes are null where it is only a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


@dataclass(slots=True)
class ChatToken(ChatLogprob):
    """A token that was written, and the likeliest ones in its place."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(BaseModel):
    """The tokens of an answer, or of a part of it."""

    content: list[ChatToken]


class ChatAnswer(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """An answer to the last question."""

    index: int
    message: ChatAnswer
    finish_reason: FinishReason | None
    logprobs: ChatLogprobs | None


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    messages_left_out: int  # the oldest ones, for which the context had no room


class ChatDelta(BaseModel):
    """The new part of an answer; only the first one tells the role."""

    role: Literal["assistant"] | None = None
    content: str


class ChatChunkChoice(BaseModel):
    """A part of an answer; finish_reason is null until its last part."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None
    logprobs: ChatLogprobs | None


class ChatChunk(BaseModel):
    """One event of a streamed answer; only the first one tells how many messages were left out."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    messages_left_out: int | None = None


class ModelCard(BaseModel):
    """A model that this server has."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Status(BaseModel):
    """The answer of /healthz and /readyz."""

    status: str


class Error(BaseModel):
    """A refusal, outside of /v1: the reason in words."""

    error: str


class ErrorDetail(BaseModel):
    """What was wrong, in OpenAI's terms."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """A refusal, under /v1."""

    error: ErrorDetail


def refusal(path: str, status: int, message: str, code: str | None = None, key: str | None = None) -> BaseModel:
    """Return the error body in the format of its route: OpenAI's under /v1, the plain one elsewhere."""
    if not path.startswith("/v1/"):
        return Error(error=message)
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(error=ErrorDetail(message=message, type=kind, param=key, code=code))


@dataclass
class Writer:
    """Writes the JSON of one answer, whole or in events; all events have one id and one date."""

    PREFIX: ClassVar[str]  # of the id

    model: str
    request: Any  # a body of one of OpenAI's routes
    prompt_tokens: int
    id: str = field(default="", init=False)
    created: int = field(default_factory=lambda: int(time.time()), init=False)

    def __post_init__(self) -> None:
        self.id = f"{self.PREFIX}-{token_hex(12)}"

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        """Return the JSON of the whole answer; `results` are the samples of each prompt."""
        raise NotImplementedError

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str:
        """Return the JSON of an event: new characters of text `index`, their tokens, and in its last one the reason."""
        raise NotImplementedError

    def ending(self, results: Sequence[Sequence[Sample]]) -> str | None:
        """Return the JSON of the last event, which holds the usage; None if it was not asked for."""
        return self._json([], self._usage(results)) if self.request.stream_has_usage else None

    def _json(self, choices: list[Any], usage: Usage | None = None) -> str:
        raise NotImplementedError

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model}

    def _usage(self, results: Sequence[Sequence[Sample]]) -> Usage:
        read, written = self.prompt_tokens, sum(len(sample.tokens) for samples in results for sample in samples)
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


def likeliest(samples: Sequence[Sample], n: int) -> Sequence[Sample]:
    """Return the n samples with the highest mean log probability per token, the best first.

    The mean, as OpenAI has it: the sum would favour short texts. A text without a token comes last. If there are
    no more than n, they are returned as they are.
    """
    if n >= len(samples):
        return samples
    means = [
        sum(t.logprob for t in each.logprobs) / len(each.logprobs) if each.logprobs else LOWEST for each in samples
    ]
    return [samples[i] for i in sorted(range(len(samples)), key=lambda i: -means[i])[:n]]


@dataclass
class CompletionWriter(Writer):
    """Writes what /v1/completions answers."""

    PREFIX = "cmpl"

    request: CompletionRequest
    _begun: set[int] = field(default_factory=set)  # the texts of a stream that have begun

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        choices: list[CompletionChoice] = []
        for prompt, samples in zip(self.request.prompts, results, strict=True):
            for sample in likeliest(samples, self.request.n):
                text = sample.text if self.request.echo else sample.text[len(prompt) :]
                choices.append(self._choice(len(choices), text, sample.logprobs, sample.reason))
        return self._json(choices, self._usage(results))

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str:
        if self.request.echo and index not in self._begun:
            text = self.request.prompts[index // self.request.n] + text
        self._begun.add(index)
        return self._json([self._choice(index, text, tokens, reason)])

    def _json(self, choices: list[CompletionChoice], usage: Usage | None = None) -> str:
        answer = Completion(**self._head(), choices=choices, usage=usage)
        return answer.model_dump_json(exclude=None if usage or self.request.stream_has_usage else {"usage"})

    def _choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> CompletionChoice:
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = Logprobs(
                tokens=[token.text for token in tokens],
                token_logprobs=[max(token.logprob, LOWEST) for token in tokens],
                top_logprobs=[_rivals(token) for token in tokens],
                text_offset=[token.start for token in tokens],
            )
        return CompletionChoice(index=index, text=text, finish_reason=FINISH[reason], logprobs=logprobs)


@dataclass
class ChatWriter(Writer):
    """Writes what /v1/chat/completions answers."""

    PREFIX = "chatcmpl"

    request: ChatRequest
    left_out: int
    _begun: set[int] = field(default_factory=set)  # the answers of a stream that have begun

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        choices = [
            ChatChoice(
                index=index, message=ChatAnswer(content=sample.text), finish_reason=FINISH[sample.reason],
                logprobs=self._logprobs(sample.logprobs),
            )
            for index, sample in enumerate(results[0])
        ]  # fmt: skip
        answer = ChatCompletion(
            **self._head(), choices=choices, usage=self._usage(results), messages_left_out=self.left_out
        )
        return answer.model_dump_json()

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str:
        role: Literal["assistant"] | None = None if index in self._begun else "assistant"
        choice = ChatChunkChoice(
            index=index, delta=ChatDelta(role=role, content=text), finish_reason=FINISH[reason],
            logprobs=self._logprobs(tokens),
        )  # fmt: skip
        event = self._json([choice], left_out=None if self._begun else self.left_out)
        self._begun.add(index)
        return event

    def _json(self, choices: list[ChatChunkChoice], usage: Usage | None = None, left_out: int | None = None) -> str:
        chunk = ChatChunk(**self._head(), choices=choices, usage=usage, messages_left_out=left_out).model_dump()
        if not self.request.stream_has_usage:
            del chunk["usage"]
        # what only the first events tell is not null in the others: it is not there
        for part, key in ((chunk, "messages_left_out"), *((choice["delta"], "role") for choice in chunk["choices"])):
            if part[key] is None:
                del part[key]
        return json.dumps(chunk, ensure_ascii=False)

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.request.logprobs:
            return None
        return ChatLogprobs(
            content=[
                ChatToken(
                    *_told(token.text, token.logprob), [ChatLogprob(*_told(*rival)) for rival in token.alternatives]
                )
                for token in tokens
            ]
        )


def _told(token: str, logprob: float) -> tuple[str, float, list[int] | None]:
    whole = "\ufffd" not in token
    return token, max(logprob, LOWEST), list(token.encode()) if whole else None


def _rivals(token: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and this one, by their texts.

    All bytes that are only a part of a character have one text: of several rivals the likeliest is told.
    """
    rivals: dict[str, float] = {}
    for text, logprob in token.alternatives:  # the likeliest first
        rivals.setdefault(text, max(logprob, LOWEST))
    # as OpenAI does it: the token itself is in the list, also when it is not one of the likeliest
    return rivals | {token.text: max(token.logprob, LOWEST)}
