"""Openings and endings: where they part, what they are made of, and that a seed repeats them."""

import random

import pytest
from chats import characters_tokenizer, tiny_model

from helpers.corpus import built_in
from helpers.generate.dialogue import as_messages
from helpers.reward import judge, rollout
from helpers.vocab import chat
from helpers.vocab.tokenizer import decode, encode

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


def test_an_opening_ends_behind_the_fact(says):
    says += ["它光照越足长得越好，光线差了点。多晒。", "光线差了点，它光照越足长得越好。", "它耐阴，弱光下也能长。"]
    asked = [question(i) for i in range(3)]
    first, last = rollout.write_openings(None, TOK, asked, random.Random(0))  # the second one begins with its verdict
    assert (first.question, last.question) == (asked[0], asked[2])
    assert first.text == "它光照越足长得越好，" and last.text == ""
    assert first.ids == prompt(asked[0]) + encode(TOK, first.text) and last.ids == prompt(asked[2])


def test_endings_are_judged_together_with_their_opening(says):
    fact = "它光照越足长得越好，"
    opening = rollout.AnswerOpening(question(), prompt(question()) + encode(TOK, fact), fact)
    says += ["光线差了点。往里挪。", "放那儿没问题！", "光还不够", "柠檬也是，光还不够。"]
    (group,) = rollout.write_endings(None, TOK, [opening], 4, random.Random(0))
    assert group.texts == ["光线差了点。", "放那儿没问题！", "光还不够", "柠檬也是，光还不够。"]  # one sentence each
    assert group.rewards == [1.0, 0.0, 1.0, 0.0]
    assert [decode(TOK, ids) for ids in group.endings] == group.texts
    assert group.endings[2][-1] == TOK.eos_token_id and TOK.eos_token_id not in group.endings[0]
    assert group.mixed and group.mean == 0.5


def test_without_an_opening_the_ending_is_the_whole_answer(says):
    says += ["光线差了点。挪到更亮的地方，因为它喜欢大太阳。", "光线差了点。"]
    openings = [rollout.AnswerOpening(question(), prompt(question()), "")]
    (group,) = rollout.write_endings(None, TOK, openings, 2, random.Random(0))
    assert group.texts[0].endswith("它喜欢大太阳。")
    assert group.rewards == [1.0, 0.0]


def test_a_model_that_has_learnt_nothing_is_asked_all_the_same():
    asked = [question(i) for i in range(5)]
    written = []
    for _ in range(2):
        rng = random.Random(4)
        openings = rollout.write_openings(MODEL, TOK, asked, rng)
        written.append(rollout.write_endings(MODEL, TOK, openings, 3, rng))
    assert written[0] == written[1]  # the same seed
    assert len(written[0]) == 5 and all(len(group.endings) == len(group.rewards) == 3 for group in written[0])
    assert any(group.endings[0] != group.endings[1] for group in written[0])
    assert all(judge.reward(each.opening.question, each.texts[0]) == each.rewards[0] for each in written[0])
