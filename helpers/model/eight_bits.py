"""A model in 8 bits, a quarter of the bytes: for the page that computes in the browser, and for data/try.

Each row of a matrix becomes whole numbers from -127 to 127 and one scale, so that its largest weight is exact. A folder
holds model.safetensors, by the names of `gpt`, and model.json with its config. Knows no text and no page.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from helpers.model.config import GPTConfig
from helpers.model.gpt import GPT

_SCALE = ".scale"


def to_eight_bits(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each matrix (out, in) as int8, with "name.scale" (out,) in fp32; vectors stay as they are."""
    packed = dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 2:
            scale = weight.abs().amax(1).clamp(min=1e-30) / 127  # (out,)
            packed |= {name: (weight / scale[:, None]).round().to(torch.int8), name + _SCALE: scale}
    return packed


def from_eight_bits(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in fp32 that `to_eight_bits` has packed: off by half a scale at most."""
    return {
        name: weight.float() * packed[name + _SCALE][:, None] if name + _SCALE in packed else weight
        for name, weight in packed.items()
        if not name.endswith(_SCALE)
    }


def write_packed(folder: Path, model: GPT, about: Mapping[str, Any], exact: bool = False) -> None:
    """Write a model in 8 bits, or `exact` in fp32; `about`: what else model.json tells of it."""
    weights = {name: each.detach().cpu().float().contiguous() for name, each in model.state_dict().items()}
    if model.config.tied:
        del weights["lm_head.weight"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(save(weights if exact else to_eight_bits(weights)))
    told = {"config": asdict(model.config), "generation": model.generation, **about}
    (folder / "model.json").write_text(json.dumps(told, ensure_ascii=False) + "\n", "utf-8", newline="\n")


def read_packed(folder: Path) -> GPT:
    """Return the model of such a folder, in fp32 and in eval mode."""
    told = json.loads((folder / "model.json").read_text("utf-8"))
    model, weights = GPT(GPTConfig(**told["config"])), from_eight_bits(load_file(folder / "model.safetensors"))
    model.generation = told["generation"]
    if model.config.tied:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    model.load_state_dict(weights)
    return model.eval()
