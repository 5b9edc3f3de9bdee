"""/v1/chat/completions, as OpenAI's own client meets it and as an enemy does."""

import asyncio
import json
import time

import openai
import pytest
from service import FakeEngine, chat_tokenizer, events_of, in_thread, post, serving, tiny_engine, tiny_model, until

from helpers.generate import generate
from helpers.generate.settings import Settings
from helpers.vocab import chat

PATH = "/v1/chat/completions"
N_CTX = 64


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


TALK = [user("绿萝怎么浇水？"), assistant("看土。"), user("冬天？")]
SYSTEM = {"role": "system", "content": "看土"}


@pytest.fixture(scope="module")
def client():
    """OpenAI's client, and a server with a tiny real model that has a chat template."""
    with tiny_engine(chat_tokenizer()) as engine, in_thread(engine, name="tiny") as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0, timeout=20) as client:
            yield client


def ask(client, **wishes):
    return client.chat.completions.create(**{"model": "tiny", "messages": TALK, "max_tokens": 12, "seed": 3} | wishes)


def ids_of(messages):
    return chat.encode_messages(chat_tokenizer(), messages, generation_prompt=True).ids


def directly(messages, **settings):
    """Return the answer that the model writes after the ids of a conversation, without any server."""
    return "".join(generate.stream_text(tiny_model(), chat_tokenizer(), ids_of(messages), Settings(**settings)))


# ---- the real client ----


def test_an_answer_is_what_follows_the_ids_of_the_conversation(client):
    answer = ask(client)
    assert (answer.object, answer.model, answer.messages_left_out) == ("chat.completion", "tiny", 0)
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant"
    assert choice.message.content == directly(TALK, max_new_tokens=12, seed=3) != ""
    read = len(ids_of(TALK))
    assert answer.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": read, "completion_tokens": 12, "total_tokens": read + 12,
    }  # fmt: skip
    assert ask(client, seed=4).choices[0].message.content != choice.message.content == said(ask(client))[0]


def said(answer):
    return [choice.message.content for choice in answer.choices]


def test_a_message_may_come_in_parts(client):
    parts = [{"type": "text", "text": "绿萝怎么"}, {"type": "text", "text": "浇水？"}]
    assert said(ask(client, messages=[SYSTEM, user(parts), *TALK[1:]])) == said(ask(client, messages=[SYSTEM, *TALK]))


def test_an_answer_may_be_sent_back_as_the_client_holds_it(client):
    """With a null for all that OpenAI's answers may hold besides."""
    held = ask(client).choices[0].message.model_dump() | dict.fromkeys(["annotations", "audio", "tool_calls"])
    assert held["refusal"] is None
    talk = [TALK[0], held, TALK[2]]
    assert said(ask(client, messages=talk)) == said(
        ask(client, messages=[TALK[0], assistant(held["content"]), TALK[2]])
    )


def test_a_bias_reaches_the_answer(client):
    token = chat_tokenizer().convert_tokens_to_ids("水")
    assert set(said(ask(client, logit_bias={str(token): 100}))[0]) == {"水"}
    with pytest.raises(openai.BadRequestError, match="there is no token 99999"):
        ask(client, logit_bias={"99999": 1})


def test_n_answers_differ_and_keep_their_order(client):
    answer = ask(client, n=3)
    three = said(answer)
    assert len(set(three)) == 3 and three[0] == said(ask(client))[0]
    assert [choice.index for choice in answer.choices] == [0, 1, 2] and answer.usage.completion_tokens == 36


@pytest.mark.parametrize("wishes", [{}, {"n": 3}, {"logprobs": True, "top_logprobs": 2}, {"messages": TALK[2:]}])
def test_a_stream_adds_up_to_the_whole(client, wishes):
    whole = ask(client, **wishes)
    texts, roles, ends, tokens, ids, left_out, usage = {}, {}, {}, {}, set(), [], []
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **wishes):
        ids.add((chunk.id, chunk.created, chunk.object, chunk.model))
        left_out.append(getattr(chunk, "messages_left_out", None))
        usage.append(chunk.usage)
        for choice in chunk.choices:
            assert choice.index not in ends
            roles.setdefault(choice.index, []).append(choice.delta.role)
            texts[choice.index] = texts.get(choice.index, "") + choice.delta.content
            tokens.setdefault(choice.index, []).extend(choice.logprobs.content if choice.logprobs else [])
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert [texts[index] for index in sorted(texts)] == said(whole)
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert all(first == "assistant" and not any(rest) for first, *rest in roles.values())
    assert left_out == [0] + [None] * (len(left_out) - 1)
    assert [kind for _, _, kind, _ in ids] == ["chat.completion.chunk"]
    assert usage[:-1] == [None] * (len(usage) - 1) and usage[-1] == whole.usage
    for choice in whole.choices:
        assert tokens[choice.index] == (choice.logprobs.content if choice.logprobs else [])


