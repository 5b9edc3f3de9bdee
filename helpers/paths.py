"""The names of the rooms: repository, run folder, files; and the manifests that tie one room to the next.

Knows nothing of what is in a file: only where it lies, which bytes it has, and which stage wrote it.
"""

import ast
import hashlib
import json
import os
import platform
import re
import time
import uuid
from importlib import metadata
from pathlib import Path

# stage -> (notebook, the room it writes). A stage reads rooms that stand before its own.
STAGES = {
    "corpus": ("01_corpus", "corpus"),
    "vocab": ("02_vocab", "vocab"),
    "tokenize": ("03_tokenize", "tokens"),
    "train": ("04_train", "model"),
    "generate": ("05_generate", "text"),
    "serve": ("06_serve", "serve"),
}
MANIFEST = "manifest.json"
_PACKAGES = ("numpy", "thulac", "tokenizers", "torch", "transformers")


class RoomError(RuntimeError):
    """A room is missing, incomplete, or does not fit the room before it; the message says what mends it."""


def repo_root() -> Path:
    """Return the folder that holds notebooks/ and helpers/, wherever the process was started."""
    return Path(__file__).resolve().parent.parent


def runs_dir() -> Path:
    """Return the folder of all runs: `runs/` in the repository, or the environment variable RUNS_DIR."""
    return Path(os.environ.get("RUNS_DIR") or repo_root() / "runs")


def run_dir(run: str) -> Path:
    """Return the folder of one run; the name may hold letters, digits, `-`, `_` and `.` (not first)."""
    if not re.fullmatch(r"[\w-][\w.-]*", run):
        raise ValueError(f"'{run}' cannot name a run: use letters, digits, '-', '_' and '.', not starting with '.'")
    return runs_dir() / run


def room(run: str, stage: str) -> Path:
    """Return the folder that a stage (corpus, vocab, tokenize, train, generate, serve) writes; it may not exist yet."""
    return run_dir(run) / STAGES[stage][1]


def notebook(stage: str) -> Path:
    """Return the notebook of a stage."""
    return repo_root() / "notebooks" / f"{STAGES[stage][0]}.ipynb"


def sha256(path: Path) -> str:
    """Return a file's SHA-256 as hex digits, reading it in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(files, base: Path) -> dict[str, str]:
    """Return {path: sha256}; paths under `base` are written relative to it, others as they are, sorted."""
    prints = {}
    for file in sorted(map(Path, files)):
        name = file.relative_to(base) if file.is_relative_to(base) else file
        prints[name.as_posix()] = sha256(file)
    return prints


def write_text(path: Path, text: str) -> None:
    """Write a small text file whole or not at all: beside it, flushed to disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(beside, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


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
        "inputs": fingerprint(inputs, base),
        "outputs": fingerprint(outputs, base),
        "versions": versions,
        "seed": seed,
        "result": result,
    }
    write_text(room(run, stage) / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
    return manifest


def _mend(run: str, stage: str) -> str:
    return f"run notebook {STAGES[stage][0]} again, or: python -m helpers.run {stage} --run {run}"


def read_manifest(run: str, stage: str) -> dict:
    """Return the manifest of a finished stage; raise RoomError where there is none."""
    path = room(run, stage) / MANIFEST
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RoomError(f"run '{run}' has no {path.parent.name}/ yet: {_mend(run, stage)}") from None
    except ValueError:
        raise RoomError(f"{path} is not readable JSON: {_mend(run, stage)}") from None


def open_room(run: str, stage: str) -> dict:
    """Check a room's files against its manifest, and the manifest against the rooms before it; return the manifest.

    Raises RoomError with the notebook to run again when a file is missing or changed, or when the
    room was made from another state of an earlier room (a tokenizer of another corpus, say).
    """
    manifest = read_manifest(run, stage)
    base = run_dir(run)
    for name, wanted in manifest["outputs"].items():
        if not (base / name).is_file():
            raise RoomError(f"{base / name} is missing: {_mend(run, stage)}")
        if sha256(base / name) != wanted:
            raise RoomError(f"{base / name} is not the file that {STAGES[stage][0]} wrote: {_mend(run, stage)}")
    rooms = {name: earlier for earlier, (_, name) in STAGES.items()}
    for name, wanted in manifest["inputs"].items():
        earlier = rooms.get(name.split("/")[0])
        if earlier and read_manifest(run, earlier)["outputs"].get(name, wanted) != wanted:
            raise RoomError(
                f"{STAGES[stage][1]}/ was made from another {STAGES[earlier][1]}/ than the one there now "
                f"({name} differs): {_mend(run, stage)}"
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


def parameters(stage: str, namespace: dict) -> dict:
    """Return the parameters of a running notebook with the values they have now (pass `globals()`)."""
    return {name: namespace[name] for name in notebook_parameters(stage)}


def shards(run: str, stage: str, split: str, suffix: str) -> list[Path]:
    """Return a room's shards of one split (`train` or `val`) in order: `train-00000.jsonl`, `train-00001.jsonl`, …"""
    return sorted(room(run, stage).glob(f"{split}-[0-9]*{suffix}"))
