"""Has a stage finished already with these parameters, these inputs and this notebook?"""

from typing import Any

import nbformat

from helpers import paths
from helpers.corpus.find import BUILT_IN, same_files
from helpers.files import known_sha256
from helpers.manifest import MANIFEST, RoomError, open_room, read_manifest
from helpers.run.verify import changed_figures


def _code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the sources of the code cells, without the cell in which papermill sets the parameters."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.source for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]


def remember(run: str, stage: str) -> None:
    """Note in the executed copy that it ran to its end, and the results of the rooms whose files it read."""
    if (paths.room(run, stage) / MANIFEST).is_file():
        rooms = {name.split("/")[0] for name in read_manifest(run, stage)["inputs"]}
        stages = [earlier for earlier, (_, room) in paths.NOTEBOOKS.items() if room in rooms]
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        copy.metadata["read"] = {earlier: read_manifest(run, earlier)["result"] for earlier in stages}
        nbformat.write(copy, paths.executed_copy(run, stage))


def finished_unchanged(run: str, stage: str, values: dict[str, Any]) -> bool:
    """Return whether a stage has finished with these parameters, these inputs and this notebook."""
    # 1. the room and the rooms that it read are as they were when it finished
    try:
        manifest = open_room(run, stage)
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
    except (RoomError, OSError, ValueError):  # the copy may be torn: papermill was killed while it wrote
        return False
    if "read" not in copy.metadata or changed_figures(run, copy):  # see `remember`
        return False
    # 2. the same parameters, the same code
    original = nbformat.read(paths.notebook(stage), as_version=4)
    if manifest["parameters"] != values or _code_of(copy) != _code_of(original):
        return False
    # 3. the same input files, and no new one
    inputs = {paths.run_dir(run) / name: wanted for name, wanted in manifest["inputs"].items()}
    if any(not file.is_file() or known_sha256(file) != wanted for file, wanted in inputs.items()):
        return False
    return same_files(values.get("source", BUILT_IN), inputs)
