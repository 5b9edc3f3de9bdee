"""The GPT of notebook 04, with the switches of its relatives: GPT-2, LLaMA, Mistral, Qwen, a mixture of experts.

Read it from top to bottom: norm, rotary positions, attention, feed-forward, block, GPT. It trains, it writes with a
`cache`, and LoRA wraps it. Where `kernels` has the same in fewer passes over memory, it is called by name, above the
plain lines that it equals. The parts have the names of the library's LLaMA. Knows no file and no text.

Shapes: B rows, T positions, C numbers per position, H heads of queries, K heads of keys and values, D numbers per head,
F numbers inside the feed-forward network, E experts, V tokens.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.model import kernels
from helpers.model.cache import Cache, Place
from helpers.model.config import GPTConfig

INIT_STD = 0.02


# ---- norm ----


class RMSNorm(nn.Module):
    """Each position's C numbers, brought to a root mean square of one; then times a learned weight each.

    Zhang and Sennrich 2019. Computed in fp32 or wider, whatever x is in.
    """

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Return (…, C) of x (…, C)."""
        if kernels.norm_pays(x):
            return kernels.rms_norm(x, self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def make_norm(config: GPTConfig) -> nn.Module:
    """Return the norm of a config's blocks."""
    return (RMSNorm if config.norm == "rms" else nn.LayerNorm)(config.n_embd, config.norm_eps)


# ---- positions ----


def rotary_table(config: GPTConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (…, T, D/2) each, of the angles by which pairs turn at these positions (…, T)."""
    D = config.head_size
    speeds = 1 / config.rope_theta ** (torch.arange(0, D, 2, device=positions.device) / D)  # (D/2,) radians a position
    angles = positions[..., None] * speeds  # (…, T, D/2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of numbers in x (B, heads, T, D), number i and number i + D/2, by the table's angles.

    Rotary positions (Su et al. 2021): a query's product with a key then depends on their distance only.
    """
    a, b = x.chunk(2, -1)  # (B, heads, T, D/2) each
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# ---- attention ----


@dataclass(frozen=True)
class View:
    """What is the same for all blocks of one pass: the turns of the positions, who sees whom, where keys are kept."""

    turns: tuple[Tensor, Tensor] | None  # cos and sin, (B or 1, 1, T, D/2) each; None with a table of positions
    visible: Tensor | None  # (B or 1, 1, T, keys), True where a query (row) sees a key; None: all up to itself
    place: Place | None = None  # in a cache


class Attention(nn.Module):
    """Every position takes from itself and the positions before it, through H heads (Vaswani et al. 2017).

    With K < H, groups of H / K heads of queries share one head of keys and values (Ainslie et al. 2023).
    """

    def __init__(self, config: GPTConfig, number: int):
        super().__init__()
        C, D, H, K = config.n_embd, config.head_size, config.n_head, config.n_kv_head
        self.number, self.head_size, self.n_head, self.n_kv_head = number, D, H, K
        self.q_proj = nn.Linear(C, H * D, bias=config.qkv_bias)
        self.k_proj = nn.Linear(C, K * D, bias=config.qkv_bias)
        self.v_proj = nn.Linear(C, K * D, bias=config.qkv_bias)
        self.o_proj = nn.Linear(H * D, C, bias=config.out_bias)
        self.q_norm, self.k_norm = (RMSNorm(D, config.norm_eps) if config.qk_norm else nn.Identity() for _ in "qk")

    def heads(self, x: Tensor, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, T, D), and keys and values of all that is there (B, H, keys, D), of x (B, T, C)."""
        parts = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (part(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in parts)  # (B, H or K, T, D)
        q, k = self.q_norm(q), self.k_norm(k)
        if view.turns is not None:
            q, k = rotate(q, *view.turns), rotate(k, *view.turns)
        if view.place is not None:
            k, v = view.place.write(self.number, k, v)  # (B, K, keys, D) each
        groups = self.n_head // self.n_kv_head
        k, v = (each.repeat_interleave(groups, 1) if groups > 1 else each for each in (k, v))
        return q.to(k.dtype), k, v

    def forward(self, x: Tensor, view: View) -> Tensor:
        """Return what each position (B, T, C) takes, of x (B, T, C)."""
        if kernels.attention_pays(x) and view.place is None:
            qkv = kernels.project(x, self.q_proj, self.k_proj, self.v_proj).unflatten(-1, (-1, self.head_size))
            if isinstance(self.q_norm, RMSNorm):
                q, k, v = qkv.split([self.n_head, self.n_kv_head, self.n_kv_head], 2)
                qkv = torch.cat([self.q_norm(q), self.k_norm(k), v], 2).to(v.dtype)  # (B, T, H + 2 K, D)
            return self.o_proj(kernels.causal_attention(qkv, self.n_head, view.turns, view.visible).flatten(2))
        q, k, v = self.heads(x, view)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=view.visible, is_causal=view.visible is None and q.shape[2] > 1
        )  # (B, H, T, D): softmax(q · k / √D) over the keys that are visible, times their values
        return self.o_proj(mixed.transpose(1, 2).flatten(2).to(x.dtype))


# ---- feed-forward ----


class SwiGLU(nn.Module):
    """Each position's C numbers become F, gated, and C again (Shazeer 2020)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        C, F = config.n_embd, config.n_inner
        self.gate_proj = nn.Linear(C, F, bias=config.mlp_bias)
        self.up_proj = nn.Linear(C, F, bias=config.mlp_bias)
        self.down_proj = nn.Linear(F, C, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (…, C) of x (…, C)."""
        if kernels.pays(x):
            return self.down_proj(kernels.swiglu(kernels.project(x, self.gate_proj, self.up_proj)))
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class GELU(nn.Module):
    """Each position's C numbers become F, bent, and C again: the feed-forward network of GPT-2."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.n_embd, config.n_inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.n_inner, config.n_embd, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (…, C) of x (…, C)."""
        return self.down_proj(functional.gelu(self.up_proj(x), approximate="tanh"))


class Experts(nn.Module):
    """A router sends each position to a few of several SwiGLUs (Shazeer et al. 2017; Fedus et al. 2021)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.chosen, self.normalize = config.experts_per_token, config.normalize_experts
        self.gate = nn.Linear(config.n_embd, config.n_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(config) for _ in range(config.n_experts))
        self.routed: Tensor | None = None  # the router's logits (M, E) of the last pass, for the loss that balances

    def forward(self, x: Tensor) -> Tensor:
        """Return (…, C) of x (…, C): the chosen experts' answers, by the router's weights."""
        flat = x.flatten(0, -2)  # (M, C), M positions
        self.routed = self.gate(flat)  # (M, E)
        wide = torch.promote_types(x.dtype, torch.float32)
        shares, chosen = self.routed.softmax(-1, dtype=wide).topk(self.chosen)  # (M, chosen) each
        if self.normalize:
            shares = shares / shares.sum(-1, keepdim=True)
        shares, out = shares.to(x.dtype), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)  # the positions that chose it
            out = out.index_add(0, row, (expert(flat[row]) * shares[row, place, None]).to(out.dtype))
        return out.view_as(x)


# ---- the whole ----


class Block(nn.Module):
    """Attention and a feed-forward network, each added to the stream."""

    def __init__(self, config: GPTConfig, number: int):
        super().__init__()
        part = Experts if config.n_experts else SwiGLU if config.mlp == "swiglu" else GELU
        self.input_layernorm, self.self_attn = make_norm(config), Attention(config, number)
        self.post_attention_layernorm, self.mlp = make_norm(config), part(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, view: View) -> Tensor:
        """Return the stream (B, T, C) behind this block."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), view))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class GPT(nn.Module):
    """From ids (B, T) to logits (B, T, V)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        # how it is written with where nobody says otherwise: what its folder's generation_config.json says
        self.generation: dict[str, Any] = {}
        self.embed_tokens = nn.Embedding(config.vocab_size, config.n_embd)
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.n_ctx, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, number) for number in range(config.n_layer))
        self.norm = make_norm(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.embed_tokens.weight.device

    @torch.no_grad()
    def init_weights(self, seed: int) -> "GPT":
        """Draw fresh weights, the same ones for the same seed; return the model.

        Matrices have standard deviation 0.02, those that write into the stream 0.02/√(2 L), so that it does not grow
        with depth (Radford et al. 2019).
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = INIT_STD / math.sqrt(2 * self.config.n_layer) if writes else INIT_STD
            parameter.normal_(0.0, std, generator=generator)
        return self

    def forward(
        self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None, cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the logits (B, T, V) of ids (B, T); see `hidden`."""
        return self.lm_head(self.hidden(ids, positions=positions, visible=visible, cache=cache))

    def hidden(
        self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None, cache: Cache | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the stream (B, T, C) before the output matrix.

        positions (B, T): where in its text each id stands; None: from 0 on. visible (B, T, T): True where an id (row)
        may see another one of its row; None: all up to itself. With a cache, ids follow on what its first B rows hold,
        and are kept there.
        """
        place = cache.place(*ids.shape) if cache is not None else None
        x, view = self.begin(ids, positions, visible, place)
        for layer in self.layers:
            x = layer(x, view)
        return self.norm(x)

    def begin(
        self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None, place: Place | None = None,
    ) -> tuple[Tensor, View]:  # fmt: skip
        """Return the stream (B, T, C) before the first block, and the view of this pass; see `hidden`."""
        start = place.start if place else 0
        if positions is None:
            positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]  # (1, T)
        x, turns = self.embed_tokens(ids), None  # (B, T, C)
        if self.config.positions == "learned":
            x = x + self.embed_positions(positions)
        else:
            cos, sin = rotary_table(self.config, positions)  # (B or 1, T, D/2) each
            turns = cos[:, None], sin[:, None]
        return self.dropout(x), View(turns, self._visible(positions, visible, start), place)

    def _visible(self, positions: Tensor, visible: Tensor | None, start: int) -> Tensor | None:
        """Return (B or 1, 1, T, keys), True where a position sees another one; None where it sees all up to itself."""
        T, window = positions.shape[1], self.config.sliding_window
        if not (window and start + T > window) and (start == 0 or T == 1):
            return None if visible is None else visible[:, None]
        keys = torch.arange(start + T, device=positions.device)[None] if start else positions  # (1, keys)
        back = positions[:, :, None] - keys[:, None]  # (B or 1, T, keys)
        seen = (back >= 0) & (back < (window or start + T))
        return (seen if visible is None else seen & visible)[:, None]


def texts_apart(positions: Tensor) -> Tensor:
    """Return (B, T, T) for `visible`: True where an id sees another one of its own text, itself or before it.

    positions (B, T): where they begin at 0 again, another text begins.
    """
    text = (positions == 0).cumsum(1)  # (B, T), the number of the text in its row
    return (text[:, :, None] == text[:, None]).tril()
