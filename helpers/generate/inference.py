"""Fast incremental inference: our own forward pass over a model's weights, with a preallocated KV cache.

The library's forward pass can do everything: training, masks of any kind, hooks. Writing text needs little of that, and
in a small model the rest costs more time than the arithmetic. Here is the same arithmetic (a test compares every
architecture) with little around it. Knows GPT-2 and the LLaMA family; knows no text and no sampling.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:  # slow to import; the library imports the one that a model needs
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2LMHeadModel

    # LLaMA's classes stand for its whole family, which has the same attributes
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaRMSNorm

FAMILIES = ("gpt2", "llama", "mistral", "qwen3", "qwen3_moe")
FIRST_POSITIONS = 64  # of a new cache; doubled as the texts grow
# oneDNN's own layout: a few rows times a large matrix in at most half the time of the plain product (measured); for
# small matrices its call costs more than it saves
PACKED_FROM = 2**18  # numbers in a matrix
ROWS = 8  # that the layout is made for
Map = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]  # (layer, q, k, v, scale) -> (B, heads, N, head size)
Rotary = tuple[Tensor, Tensor] | None  # cos and sin of the positions, (B, N, 1, head size); GPT-2 has none
Layer = Callable[[Tensor, Attend, Rotary], Tensor]


def context_length(config: PreTrainedConfig) -> int:
    """Return how many tokens a model sees at once.

    A sliding window is a bound of its own: within it, sliding attention (Mistral) is plain attention.
    """
    most = config.max_position_embeddings
    return min(most, getattr(config, "sliding_window", None) or most)


def check_eval(model: PreTrainedModel) -> None:
    """Raise ValueError for a model in training mode."""
    if model.training:
        raise ValueError("the model is in training mode, dropout would blur its text: call model.eval() first")


class KVCache:
    """The keys and values of a batch, per layer (rows, heads, positions, head size); row i is row i of the batch.

    Makes room by doubling, so that a step almost never has to copy what is there.
    """

    def __init__(self, n_layer: int, n_head: int, head_size: int, like: Tensor) -> None:
        self.keys = [like.new_zeros(0, n_head, 0, head_size) for _ in range(n_layer)]
        self.values = [like.new_zeros(0, n_head, 0, head_size) for _ in range(n_layer)]

    @torch.inference_mode()
    def make_room(self, rows: int, positions: int, most: int) -> None:
        """Grow to at least this many rows and positions, but never to more than `most` positions."""
        old_rows, n_head, old_positions, head_size = self.keys[0].shape
        if rows <= old_rows and positions <= old_positions:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
        if positions > old_positions:
            positions = min(most, max(positions, 2 * old_positions, FIRST_POSITIONS))
        positions = max(positions, old_positions)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                # zeros: what lies beyond the end of a row has weight 0, and 0 times uninitialized memory may be NaN
                tensors[layer] = old.new_zeros(rows, n_head, positions, head_size)
                tensors[layer][:old_rows, :, :old_positions] = old

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another row."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]


class Decoder:
    """A model's weights in the order of their use; `of(model)` keeps one for each model.

    Several threads may use it, each with a cache of its own. Weights that need no gradient (those of `generate.load`)
    are copied once into a faster layout; others are read where they are. Raises ValueError for an unknown family.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        # 1. sizes
        cfg = model.config
        if cfg.model_type not in FAMILIES:
            raise ValueError(f"models of the kind '{cfg.model_type}' are not known here, only {', '.join(FAMILIES)}")
        self.frozen = not any(weight.requires_grad for weight in model.parameters())
        self.n_ctx = context_length(cfg)
        self.n_head = cfg.num_attention_heads
        self.n_kv_head = getattr(cfg, "num_key_value_heads", None) or self.n_head
        self.head_size = getattr(cfg, "head_dim", None) or cfg.hidden_size // self.n_head
        # 2. layers, as functions
        self.embedding = cast(nn.Embedding, model.get_input_embeddings())
        self.position_embedding: nn.Embedding | None = None
        self._norm: Map
        if cfg.model_type == "gpt2":
            gpt2 = cast("GPT2LMHeadModel", model).transformer
            self.position_embedding, self._norm = gpt2.wpe, gpt2.ln_f
            self._layers = [self._gpt2_layer(i, cast("GPT2Block", layer), cfg) for i, layer in enumerate(gpt2.h)]
        else:
            llama = cast("LlamaForCausalLM", model).model
            self._norm = self._rms_norm(llama.norm)
            self._layers = [self._llama_layer(i, layer) for i, layer in enumerate(llama.layers)]
            # 3. rotary positions: turning by an angle is x cos + (x with its halves swapped) sin, where the sin of the
            # first half is negative
            with torch.inference_mode():
                positions = torch.arange(self.n_ctx, device=model.device)
                cos, sin = llama.rotary_emb(self.embedding.weight, positions[None])  # (1, n_ctx, head size)
            half = self.head_size // 2
            self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
        self._head = self._linear(cast(nn.Linear, model.get_output_embeddings()))

    def cache(self) -> KVCache:
        """Return an empty cache."""
        return KVCache(len(self._layers), self.n_kv_head, self.head_size, self.embedding.weight.detach())

    @torch.inference_mode()
    def read(self, ids: Tensor, lengths: Sequence[int], cache: KVCache, rows: Sequence[tuple[int, int]]) -> Tensor:
        """Read texts from their start (prefill); return the logits (D, V) that follow each.

        ids (D, N): text d is the first lengths[d] ids of row d. rows: pairs (row of the cache, d); a text may fill
        several rows of the cache.
        """
        cache.make_room(max(row for row, _ in rows) + 1, ids.shape[1], self.n_ctx)
        slots, texts = torch.tensor(rows, device=ids.device).T  # (R,), (R,)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # (D, heads, N, head size)
            cache.keys[layer][slots, :, : ids.shape[1]] = k[texts]
            cache.values[layer][slots, :, : ids.shape[1]] = v[texts]
            # what is right of a text's end is not seen from left of it: the causal mask is enough
            groups = self.n_head // self.n_kv_head
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)  # (D, N)
        x = self._forward_layers(ids, positions, attend)  # (D, N, C)
        last = torch.tensor(lengths, device=ids.device) - 1
        return self._head(self._norm(x[torch.arange(len(x), device=ids.device), last])).float()

    @torch.inference_mode()
    def step(self, ids: Tensor, lengths: Sequence[int], cache: KVCache) -> Tensor:
        """Read one more id in each of the first B rows; return the logits (B, V) that follow.

        ids: (B,). lengths: how many ids of each row are in the cache already.
        """
        most, same = max(lengths), min(lengths) == max(lengths)
        cache.make_room(len(ids), most + 1, self.n_ctx)
        positions = torch.tensor(lengths, device=ids.device)  # (B,)
        rows = torch.arange(len(ids), device=ids.device)
        seen = None if same else (torch.arange(most + 1, device=ids.device) <= positions[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # (B, heads, 1, head size)
            keys, values = cache.keys[layer][: len(ids)], cache.values[layer][: len(ids)]
            if same:
                keys[:, :, most : most + 1], values[:, :, most : most + 1] = k, v
            else:
                keys[rows, :, positions], values[rows, :, positions] = k[:, :, 0], v[:, :, 0]
            # queries that share a key take the place of the sequence: with one new id there is no order among them
            shared = q.reshape(len(ids), self.n_kv_head, -1, self.head_size)
            keys, values = keys[:, :, : most + 1], values[:, :, : most + 1]
            out = F.scaled_dot_product_attention(shared, keys, values, attn_mask=seen, scale=scale)
            return out.reshape(q.shape)

        x = self._forward_layers(ids[:, None], positions[:, None], attend)  # (B, 1, C)
        return self._head(self._norm(x[:, -1])).float()

    def _forward_layers(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Take ids (B, N) at positions (B, N) through all layers; return the residual stream (B, N, C)."""
        x = self.embedding(ids)
        rotary = None
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        else:
            rotary = self._cos[positions][:, :, None], self._sin[positions][:, :, None]
        for layer in self._layers:
            x = layer(x, attend, rotary)
        return x

    def _gpt2_layer(self, number: int, layer: "GPT2Block", cfg: PreTrainedConfig) -> Layer:
        attn, mlp = layer.attn, layer.mlp
        qkv, out = self._linear(attn.c_attn), self._linear(attn.c_proj)
        up, act, down = self._linear(mlp.c_fc), mlp.act, self._linear(mlp.c_proj)
        scale = self.head_size**-0.5 if cfg.scale_attn_weights else 1.0
        scale /= number + 1 if cfg.scale_attn_by_inverse_layer_idx else 1

        def forward(x: Tensor, attend: Attend, rotary: Rotary) -> Tensor:
            B, N, C = x.shape
            q, k, v = qkv(layer.ln_1(x)).view(B, N, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)  # (B, heads, N, size)
            x = x + out(attend(number, q, k, v, scale).transpose(1, 2).reshape(B, N, C))
            return x + down(act(up(layer.ln_2(x))))

        return forward

    def _llama_layer(self, number: int, layer: "LlamaDecoderLayer") -> Layer:
        attn, mlp = layer.self_attn, layer.mlp
        qkv, out = self._linear(attn.q_proj, attn.k_proj, attn.v_proj), self._linear(attn.o_proj)
        before, after = self._rms_norm(layer.input_layernorm), self._rms_norm(layer.post_attention_layernorm)
        norms = [self._rms_norm(norm) for name in ("q_norm", "k_norm") if (norm := getattr(attn, name, None))]  # Qwen3
        heads, shared = self.n_head, self.n_kv_head
        feed_forward = self._gated(mlp) if hasattr(mlp, "gate_proj") else mlp  # experts are the library's own

        def forward(x: Tensor, attend: Attend, rotary: Rotary) -> Tensor:
            B, N, _ = x.shape
            qk, v = qkv(before(x)).view(B, N, heads + 2 * shared, -1).split([heads + shared, shared], 2)
            if norms:
                qk = torch.cat([norms[0](qk[:, :, :heads]), norms[1](qk[:, :, heads:])], 2)
            q, k = self._rotate(qk, rotary).split([heads, shared], 2)  # (B, N, heads, head size), (B, N, shared, …)
            y = attend(number, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn.scaling)
            x = x + out(y.transpose(1, 2).reshape(B, N, -1))
            return x + feed_forward(after(x))

        return forward

    def _gated(self, mlp: "LlamaMLP") -> Map:
        both, act, down = self._linear(mlp.gate_proj, mlp.up_proj), mlp.act_fn, self._linear(mlp.down_proj)

        def forward(x: Tensor) -> Tensor:
            gate, up = both(x).chunk(2, -1)
            return down(act(gate) * up)

        return forward

    def _rotate(self, x: Tensor, rotary: Rotary) -> Tensor:
        assert rotary is not None  # only GPT-2 has none
        cos, sin = rotary
        return torch.addcmul(x * cos, x.roll(self.head_size // 2, -1), sin)  # (B, N, heads, head size)

    def _rms_norm(self, norm: "LlamaRMSNorm") -> Map:
        """Return the library's RMSNorm with fewer kernels: √(mean x² + ε) is √(|x|² + C ε) / √C."""
        if not self.frozen:
            return lambda x: F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
        size, full = norm.weight.numel(), torch.float32  # bf16 is too coarse for a sum of squares
        weight, least = norm.weight.to(full) * size**0.5, norm.weight.new_tensor(size * norm.variance_epsilon).sqrt()

        def forward(x: Tensor) -> Tensor:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=full).hypot_(least)
            return (x / length * weight).to(x.dtype)

        return forward

    def _linear(self, *modules: nn.Linear | Conv1D) -> Map:
        """Return one linear map that does what these modules do side by side: (…, in) -> (…, sum of outs)."""
        if not self.frozen:
            return modules[0] if len(modules) == 1 else lambda x: torch.cat([each(x) for each in modules], -1)
        weights = [each.weight.T if isinstance(each, Conv1D) else each.weight for each in modules]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)  # (out, in)
        bias = None if modules[0].bias is None else torch.cat([each.bias for each in modules])
        weight = weight.contiguous()
        on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
        if on_cpu and weight.numel() >= PACKED_FROM:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
            return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        transposed = weight.T.contiguous()  # (in, out): the faster layout for a few rows
        return (lambda x: x @ transposed) if bias is None else (lambda x: x @ transposed + bias)


_KEPT: weakref.WeakKeyDictionary[PreTrainedModel, Decoder] = weakref.WeakKeyDictionary()


def of(model: PreTrainedModel) -> Decoder:
    """Return the decoder of a model: always the same one, unless the model is still trained."""
    decoder = _KEPT.get(model)
    if decoder is None or any(weight.requires_grad for weight in model.parameters()):
        decoder = Decoder(model)
        if decoder.frozen:
            _KEPT[model] = decoder
    return decoder
