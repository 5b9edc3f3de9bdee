"""What a request may be: the book's /generate, OpenAI's /v1/completions and /v1/chat/completions.

Pydantic models check the requests, and write /openapi.json together with those of `answers`, so that none of them can
disagree. Knows no server, no engine and no model: bytes come in, `Settings` go out.
"""

import difflib
import json
from collections.abc import Iterable
from functools import cache
from itertools import count, groupby
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from helpers.generate.settings import RANGES, Range, Settings
from helpers.serve.limits import DEFAULT_LIMITS, Limits
from helpers.vocab.chat import ASSISTANT, SYSTEM, TOOL, Message

MAX_LOGPROBS = 5  # alternatives per token, as OpenAI has it for completions
_MAX_TOP_LOGPROBS = 20  # and for conversations
_MAX_PARTS = 16  # of a message; also the tools of a request, and the calls of an answer
_ONE, _MANY = "<one>", "<many>"  # pydantic puts them into the path of a fault; hardly a key is called so

# What programs made for OpenAI's API send on their own (examples/clients/ records it): key -> (why another value cannot
# be taken, the values that change nothing); (): whatever it says, no text depends on it. Such a key is left out
_UNREAD: tuple[str, ...] = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                            "prompt_cache_retention", "parallel_tool_calls")  # fmt: skip
_NEUTRAL: dict[str, tuple] = dict.fromkeys(_UNREAD, ()) | {
    "functions": ("their newer name is 'tools'", []),
    "response_format": ("the model writes free text", {"type": "text"}),
    "modalities": ("the model writes text", ["text"]),
    "verbosity": ("an answer is as long as the model makes it", "medium"),
    "logit_bias": ("no token has a score of its own", {}),
    "suffix": ("the model writes what follows, and nothing in between", ""),
    "echo": ("an answer holds new text only, with its probabilities", False),
    # keys that are known: by these values, programs say that their user has chosen nothing
    "stop": ("", ""),
    "seed": ("", -1),
    "top_k": ("", -1),
}
# the same of a message: what programs note down in a history, and give back. Thoughts are not read again
_NOTED = ("name", "id", "annotations", "timestamp", "created_at", "reasoning", "reasoning_content")
_NEUTRAL_IN_MESSAGE: dict[str, tuple] = dict.fromkeys(_NOTED, ()) | {
    "refusal": ("write what was said into 'content'", ""),
}
_NEVER = {key: allowed for key, allowed in (_NEUTRAL | _NEUTRAL_IN_MESSAGE).items() if any(allowed[:1])}


class Invalid(ValueError):
    """A request that does not fit its model: a sentence per fault, and the key of the first one."""

    key: str | None = None


class _Body(BaseModel):
    """A request body: exact types, no unknown key, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    example: ClassVar[str]  # of a body that is accepted
    limits: ClassVar[Limits] = DEFAULT_LIMITS


class _OpenAIBody(_Body):
    """A body in which null means that a key is left out, as in OpenAI's API, and 40.0 is a whole number."""

    neutral: ClassVar[dict[str, tuple]] = _NEUTRAL

    @model_validator(mode="before")
    @classmethod
    def leave_out_what_says_nothing(cls, body: Any) -> Any:
        """Return a JSON object without the keys that change nothing, its whole numbers as such."""
        if not isinstance(body, dict):
            return body
        neutral = {key: allowed[1:] or (body.get(key),) for key, allowed in cls.neutral.items()}
        said = {key: each for key, each in body.items() if each is not None and each not in neutral.get(key, ())}
        return {key: int(each) if type(each) is float and each.is_integer() else each for key, each in said.items()}


def _within(values: Range) -> Any:
    """Return the type of a sampling setting, and its default."""
    # /openapi.json writes 2, not 2.0
    least, most = (int(value) if float(value).is_integer() else value for value in (values.least, values.most))
    low: dict[str, Any] = {"gt" if values.low_is_open and values.least == values.low else "ge": least}
    return Annotated[type(values.off), Field(le=most, description=values.note, **low)], values.off


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

    def settings(self) -> Settings:
        """Return how the texts are to be written."""
        return Settings(max_new_tokens=self.maxlength, **_sampling(self))


