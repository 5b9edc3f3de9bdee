"""The loss: cross-entropy over the vocabulary, a few rows of logits at a time; for a mixture also the router's loss.

Logits are as wide as the vocabulary, the largest tensor of a batch: here they are never in memory whole. The router's
loss gives each expert of a mixture work. Knows nothing of optimizers or of the training loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from helpers.model.config import GPTConfig
from helpers.model.gpt import GPT, texts_apart
from helpers.tokens.windows import IGNORE, Examples

# Logits in memory at once: rows on a CPU, bytes on a GPU. With fewer, the gradient of the output matrix, which is added
# to once per chunk, costs more than the products themselves; with more, only memory.
LOGIT_ROWS, LOGIT_BYTES = 512, 3 * 2**29
# A chunk is padded with empty rows to a multiple of this. oneDNN, which computes products on a CPU, compiles one for
# each shape it meets and keeps it: a new shape in every batch costs time, and memory that only grows
PAD_TO_MULTIPLE = 64
CACHED = 2**20  # elements that a CPU works on at once outside the products: 4 MB in fp32, so they stay in its cache


class Scores(NamedTuple):
    """What a forward pass returns about a batch."""

    objective: torch.Tensor  # () what is minimised: the summed cross-entropy, and the router's loss of a mixture
    loss: torch.Tensor  # (B,) summed cross-entropy of each window, in nats; no gradient
    correct: torch.Tensor  # (B,) right first guesses in each window


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy straight from hidden states, a few rows of logits at a time.

    The gradients of a chunk are computed while its logits are there (the idea of Liger Kernel, Hsu et al. 2024), and
    overwrite them. Products run in `dtype`, all else in fp32 or wider.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        dtype: torch.dtype,
        at_once: Callable[[torch.Tensor, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take hidden (N, C), weight (V, C), labels (N,); return summed loss (), losses (N,), right guesses (N,).

        at_once: what turns a chunk of logits into losses and gradient on a GPU, `_at_once` or `_for_compiler`.
        """
        device, (words, width) = hidden.device, weight.shape
        positions = (labels != IGNORE).nonzero()[:, 0]  # (n,) only these have logits
        wide = torch.promote_types(dtype, torch.float32)
        learns, learns_matrix = any(ctx.needs_input_grad), ctx.needs_input_grad[1]
        matrix = weight.to(dtype)  # (V, C)
        grad_hidden = torch.zeros_like(hidden if learns else hidden[:0], dtype=dtype)  # (N, C)
        grad_weight = torch.zeros_like(weight if learns_matrix else weight[:0], dtype=wide)  # (V, C)
        losses = torch.zeros_like(labels, dtype=wide)
        correct = torch.zeros_like(labels)

        # 1. a buffer for a chunk of logits; a CPU works on as many rows at once as its cache holds
        on_cpu = device.type == "cpu"
        each = dtype.itemsize + (wide.itemsize if at_once is _at_once else 0)  # it has a second, wider tensor
        rows = max(1, min(len(positions), rows_at_once(words, device.type, each)))
        rows = rows if on_cpu else _evenly(len(positions), rows)
        chunk = torch.empty(-(-rows // PAD_TO_MULTIPLE) * PAD_TO_MULTIPLE, words, dtype=dtype, device=device)
        slice_rows = max(1, CACHED // words) if on_cpu else rows
        block = max(1, CACHED // width) if on_cpu else words  # rows of the matrix
        for at in positions.split(rows) if len(positions) else ():
            # 2. the chunk's logits
            h, y = hidden[at].to(dtype), labels[at]  # (rows, C), (rows,)
            h = nn.functional.pad(h, (0, 0, 0, -len(at) % PAD_TO_MULTIPLE))  # (padded, C)
            torch.mm(h, matrix.T, out=chunk[: len(h)])  # (padded, V)
            # 3. loss and right guesses; then the gradient of the logits takes their place
            slices = zip(chunk[: len(at)].split(slice_rows), y.split(slice_rows), strict=True)
            scored = [(_at_once if on_cpu else at_once)(z, y_z, learns) for z, y_z in slices]
            losses[at], right = (torch.cat(parts) for parts in zip(*scored, strict=True))
            correct[at] = right.to(correct.dtype)
            # 4. from there the gradients of hidden states and matrix
            if learns:
                chunk[len(at) : len(h)] = 0.0
                grad = chunk[: len(h)]
                grad_hidden[at] = (grad @ matrix)[: len(at)]
                for v in range(0, words if learns_matrix else 0, block):
                    grad_weight[v : v + block] += grad[:, v : v + block].T @ h
        if learns:
            ctx.gradients = grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype)
        ctx.mark_non_differentiable(losses, correct)
        return losses.sum(), losses, correct

    @staticmethod
    def backward(ctx: Any, grad_loss: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients that `forward` computed, times the gradient of the summed loss."""
        if ctx.gradients is None:
            raise RuntimeError("backward() ran twice on one loss: run the forward pass again before each backward()")
        gradients, ctx.gradients = ctx.gradients, None  # they are as large as the matrix: scaled in place, kept once
        return *(grad.mul_(grad_loss.to(grad.dtype)) for grad in gradients), None, None, None


def rows_at_once(words: int, device: str, bytes_each: int) -> int:
    """Return how many rows of logits, over so many words of so many bytes, are in memory on a type of device."""
    return LOGIT_ROWS if device == "cpu" else max(1, LOGIT_BYTES // (bytes_each * words))


def _evenly(count: int, most: int) -> int:
    """Return the size of pieces of at most `most`, for each but the last: a small rest would be slow by itself."""
    return -(-count // -(-count // most)) if count else most


def _at_once(z: torch.Tensor, y: torch.Tensor, learns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses (n,) and right guesses (n,) of logits z (n, V) with labels y (n,), computed in fp32 or wider.

    With `learns` the gradient of the logits takes their place.
    """
    p = torch.softmax(z, -1, dtype=torch.promote_types(z.dtype, torch.float32))  # (n, V)
    top, guess = z.max(-1)
    # log Σ exp from the most likely word, whose p is at least 1/V: no second pass, and never log 0
    log_sum = top - p.gather(1, guess[:, None])[:, 0].log()
    loss = log_sum - z.gather(1, y[:, None])[:, 0]
    if learns:  # p with 1 less at the labels
        z.copy_(p.scatter_add_(1, y[:, None], p.new_full((len(p), 1), -1.0)))
    return loss, guess == y


def _for_compiler(z: torch.Tensor, y: torch.Tensor, learns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same, written for a compiler: it makes two kernels of it, and no tensor beside z."""
    logits = z.to(torch.promote_types(z.dtype, torch.float32))  # (n, V)
    top, guess = logits.max(-1, keepdim=True)  # (n, 1)
    total = (logits - top).exp().sum(-1, keepdim=True)
    loss = total.log() + top - logits.gather(1, y[:, None])
    if learns:
        words = torch.arange(z.shape[1], device=z.device)
        z.copy_((logits - top).exp() / total - (words == y[:, None]).to(logits.dtype))
    return loss[:, 0], guess[:, 0] == y


class Loss(nn.Module):
    """Model and cross-entropy in one module, so that what wraps it for data parallel training sees both.

    With `compile` the model's body is compiled at its first batch (up to a minute; it needs a C++ compiler).
    `expert_load` counts in training how often this process chose each expert: (n_layer, n_experts), no part of the
    state; None for a dense model.
    """

    def __init__(self, model: GPT, compile: bool = False):
        super().__init__()
        self.model = model
        self.expert_load: torch.Tensor | None = None
        # a compiled function, not a compiled module: a second name for the weights would be in the state too
        self._run_body = torch.compile(self._body) if compile else self._body
        self._at_once = torch.compile(_for_compiler) if compile else _at_once

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor | None = None) -> Scores:
        """Return the Scores of a batch over the labels that are not IGNORE.

        inputs, labels: (B, T). Sums, not means: micro-batches with unequal numbers of labels then add up.
        positions (B, T): where they begin at 0 again, another text begins, which sees nothing of the one before it.
        A mixture's objective also has aux_loss_coef × its router loss × the number of labels.
        """
        hidden, routed = self._run_body(inputs, positions)
        weight, device = self.model.lm_head.weight, inputs.device.type  # (V, C)
        if not torch.is_grad_enabled():  # a function of our own is not told of `no_grad`
            weight = weight.detach()
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            objective, losses, correct = _ChunkedCrossEntropy.apply(
                hidden.flatten(0, 1), weight, labels.flatten(), dtype, self._at_once
            )
        if routed:
            has_label = labels != IGNORE  # (B, T)
            real = has_label.flip(1).cumsum(1).flip(1) > 0  # (B, T), up to the last label: what follows is padding
            balance = self._balance(routed, real.flatten())
            objective = objective + self.model.config.aux_loss_coef * balance * has_label.sum()
        return Scores(objective, losses.view_as(labels).sum(1), correct.view_as(labels).sum(1))

    def _body(
        self, inputs: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        mixtures: list[Any] = [block.mlp for block in self.model.layers] if self.model.config.n_experts else []
        for each in mixtures:  # after a pass without memory they would hold what it had computed
            each.routed = None
        apart = None if positions is None else texts_apart(positions)
        hidden = self.model.hidden(inputs, positions=positions, visible=apart)
        return hidden, [each.routed for each in mixtures]

    def _balance(self, routed: list[torch.Tensor], real: torch.Tensor) -> torch.Tensor:
        """Return the router's loss, the mean over layers, and count which experts were chosen.

        For one layer: n_experts × Σ (fraction of the tokens sent to an expert) × (its mean probability), over the
        tokens that are `real` (B·T,) (Fedus et al. 2021); even, it is the number of experts per token. `transformers`
        sums over layers first, which hides a layer that uses one expert only. routed: logits (B·T, E) per layer.
        """
        wide = torch.promote_types(routed[0].dtype, torch.float32)
        p = torch.stack([logits.softmax(-1, dtype=wide) for logits in routed]) * real[:, None]  # (L, B·T, E)
        chosen = p.topk(self.model.config.experts_per_token, -1).indices  # (L, B·T, experts of a token)
        counts = torch.zeros_like(p).scatter_(-1, chosen, 1.0).mul_(real[:, None]).sum(1)  # (L, E)
        if self.training:
            self.expert_load = counts if self.expert_load is None else self.expert_load + counts
        n_real = real.sum().clamp(min=1)
        return p.shape[-1] * (counts / n_real * (p.sum(1) / n_real)).sum(-1).mean()

    def expert_shares(self) -> list[list[float]] | None:
        """Return each expert's fraction of its layer's work since the last call, or None; the count begins again."""
        load, self.expert_load = self.expert_load, None
        return None if load is None else (load / load.sum(1, keepdim=True).clamp(min=1)).tolist()


def load_batch(windows: Examples, indices: np.ndarray, device: torch.device) -> list[torch.Tensor]:
    """Return what `Loss` takes of windows, on a device, (B, T) each; for no indices, one window without labels."""
    inputs, labels, *more = windows.batch(indices if len(indices) else [0])
    if len(indices) == 0:  # a process without work still takes part in the exchange of gradients
        labels = torch.full_like(labels, IGNORE)
    batch = [inputs, labels, *more]
    if device.type == "cuda":  # from pinned memory the copy waits for nothing, and nothing waits for it
        batch = [tensor.pin_memory() for tensor in batch]
    return [tensor.to(device, non_blocking=True) for tensor in batch]


# ---- memory ----

# bytes at the peak per token, layer and unit of width, without dropout, in half precision and in fp32: what is kept
# for backward (counted: 36 and 64, 54 and 80, 73 and 109), and half as much again for what comes and goes (measured)
_GPT2, _LLAMA_LIKE, _MIXTURE = (54, 96), (80, 120), (110, 160)


def training_memory(
    config: GPTConfig, batch_size: int, *, optimizer: str = "adamw", precision: str = "bf16", n_ctx: int = 0,
    device: str = "cpu",
) -> int:  # fmt: skip
    """Return an estimate, in bytes, of what training needs at its peak, on top of what the program itself takes.

    A parameter takes 4 bytes for its weight, 4 for its gradient, 4 for each moment (AdamW two; Muon one, for the
    matrices of the blocks), and 2 for its copy in half precision. Activations are kept for backward per token and
    layer, in proportion to the width (counted as by Korthikanti et al. 2022, without the attention matrix and
    dropout's masks). Some rows of logits are in memory at once (`rows_at_once`); their matrix has a second
    gradient.
    """
    half = precision != "fp32"
    # 1. weights, gradients and moments
    size = config.sizes()
    by_muon = size["parameters"] - size["embedding_parameters"] if optimizer == "muon" else 0
    states = 8 * size["parameters"] - 4 * by_muon
    weights = (10 if half else 8) * size["parameters"]
    # 2. activations
    tokens = batch_size * (n_ctx or config.n_ctx)
    per_unit: float = (_MIXTURE if config.n_experts else _GPT2 if config.mlp == "gelu" else _LLAMA_LIKE)[not half]
    if device == "cuda":  # its memory is handed out more tightly (measured for GPT-2 in bf16: 38)
        per_unit *= 0.75
    activations = round(per_unit * config.n_embd * config.n_layer * tokens)
    # 3. logits, with a copy in fp32 on a GPU, and two times 4 MB of such copies on a CPU
    each = (2 if half else 4) + (4 if device == "cuda" else 0)
    logits = min(tokens, rows_at_once(config.vocab_size, device, each)) * each * config.vocab_size + 2**23
    return weights + states + activations + logits + 4 * config.vocab_size * config.n_embd
