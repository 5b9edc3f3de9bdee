"""Has a stage finished already with the same parameters and inputs, so that it need not run again?

Compares files, figures and parameters; knows nothing of what they mean.
"""

import ast
from pathlib import Path
from typing import Any

import nbformat

from helpers import paths
from helpers.corpus.find import BUILT_IN, same_files
from helpers.files import known_sha256
from helpers.manifest import MANIFEST, RoomError, open_room, read_manifest, unfinished
from helpers.run.parameters import stage_notebook


def _has_changed(run: str, names: dict[str, str]) -> bool:
    """Return whether one of these files (path -> SHA-256) is missing or has changed."""
    files = {paths.run_dir(run) / name: wanted for name, wanted in names.items()}
    return any(not file.is_file() or known_sha256(file) != wanted for file, wanted in files.items())


def _found_other_figures(run: str, copy: nbformat.NotebookNode) -> bool:
    """Return whether an earlier room has other figures than this notebook read when it ran."""
    return any(read_manifest(run, earlier)["result"] != figures for earlier, figures in copy.metadata["read"].items())


def note_finished(run: str, stage: str) -> None:
    """Note in the executed copy that it ran to its end, and the results of the rooms whose files it read."""
    if (paths.room(run, stage) / MANIFEST).is_file():
        rooms = {name.split("/")[0] for name in read_manifest(run, stage)["inputs"]}
        stages = [earlier for earlier, (_, room) in paths.NOTEBOOKS.items() if room in rooms]
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        copy.metadata["read"] = {earlier: read_manifest(run, earlier)["result"] for earlier in stages}
        nbformat.write(copy, paths.executed_copy(run, stage))


def finished_unchanged(run: str, stage: str, values: dict[str, Any], lessons: bool = True) -> bool:
    """Return whether a stage is done, with these parameters, inputs and this notebook, see `stage_notebook`."""
    # 1. it was not stopped, and the room and the rooms that it read are as they were when it finished
    if unfinished(run, stage):
        return False
    try:
        manifest = open_room(run, stage)
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        if "read" not in copy.metadata or _found_other_figures(run, copy):  # see `note_finished`
            return False
    except (RoomError, OSError, ValueError):  # the copy may be torn: papermill was killed while it wrote
        return False
    # 2. the same parameters, the same code
    editions = filter(Path.is_file, (paths.notebook(stage), paths.chinese(paths.notebook(stage))))
    published = [_code_of(stage_notebook(edition, lessons)) for edition in editions]
    if manifest["parameters"] != values or _code_of(copy) not in published:
        return False
    # 3. the same input files, and no new one
    if _has_changed(run, manifest["inputs"]):
        return False
    return same_files(values.get("source", BUILT_IN), [paths.run_dir(run) / name for name in manifest["inputs"]])


def _code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the code without comments, which have a language, and without papermill's cell of parameters."""
    own = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    return [ast.unparse(ast.parse(cell.source)) for cell in own if cell.cell_type == "code"]
