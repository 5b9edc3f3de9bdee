"""Exercises and predictions in their form: unsolved, checked, with a hint, a solution, and wrong answers to refuse.

`test_notebooks` gives the answers, the wrong ones and the published ones.
"""

import re

import nbformat
import pytest
from exercises import (
    CHECK,
    PYTHON,
    UNSOLVED,
    code_lines,
    compiles,
    exercises,
    tagged,
    verdict_problems,
)
from wrong_answers import WRONG_ANSWERS

from helpers import paths

STAGES = pytest.mark.parametrize("stage", paths.STAGES)
ALL = pytest.mark.parametrize("stage", paths.NOTEBOOKS)


def read(stage):
    return nbformat.read(paths.notebook(stage), as_version=4)


@STAGES
def test_there_is_enough_to_do(stage):
    book = read(stage)
    every, to_build = tagged(book, "exercise"), tagged(book, "build")
    assert len(every) >= 4 and set(to_build) & set(every) and len(tagged(book, "predict")) >= 3
    [try_it] = [i for i, cell in enumerate(book.cells) if re.search(r"^## Try it$", cell.source, re.MULTILINE)]
    assert try_it < every[-1]  # a part of the lesson may be an exercise, too


@ALL
def test_each_exercise_starts_unsolved_and_brings_hint_and_solution(stage):
    for number, exercise in enumerate(exercises(read(stage)), 1):
        assert re.fullmatch(rf"### Exercise {number} · \S.* \((★☆☆|★★☆|★★★), \d+ minutes?\)", exercise.heading)
        assert not exercise.task.strip().endswith(exercise.heading), "a heading, and no task"
        assert [summary for summary, _ in exercise.folded] == ["Hint", "Solution"], exercise.heading
        assert exercise.answer.count("```") == 2 and compiles(exercise.solved), exercise.heading
        assert PYTHON.sub("", exercise.folded[1][1]).strip(), "the solution has no word that explains it"
        start, *checks = exercise.cell.source.split(f"{CHECK}\n")
        assert code_lines(start) and len(checks) == 1 and code_lines(checks[0]), exercise.heading
        assert "build" not in exercise.cell.metadata.tags or 5 <= code_lines(exercise.solution) <= 25, exercise.heading
        assert not verdict_problems(exercise, UNSOLVED), exercise.heading


@ALL
def test_each_prediction_asks_for_a_guess_and_has_none(stage):
    book = read(stage)
    for i in tagged(book, "predict"):
        cell, before = book.cells[i], book.cells[i - 1]
        assert re.search(r"^(my_)?guess\w* = None\b", cell.source, re.MULTILINE) and "show.predict(" in cell.source
        assert before.cell_type == "markdown" and "?" in before.source, f"[{cell.id}]: the cell above asks no question"
        plain = [output.data["text/plain"] for output in cell.outputs if output.output_type == "display_data"]
        assert any(line.startswith("No guess yet. Answer: ") for line in plain), cell.id


@ALL
def test_each_exercise_has_wrong_answers(stage):
    every = dict(enumerate(exercises(read(stage)), 1))
    assert sorted(WRONG_ANSWERS[stage]) == sorted(every), "tests/wrong_answers.py: at least one for each exercise"
    for number, exercise in every.items():
        given = [lines for _, lines in exercise.wrong_answers(WRONG_ANSWERS[stage][number])]
        assert given and all(map(compiles, given)), f"{stage} {number}"
        start = exercise.cell.source.partition(CHECK)[0].strip()
        assert len({*given, start, exercise.solution.strip()}) == len(given) + 2, f"{stage} {number}: one comes twice"
