"""Lessons are parted from the pipeline: cells tagged `lesson` only teach, and the other cells need none of them.

A run of one's own text leaves them out, and its rooms are the same as with them. Knows nothing of what a cell does.
"""

from collections.abc import Iterator

import nbformat
from nbformat import NotebookNode

from helpers import paths

LESSON = "lesson"


def stage_notebook(stage: str, lessons: bool) -> NotebookNode:
    """Return a stage's notebook; without lessons, the cells that only teach and their prose are left out."""
    book = nbformat.read(paths.notebook(stage), as_version=4)
    if not lessons:
        kept: list[NotebookNode] = []
        for part in _parts(book.cells):
            rest = [cell for cell in part if LESSON not in cell.metadata.get("tags", [])]
            # prose whose code is all left out would lead to nothing
            kept += rest if rest == part or any(cell.cell_type == "code" for cell in rest) else []
        book.cells = kept
    return book


def _parts(cells: list[NotebookNode]) -> Iterator[list[NotebookNode]]:
    """Yield prose together with the code that follows it."""
    part: list[NotebookNode] = []
    for before, cell in zip([None, *cells], cells, strict=False):
        if before is not None and before.cell_type == "code" and cell.cell_type != "code":
            yield part
            part = []
        part.append(cell)
    yield part
