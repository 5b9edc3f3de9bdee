"""What /openapi.json says: every address, its keys and their limits, and nothing that it does not explain."""

import json

from service import fetch


def test_openapi_tells_the_limits():
    status, _, told = fetch(
        "GET", "/openapi.json", options={"max_length": 77, "api_key": "k"}, headers={"Authorization": "Bearer k"}
    )
    assert status == 200
    schemas = told["components"]["schemas"]
    assert schemas["CompletionRequest"]["properties"]["max_tokens"]["maximum"] == 77
    assert schemas["GenerateRequest"]["properties"]["maxlength"]["maximum"] == 77
    assert schemas["ChatRequest"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 77
    assert schemas["ChatRequest"]["properties"]["messages"]["maxItems"] == 200
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert schemas["CompletionRequest"]["additionalProperties"] is False
    assert set(told["paths"]) == {
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{model}",
        "/healthz",
        "/readyz",
    }
    references = {part.split('"')[0] for part in json.dumps(told).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    assert {"Error", "OpenAIError"} <= references  # a refusal has one form outside of /v1, another one under it
