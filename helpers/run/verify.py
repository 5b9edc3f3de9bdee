"""Do all files of a run still fit together, and has a stage finished already with the same parameters and inputs?

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
from helpers.wording import run_again

NOT_MADE = "not finished yet"


def verify_run(run: str) -> list[tuple[str, bool, str]]:
    """Return (notebook, fits, words) for each room of a run; side doors only where they have been made.

    Every file is checked: what a room wrote, and what it was made from, in the rooms before it and outside.
    """
    rows = []
    for stage in paths.NOTEBOOKS:
        notebook = paths.notebook(stage).stem
        if not (paths.room(run, stage) / MANIFEST).is_file():
            rows += [(notebook, True, NOT_MADE)] if stage in paths.STAGES else []
            continue
        try:
            manifest = open_room(run, stage)
        except RoomError as error:
            rows.append((notebook, False, str(error)))
            continue
        changes = _changed_files(run, manifest["inputs"])
        words = f"{len(manifest['outputs'])} files as written, {len(manifest['inputs'])} files as read"
        if changes:
            words = f"{changes[0]} since {notebook} read it: {run_again(stage, run)}"
        rows.append((notebook, not changes, words))
    return rows


def _changed_files(run: str, names: dict[str, str]) -> list[str]:
    """Return which of these files (path -> SHA-256) are missing or have changed."""
    changes = []
    for name, wanted in names.items():
        file = paths.run_dir(run) / name
        if not file.is_file():
            changes.append(f"{name} is missing")
        elif known_sha256(file) != wanted:
            changes.append(f"{name} has changed")
    return changes


def _changed_figures(run: str, copy: nbformat.NotebookNode) -> list[str]:
    """Return which figures of earlier rooms are no longer those that this notebook read when it ran."""
    changes = []
    for earlier, figures in copy.metadata.get("read", {}).items():
        try:
            now = read_manifest(run, earlier)["result"]
        except RoomError:
            continue  # that room's own line says so
        names = [name for name in {**figures, **now} if figures.get(name) != now.get(name)]
        if names:
            differences = ", ".join(f"{name} {figures.get(name)} -> {now.get(name)}" for name in names[:3])
            changes.append(f"{paths.notebook(earlier).stem} has found other figures since ({differences})")
    return changes


def print_verdict(run: str) -> int:
    """Print one line per room, and return the exit code: 0 if all fit together, 1 if not."""
    rows = verify_run(run)
    for notebook, fits, words in rows:
        word = "NO" if not fits else "-" if words == NOT_MADE else "fits"
        print(f"{notebook:14}{word:6}{words}", flush=True)
    off = sum(not fits for _, fits, _ in rows)
    if all(words == NOT_MADE for _, _, words in rows):
        print("nothing has been made yet", flush=True)
        return 1
    print(f"{off} of {len(rows)} rooms don't fit: mend them from the top" if off else "all belong together", flush=True)
    return 1 if off else 0


# ---- what need not run again ----


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
    except (RoomError, OSError, ValueError):  # the copy may be torn: papermill was killed while it wrote
        return False
    if "read" not in copy.metadata or _changed_figures(run, copy):  # see `note_finished`
        return False
    # 2. the same parameters, the same code
    editions = filter(Path.is_file, (paths.notebook(stage), paths.chinese(paths.notebook(stage))))
    published = [_code_of(stage_notebook(edition, lessons)) for edition in editions]
    if manifest["parameters"] != values or _code_of(copy) not in published:
        return False
    # 3. the same input files, and no new one
    if _changed_files(run, manifest["inputs"]):
        return False
    return same_files(values.get("source", BUILT_IN), [paths.run_dir(run) / name for name in manifest["inputs"]])


def _code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the code without comments, which have a language, and without papermill's cell of parameters."""
    own = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    return [ast.unparse(ast.parse(cell.source)) for cell in own if cell.cell_type == "code"]
