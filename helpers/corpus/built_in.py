"""The built-in corpus: hand-written facts on house plants, and a grammar that turns them into documents.

data/plants.csv holds the facts, data/grammar.yaml the wording. A document is a question line and an answer line,
sometimes followed by a second question and answer. Every document carries its exact probability, so the entropy of the
corpus, the floor under any model's loss, is known; and an answer can be marked by the facts. Knows nothing of corpus
files, tokens or models.
"""

import csv
import hashlib
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import yaml

from helpers import paths

DEFAULT = 21_000  # documents in the default corpus
SECOND = 0.25  # share of documents with a second question
HELD_OUT = 0.32  # share of (plant, topic) pairs that lose one of their situations: 8 % of the combinations
WITNESSES = 3  # other plants of the same value that must still show what a held-out situation leads to


@dataclass(frozen=True)
class Document:
    """A text, and how much it says."""

    text: str
    bits: float  # -log2 of its probability under the grammar, the end of the document included


@dataclass(frozen=True)
class Question:
    """One question of the examination, and what it is about."""

    prompt: str  # the question line and "\n"
    plant: str
    topic: str
    situation: str
    held_out: bool  # whether its combination is held out of the corpus


class Combination(NamedTuple):
    """What a document is about; a combination can be held out of the corpus, a fact (plant, topic) can't."""

    plant: str
    topic: str
    situation: str


class _State(NamedTuple):
    """All that the wording depends on, besides the plant's name."""

    topic: str
    value: str
    situation: str  # "" in a second question, which has none


# ---- the facts, and what follows from them ----


@cache
def facts() -> dict[str, dict[str, str]]:
    """Return {plant: {column: value}}, the table of data/plants.csv."""
    with open(paths.repo_root() / "data" / "plants.csv", encoding="utf-8", newline="") as file:
        return {row.pop("name"): row for row in csv.DictReader(file)}


@cache
def _grammar() -> dict:
    def with_text_keys(node):  # YAML reads the keys 5 and -5 as numbers, the CSV gives text
        if isinstance(node, dict):
            return {str(key): with_text_keys(value) for key, value in node.items()}
        return [with_text_keys(value) for value in node] if isinstance(node, list) else node

    return with_text_keys(yaml.safe_load((paths.repo_root() / "data" / "grammar.yaml").read_text("utf-8")))


def topics() -> list[str]:
    """Return the topics that a question can be about."""
    return list(_grammar()["topics"])


def situations(topic: str) -> list[str]:
    """Return the situations that an asker can be in, for a topic."""
    return list(_grammar()["topics"][topic]["situations"])


def value(plant: str, topic: str) -> str:
    """Return what the plant needs: its value in the column that the topic reads."""
    return facts()[plant][_grammar()["topics"][topic]["column"]]


def verdict(plant: str, topic: str, situation: str) -> str:
    """Return what the answer concludes: the situation's rule applied to the plant's value."""
    return _grammar()["topics"][topic]["situations"][situation]["rule"][value(plant, topic)]


def wordings(topic: str, slot: str) -> dict[str, list[str]]:
    """Return {value: wordings} for the slot "fact", {verdict: wordings} for the slot "verdict"."""
    entries = _grammar()["topics"][topic]["values" if slot == "fact" else "verdicts"]
    return {name: entry[slot] for name, entry in entries.items()}


@cache
def held_out() -> frozenset[Combination]:
    """Return the combinations that `documents` never shows, about 8 % of all.

    Each can be answered by composing what is shown: the plant's value, seen in its other situations and in
    second questions (a (plant, topic) loses one situation at most), and the rule, seen on at least `WITNESSES`
    other plants of the same value in the same situation. Chosen by a hash: no seed, the same everywhere.
    """
    chosen = set()
    for topic in topics():
        for plant in facts():
            digest = hashlib.sha256(f"{plant} {topic}".encode()).digest()
            if digest[0] >= HELD_OUT * 256:
                continue
            situation = situations(topic)[digest[1] % len(situations(topic))]
            alike = [other for other in facts() if other != plant and value(other, topic) == value(plant, topic)]
            if sum(Combination(other, topic, situation) not in chosen for other in alike) >= WITNESSES:
                chosen.add(Combination(plant, topic, situation))
    return frozenset(chosen)


@cache
def seen_situations(plant: str, topic: str) -> tuple[str, ...]:
    """Return the situations in which `documents` shows a plant, for a topic."""
    return tuple(s for s in situations(topic) if Combination(plant, topic, s) not in held_out())


# ---- the grammar: a slot is a tuple of (probability, parts), a part is a text or again a slot ----


