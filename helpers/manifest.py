"""The manifest of a room: what a stage was given, what it wrote, and whether that still fits the room before it."""

import ast
import json
import platform
import time
from importlib import metadata

from helpers.files import hash_files, known_sha256, write_text
from helpers.paths import STAGES, notebook, room, run_dir
from helpers.wording import run_again

MANIFEST = "manifest.json"
_PACKAGES = ("numpy", "thulac", "tokenizers", "torch", "transformers")


class RoomError(RuntimeError):
    """A room is missing, incomplete, or does not fit the room before it; the message says what mends it."""


def write_manifest(run: str, stage: str, *, parameters: dict, inputs, outputs, result: dict, seed: int = 0) -> dict:
    """Write the manifest of a finished stage and return it.

    `inputs` and `outputs` are files; `result` holds the stage's figures. Written last, so a room
    with a manifest is a finished room.
    """
    base = run_dir(run)
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    manifest = {
        "stage": stage,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "parameters": parameters,
        "inputs": hash_files(inputs, base),
        "outputs": hash_files(outputs, base),
        "versions": versions,
        "seed": seed,
        "result": result,
    }
    write_text(room(run, stage) / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def read_manifest(run: str, stage: str) -> dict:
    """Return the manifest of a finished stage; raise RoomError where there is none."""
    path = room(run, stage) / MANIFEST
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RoomError(f"run '{run}' has no {path.parent.name}/ yet: {run_again(stage, run)}") from None
    except ValueError:
        raise RoomError(f"{path} is not readable JSON: {run_again(stage, run)}") from None


def open_room(run: str, stage: str) -> dict:
    """Check a room's files against its manifest, and the manifest against the rooms before it; return the manifest.

    Raises RoomError with the notebook to run again when a file is missing or changed, or when the
    room was made from another state of an earlier room (a tokenizer of another corpus, say).
    """
    manifest = read_manifest(run, stage)
    base = run_dir(run)
    for name, wanted in manifest["outputs"].items():
        if not (base / name).is_file():
            raise RoomError(f"{base / name} is missing: {run_again(stage, run)}")
        if known_sha256(base / name) != wanted:
            raise RoomError(f"{base / name} is not the file that {STAGES[stage][0]} wrote: {run_again(stage, run)}")
    rooms = {name: earlier for earlier, (_, name) in STAGES.items()}
    for name, wanted in manifest["inputs"].items():
        earlier = rooms.get(name.split("/")[0])
        if earlier and read_manifest(run, earlier)["outputs"].get(name, wanted) != wanted:
            raise RoomError(
                f"{STAGES[stage][1]}/ was made from another {STAGES[earlier][1]}/ than the one there now "
                f"({name} differs): {run_again(stage, run)}"
            )
    return manifest


def notebook_parameters(stage: str) -> dict:
    """Return {name: default} of a notebook's cell tagged `parameters`: plain literals, in order."""
    cells = json.loads(notebook(stage).read_text("utf-8"))["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"{notebook(stage).name} needs exactly one cell tagged 'parameters', it has {len(tagged)}")
    values = {}
    for node in ast.parse("".join(tagged[0]["source"])).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        values[target.id] = ast.literal_eval(node.value)
    return values


def current_parameters(stage: str, namespace: dict) -> dict:
    """Return the parameters of a running notebook with the values they have now (pass `globals()`)."""
    return {name: namespace[name] for name in notebook_parameters(stage)}
