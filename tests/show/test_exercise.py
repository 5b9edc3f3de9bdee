"""A guess against the answer: each kind of guess gets its word, and no guess that a reader may type raises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.show import notebook as show
from helpers.show.exercise import RIGHT, judged

LINES = [
    ((None, 1, "of 50 documents stay"), "No guess yet. Answer: 1 of 50 documents stay."),
    ((..., 1, "of 50 documents stay"), "No guess yet. Answer: 1 of 50 documents stay."),
    ((10, 1, "of 50 documents stay"), "Your guess: 10, too high. Answer: 1 of 50 documents stay."),
    ((1.0, 1, "of 50 documents stay"), "Your guess: 1, right. Answer: 1 of 50 documents stay."),
    (("1,000", 1000, "tokens"), "Your guess: 1,000, right. Answer: 1,000 tokens."),
    (("many", 1000, "tokens"), "Your guess: many, not right. Answer: 1,000 tokens."),
    ((12000, 12345, "updates", 0.1), "Your guess: 12,000, close enough. Answer: 12,345 updates."),
    ((11000, 12345, "updates", 0.1), "Your guess: 11,000, too low. Answer: 12,345 updates."),
    ((-9.5, -10.0, "bits", 0.1), "Your guess: -9.5, close enough. Answer: -10 bits."),
    ((0.3, 0.1 + 0.2, "of the probability"), "Your guess: 0.3, right. Answer: 0.3 of the probability."),
    ((3.0, np.float32(4.56789), "nats"), "Your guess: 3, too low. Answer: 4.568 nats."),
    ((2, torch.tensor(2.0), "bits"), "Your guess: 2, right. Answer: 2 bits."),
    ((" Words", "words", "have the fewest tokens"), "Your guess:  Words, right. Answer: words have the fewest tokens."),
    (("bytes", "words", "win!"), "Your guess: bytes, not right. Answer: words win!"),
    ((1, True, ""), "Your guess: 1, right. Answer: True."),
    ((["a", "b"], ("A", "b"), "in this order"), "Your guess: a, b, right. Answer: A, b in this order."),
    (([1, 2], np.array([1, 3]), ""), "Your guess: 1, 2, not right. Answer: 1, 3."),
]


@pytest.mark.parametrize(("arguments", "line"), LINES, ids=[line for _, line in LINES])
def test_one_line_says_the_guess_and_the_answer_which_is_folded_until_there_is_one(arguments, line, shown):
    show.predict(*arguments)
    [data] = [output["data"] for output in shown]
    assert data["text/plain"] == line and ("<details>" in data["text/html"]) == (arguments[0] in (None, ...))
    assert data["text/html"].count("✓") == (", right." in line or ", close enough." in line)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text())


@given(VALUES, VALUES.filter(lambda value: value is not None), st.floats(0, 1))
def test_no_guess_raises_and_the_answer_itself_is_right(guess, answer, close):
    assert judged(guess, answer, close).startswith(("No guess yet", "Your guess: "))
    assert "nan" in str(answer) or judged(answer, answer) == RIGHT


# ---- the workbook ----


def by_rows(scores):
    """Return the masked scores as a list of lists of floats."""
    return [[s if j <= i else -math.inf for j, s in enumerate(row)] for i, row in enumerate(scores.tolist())]


SCORES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
ANSWERS = {
    "any tensors": (lambda scores: scores + torch.full_like(scores, -math.inf).triu(1), "Right: ", True),
    "NumPy": (
        lambda scores: np.where(np.tri(2), scores.numpy(), -np.inf),
        "Right: the same numbers, but no model",
        False,
    ),
    "loops": (by_rows, "Right: the same numbers, but no model", False),
    "in place": (lambda scores: scores.masked_fill_(torch.ones(2, 2).triu(1) > 0, -math.inf), "Right: ", True),
    "nothing": (lambda scores: ..., "Not yet: it returns nothing; the course's own version", False),
    "a shape": (lambda scores: scores[0], "Not yet: it returns the shape (2,) instead of (2, 2); ", False),
    "a number": (lambda scores: scores, "Not yet: it returns 2 instead of -inf at [0, 1]; ", False),
    "an error": (lambda scores: scores.nowhere, "Not yet: it stops with AttributeError: 'Tensor' object has no", False),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_part_of_the_model_is_the_readers_where_it_does_what_the_published_one_does(answer, capsys):
    mine, verdict, used = ANSWERS[answer]
    chosen = show.attempt("causal", mine, (SCORES,))
    assert capsys.readouterr().out.startswith(verdict) and (chosen is mine) == used
    assert torch.equal(chosen(SCORES.clone()), torch.tensor([[1.0, -math.inf], [3.0, 4.0]]))
