"""The exact probability of a text under the built-in grammar, from the text alone: a sum over all that it can be about.

The oracle for `built_in.draw_documents`, which knows the probability of a document because it drew it. Where the two
are equal, the text has no second derivation. What a single slot says is parsed by the grammar's own `_ends`, which is
held against an enumeration of its wordings.
"""

from collections.abc import Iterator

from helpers.corpus import built_in
from helpers.corpus.built_in import SECOND, SHARES, Combination, _slot, _State, held_out, plant_facts, topics, value

ANSWERS = {"plain": "plain_answer", "unknown plant": "unknown_plant_answer", "unknown matter": "unknown_matter_answer"}


def ends(name: str, state: tuple, text: str, plant: str, start: int = 0) -> dict[int, float]:
    """Return {end: probability} of what a slot says in a text from a place on."""
    return built_in._ends(_slot(name, _State(*state)), text, {start: 1.0}, plant)


def asked(plant: str, topic: str, question: str) -> float:
    """Return the probability of a text as a plain question on a plant and a topic."""
    if question in built_in._listed(plant):
        return 0.0
    p = ends("plain", (topic, "", ""), question, plant).get(len(question), 0.0)
    return p / (1 - built_in._listed_share(plant, topic))


def _firsts(text: str, plant: str) -> Iterator[tuple[Combination, set[str], float, dict[int, float]]]:
    """Yield (what it is about, topics of no second question, its probability, {end: …}) for first exchanges."""
    for about in (each for each in built_in.combinations() if each.plant == plant):
        one = SHARES["story"] / len(topics()) / len(built_in.seen_situations(plant, about.topic))
        state = about.topic, value(plant, about.topic), about.situation
        yield about, {about.topic}, one, ends("first", state, text, plant)
    line = text.find("\n")
    for kind in ("plain", "unknown matter") if plant in plant_facts() else ("unknown plant",):
        asked_for = built_in.matters() if kind == "unknown matter" else built_in.plain_topics()
        for topic in asked_for if line > 0 else ():
            if p := asked(plant, topic, text[:line]):
                needed = value(plant, topic) if kind == "plain" else ""
                found = ends(ANSWERS[kind], (topic, needed, ""), text, plant, line + 1)
                told = {"water": {"summer", "winter"}, "care": {"light", "summer", "cold"}}.get(topic, {topic})
                yield Combination(plant, topic, ""), told, p * SHARES[kind] / len(asked_for), found


def derive(text: str) -> float:
    """Return a text's probability: 0 for one about a held-out combination, and for a question of the examination."""
    plant = next(name for name in (*plant_facts(), *built_in.strangers()) if name in text)
    second = SECOND if plant in plant_facts() else 0
    total = 0.0
    for about, told, one, found in _firsts(text, plant):
        others = [topic for topic in topics() if topic not in told]
        for end, p in found.items() if about not in held_out() else ():
            if end == len(text):
                total += one * p * (1 - second)
            for other in others if second and text.startswith("\n", end) else ():
                last = ends("second", (other, value(plant, other), ""), text, plant, end + 1).get(len(text), 0.0)
                total += one * p * last * second / len(others)
    return total / len(plant_facts() if plant in plant_facts() else built_in.strangers())