class StreamOptions(_OpenAIBody):
    """What a stream holds besides the text."""

    neutral = {"include_obfuscation": ()}  # characters that OpenAI adds, against those who watch the lengths of events
    include_usage: bool = False


class OpenAIRequest(_OpenAIBody):
    """What the bodies of OpenAI's two routes share."""

    model: Annotated[str, Field(max_length=200, description="as /v1/models names it")] | None = None
    n: int
    stop: str | list[str] | None = None
    stream: Annotated[bool, Field(description="send the text as it is written")] = False
    stream_options: StreamOptions | None = None

    @property
    def stream_has_usage(self) -> bool:
        """Whether the stream ends with the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _settings(self, length: int, logprobs: int | None) -> Settings:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        sampling = _sampling(self)
        if sampling["seed"] is not None:
            sampling["seed"] %= 2**64  # clients send any number of 64 bits
        return Settings(max_new_tokens=length, logprobs=logprobs, stop=stop, **sampling)


class CompletionRequest(OpenAIRequest):
    """A body for /v1/completions; `request_models` adds the sampling settings and the limits."""

    example = '{"prompt": "你好"}'
    prompt: str | list[str | list[int]]
    max_tokens: int
    best_of: Annotated[int, Field(description="as many as n")] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS, description="alternatives told of each token")] | None = None

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Check what concerns several keys."""
        if len(self.prompts) * self.n > self.limits.max_samples:
            texts = f"{len(self.prompts)} prompts of {self.n} texts each"
            raise _fault(f"{texts} are too many: a request writes {self.limits.max_samples}")
        if self.best_of not in (None, self.n):
            raise _fault("'best_of': each text that is written is sent; it can only be what 'n' is")
        if sum(map(len, self.prompts)) > self.limits.max_context:
            raise _fault(f"'prompt': at most {self.limits.max_context} characters in all")
        return self

    @property
    def beginnings(self) -> list[str | list[int]]:
        """The texts to continue, or the ids of one."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def prompts(self) -> list[str]:
        """The texts with which the answers of the engine begin: none where ids were sent."""
        return [each if isinstance(each, str) else "" for each in self.beginnings]

    def settings(self) -> Settings:
        """Return how the texts are to be written."""
        return self._settings(self.max_tokens, self.logprobs)


def _one_or_many(one: Any, most: int, what: str, *, item: Any, least: int = 1) -> Any:
    """Return the type of one value, or of a list of items; a fault is reported for the form that was sent."""
    many = Annotated[list[item], Field(min_length=least, max_length=most)]
    return Annotated[
        Annotated[one, Tag(_ONE)] | Annotated[many, Tag(_MANY)],
        Discriminator(lambda value: _MANY if isinstance(value, list) else _ONE),
        Field(description=what),
    ]


class TextPart(_OpenAIBody):
    """A part of a message."""

    neutral = {"cache_control": (), "annotations": ()}
    type: Literal["text"]
    text: str


class Function(_OpenAIBody):
    """What a tool is called, what it does, and a JSON schema of its arguments."""

    neutral = {"strict": ()}
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str = ""
    parameters: dict[str, Any] = {}


class Tool(_OpenAIBody):
    """A tool that the model may call; whoever asks carries the call out."""

    type: Literal["function"]
    function: Function


class Tools(_Body):
    """The file tools.json in a model's folder: the page sends the definitions, and looks up what the model asks."""

    example = '{"definitions": [], "table": {}}'
    definitions: Annotated[list[Tool], Field(min_length=1, max_length=_MAX_PARTS)]
    table: dict[str, dict[str, str]]  # plant -> topic -> text


class CalledFunction(_OpenAIBody):
    """The name of a tool and its arguments, a JSON object as text."""

    name: str
    arguments: Json[dict[str, Any]]


