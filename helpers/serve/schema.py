"""What a request may be: the book's /generate, OpenAI's /v1/completions and /v1/chat/completions.

Pydantic models check the requests, and write /openapi.json together with those of `answers`, so that none of them can
disagree. Knows no server, no engine and no model: bytes come in, `Settings` go out.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from helpers.generate.settings import MOST_BIAS, RANGES, Range, Settings
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.vocab import chat

MAX_LOGPROBS = 5  # alternatives per token, as OpenAI has it for completions
MAX_TOP_LOGPROBS = 20  # and for conversations
MAX_BIASES = 300  # tokens of `logit_bias`, as OpenAI has it
MAX_PARTS = 16  # of a message
ONE, MANY = "<one>", "<many>"  # pydantic puts them into the path of a fault; hardly a key is called so


class Invalid(ValueError):
    """A request that does not fit its model: a sentence per fault, and the key of the first one."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def _without_nulls(body: Any) -> Any:
    """Return a JSON object without the keys that are null: OpenAI's API takes null for a key that is left out."""
    return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class _Body(BaseModel):
    """A request body: exact types, no unknown key, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    example: ClassVar[str]  # of a body that is read


def _within(values: Range) -> Any:
    """Return the type of a sampling setting, and its default."""
    # /openapi.json writes 2, not 2.0
    least, most = (int(value) if float(value).is_integer() else value for value in (values.least, values.most))
    if values.low_is_open and values.least == values.low:
        return Annotated[type(values.off), Field(gt=least, le=most, description=values.note)], values.off
    return Annotated[type(values.off), Field(ge=least, le=most, description=values.note)], values.off


# a key that is left out means what the default of `Settings` means
Sampling = create_model(
    "Sampling",
    __base__=_Body,
    **{name: _within(values) for name, values in RANGES.items()},
    seed=(Annotated[int, Field(ge=0, lt=2**32)] | None, None),
)


def _sampling(body: _Body) -> dict[str, Any]:
    return {name: getattr(body, name) for name in Sampling.model_fields}


class GenerateRequest(_Body):
    """A body for /generate; `request_models` adds the sampling settings and the limits."""

    example = '{"context": "你好"}'
    context: str
    maxlength: int
    samples: int

    @property
    def prompts(self) -> list[str]:
        """The texts to continue."""
        return [self.context]

    def settings(self) -> Settings:
        """Return how the texts are to be written."""
        return Settings(max_new_tokens=self.maxlength, **_sampling(self))


class StreamOptions(_Body):
    """What a stream holds besides the text."""

    include_usage: bool = False

    _nulls = model_validator(mode="before")(_without_nulls)


def _one_or_many(one: Any, most: int, what: str, *, each: Any = None, least: int = 1) -> Any:
    """Return the type of one value, or of a list of `least` to `most`; a fault is reported for the form that was sent.

    each: the type of what is in the list, if it is another one.
    """
    item: Any = each or one
    many = Annotated[list[item], Field(min_length=least, max_length=most)]
    return Annotated[
        Annotated[one, Tag(ONE)] | Annotated[many, Tag(MANY)],
        Discriminator(lambda value: MANY if isinstance(value, list) else ONE),
        Field(description=what),
    ]


Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]


class OpenAIRequest(_Body):
    """What the bodies of OpenAI's two routes share."""

    limits: ClassVar[Limits] = DEFAULT_LIMITS

    model: Annotated[str, Field(max_length=200, description="as /v1/models names it")] | None = None
    n: int
    stop: str | list[str] | None = None
    stream: Annotated[bool, Field(description="send the text as it is written")] = False
    stream_options: StreamOptions | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias],
            Field(max_length=MAX_BIASES, description="ids of tokens, and what is added to their logits"),
        ]
        | None
    ) = None
    user: Annotated[str, Field(max_length=200, description="taken, and not looked at")] | None = None

    _nulls = model_validator(mode="before")(_without_nulls)

    @model_validator(mode="after")
    def stream_options_need_a_stream(self) -> Self:
        """Refuse options of a stream that was not asked for."""
        if self.stream_options and not self.stream:
            raise _fault("'stream_options' needs 'stream': true")
        return self

    @property
    def samples(self) -> int:
        """How many texts are written for each prompt."""
        return self.n

    @property
    def stream_has_usage(self) -> bool:
        """Whether the stream ends with the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _shared(self) -> dict[str, Any]:
        """Return the settings that both routes have."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        biases = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        return {"stop": stop, "logit_bias": biases} | _sampling(self)


