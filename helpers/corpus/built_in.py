"""The built-in corpus: hand-written facts on house plants, and a grammar that turns them into documents.

data/plants.csv holds the facts, data/grammar.yaml the wording. A document is a question line and an answer line,
sometimes followed by a second question and answer. The question tells a story, or it is plain: short, as people type
it into a chat box, now and then about a plant or a matter that the table doesn't have. Every document carries its exact
probability, so the entropy of the corpus, the floor under any model's loss, is known; and an answer can be marked by
the facts. The questions of data/plain_questions.csv are for the examination: no document asks one of them. Knows
nothing of corpus files, tokens or models.
"""

import csv
import hashlib
import math
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import yaml

from helpers import paths

DEFAULT_DOCUMENTS = 48_000  # documents in the default corpus
# What the first question of a document is. Stories are the larger part: only they show how a verdict follows from a
# fact, and that is what a model gets wrong. The other documents are half as long.
SHARES = {"story": 0.70, "plain": 0.20, "unknown plant": 0.05, "unknown matter": 0.05}
SECOND = 0.40  # share of documents with a second question; an unknown plant's have none
HELD_OUT = 0.32  # share of (plant, topic) pairs that lose one of their situations: 8 % of the combinations
EXCHANGES = {1: 0.3, 2: 0.4, 3: 0.3}  # how many exchanges a conversation has, and its share
SMALL_TALK = 0.10  # share of exchanges that are about no plant
ANOTHER_PLANT = 0.6  # share of further exchanges that turn to another plant; after an unknown one all do
TURNING_SHARES = {"story": 0.30, "plain": 0.60, "unknown plant": 0.05, "unknown matter": 0.05}  # of these
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
    topic: str  # of a plain question also one of `plain_topics`, or a matter that the grammar doesn't know
    situation: str  # "" in a plain question, which has none
    kind: str  # "seen" or "held out", what its combination is in the corpus, "plain", or "small talk"


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question and its answer, one of the exchanges of a conversation."""

    question: str
    answer: str
    bits: float  # -log2 of the answer's probability under the grammar, given all that was said before
    about: Question  # the same question as one of the examination, so that another answer can be marked


class Combination(NamedTuple):
    """What a story is about; a combination can be held out of the corpus, a fact (plant, topic) can't."""

    plant: str
    topic: str
    situation: str


class GrammarChoice(NamedTuple):
    """One choice on the way to a document."""

    slot: str
    text: str  # what was chosen: a name, or a wording, in which {slot} stands for a later choice
    bits: float  # -log2 of its probability


class _State(NamedTuple):
    """All that the wording depends on, besides the plant's name."""

    topic: str
    value: str  # "" where the plant or the matter is unknown; several, with spaces, for a topic of several columns
    situation: str  # "" in a second question and in a plain one, which have none


class _Slot(NamedTuple):
    """Alternatives: (probability, template, parts) each, a part being a text or again a slot."""

    name: str
    options: list[tuple[float, str, list]]


# ---- the facts, and what follows from them ----


@cache
def plant_facts() -> dict[str, dict[str, str]]:
    """Return {plant: {column: value}}, the table of data/plants.csv."""
    with open(paths.repo_root() / "data" / "plants.csv", encoding="utf-8", newline="") as file:
        return {row.pop("name"): row for row in csv.DictReader(file)}


@cache
def _grammar() -> dict:
    # the base loader reads all as text, as a CSV does: the values 5 and -5, too
    return yaml.load((paths.repo_root() / "data" / "grammar.yaml").read_text("utf-8"), yaml.BaseLoader)


def topics() -> list[str]:
    """Return the topics that a question can be about, with or without a story."""
    return list(_grammar()["topics"])


def plain_topics() -> list[str]:
    """Return all topics of plain questions: those of the stories, and those that join several facts."""
    return topics() + list(_grammar()["plain_topics"])


def matters() -> list[str]:
    """Return what is asked about plants although the table says nothing of it."""
    return list(_grammar()["matters"])


def strangers() -> list[str]:
    """Return the names of plants that are asked about although the table doesn't have them."""
    return list(_grammar()["strangers"])


