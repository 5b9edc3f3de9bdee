"""The OpenAPI description of the service, made from the models that check requests and form answers."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from helpers.serve.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Error,
    ModelCard,
    ModelList,
    OpenAIError,
    Status,
)
from helpers.serve.schema import RequestModels


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


def describe(requests: RequestModels, has_key: bool) -> dict:
    """Return the OpenAPI 3.1 description of the service; has_key: whether requests must carry an API key."""
    bodies = (requests.generate, requests.completion, requests.chat)
    models = (*bodies, Completion, ChatCompletion, ChatChunk, ModelList, ModelCard, Status, Error, OpenAIError)
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    texts, completion = {"type": "array", "items": {"type": "string"}}, _reference(Completion)
    complete = _operation("continue texts, as OpenAI does", completion, OpenAIError, requests.completion)
    answered = _reference(ChatCompletion)
    converse = _operation("answer in a conversation, as OpenAI does", answered, OpenAIError, requests.chat)
    for operation, event in ((complete, Completion), (converse, ChatChunk)):
        stream = {"description": f"events of {event.__name__}, each as `data: {{…}}`; the last one is `data: [DONE]`"}
        operation["responses"]["200"]["content"] |= _content(stream, "text/event-stream")["content"]
    paths: dict[str, dict[str, Any]] = {
        "/generate": {"post": _operation("continue a text, as the book does", texts, Error, requests.generate)},
        "/v1/completions": {"post": complete},
        "/v1/chat/completions": {"post": converse},
        "/v1/models": {"get": _operation("the model that is served", _reference(ModelList), OpenAIError)},
        "/v1/models/{model}": {
            "get": _operation("is this the model?", _reference(ModelCard), OpenAIError),
            "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
        },
        "/healthz": {"get": _operation("is the process alive?", _reference(Status), Error)},
        "/readyz": {"get": _operation("does its engine run?", _reference(Status), Error)},
    }
    description = {"openapi": "3.1.0", "info": {"title": "Chinese GPT", "version": "1"}, "paths": paths}
    if not has_key:
        return description | {"components": {"schemas": schemas["$defs"]}}
    paths["/healthz"]["get"]["security"] = []
    schemes = {scheme: {"type": "http", "scheme": scheme} for scheme in ("bearer", "basic")}
    components = {"schemas": schemas["$defs"], "securitySchemes": schemes}
    return description | {"components": components, "security": [{scheme: []} for scheme in schemes]}
