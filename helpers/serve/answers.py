"""What an answer looks like, whole or as the events of a stream: OpenAI's completions and conversations, refusals.

Knows no server and no engine: samples and chunks come in, JSON goes out.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, ClassVar

from pydantic.json_schema import models_json_schema

from helpers.generate.settings import Sample, TokenLogprob
from helpers.serve.schema import RequestModels
from helpers.vocab.chat import CallForm

_LOWEST = -9999.0  # in place of a log probability of minus infinity, which JSON cannot write
_FINISH = {"end": "stop", "stop": "stop", "length": "length", "call": "tool_calls", None: None}

compact_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


def refusal(path: str, status: int, message: str, code: str | None = None, key: str | None = None) -> dict:
    """Return the error body in the form of its route: OpenAI's under /v1, the plain one elsewhere."""
    if not path.startswith("/v1/"):
        return {"error": message}
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": key, "code": code}}


def model_card(name: str, created: int, about: Mapping[str, Any]) -> dict:
    """Return what OpenAI's API tells of a model, and what the page is told about it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "chinese-gpt", **about}


@dataclass
class CompletionWriter:
    """Writes what /v1/completions answers, whole or in events; all events have one id and one date."""

    PREFIX: ClassVar[str] = "cmpl"  # of the id
    KINDS: ClassVar[tuple[str, str]] = ("text_completion", "text_completion")  # of a whole answer, of an event

    model: str
    request: Any  # a body of one of OpenAI's routes
    prompt_tokens: int

    def __post_init__(self) -> None:
        self.id, self.created = f"{self.PREFIX}-{token_hex(12)}", int(time.time())

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        """Return the JSON of the whole answer; `results` are the samples of each prompt."""
        choices: list[dict] = []
        for prompt, samples in zip(self.request.prompts, results, strict=True):
            for sample in samples:
                text = {"text": sample.text[len(prompt) :]}
                choices.append(self._choice(len(choices), text, sample.logprobs, sample.reason))
        return self._json(self.KINDS[0], choices, usage=self._usage(results))

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str | None:
        """Return the JSON of an event: new characters of text `index`, their tokens, and in its last one the reason.

        None where there is nothing to tell yet.
        """
        return self._json(self.KINDS[1], [self._choice(index, {"text": text}, tokens, reason)], **self._no_usage())

    def ending(self, results: Sequence[Sequence[Sample]]) -> str | None:
        """Return the JSON of the last event, which holds the usage; None if it was not asked for."""
        return self._json(self.KINDS[1], [], usage=self._usage(results)) if self.request.stream_has_usage else None

    def _json(self, kind: str, choices: list[dict], **more: Any) -> str:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return compact_json(head | {"choices": choices} | more)

    def _usage(self, results: Sequence[Sequence[Sample]]) -> dict:
        read, written = self.prompt_tokens, sum(len(sample.tokens) for samples in results for sample in samples)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _no_usage(self) -> dict:
        """Return what an event says of the usage before the last one tells it: null, or nothing if it never will."""
        return {"usage": None} if self.request.stream_has_usage else {}

    def _choice(self, index: int, text: dict, tokens: Sequence[TokenLogprob], reason: str | None) -> dict:
        asked = self.request.logprobs  # a number, 0 too, or a truth value
        logprobs = None if asked is None or asked is False else self._logprobs(tokens)
        return {"index": index, **text, "finish_reason": _FINISH[reason], "logprobs": logprobs}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict:
        """Per token: its text, its natural log probability, the likeliest tokens with theirs, its start in the text."""
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [max(token.logprob, _LOWEST) for token in tokens],
            "top_logprobs": [_rivals(token) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


@dataclass
class ChatWriter(CompletionWriter):
    """Writes what /v1/chat/completions answers."""

    PREFIX = "chatcmpl"
    KINDS = ("chat.completion", "chat.completion.chunk")

    left_out: int  # the oldest messages, for which the context had no room
    form: CallForm | None = None  # how the model writes a call; None: no tools were sent
    begun: set[int] = field(default_factory=set, init=False)  # the answers of a stream that have begun
    held: dict[int, tuple[str, list[TokenLogprob]]] = field(default_factory=dict, init=False)  # perhaps a call begins

    def whole(self, results: Sequence[Sequence[Sample]]) -> str:
        choices = []
        for i, each in enumerate(results[0]):
            said, reason = self._said(each.text, each.reason)
            choices.append(self._choice(i, {"message": {"role": "assistant"} | said}, each.logprobs, reason))
        return self._json(self.KINDS[0], choices, usage=self._usage(results), messages_left_out=self.left_out)

    def event(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> str | None:
        before, earlier = self.held.pop(index, ("", []))
        text, tokens = before + text, [*earlier, *tokens]
        # where only a token opens a call, nothing stands before it
        may_call = self.form and (self.form.opens or index not in self.begun)
        if self.form and may_call and not reason and self.form.may_begin(text):
            self.held[index] = (text, tokens)
            return None
        role = {} if index in self.begun else {"role": "assistant"}  # only the first event of an answer tells it
        left_out = {} if self.begun else {"messages_left_out": self.left_out}
        self.begun.add(index)
        said, reason = self._said(text, reason) if may_call else ({"content": text}, reason)
        for number, call in enumerate(said.get("tool_calls", ())):
            call["index"] = number
        choice = self._choice(index, {"delta": role | said}, tokens, reason)
        return self._json(self.KINDS[1], [choice], **self._no_usage(), **left_out)

    def _said(self, text: str, reason: str | None) -> tuple[dict[str, Any], str | None]:
        """Return what an answer says, or which tools it calls, and why it ended."""
        names = [each.function.name for each in self.request.tools] if self.form else []
        said, calls = self.form.read(text, names) if self.form and reason else (text, [])
        if not calls:
            return {"content": text}, reason
        functions = [{"name": call["name"], "arguments": compact_json(call["arguments"])} for call in calls]
        told = [{"id": f"call_{token_hex(12)}", "type": "function", "function": each} for each in functions]
        return {"content": said or None, "tool_calls": told}, "call"

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict:
        return {
            "content": [
                _told(token.text, token.logprob) | {"top_logprobs": [_told(*rival) for rival in token.alternatives]}
                for token in tokens
            ]
        }


def _told(token: str, logprob: float) -> dict:
    """Return a token, its log probability, and its bytes; these are null where it is only a part of a character."""
    whole = "\ufffd" not in token
    return {"token": token, "logprob": max(logprob, _LOWEST), "bytes": list(token.encode()) if whole else None}


def _rivals(token: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and this one, by their texts.

    All bytes that are only a part of a character have one text: of several rivals the likeliest is told.
    """
    rivals: dict[str, float] = {}
    for text, logprob in token.alternatives:  # the likeliest first
        rivals.setdefault(text, max(logprob, _LOWEST))
    # as OpenAI does it: the token itself is in the list, also when it is not one of the likeliest
    return rivals | {token.text: max(token.logprob, _LOWEST)}


