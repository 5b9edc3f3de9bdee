"""The step of writing: one more token in each row of a cache, what `GPT.forward` computes in as few calls as possible.

In a small model each call of a kernel costs more time than its arithmetic. So a model's weights are copied once into
the order of their use: matrices that read the same numbers are one, a norm's weights are in the matrix that follows it,
and on a CPU matrices are in the layout that oneDNN reads fastest. On a GPU, a step is one CUDA graph. Knows no text and
no sampling.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.device import is_intel
from helpers.model.cache import Cache
from helpers.model.gpt import GPT, Block, Experts, RMSNorm, SwiGLU, rotary_table

# On a CPU, oneDNN's own layout of a matrix is read up to three times as fast as the plain one, but each call costs ten
# microseconds more. Below PACKED_FROM numbers that never pays; in 32 bits it does not for FEW rows either, in matrices
# of PLAIN_UP_TO numbers or fewer. Both bounds are higher on Intel's processors, for which MKL is written, the library
# of plain products (measured, see `generate_speed` in benchmarks/README.md)
PACKED_FROM = 2**16
PLAIN_UP_TO, FEW = (2**20, 32) if is_intel() else (2**19, 2)
_PACKED_ROWS = 8  # the rows that the layout is made for
Map = Callable[[Tensor], Tensor]


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
        """Return (B, out) for x (B, in)."""
        if (plain := self._plain_for(x)) is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return torch.mm(x, plain) if self.bias is None else torch.addmm(self.bias, x, plain)

    def plus(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual (B, out) + what this map makes of x (B, in)."""
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
    """A model's weights in the order of their use; `decoder_of` keeps one for each model."""

    @torch.no_grad()
    def __init__(self, model: GPT) -> None:
        self._model = weakref.ref(model)  # for reading; the model outlives its decoder
        self.config, self._embed = model.config, model.embed_tokens
        self._wide = torch.promote_types(self._embed.weight.dtype, torch.float32)  # for what bf16 is too coarse for
        # which experts a token needs is not known before: that is not the same work each time
        self._is_graphed = model.device.type == "cuda" and not model.config.n_experts
        self._embed_positions = model.embed_positions.weight if model.config.positions == "learned" else None
        positions = torch.arange(model.config.window, device=model.device)
        # a pair of numbers is one complex number, and turned by a product with another
        self._turns = torch.complex(*rotary_table(model.config, positions))[:, None]  # (T, 1, D/2)
        self._layers = [self._layer(block) for block in model.layers]
        self._head = self._normed(model.norm, model.lm_head)

    @torch.inference_mode()
    def read(self, ids: Tensor, lengths: Sequence[int], cache: Cache, rows: Sequence[tuple[int, int]]) -> Tensor:
        """Read texts from their start (prefill); return the logits (R, V) that follow each.

        ids (R, T): text i is the first lengths[i] ids of row i. rows: pairs (row of the cache, i); a text may fill
        several rows of the cache.
        """
        model, own, T = self._model(), Cache(self.config, self._embed.weight), ids.shape[1]
        assert model is not None
        x = model.hidden(ids, cache=own)  # (R, T, C)
        cache.make_room(max(row for row, _ in rows) + 1, T)
        slots, texts = torch.tensor(rows, device=ids.device).T
        for kept, (keys, values) in zip(cache.layers, own.layers, strict=True):
            kept[0][slots, :, :T] = self._in_pairs(keys)[texts, :, :T]
            kept[1][slots, :, :T] = values[texts, :, :T]
        for row, text in rows:
            cache.lengths[row] = lengths[text]
        cache.in_pairs = True
        last = x[torch.arange(len(ids), device=ids.device), torch.tensor(lengths, device=ids.device) - 1]  # (R, C)
        return model.lm_head(last).float()

    @torch.inference_mode()
    def advance(self, ids: Tensor, cache: Cache) -> Tensor:
        """Read one more id in each of the first B rows, ids (B,); return the logits (B, V) that follow."""
        if not cache.in_pairs and any(cache.lengths):
            raise ValueError("the model itself has written into this cache, and only it can go on with it")
        B, cache.in_pairs = len(ids), True
        cache.make_room(B, 1)
        lengths = cache.lengths[:B]
        cache.make_room(B, max(lengths) + 1)
        cache.lengths[:B] = [length + 1 for length in lengths]
        if self._is_graphed:
            rows = min(1 << (B - 1).bit_length(), cache.layers[0].shape[1])  # for 64 rows seven graphs are enough
            if rows not in cache.graphs:
                # over all positions, behind a mask: the same work, however long the rows are. Not of the cache itself,
                # which would hold the graph that holds it
                whole = partial(self._forward, layers=[layer[:, :rows] for layer in cache.layers])
                cache.graphs[rows] = GraphedStep(whole, rows, ids.device)
            return cache.graphs[rows](ids, lengths)
        end = max(lengths) + 1
        positions = end - 1 if min(lengths) == end - 1 else torch.tensor(lengths, device=ids.device)
        return self._forward(ids, positions, [layer[:, :B, :, :end] for layer in cache.layers])

    def _forward(self, ids: Tensor, positions: Tensor | int, layers: Sequence[Tensor]) -> Tensor:
        """Read an id (B,) per row into layers, (2, B, K, T, D) each; return the logits (B, V).

        positions: (B,), or one for all rows, which are full then.
        """
        seen = None
        if not isinstance(positions, int):
            places = torch.arange(layers[0].shape[3], device=ids.device)
            hidden = (places > positions[:, None])[:, None, None]  # (B, 1, 1, T)
            # added to the scores, not a truth value: that would be made into this in each layer
            seen = torch.zeros(hidden.shape, dtype=layers[0].dtype, device=ids.device).masked_fill_(hidden, -torch.inf)
        x = self._embed(ids)  # (B, C)
        if self._embed_positions is not None:
            x, turns = x + self._embed_positions[positions], None
        else:
            turns = self._turns[positions]  # (B or none, 1, D/2)
        for layer, kept in zip(self._layers, layers, strict=True):
            x = layer(x, kept, positions, turns, seen)
        return self._head(x).float()

    def _layer(self, block: Any) -> Callable[..., Tensor]:
        """Return the function of a block: x (B, C), its part of the cache, … -> x (B, C)."""
        attn, cfg = block.self_attn, self.config
        H, K, D = cfg.n_head, cfg.n_kv_head, cfg.head_size
        qkv = self._normed(block.input_layernorm, attn.q_proj, attn.k_proj, attn.v_proj, in_pairs=H + K)
        out, norms = (
            _linear(attn.o_proj),
            [self._head_norm(attn.q_norm), self._head_norm(attn.k_norm)] if cfg.qk_norm else [],
        )
        feed_forward = self._feed_forward(block)

        def forward(
            x: Tensor, kept: Tensor, positions: Tensor | int, turns: Tensor | None, seen: Tensor | None
        ) -> Tensor:
            heads = qkv(x).view(len(x), -1, D)  # (B, H + 2 K, D)
            if norms:
                heads[:, :H], heads[:, H : H + K] = norms[0](heads[:, :H]), norms[1](heads[:, H : H + K])
            if turns is not None:
                self._turn(heads[:, : H + K], turns)
            dtype, heads = heads.dtype, heads.to(kept.dtype)
            new = heads[:, H:].view(len(x), 2, K, D)
            if isinstance(positions, int):
                kept[:, :, :, positions] = new.transpose(0, 1)
            else:
                kept[:, torch.arange(len(x), device=x.device), :, positions] = new
            # queries that share a key take the place of the sequence: with one new id there is no order among them
            shared = heads[:, :H].view(len(x), K, -1, D)
            mixed = functional.scaled_dot_product_attention(shared, kept[0], kept[1], attn_mask=seen)
            return feed_forward(out.plus(x, mixed.reshape(len(x), -1).to(dtype)))

        return forward

    def _feed_forward(self, block: Block) -> Map:
        """Return x (B, C) -> x + MLP(norm(x))."""
        norm, mlp = block.post_attention_layernorm, block.mlp
        if isinstance(mlp, Experts):
            return lambda x: x + mlp(norm(x))
        down = _linear(mlp.down_proj)
        if not isinstance(mlp, SwiGLU):
            up = self._normed(norm, mlp.up_proj)
            return lambda x: down.plus(x, functional.gelu(up(x), approximate="tanh"))
        both = self._normed(norm, mlp.gate_proj, mlp.up_proj)

        def forward(x: Tensor) -> Tensor:
            gate, up = both(x).chunk(2, dim=-1)  # (B, F) each
            return down.plus(x, functional.silu(gate).mul_(up))

        return forward

    def _normed(self, norm: nn.Module, *parts: nn.Linear, in_pairs: int = 0) -> Map:
        """Return the map x -> what the parts make of norm(x), side by side, the first `in_pairs` heads of it in pairs.

        √(mean x² + ε) is √(|x|² + C ε) / √C; √C and an RMSNorm's own weights go into the matrix.
        """
        weight = torch.cat([part.weight for part in parts])
        bias = torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None
        for each in (weight, bias):
            if each is not None and in_pairs:
                turned = each[: in_pairs * self.config.head_size]
                turned.copy_(
                    self._in_pairs(turned.unflatten(0, (in_pairs, -1)).movedim(1, -1)).movedim(-1, 1).flatten(0, 1)
                )
        if not isinstance(norm, RMSNorm):
            linear = Linear(weight, bias)
            return lambda x: linear(norm(x))
        size, wide = norm.weight.numel(), self._wide
        linear = Linear((weight.to(wide) * norm.weight.to(wide) * size**0.5).to(weight.dtype), bias)
        least = torch.tensor(size * norm.eps, dtype=wide, device=weight.device).sqrt()

        def forward(x: Tensor) -> Tensor:  # (B, in) -> (B, out)
            length = torch.linalg.vector_norm(x, 2, -1, True, dtype=wide).hypot_(least)  # (B, 1)
            return linear((x / length).to(x.dtype))

        return forward

    def _head_norm(self, norm: Any) -> Map:
        weight = self._in_pairs(norm.weight)
        return lambda x: functional.rms_norm(x, weight.shape, weight, norm.eps)

    def _in_pairs(self, x: Tensor) -> Tensor:
        """Return x (…, D) with the two numbers of a pair, which are half a head apart, side by side.

        Where queries and keys change places alike, their products stay the same.
        """
        if self.config.positions == "learned":
            return x
        return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)

    def _turn(self, qk: Tensor, turns: Tensor) -> None:
        """Turn the pairs of qk (B, heads, D) by the angles of their positions, in place."""
        wide = qk.to(self._wide)  # qk itself, unless that is bf16 or fp16: there are no complex numbers of these
        torch.view_as_complex(wide.view(*qk.shape[:2], -1, 2)).mul_(turns)
        if wide is not qk:
            qk.copy_(wide)


def _linear(part: nn.Linear) -> Linear:
    return Linear(part.weight, part.bias)


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


_KEPT: weakref.WeakKeyDictionary[GPT, tuple[list[tuple[int, int]], Decoder]] = weakref.WeakKeyDictionary()


def decoder_of(model: GPT) -> Decoder:
    """Return the step of a model: the same one until its weights change, unless the model is still trained."""
    weights = list(model.parameters())
    if any(weight.requires_grad for weight in weights):
        return Decoder(model)
    # where each weight is, and how often it was changed in place
    state = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    if (kept := _KEPT.get(model)) is None or kept[0] != state:
        kept = _KEPT[model] = state, Decoder(model)
    return kept[1]
