"""Dropout for the LLaMA-like models and the mixture, with masks that are cheap on a CPU.

For these models the library offers dropout of attention weights only. Here it acts where GPT-2 has it: on the
embeddings and on what each half of a block adds to the residual stream. Knows nothing of the training loop.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

PARTS = ("self_attn", "mlp")  # the halves of a block


def add_dropout(model: PreTrainedModel, layers: nn.ModuleList) -> None:
    """Let a model with the blocks `layers` drop what its config says: `embd_pdrop` and `resid_pdrop`, GPT-2's names.

    Nothing is dropped in `model.eval()`; names and values of the weights stay.
    """
    embeddings, residual = (getattr(model.config, name, 0.0) for name in ("embd_pdrop", "resid_pdrop"))
    if embeddings:
        model.get_input_embeddings().register_forward_hook(partial(_drop_output, embeddings))
    if residual:
        for part in (getattr(layer, name) for layer in layers for name in PARTS):
            part.register_forward_hook(partial(_drop_output, residual))


def _drop_output(p: float, part: nn.Module, _: Any, output: Any) -> Any:
    if not part.training:
        return output
    if isinstance(output, tuple):  # of attention: its output and its weights
        return (dropout(output[0], p), *output[1:])
    return dropout(output, p)


def dropout(x: Tensor, p: float) -> Tensor:
    """Return x with a random share p of its numbers set to 0, the others divided by 1 - p (Srivastava et al. 2014).

    On a CPU p is rounded to a multiple of 1/256, from 1 to 255 of them: see `_DropBytes`.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    return _DropBytes.apply(x, min(max(round(256 * p), 1), 255))


class _DropBytes(torch.autograd.Function):
    """Dropout with a random byte for each number: one draw makes eight.

    The library draws for each number, which takes a fifth of an update of a small model.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        """Drop where the byte is one of the first `dropped` of 256."""
        draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        mask = (draws.view(torch.uint8)[: x.numel()] >= dropped).view(x.shape).to(x.dtype)  # 1: stays
        ctx.scale = 256 / (256 - dropped)
        ctx.save_for_backward(mask)
        return _masked(x, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of x: it passes where the number passed."""
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return x · mask · scale in one pass; scale, which half precision would round, stays exact."""
    return torch.addcmul(x.new_zeros(()), x, mask, value=scale)
