"""What a request may be, and what an answer looks like: the book's /generate and OpenAI's /v1/completions.

Pydantic models check the requests, form the answers and write /openapi.json, so the three cannot disagree. Knows no
server, no engine and no model: bytes come in, `Settings` go out; samples come in, JSON goes out.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model, model_validator
from pydantic.json_schema import models_json_schema
from pydantic_core import ErrorDetails, PydanticCustomError

from helpers.generate.settings import RANGES, Range, Sample, Settings, TokenLogprob
from helpers.serve.limits import DEFAULT_LIMITS, Limits

LOWEST = -9999.0  # in place of a log probability of minus infinity, which JSON cannot write
MAX_LOGPROBS = 5  # alternatives per token
FinishReason = Literal["stop", "length"]
FINISH: dict[str | None, FinishReason | None] = {"end": "stop", "stop": "stop", "length": "length", None: None}


class Invalid(ValueError):
    """A request that does not fit its model: a sentence per fault, and the key of the first one."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class _Body(BaseModel):
    """A request body: exact types, no unknown key, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


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

    context: str
    maxlength: int
    samples: int

    @property
    def prompts(self) -> list[str]:
        return [self.context]

    def settings(self) -> Settings:
        return Settings(max_new_tokens=self.maxlength, **_sampling(self))


class StreamOptions(_Body):
    """What a stream holds besides the text."""

    include_usage: bool = False


def _one_or_many(one: Any, most: int, what: str) -> Any:
    """Return the type of one value, or of a list of at most `most`; a fault is reported for the form that was sent."""
    many = Annotated[list[one], Field(min_length=1, max_length=most)]
    return Annotated[
        Annotated[one, Tag("one")] | Annotated[many, Tag("many")],
        Discriminator(lambda value: "many" if isinstance(value, list) else "one"),
        Field(description=what),
    ]


class CompletionRequest(_Body):
    """A body for /v1/completions; `request_models` adds the sampling settings and the limits."""

    limits: ClassVar[Limits] = DEFAULT_LIMITS

    model: Annotated[str, Field(max_length=200, description="as /v1/models names it")] | None = None
    prompt: str | list[str]
    max_tokens: int
    n: int
    stop: str | list[str] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS, description="alternatives told of each token")] | None = None
    echo: Annotated[bool, Field(description="whether a text starts with its prompt")] = False
    stream: Annotated[bool, Field(description="send the text as it is written")] = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200, description="taken, and not looked at")] | None = None

    @model_validator(mode="after")
    def agree(self) -> Self:
        """Check what concerns several keys."""
        if len(self.prompts) * self.n > self.limits.max_samples:
            texts = f"{len(self.prompts)} prompts of {self.n} texts each"
            raise PydanticCustomError("rule", f"{texts} are too many: a request writes {self.limits.max_samples}")
        if sum(map(len, self.prompts)) > self.limits.max_context:
            raise PydanticCustomError("rule", f"'prompt': at most {self.limits.max_context} characters in all")
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError("rule", "'echo' and 'logprobs' do not go together: leave one of them out")
        if self.stream_options and not self.stream:
            raise PydanticCustomError("rule", "'stream_options' needs 'stream': true")
        return self

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def samples(self) -> int:
        return self.n

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def settings(self) -> Settings:
        return Settings(max_new_tokens=self.max_tokens, stop=self.stops, logprobs=self.logprobs, **_sampling(self))


TextRequest = GenerateRequest | CompletionRequest  # both have prompts, samples (per prompt), settings()
Body = TypeVar("Body", bound=_Body)


def _text(most: int, what: str | None = None) -> Any:
    return Annotated[str, Field(min_length=1, max_length=most, description=what)]


def _count(most: int, what: str | None = None) -> Any:
    return Annotated[int, Field(ge=1, le=most, description=what)]


def _complete(body: type[Body], **fields: Any) -> type[Body]:
    """Return a model with the sampling settings, and with these fields in place of those that have no limit yet."""
    return cast(type[Body], create_model(body.__name__, __base__=(body, Sampling), **fields))


def request_models(limits: Limits) -> tuple[type[GenerateRequest], type[CompletionRequest]]:
    """Return the models of a body for /generate and for /v1/completions, every number within its limits."""
    length = _count(limits.max_length)
    generate = _complete(
        GenerateRequest,
        context=_text(limits.max_context, "the beginning of every text"),
        maxlength=(length, min(50, limits.max_length)),
        samples=(_count(limits.max_samples), min(5, limits.max_samples)),
    )
    beginnings = "the beginning of a text, or a list of beginnings"
    completion = _complete(
        CompletionRequest,
        prompt=_one_or_many(_text(limits.max_context), limits.max_samples, beginnings),
        max_tokens=(length, min(16, limits.max_length)),
        n=(_count(limits.max_samples, "texts of each prompt"), 1),
        stop=(_one_or_many(_text(64), 4, "a text ends before the first of these") | None, None),
    )
    completion.limits = limits
    return generate, completion


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
        path = [str(part) for part in fault["loc"] if part not in ("one", "many")]
        key = "'" + ".".join(path)[:40] + "'"
        match fault["type"]:
            case "json_invalid":
                sentences.append(f"the body is not JSON: {fault['ctx']['error']}")
            case "model_type" if not path:
                required = next(name for name, info in model.model_fields.items() if info.is_required())
                sentences.append(f'the body must be a JSON object, such as {{"{required}": "你好"}}')
            case "missing":
                sentences.append(f"{key} is missing")
            case "extra_forbidden":
                # the keys that only this kind of request has come first
                keys = sorted(model.model_fields, key=lambda name: name in Sampling.model_fields)
                sentences.append(f"{key} is not known: the keys are {', '.join(keys)}")
            case "string_too_short":
                sentences.append(f"{key} is empty: give at least one character")
            case "rule":
                sentences.append(fault["msg"])
            case _:
                sentences.append(f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(sentences)


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
class CompletionWriter:
    """Writes the JSON of one completion, whole or in events; all events have one id and one date."""

    model: str
    request: CompletionRequest
    prompt_tokens: int
    id: str = field(default_factory=lambda: f"cmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _offsets: dict[int, int] = field(default_factory=dict)  # per text that has begun: where its next token begins

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        """Return the JSON of the whole answer; `results` are the samples of each prompt."""
        choices: list[CompletionChoice] = []
        for prompt, samples in zip(self.request.prompts, results, strict=True):
            for sample in samples:
                text = sample.text if self.request.echo else sample.text[len(prompt) :]
                choices.append(self._choice(len(choices), text, sample.logprobs, sample.reason))
        return self._json(choices, self._usage(results))

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str:
        """Return the JSON of an event: new characters of text `index`, their tokens, and in its last one the reason."""
        if self.request.echo and index not in self._offsets:
            text = self.request.prompts[index // self.request.n] + text
        return self._json([self._choice(index, text, tokens, reason)])

    def ending(self, results: Sequence[Sequence[Sample]]) -> str | None:
        """Return the JSON of the last event, which holds the usage; None if it was not asked for."""
        return self._json([], self._usage(results)) if self._stream_has_usage else None

    @property
    def _stream_has_usage(self) -> bool:
        return bool(self.request.stream_options and self.request.stream_options.include_usage)

    def _json(self, choices: list[CompletionChoice], usage: Usage | None = None) -> str:
        answer = Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
        return answer.model_dump_json(exclude=None if usage or self._stream_has_usage else {"usage"})

    def _usage(self, results: Sequence[Sequence[Sample]]) -> Usage:
        read, written = self.prompt_tokens, sum(len(sample.tokens) for samples in results for sample in samples)
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def _choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> CompletionChoice:
        *starts, self._offsets[index] = accumulate(
            (len(token.text) for token in tokens), initial=self._offsets.get(index, 0)
        )
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = Logprobs(
                tokens=[token.text for token in tokens],
                token_logprobs=[max(token.logprob, LOWEST) for token in tokens],
                # as OpenAI does it: the token itself is in the list, also when it is not one of the likeliest
                top_logprobs=[
                    {text: max(logprob, LOWEST) for text, logprob in (*token.alternatives, (token.text, token.logprob))}
                    for token in tokens
                ],
                text_offset=starts,
            )
        return CompletionChoice(index=index, text=text, finish_reason=FINISH[reason], logprobs=logprobs)


def _content(schema: dict, kind: str = "application/json") -> dict:
    return {"content": {kind: {"schema": schema}}}


def _reference(model: type[BaseModel]) -> dict:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _operation(summary: str, schema: dict, error: type[BaseModel], body: type[BaseModel] | None = None) -> dict:
    # all refusals have one form, so they are described once
    refused = {"description": "refused, in words"} | _content(_reference(error))
    answers = {"200": {"description": "the answer"} | _content(schema), "4XX": refused, "5XX": refused}
    asked = {"requestBody": {"required": True} | _content(_reference(body))} if body else {}
    return {"summary": summary, "responses": answers} | asked


def openapi(generate_request: type[BaseModel], completion_request: type[BaseModel], has_key: bool) -> dict:
    """Return the OpenAPI 3.1 description of the service; has_key: whether requests must carry an API key."""
    models = (generate_request, completion_request, Completion, ModelList, Status, Error, OpenAIError)
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    texts, completion = {"type": "array", "items": {"type": "string"}}, _reference(Completion)
    complete = _operation("continue texts, as OpenAI does", completion, OpenAIError, completion_request)
    stream = {"description": "events of Completion, each as `data: {…}`; the last one is `data: [DONE]`"}
    complete["responses"]["200"]["content"] |= _content(stream, "text/event-stream")["content"]
    paths: dict[str, dict[str, dict]] = {
        "/generate": {"post": _operation("continue a text, as the book does", texts, Error, generate_request)},
        "/v1/completions": {"post": complete},
        "/v1/models": {"get": _operation("the model that is served", _reference(ModelList), OpenAIError)},
        "/healthz": {"get": _operation("is the process alive?", _reference(Status), Error)},
        "/readyz": {"get": _operation("does it take requests?", _reference(Status), Error)},
    }
    description = {"openapi": "3.1.0", "info": {"title": "Chinese GPT", "version": "1"}, "paths": paths}
    if not has_key:
        return description | {"components": {"schemas": schemas["$defs"]}}
    paths["/healthz"]["get"]["security"] = []
    schemes = {scheme: {"type": "http", "scheme": scheme} for scheme in ("bearer", "basic")}
    components = {"schemas": schemas["$defs"], "securitySchemes": schemes}
    return description | {"components": components, "security": [{scheme: []} for scheme in schemes]}
