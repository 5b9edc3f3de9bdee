"""Fast incremental inference: our own forward pass over a model's weights, with a preallocated KV cache.

The library's forward pass can do everything: training, masks of any kind, hooks. Writing text needs little of that, and
in a small model each call of a kernel costs more time than its arithmetic. Here is the same arithmetic (a test compares
every architecture) in as few calls as possible; on a GPU, a step is one CUDA graph. Knows GPT-2 and the LLaMA family,
and reads their layers by the names that the library gives their parts; knows no text and no sampling.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from helpers.device import is_intel
from helpers.vocab.tokenizer import PRETRAINED_KINDS

FIRST_POSITIONS = 64  # of a new cache; doubled as the texts grow
# On a CPU, oneDNN's own layout of a matrix is read up to three times as fast as the plain one, but each call costs ten
# microseconds more. Below PACKED_FROM numbers that never pays; in 32 bits it does not for FEW rows either, in matrices
# of PLAIN_UP_TO numbers or fewer. Both bounds are higher on Intel's processors, for which MKL is written, the library
# of plain products (measured, see `generate_speed` in benchmarks/README.md)
PACKED_FROM = 2**16
PLAIN_UP_TO, FEW = (2**20, 32) if is_intel() else (2**19, 2)
_PACKED_ROWS = 8  # the rows that the layout is made for
Map = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor, float], Tensor]  # (layer, qkv, scale) -> (M, heads * head size)
Layer = Callable[[Tensor, Attend, Tensor | None], Tensor]  # (x, attend, turns) -> x


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
    """The keys and values of a batch: per layer (2, rows, heads, positions, head size); row i is row i of the batch.

    Makes room by doubling, so that a step almost never has to copy what is there. On a CPU also a model in 16 bits has
    its keys and values in 32: there attention to one new token takes a quarter of the time in 32 bits (measured).
    """

    def __init__(self, n_layer: int, n_head: int, head_size: int, like: Tensor) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32) if like.device.type == "cpu" else like.dtype
        self.layers = [like.new_zeros(2, 0, n_head, 0, head_size, dtype=dtype) for _ in range(n_layer)]
        self.graphs: dict[int, GraphedStep] = {}  # by their rows; they know where the layers are in memory

    @torch.inference_mode()
    def make_room(self, rows: int, positions: int, most: int) -> None:
        """Grow to at least this many rows and positions, but never to more than `most` positions."""
        _, old_rows, n_head, old_positions, head_size = self.layers[0].shape
        if rows <= old_rows and positions <= old_positions:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
        if positions > old_positions:
            positions = min(most, max(positions, 2 * old_positions, FIRST_POSITIONS))
        positions = max(positions, old_positions)
        self.graphs.clear()
        for layer, old in enumerate(self.layers):
            # zeros: what lies beyond the end of a row has weight 0, and 0 times uninitialized memory may be NaN
            self.layers[layer] = old.new_zeros(2, rows, n_head, positions, head_size)
            self.layers[layer][:, :old_rows, :, :old_positions] = old

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another row."""
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]


