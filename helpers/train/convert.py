"""Weights that others kept in a pickle (pytorch_model.bin), as safetensors: converted once, without running anything.

A pickle may name any function to be called when it is opened. torch's restricted reader (`weights_only`) knows how to
make tensors and plain containers, and refuses everything else before it is called. Knows nothing of models.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

from helpers import paths
from helpers.files import fingerprint, known_sha256, write_folder


def with_safetensors(name: str) -> str:
    """Return a local folder or a Hub name whose weights are safetensors: `name`, or a folder beside the runs.

    That folder, with a copy of config.json, is made at the first call and found at the next ones, as long as the files
    are the same. Where there are no weights at all, `name` is returned. Raises ValueError for a file that holds more
    than tensors.
    """
    if _find(name, SAFE_WEIGHTS_NAME) or _find(name, SAFE_WEIGHTS_INDEX_NAME):
        return name
    files, config = _pickles(name), _find(name, CONFIG_NAME)
    if not files or not config:
        return name
    folder = paths.runs_dir() / ".converted" / fingerprint(*map(known_sha256, [config, *files]))[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):  # the processes of one job all begin here
        if not folder.is_dir():
            write_folder(folder, lambda part: _convert(name, files, config, part))
            print(f"the weights of '{name}' are now safetensors, in {folder}", file=sys.stderr)
    return str(folder)


def _find(name: str, file: str) -> Path | None:
    """Return a file of a folder or a Hub name as a local path, or None."""
    try:
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    except OSError:  # no such folder, no such name, or no network
        return None
    return Path(found) if found else None


def _pickles(name: str) -> list[Path]:
    """Return the files that hold the pickled weights: one, or those that an index names."""
    if whole := _find(name, WEIGHTS_NAME):
        return [whole]
    if not (index := _find(name, WEIGHTS_INDEX_NAME)):
        return []
    parts = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    found = [_find(name, part) for part in parts]
    if missing := [part for part, file in zip(parts, found, strict=True) if file is None]:
        raise ValueError(f"'{name}': {WEIGHTS_INDEX_NAME} names {missing[0]}, which is not there")
    return [file for file in found if file]


def _convert(name: str, files: list[Path], config: Path, folder: Path) -> None:
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read(name, file)
    # two names of one tensor, such as tied embeddings, become two tensors: safetensors shares nothing
    whole = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
    shutil.copyfile(config, folder / CONFIG_NAME)
    save_file(whole, folder / SAFE_WEIGHTS_NAME, {"format": "pt"})


def _read(name: str, file: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # a file of strangers may end in any
        # not its message: that of torch recommends to read the file without protection
        raise ValueError(
            f"'{name}': {file.name} is damaged, or it holds more than weights and might run a program "
            f"({type(error).__name__}). Nothing of it was run. Look for the same model as model.safetensors"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise ValueError(f"'{name}': {file.name} is no table of names and tensors; look for model.safetensors")
    return found