def _entry(topic: str) -> dict:
    grammar = _grammar()
    parts = (grammar[part] for part in ("topics", "plain_topics", "matters"))
    return next((part[topic] for part in parts if topic in part), {})  # people ask about other matters, too


def columns(topic: str) -> list[str]:
    """Return the columns of the table that a topic reads: one, several for a plain topic, none for a matter."""
    entry = _entry(topic)
    return [entry["column"]] if "column" in entry else entry.get("columns", [])


def situations(topic: str) -> list[str]:
    """Return the situations that an asker can be in, for a topic."""
    return list(_grammar()["topics"][topic]["situations"])


def value(plant: str, topic: str) -> str:
    """Return what the plant needs: its value in the column that the topic reads (values, with spaces, in several)."""
    return " ".join(plant_facts()[plant][column] for column in columns(topic))


def right_verdict(plant: str, topic: str, situation: str) -> str:
    """Return what the answer concludes: the situation's rule applied to the plant's value."""
    return _grammar()["topics"][topic]["situations"][situation]["rule"][value(plant, topic)]


def wordings(topic: str, slot: str) -> dict[str, list[str]]:
    """Return {value: wordings} for the slot "fact", {verdict: wordings} for the slot "verdict"."""
    entries = _grammar()["topics"][topic]["values" if slot == "fact" else "verdicts"]
    return {name: entry[slot] for name, entry in entries.items()}


@cache
def held_out() -> frozenset[Combination]:
    """Return the combinations that `draw_documents` never shows, about 8 % of all.

    Each can be answered by composing what is shown: the plant's value, seen in its other situations and in
    second questions (a (plant, topic) loses one situation at most), and the rule, seen on at least `WITNESSES`
    other plants of the same value in the same situation. Chosen by a hash: no seed, the same everywhere.
    """
    chosen = set()
    for topic in topics():
        for plant in plant_facts():
            digest = hashlib.sha256(f"{plant} {topic}".encode()).digest()
            if digest[0] >= HELD_OUT * 256:
                continue
            situation = situations(topic)[digest[1] % len(situations(topic))]
            alike = [other for other in plant_facts() if other != plant and value(other, topic) == value(plant, topic)]
            if sum(Combination(other, topic, situation) not in chosen for other in alike) >= WITNESSES:
                chosen.add(Combination(plant, topic, situation))
    return frozenset(chosen)


def combinations() -> list[Combination]:
    """Return all combinations, also the held-out ones."""
    return [Combination(plant, topic, s) for plant in plant_facts() for topic in topics() for s in situations(topic)]


@cache
def seen_situations(plant: str, topic: str) -> tuple[str, ...]:
    """Return the situations in which `draw_documents` shows a plant, for a topic."""
    return tuple(s for s in situations(topic) if Combination(plant, topic, s) not in held_out())


# ---- the grammar ----


def _alternatives(slot: str, state: _State) -> list[tuple[float, str]]:
    """Return [(probability, template)] of a slot, from the most special part of the grammar that has it."""
    topic = _entry(state.topic)
    situation = topic.get("situations", {}).get(state.situation, {})
    needed = topic.get("values", {}).get(state.value, {})
    concluded = topic.get("verdicts", {}).get(situation.get("rule", {}).get(state.value), {})
    for part in (situation, needed, concluded, topic, _grammar()["common"]):
        if slot in part:
            weighted = [next(iter(a.items())) if isinstance(a, dict) else (a, 1) for a in part[slot]]
            total = sum(float(weight) for _, weight in weighted)
            return [(float(weight) / total, template) for template, weight in weighted]
    raise KeyError(f"data/grammar.yaml has no slot '{slot}' for {state}")


@cache
def _slot(name: str, state: _State) -> _Slot:
    """Return a slot with its inner slots in place; only {plant} stays a text, so that plants share the wording."""

    def inner(reference: str) -> _Slot:
        if "." not in reference:
            return _slot(reference, state)
        topic, wanted = reference.split(".")  # {light.fact}: the fact of one of the columns that this topic reads
        return _slot(wanted, _State(topic, state.value.split()[columns(state.topic).index(topic)], ""))

    slot = _Slot(name, [])
    for probability, template in _alternatives(name, state):
        pieces = re.split(r"(\{[\w.]+\})", template)
        parts = [inner(p[1:-1]) if p[:1] == "{" and p != "{plant}" else p for p in pieces if p]
        slot.options.append((probability, template, parts))
    return slot