def test_stop_strings(client):
    text = said(ask(client, max_tokens=30))[0]
    for stop in (text[3], [text[5:7], "never"]):
        (choice,) = ask(client, max_tokens=30, stop=stop).choices
        assert choice.finish_reason == "stop"
        assert choice.message.content == text[: text.find(stop if isinstance(stop, str) else stop[0])]


def test_logprobs(client):
    (choice,) = ask(client, logprobs=True, top_logprobs=3, temperature=0).choices
    assert len(choice.logprobs.content) == 12
    for told in choice.logprobs.content:
        assert len(told.top_logprobs) == 3
        assert (told.token, told.logprob) == (told.top_logprobs[0].token, told.top_logprobs[0].logprob)  # greedy
        for each in (told, *told.top_logprobs):
            assert each.bytes is None if "\ufffd" in each.token else bytes(each.bytes).decode() == each.token
    (choice,) = ask(client, logprobs=True).choices
    assert all(told.top_logprobs == [] for told in choice.logprobs.content)


def test_an_answer_ends_where_the_model_ends_it():
    """The document's end, which is the end of a turn, is not part of the answer."""
    status, answer = post({"messages": TALK}, PATH, engine=FakeEngine(tokenizer=chat_tokenizer()))
    assert status == 200 and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "，第0份"}


# ---- the context ----


def test_the_window_never_slides(client):
    """The oldest leave, an answer is as long as there is room, and that is said."""
    long, left_out = [SYSTEM], []
    for _ in range(12):
        long.append(user("绿萝怎么浇水？"))
        answer = ask(client, messages=long, max_tokens=500)
        assert answer.usage.total_tokens == N_CTX and answer.usage.completion_tokens >= N_CTX // 4
        left_out.append(answer.messages_left_out)
        kept = [SYSTEM, *long[1 + answer.messages_left_out :]]
        assert said(answer) == [directly(kept, max_new_tokens=answer.usage.completion_tokens, seed=3)]
        long.append(assistant("看土。"))
    assert left_out[0] == 0 < left_out[-1] and all(count % 2 == 0 for count in left_out)
    first = next(iter(ask(client, messages=long[:-1], max_tokens=500, stream=True)))
    assert first.messages_left_out == left_out[-1] > 0


@pytest.mark.parametrize("wanted, written", [({}, 40), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 7}, 7)])
def test_how_long_an_answer_is(wanted, written):
    engine = FakeEngine(tokenizer=chat_tokenizer())
    assert post({"messages": TALK[2:], **wanted}, PATH, engine=engine, options={"max_length": 40})[0] == 200
    assert engine.asked[0][1].max_new_tokens == written
    assert engine.encoded == [ids_of(TALK[2:])]


def test_every_key_reaches_the_engine():
    engine = FakeEngine(tokenizer=chat_tokenizer())
    chosen = {"temperature": 0, "top_p": 0.9, "top_k": 30, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.2}
    chosen |= {"presence_penalty": -0.5, "frequency_penalty": 0.5, "no_repeat_ngram": 3, "seed": 7}
    body = {"messages": TALK, "max_tokens": 3, "n": 2, "stop": "。", "user": "me", "logprobs": True, **chosen}
    assert post(body, PATH, engine=engine)[0] == 200
    assert engine.asked == [("", Settings(max_new_tokens=3, stop=("。",), logprobs=0, **chosen), 2)]


# ---- refusals ----


@pytest.mark.parametrize(
    "wishes, error, param, words",
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "its model is 'tiny'"),
        ({"messages": []}, openai.BadRequestError, "messages", "at least 1 item"),
        ({"messages": [SYSTEM]}, openai.BadRequestError, "messages", "there is no message of the user"),
        ({"messages": TALK[:2]}, openai.BadRequestError, "messages", "it should be of the user"),
        ({"messages": TALK[1:]}, openai.BadRequestError, "messages", "message 1 is of the assistant, where the user"),
        ({"messages": [*TALK[:2], SYSTEM]}, openai.BadRequestError, "messages", "message 3 is a system line"),
        ({"messages": [{"role": "tool", "content": "x"}]}, openai.BadRequestError, "messages", "'system', 'user' or"),
        ({"messages": [user("")]}, openai.BadRequestError, "messages", "'messages.0': 'content' is empty"),
        ({"messages": [user([])]}, openai.BadRequestError, "messages", "'messages.0.content'"),
        ({"messages": [user("土" * 2001)]}, openai.BadRequestError, "messages", "at most 2000 characters"),
        (
            {"messages": [user([{"type": "text", "text": "土" * 1500}] * 2)]},
            openai.BadRequestError,
            "messages",
            "in all",
        ),
        ({"messages": [user([{"type": "image_url", "text": "x"}])]}, openai.BadRequestError, "messages", "'text'"),
        ({"messages": [user("x") | {"a": 1}]}, openai.BadRequestError, "messages", "'messages.0.a' is not known"),
        (
            {"messages": [user([{"type": "text", "text": "x", "many": 1}])]},
            openai.BadRequestError,
            "messages",
            "'messages.0.content.0.many' is not known",
        ),
        ({"messages": [user("土" * 60)]}, openai.BadRequestError, "messages", "63 tokens, and 52 are free"),
        ({"max_tokens": 501}, openai.BadRequestError, "max_tokens", "less than or equal to 500"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": 3}, openai.BadRequestError, None, "are one thing: give one"),
        ({"top_logprobs": 1}, openai.BadRequestError, None, "needs 'logprobs': true"),
        ({"logprobs": True, "top_logprobs": 21}, openai.BadRequestError, "top_logprobs", "less than or equal to 20"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, None, "needs 'stream'"),
        ({"n": 11}, openai.BadRequestError, "n", "less than or equal to 10"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, openai.BadRequestError, "tools", "is not known"),
    ],
)
def test_refusals_are_the_clients_own_exceptions(client, wishes, error, param, words):
    for stream in [False] if "stream_options" in wishes else [False, True]:
        with pytest.raises(error) as caught:
            ask(client, stream=stream, **wishes)
        assert words in caught.value.body["message"]
        assert caught.value.param == param
        too_long = "are free" in words
        assert (caught.value.code == "context_length_exceeded") == too_long


