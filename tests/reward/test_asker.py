"""Questions are asked evenly or where answers go wrong, and never about what is held out."""

from collections import Counter

from helpers.corpus import built_in
from helpers.corpus.built_in import Combination
from helpers.reward.asker import Asker, case_of


def combination(question):
    return Combination(question.plant, question.topic, question.situation)


def test_nothing_that_is_held_out_is_ever_asked():
    for focus in (0.0, 0.5, 1.0):
        asked = Asker(focus, seed=3).ask(3000)
        assert len(asked) == 3000
        assert not {combination(each) for each in asked} & built_in.held_out()
        assert all(each.kind == "seen" for each in asked)


def test_all_questions_of_the_examination_that_were_held_out_stay_unasked():
    asker = Asker(0.0)
    assert len(asker.combinations) + len(built_in.held_out()) == len(built_in.combinations())


def test_need_is_what_went_wrong_of_late():
    asker = Asker(1.0, seed=0)
    question = asker.ask(1)[0]
    case = case_of(combination(question))
    assert asker.need(case) == 0.0
    asker.tell([(question, 0.0)])
    once = asker.need(case)
    asker.tell([(question, 0.0)])
    assert 0.4 < once < asker.need(case) < 1.0
    for _ in range(30):
        asker.tell([(question, 1.0)])
    assert asker.need(case) < 0.01


def test_what_goes_wrong_is_asked_more_often():
    wrong = ("bloom", "spring", "spring")
    asker = Asker(0.5, seed=1)
    for question in asker.ask(4000):
        asker.tell([(question, 0.0 if case_of(combination(question)) == wrong else 1.0)])
    focused = Counter(case_of(combination(each)) for each in asker.ask(2000))
    evenly = Counter(case_of(combination(each)) for each in Asker(0.0, seed=1).ask(2000))
    assert focused[wrong] > 5 * evenly[wrong] > 0
    assert len(focused) > 0.8 * len(evenly)  # the other half goes over everything


def test_the_same_seed_asks_the_same_questions():
    assert Asker(0.5, 7).ask(50) == Asker(0.5, 7).ask(50) != Asker(0.5, 8).ask(50)
