"""The forms of requests and answers, as OpenAI's own client meets them and as an enemy does."""

from functools import partial

import openai
import pytest
from models import LOOK_UP
from service import (
    TALK,
    FakeEngine,
    called,
    chat_tokenizer,
    directly,
    ids_of,
    in_thread,
    message,
    post,
    tiny_engine,
    tools_tokenizer,
)

from helpers.generate.batch import prompt_ids
from helpers.generate.settings import Settings
from helpers.serve import schema
from helpers.serve.engine import QueueFull
from helpers.serve.limits import DEFAULT_LIMITS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT, SYSTEM = TALK[0]["content"], message("system", "看土")
user, assistant = partial(message, "user"), partial(message, "assistant")


@pytest.fixture(scope="module")
def client():
    """OpenAI's client, and a server with a tiny real model that has a chat template."""
    with tiny_engine(chat_tokenizer()) as engine, in_thread(engine, name="tiny", api_key="a-key") as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="a-key", max_retries=0, timeout=60) as client:
            yield client


def ask(client, path=COMPLETIONS, **wishes):
    """Ask one of the two routes; `text` is the prompt, or a conversation's only message."""
    wishes = {"model": "tiny", "max_tokens": 12, "seed": 3} | wishes
    if path == CHAT:
        return client.chat.completions.create(**{"messages": TALK} | wishes)
    return client.completions.create(**{"prompt": PROMPT} | wishes)


def text_of(choice):
    """Return the text of a choice, of either route, whole or a part of a stream."""
    part = getattr(choice, "message", None) or getattr(choice, "delta", None)
    return part.content if part else choice.text


def said(answer):
    return [text_of(choice) for choice in answer.choices]


both = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])

# ---- the real client ----


@pytest.mark.parametrize(
    "path, kind, prompt",
    [(COMPLETIONS, ("text_completion", "cmpl"), lambda: prompt_ids(chat_tokenizer(), PROMPT)),
     (CHAT, ("chat.completion", "chatcmpl"), lambda: ids_of(TALK))],
)  # fmt: skip
def test_an_answer_is_what_the_model_writes_after_these_ids(client, path, kind, prompt):
    answer, ids = ask(client, path), prompt()
    (choice,) = answer.choices
    assert (answer.object, answer.id.partition("-")[0]) == kind and answer.model == "tiny"
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert text_of(choice) == directly(ids, max_new_tokens=12, seed=3) != ""
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 12)


@both
def test_a_seed_brings_the_same_texts_again_and_n_texts_differ(client, path):
    three = said(ask(client, path, n=3))
    assert len(set(three)) == 3 and three[:1] == said(ask(client, path)) != said(ask(client, path, seed=4))


