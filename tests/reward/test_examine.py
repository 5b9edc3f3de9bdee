"""Before and after: counts by hand, intervals that cover, and answers marked as the judge marks."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.corpus import built_in
from helpers.reward import examine

QUESTIONS = built_in.examination(seed=2, n=40)


def test_shares_by_hand():
    before = np.array([True, True, True, False, False])
    after = np.array([True, False, True, True, False])
    found = examine.compare_marks(QUESTIONS[:5], before, after)
    assert (found.before, found.after, found.gain) == pytest.approx((0.6, 0.6, 0.0))
    assert (found.put_right, found.broken) == pytest.approx((1 / 2, 1 / 3))


def test_nothing_wrong_and_nothing_changed():
    every = np.ones(5, dtype=bool)
    found = examine.compare_marks(QUESTIONS[:5], every, every)
    assert found.put_right == found.broken == found.gain == 0
    assert found.gain_interval == found.put_right_interval == found.broken_interval == (0, 0)


def asked(combinations):
    return [SimpleNamespace(plant=str(each), topic="", situation="") for each in combinations]


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng, hits, questions = np.random.default_rng(1), 0, asked(range(400))
    for trial in range(60):
        before, after = rng.random(400) < 0.8, rng.random(400) < 0.9
        low, high = examine.compare_marks(questions, before, after, seed=trial).gain_interval
        hits += low <= 0.1 <= high
    assert hits >= 51


def test_questions_on_one_combination_count_as_fewer():
    """Ten questions that go wrong together say hardly more than one."""
    rng = np.random.default_rng(2)
    before = np.repeat(rng.random(40) < 0.5, 10)
    after = np.ones(400, dtype=bool)
    apart, together = asked(range(400)), asked(i // 10 for i in range(400))
    width = [np.diff(examine.compare_marks(each, before, after).gain_interval)[0] for each in (apart, together)]
    assert width[1] > 2 * width[0]


def test_marks_are_the_judges(monkeypatch):
    talks = [talk[0] for talk in built_in.draw_conversations(30, seed=1) if talk[0].about.plant]
    answers = [each.answer if i % 3 else "我不知道。" for i, each in enumerate(talks)]

    def answer_batch(model, tokenizer, conversations, settings):
        assert settings.greedy
        assert [each[0]["content"] for each in conversations] == [each.question for each in talks]
        return [SimpleNamespace(text=answer) for answer in answers]

    monkeypatch.setattr(examine, "answer_batch", answer_batch)
    found = examine.marks(None, None, [each.about for each in talks])
    assert found.tolist() == [bool(i % 3) for i in range(len(talks))]
