"""What only teaches is left out of a run of one's own text, and the rest needs none of it."""

import ast
import subprocess
import sys

import nbformat
import pytest

from helpers import paths
from helpers.run.parameters import LESSON, stage_notebook


def code_of(book):
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("stage", paths.STAGES)
def test_what_is_no_lesson_needs_none(stage, tmp_path):
    kept = stage_notebook(paths.notebook(stage), lessons=False)
    assert 0 < len(code_of(kept)) < len(code_of(stage_notebook(paths.notebook(stage), lessons=True)))
    nbformat.write(kept, tmp_path / "kept.ipynb")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path / "kept.ipynb")]
    done = subprocess.run(ruff, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("stage", paths.STAGES)
def test_a_check_on_the_way_of_ones_own_text_says_what_it_found(stage):
    nodes = [
        node for source in code_of(stage_notebook(paths.notebook(stage), False)) for node in ast.walk(ast.parse(source))
    ]
    checks = [node for node in nodes if isinstance(node, ast.Assert)]
    assert checks and not [ast.unparse(check) for check in checks if not check.msg]


@pytest.mark.parametrize("stage", paths.STAGES)
def test_exercises_are_lessons_and_parameters_are_none(stage):
    for cell in stage_notebook(paths.notebook(stage), lessons=True).cells:
        tags = set(cell.metadata.get("tags", []))
        assert LESSON in tags or "exercise" not in tags
        assert LESSON not in tags or "parameters" not in tags
