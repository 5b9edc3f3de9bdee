"""Conversations: what the model reads, what leaves when the window is full, and that an answer never slides it."""

import threading
from functools import partial

import models
import pytest
from service import message

from helpers.generate import generate
from helpers.generate.constraints import Constraint
from helpers.generate.dialogue import Dialogue, answer_prompt, check_tokenizer
from helpers.generate.settings import Settings
from helpers.vocab import chat

SETTINGS = Settings(max_new_tokens=4, seed=3)
user, assistant = partial(message, "user"), partial(message, "assistant")


@pytest.fixture(scope="module")
def tok():
    return models.plants_chat_tokenizer()


def test_an_answer_is_what_follows_the_ids_of_the_conversation(small, tok):
    talk = Dialogue(small, tok, system="土")
    first = "".join(talk.ask("怎么浇水？", SETTINGS))
    ids = chat.encode_messages(tok, [message("system", "土"), user("怎么浇水？")], True).ids
    assert first == "".join(generate.stream_text(small, tok, ids, SETTINGS)) != ""
    assert talk.messages == [user("怎么浇水？"), assistant(first)]
    second = "".join(talk.ask("看土", SETTINGS))
    assert talk.messages[2:] == [user("看土"), assistant(second)]


def test_the_oldest_leave_and_the_window_never_slides(small, tok):
    """As many turns as one likes; each answer ends within the window of the model."""
    talk, left_out = Dialogue(small, tok), []
    for _ in range(6):
        list(talk.ask("怎么浇水？", Settings(max_new_tokens=100, seed=1)))
        left_out.append(talk.left_out)
    assert left_out[0] == 0 < left_out[-1] and len(talk.messages) == 12
    for wanted in (1, 5, 100):
        opening = answer_prompt(tok, talk.messages[:-1], models.N_CTX, wanted)
        assert 1 <= opening.max_new_tokens <= wanted and opening.left_out % 2 == 0
        assert len(opening.ids) + opening.max_new_tokens <= models.N_CTX
    assert len(answer_prompt(tok, talk.messages[:-1], models.N_CTX, 1, most=10).ids) <= 10


@pytest.mark.parametrize("written", [0, 1])
def test_what_was_written_before_a_stop_counts(small, tok, written):
    talk, stop = Dialogue(small, tok), threading.Event()
    answer = talk.ask("土？", Settings(max_new_tokens=9, seed=1), stop)
    text = "".join(next(answer) for _ in range(written))
    stop.set()
    assert list(answer) == []
    assert talk.messages == ([user("土？"), assistant(text)] if written else [])


def test_an_answer_that_fails_is_as_if_the_question_had_not_been_asked(small, tok, monkeypatch):
    """Unless something was written: that is part of the conversation, as after a stop."""
    talk = Dialogue(small, tok)
    first = "".join(talk.ask("土？", SETTINGS))
    with pytest.raises(ValueError, match="cannot be written"):
        list(talk.ask("水？", Settings(constraint=Constraint(heads="魑"))))
    assert talk.messages == [user("土？"), assistant(first)]

    def failing(*arguments):
        yield "看"
        raise RuntimeError("out of memory")

    monkeypatch.setattr(generate, "stream_text", failing)
    with pytest.raises(RuntimeError):
        list(talk.ask("水？", SETTINGS))
    assert talk.messages[2:] == [user("水？"), assistant("看")]


def test_a_model_that_cannot_converse_says_what_to_do(small, tok):
    with pytest.raises(chat.ChatError, match="no chat template.*python -m helpers.run chat --run NAME"):
        Dialogue(small, models.plants_tokenizer())
    other = models.plants_chat_tokenizer()
    other.chat_template = other.chat_template.replace("eos_token", "'<pad>'")
    with pytest.raises(chat.ChatError, match="ends an answer with <pad>, and its tokenizer ends a text with <eos>"):
        check_tokenizer(other)
