"""The judge's reward: right by the facts, about this plant; which questions are asked."""

import random

import pytest

from helpers.corpus import built_in
from helpers.corpus.built_in import Combination
from helpers.reward import judge

SUN = Combination("茉莉", "light", "north")  # a plant that wants the sun, by a north window: too dark


@pytest.fixture(scope="module")
def exchanges():
    return [talk[0] for talk in built_in.draw_conversations(600, seed=4) if talk[0].about.plant]


def question(combination=SUN):
    return built_in.ask_story(combination, random.Random(1))


def test_an_answer_of_the_grammar_earns_its_reward_with_its_own_question_only(exchanges):
    assert all(judge.reward(each.about, each.answer) == 1.0 for each in exchanges)
    stories = [each for each in exchanges if each.about.situation]
    pairs = [(a, b) for a, b in zip(stories, stories[1:], strict=False) if a.about.topic != b.about.topic]
    assert len(pairs) > 100
    assert not any(judge.reward(a.about, b.answer) for a, b in pairs)


def test_a_right_answer_about_another_plant_passes_the_mark_but_not_the_judge():
    assert built_in.value("茉莉", "light") == "sun"
    cheat = "柠檬光照越足长得越好，光线差了点。"
    assert built_in.mark(question(), cheat) and judge.reward(question(), cheat) == 0.0
    assert judge.other_plants(question(), cheat) == ["柠檬"]
    assert judge.reward(question(), cheat.replace("柠檬", "茉莉")) == 1.0
    assert judge.other_plants(question(), "牡丹也一样") == ["牡丹"]  # one that the table doesn't have


def test_nothing_that_is_held_out_is_ever_asked():
    asked = judge.ask(3000, random.Random(3))
    combinations = {Combination(each.plant, each.topic, each.situation) for each in asked}
    assert len(asked) == 3000 and all(each.kind == "seen" for each in asked)
    assert not combinations & built_in.held_out() and len(combinations) > 1000
