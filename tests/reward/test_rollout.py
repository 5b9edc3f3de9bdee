"""Groups of answers: what they are made of, and that a seed repeats them."""

import random

import pytest
from chats import characters_tokenizer, tiny_model

from helpers.corpus import built_in
from helpers.generate.dialogue import as_messages
from helpers.reward import judge, rollout
from helpers.vocab import chat
from helpers.vocab.tokenizer import encode

TOK = characters_tokenizer()
chat.add_template(TOK)
MODEL = tiny_model(TOK).eval()
SUN = built_in.Combination("茉莉", "light", "north")


def question(seed=0):
    return built_in.ask_story(SUN, random.Random(seed))


def prompt(asked):
    return chat.encode_messages(TOK, as_messages(asked.prompt.strip()), generation_prompt=True).ids


@pytest.fixture
def says(monkeypatch):
    """Make the model say given texts, in turn, whatever it is asked; return the list of them."""
    texts = []

    def write_rows(model, tokenizer, rows, max_rows):
        for row in rows:
            row.begin(tokenizer)
            for token in encode(tokenizer, texts.pop(0)):
                if not row.done:
                    row.write(token, False, None)
            if not row.done:
                row.write(tokenizer.eos_token_id, True, None)

    monkeypatch.setattr(rollout, "write_rows", write_rows)
    return texts


def test_answers_are_judged_whole(says):
    asked, fact = [question(), question(1)], "它光照越足长得越好，"
    says += ["光线差了点。往里挪。", "放那儿没问题！", f"{fact}光线差了点。", "我不知道。"]
    first, second = rollout.draw_groups(None, TOK, asked, 2, judge.reward, random.Random(0), begun=[fact, ""])
    assert first.texts == [f"{fact}光线差了点。往里挪。", f"{fact}放那儿没问题！"] and first.rewards == [1.0, 0.0]
    assert first.opening == prompt(asked[0]) + encode(TOK, fact) and second.opening == prompt(asked[1])
    assert second.texts[1] == "我不知道。" and second.mixed and second.mean == 0.5
    assert [TOK.decode(ids[:-1]) for ids in first.endings] == [text.removeprefix(fact) for text in first.texts]
    assert all(ids[-1] == TOK.eos_token_id for ids in first.endings)


def test_the_same_seed_draws_the_same_answers_and_one_question_gets_different_ones():
    asked = [question(i) for i in range(5)]
    drawn = [rollout.draw_groups(MODEL, TOK, asked, 3, judge.reward, random.Random(4)) for _ in range(2)]
    assert drawn[0] == drawn[1] and all(len(group.endings) == len(group.rewards) == 3 for group in drawn[0])
    assert all(group.endings[0] != group.endings[1] for group in drawn[0])
    cold = rollout.draw_groups(MODEL, TOK, asked, 3, judge.reward, random.Random(4), temperature=1e-4)
    assert all(group.endings[0] == group.endings[1] for group in cold)
