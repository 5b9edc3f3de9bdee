"""Rooms that several runs share: a run gets the finished room of another one that was given the same parameters."""

import json
import os
import shutil
from pathlib import Path

from helpers import paths
from helpers.files import write_folder, write_text
from helpers.manifest import MANIFEST, read_manifest
from helpers.run.unchanged import remember

PARAMETERS = "parameters.json"  # of a model's room: what `python -m helpers.train` is given
GROWING = ("metrics.jsonl", "events.out.tfevents")  # files that a run which goes on adds to


def adopt(owner: str, run: str, stage: str) -> None:
    """Give a run the room that another run's stage has written, and the executed notebook.

    Files are hard links where the file system has them: no space is used twice. All are written anew and never
    changed, so neither run can spoil the other's; those that grow are copied.
    """
    source, target = paths.room(owner, stage), paths.room(run, stage)
    manifest = read_manifest(owner, stage)
    manifest["parameters"]["run"] = run

    def write(folder: Path) -> None:
        shutil.copytree(source, folder, copy_function=_link, dirs_exist_ok=True)
        (folder / MANIFEST).unlink()  # a link: what is written into it would be written into the owner's
        write_text(folder / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
        file = folder / PARAMETERS
        if file.is_file():  # or a training that is started from it would go to the owner's room
            given = json.loads(file.read_text("utf-8")) | {"run": run}
            write_text(file, json.dumps(given, ensure_ascii=False, indent=1))

    write_folder(target, write)
    copy = paths.executed_copy(run, stage)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(paths.executed_copy(owner, stage), copy)
    remember(run, stage)


def _link(source: str, target: str) -> None:
    try:
        if Path(source).name.startswith(GROWING):
            raise OSError
        os.link(source, target)
    except OSError:  # also a file system without links
        shutil.copy2(source, target)
