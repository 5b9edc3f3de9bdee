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
    edited,
    exercises,
    let_through,
    printed,
    solved,
    tagged,
    verdict_problems,
    with_wrong_answers,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
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
    assert try_it < every[0]


@ALL
def test_each_exercise_starts_unsolved_and_brings_hint_and_solution(stage):
    for number, exercise in enumerate(exercises(read(stage)), 1):
        assert re.fullmatch(rf"### Exercise {number} · \S.* \((★☆☆|★★☆|★★★), \d+ minutes?\)", exercise.heading)
        assert exercise.heading != exercise.task.strip(), "a heading, and no task"
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
        assert any(line.startswith("No guess yet. Answer: ") for line in printed(cell)), cell.id


@ALL
def test_each_exercise_has_wrong_answers(stage):
    every = dict(enumerate(exercises(read(stage)), 1))
    assert sorted(WRONG_ANSWERS[stage]) == sorted(every), "tests/wrong_answers.py: at least one for each exercise"
    for number, exercise in every.items():
        given = [lines for _, lines in exercise.wrong_answers(WRONG_ANSWERS[stage][number])]
        assert given and all(map(compiles, given)), f"{stage} {number}"
        start = exercise.cell.source.partition(CHECK)[0].strip()
        assert len({*given, start, exercise.solution.strip()}) == len(given) + 2, f"{stage} {number}: one comes twice"


# ---- an exercise is solved as it publishes, and what its check lets through is named ----

SOURCE = f"""def after(n):
    return ...
{CHECK}
print("Right: 3 follows 2" if after(2) == 3 else "Not yet: after(2) is not 3")"""
ANSWER = """<details><summary>Hint</summary>

Count from one.
</details>
<details><summary>Solution</summary>

```python
def after(n):
    n += 1
    return n
```
</details>"""


def chapter():
    """Return a notebook of two exercises."""
    exercise = [(new_markdown_cell, "Write `after`."), (new_code_cell, SOURCE), (new_markdown_cell, ANSWER)]
    cells = [new(source, metadata={"tags": ["exercise"]}) for new, source in exercise * 2]
    return new_notebook(cells=cells)


WRONG = {number: "# it stays\nn += 1 ⇒ n += 0\n" for number in (1, 2)}
TOO_GOOD = "# two follows zero, but three follows two\ndef after(n):\n    return n + 1 if n else 2\n"


def executed(answers):
    """Return the small notebook with these wrong answers, and what its cells say to them."""
    book = with_wrong_answers(solved(chapter()), answers)
    for cell in book.cells:
        said = []
        if CHECK in cell.source:
            exec(cell.source, {"print": said.append})
            cell.outputs = [new_output("stream", name="stdout", text="\n".join(said))]
    return book


def test_an_edit_must_stand_once_in_the_solution():
    assert edited("a = 1\nb = 2", "a = 1 ⇒ a = 0\n+ c = 3\n2 ⇒ 4") == "a = 0\nc = 3\nb = 4"
    with pytest.raises(ValueError, match="2 times"):
        edited("a = a", "a ⇒ b")


def test_a_wrong_answer_that_passes_is_named():
    answers = WRONG | {2: WRONG[2] + TOO_GOOD}
    [found] = let_through(executed(answers), answers)
    assert "but three follows two" in found and "Right: 3 follows 2" in found
    assert let_through(executed(WRONG), answers) == ["2 wrong answers were tried, not 3"]