def _alternatives(slot: str, state: _State) -> list[tuple[str, float]]:
    """Return [(template, probability)] of a slot, from the most special part of the grammar that has it."""
    topic = _grammar()["topics"][state.topic]
    situation = topic["situations"].get(state.situation, {})
    concluded = topic["verdicts"].get(situation.get("rule", {}).get(state.value), {})
    for part in (situation, topic["values"][state.value], concluded, topic, _grammar()["common"]):
        if slot in part:
            weighted = [next(iter(a.items())) if isinstance(a, dict) else (a, 1) for a in part[slot]]
            total = sum(weight for _, weight in weighted)
            return [(template, weight / total) for template, weight in weighted]
    raise KeyError(f"data/grammar.yaml has no slot '{slot}' for {state}")


@cache
def _slot(name: str, state: _State) -> tuple:
    """Return a slot with its inner slots in place; only {plant} stays a text, so that plants share the wording."""
    alternatives = []
    for template, probability in _alternatives(name, state):
        pieces = re.split(r"(\{\w+\})", template)
        parts = [_slot(p[1:-1], state) if p[:1] == "{" and p != "{plant}" else p for p in pieces if p]
        alternatives.append((probability, tuple(parts)))
    return tuple(alternatives)


def _write(slot: tuple, rng: random.Random, out: list[str]) -> float:
    """Append a random wording of the slot to `out`, and return its bits."""
    at = rng.random()
    for probability, parts in slot:  # noqa: B007 (where rounding leaves a gap, the last one is taken)
        at -= probability
        if at < 0:
            break
    bits = -math.log2(probability)
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        else:
            bits += _write(part, rng, out)
    return bits


def _wording(name: str, plant: str, topic: str, situation: str, rng: random.Random) -> tuple[str, float]:
    out: list[str] = []
    bits = _write(_slot(name, _State(topic, value(plant, topic), situation)), rng, out)
    return "".join(out).replace("{plant}", plant), bits


def _choose(items, rng: random.Random):
    return items[int(rng.random() * len(items))]  # random() is the one call that every Python repeats exactly


def draw(rng: random.Random) -> Document:
    """Draw a document: plant, topic, a situation that isn't held out, the wording, perhaps a second question."""
    plant, topic = _choose(list(facts()), rng), _choose(topics(), rng)
    situation = _choose(seen_situations(plant, topic), rng)
    text, bits = _wording("first", plant, topic, situation, rng)
    bits += math.log2(len(facts()) * len(topics()) * len(seen_situations(plant, topic)))
    if rng.random() >= SECOND:
        return Document(text, bits - math.log2(1 - SECOND))
    others = [t for t in topics() if t != topic]
    second, more = _wording("second", plant, _choose(others, rng), "", rng)
    return Document(f"{text}\n{second}", bits + more - math.log2(SECOND / len(others)))


def documents(n: int = DEFAULT, seed: int = 0) -> Iterator[Document]:
    """Yield `n` distinct documents, the same for the same seed on every machine.

    They are drawn independently, and a text that came before is skipped. The likeliest texts repeat, so skipping lifts
    the mean of `bits` above the grammar's entropy, but hardly: about one of 21,000 draws is a repeat, which is less
    than 0.01 % of the floor.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < n:
        document = draw(rng)
        if document.text not in seen:
            seen.add(document.text)
            yield document


# ---- the examination ----


def examination(seed: int, n: int) -> list[Question]:
    """Return `n` questions: n // 2 on held-out combinations, the others before them on seen ones.

    Combinations are shuffled by the seed, and none comes again before all of its half have been asked.
    """
    rng = random.Random(seed)
    every = [Combination(plant, topic, s) for plant in facts() for topic in topics() for s in situations(topic)]
    questions = []
    for kept, wanted in ((False, n - n // 2), (True, n // 2)):
        pool = sorted((c for c in every if (c in held_out()) == kept), key=lambda _: rng.random())
        for i in range(wanted):
            combination = pool[i % len(pool)]
            line, _ = _wording("question", *combination, rng)
            questions.append(Question(f"{line}\n", *combination, held_out=kept))
    return questions


def mark(question: Question, answer: str) -> bool:
    """Return whether a generated answer is right by the facts; only its first line counts.

    Right is a line that words the plant's value and the verdict on the asker's situation, and no other value
    and no other verdict of the topic.
    """
    line = answer.split("\n", 1)[0]

    def said(slot: str) -> set[str]:
        return {name for name, texts in wordings(question.topic, slot).items() if any(text in line for text in texts)}

    plant, topic, situation = question.plant, question.topic, question.situation
    return said("fact") == {value(plant, topic)} and said("verdict") == {verdict(plant, topic, situation)}
