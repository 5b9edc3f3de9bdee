"""The manifest of a room: what a stage was given, what it wrote, and whether that still fits the rooms it read.

What a stage can be given, its parameters, is read here from its notebook and its dataclass, without running either.
"""

import ast
import json
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from helpers import paths
from helpers.files import hash_files, known_sha256, write_text
from helpers.paths import NOTEBOOKS, STAGES, notebook, room, run_dir, runs_dir
from helpers.wording import called_here, did_you_mean, printable, run_again, say

MANIFEST = "manifest.json"
# how a room ended -> whether it is done. One that was killed, or whose disk was full, has no manifest, or the one from
# before: it is not done either. What is not done goes on when the same command is given again
ENDINGS = {
    "finished": True,  # to its last update, or to the end of its time; all rooms that train nothing
    "no better": True,  # `patience` validations without a better one
    "stopped": False,  # by a file STOP: touched by hand or by the Stop button
}
# stage -> the file of `helpers` and its dataclass that hold what can be set besides the notebook's parameters cell
SETTINGS = {
    "corpus": ("corpus/settings.py", "CorpusSettings"),
    "vocab": ("vocab/choice.py", "VocabSettings"),
    "train": ("train/settings.py", "TrainSettings"),
    "chat": ("chat/job.py", "ChatSettings"),
    "reward": ("reward/job.py", "RewardSettings"),
}
Files = Iterable[Path]
Record = TypeVar("Record")
_PACKAGES = ("numpy", "thulac", "tokenizers", "torch", "transformers")


class Parameter(NamedTuple):
    """What can be set of a notebook."""

    default: Any
    meaning: str  # its comment
    shown: bool  # it stands in the notebook's parameters cell


class RoomError(RuntimeError):
    """A room is missing, incomplete, or does not fit the room before it; the message says what mends it."""


def write_manifest(
    run: str, stage: str, *, parameters: dict, inputs: Files, outputs: Files, result: dict, seed: int = 0
) -> dict[str, Any]:
    """Write the manifest of a finished stage and return it.

    It lists the files read and written, and the figures. It is written last. The `result` of a training says how it
    `ended`, see ENDINGS; what has no such word did all that it had to do.
    """
    base = run_dir(run)
    manifest = {
        "stage": stage,
        "ended": result.get("ended", "finished"),
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "parameters": parameters,
        "inputs": hash_files(inputs, base),
        "outputs": hash_files(outputs, base),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES},
        "seed": seed,
        "result": {name: value for name, value in result.items() if name != "ended"},
    }
    text = printable(json.dumps(manifest, ensure_ascii=False, indent=2))  # where a file's name is not UTF-8
    write_text(room(run, stage) / MANIFEST, text + "\n")
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
    raise RoomError(say("{} is no manifest, which is a JSON object: {}", path, run_again(stage, run)))


def _not_there(run: str, stage: str) -> str:
    """Return what is said of a room that was never written: the run may be mistyped, or not have come so far."""
    if any(run_dir(run).glob(f"*/{MANIFEST}")) or room(run, stage).is_dir():
        mends = run_again(stage, run).replace(" again", "", 1).replace("重新", "", 1)  # it is the first time
        lacks = "run '{}' has no {}/ yet: {}", "run '{}' has not finished its {}/ yet: {}"
        return say(lacks[room(run, stage).is_dir()], run, room(run, stage).name, mends)
    known = sorted({path.parent.parent.name for path in runs_dir().glob(f"*/*/{MANIFEST}")})
    last = NOTEBOOKS[stage][0] if stage in STAGES else say("{}, then {}", NOTEBOOKS["train"][0], NOTEBOOKS[stage][0])
    words = "{} (for a new one: python -m helpers.run --run {}, or the notebooks up to {})"
    return say(words, no_run(run, known), run, last)


def no_run(run: str, known: list[str]) -> str:
    """Return what is said of a name that no run has; `known`: those that are there."""
    return say("there is no run '{}' in {}{}", run, runs_dir(), did_you_mean(run, known) if known else "")


def unfinished(run: str, stage: str) -> str:
    """Return what is to be said of a room that is not done, and how it goes on; nothing for any other, or for none."""
    with suppress(RoomError):
        manifest = read_manifest(run, stage)
        if not ENDINGS.get(how := manifest.get("ended", "finished")):
            steps, total = (manifest["result"].get(name, "?") for name in ("steps", "total_steps"))
            words = "{}/ is not finished ({} at update {} of {}): {} with the same parameters goes on from there"
            return say(words, room(run, stage).name, say(how), steps, total, NOTEBOOKS[stage][0])
    return ""