class ToolCall(_OpenAIBody):
    """A call that the assistant has written."""

    neutral = {"index": ()}
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(_OpenAIBody):
    """What one side said."""

    neutral = _NEUTRAL_IN_MESSAGE
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: _one_or_many(str, _MAX_PARTS, "a text, or its parts", item=TextPart) = ""  # type: ignore[valid-type]
    tool_calls: Annotated[list[ToolCall], Field(max_length=_MAX_PARTS, description="of the assistant")] = []
    tool_call_id: Annotated[str, Field(description="of a tool: the call whose result this is")] | None = None

    @model_validator(mode="after")
    def has_text(self) -> Self:
        """Check the text of all parts together; what the assistant has said may be sent back as it is."""
        if self.tool_calls and self.role != ASSISTANT:
            raise _fault("'tool_calls' are only the assistant's")
        text = self.plain["content"]
        if not text and self.role == "user":
            raise _fault("'content' is empty: give at least one character")
        if len(text) > self.limits.max_context and self.role != "assistant":
            raise _fault(f"'content': at most {self.limits.max_context} characters in all")
        return self

    @property
    def plain(self) -> Message:
        """The message as a template takes it, its parts put together."""
        role, parts = SYSTEM if self.role == "developer" else self.role, self.content
        text = parts if isinstance(parts, str) else "".join(each.text for each in parts)
        message: Message = {"role": role, "content": text}
        if self.tool_calls:
            message["tool_calls"] = [each.model_dump() for each in self.tool_calls]
        return message


class Talk(NamedTuple):
    """A conversation as models are taught it."""

    messages: list[Message]  # a system line perhaps, then user and assistant in turns, last the user or a tool
    counts: list[int]  # of the messages that were sent, of each turn


def _joined(said: Iterable[Message]) -> str:
    return "\n".join(message["content"] for message in said if message["content"])


class ChatRequest(OpenAIRequest):
    """A body for /v1/chat/completions; `request_models` adds the sampling settings and the limits."""

    example = '{"messages": [{"role": "user", "content": "你好"}]}'
    messages: list[ChatMessage]
    tools: Annotated[list[Tool], Field(max_length=_MAX_PARTS, description="which the model may call")] = []
    tool_choice: Annotated[Literal["none", "auto"], Field(description="none: as if no tool were sent")] = "auto"
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: Annotated[bool, Field(description="tell the probability of each token")] = False
    top_logprobs: (
        Annotated[int, Field(ge=0, le=_MAX_TOP_LOGPROBS, description="alternatives told of each token")] | None
    ) = None

    @property
    def talk(self) -> Talk:
        """The conversation, in turns: what one side says in a row is one message, and system lines come first.

        Each result of a tool is one.
        """
        number = count()
        messages = [message.plain for message in self.messages]
        system = _joined(message for message in messages if message["role"] == SYSTEM)
        spoken = [message for message in messages if message["role"] != SYSTEM]
        by_side = groupby(spoken, lambda each: next(number) if each["role"] == TOOL else each["role"])
        turns = [list(said) for _, said in by_side]
        in_turns: list[Message] = [{"role": SYSTEM, "content": system}] if system else []
        for said in turns:
            in_turns.append({"role": said[0]["role"], "content": _joined(said)})
            if calls := [call for message in said for call in message.get("tool_calls", ())]:
                in_turns[-1]["tool_calls"] = calls
        return Talk(in_turns, list(map(len, turns)))

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call, as a template takes them."""
        return [] if self.tool_choice == "none" else [each.model_dump(exclude_unset=True) for each in self.tools]

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Check what concerns several keys."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise _fault("'max_tokens' and 'max_completion_tokens' are one thing: give one of them")
        if self.top_logprobs and not self.logprobs:
            raise _fault("'top_logprobs' needs 'logprobs': true")
        return self

    def settings(self) -> Settings:
        """Return how the texts are to be written; the context may have room for fewer tokens."""
        length = self.max_tokens or self.max_completion_tokens or self.limits.max_length
        return self._settings(length, (self.top_logprobs or 0) if self.logprobs else None)


Body = TypeVar("Body", bound=_Body)


def _fault(message: str) -> PydanticCustomError:
    """Return what a validator raises; `_reason` passes its words on."""
    return PydanticCustomError("rule", "{message}", {"message": message})


def _text(most: int, what: str | None = None, least: int = 1) -> Any:
    return Annotated[str, Field(min_length=least, max_length=most, description=what)]


def _count(most: int, what: str | None = None) -> Any:
    return Annotated[int, Field(ge=1, le=most, description=what)]


def _complete(body: type[Body], **fields: Any) -> type[Body]:
    """Return a model with the sampling settings, and with these fields in place of those that have no limit yet."""
    return cast(type[Body], create_model(body.__name__, __base__=(body, Sampling), **fields))


def _alone(prompt: Any) -> Any:
    """Return the ids of one prompt as a list of prompts; everything else as it is."""
    return [prompt] if isinstance(prompt, list) and {type(each) for each in prompt} == {int} else prompt


class RequestModels(NamedTuple):
    """The models of the bodies, every number within its limits."""

    generate: type[GenerateRequest]
    completion: type[CompletionRequest]
    chat: type[ChatRequest]


@cache
def request_models(limits: Limits) -> RequestModels:
    """Return the models of the bodies for a server with these limits."""
    length, stop, prompt = _count(limits.max_length), _text(64), _text(limits.max_context, least=0)
    # programs send -1 for "as long as may be"
    unlimited = BeforeValidator(lambda value: limits.max_length if value == -1 else value)
    generate = _complete(
        GenerateRequest,
        context=_text(limits.max_context, "the beginning of every text"),
        maxlength=(length, min(50, limits.max_length)),
        samples=(_count(limits.max_samples), min(5, limits.max_samples)),
    )
    shared = {
        "seed": (Annotated[int, Field(ge=-(2**63), lt=2**64)] | None, None),
        "n": (_count(limits.max_samples, "texts of each prompt"), 1),
        # programs send an empty list for a stop that their user did not set
        "stop": (_one_or_many(stop, 4, "a text ends before the first of these", item=stop, least=0) | None, None),
    }
    prompts = "the beginning of a text, or a list of beginnings, each a text or its ids"
    ids = _one_or_many(prompt, limits.max_prompt_tokens, "a text or its ids", item=Annotated[int, Field(ge=0)])
    completion = _complete(
        CompletionRequest,
        prompt=Annotated[_one_or_many(prompt, limits.max_samples, prompts, item=ids), BeforeValidator(_alone)],
        max_tokens=(Annotated[length, unlimited], min(16, limits.max_length)),
        **shared,
    )
    message: Any = create_model("ChatMessage", __base__=ChatMessage)
    turns = "what user and assistant said in turns; system lines count as the first, one side's lines in a row as one"
    chat = _complete(
        ChatRequest,
        messages=Annotated[list[message], Field(min_length=1, max_length=limits.max_messages, description=turns)],
        max_tokens=(Annotated[length | None, unlimited], None),
        max_completion_tokens=(Annotated[length | None, unlimited], None),
        **shared,
    )
    message.limits = completion.limits = chat.limits = limits
    return RequestModels(generate, completion, chat)


def read_request(model: type[Body], body: bytes) -> Body:
    """Return the request that a body holds; raises Invalid with the reasons."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        invalid = Invalid("; ".join(_reason(fault, model) for fault in faults[:3]))
        invalid.key = str(faults[0]["loc"][0])[:40] if faults[0]["loc"] else None
        raise invalid from None