class _Drawing:
    """A text in the making: what it says so far, and the choices that led there."""

    def __init__(self, rng: random.Random, plant: str = ""):
        self.rng, self.plant = rng, plant
        self.parts: list[str] = []
        self.choices: list[GrammarChoice] = []
        self.answer_at = 0  # how many choices had been made when the last answer began

    def weigh(self, slot: str, options: Sequence[tuple]) -> int:
        """Choose one of [(probability, text, …)], and return its index."""
        # random() is the one call that every Python repeats exactly; where rounding leaves a gap, take the last one
        at, index = self.rng.random(), 0
        for index, (probability, *_) in enumerate(options):  # noqa: B007
            at -= probability
            if at < 0:
                break
        probability, text, *_ = options[index]
        self.choices.append(GrammarChoice(slot, text.replace("{plant}", self.plant), -math.log2(probability)))
        return index

    def choose(self, slot: str, names: Sequence[str]) -> str:
        """Choose one of several names, all equally likely."""
        name = names[int(self.rng.random() * len(names))]
        self.choices.append(GrammarChoice(slot, name, math.log2(len(names))))
        return name

    def write(self, slot: _Slot) -> None:
        """Say one of the slot's wordings."""
        for part in slot.options[self.weigh(slot.name, slot.options)][2]:
            if part == "\n":
                self.begin_answer()
            elif isinstance(part, str):
                self.parts.append(part.replace("{plant}", self.plant))
            else:
                self.write(part)

    def begin_answer(self) -> None:
        """End the question's line."""
        self.parts.append("\n")
        self.answer_at = len(self.choices)

    def text(self) -> str:
        """Return what has been said so far."""
        return "".join(self.parts)


# ---- plain questions ----


