"""Which questions are asked: a part evenly, the others where answers go wrong.

Most groups are all right and teach nothing, and what goes wrong sits in a few cases. A case is what decides the
verdict: topic, value and situation, whatever the plant and the words. Knows nothing of models.
"""

import random
from collections import defaultdict
from collections.abc import Iterable

from helpers.corpus import built_in
from helpers.corpus.built_in import Combination, Question

Case = tuple[str, str, str]  # topic, value, situation
MEMORY = 0.8  # how much of what was known of a case counts beside its newest group
LEAST = 0.02  # weight of a case that never goes wrong


def case_of(combination: Combination) -> Case:
    """Return what decides the verdict on a combination."""
    plant, topic, situation = combination
    return topic, built_in.value(plant, topic), situation


class Asker:
    """Draws questions on combinations that are not held out; `tell` it what the answers earned.

    focus: the share of questions that is drawn where answers have gone wrong, in proportion to how often.
    """

    def __init__(self, focus: float, seed: int = 0) -> None:
        self.focus = focus
        self.random = random.Random(seed)
        self.combinations = [each for each in built_in.combinations() if each not in built_in.held_out()]
        self._earned: dict[Case, float] = defaultdict(lambda: 1.0)  # as if each case had been answered right once
        self._groups: dict[Case, float] = defaultdict(lambda: 1.0)

    def need(self, case: Case) -> float:
        """Return how often a case goes wrong, as far as is known: between 0 and 1."""
        return 1 - self._earned[case] / self._groups[case]

    def ask(self, count: int) -> list[Question]:
        """Return `count` questions in fresh words, in no order."""
        by_need = round(self.focus * count)
        weights = [LEAST + self.need(case_of(each)) for each in self.combinations]
        drawn = self.random.choices(self.combinations, weights, k=by_need)
        drawn += self.random.choices(self.combinations, k=count - by_need)
        self.random.shuffle(drawn)
        return [built_in.ask_story(each, self.random) for each in drawn]

    def tell(self, results: Iterable[tuple[Question, float]]) -> None:
        """Take note of mean rewards."""
        for question, mean in results:
            case = case_of(Combination(question.plant, question.topic, question.situation))
            self._earned[case] = MEMORY * self._earned[case] + mean
            self._groups[case] = MEMORY * self._groups[case] + 1