def _reason(fault: ErrorDetails, model: type[_Body]) -> str:
    """Return a sentence for a fault."""
    path = [str(part) for part in fault["loc"] if part not in (_ONE, _MANY)]
    key = "'" + ".".join(path)[:40] + "'"
    match fault["type"]:
        case "json_invalid" if not path:
            return f"the body is not JSON: {fault['ctx']['error']}"
        case "model_type" if not path:
            return f"the body must be a JSON object, such as {model.example}"
        case "missing":
            return f"{key} is missing"
        case "extra_forbidden" if issubclass(model, _OpenAIBody) and path[-1] in _NEVER:
            why, *allowed = _NEVER[path[-1]]
            values = " or ".join(json.dumps(value, ensure_ascii=False) for value in allowed)
            return f"{key}: {why}; it can only be {values}"
        case "extra_forbidden" if len(path) > 1:
            return f"{key} is not known"
        case "extra_forbidden":
            # the keys that only this kind of request has come first
            keys = sorted(model.model_fields, key=lambda name: name in Sampling.model_fields)
            close = difflib.get_close_matches(path[0], [*keys, *_NEVER], n=1)
            meant = f"; did you mean '{close[0]}'?" if close else ""
            return f"{key} is not known: the keys are {', '.join(keys)}{meant}"
        case "string_too_short":
            return f"{key} is empty: give at least one character"
        case "rule":
            return f"{key}: {fault['msg']}" if path else fault["msg"]
        case _:
            return f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}"
