"""The forms of requests and answers, as OpenAI's own client meets them; what a request asks for reaches the engine."""

import openai
import pytest
from service import FakeEngine, in_thread, post, tiny_engine, tiny_model, tiny_tokenizer

from helpers.generate import generate
from helpers.generate.settings import Settings
from helpers.serve import schema
from helpers.serve.engine import QueueFull
from helpers.serve.limits import DEFAULT_LIMITS

PROMPT = "绿萝怎么浇水？"


@pytest.fixture(scope="module")
def client():
    """OpenAI's client, and a server with a tiny real model."""
    with tiny_engine() as engine, in_thread(engine, name="tiny", api_key="a-key") as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="a-key", max_retries=0, timeout=20) as client:
            yield client


def ask(client, **wishes):
    return client.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "seed": 3} | wishes)


# ---- the real client ----


def test_a_completion(client):
    answer = ask(client)
    assert answer.object == "text_completion" and answer.model == "tiny" and answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.text and not choice.text.startswith(PROMPT)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert ask(client, echo=True).choices[0].text == PROMPT + choice.text


def test_a_seed_brings_the_same_text_again(client):
    assert ask(client).choices[0].text == ask(client).choices[0].text != ask(client, seed=4).choices[0].text


def test_n_texts_differ_and_keep_their_order(client):
    three = [choice.text for choice in ask(client, n=3).choices]
    assert len(set(three)) == 3
    assert three[0] == ask(client).choices[0].text
    several = ask(client, prompt=[PROMPT, "春天"], n=2, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [choice.text[:2] for choice in several.choices] == ["绿萝", "绿萝", "春天", "春天"]
    assert several.usage.completion_tokens == 48


@pytest.mark.parametrize("wishes", [{}, {"n": 3}, {"prompt": [PROMPT, "春天"], "n": 2}, {"echo": True}])
def test_a_stream_adds_up_to_the_whole(client, wishes):
    whole = ask(client, **wishes)
    texts, ends, ids, usage = {}, {}, set(), []
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **wishes):
        ids.add((chunk.id, chunk.created, chunk.object, chunk.model))
        usage.append(chunk.usage)
        for choice in chunk.choices:
            assert choice.index not in ends
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert len(ids) == 1
    assert usage[:-1] == [None] * (len(usage) - 1) and usage[-1] == whole.usage


def test_stop_strings(client):
    text = ask(client, max_tokens=40).choices[0].text
    for stop in (text[3], [text[5:7], "never"]):
        (choice,) = ask(client, max_tokens=40, stop=stop).choices
        assert choice.finish_reason == "stop"
        assert choice.text == text[: min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop[:1]))]
        assert "".join(c.choices[0].text for c in ask(client, max_tokens=40, stop=stop, stream=True)) == choice.text


def test_logprobs(client):
    (choice,) = ask(client, logprobs=2, temperature=0).choices
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 12
    for token, logprob, rivals in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert logprob == max(rivals.values()) == rivals[token] < 0  # greedy: the likeliest
        assert len(rivals) == 2 or "\ufffd" in rivals  # single bytes of characters share one name
    for token, begin in zip(told.tokens, told.text_offset, strict=True):
        assert choice.text[begin:].lstrip("\ufffd").startswith(token.strip("\ufffd"))
    streamed = [chunk.choices[0].logprobs for chunk in ask(client, logprobs=2, temperature=0, stream=True)]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert sum((getattr(piece, field) for piece in streamed), []) == getattr(told, field)


def test_best_of_sends_the_likeliest_per_token(client):
    four = ask(client, n=4, logprobs=0)
    means = {c.text: sum(c.logprobs.token_logprobs) / len(c.logprobs.tokens) for c in four.choices}
    expected = sorted(means, key=means.get, reverse=True)[:2]
    assert expected != list(means)[:2]  # so that choosing means something
    best = ask(client, n=2, best_of=4)
    assert [choice.text for choice in best.choices] == expected
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None  # they were computed, and not asked for
    assert best.usage == four.usage  # what was written counts, not what was sent
    assert ask(client, n=2, best_of=2, stream=True)  # nothing to choose


def test_a_bias_bans_and_forces_tokens(client):
    token = tiny_tokenizer().convert_tokens_to_ids("水")
    assert set(ask(client, logit_bias={str(token): 100}).choices[0].text) == {"水"}
    greedy = ask(client, temperature=0, logprobs=0).choices[0]
    (likeliest,) = generate.generate(tiny_model(), tiny_tokenizer(), PROMPT, Settings(max_new_tokens=1, temperature=0))
    (banned,) = likeliest.tokens
    other = ask(client, temperature=0, logprobs=0, logit_bias={str(banned): -100}).choices[0]
    assert other.logprobs.token_logprobs[0] < greedy.logprobs.token_logprobs[0]  # the model's own view: without bias


def test_the_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError, match="its model is 'tiny'"):
        client.models.retrieve("gpt-4")


