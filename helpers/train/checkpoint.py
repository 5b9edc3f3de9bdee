"""Save, verify and restore all of a run's state; export the plain Hugging Face folder.

A checkpoint is a folder `step-00001200/` with weights and optimizer state as safetensors, everything else as
JSON, and a list of checksums: no pickle, and a flipped bit is noticed. It is written beside its place, flushed,
read back from the disk and renamed, so a folder with that name was whole when it got it. Tensors are stored whole
even where several processes hold a part each, so any number of processes can go on from them. Knows nothing of
training, and nothing of what `state` means but two names: `identity` and `val_loss`.
"""

import contextlib
import json
import math
import os
import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.utils import logging as transformers_logging

from helpers.files import hash_files, sha256

transformers_logging.disable_progress_bar()  # a bar for each saved file would fill the notebook

_STATE, _WEIGHTS, _OPTIMIZER, _CHECKSUMS = "state.json", "model.safetensors", "optimizer.safetensors", "checksums.json"


class BadCheckpoint(RuntimeError):
    """A checkpoint that must not be used: damaged, incomplete, or of another run; the message names file and reason."""


# ---------------------------------------------------------------- folders that are whole or absent


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk, and forget a file's pages, so that who reads it next reads the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if path.is_file() and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _tidy(folder: Path) -> None:
    """Clear away what a killed process left beside `folder`; put back the old one, if it died between two renames."""
    shutil.rmtree(_beside(folder, "part"), ignore_errors=True)
    old = _beside(folder, "old")
    if not folder.exists():
        with contextlib.suppress(FileNotFoundError):  # nothing to put back, or another process was quicker
            old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write_folder(folder: Path, write, check=lambda beside: None) -> None:
    """Call write(beside), flush all that it wrote, call check(beside), and rename it to `folder`, replacing what is
    there. Raises OSError when that fails; then `folder` is what it was before."""
    new = not folder.parent.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    if new:
        _sync(folder.parent.parent)
    _tidy(folder)
    beside, old = _beside(folder, "part"), _beside(folder, "old")
    try:
        beside.mkdir()
        write(beside)
        for path in (*beside.rglob("*"), beside):
            _sync(path)
        check(beside)
        if folder.exists():
            folder.rename(old)
        beside.rename(folder)
        _sync(folder.parent)
    except SafetensorError as error:  # how that library says, among other things, that the disk is full
        raise OSError(f"{folder}: {error}") from error
    finally:
        _tidy(folder)


# ---------------------------------------------------------------- tensors, whole or in parts


def _is_sharded(model: torch.nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())


def _gathered(tensors: dict[str, torch.Tensor], writes: bool) -> dict[str, torch.Tensor]:
    """Return the tensors whole, or nothing where this process does not write; all that hold a part must call."""
    whole = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if writes:  # off the device at once: there is room for one whole tensor, perhaps not for all
            whole[name] = (full.cpu() if full is not tensor else full).contiguous()
    return whole


def _like(whole: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return `whole`, or where `wanted` is spread over processes and of its shape, this process's part of it."""
    if isinstance(wanted, DTensor) and wanted.shape == whole.shape:
        mesh = wanted.device_mesh
        return distribute_tensor(whole.to(mesh.device_type), mesh, wanted.placements, src_data_rank=None)
    return whole


def _flat(states: list[dict]) -> dict[str, torch.Tensor]:
    """Return optimizers' states as {"number.index.key": tensor}: of optimizer, of parameter, and moment or step."""
    return {
        f"{number}.{index}.{key}": torch.as_tensor(value)
        for number, state in enumerate(states)
        for index, entry in state.items()
        for key, value in entry.items()
    }


def _own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's parameters, tied ones once, and the buffers that belong to its state."""
    saved = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in saved}


