"""One token a step, fast: our own forward pass over a model's weights, and a cache of keys and values made once.

The library's forward pass can do everything: training, masks of any kind, hooks. To write text little of that is
needed, and in a small model the rest costs more than the sums. Here are the same sums (a test compares every
architecture) with little around them. Knows GPT-2 and the LLaMA family; knows no text and no sampling.
"""

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

FAMILIES = ("gpt2", "llama", "mistral", "qwen3", "qwen3_moe")
FIRST_POSITIONS = 64  # of a new cache; doubled as the texts grow
# oneDNN's own layout: a few rows times a large matrix in half the time of the plain product or less (measured); for
# small matrices its call costs more than it saves
PACKED_FROM = 2**18  # numbers in a matrix
ROWS = 8  # that the layout is made for
Map = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
Turn = tuple[Tensor, Tensor] | None  # cos and sin of the positions, (B, N, 1, head size); GPT-2 has none
Layer = Callable[[Tensor, Attend, Turn], Tensor]


class Cache:
    """The keys and values of a batch, of each layer (rows, heads, positions, head size); row i is the batch's row i.

    Makes room by doubling, so that a step nearly never has to copy what is there.
    """

    def __init__(self, n_layer: int, n_head: int, head_size: int, like: Tensor) -> None:
        self.keys = [like.new_zeros(0, n_head, 0, head_size) for _ in range(n_layer)]
        self.values = [like.new_zeros(0, n_head, 0, head_size) for _ in range(n_layer)]

    @torch.inference_mode()
    def make_room(self, rows: int, positions: int, most: int) -> None:
        """Grow to at least this many rows and positions; never to more than `most` positions."""
        have_rows, n_head, have_positions, head_size = self.keys[0].shape
        if rows <= have_rows and positions <= have_positions:
            return
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        if positions <= have_positions:
            positions = have_positions
        else:
            positions = min(most, max(positions, 2 * have_positions, FIRST_POSITIONS))
        for held in (self.keys, self.values):
            for layer, old in enumerate(held):
                # zeros: what lies beyond a row's end has weight 0, and 0 times what memory happens to hold may be NaN
                held[layer] = old.new_zeros(rows, n_head, positions, head_size)
                held[layer][:have_rows, :, :have_positions] = old

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another row."""
        for held in (*self.keys, *self.values):
            held[target, :, :length] = held[source, :, :length]


class Decoder:
    """A model's weights in the order of their use; `of(model)` keeps one for each model.

    Several threads may use it at once, each with a cache of its own: nothing of a step is kept here.
    Weights that need no gradient (`generate.load` gives such) are laid out for speed, once, beside the model's own:
    the memory of the weights doubles. Weights that are still trained are read where they are. Raises ValueError for a
    family that it does not know.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        cfg = model.config
        if cfg.model_type not in FAMILIES:
            raise ValueError(f"models of the kind '{cfg.model_type}' are not known here, only {', '.join(FAMILIES)}")
        self.frozen = not any(weight.requires_grad for weight in model.parameters())
        self.n_ctx = cfg.max_position_embeddings
        if getattr(cfg, "sliding_window", None):
            self.n_ctx = min(self.n_ctx, cfg.sliding_window)  # up to there a sliding window is no window at all
        self.n_head = cfg.num_attention_heads
        self.n_kv_head = getattr(cfg, "num_key_value_heads", None) or self.n_head
        self.head_size = getattr(cfg, "head_dim", None) or cfg.hidden_size // self.n_head
        self.embed = model.get_input_embeddings()
        gpt2 = cfg.model_type == "gpt2"
        self.place = model.transformer.wpe if gpt2 else None
        layers = model.transformer.h if gpt2 else model.model.layers
        self._layers = [(self._gpt2 if gpt2 else self._llama)(i, layer, cfg) for i, layer in enumerate(layers)]
        self._norm = model.transformer.ln_f if gpt2 else self._rms(model.model.norm)
        self._head = self._map(model.get_output_embeddings())
        if not gpt2:
            with torch.inference_mode():
                positions = torch.arange(self.n_ctx, device=model.device)
                cos, sin = model.model.rotary_emb(self.embed.weight, positions[None])  # (1, n_ctx, head size)
            half = self.head_size // 2
            # turning by an angle: x cos + (x with its halves swapped) sin, where the first half's sin is negative
            self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)

    def cache(self) -> Cache:
        """Return an empty cache."""
        return Cache(len(self._layers), self.n_kv_head, self.head_size, self.embed.weight.detach())

    @torch.inference_mode()
    def read(self, ids: Tensor, lengths: Sequence[int], cache: Cache, rows: Sequence[tuple[int, int]]) -> Tensor:
        """Read texts from their start; return the logits (D, V) that follow each.

        ids: (D, N), text d being its first lengths[d] ids. rows: pairs (row of the cache, d): a text may be written
        into several rows.
        """
        cache.make_room(max(row for row, _ in rows) + 1, ids.shape[1], self.n_ctx)
        slots, texts = torch.tensor(rows, device=ids.device).T  # (R,), (R,)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # (D, heads, N, head size)
            cache.keys[layer][slots, :, : ids.shape[1]] = k[texts]
            cache.values[layer][slots, :, : ids.shape[1]] = v[texts]
            # what stands right of a text's end is seen by nobody before it: no mask but the causal one
            groups = self.n_head // self.n_kv_head
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

        x = self._through(ids, torch.arange(ids.shape[1], device=ids.device).expand_as(ids), attend)  # (D, N, C)
        last = torch.tensor(lengths, device=ids.device) - 1
        return self._head(self._norm(x[torch.arange(len(x), device=ids.device), last])).float()

    @torch.inference_mode()
    def step(self, ids: Tensor, lengths: Sequence[int], cache: Cache) -> Tensor:
        """Read one more id of each of the first B rows; return the logits (B, V) that follow.

        ids: (B,). lengths: how many ids of each row the cache knows already.
        """
        most, same = max(lengths), min(lengths) == max(lengths)
        cache.make_room(len(ids), most + 1, self.n_ctx)
        places = torch.tensor(lengths, device=ids.device)  # (B,)
        rows = torch.arange(len(ids), device=ids.device)
        seen = None if same else (torch.arange(most + 1, device=ids.device) <= places[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # (B, heads, 1, head size)
            keys, values = cache.keys[layer][: len(ids)], cache.values[layer][: len(ids)]
            if same:
                keys[:, :, most : most + 1], values[:, :, most : most + 1] = k, v
            else:
                keys[rows, :, places], values[rows, :, places] = k[:, :, 0], v[:, :, 0]
            # queries that share a key stand in the place of the sequence: with one new id there is no order among them
            shared = q.reshape(len(ids), self.n_kv_head, -1, self.head_size)
            keys, values = keys[:, :, : most + 1], values[:, :, : most + 1]
            out = F.scaled_dot_product_attention(shared, keys, values, attn_mask=seen, scale=scale)
            return out.reshape(q.shape)

        x = self._through(ids[:, None], places[:, None], attend)  # (B, 1, C)
        return self._head(self._norm(x[:, -1])).float()

    def _through(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Take ids (B, N) at positions (B, N) through all layers; return the residual stream (B, N, C)."""
        x = self.embed(ids)
        turn = None
        if self.place is not None:
            x = x + self.place(positions)
        else:
            turn = self._cos[positions][:, :, None], self._sin[positions][:, :, None]
        for layer in self._layers:
            x = layer(x, attend, turn)
        return x

    def _gpt2(self, number: int, layer: nn.Module, cfg) -> Layer:
        attn, mlp = layer.attn, layer.mlp
        qkv, out = self._map(attn.c_attn), self._map(attn.c_proj)
        up, act, down = self._map(mlp.c_fc), mlp.act, self._map(mlp.c_proj)
        scale = self.head_size**-0.5 if cfg.scale_attn_weights else 1.0
        scale /= number + 1 if cfg.scale_attn_by_inverse_layer_idx else 1

        def forward(x: Tensor, attend: Attend, turn: Turn) -> Tensor:
            B, N, C = x.shape
            q, k, v = qkv(layer.ln_1(x)).view(B, N, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)  # (B, heads, N, size)
            x = x + out(attend(number, q, k, v, scale).transpose(1, 2).reshape(B, N, C))
            return x + down(act(up(layer.ln_2(x))))

        return forward

    def _llama(self, number: int, layer: nn.Module, cfg) -> Layer:
        attn, mlp = layer.self_attn, layer.mlp
        qkv, out = self._map(attn.q_proj, attn.k_proj, attn.v_proj), self._map(attn.o_proj)
        before, after = self._rms(layer.input_layernorm), self._rms(layer.post_attention_layernorm)
        norms = (self._rms(attn.q_norm), self._rms(attn.k_norm)) if hasattr(attn, "q_norm") else None
        heads, shared = self.n_head, self.n_kv_head
        if hasattr(mlp, "gate_proj"):
            both, act, down = self._map(mlp.gate_proj, mlp.up_proj), mlp.act_fn, self._map(mlp.down_proj)

            def feed(x: Tensor) -> Tensor:
                gate, up = both(x).chunk(2, -1)
                return down(act(gate) * up)
        else:
            feed = mlp  # a mixture of experts: the library's own

        def forward(x: Tensor, attend: Attend, turn: Turn) -> Tensor:
            B, N, _ = x.shape
            qk, v = qkv(before(x)).view(B, N, heads + 2 * shared, -1).split([heads + shared, shared], 2)
            if norms:
                qk = torch.cat([norms[0](qk[:, :, :heads]), norms[1](qk[:, :, heads:])], 2)
            q, k = self._rotate(qk, turn).split([heads, shared], 2)  # (B, N, heads, head size), (B, N, shared, …)
            y = attend(number, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn.scaling)
            x = x + out(y.transpose(1, 2).reshape(B, N, -1))
            return x + feed(after(x))

        return forward

    def _rotate(self, x: Tensor, turn: Turn) -> Tensor:
        cos, sin = turn
        return torch.addcmul(x * cos, x.roll(self.head_size // 2, -1), sin)  # (B, N, heads, head size)

    def _rms(self, norm: nn.Module) -> Map:
        """Return the library's RMSNorm in fewer kernels: √(mean x² + ε) is √(|x|² + C ε) / √C."""
        if not self.frozen:
            return lambda x: F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
        size, full = norm.weight.numel(), torch.float32  # a sum of squares is no matter for bf16
        weight, least = norm.weight.to(full) * size**0.5, norm.weight.new_tensor(size * norm.variance_epsilon).sqrt()

        def forward(x: Tensor) -> Tensor:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=full).hypot_(least)
            return (x / length * weight).to(x.dtype)

        return forward

    def _map(self, *modules: nn.Module) -> Map:
        """Return one linear map that does what these modules do side by side."""
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
        turned = weight.T.contiguous()  # (in, out): the quicker way round for a row
        return (lambda x: x @ turned) if bias is None else (lambda x: x @ turned + bias)


_KEPT: weakref.WeakKeyDictionary[PreTrainedModel, Decoder] = weakref.WeakKeyDictionary()


def of(model: PreTrainedModel) -> Decoder:
    """Return the decoder of a model: for a model that is not trained any more always the same one."""
    decoder = _KEPT.get(model)
    if decoder is None or any(weight.requires_grad for weight in model.parameters()):
        decoder = Decoder(model)
        if decoder.frozen:
            _KEPT[model] = decoder
    return decoder