@cache
def plain_questions() -> tuple[Question, ...]:
    """Return the questions of data/plain_questions.csv, the third part of the examination, in the file's order."""
    with open(paths.repo_root() / "data" / "plain_questions.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(Question(f"{row['question']}\n", row["plant"], row["topic"], "", "plain") for row in rows)


@cache
def _listed(plant: str) -> frozenset[str]:
    """Return the listed questions on a plant, with and without a question mark: no document may ask them."""
    lines = {question.prompt.rstrip("\n？") for question in plain_questions() if question.plant == plant}
    return frozenset(line + mark for line in lines for mark in ("", "？"))


@cache
def _listed_share(plant: str, topic: str) -> float:
    """Return how likely a plain question would be a listed one if nothing prevented that."""
    slot = _slot("plain", _State(topic, "", ""))
    return math.fsum(_ends(slot, line, {0: 1.0}, plant).get(len(line), 0.0) for line in _listed(plant))


def _ends(slot: _Slot, text: str, starts: dict[int, float], plant: str) -> dict[int, float]:
    """Return {end: probability} of a slot's wordings in a text, over all places where it may start."""
    found: dict[int, float] = {}
    for probability, _, parts in slot.options:
        reached = {start: p * probability for start, p in starts.items()}
        for part in parts:
            if isinstance(part, _Slot):
                reached = _ends(part, text, reached, plant)
            else:
                said = part.replace("{plant}", plant)
                reached = {at + len(said): p for at, p in reached.items() if text.startswith(said, at)}
            if not reached:
                break
        for end, p in reached.items():
            found[end] = found.get(end, 0.0) + p
    return found


def _ask(drawing: _Drawing, topic: str) -> None:
    """Write a plain question that isn't listed: the others share the probability of the listed ones."""
    while True:
        question = _Drawing(drawing.rng, drawing.plant)
        question.write(_slot("plain", _State(topic, "", "")))
        if question.text() not in _listed(drawing.plant):
            break
    drawing.parts += question.parts
    drawing.choices += question.choices
    if share := _listed_share(drawing.plant, topic):
        drawing.choices.append(GrammarChoice("not in the examination", "", math.log2(1 - share)))


# ---- documents ----

# kind of a document -> the slot of its first answer
_ANSWERS = {
    "story": "answer", "plain": "plain_answer", "unknown plant": "unknown_plant_answer",
    "unknown matter": "unknown_matter_answer",
}  # fmt: skip


def _draw(rng: random.Random) -> _Drawing:
    """Draw a document: an exchange, and now and then a second question."""
    drawing = _Drawing(rng)
    first = _draw_first(drawing, SHARES)
    if first.plant in plant_facts() and drawing.weigh("second question", [(1 - SECOND, "no"), (SECOND, "yes")]):
        drawing.parts.append("\n")
        _draw_next(drawing, "second", columns(first.topic))
    return drawing


def _draw_first(drawing: _Drawing, shares: Mapping[str, float]) -> Combination:
    """Draw a kind, a plant, a topic, for a story a situation, and the wording; return what it is about."""
    kind = list(shares)[drawing.weigh("kind", [(share, kind) for kind, share in shares.items()])]
    known = kind != "unknown plant"
    drawing.plant = drawing.choose("plant", list(plant_facts()) if known else strangers())
    about = {"story": topics, "unknown matter": matters}.get(kind, plain_topics)
    topic, situation = drawing.choose("topic", about()), ""
    if kind == "story":
        situation = drawing.choose("situation", seen_situations(drawing.plant, topic))
        drawing.write(_slot("first", _State(topic, value(drawing.plant, topic), situation)))
    else:
        _ask(drawing, topic)
        drawing.begin_answer()
        state = _State(topic, value(drawing.plant, topic) if known else "", "")
        drawing.write(_slot(_ANSWERS[kind], state))
    return Combination(drawing.plant, topic, situation)


def _draw_next(drawing: _Drawing, which: str, told: Collection[str]) -> str:
    """Draw a further question on the same plant, about a topic whose fact isn't told yet; return the topic."""
    topic = drawing.choose(f"{which} topic", [other for other in topics() if other not in told])
    drawing.write(_slot("second", _State(topic, value(drawing.plant, topic), "")))
    return topic


def draw(rng: random.Random) -> Document:
    """Draw a document from the grammar."""
    drawing = _draw(rng)
    return Document(drawing.text(), math.fsum(choice.bits for choice in drawing.choices))


def explain_draw(rng: random.Random) -> list[GrammarChoice]:
    """Return the choices that lead to the document which `draw` makes of the same random state, in their order.

    Their bits sum to the document's. Choices that have one option only are left out. A plain question that would be
    one of the examination's is drawn again: "not in the examination", with less than 0 bits, stands for that.
    """
    return [choice for choice in _draw(rng).choices if choice.bits]


def draw_documents(n: int = DEFAULT_DOCUMENTS, seed: int = 0) -> Iterator[Document]:
    """Yield `n` distinct documents, the same for the same seed on every machine.

    They are drawn independently, and a text that came before is skipped. The likeliest texts repeat, so skipping lifts
    the mean of `bits` above the grammar's entropy, but hardly: a handful of the default number of draws are repeats,
    which is less than 0.01 % of the floor.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < n:
        document = draw(rng)
        if document.text not in seen:
            seen.add(document.text)
            yield document


# ---- conversations ----


def _draw_conversation(rng: random.Random) -> list[AnsweredQuestion]:
    drawing, about, told = _Drawing(rng), Combination("", "", ""), list[str]()
    exchanges: list[AnsweredQuestion] = []
    wanted = list(EXCHANGES)[drawing.weigh("exchanges", [(share, str(n)) for n, share in EXCHANGES.items()])]
    while len(exchanges) < wanted:
        begun, known = len(drawing.parts), about.plant in plant_facts()
        if drawing.weigh("small talk", [(1 - SMALL_TALK, "no"), (SMALL_TALK, "yes")]):
            exchanges.append(_exchange(drawing, _draw_small_talk(drawing), begun))
            continue
        if known and drawing.weigh("plant", [(ANOTHER_PLANT, "another"), (1 - ANOTHER_PLANT, "the same")]):
            about = Combination(about.plant, _draw_next(drawing, "next", told), "")
            told = [*told, about.topic]
        else:
            about = _draw_first(drawing, TURNING_SHARES if about.plant else SHARES)
            told = columns(about.topic)
        exchanges.append(_exchange(drawing, about, begun))
    return exchanges


def _draw_small_talk(drawing: _Drawing) -> Combination:
    """Draw what somebody says who asks about no plant, and what is answered."""
    topic = drawing.choose("topic", list(_grammar()["small_talk"]))
    said = _grammar()["small_talk"][topic]
    drawing.parts.append(drawing.choose("asked", said["asked"]))
    drawing.begin_answer()
    drawing.parts.append(drawing.choose("answer", said["answer"]))
    return Combination("", topic, "")


def _exchange(drawing: _Drawing, about: Combination, begun: int) -> AnsweredQuestion:
    """Return the exchange that a drawing has just written, from part `begun` on."""
    question, answer = "".join(drawing.parts[begun:]).split("\n")
    bits = math.fsum(choice.bits for choice in drawing.choices[drawing.answer_at :])
    kind = "seen" if about.situation else "plain" if about.plant else "small talk"
    return AnsweredQuestion(question, answer, bits, Question(f"{question}\n", *about, kind))


def draw_conversations(n: int, seed: int = 0) -> Iterator[list[AnsweredQuestion]]:
    """Yield `n` distinct conversations, the same for the same seed on every machine.

    Each is a document's first exchange, then up to two more: a further question on the same plant, which does not name
    it, or a first one again, on another plant. Now and then somebody says hello or thank you. No combination is held
    out and no plain question listed that `draw_documents` doesn't keep out as well.
    """
    rng = random.Random(seed)
    seen: set[tuple[str, ...]] = set()
    while len(seen) < n:
        exchanges = _draw_conversation(rng)
        said = tuple(text for each in exchanges for text in (each.question, each.answer))
        if said not in seen:
            seen.add(said)
            yield exchanges


# ---- the examination ----


def examination(seed: int, n: int) -> list[Question]:
    """Return `n` questions with a story: n // 2 on held-out combinations, the others before them on seen ones.

    Combinations are shuffled by the seed, and none comes again before all of its half have been asked. The third part
    of the examination is `plain_questions`.
    """
    rng = random.Random(seed)
    questions = []
    for is_held_out, wanted in ((False, n - n // 2), (True, n // 2)):
        pool = sorted((c for c in combinations() if (c in held_out()) == is_held_out), key=lambda _: rng.random())
        questions += [ask_story(pool[i % len(pool)], rng) for i in range(wanted)]
    return questions


def ask_story(combination: Combination, rng: random.Random) -> Question:
    """Return a question with a story on a combination, in words that are drawn from the grammar."""
    plant, topic, situation = combination
    drawing = _Drawing(rng, plant)
    drawing.write(_slot("question", _State(topic, value(plant, topic), situation)))
    kind = "held out" if combination in held_out() else "seen"
    return Question(f"{drawing.text()}\n", *combination, kind)


def mark(question: Question, answer: str) -> bool:
    """Return whether a generated answer is right by the facts; only its first line counts.

    To a story, right is a line that words the plant's value and the verdict on the asker's situation, and no other
    value and no other verdict of the topic. To a plain question, right is a line that words the plant's value in every
    column that the topic reads, and no other value, no verdict that doesn't follow from it, and no other plant. About
    an unknown plant or matter, right is a line that says so, and gives no fact of any topic.
    """
    line = answer.split("\n", 1)[0]

    def said(topic: str, slot: str) -> set[str]:
        return {name for name, texts in wordings(topic, slot).items() if any(text in line for text in texts)}

    plant, topic, situation = question.plant, question.topic, question.situation
    if question.kind != "plain":
        return said(topic, "fact") == {value(plant, topic)} and said(topic, "verdict") == {
            right_verdict(plant, topic, situation)
        }
    if any(name in line.replace(plant, "") for name in (*plant_facts(), *strangers())):
        return False
    admissions = [_alternatives(slot, _State("", "", "")) for slot in ("never", "sorry", "beyond", "elsewhere")]
    admits = any(text in line for alternatives in admissions for _, text in alternatives)
    if plant not in plant_facts() or topic not in plain_topics():
        return admits and not any(said(every, "fact") for every in topics())
    for column in columns(topic):
        follows = {right_verdict(plant, column, s) for s in situations(column)}
        concluded = said(column, "verdict")
        if said(column, "fact") != {value(plant, column)} or len(concluded) > 1 or not concluded <= follows:
            return False
    return not admits