def _is_safetensors(file: Path) -> bool:
    """Say whether a file begins as the format does: 8 bytes of length, then so many of JSON. Takes no memory."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        try:
            return size < file.stat().st_size and isinstance(json.loads(opened.read(size)), dict)
        except ValueError:
            return False


def _read(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, copied: the file may go or change while they are used."""
    with safe_open(file, "pt") as tensors:
        return {name: tensors.get_tensor(name).clone() for name in tensors.keys()}  # noqa: SIM118  (no dict)


# ---------------------------------------------------------------- checkpoints


def save(
    root: Path, step: int, model: torch.nn.Module, optimizers: list, state: dict, keep: int = 2, writes: bool = True
) -> Path:
    """Write `root/step-<step>/` whole or not at all, verify it, and only then remove old ones; return its path.

    Kept are the newest `keep` that verify, and the best: the lowest `val_loss` in `state`. `state` is JSON:
    position in the data, counters, `identity` of the run. A checkpoint of another identity is left alone.
    With parameters spread over processes (DTensor) all processes call this, and one `writes`; it gathers them in
    its memory. Raises OSError (a full disk, a disk that does not give back what it got) where it writes, and
    leaves nothing half-written behind.
    """
    folder = root / f"step-{step:08d}"
    if not (writes or _is_sharded(model)):
        return folder
    held = [optimizer.state_dict() for optimizer in optimizers]
    weights = _gathered(_own_tensors(model), writes)
    moments = _gathered(_flat([each["state"] for each in held]), writes)
    if not writes:
        return folder
    groups = [each["param_groups"] for each in held]

    def write(beside: Path) -> None:
        save_file(weights, beside / _WEIGHTS)
        save_file(moments, beside / _OPTIMIZER)
        (beside / _STATE).write_text(json.dumps({"step": step, "param_groups": groups, **state}), "utf-8")
        prints = hash_files(list(beside.iterdir()), beside)
        (beside / _CHECKSUMS).write_text(json.dumps(prints, indent=1), "utf-8")

    def check(beside: Path) -> None:
        try:
            verify(beside)
        except BadCheckpoint as error:
            raise OSError(f"what was written does not read back: {error}") from error

    _tidy_all(root)
    _write_folder(folder, write, check)
    _prune(root, folder, keep, state.get("identity"))
    return folder


def _tidy_all(root: Path) -> None:
    for leftover in [*root.glob(".step-*.part"), *root.glob(".step-*.old")]:
        _tidy(root / leftover.stem[1:])


def _prune(root: Path, written: Path, keep: int, identity: str | None) -> None:
    """Remove checkpoints of this run that are damaged, or neither `written`, nor the best, nor the newest `keep`."""
    states = {folder: _peek(folder) for folder in found(root)}
    mine = {folder: s for folder, s in states.items() if s is None or s.get("identity") == identity}  # None: damaged
    top = _lowest(mine)
    kept = {written}
    for folder in reversed(mine):
        with contextlib.suppress(BadCheckpoint):
            if len(kept) < keep and folder not in kept and verify(folder):
                kept.add(folder)
        if folder not in kept and folder != top:
            shutil.rmtree(folder, ignore_errors=True)


def _lowest(states: dict[Path, dict | None]) -> Path | None:
    """Return the checkpoint whose state has the lowest finite `val_loss`, the newest of equals; None if none has."""
    losses = {folder: state.get("val_loss") for folder, state in reversed(states.items()) if state}
    losses = {folder: loss for folder, loss in losses.items() if loss is not None and math.isfinite(loss)}
    return min(losses, key=losses.get, default=None)


