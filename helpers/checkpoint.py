"""Save, verify and restore all of a run's state; export the plain Hugging Face folder.

A checkpoint is a folder `step-00001200/` with weights and optimizer state as safetensors, everything
else as JSON, and a list of checksums: no pickle, and a flipped bit is noticed. It is written beside its
place, flushed to disk and renamed, so a folder with that name is always whole. Knows nothing of training.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from helpers import paths

transformers_logging.disable_progress_bar()  # a bar for each saved file would fill the notebook

_STATE, _WEIGHTS, _OPTIMIZER, _CHECKSUMS = "state.json", "model.safetensors", "optimizer.safetensors", "checksums.json"


class BadCheckpoint(RuntimeError):
    """A checkpoint whose files are missing or are not the bytes that were saved; the message names the file."""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_folder(folder: Path, write) -> None:
    """Call write(beside), flush all that it wrote, and rename it to `folder`, replacing what is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        write(beside)
        for file in beside.iterdir():
            _sync(file)
        _sync(beside)
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            beside.rename(folder)
            shutil.rmtree(old)
        else:
            beside.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list]:
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{key}": value.contiguous() if torch.is_tensor(value) else torch.tensor(value)
        for index, entry in state["state"].items()
        for key, value in entry.items()
    }
    return tensors, state["param_groups"]


def _unflatten(tensors: dict[str, torch.Tensor], groups: list) -> dict:
    state: dict[int, dict] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": groups}


def save(root: Path, step: int, model: torch.nn.Module, optimizers: list, state: dict, keep: int = 2) -> Path:
    """Write `root/step-<step>/` whole or not at all, then remove all but the newest `keep`; return its path.

    `state` is JSON: position in the data, counters, the run's identity. Tied weights are stored once.
    Raises OSError (a full disk, say) and leaves nothing half-written behind.
    """
    folder = root / f"step-{step:08d}"

    def write(beside: Path) -> None:
        save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, beside / _WEIGHTS)
        tensors, groups = {}, []
        for number, optimizer in enumerate(optimizers):
            flat, group = _flatten(optimizer)
            tensors |= {f"{number}.{name}": value for name, value in flat.items()}
            groups.append(group)
        save_file(tensors, beside / _OPTIMIZER)
        (beside / _STATE).write_text(json.dumps({"step": step, "param_groups": groups, **state}), "utf-8")
        prints = paths.fingerprint(list(beside.iterdir()), beside)
        (beside / _CHECKSUMS).write_text(json.dumps(prints, indent=1), "utf-8")

    _write_folder(folder, write)
    for old in found(root)[:-keep]:
        shutil.rmtree(old)
    return folder


def found(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, oldest first; they may be damaged."""
    return sorted(path for path in root.glob("step-*") if path.is_dir())


def verify(folder: Path) -> dict:
    """Check a checkpoint's files against their checksums and return its state; raise BadCheckpoint naming the file."""
    try:
        prints = json.loads((folder / _CHECKSUMS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{folder / _CHECKSUMS} cannot be read: {error}") from None
    for name in (_WEIGHTS, _OPTIMIZER, _STATE):
        if not (folder / name).is_file():
            raise BadCheckpoint(f"{folder / name} is missing")
        if paths.sha256(folder / name) != prints.get(name):
            raise BadCheckpoint(f"{folder / name} is damaged: its checksum is not the one that was saved")
    return json.loads((folder / _STATE).read_text("utf-8"))


def latest(root: Path) -> tuple[Path, dict, list[str]] | None:
    """Return (folder, state, complaints) of the newest checkpoint that verifies, or None if there is none.

    `complaints` says of each newer one why it was passed over.
    """
    complaints = []
    for folder in reversed(found(root)):
        try:
            return folder, verify(folder), complaints
        except BadCheckpoint as error:
            complaints.append(str(error))
    if complaints:
        raise BadCheckpoint(f"no checkpoint is whole (resume = False starts anew): {'; '.join(complaints)}")
    return None


def restore(folder: Path, model: torch.nn.Module, optimizers: list) -> None:
    """Copy a checkpoint's weights and optimizer states into `model` and `optimizers`, in place."""
    weights = load_file(folder / _WEIGHTS)
    own = dict(model.named_parameters())
    if {n: p.shape for n, p in own.items()} != {n: w.shape for n, w in weights.items()}:
        raise BadCheckpoint(f"{folder} holds a model of another shape: its config is not the one of this run")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    tensors = load_file(folder / _OPTIMIZER)
    groups = json.loads((folder / _STATE).read_text("utf-8"))["param_groups"]
    for number, (optimizer, group) in enumerate(zip(optimizers, groups, strict=True)):
        mine = {n.split(".", 1)[1]: t for n, t in tensors.items() if n.split(".", 1)[0] == str(number)}
        optimizer.load_state_dict(_unflatten(mine, group))


def export(folder: Path, model, tokenizer) -> None:
    """Write a plain Hugging Face folder (config, safetensors, tokenizer), whole or not at all."""

    def write(beside: Path) -> None:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)

    _write_folder(folder, write)
