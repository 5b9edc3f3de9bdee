"""What a request may be, and what an answer looks like: the book's /generate and OpenAI's /v1/completions.

Pydantic models check the requests, form the answers and write /openapi.json, so that no two of them can disagree.
Knows no server, no engine and no model: bytes come in, `Settings` go out; samples come in, JSON goes out.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticCustomError

from helpers.generate.settings import Sample, Settings, TokenLogprob

LOWEST = -9999.0  # stands for a log probability of minus infinity, which JSON cannot write
ENDS = {"end": "stop", "stop": "stop", "length": "length", None: None}  # a sample's reason -> OpenAI's finish_reason


class Invalid(ValueError):
    """A request that does not fit its model: one sentence or more for a person, and the key that is at fault."""

    def __init__(self, words: str, key: str | None = None) -> None:
        super().__init__(words)
        self.key = key


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    max_context counts the characters of all prompts together, max_prompt_tokens their tokens; max_length the new
    tokens of a text; max_samples the texts of a request, over all its prompts.
    """

    max_context: int = 2000
    max_prompt_tokens: int = 4096
    max_length: int = 500
    max_samples: int = 10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}: it must be 1 or more")


# ---- requests ----


class _Body(BaseModel):
    """A request body: exact types, no unknown key, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Body):
    """What a stream holds beside the text."""

    include_usage: bool = False


def _one_or_many(one, most: int, what: str):
    """Return the type of one value or a list of at most `most`; a fault is told for the form that was sent."""
    many = Annotated[list[one], Field(min_length=1, max_length=most)]
    return Annotated[
        Annotated[one, Tag("one")] | Annotated[many, Tag("many")],
        Discriminator(lambda value: "many" if isinstance(value, list) else "one"),
        Field(description=what),
    ]


def request_models(limits: Limits) -> tuple[type[BaseModel], type[BaseModel]]:
    """Return the models of a body for /generate and for /v1/completions, every number within its limits.

    Each has `prompts`, `samples` (of each prompt) and `settings()`.
    """
    off = Settings()  # a key that is left out means what the helper's own default means
    text = Annotated[str, Field(min_length=1, max_length=limits.max_context)]
    ending = Annotated[str, Field(min_length=1, max_length=64)]

    class Sampling(_Body):
        temperature: Annotated[float, Field(ge=0, le=2, description="0 always takes the likeliest")] = off.temperature
        top_p: Annotated[float, Field(ge=0, le=1, description="1 is off")] = off.top_p
        top_k: Annotated[int, Field(ge=0, le=1000, description="0 is off")] = off.top_k
        min_p: Annotated[float, Field(ge=0, le=1, description="0 is off")] = off.min_p
        typical_p: Annotated[float, Field(gt=0, le=1, description="1 is off")] = off.typical_p
        repetition_penalty: Annotated[float, Field(ge=1, le=2)] = off.repetition_penalty
        presence_penalty: Annotated[float, Field(ge=-2, le=2)] = off.presence_penalty
        frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = off.frequency_penalty
        no_repeat_ngram: Annotated[int, Field(ge=0, le=20, description="0 is off")] = off.no_repeat_ngram
        seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None

        def chosen(self) -> dict:
            return {name: getattr(self, name) for name in Sampling.model_fields}

    class GenerateRequest(Sampling):
        context: Annotated[text, Field(description="the beginning of every text")]
        maxlength: Annotated[int, Field(ge=1, le=limits.max_length)] = min(50, limits.max_length)
        samples: Annotated[int, Field(ge=1, le=limits.max_samples)] = min(5, limits.max_samples)

        @property
        def prompts(self) -> list[str]:
            return [self.context]

        def settings(self) -> Settings:
            return Settings(max_new_tokens=self.maxlength, **self.chosen())

    class CompletionRequest(Sampling):
        model: Annotated[str, Field(max_length=200, description="as /v1/models names it")] | None = None
        prompt: _one_or_many(text, limits.max_samples, "the beginning of a text, or a list of beginnings")
        max_tokens: Annotated[int, Field(ge=1, le=limits.max_length)] = min(16, limits.max_length)
        n: Annotated[int, Field(ge=1, le=limits.max_samples, description="texts of each prompt")] = 1
        stop: _one_or_many(ending, 4, "a text ends before the first of these") | None = None
        logprobs: Annotated[int, Field(ge=0, le=5, description="alternatives told of each token")] | None = None
        echo: Annotated[bool, Field(description="whether a text starts with its prompt")] = False
        stream: Annotated[bool, Field(description="send the text as it is written")] = False
        stream_options: StreamOptions | None = None
        user: Annotated[str, Field(max_length=200, description="taken, and not looked at")] | None = None

        @model_validator(mode="after")
        def agree(self):
            if len(self.prompts) * self.n > limits.max_samples:
                texts = f"{len(self.prompts)} prompts of {self.n} texts each"
                raise PydanticCustomError("rule", f"{texts} are too many: a request writes {limits.max_samples}")
            if sum(map(len, self.prompts)) > limits.max_context:
                raise PydanticCustomError("rule", f"'prompt': at most {limits.max_context} characters in all")
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

        def settings(self) -> Settings:
            stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
            return Settings(max_new_tokens=self.max_tokens, stop=stops, logprobs=self.logprobs, **self.chosen())

    return GenerateRequest, CompletionRequest


def read(model: type[BaseModel], body: bytes) -> BaseModel:
    """Return the request that a body holds; raises Invalid with the reasons."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise Invalid(_reason(faults, model), str(faults[0]["loc"][0])[:40] if faults[0]["loc"] else None) from None


