"""How a gradient becomes a step: the learning rate's schedule, the optimizers, and the update itself.

Knows nothing of data, of models' insides beyond which tensor is a table, or of the loop.
"""

import math

import torch
from torch import nn

SCHEDULES = ("linear", "cosine", "wsd", "constant")
WSD_DECAY = 0.2  # the last part of a warm-up–stable–decay schedule, in which the rate falls


def learning_rate(
    step: int, total_steps: int, lr: float, warmup_steps: int, schedule: str, final_fraction: float
) -> float:
    """Return the rate of update `step` (0 … total_steps-1): linear warm-up to `lr`, then decay to final_fraction × lr.

    `schedule` is "linear", "cosine" (Loshchilov and Hutter 2017), "wsd" (flat, then linear in the last fifth;
    Hu et al. 2024) or "constant".
    """
    if step < warmup_steps:
        return lr * ((step + 1) / warmup_steps)  # in this order the last one is lr, to the bit
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)  # 0 … just below 1: no update has rate 0
    if schedule == "linear":
        decay = 1 - progress
    elif schedule == "cosine":
        decay = 0.5 * (1 + math.cos(math.pi * progress))
    elif schedule == "wsd":
        decay = min(1.0, (total_steps - step) / max(1, round(WSD_DECAY * total_steps)))
    elif schedule == "constant":
        decay = 1.0
    else:
        raise ValueError(f"schedule '{schedule}' is unknown: choose one of {', '.join(SCHEDULES)}")
    return lr * (final_fraction + (1 - final_fraction) * decay)


def make_optimizers(
    model: nn.Module, name: str, lr: float, weight_decay: float, beta2: float = 0.95, eps: float = 1e-8
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model: fused AdamW, and with "muon" Muon for the matrices inside the blocks.

    Weight decay acts on matrices and embeddings only, never on biases and norms (Loshchilov and Hutter 2019).
    Muon (Jordan et al. 2024) orthogonalises each matrix update; its step is scaled to AdamW's size
    (Liu et al. 2025), so that one `lr` serves both. `beta2` and `eps` are AdamW's. The experts of a mixture are
    one tensor (E, out, in) a layer, which Muon doesn't take: AdamW moves them. A sharded model (`fully_shard`) works
    with both; Muon then multiplies matrices that lie on several processes, which costs an exchange a product.
    """
    tables = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    if model.config.model_type == "gpt2":
        tables.add(id(model.transformer.wpe.weight))
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    others = [p for p in model.parameters() if p.ndim > 2 or id(p) in tables]  # tables and experts
    if name == "adamw":
        decayed, optimizers = matrices + others, []
    elif name == "muon":
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        decayed, optimizers = others, [muon]
    else:
        raise ValueError(f"optimizer '{name}' is unknown: choose adamw or muon")
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return optimizers + [torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), eps=eps, fused=True)]


def update(optimizers: list, parameters: list, max_grad_norm: float, scaler, finite: bool = True) -> float:
    """Clip the accumulated, unscaled gradient once, step, and clear it; return its norm before clipping.

    If the norm, or by `finite` the loss, is not finite, no optimizer steps and no weight changes.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, max_grad_norm if max_grad_norm > 0 else math.inf)
    norm = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)  # a sharded model's norm is in parts
    if finite and math.isfinite(norm):  # all optimizers or none: a scaler by itself decides for each apart
        for optimizer in optimizers:
            optimizer.step()
    scaler.update()  # after a gradient that was not finite, an enabled scaler lowers its scale
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return norm
