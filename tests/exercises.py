"""The exercises of a notebook: taken apart, solved as they publish, and answered wrongly."""

import ast
import re
from dataclasses import dataclass

import nbformat
from nbformat.v4 import new_code_cell

CHECK = "# ---- check ----"
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
        return ["", *re.findall("^### .*$", self.task, re.MULTILINE)][-1]

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
    lines = [line.replace("还不对：", UNSOLVED).replace("对了：", SOLVED) for line in exercise.lines]
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
