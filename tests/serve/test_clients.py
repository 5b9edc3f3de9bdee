"""What programs made for OpenAI's API send on their own is taken; what would change the answer is refused by name.

clients.json holds bodies of real programs, recorded by examples/clients/record.py.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from models import LOOK_UP
from service import JSON, TALK, FakeEngine, chat_tokenizer, directly, ids_of, in_thread, message, tiny_engine

RECORDED = json.loads(Path(__file__).with_name("clients.json").read_text("utf-8"))
COMPLETIONS, CHAT, SYSTEM = "/v1/completions", "/v1/chat/completions", message("system", "看土")

ASKED, SAID, ASKED_AGAIN = TALK
PLAIN = {COMPLETIONS: {"prompt": "绿萝"}, CHAT: {"messages": TALK}}


@pytest.fixture(scope="module")
def served():
    """Return the engine of a server, and a function that posts a body and returns (status, answer)."""
    engine = FakeEngine(tokenizer=chat_tokenizer(), room=10**6)
    with in_thread(engine, name="tiny") as address:

        def send(path, body):
            request = urllib.request.Request(address + path, json.dumps(body).encode(), JSON)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.read().decode()
            except urllib.error.HTTPError as refused:
                return refused.code, json.load(refused)["error"]

        yield engine, send


def heard(served, path, body):
    """Return what the engine hears of a body: the beginning, its ids, the settings, how many texts."""
    engine, send = served
    status, answer = send(path, body)
    assert status == 200, answer
    return engine.asked[-1], engine.encoded[-1]


@pytest.mark.parametrize("each", RECORDED, ids=[f"{each['client']}, {each['call']}" for each in RECORDED])
def test_a_program_is_answered_or_hears_what_it_cannot_have(served, each):
    status, answer = served[1](each["path"], each["body"])
    cannot = {"tools": "tools", "json": "response_format"}.get(each["call"])
    assert (status, cannot and answer["param"]) == (400 if cannot else 200, cannot), answer
    assert each["body"].get("stream", False) == ("data: [DONE]" in answer)


NEUTRAL = {
    "response_format": [{"type": "text"}], "functions": [[]],
    "parallel_tool_calls": [False, True], "store": [False], "metadata": [{}, {"a": "b"}], "service_tier": ["auto"],
    "modalities": [["text"]], "safety_identifier": ["me"], "prompt_cache_key": [""], "user": ["me"], "suffix": [""],
    "logit_bias": [{}], "stop": [[], ""], "seed": [-1], "top_k": [-1, 0.0], "n": [1.0, None], "logprobs": [None],
    "temperature": [None], "stream": [None],
    "stream_options": [{}, {"include_usage": None, "include_obfuscation": True}, {"include_usage": True}],
}  # fmt: skip
REFUSED = {
    "response_format": {"type": "json_object"}, "tools": [LOOK_UP], "tool_choice": "required", "functions": [{}],
    "modalities": ["text", "audio"], "suffix": "end", "logit_bias": {"5": 1}, "echo": True,
    "best_of": 3, "foo": 1, "max_tokens": 0, "n": 1.5, "top_k": -2,
    "seed": 2**64,
}  # fmt: skip


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("key, value", [(key, value) for key, values in NEUTRAL.items() for value in values])
def test_a_neutral_value_is_as_if_the_key_were_not_there(served, path, key, value):
    assert heard(served, path, PLAIN[path] | {key: value}) == heard(served, path, PLAIN[path])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("key, value", REFUSED.items())
def test_what_would_change_the_answer_is_refused_by_name(served, path, key, value):
    status, error = served[1](path, PLAIN[path] | {key: value})
    assert status == 400 and f"'{key}'" in error["message"] and error["param"] in (key, None)


def test_a_key_that_is_nearly_right_is_named(served):
    assert "; did you mean 'temperature'?" in served[1](CHAT, PLAIN[CHAT] | {"temprature": 1})[1]["message"]


@pytest.mark.parametrize(
    "asked, settings",
    [({"seed": 1764265000123}, {"seed": 1764265000123}), ({"seed": -(2**63)}, {"seed": 2**63}),
     ({"max_tokens": -1}, {"max_new_tokens": 500}), ({"top_k": 40.0}, {"top_k": 40})],
)  # fmt: skip
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_numbers_as_programs_write_them(served, path, asked, settings):
    ((_, got, _), _) = heard(served, path, {"max_tokens": 16} | PLAIN[path] | asked)
    given = {key: getattr(got, key) for key in settings}
    assert given == settings or (path == CHAT and given == {"max_new_tokens": 64 - len(ids_of(TALK))})


# ---- conversations ----


EXTRAS = {"tool_calls": [], "annotations": [], "reasoning_content": "", "id": "msg-1", "refusal": None, "audio": None}
PARTS = [
    {"type": "text", "text": "绿萝怎么", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "浇水？"},
]


@pytest.mark.parametrize(
    "sent, read, left_out",
    [
        ([ASKED, SAID | EXTRAS, ASKED_AGAIN], TALK, 0),
        ([message("user", PARTS), SAID, ASKED_AGAIN | {"name": "me", "timestamp": 1}], TALK, 0),
        ([message("developer", "看土"), ASKED], [SYSTEM, ASKED], 0),
        ([message("system", ""), ASKED], [ASKED], 0),
        ([ASKED, SYSTEM], [SYSTEM, ASKED], 0),
        ([SYSTEM, ASKED, message("developer", "浇水")], [message("system", "看土\n浇水"), ASKED], 0),
        ([message("user", "绿萝"), message("user", "冬天？")], [message("user", "绿萝\n冬天？")], 0),
        ([ASKED, SAID, message("assistant", None) | EXTRAS, ASKED_AGAIN], TALK, 0),
    ],
)
def test_a_conversation_is_read_in_turns(served, sent, read, left_out):
    _, answer = served[1](CHAT, {"messages": sent})
    assert served[0].encoded[-1] == ids_of(read) and json.loads(answer)["messages_left_out"] == left_out


def test_messages_left_out_are_counted_as_they_were_sent(served):
    sent = [*[message("user", "绿萝"), message("user", "浇水"), SAID] * 9, ASKED]
    _, answer = served[1](CHAT, {"messages": sent})
    left_out = json.loads(answer)["messages_left_out"]
    kept = sent[left_out:]
    assert left_out > 1 and kept[0] == message("user", "绿萝") and len(kept) % 3 == 1
    turns = [message("user", "绿萝\n浇水"), SAID] * (len(kept) // 3)
    assert served[0].encoded[-1] == ids_of([*turns, ASKED])


@pytest.mark.parametrize("more", [{"refusal": "no"}, {"a": 1}, {"role": "function"}])
def test_a_message_that_would_change_the_answer_is_refused_by_name(served, more):
    status, error = served[1](CHAT, {"messages": [ASKED, SAID | more, ASKED_AGAIN]})
    assert status == 400 and f"'messages.1.{next(iter(more))}'" in error["message"]


# ---- prompts ----


def test_prompts_may_be_ids_and_nothing_is_a_fresh_text():
    """The same texts as without a server: the generator reads these ids."""
    tokenizer = chat_tokenizer()
    prompts = [[5, 6, 7], [[5, 6], [7]], ["", "绿萝"], tokenizer("")["input_ids"]]
    with tiny_engine(tokenizer) as engine, in_thread(engine) as address:
        for prompt in prompts:
            body = json.dumps({"prompt": prompt, "max_tokens": 9, "seed": 3}).encode()
            with urllib.request.urlopen(urllib.request.Request(address + COMPLETIONS, body, JSON)) as response:
                texts = [choice["text"] for choice in json.load(response)["choices"]]
            several = prompt if isinstance(prompt[0], list | str) else [prompt]
            ids = [each if isinstance(each, list) else tokenizer(each)["input_ids"] for each in several]
            assert texts == [directly(each, max_new_tokens=9, seed=3) for each in ids]


@pytest.mark.parametrize("prompt", [[-1], [10**9], [[]], [1, "a"], [2.5], []])
def test_what_is_no_prompt_is_refused_by_name(served, prompt):
    status, error = served[1](COMPLETIONS, {"prompt": prompt})
    assert status == 400 and error["param"] == "prompt"
