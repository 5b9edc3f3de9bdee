"""The judge: the examination's mark as a reward, and which questions are asked in training.

`built_in.mark` looks for the right fact and the right verdict. A model that learns from a judge learns whatever the
judge lets pass, so an answer that also speaks of another plant earns nothing here. Knows nothing of models.
"""

import random

from helpers.corpus import built_in
from helpers.corpus.built_in import Question


def other_plants(question: Question, answer: str) -> list[str]:
    """Return the plants that an answer names and its question doesn't."""
    rest = answer.replace(question.plant, "")
    return [name for name in (*built_in.plant_facts(), *built_in.strangers()) if name in rest]


def reward(question: Question, answer: str) -> float:
    """Return 1.0 for an answer that is right by the facts and names no other plant, else 0.0."""
    return float(built_in.mark(question, answer) and not other_plants(question, answer))


def ask(count: int, rng: random.Random) -> list[Question]:
    """Return `count` questions with a story, in fresh words; what is held out is never asked about."""
    pool = [each for each in built_in.combinations() if each not in built_in.held_out()]
    return [built_in.ask_story(each, rng) for each in rng.choices(pool, k=count)]
