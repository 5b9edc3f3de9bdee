"""A parser for the built-in corpus: the exact probability of a text under the grammar, from the text alone.

The oracle for `built_in.draw_documents`, which knows the probability of a document because it drew it.
"""

import csv
import math
from collections.abc import Iterator
from functools import cache

from helpers import paths
from helpers.corpus.built_in import (
    SECOND,
    SHARES,
    Combination,
    _slot,
    _State,
    held_out,
    matters,
    plain_topics,
    plant_facts,
    seen_situations,
    situations,
    strangers,
    topics,
    value,
)

ANSWERS = {"plain": "plain_answer", "unknown plant": "unknown_plant_answer", "unknown matter": "unknown_matter_answer"}


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
        return reached


def _add(ends: dict, end: int, count: int, probability: float) -> None:
    before = ends.get(end, (0, 0.0))
    ends[end] = before[0] + count, before[1] + probability


@cache
def listed() -> dict[str, set[str]]:
    """Return {plant: the questions on it that no document may ask}: the list's, with and without a question mark."""
    found: dict[str, set[str]] = {}
    with open(paths.repo_root() / "data" / "plain_questions.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            line = row["question"].removesuffix("？")
            found.setdefault(row["plant"], set()).update((line, line + "？"))
    return found


@cache
def left(plant: str, topic: str) -> float:
    """Return how much probability the questions on a topic have without the listed ones."""
    lines = [line.replace(plant, "{plant}") for line in listed().get(plant, ())]
    slot = slot_of("plain", _State(topic, "", ""))
    return 1 - sum(Parse(line).ends(slot, 0).get(len(line), (0, 0.0))[1] for line in lines)


def asked(plant: str, topic: str, parse: Parse, end: int) -> tuple[int, float]:
    """Return (derivations, probability) of the text up to `end` as a plain question on a plant and a topic."""
    if parse.text[:end].replace("{plant}", plant) in listed().get(plant, ()):
        return 0, 0.0
    count, p = parse.ends(slot_of("plain", _State(topic, "", "")), 0).get(end, (0, 0.0))
    return count, p / left(plant, topic)


def _firsts(parse: Parse, plant: str) -> Iterator[tuple[Combination, set[str], dict[int, tuple[int, float]]]]:
    """Yield (what it is about, topics of no second question, {end: (derivations, probability)}) for first questions."""
    for topic in topics() if plant in plant_facts() else ():
        for situation in situations(topic):
            slot = slot_of("first", _State(topic, value(plant, topic), situation))
            one = SHARES["story"] / len(topics()) / len(seen_situations(plant, topic))
            ends = {end: (count, p * one) for end, (count, p) in parse.ends(slot, 0).items()}
            yield Combination(plant, topic, situation), {topic}, ends
    line = parse.text.find("\n")
    kinds = ("plain", "unknown matter") if plant in plant_facts() else ("unknown plant",)
    for kind in kinds if line > 0 else ():
        about = matters() if kind == "unknown matter" else plain_topics()
        for topic in about:
            count, p = asked(plant, topic, parse, line)
            if not count:
                continue
            state = _State(topic, value(plant, topic) if kind == "plain" else "", "")
            ends = {
                end: (count * more, p * q * SHARES[kind] / len(about))
                for end, (more, q) in parse.ends(slot_of(ANSWERS[kind], state), line + 1).items()
            }
            told = {"water": {"summer", "winter"}, "care": {"light", "summer", "cold"}}.get(topic, {topic})
            yield Combination(plant, topic, ""), told, ends


def _readings(parse: Parse, plant: str) -> Iterator[tuple[Combination, int, float]]:
    """Yield (combination, derivations, probability given the plant) for what the text can be about."""
    second = SECOND if plant in plant_facts() else 0
    for combination, told, ends in _firsts(parse, plant):
        others = [t for t in topics() if t not in told]
        for end, (count, p) in ends.items():
            if end == len(parse.text):
                yield combination, count, p * (1 - second)
            for other in others if second and parse.text.startswith("\n", end) else ():
                slot = slot_of("second", _State(other, value(plant, other), ""))
                more, q = parse.ends(slot, end + 1).get(len(parse.text), (0, 0.0))
                if more:
                    yield combination, count * more, p * q * second / len(others)


def derive(text: str) -> tuple[int, float]:
    """Return in how many ways the grammar derives a text (1: it is unambiguous), and its probability.

    Both are 0 for a text that `draw_documents` can't yield, one about a held-out combination and a question of the
    examination included.
    """
    plant = next(name for name in (*plant_facts(), *strangers()) if name in text)
    parse = Parse(text.replace(plant, "{plant}"))
    shown = [reading for reading in _readings(parse, plant) if reading[0] not in held_out()]
    names = len(plant_facts() if plant in plant_facts() else strangers())
    return sum(count for _, count, _ in shown), sum(p for _, _, p in shown) / names


def bits(text: str) -> float:
    """Return -log2 of a text's probability under the grammar."""
    return -math.log2(derive(text)[1])
