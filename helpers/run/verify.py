"""Do all files of a run still fit together? `python -m helpers.run verify --run NAME`."""

import nbformat

from helpers import paths
from helpers.files import known_sha256
from helpers.manifest import MANIFEST, RoomError, read_manifest
from helpers.wording import run_again

NOT_MADE = "not made yet"


def verify(run: str) -> list[tuple[str, bool, str]]:
    """Return (notebook, fits, words) for each room of a run; side doors only where they have been made.

    Every file is hashed again: what a room wrote, and what it was made from, in the rooms before it and outside.
    """
    rows = []
    for stage in paths.NOTEBOOKS:
        notebook, copy = paths.notebook(stage).stem, paths.executed_copy(run, stage)
        if not (paths.room(run, stage) / MANIFEST).is_file():
            if stage in paths.STAGES:
                start = f'"{paths.room(run, stage).name}/'  # in the manifest of each room that was made from it
                manifests = [file.read_text("utf-8", "replace") for file in paths.run_dir(run).glob(f"*/{MANIFEST}")]
                rows.append((notebook, not any(start in manifest for manifest in manifests), NOT_MADE))
            continue
        try:
            manifest = read_manifest(run, stage)
        except RoomError as error:
            rows.append((notebook, False, str(error)))
            continue
        problems = [f"{what} since {notebook} wrote it" for what in _changed_files(run, manifest["outputs"])]
        problems += [f"{what} since {notebook} read it" for what in _changed_files(run, manifest["inputs"])]
        if copy.is_file():  # else it was run by hand, in Jupyter
            try:
                problems += changed_figures(run, nbformat.read(copy, as_version=4))
            except ValueError:
                problems.append(f"{copy.name} is torn")
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            rows.append((notebook, False, f"{'; '.join(problems[:3])}{more}: {run_again(stage, run)}"))
        else:
            counts = f"{len(manifest['outputs'])} files as written, {len(manifest['inputs'])} files as read"
            rows.append((notebook, True, counts))
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


def changed_figures(run: str, copy: nbformat.NotebookNode) -> list[str]:
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
    rows = verify(run)
    for notebook, fits, words in rows:
        word = "NO" if not fits else "-" if words == NOT_MADE else "fits"
        print(f"{notebook:14}{word:6}{words}", flush=True)
    off = sum(not fits for _, fits, _ in rows)
    print(f"{off} of {len(rows)} rooms don't fit: mend them from the top" if off else "all belong together", flush=True)
    return 1 if off else 0
