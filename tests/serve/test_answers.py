"""What an answer looks like: numbers that JSON can write, bytes of tokens, what only the first events tell; OpenAPI."""

import json
from dataclasses import replace

import pytest
from service import fetch

from helpers.generate.settings import Sample, TokenLogprob
from helpers.serve import schema
from helpers.serve.answers import ChatWriter, CompletionWriter, describe_api
from helpers.serve.app import GETS, PAGE, POSTS
from helpers.serve.limits import DEFAULT_LIMITS
from helpers.vocab.chat import CallForm

MODELS = schema.request_models(DEFAULT_LIMITS)
NEVER = TokenLogprob(1, "b", float("-inf"), 9, (("c", 0.0), ("\ufffd", -1.0)), 1)
SAMPLE = Sample("ab", True, [1], "end", (NEVER,))
TALK = [{"role": "user", "content": "a"}]


def completion_writer(**more):
    return CompletionWriter(
        "m", schema.read_request(MODELS.completion, json.dumps({"prompt": "a", **more}).encode()), 1
    )


def chat_writer(**more):
    return ChatWriter("m", schema.read_request(MODELS.chat, json.dumps({"messages": TALK, **more}).encode()), 3, 2)


@pytest.mark.parametrize(
    "writer, told",
    [
        (completion_writer(), False), (completion_writer(logprobs=0), True),
        (chat_writer(), False), (chat_writer(logprobs=False), False), (chat_writer(logprobs=True), True),
    ],
)  # fmt: skip
def test_log_probabilities_are_told_to_whom_asked(writer, told):
    """For completions 0 is a number of rivals: the tokens themselves are told."""
    answers = json.loads(writer.whole([[SAMPLE]])), json.loads(writer.event(0, "b", (NEVER,), None))
    assert [answer["choices"][0]["logprobs"] is not None for answer in answers] == [told, told]


@pytest.mark.parametrize("reason, told", [("end", "stop"), ("stop", "stop"), ("length", "length")])
def test_a_completion_tells_each_token_its_place_and_its_rivals_and_minus_infinity_is_a_number(reason, told):
    (choice,) = json.loads(completion_writer(logprobs=1).whole([[replace(SAMPLE, reason=reason)]]))["choices"]
    rivals = [{"c": 0.0, "\ufffd": -1.0, "b": -9999.0}]
    logprobs = {"tokens": ["b"], "token_logprobs": [-9999.0], "top_logprobs": rivals, "text_offset": [1]}
    assert choice == {"index": 0, "text": "b", "finish_reason": told, "logprobs": logprobs}


@pytest.mark.parametrize(
    "own, told",
    [
        (("b", -7.0), {"\ufffd": -0.5, "c": -3.0, "b": -7.0}),
        (("\ufffd", -2.0), {"\ufffd": -2.0, "c": -3.0}),  # the value of the token that was written
    ],
)
def test_of_bytes_that_share_one_name_the_likeliest_is_told(own, told):
    token = TokenLogprob(1, *own, 9, (("\ufffd", -0.5), ("\ufffd", -2.0), ("c", -3.0)))
    answer = json.loads(completion_writer(logprobs=3).whole([[replace(SAMPLE, logprobs=(token,))]]))
    assert list(answer["choices"][0]["logprobs"]["top_logprobs"][0].items()) == list(told.items())


def test_a_chat_answer_tells_each_token_and_its_rivals():
    told = json.loads(chat_writer(logprobs=True, top_logprobs=2).whole([[SAMPLE]]))
    rivals = [{"token": "c", "logprob": 0.0, "bytes": [99]}, {"token": "\ufffd", "logprob": -1.0, "bytes": None}]
    token = {"token": "b", "logprob": -9999.0, "bytes": [98], "top_logprobs": rivals}
    message = {"role": "assistant", "content": "ab"}
    (choice,) = told["choices"]
    assert choice == {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": [token]}}
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    events = [json.loads((writer := chat_writer()).event(0, "a", (), None)), json.loads(writer.event(0, "b", (), None))]
    assert [each.get("messages_left_out") for each in (told, *events)] == [2, 2, None]


def test_what_may_become_a_call_waits_until_that_is_clear():
    writer = chat_writer(tools=[{"type": "function", "function": {"name": "f"}}])
    writer.form = CallForm("<tool_call>", "</tool_call>", frozenset())
    pieces = ["好<to", "l", "<tool_call", '>{"name": "f", "arg', 'uments": {}}</tool_call>']
    events = [writer.event(0, text, (), "end" if text == pieces[-1] else None) for text in pieces]
    told = [json.loads(event)["choices"][0]["delta"] for event in events if event]
    assert [event is None for event in events] == [True, False, True, True, False]
    assert told[0] == {"role": "assistant", "content": "好<tol"}
    assert told[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"} and told[1]["content"] is None


# ---- the description for programs ----


def test_openapi_tells_every_route_and_the_limits():
    key = {"options": {"max_length": 77, "api_key": "k"}, "headers": {"Authorization": "Bearer k"}}
    status, _, told = fetch("GET", "/openapi.json", **key)
    assert status == 200 and set(told["paths"]) == set(POSTS) | set(GETS) - set(PAGE) - {"/metrics", "/openapi.json"}
    schemas = told["components"]["schemas"]
    assert schemas["CompletionRequest"]["properties"]["max_tokens"]["maximum"] == 77
    assert schemas["GenerateRequest"]["properties"]["maxlength"]["maximum"] == 77
    assert schemas["ChatRequest"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 77
    assert schemas["ChatRequest"]["properties"]["messages"]["maxItems"] == 200
    required = [schemas[name]["required"] for name in ("GenerateRequest", "CompletionRequest", "ChatRequest")]
    assert required == [["context"], ["prompt"], ["messages"]]
    assert schemas["CompletionRequest"]["additionalProperties"] is False
    assert {"Tool", "ToolCall"} <= set(schemas)
    references = {part.split('"')[0] for part in json.dumps(told).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)


@pytest.mark.parametrize("has_key", [True, False])
def test_openapi_tells_who_must_send_a_key(has_key):
    told = describe_api(MODELS, has_key)
    assert ("security" in told, "security" in told["paths"]["/healthz"]["get"]) == (has_key, has_key)
