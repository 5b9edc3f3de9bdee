"""The manifest of a room: what a stage was given, what it wrote, and whether that still fits the rooms it read."""

import ast
import json
import platform
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from helpers.files import hash_files, known_sha256, write_text
from helpers.paths import NOTEBOOKS, STAGES, notebook, room, run_dir, runs_dir
from helpers.wording import did_you_mean, run_again

MANIFEST = "manifest.json"
Files = Iterable[Path]
_PACKAGES = ("numpy", "thulac", "tokenizers", "torch", "transformers")


class RoomError(RuntimeError):
    """A room is missing, incomplete, or does not fit the room before it; the message says what mends it."""


def write_manifest(
    run: str, stage: str, *, parameters: dict, inputs: Files, outputs: Files, result: dict, seed: int = 0
) -> dict[str, Any]:
    """Write the manifest of a finished stage and return it.

    It lists the files read and written, and the figures. It is written last: a room with a manifest is finished.
    """
    base = run_dir(run)
    manifest = {
        "stage": stage,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "parameters": parameters,
        "inputs": hash_files(inputs, base),
        "outputs": hash_files(outputs, base),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES},
        "seed": seed,
        "result": result,
    }
    write_text(room(run, stage) / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def read_manifest(run: str, stage: str) -> dict[str, Any]:
    """Return the manifest of a finished stage; raise RoomError where there is none."""
    path = room(run, stage) / MANIFEST
    try:
        if isinstance(found := json.loads(path.read_text("utf-8")), dict):
            return found
    except FileNotFoundError:
        raise RoomError(_not_there(run, stage)) from None
    except ValueError:  # torn
        pass
    raise RoomError(f"{path} is no manifest, which is a JSON object: {run_again(stage, run)}")


def _not_there(run: str, stage: str) -> str:
    """Return what is said of a room that was never written: the run may be mistyped, or not have come so far."""
    if run_dir(run).is_dir():
        mends = run_again(stage, run).replace(" again", "", 1)  # it is the first time
        return f"run '{run}' has no {room(run, stage).name}/ yet: {mends}"
    known = sorted({path.parent.parent.name for path in runs_dir().glob(f"*/*/{MANIFEST}")})
    hint = did_you_mean(run, known) if known else ""
    last = NOTEBOOKS[stage][0] if stage in STAGES else NOTEBOOKS["train"][0]
    then = "" if stage in STAGES else f", then {NOTEBOOKS[stage][0]}"
    return (
        f"there is no run '{run}' in {runs_dir()}{hint}{'' if hint.endswith('?') else '.'} "
        f"For a new one, run the notebooks up to {last}, or: python -m helpers.run --run {run}{then}"
    )


def open_room(run: str, stage: str) -> dict[str, Any]:
    """Check a room's files against its manifest, and the manifest against the rooms it read; return the manifest.

    Raises RoomError where a file is missing or changed, or the room was made from another state of an earlier one.
    """
    # 1. are the files still those that the stage wrote?
    manifest = read_manifest(run, stage)
    base = run_dir(run)
    for name, wanted in manifest["outputs"].items():
        if not (base / name).is_file():
            raise RoomError(f"{base / name} is missing: {run_again(stage, run)}")
        if known_sha256(base / name) != wanted:
            raise RoomError(f"{base / name} is not the file that {NOTEBOOKS[stage][0]} wrote: {run_again(stage, run)}")
    # 2. are the rooms that it read still those that it was made from?
    rooms = {name: earlier for earlier, (_, name) in NOTEBOOKS.items()}
    for name, wanted in manifest["inputs"].items():
        earlier = rooms.get(name.split("/")[0])
        if earlier and read_manifest(run, earlier)["outputs"].get(name, wanted) != wanted:
            raise RoomError(
                f"{NOTEBOOKS[stage][1]}/ was made from another {NOTEBOOKS[earlier][1]}/ than the one there now "
                f"({name} differs): {run_again(stage, run)}"
            )
    return manifest


def notebook_parameters(stage: str) -> dict[str, Any]:
    """Return {name: default} of a notebook's cell tagged `parameters`: plain literals, in order.

    Raises ValueError unless exactly one cell has that tag, and it holds nothing but `name: type = literal`.
    """
    cells = json.loads(notebook(stage).read_text("utf-8"))["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"{notebook(stage).name} needs exactly one cell tagged 'parameters', it has {len(tagged)}")
    values = {}
    for node in ast.parse("".join(tagged[0]["source"])).body:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                values[name] = ast.literal_eval(value)
            case ast.Assign(targets=[ast.Name(name)], value=value):
                values[name] = ast.literal_eval(value)
            case _:
                line = f"line {node.lineno}, `{ast.unparse(node)}`"
                raise ValueError(f"{notebook(stage).name}, parameters, {line}: write `name: type = value`")
    return values


def current_parameters(stage: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a running notebook with the values they have now (pass `globals()`)."""
    return {name: namespace[name] for name in notebook_parameters(stage)}
