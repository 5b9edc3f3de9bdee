"""LoRA: beside each frozen matrix two thin ones are trained, whose product is added to it (Hu et al. 2021).

Fewer trained numbers need less memory for gradients and moments.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.model.gpt import GPT


class LoRALinear(nn.Module):
    """A linear map whose matrix stays as it is, plus 2 · B A: A is (rank, in), and B (out, rank), at first 0."""

    def __init__(self, base: nn.Linear, rank: int, generator: torch.Generator):
        super().__init__()
        self.base = base
        bound = 1 / math.sqrt(base.in_features)  # as nn.Linear draws its own
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return (…, out) of x (…, in)."""
        return self.base(x) + 2 * functional.linear(functional.linear(x, self.lora_A), self.lora_B)

    @property
    def weight(self) -> Tensor:
        """The one matrix (out, in) that computes the same."""
        return self.base.weight + 2 * self.lora_B @ self.lora_A

    @property
    def bias(self) -> Tensor | None:
        """The bias (out,) of the matrix, if it has one."""
        return self.base.bias


def add_lora(model: GPT, rank: int, seed: int = 0) -> None:
    """Put an adapter of this rank beside every matrix of the blocks, in place, and freeze all other weights.

    At first the adapters add nothing. Raises ValueError for a rank below 1.
    """
    if rank < 1:
        raise ValueError(f"lora_rank is {rank}: give 1 or more, 8 is usual")
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for part in list(model.layers.modules()):
        for name, child in list(part.named_children()):
            if type(child) is nn.Linear:
                setattr(part, name, LoRALinear(child, rank, generator))


def is_lora(model: GPT) -> bool:
    """Return whether a model has adapters."""
    return any(isinstance(part, LoRALinear) for part in model.modules())


@torch.no_grad()
def merged_weights(model: GPT) -> dict[str, Tensor]:
    """Return {name: weight} of the model without adapters that computes the same; `model` stays as it is."""
    merged = {f"{name}.weight": part.weight for name, part in model.named_modules() if isinstance(part, LoRALinear)}
    plain = {name.replace(".base.", "."): each for name, each in model.named_parameters() if ".lora_" not in name}
    return plain | merged
