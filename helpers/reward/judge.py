"""The judge: the examination's mark as a reward, where in an answer the verdict begins, and which questions are asked.

`built_in.mark` looks for the right fact and the right verdict. A model that learns from a judge learns whatever the
judge lets pass, so an answer that also speaks of another plant earns nothing here. Knows nothing of models.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable

from helpers.corpus import built_in
from helpers.corpus.built_in import Combination, Question

Case = tuple[str, str, str]  # topic, value, situation
_MEMORY = 0.8  # weight of all that was known of a case when its next group comes
_LEAST = 0.02  # weight of a case that never goes wrong


def other_plants(question: Question, answer: str) -> list[str]:
    """Return the plants that an answer names and its question doesn't."""
    rest = answer.replace(question.plant, "")
    return [name for name in (*built_in.plant_facts(), *built_in.strangers()) if name in rest]


def reward(question: Question, answer: str) -> float:
    """Return 1.0 for an answer that is right by the facts and names no other plant, else 0.0."""
    return float(built_in.mark(question, answer) and not other_plants(question, answer))


def opening(question: Question, answer: str) -> str | None:
    """Return an answer up to the comma after its fact: the verdict that follows is still free.

    "" where no right fact stands before a comma: the whole answer is free. None where the verdict comes first: nothing
    is. Only answers to a story have a verdict; `answer` is their first sentence.
    """
    # 喜欢大太阳，这个位置正合适。    -> 喜欢大太阳，        (the right fact)
    # 耐阴，这个位置正合适。          ->                      (a wrong one)
    # 这个位置正合适，喜欢大太阳。    -> None
    facts = built_in.wordings(question.topic, "fact")
    value = built_in.value(question.plant, question.topic)
    right = [at + len(text) for text in facts[value] if (at := answer.find(f"{text}，")) >= 0]
    verdict = _first(answer, built_in.wordings(question.topic, "verdict"))
    if verdict < _first(answer, facts):
        return None
    return answer[: min(right) + 1] if right and min(right) < verdict else ""


def _first(answer: str, wordings: dict[str, list[str]]) -> float:
    """Return where the first of some wordings begins in an answer; infinite where there is none."""
    places = [at for texts in wordings.values() for text in texts if (at := answer.find(text)) >= 0]
    return min(places, default=math.inf)


# ---- what is asked ----


def case_of(combination: Combination) -> Case:
    """Return what decides the verdict on a combination, whatever the plant and the words."""
    plant, topic, situation = combination
    return topic, built_in.value(plant, topic), situation


class Asker:
    """Draws questions on combinations that are not held out, a share `focus` of them weighted by past errors.

    Most groups of answers are all right and teach nothing, and errors sit in a few cases.
    """

    def __init__(self, focus: float, seed: int = 0) -> None:
        self.focus = focus
        self.random = random.Random(seed)
        self.combinations = [each for each in built_in.combinations() if each not in built_in.held_out()]
        self._earned: dict[Case, float] = defaultdict(lambda: 1.0)  # as if each case had been answered right once
        self._groups: dict[Case, float] = defaultdict(lambda: 1.0)

    def need(self, case: Case) -> float:
        """Return how often a case went wrong of late, between 0 and 1."""
        return 1 - self._earned[case] / self._groups[case]

    def ask(self, count: int) -> list[Question]:
        """Return `count` questions in fresh words, in random order."""
        by_need = round(self.focus * count)
        weights = [_LEAST + self.need(case_of(each)) for each in self.combinations]
        drawn = self.random.choices(self.combinations, weights, k=by_need)
        drawn += self.random.choices(self.combinations, k=count - by_need)
        self.random.shuffle(drawn)
        return [built_in.ask_story(each, self.random) for each in drawn]

    def record(self, results: Iterable[tuple[Question, float]]) -> None:
        """Take note of the mean reward of each question's answers."""
        for question, mean in results:
            case = case_of(Combination(question.plant, question.topic, question.situation))
            self._earned[case] = _MEMORY * self._earned[case] + mean
            self._groups[case] = _MEMORY * self._groups[case] + 1