@cache  # once, however often the room is opened
def _warn(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def open_room(run: str, stage: str) -> dict[str, Any]:
    """Check a room's files against its manifest, and the manifest against the rooms it read; return the manifest.

    Says in a line if the room is not done: what it holds can be used all the same. Raises RoomError where a file is
    missing or changed, or the room was made from another state of an earlier one.
    """
    # 1. are the files still those that the stage wrote?
    manifest = read_manifest(run, stage)
    base = run_dir(run)
    for name, wanted in manifest["outputs"].items():
        if not (base / name).is_file():
            raise RoomError(say("{} is missing: {}", base / name, run_again(stage, run)))
        if known_sha256(base / name) != wanted:
            words = "{} is not the file that {} wrote: {}"
            raise RoomError(say(words, base / name, NOTEBOOKS[stage][0], run_again(stage, run)))
    # 2. are the rooms that it read still those that it was made from?
    rooms = {name: earlier for earlier, (_, name) in NOTEBOOKS.items()}
    for name, wanted in manifest["inputs"].items():
        earlier = rooms.get(name.split("/")[0])
        if earlier and read_manifest(run, earlier)["outputs"].get(name, wanted) != wanted:
            words = "{}/ was made from another {}/ than the one there now ({} differs): {}"
            both = NOTEBOOKS[stage][1], NOTEBOOKS[earlier][1]
            raise RoomError(say(words, *both, name, run_again(stage, run)))
    if words := unfinished(run, stage):
        _warn(words)
    return manifest


def read_parameters(stage: str) -> dict[str, Parameter]:
    """Return what can be set of a notebook: first its cell tagged `parameters`, then its dataclass's other fields.

    Raises ValueError unless exactly one cell has that tag, and it holds nothing but `name: type = literal`.
    """
    cells = json.loads(notebook(stage).read_text("utf-8"))["cells"]
    tagged = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"{notebook(stage).name} needs exactly one cell tagged 'parameters', it has {len(tagged)}")
    shown = _declared(ast.parse(tagged[0]).body, tagged[0], f"{notebook(stage).name}, parameters", True)
    if stage not in SETTINGS:
        return shown
    file, name = SETTINGS[stage]
    source = (paths.repo_root() / "helpers" / file).read_text("utf-8")
    (record,) = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name]
    declared = [each for each in record.body if isinstance(each, ast.AnnAssign)]
    return shown | {k: v for k, v in _declared(declared, source, file, False).items() if k not in shown}


def _declared(nodes: Iterable[ast.stmt], source: str, where: str, shown: bool) -> dict[str, Parameter]:
    """Return the declarations `name: type = value  # meaning`; a field's value may be the first in a call."""
    found, lines = {}, source.splitlines()
    for node in nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                value = value.args[0] if isinstance(value, ast.Call) and not shown else value
            case ast.Assign(targets=[ast.Name(name)], value=value):
                pass
            case _:
                line = f"line {node.lineno}, `{ast.unparse(node)}`"
                raise ValueError(f"{where}, {line}: write `name: type = value`")
        meaning = lines[(node.end_lineno or 0) - 1].partition("  # ")[2]
        found[name] = Parameter(ast.literal_eval(value), meaning, shown)
    return found


def notebook_parameters(stage: str) -> dict[str, Any]:
    """Return {name: default} of all that can be set of a notebook, see `read_parameters`."""
    return {name: each.default for name, each in read_parameters(stage).items()}


def current_parameters(stage: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a running notebook with the values they have now (pass `globals()`).

    Raises ValueError for a name that its parameters cell, or papermill's, sets and the notebook doesn't have.
    """
    known = notebook_parameters(stage)
    cells = [str(cell) for cell in namespace.get("In", [])]  # what has been executed, by IPython
    own = [cell for cell in cells if re.search(r"^run: str = ", cell, re.MULTILINE)]
    injected = [cell for cell in cells if cell.startswith("# Parameters\n")]
    for cell in own[-1:] + injected[-1:]:  # an earlier one may hold a mistake that is mended
        for name in re.findall(r"^(\w+)(?:: *\w+)? = ", cell, re.MULTILINE):
            if name not in known:
                words = say("{} has no parameter '{}'{}", notebook(stage).name, name, called_here(name, known))
                raise ValueError(words)
    return {name: namespace.get(name, default) for name, default in known.items()}


def settings_from(record: type[Record], parameters: Mapping[str, Any]) -> Record:
    """Return a dataclass whose fields are some of the parameters, with their values."""
    return record(**{each.name: parameters[each.name] for each in fields(record)})  # type: ignore[arg-type]  # a dataclass