def test_several_prompts_keep_their_order(client):
    several = ask(client, prompt=[PROMPT, "春天"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert said(several)[:2] == said(ask(client, n=2)) and several.usage.completion_tokens == 48


@both
@pytest.mark.parametrize("wishes", [{}, {"n": 3}, {"logprobs": 2}, {"prompt": [PROMPT, "春天"], "n": 2}])
def test_a_stream_adds_up_to_the_whole(client, path, wishes):
    if path == CHAT:
        wishes = {"messages": TALK[2:]} if "prompt" in wishes else wishes
        wishes = {"logprobs": True, "top_logprobs": 2} if "logprobs" in wishes else wishes
    whole = ask(client, path, **wishes)
    chunks = list(ask(client, path, stream=True, stream_options={"include_usage": True}, **wishes))
    assert len({(chunk.id, chunk.created, chunk.object, chunk.model) for chunk in chunks}) == 1
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.usage]
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [choice.finish_reason]
        if path == CHAT:
            assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        for key in ("content",) if path == CHAT else ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            told = [getattr(part.logprobs, key) for part in parts if part.logprobs]
            assert sum(told, []) == (getattr(choice.logprobs, key) if choice.logprobs else [])
    if path == CHAT:
        told = [getattr(chunk, "messages_left_out", None) for chunk in chunks]
        assert told == [0] + [None] * (len(chunks) - 1)


def test_the_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny") == model
    assert model.defaults["texts"]["temperature"] == 0.8 and model.defaults["chat"]["temperature"] <= 0.3
    with pytest.raises(openai.NotFoundError, match="its model is 'tiny'"):
        client.models.retrieve("gpt-4")


# ---- tools ----

CALL = '{"name":"look_up","arguments":{"plant":"绿萝"}}'


@pytest.mark.parametrize(
    "written, wishes, content",
    [(CALL, {}, None), (f"<tool>{CALL}", {}, f"<tool>{CALL}"), (CALL[:-1], {}, CALL[:-1]), ("{看土", {}, "{看土"),
     (CALL, {"tool_choice": "none"}, CALL), (CALL.replace("look_up", "add"), {}, CALL.replace("look_up", "add"))],
)  # fmt: skip
def test_a_call_of_a_tool_that_was_sent_is_told_as_one_whole_and_streamed(written, wishes, content):
    engine = FakeEngine(tokenizer=tools_tokenizer(), answers=[written] * 2)
    with in_thread(engine, name="tiny") as address, openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client:
        (whole,) = ask(client, CHAT, tools=[LOOK_UP], **wishes).choices
        with client.chat.completions.stream(model="tiny", messages=TALK, tools=[LOOK_UP], **wishes) as stream:
            (streamed,) = stream.get_final_completion().choices
    for choice in (whole, streamed):
        calls = [call.function for call in choice.message.tool_calls or ()]
        assert [(call.name, call.arguments) for call in calls] == [("look_up", '{"plant":"绿萝"}')] * (content is None)
        assert choice.message.content == content
        assert choice.finish_reason == ("stop" if content else "tool_calls")


def test_a_call_and_its_result_are_read_again():
    engine = FakeEngine(tokenizer=tools_tokenizer(), window=200)
    result = message("tool", "看土") | {"tool_call_id": "call-0"}
    call = message("assistant", None) | {"tool_calls": [called('{"plant": "绿萝"}') | {"index": 0}]}
    body = {"messages": [TALK[0], call, result], "tools": [LOOK_UP], "parallel_tool_calls": True}
    status, answer = post(body, CHAT, engine=engine)
    assert status == 200, answer
    read = called("") | {"function": {"name": "look_up", "arguments": {"plant": "绿萝"}}}
    talk = [TALK[0], message("assistant", "") | {"tool_calls": [read]}, message("tool", "看土")]
    assert engine.encoded == [ids_of(talk, [LOOK_UP])]


@pytest.mark.parametrize(
    "wishes, words",
    [({"tools": [LOOK_UP], "tool_choice": "required"}, "'tool_choice'"), ({"tools": [{"type": "web"}]}, "'tools.0"),
     ({"messages": [TALK[0], message("tool", "x")]}, "take turns"),
     ({"messages": [TALK[0] | {"tool_calls": [called("{}")]}]}, "only the assistant's"),
     ({"messages": [TALK[0], TALK[1] | {"tool_calls": [called("[]")]}]}, "an object"),
     ({"messages": [TALK[0], TALK[1] | {"tool_calls": [called("{}")]}]}, "take turns")],
)  # fmt: skip
def test_what_is_no_conversation_with_tools_is_refused(wishes, words):
    status, answer = post({"messages": TALK} | wishes, CHAT, engine=FakeEngine(tokenizer=tools_tokenizer()))
    assert status == 400 and words in answer["error"]["message"]


# ---- refusals ----

PART = {"type": "text", "text": "x"}
REFUSED = [
    (COMPLETIONS, {"prompt": [1, 10**9]}, "prompt", "an id that no token has"),
    (COMPLETIONS, {"prompt": "😀" * 1100}, "prompt", "tokens, and 4096 are allowed"),
    (COMPLETIONS, {"prompt": ["好"] * 6, "n": 2}, None, "6 prompts of 2 texts each are too many"),
    (COMPLETIONS, {"prompt": ["好" * 1500] * 2}, None, "2000 characters in all"),
    (COMPLETIONS, {"logprobs": 6}, "logprobs", "less than or equal to 5"),
    (CHAT, {"messages": []}, "messages", "at least 1 item"),
    (CHAT, {"messages": [SYSTEM]}, "messages", "there is no message of the user"),
    (CHAT, {"messages": [user("")]}, "messages", "'messages.0': 'content' is empty"),
    (CHAT, {"messages": [user([])]}, "messages", "'messages.0.content'"),
    (CHAT, {"messages": [user("土" * 2001)]}, "messages", "at most 2000 characters"),
    (CHAT, {"messages": [user([PART | {"text": "土" * 1500}] * 2)]}, "messages", "in all"),
    (CHAT, {"messages": [user([PART | {"type": "image_url"}])]}, "messages", "'text'"),
    (CHAT, {"messages": [user([PART | {"many": 1}])]}, "messages", "content.0.many' is not known"),
    (CHAT, {"messages": [user("土" * 60)]}, "messages", "63 tokens, and 52 are free"),
    (CHAT, {"max_completion_tokens": 3}, None, "are one thing: give one"),
    (CHAT, {"top_logprobs": 1}, None, "needs 'logprobs': true"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
]
REFUSED += [
    (path, wishes, param, words)
    for path in (COMPLETIONS, CHAT)
    for wishes, param, words in [
        ({"model": "gpt-4"}, "model", "its model is 'tiny'"),
        ({"max_tokens": 501}, "max_tokens", "less than or equal to 500"),
        ({"n": 11}, "n", "less than or equal to 10"),
        ({"stop": ["a"] * 5}, "stop", "at most 4 items"),
        ({"stop": [""]}, "stop", "'stop.0' is empty"),
        ({"logit_bias": {"1": 1}}, "logit_bias", "no token has a score of its own; it can only be {}"),
    ]
]


@pytest.mark.parametrize("path, wishes, param, words", REFUSED, ids=range(len(REFUSED)))
def test_refusals_are_the_clients_own_exceptions(client, path, wishes, param, words):
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError if param == "model" else openai.BadRequestError) as caught:
            ask(client, path, stream=stream, **wishes)
        assert words in caught.value.body["message"]
        assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
        too_long = "are free" in words or "are allowed" in words
        assert (caught.value.code == "context_length_exceeded") == too_long


@pytest.mark.parametrize(
    "engine, error, code",
    [
        (FakeEngine(room=0), openai.RateLimitError, "full"),
        (FakeEngine(error=QueueFull()), openai.RateLimitError, "full"),
        (FakeEngine(error=RuntimeError("secret")), openai.InternalServerError, "failed"),
    ],
)
def test_a_full_queue_and_a_failure(engine, error, code):
    with in_thread(engine) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        for stream in (False, True):  # before its first piece a stream is refused like any other request
            with pytest.raises(error) as caught:
                ask(client, model="model", stream=stream)
            assert caught.value.code == code and "secret" not in str(caught.value.body)
            assert caught.value.response.headers.get("Retry-After") == ("1" if code == "full" else None)


def test_a_model_without_a_template_says_what_to_do():
    status, answer = post({"messages": TALK}, CHAT)
    assert status == 400 and answer["error"]["code"] == "no_chat"
    assert "helpers.run chat" in answer["error"]["message"]


@pytest.mark.parametrize("count, status, words", [(201, 400, "at most 200 items"), (10_001, 413, "larger than")])
def test_a_conversation_without_end_is_refused_unread(count, status, words):
    engine = FakeEngine(tokenizer=chat_tokenizer())
    got, answer = post({"messages": [(user, assistant)[n % 2]("a") for n in range(count)]}, CHAT, engine=engine)
    assert (got, engine.asked) == (status, [])
    assert words in answer["error"]["message"]


# ---- from the request to the settings ----


@pytest.mark.parametrize("name", ["generate", "completion", "chat"])
def test_the_example_in_a_refusal_would_be_read(name):
    model = getattr(schema.request_models(DEFAULT_LIMITS), name)
    with pytest.raises(schema.Invalid) as caught:
        schema.read_request(model, b"[]")
    assert schema.read_request(model, str(caught.value).partition("such as ")[2].encode())


@pytest.mark.parametrize(
    "path, asked, prompt, logprobs",
    [(COMPLETIONS, {"prompt": " <eos>\n", "logprobs": 0}, " <eos>\n", 0),
     (CHAT, {"messages": TALK, "logprobs": True, "top_logprobs": 4}, "", 4)],
)  # fmt: skip
def test_every_key_reaches_the_engine(path, asked, prompt, logprobs):
    engine = FakeEngine(tokenizer=chat_tokenizer())
    chosen = {"temperature": 0, "top_p": 0.9, "top_k": 30, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.2}
    chosen |= {"presence_penalty": -0.5, "frequency_penalty": 0.5, "no_repeat_ngram": 3, "seed": 7}
    body = asked | {"max_tokens": 3, "n": 2, "stop": "。", "user": "me"} | chosen
    assert post(body, path, engine=engine)[0] == 200
    settings = Settings(max_new_tokens=3, stop=("。",), logprobs=logprobs, **chosen)
    assert engine.asked == [(prompt, settings, 2)]


@pytest.mark.parametrize(
    "wanted, length", [({}, 40), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 7}, 7), ({"stop": []}, 40)]
)
def test_how_long_an_answer_is(wanted, length):
    engine = FakeEngine(tokenizer=chat_tokenizer())
    assert post({"messages": TALK[2:], **wanted}, CHAT, engine=engine, options={"max_length": 40})[0] == 200
    assert engine.asked[0][1].max_new_tokens == length
    assert engine.encoded == [ids_of(TALK[2:])]


def test_all_prompts_or_none():
    engine = FakeEngine(held=True, room=1)
    assert post({"prompt": ["a", "b"]}, COMPLETIONS, engine=engine)[0] == 429
    assert [future.cancelled() for future in engine.futures] == [True]
