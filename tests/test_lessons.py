"""What only teaches is left out of a run of one's own text: the rest needs none of it, and makes the same rooms."""

import subprocess
import sys

import nbformat
import pytest

from helpers import paths


@pytest.mark.parametrize("stage", paths.STAGES)
def test_what_is_no_lesson_needs_none(stage, tmp_path):
    book = nbformat.read(paths.notebook(stage), as_version=4)
    kept = [cell for cell in book.cells if "lesson" not in cell.metadata.get("tags", [])]
    assert 0 < len(kept) < len(book.cells)
    nbformat.write(nbformat.v4.new_notebook(cells=kept), tmp_path / "kept.ipynb")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path / "kept.ipynb")]
    done = subprocess.run(ruff, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout
