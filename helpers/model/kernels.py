"""What is only for speed in training on a CPU in half precision: parts of `gpt` in fewer passes over memory.

There every small operation reads and writes all activations of a batch, which takes as long as the matrix products of a
narrow model. Here such a chain is one function with a gradient written by hand; each equals the plain lines of `gpt`
that stand below its call. A compiler fuses by itself, and elsewhere nothing here pays. Knows no model.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# The longest window for which attention is written out here: the library's fused one has a slow backward pass on a CPU
# in half precision. Forward and backward of 16 windows take 0.6 ms and not 3.4 at 40 tokens, 4.9 and not 9.8 at 128,
# but at 256 anything from 8 to 28 and not 20 (measured on an EPYC): matrices of scores are out of its cache there.
WRITTEN_OUT = 128
_used = True


@contextlib.contextmanager
def plain_lines() -> Iterator[None]:
    """Leave all of this out: models compute by their plain lines."""
    global _used
    before, _used = _used, False
    try:
        yield
    finally:
        _used = before


def pays(x: Tensor) -> bool:
    """Return whether all of this is faster than the plain lines: on a CPU in half precision, and not for a compiler."""
    return _used and x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()


# ---- matrices ----


def project(x: Tensor, *parts: nn.Module) -> Tensor:
    """Return what several linear maps make of one x (…, in), side by side (…, sum of out): in one product."""
    if any(type(part) is not nn.Linear for part in parts):  # one has an adapter
        return torch.cat([part(x) for part in parts], -1)
    biases: Any = [part.bias for part in parts if part.bias is not None]
    weights: Any = [part.weight for part in parts]
    return functional.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)


# ---- norm ----


def norm_pays(x: Tensor) -> bool:
    """Return whether `rms_norm` is faster than the plain lines."""
    return pays(x) and x.dtype != torch.get_autocast_dtype("cpu")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm of x (…, C) in the half precision of the products that follow."""
    return _RMSNorm.apply(x, weight, eps, torch.get_autocast_dtype("cpu"))


