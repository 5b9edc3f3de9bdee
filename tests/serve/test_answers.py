"""What an answer looks like: numbers that JSON can write, bytes of tokens, what only the first events tell."""

import json

import pytest

from helpers.generate.settings import Sample, TokenLogprob
from helpers.serve import schema
from helpers.serve.answers import ChatCompletion, ChatWriter, CompletionWriter
from helpers.serve.limits import DEFAULT_LIMITS

MODELS = schema.request_models(DEFAULT_LIMITS)
NEVER = TokenLogprob(1, "b", float("-inf"), 9, (("c", 0.0), ("\ufffd", -1.0)))
SAMPLE = Sample("ab", True, [1], "end", (NEVER,))


def chat_writer(**more):
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], **more})
    return ChatWriter("m", schema.read(MODELS.chat, body.encode()), 3, 2)


def test_minus_infinity_is_a_number_in_json():
    wanted = schema.read(MODELS.completion, b'{"prompt": "a", "logprobs": 1}')
    told = json.loads(CompletionWriter("m", wanted, 1).whole([[SAMPLE]]))["choices"][0]
    assert told["logprobs"]["token_logprobs"] == [-9999.0]
    assert told["logprobs"]["top_logprobs"] == [{"c": 0.0, "\ufffd": -1.0, "b": -9999.0}]
    assert told["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "own, told",
    [
        (("b", -7.0), {"\ufffd": -0.5, "c": -3.0, "b": -7.0}),
        (("\ufffd", -2.0), {"\ufffd": -2.0, "c": -3.0}),  # the value of the token that was written
    ],
)
def test_of_bytes_that_share_one_name_the_likeliest_is_told(own, told):
    wanted = schema.read(MODELS.completion, b'{"prompt": "a", "logprobs": 3}')
    token = TokenLogprob(1, *own, 9, (("\ufffd", -0.5), ("\ufffd", -2.0), ("c", -3.0)))
    answer = json.loads(CompletionWriter("m", wanted, 1).whole([[Sample("ab", True, [1], "end", (token,))]]))
    assert list(answer["choices"][0]["logprobs"]["top_logprobs"][0].items()) == list(told.items())


def test_a_chat_answer_tells_each_token_and_its_rivals():
    answer = chat_writer(logprobs=True, top_logprobs=2).whole([[SAMPLE]])
    assert ChatCompletion.model_validate_json(answer, strict=True)  # as /openapi.json has it
    told = json.loads(answer)
    assert told["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab"},
            "finish_reason": "stop",
            "logprobs": {
                "content": [
                    {
                        "token": "b",
                        "logprob": -9999.0,
                        "bytes": [98],
                        "top_logprobs": [
                            {"token": "c", "logprob": 0.0, "bytes": [99]},
                            {"token": "\ufffd", "logprob": -1.0, "bytes": None},  # a part of a character
                        ],
                    }
                ]
            },
        }
    ]
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert (told["object"], told["messages_left_out"]) == ("chat.completion", 2)
    assert told["id"].startswith("chatcmpl-")


@pytest.mark.parametrize("usage", [False, True])
def test_the_first_event_of_each_answer_tells_the_role(usage):
    more = {"stream": True, "n": 2} | ({"stream_options": {"include_usage": True}} if usage else {})
    writer = chat_writer(**more)
    asked = [(0, "x", None), (1, "y", None), (0, "", "end"), (1, "z", "length")]
    told = [json.loads(writer.event(index, text, (), reason)) for index, text, reason in asked]
    choices = [event["choices"][0] for event in told]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant", "assistant", None, None]
    assert [choice["delta"]["content"] for choice in choices] == ["x", "y", "", "z"]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop", "length"]
    assert [event.get("messages_left_out", "-") for event in told] == [2, "-", "-", "-"]
    assert len({event["id"] for event in told}) == 1 and {event["object"] for event in told} == {
        "chat.completion.chunk"
    }
    assert all(("usage" in event) == usage for event in told)
    ending = writer.ending([[SAMPLE, SAMPLE]])
    assert (json.loads(ending)["usage"]["completion_tokens"] == 2) if usage else ending is None
