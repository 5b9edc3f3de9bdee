"""Fresh outputs are written into the notebooks themselves, clean, and only when all cells ran."""

import nbformat
import pytest

from helpers import paths
from helpers.run.__main__ import main
from helpers.run.refresh import WIDGET_VIEW


@pytest.mark.slow
def test_refresh_writes_clean_outputs_in_place(house, monkeypatch):
    monkeypatch.delenv("RUNS_DIR")
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    book.metadata["widgets"] = {}
    before = [(cell.id, cell.source, dict(cell.metadata)) for cell in book.cells]
    book.cells[2].source += f"\nfrom IPython.display import display\ndisplay({{'{WIDGET_VIEW}': {{}}}}, raw=True)"
    nbformat.write(book, paths.notebook("corpus"))
    assert main(["refresh", "corpus"]) == 0
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    assert [(cell.id, dict(cell.metadata)) for cell in book.cells] == [(a, c) for a, _, c in before]
    assert [cell.execution_count for cell in book.cells[1:]] == [1, 2]
    assert [output.output_type for output in book.cells[2].outputs] == ["stream"]
    assert "language_info" not in book.metadata
    assert not (house / "runs").exists()
    monkeypatch.delenv("RUNS_DIR")


@pytest.mark.slow
def test_refresh_leaves_a_failing_notebook_as_it_was(house, capsys):
    before = paths.notebook("train").read_bytes()
    assert main(["refresh", "04"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err and paths.notebook("train").read_bytes() == before