def _reason(faults: list, model: type[BaseModel]) -> str:
    """Return one sentence a fault, at most three."""
    sentences = []
    for fault in faults[:3]:
        place = [str(part) for part in fault["loc"] if part not in ("one", "many")]
        key = "'" + ".".join(place)[:40] + "'"
        match fault["type"]:
            case "json_invalid":
                sentences.append(f"the body is not JSON: {fault['ctx']['error']}")
            case "model_type" if not place:
                required = next(name for name, info in model.model_fields.items() if info.is_required())
                sentences.append(f'the body must be a JSON object, such as {{"{required}": "你好"}}')
            case "missing":
                sentences.append(f"{key} is missing")
            case "extra_forbidden":
                own = model.__annotations__  # before those that both kinds of request have
                keys = [*own, *(name for name in model.model_fields if name not in own)]
                sentences.append(f"{key} is not known: the keys are {', '.join(keys)}")
            case "string_too_short":
                sentences.append(f"{key} is empty: give at least one character")
            case "rule":
                sentences.append(fault["msg"])
            case _:
                sentences.append(f"{key}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(sentences)


# ---- answers ----


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Logprobs(BaseModel):
    """Of each new token: its text, its log probability (natural), its likeliest rivals, where it begins in `text`."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """A text, or in a stream a piece of it; finish_reason is null until its last piece."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
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


def refusal(path: str, status: int, words: str, code: str | None = None, key: str | None = None) -> BaseModel:
    """Return the body of a refusal in the form of its address: OpenAI's under /v1, the plain one elsewhere."""
    if not path.startswith("/v1/"):
        return Error(error=words)
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return OpenAIError(error=ErrorDetail(message=words, type=kind, param=key, code=code))


@dataclass
class Writer:
    """Forms the answer to one completion request, whole or in pieces; the pieces have one id and one date."""

    model: str
    wanted: BaseModel  # a CompletionRequest
    prompt_tokens: int
    id: str = field(default_factory=lambda: f"cmpl-{token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _next: dict[int, int] = field(default_factory=dict)  # of each text that has begun: where its next token begins

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        """Return the JSON of the whole answer; `results` are the samples of each prompt."""
        choices = []
        for prompt, samples in zip(self.wanted.prompts, results, strict=True):
            for sample in samples:
                text = sample.text if self.wanted.echo else sample.text[len(prompt) :]
                choices.append(self._choice(len(choices), text, sample.choices, sample.reason))
        return self._completion(choices, self._usage(results)).model_dump_json()

    def piece(self, index: int, text: str, choices: Sequence[TokenLogprob], reason: str | None) -> str:
        """Return the JSON of an event: a piece of text `index`, its tokens, and the reason if it is the last."""
        if self.wanted.echo and index not in self._next:
            text = self.wanted.prompts[index // self.wanted.n] + text
        return self._event([self._choice(index, text, choices, reason)], None)

    def ending(self, results: Sequence[Sequence[Sample]]) -> str | None:
        """Return the JSON of the last event, which holds the usage; None if it was not asked for."""
        return self._event([], self._usage(results)) if self._usage_wanted else None

    @property
    def _usage_wanted(self) -> bool:
        return bool(self.wanted.stream_options and self.wanted.stream_options.include_usage)

    def _event(self, choices: list[CompletionChoice], usage: Usage | None) -> str:
        return self._completion(choices, usage).model_dump_json(exclude=None if self._usage_wanted else {"usage"})

    def _completion(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)

    def _usage(self, results: Sequence[Sequence[Sample]]) -> Usage:
        written = sum(len(sample.tokens) for samples in results for sample in samples)
        return Usage(
            prompt_tokens=self.prompt_tokens, completion_tokens=written, total_tokens=self.prompt_tokens + written
        )

    def _choice(self, index: int, text: str, choices: Sequence[TokenLogprob], reason: str | None) -> CompletionChoice:
        logprobs = None if self.wanted.logprobs is None else self._logprobs(index, choices)
        self._next.setdefault(index, 0)
        return CompletionChoice(index=index, text=text, finish_reason=ENDS[reason], logprobs=logprobs)

    def _logprobs(self, index: int, choices: Sequence[TokenLogprob]) -> Logprobs:
        offsets, begin = [], self._next.get(index, 0)
        for choice in choices:
            offsets.append(begin)
            begin += len(choice.text)
        self._next[index] = begin
        return Logprobs(
            tokens=[choice.text for choice in choices],
            token_logprobs=[max(choice.logprob, LOWEST) for choice in choices],
            # as OpenAI does it: the token itself stands among its rivals, also when it was not one of the likeliest
            top_logprobs=[
                {text: max(logprob, LOWEST) for text, logprob in (*choice.alternatives, (choice.text, choice.logprob))}
                for choice in choices
            ],
            text_offset=offsets,
        )


def models(name: str, created: int) -> ModelList:
    """Return the answer of /v1/models: one model."""
    return ModelList(data=[ModelCard(id=name, created=created, owned_by="chinese-gpt")])


# ---- /openapi.json ----


def openapi(generate_request: type[BaseModel], completion_request: type[BaseModel], key: bool) -> dict:
    """Return the OpenAPI 3.1 description of the service; `key`: whether callers must show one."""
    _, schemas = models_json_schema(
        [(model, "validation") for model in (generate_request, completion_request, Completion, ModelList, Status)]
        + [(model, "validation") for model in (Error, OpenAIError)],
        ref_template="#/components/schemas/{model}",
    )

    def content(schema: dict, kind: str = "application/json") -> dict:
        return {"content": {kind: {"schema": schema}}}

    def model(of: type[BaseModel]) -> dict:
        return {"$ref": f"#/components/schemas/{of.__name__}"}

    def operation(summary: str, answer: dict, error: type[BaseModel], body: type[BaseModel] | None = None) -> dict:
        # all refusals share one form, so they are told once
        refused = {"description": "refused, in words"} | content(model(error))
        answers = {"200": {"description": "the answer"} | answer, "4XX": refused, "5XX": refused}
        asked = {"requestBody": {"required": True} | content(model(body))} if body else {}
        return {"summary": summary, "responses": answers} | asked

    texts = content({"type": "array", "items": {"type": "string"}})
    completions = content(model(Completion))
    stream = {"description": "events of Completion, each as `data: {…}`; the last one is `data: [DONE]`"}
    completions["content"] |= content(stream, "text/event-stream")["content"]
    paths = {
        "/generate": {"post": operation("continue a text, as the book does", texts, Error, generate_request)},
        "/v1/completions": {
            "post": operation("continue texts, as OpenAI does", completions, OpenAIError, completion_request)
        },
        "/v1/models": {"get": operation("the model that is served", content(model(ModelList)), OpenAIError)},
        "/healthz": {"get": operation("is the process alive?", content(model(Status)), Error)},
        "/readyz": {"get": operation("does it take requests?", content(model(Status)), Error)},
    }
    description = {"openapi": "3.1.0", "info": {"title": "Chinese GPT", "version": "1"}, "paths": paths}
    description["components"] = {"schemas": schemas["$defs"]}
    if key:
        schemes = {"bearer": {"type": "http", "scheme": "bearer"}, "basic": {"type": "http", "scheme": "basic"}}
        description["components"]["securitySchemes"] = schemes
        description["security"] = [{"bearer": []}, {"basic": []}]
        paths["/healthz"]["get"]["security"] = []
    return description