def _peek(folder: Path) -> dict | None:
    """Return the state of a checkpoint without checking its other files; None if it cannot be read."""
    try:
        state = json.loads((folder / _STATE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def found(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, oldest first; they may be damaged."""
    return sorted(path for path in root.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name) and path.is_dir())


def verify(folder: Path) -> dict:
    """Check a checkpoint's files against their checksums and return its state; raise BadCheckpoint naming the file."""
    try:
        prints = dict(json.loads((folder / _CHECKSUMS).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BadCheckpoint(f"{folder / _CHECKSUMS} cannot be read: {error}") from None
    for name in (_WEIGHTS, _OPTIMIZER, _STATE):
        file = folder / name
        if not file.is_file():
            raise BadCheckpoint(f"{file} is missing")
        try:
            if sha256(file) != prints.get(name):
                raise BadCheckpoint(f"{file} is damaged: its checksum is not the one in {_CHECKSUMS}")
        except OSError as error:
            raise BadCheckpoint(f"{file} cannot be read: {error}") from None
        if name != _STATE and not _is_safetensors(file):
            raise BadCheckpoint(f"{file} is not a safetensors file, and nothing else is opened")
    if (state := _peek(folder)) is None:
        raise BadCheckpoint(f"{folder / _STATE} holds no state")
    return state


def latest(root: Path, identity: str) -> tuple[Path, dict, list[str]] | None:
    """Return (folder, state, complaints) of the newest checkpoint of this run that verifies, or None if there is none.

    `complaints` says of each newer one why it was passed over. Only who trains in `root` may call it: it clears
    away what a killed process left behind.
    """
    _tidy_all(root)
    complaints = []
    for folder in reversed(found(root)):
        try:
            state = verify(folder)
            if state.get("identity") != identity:
                raise BadCheckpoint(f"{folder} belongs to a run with other data or parameters")
            return folder, state, complaints
        except BadCheckpoint as error:
            complaints.append(str(error))
    if complaints:
        raise BadCheckpoint(f"no checkpoint can be used (resume = False starts anew): {'; '.join(complaints)}")
    return None


def best(root: Path) -> Path | None:
    """Return the checkpoint with the lowest `val_loss` among those that verify, or None."""
    states = {}
    for folder in found(root):
        with contextlib.suppress(BadCheckpoint):
            states[folder] = verify(folder)
    return _lowest(states)


def restore(folder: Path, model: torch.nn.Module, optimizers: list) -> None:
    """Copy a checkpoint's weights and optimizer states into `model` and `optimizers`, in place.

    Where they are spread over processes each takes its part; every process reads the files. Raises BadCheckpoint,
    and has changed nothing, if the checkpoint is of another model or other optimizers.
    """
    try:
        weights, moments = _read(folder / _WEIGHTS), _read(folder / _OPTIMIZER)
    except SafetensorError as error:
        raise BadCheckpoint(f"{folder} holds a file that is not safetensors, nothing else is opened: {error}") from None
    groups = json.loads((folder / _STATE).read_text("utf-8"))["param_groups"]
    own = _own_tensors(model)
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in weights.items()}:
        raise BadCheckpoint(f"{folder} holds a model of another shape: its config is not the one of this run")
    sizes = [[len(group["params"]) for group in optimizer.param_groups] for optimizer in optimizers]
    if sizes != [[len(group["params"]) for group in saved] for saved in groups]:
        raise BadCheckpoint(f"{folder} holds the state of other optimizers than this run's")
    states = [{} for _ in optimizers]
    parameters = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]
    for name, value in moments.items():
        number, index, key = name.split(".", 2)
        number, index = int(number), int(index)
        states[number].setdefault(index, {})[key] = _like(value, parameters[number][index])
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(_like(weights[name], tensor))
    for optimizer, state, group in zip(optimizers, states, groups, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": group})


def export(folder: Path, model, tokenizer, writes: bool = True) -> None:
    """Write a plain Hugging Face folder (config, safetensors, tokenizer), whole or not at all.

    With parameters spread over processes (DTensor) all processes call this, and one `writes`. Raises OSError.
    """
    gathered = _gathered(_own_tensors(model), writes) if _is_sharded(model) else None
    if not writes:
        return

    def write(beside: Path) -> None:
        model.save_pretrained(beside, state_dict=gathered)
        tokenizer.save_pretrained(beside)

    _write_folder(folder, write)
