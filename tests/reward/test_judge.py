"""The judge's reward: right by the facts, about this plant; where a verdict begins; which questions are asked."""

import random
from collections import Counter

import pytest

from helpers.corpus import built_in
from helpers.corpus.built_in import Combination
from helpers.reward import judge
from helpers.reward.judge import Asker, case_of

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


@pytest.mark.parametrize(
    "answer, opening",
    [
        ("它光照越足长得越好，光线差了点。", "它光照越足长得越好，"),
        # the verdict is the ending's matter
        ("说实话，茉莉喜欢大太阳，这个位置正合适。", "说实话，茉莉喜欢大太阳，"),
        ("茉莉光照越足长得越好。", ""),  # nothing follows the fact
        ("它耐阴，弱光下也能长，光线差了点。", ""),  # a wrong fact
        ("今天天气很好。", ""),
        ("", ""),
        ("光线差了点，它喜欢大太阳。", None),
        ("光线差了点。", None),
    ],
)
def test_where_the_verdict_is_still_free(answer, opening):
    assert judge.opening(question(), answer) == opening


def test_openings_of_the_grammar_end_before_the_verdict(exchanges):
    stories = [each for each in exchanges if each.about.situation]
    openings = [judge.opening(each.about, each.answer.split("。")[0] + "。") for each in stories]
    assert 0.03 < openings.count(None) / len(openings) < 0.2  # two of twenty begin with the verdict
    for each, opening in zip(stories, openings, strict=True):
        if opening:
            assert each.answer.startswith(opening) and opening.endswith("，")
            verdicts = built_in.wordings(each.about.topic, "verdict")[
                built_in.right_verdict(each.about.plant, each.about.topic, each.about.situation)
            ]
            assert any(verdict in each.answer[len(opening) :] for verdict in verdicts)
    assert sum(bool(opening) for opening in openings) > 0.8 * len(openings)


# ---- what is asked ----


def combination(question):
    return Combination(question.plant, question.topic, question.situation)


@pytest.mark.parametrize("focus", [0.0, 0.5, 1.0])
def test_nothing_that_is_held_out_is_ever_asked(focus):
    asker = Asker(focus, seed=3)
    asked = asker.ask(3000)
    assert len(asked) == 3000 and all(each.kind == "seen" for each in asked)
    assert not {combination(each) for each in asked} & built_in.held_out()
    assert len(asker.combinations) + len(built_in.held_out()) == len(built_in.combinations())


def test_need_is_what_went_wrong_of_late():
    asker = Asker(1.0, seed=0)
    question = asker.ask(1)[0]
    case = case_of(combination(question))
    assert asker.need(case) == 0.0
    asker.record([(question, 0.0)])
    once = asker.need(case)
    asker.record([(question, 0.0)])
    assert 0.4 < once < asker.need(case) < 1.0
    for _ in range(30):
        asker.record([(question, 1.0)])
    assert asker.need(case) < 0.01


def test_what_goes_wrong_is_asked_more_often():
    wrong = ("bloom", "spring", "spring")
    asker = Asker(0.5, seed=1)
    for question in asker.ask(4000):
        asker.record([(question, 0.0 if case_of(combination(question)) == wrong else 1.0)])
    focused = Counter(case_of(combination(each)) for each in asker.ask(2000))
    evenly = Counter(case_of(combination(each)) for each in Asker(0.0, seed=1).ask(2000))
    assert focused[wrong] > 5 * evenly[wrong] > 0
    assert len(focused) > 0.8 * len(evenly)  # the other half goes over everything
