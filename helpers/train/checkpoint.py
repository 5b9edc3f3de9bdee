"""Checkpoints: save, verify and resume from all of a run's state; export the plain Hugging Face folder.

A checkpoint is a folder `step-00001200/` with weights and optimizer state as safetensors, everything else as
JSON, and a list of checksums: no pickle, and a flipped bit is noticed. It is written atomically (`files.write_folder`)
and read back from the disk before it gets its name; any number of processes can resume. Of `state` only two names are
known here: `identity` and `val_loss`.
"""

import contextlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from helpers.files import sha256, tidy_folder, write_folder
from helpers.model.gpt import GPT
from helpers.model.huggingface import save_model

_STATE, _WEIGHTS, _OPTIMIZER, _CHECKSUMS = "state.json", "model.safetensors", "optimizer.safetensors", "checksums.json"


class BadCheckpoint(RuntimeError):
    """A checkpoint that must not be used: damaged, incomplete, or of another run; the message names file and reason."""


# ---- tensors ----


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _flatten(states: list[dict]) -> dict[str, torch.Tensor]:
    """Return optimizers' states as {"number.index.key": tensor}: of optimizer, of parameter, and moment or step."""
    return {
        f"{number}.{index}.{key}": torch.as_tensor(value)
        for number, state in enumerate(states)
        for index, entry in state.items()
        for key, value in entry.items()
    }