class _RMSNorm(torch.autograd.Function):
    """x / √(mean of x² + eps) · weight, in fp32 or wider, returned in `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        """Take x (…, C) and weight (C,); return (…, C)."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (…, 1) √(sum of x²): one pass, no x² in memory
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        unit = x * scale  # (…, C)
        ctx.save_for_backward(unit, scale, weight)
        return torch.mul(unit, weight, out=torch.empty_like(unit, dtype=dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and weight: of x, the part along x itself is taken out, for its length is fixed."""
        unit, scale, weight = ctx.saved_tensors
        along = grad * unit  # (…, C), as wide as unit
        grad_weight = along.flatten(0, -2).sum(0)  # (C,)
        mean = (along @ weight).div_(unit.shape[-1])[..., None]  # (…, 1) of unit · gradient of unit
        return (grad * weight).addcmul_(unit, mean, value=-1).mul_(scale), grad_weight, None, None


# ---- attention ----


def attention_pays(x: Tensor) -> bool:
    """Return whether `causal_attention` is faster than the library's for windows x (B, T, …)."""
    return pays(x) and x.shape[1] <= WRITTEN_OUT


def causal_attention(qkv: Tensor, heads: int, turns: tuple[Tensor, Tensor] | None, visible: Tensor | None) -> Tensor:
    """Return attention (B, T, H, D) of H heads of queries, K of keys and K of values, qkv (B, T, H + 2 K, D).

    turns: cos and sin, (B or 1, 1, T, D/2) each. visible (B or 1, 1, T, T): True where a query sees a key.
    """
    T, D = qkv.shape[1], qkv.shape[3]
    if visible is None:
        visible = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    return _Attention.apply(qkv, heads, turns, visible, D**-0.5)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (…, T, D), its pairs (x[d], x[d + D/2]) turned by the angles of cos and sin (…, T, D).

    The first half of sin has the other sign: what turns is x · cos + (its halves exchanged) · sin; with -sin it turns
    back.
    """
    a, b = x.chunk(2, -1)  # (…, T, D/2) each
    return torch.cat([b, a], -1).mul_(sin).addcmul_(x, cos)


class _Attention(torch.autograd.Function):
    """Rotary positions and attention, written out; the softmax in fp32 or wider.

    The G = H / K queries that share a key stand one after the other, as if their text were G times as long.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, H: int, turns: Any, visible: Tensor, scaling: float) -> Tensor:
        """Take what `causal_attention` takes; return (B, T, H, D)."""
        B, T, all_heads, D = qkv.shape
        K = (all_heads - H) // 2
        wide = torch.promote_types(qkv.dtype, torch.float32)
        q, k, v = qkv.transpose(1, 2).split([H, K, K], 1)  # (B, H, T, D), (B, K, T, D) twice
        # 1. turn queries and keys, and scale the queries
        tables: list[Tensor] = []
        if turns is None:
            q = q * scaling
        else:
            cos, sin = turns  # (B or 1, 1, T, D/2) each
            cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)  # (B or 1, 1, T, D)
            tables = [each.to(qkv.dtype) for each in (cos * scaling, sin * scaling, cos, sin)]
            q, k = _rotate(q, *tables[:2]), _rotate(k, *tables[2:])
        q, k, v = q.reshape(B * K, -1, D), k.reshape(B * K, T, D), v.reshape(B * K, T, D)  # (B·K, G·T, D), …
        # 2. how much each place takes from each place that it may see
        hidden = torch.zeros(visible.shape, dtype=wide).masked_fill_(~visible, -torch.inf)
        scores = torch.bmm(q, k.mT).view(B, H, T, T) + hidden
        p = scores.softmax(-1).to(qkv.dtype).view(B * K, -1, T)  # (B·K, G·T, T)
        # 3. and that much of the values
        ctx.save_for_backward(q, k, v, p, *tables)
        ctx.scaling = scaling
        return torch.bmm(p, v).view(B, H, T, D).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of qkv, by the same steps in reverse."""
        q, k, v, p, *tables = ctx.saved_tensors
        B, T, H, D = grad.shape
        K = len(k) // B
        grad = grad.transpose(1, 2).reshape(B * K, -1, D)  # (B·K, G·T, D)
        grad_qkv = torch.empty(B, T, H + 2 * K, D, dtype=p.dtype)
        grad_q, grad_k, grad_v = grad_qkv.transpose(1, 2).split([H, K, K], 1)  # views of it
        # 3. values
        grad_v.copy_(torch.bmm(p.mT, grad).view(B, K, T, D))
        # 2. softmax: p · (gradient − its mean under p)
        grad_scores = torch._softmax_backward_data(torch.bmm(grad, v.mT), p, -1, p.dtype)  # (B·K, G·T, T)
        from_q, from_k = torch.bmm(grad_scores, k).view(B, H, T, D), torch.bmm(grad_scores.mT, q).view(B, K, T, D)
        # 1. turn back
        if tables:
            cos_q, sin_q, cos_k, sin_k = tables
            from_q, from_k = _rotate(from_q, cos_q, -sin_q), _rotate(from_k, cos_k, -sin_k)
        else:
            from_q = from_q * ctx.scaling
        grad_q.copy_(from_q)
        grad_k.copy_(from_k)
        return grad_qkv, None, None, None, None


# ---- feed-forward ----


def swiglu(both: Tensor) -> Tensor:
    """Return silu(gate) · up (…, F) of both side by side (…, 2 F)."""
    return _SwiGLU.apply(both)


class _SwiGLU(torch.autograd.Function):
    """silu(gate) · up, of both in one tensor (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        """Take gate and up (…, 2·F); return (…, F)."""
        gate, up = both.chunk(2, -1)
        act = functional.silu(gate)
        ctx.save_for_backward(both, act)
        return act * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of gate and up."""
        both, act = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        grad_both = torch.empty_like(both)
        grad_gate, grad_up = grad_both.chunk(2, -1)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))
        torch.mul(grad, act, out=grad_up)
        return grad_both
