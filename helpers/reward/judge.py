"""The judge: the examination's mark as a reward, and where in an answer the verdict begins.

`built_in.mark` looks for the right fact and the right verdict. A model that learns from a judge learns whatever the
judge lets pass: so an answer that also speaks of another plant earns nothing here. Knows nothing of models.
"""

import math

from helpers.corpus import built_in
from helpers.corpus.built_in import Question


def other_plants(question: Question, answer: str) -> list[str]:
    """Return the plants that an answer names and its question doesn't."""
    rest = answer.replace(question.plant, "")
    return [name for name in (*built_in.plant_facts(), *built_in.strangers()) if name in rest]


def reward(question: Question, answer: str) -> float:
    """Return 1.0 for an answer that is right by the facts and names no other plant, else 0.0."""
    return float(built_in.mark(question, answer) and not other_plants(question, answer))


def opening(question: Question, answer: str) -> str | None:
    """Return an answer up to the comma behind its fact: what follows is the verdict, and that is still free.

    "" where no right fact stands before a comma: all of the answer is still free. None where the verdict comes first:
    nothing is. Only answers to a story have a verdict; `answer` is their first sentence.
    """
    # 喜欢大太阳，这个位置正合适。    -> 喜欢大太阳，        (the right fact)
    # 耐阴，这个位置正合适。          ->                      (a wrong one)
    # 这个位置正合适，喜欢大太阳。    -> None
    facts = built_in.wordings(question.topic, "fact")
    right = [at + len(text) for text in facts[_value(question)] if (at := answer.find(f"{text}，")) >= 0]
    verdict = _first(answer, built_in.wordings(question.topic, "verdict"))
    if verdict < _first(answer, facts):
        return None
    return answer[: min(right) + 1] if right and min(right) < verdict else ""


def _value(question: Question) -> str:
    return built_in.value(question.plant, question.topic)


def _first(answer: str, wordings: dict[str, list[str]]) -> float:
    """Return where the first of some wordings begins in an answer; infinite where there is none."""
    places = [at for texts in wordings.values() for text in texts if (at := answer.find(text)) >= 0]
    return min(places, default=math.inf)