# ---- the description for programs ----


def _operation(summary: str, error: dict, body: Any = None) -> dict:
    """Return the description of a route, which takes a body or none; error: the form of a reason."""
    reason = {"application/json": {"schema": {"type": "object", "properties": {"error": error}}}}
    refused = {"description": "refused, in words", "content": reason}
    streams = bool(body) and "stream" in body.model_fields
    told: dict = {kind: {} for kind in ("application/json", *["text/event-stream"] * streams)}
    answers = {"200": {"description": "the answer", "content": told}, "4XX": refused, "5XX": refused}
    if not body:
        return {"get": {"summary": summary, "responses": answers}}
    schema = {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}
    asked = {"required": True, "content": {"application/json": schema}}
    return {"post": {"summary": summary, "responses": answers, "requestBody": asked}}


def describe_api(requests: RequestModels, has_key: bool) -> dict:
    """Return the OpenAPI 3.1 description of the service; has_key: whether requests must carry an API key."""
    plain: dict = {"type": "string"}
    detailed = {"type": "object", "properties": {key: {} for key in refusal("/v1/", 400, "")["error"]}}
    paths = {
        "/generate": _operation("continue a text, as the book does", plain, requests.generate),
        "/v1/completions": _operation("continue texts, as OpenAI does", detailed, requests.completion),
        "/v1/chat/completions": _operation("answer in a conversation, as OpenAI does", detailed, requests.chat),
        "/v1/models": _operation("the model that is served", detailed),
        "/v1/models/{model}": _operation("is this the model?", detailed)
        | {"parameters": [{"name": "model", "in": "path", "required": True, "schema": plain}]},
        "/healthz": _operation("is the process alive?", plain),
        "/readyz": _operation("does its engine run?", plain),
    }
    reference = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(body, "validation") for body in requests], ref_template=reference)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    described: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "Chinese GPT", "version": "1"}, "paths": paths}
    if has_key:
        paths["/healthz"]["get"]["security"] = []
        components["securitySchemes"] = {scheme: {"type": "http", "scheme": scheme} for scheme in ("bearer", "basic")}
        described["security"] = [{scheme: []} for scheme in components["securitySchemes"]]
    return described | {"components": components}
