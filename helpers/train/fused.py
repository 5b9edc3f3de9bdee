"""Ways to train the library's models faster: LLaMA's parts in fewer passes over memory, and attention without a mask.

On a CPU every small operation reads and writes all activations of a batch, which takes as long as the matrix products
of a narrow model. Here such a chain is one function with a gradient written by hand. Weights, names and results stay
the library's; outside of training in half precision these classes do what those of `transformers` do.

On a GPU a mask makes attention compute the hidden half as well, and to see whether it needs one the library waits for
each batch. Windows that hold one text each need none. Knows nothing of the training loop.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from helpers.train.settings import TrainSettings

# The longest window for which a CPU in half precision is faster without the library's fused attention, whose backward
# pass is slow there: forward and backward of 16 windows take 0.6 ms and not 3.4 at 40 tokens, 4.9 and not 9.8 at 128,
# but at 256 anything from 8 to 28 and not 20 (measured on an EPYC): matrices of scores are out of its cache there.
WRITTEN_OUT = 128


def speed_up(
    model: PreTrainedModel, settings: TrainSettings, n_ctx: int, precision: str, device: torch.device,
    packed: bool = False,
) -> None:  # fmt: skip
    """Let a model with windows of `n_ctx` tokens compute in the way that trains fastest on this device.

    It stays the library's model: same names and values of the weights, same files, same answers but for rounding.
    `packed`: a window holds several texts side by side, which do not see each other.
    """
    on_cpu = device.type == "cpu" and precision != "fp32"
    # a compiler fuses by itself, and with fsdp each process has only a part of a weight
    fused = on_cpu and model.config.model_type == "llama" and not settings.compile and settings.parallel != "fsdp"
    if fused:
        for module in model.modules():
            module.__class__ = _FUSED.get(type(module), type(module))
    # for "sdpa" the library makes no mask where only the future is hidden, else one of truth values: as we take it
    written_out = on_cpu and n_ctx <= WRITTEN_OUT and not (fused and _has_own_keys(model.config))
    # to see that, the library waits for each batch of a GPU; compiled, it cannot see it, and makes a mask
    unmasked = (device.type == "cuda" or settings.compile) and not packed and _sees_whole_window(model.config, n_ctx)
    model.set_attn_implementation("eager" if written_out else CAUSAL if unmasked else "sdpa")


def hides_only_the_future(config: PretrainedConfig) -> bool:
    """Return whether a model's attention takes no mask, so that texts side by side would see each other."""
    return config._attn_implementation == CAUSAL


def _sees_whole_window(config: PretrainedConfig, n_ctx: int) -> bool:
    """Return whether each place of a window of `n_ctx` tokens sees all before it: no sliding window is shorter."""
    return (getattr(config, "sliding_window", None) or n_ctx) >= n_ctx


def _causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None, **more: Any
) -> tuple[Tensor, None]:
    """Return what the library's "sdpa" returns where no mask is needed: (B, T, H, D) of query (B, H, T, D)."""
    return sdpa_attention_forward(module, query, key, value, None, **more)


CAUSAL = "causal"  # among the library's attention implementations; without a function for masks, it is given none
AttentionInterface.register(CAUSAL, _causal_attention)


def _has_own_keys(config: Any) -> bool:
    """Return whether each query head has a key/value head of its own."""
    return config.num_key_value_heads == config.num_attention_heads


def _half() -> torch.dtype | None:
    """Return the type of products in training in half precision; None outside of it."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _are_plain(*parts: nn.Module) -> bool:
    """Return whether parts are matrices and nothing more: no bias, no adapter (LoRA) in their place."""
    return all(type(part) is nn.Linear and part.bias is None for part in parts)


# ---- norm ----


class _RMSNorm(torch.autograd.Function):
    """RMSNorm: x / √(mean of x² + eps) · weight, in fp32 or wider, returned in `dtype`."""

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


class _FusedRMSNorm(LlamaRMSNorm):
    """LLaMA's norm."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        half = _half()
        if half is None or hidden_states.dtype == half:
            return super().forward(hidden_states)
        return _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon, half)


