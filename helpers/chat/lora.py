"""LoRA: beside each frozen matrix two thin ones are trained, whose product is added to it (Hu et al. 2021).

Fewer trained numbers need less memory for gradients and moments. The layers come from `peft`.
"""

import peft
import torch
from peft.tuners.lora import Linear, LoraLayer
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_ADAPTER = "default"


def add_lora(model: PreTrainedModel, rank: int, seed: int = 0) -> None:
    """Put an adapter of this rank beside every matrix of the blocks, in place, and freeze all other weights.

    At first the adapters add nothing. The experts of a mixture, a block of matrices, stay frozen. Raises
    ValueError for a rank below 1.
    """
    if rank < 1:
        raise ValueError(f"lora_rank is {rank}: give 1 or more, 8 is usual")
    body = model.base_model_prefix
    matrices = [
        f"{body}.{name}" for name, part in model.base_model.named_modules() if isinstance(part, nn.Linear | Conv1D)
    ]
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=matrices, fan_in_fan_out=model.config.model_type == "gpt2"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, model, _ADAPTER)


def is_lora(model: PreTrainedModel) -> bool:
    """Return whether a model has adapters."""
    return any(isinstance(part, LoraLayer) for part in model.modules())


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return {name: weight} of the model without adapters that computes the same; `model` stays as it is."""
    added = {
        f"{name}.weight": part.get_delta_weight(_ADAPTER)
        for name, part in model.named_modules()
        if isinstance(part, Linear)
    }
    weights = {}
    for name, tensor in model.named_parameters():
        if ".lora_" not in name:
            plain = name.replace(".base_layer.", ".")
            weights[plain] = tensor + added[plain] if plain in added else tensor
    return weights
