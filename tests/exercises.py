"""The exercises of a notebook: taken apart, held to their form, solved as they publish, and answered wrongly."""

import ast
import re
from dataclasses import dataclass

import nbformat
from nbformat.v4 import new_code_cell

CHECK = "# ---- check ----"
HEADING = re.compile(r"^### Exercise (\d+) · \S.* \((★☆☆|★★☆|★★★), (\d+) minutes?\)$")
FOLDED = re.compile(r"<details><summary>(\w+)</summary>\n\s*\n(.*?)</details>", re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UNSOLVED, SOLVED = "Not yet: ", "Right: "
WRONG = "wrong-answer"  # the tag of a cell that holds one; no notebook of the course has it
EDIT = " ⇒ "
WrongAnswers = dict[int, str]  # of one notebook, by the exercises' numbers; see `wrong_answers`


@dataclass
class Exercise:
    """One exercise: its task above, the cell with the reader's part and the check, hint and solution below."""

    cell: nbformat.NotebookNode
    task: str  # the markdown above; empty where code stands there
    answer: str  # the markdown below; the same

    @property
    def heading(self) -> str:
        return self.task.strip().split("\n")[0]

    @property
    def folded(self) -> list[tuple[str, str]]:
        """(summary, text) of each folded part."""
        return FOLDED.findall(self.answer)

    @property
    def solution(self) -> str:
        """The published lines that replace all above the check."""
        return "".join(PYTHON.findall(dict(self.folded).get("Solution", "")))

    @property
    def solved(self) -> str:
        """The cell's source with the solution put in."""
        return self.answered(self.solution)

    def wrong_answers(self, text: str) -> list[tuple[str, str]]:
        """Return (what is wrong, the lines above the check) of each wrong answer in a text of `WRONG_ANSWERS`."""
        parts = [part.partition("\n") for part in re.split("^# ", text, flags=re.MULTILINE)[1:]]
        return [(words, edited(self.solution, body) if EDIT in body else body.strip()) for words, _, body in parts]

    def answered(self, lines: str) -> str:
        """Return the cell's source with these lines above the check."""
        return f"{lines.strip()}\n{CHECK}{self.cell.source.partition(CHECK)[2]}"

    @property
    def lines(self) -> list[str]:
        """The printed lines of the cell."""
        return printed(self.cell)


def edited(solution: str, edits: str) -> str:
    """Return the solution after edits, one a line: `old ⇒ new`; lines that begin with `+ ` go on with a new part."""
    for each in re.split(r"\n(?!\+ )", edits.strip()):
        old, new = each.replace("\n+ ", "\n").split(EDIT)
        if solution.count(old) != 1:
            raise ValueError(f"'{old}' must stand once in the published solution, not {solution.count(old)} times")
        solution = solution.replace(old, new)
    return solution.strip()


def tagged(book: nbformat.NotebookNode, tag: str) -> list[int]:
    """Return the positions of the code cells with a tag."""
    cells = enumerate(book.cells)
    return [i for i, cell in cells if cell.cell_type == "code" and tag in cell.metadata.get("tags", [])]


def exercises(book: nbformat.NotebookNode) -> list[Exercise]:
    """Return the exercises of a notebook in their order."""

    def markdown(i: int) -> str:
        there = i < len(book.cells) and book.cells[i].cell_type == "markdown"
        return book.cells[i].source if there else ""

    return [Exercise(book.cells[i], markdown(i - 1), markdown(i + 1)) for i in tagged(book, "exercise")]


def solved(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Put each published solution into its cell, and return the notebook."""
    for exercise in exercises(book):
        exercise.cell.source = exercise.solved
    return book


def with_wrong_answers(book: nbformat.NotebookNode, answers: WrongAnswers) -> nbformat.NotebookNode:
    """Put each wrong answer into a cell of its own, with the check, before its exercise, and return the notebook.

    So the solution comes last, and what it leaves behind is what the next cells find.
    """
    for number, exercise in enumerate(exercises(book), 1):
        at = book.cells.index(exercise.cell)
        book.cells[at:at] = [
            new_code_cell(exercise.answered(f"# wrong: {words}\n{lines.strip()}"), metadata={"tags": [WRONG]})
            for words, lines in exercise.wrong_answers(answers.get(number, ""))
        ]
    return book


def let_through(book: nbformat.NotebookNode, answers: WrongAnswers) -> list[str]:
    """Return which of the wrong answers were not refused, with a reason, when the notebook was executed."""
    cells = [book.cells[i] for i in tagged(book, WRONG)]
    wanted = sum(len(re.findall("^# ", text, re.MULTILINE)) for text in answers.values())
    found = [f"{len(cells)} wrong answers were tried, not {wanted}"] if len(cells) != wanted else []
    for cell in cells:
        words = verdict_problems(Exercise(cell, "", ""), UNSOLVED)
        found += [f"{cell.source.splitlines()[0]}: {each}" for each in words]
    return found


def printed(cell: nbformat.NotebookNode) -> list[str]:
    """Return the lines that a code cell printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream").splitlines()


def verdict_problems(exercise: Exercise, wanted: str) -> list[str]:
    """Return why a cell's output is not the one wanted: its last line alone is a verdict, and says more than that."""
    lines = exercise.lines
    verdicts = [line for line in lines if line.startswith((UNSOLVED.strip(), SOLVED.strip()))]
    if not lines or verdicts != lines[-1:] or not lines[-1].startswith(wanted) or len(lines[-1]) < len(wanted) + 5:
        return [f"must end with one line '{wanted}…' that says more, and ends with {lines[-2:]}"]
    return []


def compiles(source: str) -> bool:
    """Return whether this is Python as notebooks know it, with `await` outside of functions."""
    try:
        compile(source, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def code_lines(source: str) -> int:
    """Return how many lines hold code."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in source.splitlines())


def problems(exercise: Exercise, number: int) -> list[str]:
    """Return what is wrong with the form of the exercise that should have this number; nothing if it is right."""
    found = []
    heading = HEADING.match(exercise.heading)
    if not heading or int(heading[1]) != number:
        wanted = f"'### Exercise {number} · Title (★☆☆, 5 minutes)'"
        found.append(f"the markdown cell above must begin with {wanted}, and begins with '{exercise.heading}'")
    elif len(exercise.task.strip().splitlines()) < 2:
        found.append("the markdown cell above has a heading and no task")
    if [summary for summary, _ in exercise.folded] != ["Hint", "Solution"]:
        found.append("the markdown cell below must hold a folded Hint, then a folded Solution, each with an empty "
                     "line below <summary>")  # fmt: skip
    elif exercise.answer.count("```") != 2 or not exercise.solution:
        found.append("the markdown cell below must hold exactly one fenced block, of Python, in the Solution")
    elif not compiles(exercise.solved):
        found.append("with the solution in it, the cell is no Python")
    elif PYTHON.sub("", dict(exercise.folded)["Solution"]).strip() == "":
        found.append("the solution is code without a word that explains it")
    if exercise.cell.source.splitlines().count(CHECK) != 1 or not exercise.cell.source.partition(CHECK)[2].strip():
        found.append(f"the cell must hold the line '{CHECK}' once, the reader's part above, the check below")
    elif not code_lines(exercise.cell.source.partition(CHECK)[0]):
        found.append("the reader's part has no line to start from")
    if exercise.solution and "build" in exercise.cell.metadata.tags and not 5 <= code_lines(exercise.solution) <= 25:
        found.append(f"what is to be built has {code_lines(exercise.solution)} lines: 5 to 25 are wanted")
    return found + verdict_problems(exercise, UNSOLVED)


def missing(book: nbformat.NotebookNode, path: str) -> list[str]:
    """Return what is wrong with all exercises and predictions of a chapter."""
    every = exercises(book)
    found = []
    if len(every) < 4:
        found.append(f"{path}: {len(every)} cells are tagged `exercise`, 4 are wanted")
    if not [i for i in tagged(book, "build") if i in tagged(book, "exercise")]:
        found.append(f"{path}: no exercise is tagged `build`")
    if len(tagged(book, "predict")) < 3:
        found.append(f"{path}: {len(tagged(book, 'predict'))} cells are tagged `predict`, 3 are wanted")
    try_it = [i for i, cell in enumerate(book.cells) if re.search(r"^## Try it$", cell.source, re.MULTILINE)]
    if len(try_it) != 1 or any(i < try_it[0] for i in tagged(book, "exercise")):
        found.append(f"{path}: one heading '## Try it' must stand above the exercises")
    return found


def form_problems(book: nbformat.NotebookNode, path: str) -> list[str]:
    """Return what is wrong with the form of each exercise and each prediction, by the cells' ids."""
    found = []
    for number, exercise in enumerate(exercises(book), 1):
        found += [f"{path} [{exercise.cell.id}]: {words}" for words in problems(exercise, number)]
    for i in tagged(book, "predict"):
        cell, before = book.cells[i], book.cells[i - 1]
        where = f"{path} [{cell.id}]:"
        if not re.search(r"^(my_)?guess\w* = None\b", cell.source, re.MULTILINE):
            found.append(f"{where} no line `my_guess = None`: the reader's guess is the reader's")
        if "show.predict(" not in cell.source:
            found.append(f"{where} no `show.predict(my_guess, answer, words)` compares the guess")
        if before.cell_type != "markdown" or "?" not in before.source:
            found.append(f"{where} the cell above asks no question")
        if not [line for line in printed(cell) if line.startswith("No guess yet. Answer: ")]:
            found.append(f"{where} its output is not that of a reader without a guess")
    return found