# ---- attention ----


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (…, T, D), its pairs (x[d], x[d + D/2]) turned by the angles of cos and sin (…, T, D).

    The first half of sin has the other sign: what turns is x · cos + (its halves exchanged) · sin. Rotary positions
    (Su et al. 2021); with -sin it turns back.
    """
    a, b = x.chunk(2, -1)  # (…, T, D/2) each
    return torch.cat([b, a], -1).mul_(sin).addcmul_(x, cos)


def _future(length: int) -> Tensor:
    """Return (1, 1, T, T), True where the key (last) is behind the query."""
    return torch.ones(1, 1, length, length, dtype=torch.bool).triu_(1)


class _Attention(torch.autograd.Function):
    """Rotary positions and attention, written out; the softmax in fp32 or wider."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, masked: Tensor, scaling: float) -> Tensor:
        """Take queries, keys and values qkv (B, T, 3, H, D) and angles (B or 1, T, 1, D/2); return (B, T, H, D).

        masked (B or 1, 1, T, T): True for the keys (last) that a query must not see, at least for those behind it.
        """
        batch, length, _, heads, _ = qkv.shape
        dtype, wide = qkv.dtype, torch.promote_types(qkv.dtype, torch.float32)
        # 1. turn queries and keys; of the angles' tables each half of a head reads its own, and queries a scaled one
        scales = torch.tensor([scaling, 1.0], dtype=wide)[:, None, None, None, None]
        cos, sin = (table.transpose(1, 2) for table in (cos, sin))  # (B or 1, 1, T, D/2)
        cos, sin = ((torch.cat(halves, -1) * scales).to(dtype) for halves in ([cos, cos], [-sin, sin]))
        by_head = qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        q, k = _rotate(by_head[:2], cos, sin).flatten(1, 2)  # (B·H, T, D) each
        v = by_head[2].flatten(0, 1)
        # 2. how much each place takes from each place that it may see
        hidden = torch.zeros(masked.shape, dtype=wide).masked_fill_(masked, -torch.inf)
        scores = torch.bmm(q, k.mT).unflatten(0, (batch, heads)) + hidden  # (B, H, T, T)
        p = scores.softmax(-1).to(dtype).flatten(0, 1)
        # 3. and that much of the values
        ctx.save_for_backward(q, k, v, p, cos, sin)
        return torch.bmm(p, v).unflatten(0, (batch, heads)).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of qkv, by the same steps in reverse."""
        q, k, v, p, cos, sin = ctx.saved_tensors
        batch, length, heads, width = grad.shape
        grad = grad.transpose(1, 2).flatten(0, 1)  # (B·H, T, D)
        grad_qkv = torch.empty(batch, length, 3, heads, width, dtype=p.dtype)
        by_head = grad_qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        # 3. values
        by_head[2] = torch.bmm(p.mT, grad).unflatten(0, (batch, heads))
        # 2. softmax: p · (gradient − its mean under p)
        grad_scores = torch._softmax_backward_data(torch.bmm(grad, v.mT), p, -1, p.dtype)  # (B·H, T, T)
        grad_qk = torch.stack([torch.bmm(grad_scores, k), torch.bmm(grad_scores.mT, q)])  # (2, B·H, T, D)
        # 1. turn back
        by_head[:2] = _rotate(grad_qk.unflatten(1, (batch, heads)), cos, -sin)
        return grad_qkv, None, None, None, None


class _FusedAttention(LlamaAttention):
    """LLaMA's attention where windows are short and each head has keys of its own."""

    def forward(  # type: ignore[override]  # the name of its cache is another in another release
        self, hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Any = None, **more: Any
    ) -> Any:
        if (
            _half() is None
            or hidden_states.shape[1] > WRITTEN_OUT
            or any(more.get(name) is not None for name in ("past_key_values", "cache"))  # by either of its names
            or (attention_mask is not None and attention_mask.dtype != torch.bool)
            or (self.training and self.attention_dropout)
            or not _has_own_keys(self.config)
            or not _are_plain(self.q_proj, self.k_proj, self.v_proj)
        ):
            more |= {"position_embeddings": position_embeddings, "attention_mask": attention_mask}
            return super().forward(hidden_states, **more)
        # of each angle, the first of its two equal columns
        cos, sin = (table[:, :, None, : self.head_dim // 2].float() for table in position_embeddings)
        if attention_mask is None:
            masked = _future(hidden_states.shape[1])
        else:  # of texts side by side in a row
            masked = attention_mask.logical_not()
        weights = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])  # (3·H·D, C)
        qkv = functional.linear(hidden_states, weights).unflatten(-1, (3, -1, self.head_dim))  # (B, T, 3, H, D)
        out = _Attention.apply(qkv, cos, sin, masked, self.scaling)  # (B, T, H, D)
        return self.o_proj(out.flatten(2)), None


# ---- feed-forward ----


class _SwiGLU(torch.autograd.Function):
    """silu(gate) · up, of both in one tensor (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        """Take gate and up (…, 2·W); return (…, W)."""
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


class _FusedMLP(LlamaMLP):
    """LLaMA's feed-forward part."""

    def forward(self, x: Tensor) -> Tensor:
        if _half() is None or self.config.hidden_act != "silu" or not _are_plain(self.gate_proj, self.up_proj):
            return super().forward(x)
        both = functional.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight]))  # (…, 2·W)
        return self.down_proj(_SwiGLU.apply(both))


_FUSED = {LlamaRMSNorm: _FusedRMSNorm, LlamaAttention: _FusedAttention, LlamaMLP: _FusedMLP}
