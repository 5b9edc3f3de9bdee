"""How a gradient becomes a step: learning-rate schedule, gradient clipping, and the optimizers AdamW and Muon.

Muon is like torch's own (`torch.optim.Muon`), which always computes in bf16: here the products run in the training's
precision, since a processor without bf16 units is several times slower in bf16 than in fp32, and matrices of one shape
are computed together. Knows nothing of data, of the loop, or of a model beyond which of its tensors are tables.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from helpers.model.gpt import GPT
from helpers.train.settings import TrainSettings

WSD_DECAY = 0.2  # the last part of a warm-up–stable–decay schedule, in which the rate falls


def learning_rate(
    step: int, total_steps: int, lr: float, warmup_steps: int, schedule: str, final_fraction: float
) -> float:
    """Return the rate of update `step` (0 … total_steps-1): warm-up to `lr`, then decay to final_fraction × lr.

    The warm-up is linear. `schedule` is "linear", "cosine" (Loshchilov and Hutter 2017), "wsd" (flat, then linear in
    the last fifth; Hu et al. 2024) or "constant".
    """
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
    model: GPT, settings: TrainSettings, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model: fused AdamW, and with "muon" Muon for the matrices inside the blocks.

    Weight decay acts on matrices and embeddings only, never on biases and norms (Loshchilov and Hutter 2019).
    One `lr` serves both. `dtype` is that of Muon's products.
    """
    # 1. vectors (biases, norms), matrices inside the blocks, and the tables
    named = list(model.named_parameters())
    vectors = [p for _, p in named if p.ndim < 2]
    matrices = [p for name, p in named if p.ndim == 2 and name.startswith("layers.")]
    tables = [p for name, p in named if p.ndim == 2 and not name.startswith("layers.")]
    # 2. an optimizer for each
    lr, weight_decay, betas = settings.lr, settings.weight_decay, (0.9, settings.beta2)
    muon = [Muon(matrices, lr, weight_decay, settings.momentum, dtype)] if settings.optimizer == "muon" else []
    decayed = tables if muon else matrices + tables
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [*muon, torch.optim.AdamW(groups, lr=lr, betas=betas, eps=settings.eps, fused=True)]


def begin_step(optimizers: Sequence[torch.optim.Optimizer], lr: float) -> None:
    """Set the rate of all optimizers, and forget the gradients of the step before."""
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.param_groups:
            group["lr"] = lr


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
    return float(norm)


def step(optimizers: Sequence[torch.optim.Optimizer], scaler: torch.amp.GradScaler, finite: bool) -> None:
    """Let all optimizers step, or none of them if loss or gradient is not `finite`."""
    if finite:  # a scaler by itself decides for each optimizer alone
        for optimizer in optimizers:
            optimizer.step()
    scaler.update()  # after a gradient that was not finite, an enabled scaler lowers its scale


# ---- Muon ----

# Of the five iterations, for any singular values from 1/1000 to 1: each triple is the polynomial that, after those
# before it, brings the value that is furthest from 1 as near as possible (Polar Express; Amsel et al. 2025, ℓ = 0.001)
COEFFICIENTS = (
    (8.287212, -23.595886, 17.300387),
    (4.107059, -2.947850, 0.544843),
    (3.948691, -2.908902, 0.551819),
    (3.318420, -2.488488, 0.510049),
    (2.300652, -1.668904, 0.418807),
)
# Above its interval a polynomial rises steeply, and where a gradient has one direction only, rounding in half precision
# may lift its singular value there: so each polynomial takes its input smaller by this factor (as in that paper)
HEADROOM = 1.01


def orthogonalize(matrices: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return matrices (n, rows, columns) with singular values of about 1 and their singular vectors as they were.

    Newton–Schulz: with X = U S Vᵀ, each iteration a·X + b·(X Xᵀ)X + c·(X Xᵀ)²X turns every singular value s into
    a·s + b·s³ + c·s⁵ and leaves U and V alone (Jordan et al. 2024). Products only, in `dtype`; no decomposition.
    A singular value of less than 1/1000 of the matrix's norm stays below 0.9.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # (n, short, long): the products below are short × short
    x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).to(dtype)  # no singular value is larger than this norm
    room = HEADROOM if dtype.itemsize < 4 else 1.0
    for a, b, c in COEFFICIENTS:
        gram = x @ x.mT  # (n, short, short)
        factors = torch.baddbmm(gram, gram, gram, beta=b / room**3, alpha=c / room**5)
        x = torch.baddbmm(x, factors, x, beta=a / room)  # (n, short, long)
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for matrices; its step is scaled to AdamW's size (Liu et al. 2025), so that one `lr` serves both.

    `dtype` is that of the products.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float, dtype: torch.dtype
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no loss is computed again here
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            # 1. momentum with a look ahead (Nesterov), one list per shape
            by_shape = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    if "momentum_buffer" not in self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                    mean = self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                    by_shape[p.shape].append((p, p.grad.lerp(mean, group["momentum"])))
            for shape, pairs in by_shape.items():
                # 2. all singular values to about 1, for all matrices of a shape at once
                steps = orthogonalize(torch.stack([update for _, update in pairs]), self.dtype)
                # 3. weight decay, and the step: 0.2 · √(longer side) gives its numbers AdamW's typical size
                for (p, _), step in zip(pairs, steps, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(step, alpha=group["lr"] * 0.2 * math.sqrt(max(shape)))
