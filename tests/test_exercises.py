"""Exercises and predictions in their form: unsolved, checked, with a hint, a solution, and wrong answers to refuse.

`test_notebooks` gives the answers, the wrong ones and the published ones. Here each rule is broken once on a small
notebook, to see that it is held.
"""

import copy

import nbformat
import pytest
from exercises import (
    CHECK,
    compiles,
    edited,
    exercises,
    form_problems,
    let_through,
    missing,
    solved,
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
    found = missing(read(stage), paths.notebook(stage).name)
    assert not found, "\n".join(found)


@ALL
def test_each_exercise_starts_unsolved_and_brings_hint_and_solution(stage):
    found = form_problems(read(stage), paths.notebook(stage).name)
    assert not found, "\n".join(found)


@ALL
def test_each_exercise_has_wrong_answers(stage):
    every = dict(enumerate(exercises(read(stage)), 1))
    assert sorted(WRONG_ANSWERS[stage]) == sorted(every), "tests/wrong_answers.py: at least one for each exercise"
    for number, exercise in every.items():
        given = [lines for _, lines in exercise.wrong_answers(WRONG_ANSWERS[stage][number])]
        assert given and all(map(compiles, given)), f"{stage} {number}"
        start = exercise.cell.source.partition(CHECK)[0].strip()
        assert len({*given, start, exercise.solution.strip()}) == len(given) + 2, f"{stage} {number}: one comes twice"


# ---- the rules are held: each is broken once ----

ANSWER = """<details><summary>Hint</summary>

Count from one.
</details>
<details><summary>Solution</summary>

It is one larger.
```python
def after(n):
    step = 1
    for _ in range(step):
        n += 1
    return n
```
</details>"""
SOURCE = f"""def after(n):
    return ...
{CHECK}
print("Right: 3 follows 2" if after(2) == 3 else "Not yet: after(2) is not 3")"""


def chapter():
    """Return a small notebook without a fault, and with what it printed."""
    say = lambda text: [new_output("stream", name="stdout", text=text)]  # noqa: E731
    cells = [new_markdown_cell("# 09 · Counting"), new_code_cell("from helpers.show import notebook as show")]
    for _ in range(3):
        cells.append(new_markdown_cell("What follows two?"))
        source = 'my_guess = None  # a number\nshow.predict(my_guess, 3, "follows two")'
        outputs = say("No guess yet. Answer: 3 follows two.\n")
        cells.append(new_code_cell(source, outputs=outputs, metadata={"tags": ["predict"]}))
    cells.append(new_markdown_cell("## Try it"))
    for number in range(1, 5):
        cells.append(new_markdown_cell(f"### Exercise {number} · What follows (★☆☆, 5 minutes)\n\nWrite `after`."))
        tags = ["exercise", "build"] if number == 4 else ["exercise"]
        outputs = say("some table\n") + say("Not yet: after(2) is not 3\n")
        cells.append(new_code_cell(SOURCE, outputs=outputs, metadata={"tags": tags}))
        cells.append(new_markdown_cell(ANSWER))
    return new_notebook(cells=cells)


def test_a_chapter_in_its_form_has_no_problem():
    assert missing(chapter(), "x") == form_problems(chapter(), "x") == []


def replace(old, new, at):
    """Return a fault: some text of the cell `at`, counted from the end, becomes another."""

    def break_it(book):
        assert old in book.cells[at].source
        book.cells[at].source = book.cells[at].source.replace(old, new)

    return break_it


def output(text, at):
    def break_it(book):
        book.cells[at].outputs = [new_output("stream", name="stdout", text=text)] if text else []

    return break_it


def tags(*names, at):
    def break_it(book):
        book.cells[at].metadata["tags"] = list(names)

    return break_it


TASK, CELL, BELOW, QUESTION, PREDICT, TRY_IT = -3, -2, -1, 2, 3, 8
FAULTS = {
    "4 are wanted": tags("build", at=CELL),
    "no exercise is tagged `build`": tags("exercise", at=CELL),
    "3 are wanted": tags(at=PREDICT),
    "above the exercises": replace("## Try it", "## Exercises", at=TRY_IT),
    "begins with '### Exercise 5 ·": replace("Exercise 4", "Exercise 5", at=TASK),
    "begins with '### Exercise 4 · What follows (★☆☆)'": replace(", 5 minutes", "", at=TASK),
    "begins with '### Exercise 4 · What follows (☆☆☆": replace("★", "☆", at=TASK),
    "no task": replace("\n\nWrite `after`.", "", at=TASK),
    "a folded Hint": replace("Hint", "Clue", at=BELOW),
    "then a folded Solution": replace("<details><summary>Solution</summary>", "", at=BELOW),
    "an empty line below": replace("</summary>\n\n", "</summary>\n", at=BELOW),
    "exactly one fenced block": replace("Count from one.", "```python\n1\n```", at=BELOW),
    "of Python": replace("```python", "```", at=BELOW),
    "is no Python": replace("    return n", "    return n)", at=BELOW),
    "without a word": replace("It is one larger.", "", at=BELOW),
    "the line '# ---- check ----' once": replace(CHECK, "# check", at=CELL),
    "the check below": replace(SOURCE.partition(CHECK)[2], "", at=CELL),
    "no line to start from": replace("def after(n):\n    return ...", "# write here", at=CELL),
    "2 lines: 5 to 25": replace("step = 1\n    for _ in range(step):\n        n += 1\n    ", "", at=BELOW),
    "ends with []": output("", at=CELL),
    "ends with ['Not yet: ']": output("Not yet: \n", at=CELL),
    "ends with ['Not yet: one', 'Not yet: two']": output("Not yet: one\nNot yet: two\n", at=CELL),
    "'Right: 3 follows 2'": output("Right: 3 follows 2\n", at=CELL),
    "the reader's guess": replace("None", "3", at=PREDICT),
    "compares the guess": replace("show.predict", "print", at=PREDICT),
    "asks no question": replace("?", ".", at=QUESTION),
    "a reader without a guess": output("Your guess: 3, right. Answer: 3 follows two.\n", at=PREDICT),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_named(words):
    book = chapter()
    FAULTS[words](book)
    found = missing(book, "x") + form_problems(book, "x")
    assert words in found[0] and len(found) <= 2, found


def test_the_solution_replaces_what_is_above_the_check():
    book = solved(copy.deepcopy(chapter()))
    for exercise in exercises(book):
        assert exercise.cell.source.count("def after") == 1 and "..." not in exercise.cell.source
        said = []
        exec(exercise.cell.source, {"print": said.append})
        assert said == ["Right: 3 follows 2"]


WRONG = {number: "# it stays\nn += 1 ⇒ n += 0\n" for number in range(1, 5)}
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


def test_a_wrong_answer_is_tried_just_before_the_solution():
    book = executed(WRONG)
    assert not let_through(book, WRONG)
    tried = [cell.source.partition("\n")[0] for cell in book.cells if CHECK in cell.source]
    assert tried == ["# wrong: it stays", "def after(n):"] * 4


def test_an_edit_must_stand_once_in_the_solution():
    assert edited("a = 1\nb = 2", "a = 1 ⇒ a = 0\n+ c = 3\n2 ⇒ 4") == "a = 0\nc = 3\nb = 4"
    with pytest.raises(ValueError, match="2 times"):
        edited("a = a", "a ⇒ b")


def test_a_wrong_answer_that_passes_is_named():
    answers = WRONG | {2: WRONG[2] + TOO_GOOD}
    [found] = let_through(executed(answers), answers)
    assert "but three follows two" in found and "Right: 3 follows 2" in found
    assert let_through(executed(WRONG), answers) == ["4 wrong answers were tried, not 5"]