def _read(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, copied: the file may go or change while they are used."""
    try:
        with safe_open(file, "pt") as tensors:
            return {name: tensors.get_tensor(name).clone() for name in tensors.keys()}  # noqa: SIM118  (no dict)
    except SafetensorError as error:
        raise BadCheckpoint(f"{file} is not a safetensors file, and nothing else is opened: {error}") from None


# ---- checkpoints ----


def save(
    root: Path,
    step: int,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    state: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write `root/step-<step>/` atomically, verify it, and only then remove old ones; return its path.

    Kept are the newest `keep` that verify, and the best: the lowest `val_loss` in `state`, which is JSON. A checkpoint
    of another `identity` is left alone. Raises OSError for a full disk, and for one that does not return what was
    written.
    """
    # 1. the tensors
    folder = root / f"step-{step:08d}"
    held = [optimizer.state_dict() for optimizer in optimizers]
    weights = _on_cpu(dict(model.named_parameters()))
    moments = _on_cpu(_flatten([each["state"] for each in held]))
    groups = [each["param_groups"] for each in held]

    # 2. the folder
    def write(part: Path) -> None:
        save_file(weights, part / _WEIGHTS)
        save_file(moments, part / _OPTIMIZER)
        (part / _STATE).write_text(json.dumps({"step": step, "param_groups": groups, **state}), "utf-8")
        checksums = {name: sha256(part / name) for name in (_WEIGHTS, _OPTIMIZER, _STATE)}
        (part / _CHECKSUMS).write_text(json.dumps(checksums, indent=1), "utf-8")

    _tidy_all(root)
    _write_folder(folder, write, verify_checkpoint)
    # 3. the older ones
    _prune(root, folder, keep, state.get("identity"))
    return folder


def _write_folder(folder: Path, write: Callable[[Path], None], check: Callable[[Path], object] | None = None) -> None:
    try:
        write_folder(folder, write, check)
    except (SafetensorError, BadCheckpoint) as error:  # among other things, a disk that is full or loses bits
        raise OSError(f"{folder} could not be written: {error}") from error


def _tidy_all(root: Path) -> None:
    for leftover in [*root.glob(".step-*.part"), *root.glob(".step-*.old")]:
        tidy_folder(root / leftover.stem[1:])


def _prune(root: Path, written: Path, keep: int, identity: str | None) -> None:
    """Remove checkpoints of this run that are damaged, or neither `written`, nor the best, nor the newest `keep`."""
    states = {folder: _read_state(folder) for folder in reversed(list_checkpoints(root))}
    of_run = {folder: s for folder, s in states.items() if s is None or s.get("identity") == identity}  # None: damaged
    judged = {folder: loss for folder, state in of_run.items() if math.isfinite(loss := _loss_of(state))}
    best, kept = min(judged, key=judged.__getitem__, default=None), {written}
    for folder in of_run:
        with contextlib.suppress(BadCheckpoint):
            if len(kept) < keep and folder not in kept and verify_checkpoint(folder):
                kept.add(folder)
        if folder not in kept and folder != best:
            shutil.rmtree(folder, ignore_errors=True)


def _read_state(folder: Path) -> dict | None:
    """Return the state of a checkpoint without checking its other files; None if it cannot be read."""
    try:
        return json.loads((folder / _STATE).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def list_checkpoints(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, oldest first; they may be damaged."""
    return sorted(path for path in root.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name) and path.is_dir())


def verify_checkpoint(folder: Path) -> dict:
    """Check a checkpoint's files against their checksums and return its state; raise BadCheckpoint naming the file."""
    try:
        checksums = json.loads((folder / _CHECKSUMS).read_text("utf-8"))
        found = {name: sha256(folder / name) for name in (_WEIGHTS, _OPTIMIZER, _STATE)}
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", None) or folder / _CHECKSUMS
        raise BadCheckpoint(f"{where} cannot be read: {error}") from None
    for name, digest in found.items():
        if digest != checksums.get(name):
            raise BadCheckpoint(f"{folder / name} is damaged: its checksum is not the one in {_CHECKSUMS}")
    return json.loads((folder / _STATE).read_text("utf-8"))


def latest(root: Path, identity: str | None) -> tuple[Path, dict, list[str]] | None:
    """Return (folder, state, complaints) of the newest checkpoint of this run that verifies, or None if there is none.

    `complaints` says for each newer one why it was passed over. Only the run that trains in `root` may call this: it
    clears away what a killed process left behind. Raises BadCheckpoint if there are some and none can be used.
    """
    _tidy_all(root)
    complaints: list[str] = []
    for folder in reversed(list_checkpoints(root)):
        try:
            state = verify_checkpoint(folder)
            if state.get("identity") != identity:
                raise BadCheckpoint(f"{folder} belongs to a run with other data or parameters")
            return folder, state, complaints
        except BadCheckpoint as error:
            complaints.append(str(error))
    if complaints:
        reasons = "; ".join(complaints)
        raise BadCheckpoint(f"no checkpoint can be used (resume = False starts from the beginning): {reasons}")
    return None


def best(root: Path, identity: str | None) -> tuple[Path, dict] | None:
    """Return (folder, state) of this run's sound checkpoint with the lowest finite `val_loss`, or None."""
    found = []
    for folder in list_checkpoints(root):
        with contextlib.suppress(BadCheckpoint):
            state = verify_checkpoint(folder)
            if state.get("identity") == identity and math.isfinite(_loss_of(state)):
                found.append((folder, state))
    return min(found, key=lambda each: _loss_of(each[1]), default=None)


def _loss_of(state: Mapping[str, Any] | None) -> float:
    """Return the validation loss of a checkpoint's state; infinity where there is none, or none that is finite."""
    loss = (state or {}).get("val_loss")
    return loss if loss is not None and math.isfinite(loss) else math.inf


def restore_weights(folder: Path, model: torch.nn.Module) -> None:
    """Copy a checkpoint's weights into `model`, in place; BadCheckpoint if they are of another model's shape."""
    weights, own = _read(folder / _WEIGHTS), dict(model.named_parameters())
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in weights.items()}:
        raise BadCheckpoint(f"{folder} holds a model of another shape: its config is not the one of this run")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def restore(folder: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Copy a checkpoint's weights and optimizer states into `model` and `optimizers`, in place.

    If the checkpoint is of another model, BadCheckpoint is raised, and nothing has changed.
    """
    # 1. read, and refuse another model's
    moments = _read(folder / _OPTIMIZER)
    groups = json.loads((folder / _STATE).read_text("utf-8"))["param_groups"]
    restore_weights(folder, model)
    # 2. copy the optimizers' states
    states: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    for name, value in moments.items():  # as _flatten named them
        number, index, key = name.split(".", 2)
        states[int(number)].setdefault(int(index), {})[key] = value
    for optimizer, state, group in zip(optimizers, states, groups, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": group})


def export_model(
    folder: Path,
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write a plain Hugging Face folder atomically. Raises OSError.

    `weights`: what is written instead of the model's own tensors, such as those that LoRA was merged into.
    """
    tensors = _on_cpu(dict(model.named_parameters()) if weights is None else weights)

    def write(part: Path) -> None:
        save_model(part, model, tensors)
        tokenizer.save_pretrained(part)

    _write_folder(folder, write)
