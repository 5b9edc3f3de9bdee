"""Predict, then run: a reader's guess compared with what the cell has computed; and what not every text shows."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from helpers.show.text import HUES, cell_text, element, is_number, show_html


def expecting(known: object) -> Callable[[object, str], None]:
    """Return `expect(claim, otherwise)`, for what the course's own text shows and another one may not.

    `known`: the text and the model are those of the course, so that a false claim raises AssertionError. Elsewhere the
    cell goes on, and a line says what is true `otherwise`.
    """

    def expect(claim: object, otherwise: str) -> None:
        if not claim and known:
            raise AssertionError(otherwise)
        if not claim:
            print(f"Not so here: {otherwise}")

    return expect


def predict(guess: Any, answer: Any, words: str = "", close: float = 0.0) -> None:
    """Say whether a reader's guess is right; the answer is folded until there is one.

    `guess` is None until the reader types one; `answer` is a number, a string, True or False, or a list of those, and
    `words` say what it counts: `predict(my_guess, 1, "of 50 documents stay")`. A number is also right when it differs
    from the answer by at most the share `close` of it (0.1: ten per cent). Strings are compared without regard to case
    and to spaces at their ends.
    """
    verdict, said = judged(guess, answer, close), f"{shown(answer)} {words}".strip()
    said += "" if said[-1:] in ".!?。" else "."
    right = verdict.endswith(("right", "enough")) and not verdict.endswith("not right")
    html = f"{'✓ ' * right}{escape(verdict)}. {escape(said)}"
    if verdict == "No guess yet":
        html = f"{verdict}.<details><summary>Answer</summary>{escape(said)}</details>"
    edge = f"border-left:3px solid rgba({HUES[2 if right else 1]},.8);padding-left:.8em"
    show_html(element("div", edge, html), f"{verdict}. Answer: {said}")


def judged(guess: Any, answer: Any, close: float = 0.0) -> str:
    """Return what is said about a guess: "No guess yet", "Your guess: 10, too high", "Your guess: 1, right"."""
    if guess is None or guess is ...:
        return "No guess yet"
    said = f"Your guess: {shown(guess)}"
    value = plain(answer)
    tried = as_number(guess) if is_number(value) else plain(guess)
    if is_number(value) and is_number(tried):
        if math.isclose(tried, value, rel_tol=1e-9):
            return f"{said}, right"
        if abs(tried - value) <= close * abs(value):
            return f"{said}, close enough"
        return f"{said}, too {'high' if tried > value else 'low'}"
    return f"{said}, {'right' if tried == value else 'not right'}"


def as_number(guess: Any) -> Any:
    """Return the number that a string holds (a reader may type quotes around it), and anything else as it is."""
    try:
        return float(guess.replace(",", "")) if isinstance(guess, str) else plain(guess)
    except ValueError:
        return guess


def plain(value: Any) -> Any:
    """Return a value of NumPy or torch as one of Python, a string trimmed and in lower case, a sequence as a list."""
    if isinstance(value, str):
        return value.strip().casefold()
    if hasattr(value, "tolist"):  # an array, a tensor, or one number of either
        return plain(value.tolist())
    return [plain(part) for part in value] if isinstance(value, Sequence) else value


def shown(value: Any) -> str:
    """Return a value as the line shows it: 12345 as 12,345, a list with commas between its parts."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(shown, value))
    return cell_text(value)