class CompletionRequest(OpenAIRequest):
    """A body for /v1/completions; `request_models` adds the sampling settings and the limits."""

    example = '{"prompt": "你好"}'
    prompt: str | list[str]
    max_tokens: int
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS, description="alternatives told of each token")] | None = None
    echo: Annotated[bool, Field(description="whether a text starts with its prompt")] = False
    best_of: int | None = None

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Check what concerns several keys."""
        if self.best_of is not None and self.best_of < self.n:
            raise _fault(f"'best_of' is {self.best_of}: at least the {self.n} texts that 'n' asks for")
        if self.chooses and self.stream:
            raise _fault("'best_of' and 'stream' do not go together: the best texts are known when all are written")
        if len(self.prompts) * self.samples > self.limits.max_samples:
            texts = f"{len(self.prompts)} prompts of {self.samples} texts each"
            raise _fault(f"{texts} are too many: a request writes {self.limits.max_samples}")
        if sum(map(len, self.prompts)) > self.limits.max_context:
            raise _fault(f"'prompt': at most {self.limits.max_context} characters in all")
        if self.echo and self.logprobs is not None:
            raise _fault("'echo' and 'logprobs' do not go together: leave one of them out")
        return self

    @property
    def samples(self) -> int:
        """How many texts are written for each prompt."""
        return self.best_of or self.n

    @property
    def chooses(self) -> bool:
        """Whether more texts are written than sent."""
        return self.samples > self.n

    @property
    def prompts(self) -> list[str]:
        """The texts to continue."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def settings(self) -> Settings:
        """Return how the texts are to be written."""
        # the best texts are found by the log probabilities of their tokens
        logprobs = 0 if self.logprobs is None and self.chooses else self.logprobs
        return Settings(max_new_tokens=self.max_tokens, logprobs=logprobs, **self._shared())


