"""How a gradient becomes a step: learning-rate schedule, gradient clipping, and the optimizers AdamW and Muon.

Knows nothing of data, of the training loop, or of a model beyond which of its tensors are tables.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from helpers.train.distributed import whole
from helpers.train.muon import Muon

SCHEDULES = ("linear", "cosine", "wsd", "constant")
WSD_DECAY = 0.2  # the last part of a warm-up–stable–decay schedule, in which the rate falls


def learning_rate(
    step: int, total_steps: int, lr: float, warmup_steps: int, schedule: str, final_fraction: float
) -> float:
    """Return the rate of update `step` (0 … total_steps-1): warm-up to `lr`, then decay to final_fraction × lr.

    The warm-up is linear. `schedule` is "linear", "cosine" (Loshchilov and Hutter 2017), "wsd" (flat, then linear in
    the last fifth; Hu et al. 2024) or "constant".
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule '{schedule}' is unknown: choose one of {', '.join(SCHEDULES)}")
    if step < warmup_steps:
        return lr * ((step + 1) / warmup_steps)  # computed in this order, the last one is exactly lr
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)  # 0 … just below 1: no update has rate 0
    decay = {
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
        "wsd": min(1.0, (total_steps - step) / max(1, round(WSD_DECAY * total_steps))),
        "constant": 1.0,
    }[schedule]
    return lr * (final_fraction + (1 - final_fraction) * decay)


def make_optimizers(
    model: PreTrainedModel,
    name: str,
    lr: float,
    weight_decay: float,
    beta2: float = 0.95,
    eps: float = 1e-8,
    momentum: float = 0.95,
    dtype: torch.dtype = torch.float32,
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model: fused AdamW, and with "muon" Muon for the matrices inside the blocks.

    Weight decay acts on matrices and embeddings only, never on biases and norms (Loshchilov and Hutter 2019).
    `lr` serves both. `beta2` and `eps` are AdamW's, `momentum` and the `dtype` of products are Muon's. The experts of a
    mixture are one tensor (E, out, in) per layer, which Muon does not take: AdamW moves them.
    """
    # 1. vectors (biases, norms), matrices inside the blocks, and the others: tables and experts
    tables = {id(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings())}
    if model.config.model_type == "gpt2":
        tables.add(id(model.get_parameter("transformer.wpe.weight")))
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    others = [p for p in model.parameters() if p.ndim > 2 or id(p) in tables]
    # 2. an optimizer for each
    decayed, optimizers = others, list[torch.optim.Optimizer]()
    if name == "adamw":
        decayed = matrices + others
    elif name == "muon":
        optimizers.append(Muon(matrices, lr, weight_decay, momentum, dtype))
    else:
        raise ValueError(f"optimizer '{name}' is unknown: choose adamw or muon")
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return optimizers + [torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), eps=eps, fused=True)]


def clip_gradient(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    max_grad_norm: float,
    scaler: torch.amp.GradScaler,
) -> float:
    """Divide the gradient by the loss scale, shorten it to at most `max_grad_norm` (0: any); return its norm before.

    One norm over all parameters (Pascanu et al. 2013). Clipped before unscaling, the gradient would shrink too much.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm if max_grad_norm > 0 else math.inf)
    return float(whole(norm))  # a sharded model's norm is in parts


def step(optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler, finite: bool) -> None:
    """Let all optimizers step, or none of them if loss or gradient is not `finite`."""
    if finite:  # a scaler by itself decides for each optimizer alone
        for optimizer in optimizers:
            optimizer.step()
    scaler.update()  # after a gradient that was not finite, an enabled scaler lowers its scale