class GraphedStep:
    """A step of at most `rows` rows as a CUDA graph, recorded when it is first called.

    A GPU waits for Python, which starts hundreds of kernels one after another, most of the time of a step. A graph
    starts all of them at once. It does the same work at the same addresses each time, so ids and positions have fixed
    places. It writes into the cache it was made for, also beyond the rows that are given: those must be free.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], rows: int, device: torch.device) -> None:
        self._step = step  # ids (R,), positions (R,) -> logits (R, V)
        self._ids = torch.zeros(rows, dtype=torch.long, device=device)
        self._positions = torch.zeros(rows, dtype=torch.long, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor

    def __call__(self, ids: Tensor, positions: Sequence[int]) -> Tensor:
        """Return the logits (B, V) after one more id (B,) at these positions; call it in inference mode."""
        self._ids[: len(ids)] = ids
        self._positions[: len(ids)] = torch.tensor(positions)
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._logits[: len(ids)].clone()  # the next replay overwrites them

    def _record(self) -> torch.cuda.CUDAGraph:
        # first without recording, on a stream of its own: libraries prepare themselves at their first call. It writes
        # into the cache what the replay will write
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(self._ids, self._positions)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads go on
            self._logits = self._step(self._ids, self._positions)
        return graph


def rounded_up(rows: int, most: int) -> int:
    """Return the next power of two, but at most `most`: for 64 rows seven graphs are enough."""
    return min(1 << (rows - 1).bit_length(), most)


class Linear:
    """A product with a matrix, and a bias if there is one, in the layout that is fastest for the number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = bias
        self._plain = self._packed = None
        if _can_be_packed(weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_ROWS)
        if self._packed is None or (weight.dtype == torch.float32 and weight.numel() <= PLAIN_UP_TO):
            self._plain = weight.T.contiguous()  # (in, out): the faster order for a few rows

    def __call__(self, x: Tensor) -> Tensor:
        """Return (M, out) for x (M, in)."""
        if (plain := self._plain_for(x)) is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return torch.mm(x, plain) if self.bias is None else torch.addmm(self.bias, x, plain)

    def plus(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual (M, out) + what this map makes of x (M, in)."""
        if (plain := self._plain_for(x)) is None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self.bias, "add")
        out = torch.addmm(residual, x, plain)
        return out if self.bias is None else out.add_(self.bias)

    def _plain_for(self, x: Tensor) -> Tensor | None:
        return self._plain if self._packed is None or len(x) <= FEW else None


def _can_be_packed(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or weight.numel() < PACKED_FROM or not torch.backends.mkldnn.is_available():
        return False
    bf16 = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bf16 or weight.dtype == torch.float32


class Decoder:
    """A model's weights, copied into the order of their use; `of(model)` keeps one for each model.

    Several threads may use it, each with a cache of its own. Inside, all tokens of a batch stand in one column: x is
    (M, C), where M is the number of rows times that of ids per row. Raises ValueError for an unknown family.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel) -> None:
        # 1. sizes
        cfg = model.config
        if cfg.model_type not in PRETRAINED_KINDS:
            kinds = ", ".join(PRETRAINED_KINDS)
            raise ValueError(f"models of the kind '{cfg.model_type}' are not known here, only {kinds}")
        if any(hasattr(module, "lora_A") for module in model.modules()):
            raise ValueError("this model has LoRA adapters: load its final_model, in which they are merged")
        self.n_ctx = context_length(cfg)
        self.n_head = cfg.num_attention_heads
        self.n_kv_head = getattr(cfg, "num_key_value_heads", None) or self.n_head
        self.head_size = getattr(cfg, "head_dim", None) or cfg.hidden_size // self.n_head
        body: Any = model.base_model
        head: Any = model.get_output_embeddings()
        self.embedding = cast(nn.Embedding, model.get_input_embeddings())
        # which experts a token needs is not known before: that is not the same work each time
        self._is_graphed = model.device.type == "cuda" and cfg.model_type != "qwen3_moe"
        self._wide = torch.promote_types(self.embedding.weight.dtype, torch.float32)  # for what bf16 is too coarse for
        # 2. layers, as functions
        self.position_embedding: nn.Embedding | None = None
        if cfg.model_type == "gpt2":
            self.position_embedding, norm, linear = body.wpe, body.ln_f, _linear(head)
            self._layers = [self._gpt2_layer(i, layer, cfg) for i, layer in enumerate(body.h)]
            self._head: Map = lambda x: linear(norm(x))
        else:
            self._layers = [self._llama_layer(i, layer) for i, layer in enumerate(body.layers)]
            self._head = self._normed(body.norm, _weight(head), head.bias)
            # 3. rotary positions: a pair of numbers is one complex number, and turned by a product with another
            positions = torch.arange(self.n_ctx, device=model.device)
            cos, sin = body.rotary_emb(torch.zeros(1, device=model.device), positions[None])  # (1, n_ctx, head size)
            half = self.head_size // 2
            self._turns = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None]  # (n_ctx, 1, half)

    def cache(self) -> KVCache:
        """Return an empty cache."""
        return KVCache(len(self._layers), self.n_kv_head, self.head_size, self.embedding.weight.detach())

    @torch.inference_mode()
    def read(self, ids: Tensor, lengths: Sequence[int], cache: KVCache, rows: Sequence[tuple[int, int]]) -> Tensor:
        """Read texts from their start (prefill); return the logits (D, V) that follow each.

        ids (D, N): text d is the first lengths[d] ids of row d. rows: pairs (row of the cache, d); a text may fill
        several rows of the cache.
        """
        D, N = ids.shape
        cache.make_room(max(row for row, _ in rows) + 1, N, self.n_ctx)
        slots, texts = torch.tensor(rows, device=ids.device).T  # (R,), (R,)

        def attend(layer: int, qkv: Tensor, scale: float) -> Tensor:
            each = qkv.view(D, N, -1, self.head_size).transpose(1, 2)  # (D, heads + 2 kv heads, N, head size)
            q, k, v = each.split([self.n_head, self.n_kv_head, self.n_kv_head], 1)
            kept = cache.layers[layer]
            kept[0][slots, :, :N], kept[1][slots, :, :N] = k[texts].to(kept.dtype), v[texts].to(kept.dtype)
            # what is right of a text's end is not seen from left of it: the causal mask is enough
            groups = self.n_head // self.n_kv_head
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            return out.transpose(1, 2).reshape(D * N, -1)

        positions = torch.arange(N, device=ids.device).repeat(D)  # (D * N,)
        x = self._forward_layers(ids.flatten(), positions, attend)  # (D * N, C)
        last = torch.arange(0, D * N, N, device=ids.device) + torch.tensor(lengths, device=ids.device) - 1
        return self._head(x[last]).float()

    @torch.inference_mode()
    def step(self, ids: Tensor, lengths: Sequence[int], cache: KVCache) -> Tensor:
        """Read one more id in each of the first B rows; return the logits (B, V) that follow.

        ids: (B,). lengths: how many ids of each row are in the cache already.
        """
        B, most = len(ids), max(lengths)
        cache.make_room(B, most + 1, self.n_ctx)
        if self._is_graphed:
            rows = rounded_up(B, cache.layers[0].shape[1])
            if rows not in cache.graphs:
                # over all positions, behind a mask: the same work, however long the rows are. Not of the cache itself,
                # which would hold the graph that holds it
                whole = partial(self._step, layers=[layer[:, :rows] for layer in cache.layers])
                cache.graphs[rows] = GraphedStep(whole, rows, ids.device)
            return cache.graphs[rows](ids, lengths)
        positions = most if min(lengths) == most else torch.tensor(lengths, device=ids.device)
        return self._step(ids, positions, [layer[:, :B, :, : most + 1] for layer in cache.layers])

    def _step(self, ids: Tensor, positions: Tensor | int, layers: Sequence[Tensor]) -> Tensor:
        """Read an id (B,) per row into layers, (2, B, kv heads, T, head size) each; return the logits (B, V).

        positions: (B,), or one for all rows, which are full then.
        """
        B, rows, seen = len(ids), None, None
        if not isinstance(positions, int):
            rows, places = torch.arange(B, device=ids.device), torch.arange(layers[0].shape[3], device=ids.device)
            hidden = (places > positions[:, None])[:, None, None]  # (B, 1, 1, T)
            # added to the scores, not a truth value: that would be made into this in each layer
            seen = torch.zeros(hidden.shape, dtype=layers[0].dtype, device=ids.device).masked_fill_(hidden, -torch.inf)

        def attend(layer: int, qkv: Tensor, scale: float) -> Tensor:  # (B, heads + 2 kv heads, head size)
            kept = layers[layer]
            dtype, qkv = qkv.dtype, qkv.to(kept.dtype)
            new = qkv[:, self.n_head :].view(B, 2, self.n_kv_head, self.head_size)
            if isinstance(positions, int):
                kept[:, :, :, positions] = new.transpose(0, 1)
            else:
                kept[:, rows, :, positions] = new
            # queries that share a key take the place of the sequence: with one new id there is no order among them
            shared = qkv[:, : self.n_head].view(B, self.n_kv_head, -1, self.head_size)
            out = F.scaled_dot_product_attention(shared, kept[0], kept[1], attn_mask=seen, scale=scale)
            return out.reshape(B, -1).to(dtype)

        return self._head(self._forward_layers(ids, positions, attend)).float()

    def _forward_layers(self, ids: Tensor, positions: Tensor | int, attend: Attend) -> Tensor:
        """Take ids (M,) through all layers; return the residual stream (M, C). positions: (M,), or one for all."""
        x = self.embedding(ids)
        turns = None
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[positions]
        else:
            turns = self._turns[positions]  # (M, 1, head size / 2)
        for layer in self._layers:
            x = layer(x, attend, turns)
        return x

    def _gpt2_layer(self, number: int, layer: Any, cfg: PreTrainedConfig) -> Layer:
        attn, mlp = layer.attn, layer.mlp
        qkv, out = _linear(attn.c_attn), _linear(attn.c_proj)
        up, act, down = _linear(mlp.c_fc), mlp.act, _linear(mlp.c_proj)
        scale = self.head_size**-0.5 if cfg.scale_attn_weights else 1.0
        scale /= number + 1 if cfg.scale_attn_by_inverse_layer_idx else 1

        def forward(x: Tensor, attend: Attend, turns: Tensor | None) -> Tensor:
            all_heads = qkv(layer.ln_1(x)).view(len(x), -1, self.head_size)  # (M, 3 heads, head size)
            x = out.plus(x, attend(number, all_heads, scale))
            return down.plus(x, act(up(layer.ln_2(x))))

        return forward

    def _llama_layer(self, number: int, layer: Any) -> Layer:
        attn, n_head, rotated = layer.self_attn, self.n_head, self.n_head + self.n_kv_head
        weight, bias = _joined(attn.q_proj, attn.k_proj, attn.v_proj)
        for part in (weight, bias):
            if part is not None:
                part[: rotated * self.head_size] = self._in_pairs(part[: rotated * self.head_size])
        qkv, out = self._normed(layer.input_layernorm, weight, bias), _linear(attn.o_proj)
        norms = [self._head_norm(norm) for name in ("q_norm", "k_norm") if (norm := getattr(attn, name, None))]  # Qwen3
        feed_forward = self._feed_forward(layer)

        def forward(x: Tensor, attend: Attend, turns: Tensor | None) -> Tensor:
            assert turns is not None  # only GPT-2 has none
            all_heads = qkv(x).view(len(x), -1, self.head_size)  # (M, heads + 2 kv heads, head size)
            if norms:
                all_heads[:, :n_head] = norms[0](all_heads[:, :n_head])
                all_heads[:, n_head:rotated] = norms[1](all_heads[:, n_head:rotated])
            self._turn(all_heads[:, :rotated], turns)
            return feed_forward(out.plus(x, attend(number, all_heads, attn.scaling)))

        return forward

    def _feed_forward(self, layer: Any) -> Map:
        """Return x (M, C) -> x + MLP(norm(x)): SwiGLU, or a mixture of experts as the library computes it."""
        norm, mlp = layer.post_attention_layernorm, layer.mlp
        if not hasattr(mlp, "gate_proj"):
            return lambda x: x + mlp(norm(x)[None])[0]
        both = self._normed(norm, *_joined(mlp.gate_proj, mlp.up_proj))
        act, down = mlp.act_fn, _linear(mlp.down_proj)

        def forward(x: Tensor) -> Tensor:
            gate, up = both(x).chunk(2, dim=-1)  # (M, n_inner) each
            return down.plus(x, act(gate).mul_(up))

        return forward

    def _normed(self, norm: Any, weight: Tensor, bias: Tensor | None) -> Map:
        """Return the map x -> weight · RMSNorm(x) + bias.

        √(mean x² + ε) is √(|x|² + C ε) / √C; √C and the norm's own weights go into the matrix.
        """
        size = norm.weight.numel()
        linear = Linear((weight.to(self._wide) * norm.weight.to(self._wide) * size**0.5).to(weight.dtype), bias)
        least = torch.tensor(size * norm.variance_epsilon, dtype=self._wide, device=weight.device).sqrt()

        def forward(x: Tensor) -> Tensor:  # (M, in) -> (M, out)
            length = torch.linalg.vector_norm(x, 2, -1, True, dtype=self._wide).hypot_(least)  # (M, 1)
            return linear((x / length).to(x.dtype))

        return forward

    def _head_norm(self, norm: Any) -> Map:
        weight = self._in_pairs(norm.weight)
        return lambda x: F.rms_norm(x, weight.shape, weight, norm.variance_epsilon)

    def _in_pairs(self, weight: Tensor) -> Tensor:
        """Return the rows of q or k, (heads * head size, …), with the two numbers of a pair side by side.

        The library's pairs are half a head apart. Where q and k change places alike, their products stay the same.
        """
        return weight.unflatten(0, (-1, 2, self.head_size // 2)).transpose(1, 2).flatten(0, 2)

    def _turn(self, qk: Tensor, turns: Tensor) -> None:
        """Turn the pairs of qk (M, heads, head size) by the angles of their positions, in place."""
        wide = qk.to(self._wide)  # qk itself, unless that is bf16 or fp16: there are no complex numbers of these
        torch.view_as_complex(wide.view(*qk.shape[:2], -1, 2)).mul_(turns)
        if wide is not qk:
            qk.copy_(wide)


def _weight(module: nn.Linear | Conv1D) -> Tensor:
    return module.weight.T if isinstance(module, Conv1D) else module.weight  # (out, in)


def _joined(*modules: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of several maps of the same input as one."""
    biases = tuple(module.bias for module in modules if module.bias is not None)
    return torch.cat(tuple(module.weight for module in modules)), torch.cat(biases) if biases else None


def _linear(module: nn.Linear | Conv1D) -> Linear:
    return Linear(_weight(module), module.bias)


_KEPT: weakref.WeakKeyDictionary[PreTrainedModel, tuple[list[tuple[int, int]], Decoder]] = weakref.WeakKeyDictionary()


def of(model: PreTrainedModel) -> Decoder:
    """Return the decoder of a model: the same one until its weights change, unless the model is still trained."""
    weights = list(model.parameters())
    if any(weight.requires_grad for weight in weights):
        return Decoder(model)
    # where each weight is, and how often it was changed in place
    state = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    if (kept := _KEPT.get(model)) is None or kept[0] != state:
        kept = _KEPT[model] = state, Decoder(model)
    return kept[1]