class TextPart(_Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """What one side said."""

    limits: ClassVar[Limits] = DEFAULT_LIMITS

    role: Literal["system", "user", "assistant"]
    content: _one_or_many(str, MAX_PARTS, "a text, or its parts", each=TextPart)  # type: ignore[valid-type]
    name: Annotated[str, Field(max_length=200, description="taken, and not looked at")] | None = None

    _nulls = model_validator(mode="before")(_without_nulls)

    @model_validator(mode="after")
    def has_text(self) -> Self:
        """Check the text of all parts together; what the assistant has said may be sent back as it is."""
        if self.role != "assistant":
            if not self.text:
                raise _fault("'content' is empty: give at least one character")
            if len(self.text) > self.limits.max_context:
                raise _fault(f"'content': at most {self.limits.max_context} characters in all")
        return self

    @property
    def text(self) -> str:
        """What the message says, its parts put together."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)

    @property
    def plain(self) -> chat.Message:
        """The message as a template takes it."""
        return {"role": self.role, "content": self.text}


class ChatRequest(OpenAIRequest):
    """A body for /v1/chat/completions; `request_models` adds the sampling settings and the limits."""

    example = '{"messages": [{"role": "user", "content": "你好"}]}'
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: Annotated[bool, Field(description="tell the probability of each token")] = False
    top_logprobs: (
        Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS, description="alternatives told of each token")] | None
    ) = None

    @field_validator("messages")
    @classmethod
    def take_turns(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Check that the sides take turns, and that the user has asked."""
        try:
            chat.check_messages([message.plain for message in messages])
        except chat.ChatError as error:
            raise _fault(str(error)) from None
        return messages

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Check what concerns several keys."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise _fault("'max_tokens' and 'max_completion_tokens' are one thing: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise _fault("'top_logprobs' needs 'logprobs': true")
        return self

    @property
    def conversation(self) -> list[chat.Message]:
        """The messages as a template takes them."""
        return [message.plain for message in self.messages]

    @property
    def longest(self) -> int:
        """The most tokens that an answer may have."""
        return self.max_tokens or self.max_completion_tokens or self.limits.max_length

    def settings(self) -> Settings:
        """Return how the texts are to be written."""
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return Settings(max_new_tokens=self.longest, logprobs=logprobs, **self._shared())


Body = TypeVar("Body", bound=_Body)


def _fault(message: str) -> PydanticCustomError:
    """Return what a validator raises; `_reason` passes its words on."""
    return PydanticCustomError("rule", "{message}", {"message": message})


def _text(most: int, what: str | None = None) -> Any:
    return Annotated[str, Field(min_length=1, max_length=most, description=what)]


def _count(most: int, what: str | None = None) -> Any:
    return Annotated[int, Field(ge=1, le=most, description=what)]


def _complete(body: type[Body], **fields: Any) -> type[Body]:
    """Return a model with the sampling settings, and with these fields in place of those that have no limit yet."""
    return cast(type[Body], create_model(body.__name__, __base__=(body, Sampling), **fields))


@dataclass(frozen=True)
class RequestModels:
    """The models of the bodies, every number within its limits."""

    generate: type[GenerateRequest]
    completion: type[CompletionRequest]
    chat: type[ChatRequest]


def request_models(limits: Limits) -> RequestModels:
    """Return the models of the bodies for a server with these limits."""
    length = _count(limits.max_length)
    generate = _complete(
        GenerateRequest,
        context=_text(limits.max_context, "the beginning of every text"),
        maxlength=(length, min(50, limits.max_length)),
        samples=(_count(limits.max_samples), min(5, limits.max_samples)),
    )
    beginnings = "the beginning of a text, or a list of beginnings"
    shared = {
        "n": (_count(limits.max_samples, "texts of each prompt"), 1),
        # programs send an empty list for a stop that their user did not set
        "stop": (_one_or_many(_text(64), 4, "a text ends before the first of these", least=0) | None, None),
    }
    completion = _complete(
        CompletionRequest,
        prompt=_one_or_many(_text(limits.max_context), limits.max_samples, beginnings),
        max_tokens=(length, min(16, limits.max_length)),
        best_of=(_count(limits.max_samples, "texts written, of which the n likeliest are sent") | None, None),
        **shared,
    )
    message: Any = create_model("ChatMessage", __base__=ChatMessage)
    turns = "a system line perhaps, then user and assistant in turns; the last one is the user's"
    chat_ = _complete(
        ChatRequest,
        messages=Annotated[list[message], Field(min_length=1, max_length=limits.max_messages, description=turns)],
        max_tokens=(length | None, None),
        max_completion_tokens=(length | None, None),
        **shared,
    )
    message.limits = completion.limits = chat_.limits = limits
    return RequestModels(generate, completion, chat_)


def read(model: type[Body], body: bytes) -> Body:
    """Return the request that a body holds; raises Invalid with the reasons."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise Invalid(_reason(faults, model), str(faults[0]["loc"][0])[:40] if faults[0]["loc"] else None) from None


def _reason(faults: list[ErrorDetails], model: type[_Body]) -> str:
    """Return one sentence per fault, at most three."""
    sentences = []
    for fault in faults[:3]:
        path = [str(part) for part in fault["loc"] if part not in (ONE, MANY)]
        key = "'" + ".".join(path)[:40] + "'"
        match fault["type"]:
            case "json_invalid":
                sentences.append(f"the body is not JSON: {fault['ctx']['error']}")
            case "model_type" if not path:
                sentences.append(f"the body must be a JSON object, such as {model.example}")
            case "missing":
                sentences.append(f"{key} is missing")
            case "extra_forbidden" if len(path) > 1:
                sentences.append(f"{key} is not known")
            case "extra_forbidden":
                # the keys that only this kind of request has come first
                keys = sorted(model.model_fields, key=lambda name: name in Sampling.model_fields)
                sentences.append(f"{key} is not known: the keys are {', '.join(keys)}")
            case "string_too_short":
                sentences.append(f"{key} is empty: give at least one character")
            case "rule":
                sentences.append(f"{key}: {fault['msg']}" if path else fault["msg"])
            case _:
                sentences.append(f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(sentences)