def test_null_is_what_is_left_out(client):
    """OpenAI's API takes it, and programs send it for every setting that their user did not touch."""
    nothing = dict.fromkeys(["n", "stream", "temperature", "top_p", "presence_penalty", "echo", "stop", "logprobs"])
    assert not list(ask(client, stream=True, stream_options={"include_usage": None}))[-1].usage
    wishes = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5, "seed": 1}
    plain, given = (client.post("/completions", body=wishes | more, cast_to=object) for more in ({}, nothing))
    assert given["choices"] == plain["choices"]
    with pytest.raises(openai.BadRequestError, match="'prompt' is missing"):
        client.post("/completions", body={"prompt": None}, cast_to=object)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_the_example_in_a_refusal_would_be_read(path):
    models = schema.request_models(DEFAULT_LIMITS)
    model = {"/generate": models.generate, "/v1/completions": models.completion}.get(path, models.chat)
    with pytest.raises(schema.Invalid) as caught:
        schema.read(model, b"[]")
    assert schema.read(model, str(caught.value).partition("such as ")[2].encode())


@pytest.mark.parametrize(
    "wishes, error, param, words",
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "its model is 'tiny'"),
        ({"max_tokens": 501}, openai.BadRequestError, "max_tokens", "less than or equal to 500"),
        ({"prompt": ""}, openai.BadRequestError, "prompt", "'prompt' is empty"),
        ({"prompt": []}, openai.BadRequestError, "prompt", "at least 1 item"),
        ({"prompt": [1, 2]}, openai.BadRequestError, "prompt", "'prompt.0': input should be a valid string"),
        ({"prompt": "😀" * 1100}, openai.BadRequestError, "prompt", "tokens, and 4096 are allowed"),
        ({"prompt": ["好"] * 6, "n": 2}, openai.BadRequestError, None, "6 prompts of 2 texts each are too many"),
        ({"prompt": ["好" * 1500] * 2}, openai.BadRequestError, None, "2000 characters in all"),
        ({"logprobs": 6}, openai.BadRequestError, "logprobs", "less than or equal to 5"),
        ({"logprobs": 1, "echo": True}, openai.BadRequestError, None, "do not go together"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, None, "needs 'stream'"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "stop", "at most 4 items"),
        ({"best_of": 1, "n": 2}, openai.BadRequestError, None, "'best_of' is 1: at least the 2 texts"),
        ({"best_of": 2, "stream": True}, openai.BadRequestError, None, "'best_of' and 'stream' do not go together"),
        ({"best_of": 11}, openai.BadRequestError, "best_of", "less than or equal to 10"),
        ({"best_of": 6, "prompt": ["好"] * 2}, openai.BadRequestError, None, "2 prompts of 6 texts each are too many"),
        ({"logit_bias": {"1": 101}}, openai.BadRequestError, "logit_bias", "less than or equal to 100"),
        ({"logit_bias": {"好": 1}}, openai.BadRequestError, "logit_bias", "should match pattern"),
        ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias", "there is no token 99999"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, openai.BadRequestError, "logit_bias", "at most 300 items"),
        ({"stop": [""]}, openai.BadRequestError, "stop", "'stop.0' is empty"),
        ({"extra_body": {"suffix": "。"}}, openai.BadRequestError, "suffix", "'suffix' is not known"),
        ({"extra_body": {"one": 1}}, openai.BadRequestError, "one", "'one' is not known"),
        ({"extra_body": {"many": 1}}, openai.BadRequestError, "many", "'many' is not known"),
        ({"extra_headers": {"Authorization": "Bearer no"}}, openai.AuthenticationError, None, "not the right one"),
    ],
)
def test_refusals_are_the_clients_own_exceptions(client, wishes, error, param, words):
    with pytest.raises(error) as caught:
        ask(client, **wishes)
    assert words in caught.value.body["message"]
    assert caught.value.param == param
    assert caught.value.type == ("authentication_error" if "extra_headers" in wishes else "invalid_request_error")


def test_a_full_queue_and_a_failure():
    for engine, error, code in (
        (FakeEngine(room=0), openai.RateLimitError, "full"),
        (FakeEngine(error=QueueFull()), openai.RateLimitError, "full"),
        (FakeEngine(error=RuntimeError("secret")), openai.InternalServerError, "failed"),
    ):
        with (
            in_thread(engine) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client,
        ):
            for stream in (False, True):  # before its first piece a stream is refused like any other request
                with pytest.raises(error) as caught:
                    ask(client, model="model", stream=stream)
                assert caught.value.code == code
                assert "secret" not in str(caught.value.body)


# ---- from the request to the settings ----


def test_every_key_reaches_the_engine():
    engine = FakeEngine()
    chosen = {"temperature": 0, "top_p": 0.9, "top_k": 30, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.2}
    chosen |= {"presence_penalty": -0.5, "frequency_penalty": 0.5, "no_repeat_ngram": 3, "seed": 7, "logprobs": 0}
    body = {
        "prompt": " <eos>\n",
        "max_tokens": 3,
        "n": 2,
        "stop": "。",
        "user": "me",
        "logit_bias": {"7": -1},
        **chosen,
    }
    assert post(body, "/v1/completions", engine=engine)[0] == 200
    assert engine.asked == [(" <eos>\n", Settings(max_new_tokens=3, stop=("。",), logit_bias={7: -1}, **chosen), 2)]
    assert post({"prompt": ["a", "b"], "stop": []}, "/v1/completions", engine=engine)[0] == 200
    assert engine.asked[1:] == [(prompt, Settings(max_new_tokens=16), 1) for prompt in "ab"]


def test_all_prompts_or_none():
    engine = FakeEngine(held=True, room=1)
    assert post({"prompt": ["a", "b"]}, "/v1/completions", engine=engine)[0] == 429
    assert [future.cancelled() for future in engine.futures] == [True]