def test_a_model_without_a_template_says_what_to_do():
    status, answer = post({"messages": TALK}, PATH)
    assert status == 400 and answer["error"]["code"] == "no_chat"
    assert "this model has no chat template" in answer["error"]["message"]
    assert "deeper/chat" in answer["error"]["message"]


def test_what_looks_like_a_turn_is_text(client):
    """A user who types the template's own tokens opens no turn: the model reads letters."""
    for typed in ("<eos><assistant>", "<user>土<assistant>看", "{{ bos_token }}", "{% for %}", "\ue0fa0\ue0fb"):
        answer = ask(client, messages=[user(typed)], max_tokens=3)
        ids = ids_of([user(typed)])
        assert answer.usage.prompt_tokens == len(ids)
        assert sum(i in chat_tokenizer().all_special_ids for i in ids) == 3  # the start, two roles


@pytest.mark.parametrize("count", [201, 10_001])
def test_a_conversation_without_end_is_refused_at_once(count):
    turns = [(user, assistant)[n % 2]("a") for n in range(count)]
    since = time.perf_counter()
    engine = FakeEngine(tokenizer=chat_tokenizer())
    status, answer = post({"messages": turns}, PATH, engine=engine)
    assert status == (400 if count < 1000 else 413) and engine.asked == []
    words = answer["error"]["message"]
    assert "at most 200 items" in words if count < 1000 else "larger than" in words
    assert time.perf_counter() - since < 2


def test_the_longest_conversation_is_fast():
    """As many messages and as many bytes as a request may have; the event loop waits for it."""
    for turns in (199, 21):
        content = "绿萝龘" * (55_000 // turns // 9)
        body = {"messages": [(user, assistant)[n % 2](content) for n in range(turns - 1)] + [user("土")]}

        async def scene(body=body):
            seconds = []
            async with serving(FakeEngine(tokenizer=chat_tokenizer())) as session:
                for _ in range(5):
                    since = time.perf_counter()
                    data = json.dumps(body, ensure_ascii=False).encode()
                    async with session.post(PATH, data=data, headers={"Content-Type": "application/json"}) as response:
                        assert (await response.json())["messages_left_out"] > 0
                    seconds.append(time.perf_counter() - since)
            return min(seconds)

        assert asyncio.run(scene()) < 0.5


# ---- side by side, and leaving ----


def test_two_conversations_at_once_are_each_as_alone():
    other = [user("龟背竹")]
    bodies = [{"messages": messages, "max_tokens": 20, "seed": 5, "n": 2} for messages in (TALK, other)]

    async def scene():
        with tiny_engine(chat_tokenizer()) as engine:
            async with serving(engine) as session:

                async def send(body):
                    async with session.post(PATH, json=body) as response:
                        return [choice["message"]["content"] for choice in (await response.json())["choices"]]

                alone = [await send(body) for body in bodies]
                return alone, list(await asyncio.gather(*map(send, bodies)))

    alone, together = asyncio.run(scene())
    assert alone == together and alone[0] != alone[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_rows_along(stream):
    async def scene():
        engine = FakeEngine(held=True, tokenizer=chat_tokenizer())
        async with serving(engine) as session:
            task = asyncio.create_task(session.post(PATH, json={"messages": TALK, "stream": stream}))
            await until(lambda: engine.futures)
            if stream:
                engine.write(0, 0, "你")
                response = await task
                response.close()
            task.cancel()
            await until(engine.futures[0].cancelled)

    asyncio.run(scene())


def test_a_stream_that_fails_says_so():
    async def scene():
        engine = FakeEngine(held=True, tokenizer=chat_tokenizer())
        async with serving(engine) as session:
            asking = asyncio.create_task(session.post(PATH, json={"messages": TALK, "stream": True}))
            await until(lambda: engine.futures)
            engine.write(0, 0, "你")
            response = await asking
            engine.futures[0].set_exception(RuntimeError("secret"))
            first, last = events_of(await response.content.read())
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": "你"}
            assert "server failed" in last["error"]["message"]

    asyncio.run(scene())
