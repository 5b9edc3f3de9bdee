"""A parser for the built-in corpus: the exact probability of a text under the grammar, from the text alone.

The oracle for `built_in.documents`, which knows the probability of a document because it drew it.
"""

import math
from collections.abc import Iterator
from functools import cache

from helpers.corpus.built_in import (
    SECOND,
    Combination,
    _slot,
    _State,
    facts,
    held_out,
    seen_situations,
    situations,
    topics,
    value,
)


@cache
def slot_of(name: str, state: _State) -> tuple:
    """Return a slot in which equal inner slots are one object: a parse tries each object once per place."""
    return _shared(_slot(name, state))


@cache
def _shared(slot: tuple) -> tuple:
    return _same(
        tuple((p, tuple(part if isinstance(part, str) else _shared(part) for part in parts)) for p, parts in slot)
    )


@cache
def _same(slot: tuple) -> tuple:
    return slot


class Parse:
    """A text, and which slots end where in it: {end: (derivations, probability)} for each slot and start."""

    def __init__(self, text: str):
        self.text = text
        self.furthest = 0
        self.known: dict[tuple[int, int], dict] = {}

    def ends(self, slot: tuple, start: int) -> dict[int, tuple[int, float]]:
        key = id(slot), start
        if key not in self.known:
            ends: dict = {}
            for probability, parts in slot:
                for end, (count, p) in self._sequence(parts, start).items():
                    _add(ends, end, count, p * probability)
            self.known[key] = ends
        return self.known[key]

    def _sequence(self, parts: tuple, start: int) -> dict[int, tuple[int, float]]:
        reached = {start: (1, 1.0)}
        for part in parts:
            following: dict = {}
            for at, (count, p) in reached.items():
                if isinstance(part, str):
                    if self.text.startswith(part, at):
                        _add(following, at + len(part), count, p)
                else:
                    for end, (more, q) in self.ends(part, at).items():
                        _add(following, end, count * more, p * q)
            reached = following
            self.furthest = max(self.furthest, *reached, 0)
        return reached


def _add(ends: dict, end: int, count: int, probability: float) -> None:
    before = ends.get(end, (0, 0.0))
    ends[end] = before[0] + count, before[1] + probability


def _readings(parse: Parse, plant: str) -> Iterator[tuple[Combination, int, float]]:
    """Yield (combination, derivations, probability of its wording) for what the text can be about."""
    for topic in topics():
        others = [t for t in topics() if t != topic]
        for situation in situations(topic):
            combination = Combination(plant, topic, situation)
            first = slot_of("first", _State(topic, value(plant, topic), situation))
            for end, (count, p) in parse.ends(first, 0).items():
                if end == len(parse.text):
                    yield combination, count, p * (1 - SECOND)
                for other in others if parse.text.startswith("\n", end) else ():
                    second = slot_of("second", _State(other, value(plant, other), ""))
                    more, q = parse.ends(second, end + 1).get(len(parse.text), (0, 0.0))
                    if more:
                        yield combination, count * more, p * q * SECOND / len(others)


def derive(text: str) -> tuple[int, float]:
    """Return in how many ways the grammar derives a text (1: it is unambiguous), and its probability.

    Raises ValueError, with the reason and the place, for a text that `documents` can't yield, one about a
    held-out combination included.
    """
    plant = next((name for name in facts() if name in text), None)
    if plant is None or "{" in text:
        raise ValueError("the text names no plant of data/plants.csv" if plant is None else "no document has '{'")
    parse = Parse(text.replace(plant, "{plant}"))
    readings = list(_readings(parse, plant))
    if not readings:
        read = parse.text[: parse.furthest].replace("{plant}", plant)
        rest = text[len(read) :]
        raise ValueError(f"character {len(read)}: after '{read[-12:]}' no document goes on with '{rest[:12]}'")
    shown = [reading for reading in readings if reading[0] not in held_out()]
    if not shown:
        raise ValueError(f"{readings[0][0]} is held out of the corpus")
    count = sum(count for _, count, _ in shown)
    probability = sum(p / len(seen_situations(plant, c.topic)) for c, _, p in shown)
    return count, probability / (len(facts()) * len(topics()))


def bits(text: str) -> float:
    """Return -log2 of a text's probability under the grammar; ValueError as in `derive`."""
    return -math.log2(derive(text)[1])
