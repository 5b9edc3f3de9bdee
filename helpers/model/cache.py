"""The KV cache: keys and values of texts that are being written, so that each position is computed once.

Rows join, leave and have lengths of their own; room is made by doubling. Knows no weights and no text.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.model.config import GPTConfig

FIRST_POSITIONS = 64  # of a new cache; doubled as the texts grow


class Cache:
    """Keys and values of a batch: for each block (2, rows, K heads, positions, D); `lengths[i]` are there of row i.

    On a CPU a model in 16 bits has its keys and values in 32, too: there attention to one new token takes a quarter of
    the time in 32 bits (measured).
    """

    def __init__(self, config: GPTConfig, like: Tensor) -> None:
        """`like`: a tensor of the device and of the type of the weights."""
        dtype = torch.promote_types(like.dtype, torch.float32) if like.device.type == "cpu" else like.dtype
        shape = 2, 0, config.n_kv_head, 0, config.head_size
        self.layers = [like.new_zeros(shape, dtype=dtype, requires_grad=False) for _ in range(config.n_layer)]
        self.lengths: list[int] = []
        self.most = config.window
        self.in_pairs = False  # a `Decoder` keeps keys in an order of its own: then the model itself cannot go on
        self.graphs: dict[int, Any] = {}  # of `decoder`, by their rows; they know where the layers are in memory

    @torch.inference_mode(False)  # tensors made in it could be written to in it only
    @torch.no_grad()
    def make_room(self, rows: int, positions: int) -> None:
        """Grow to at least this many rows and positions; raises ValueError for more than the model sees at once."""
        if positions > self.most:
            raise ValueError(f"the model sees {self.most} tokens at once, and this text has {positions}")
        self.lengths += [0] * (rows - len(self.lengths))
        _, old_rows, heads, old_positions, size = self.layers[0].shape
        if rows <= old_rows and positions <= old_positions:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
        if positions > old_positions:
            positions = min(self.most, max(positions, 2 * old_positions, FIRST_POSITIONS))
        positions = max(positions, old_positions)
        self.graphs.clear()
        for number, old in enumerate(self.layers):
            # zeros: what lies beyond the end of a row has weight 0, and 0 times uninitialized memory may be NaN
            self.layers[number] = old.new_zeros(2, rows, heads, positions, size)
            self.layers[number][:, :old_rows, :, :old_positions] = old

    @torch.no_grad()
    def move(self, source: int, target: int) -> None:
        """Copy one row over another row."""
        length = self.lengths[target] = self.lengths[source]
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def place(self, rows: int, count: int) -> "Place":
        """Return where the next `count` positions of the first rows go, which are equally long; they count as there."""
        self.make_room(rows, count)
        start = self.lengths[0]
        if self.in_pairs or self.lengths[:rows] != [start] * rows:
            raise ValueError("this cache has rows of several lengths, or of a Decoder, and only that can go on with it")
        self.make_room(rows, start + count)
        self.lengths[:rows] = [start + count] * rows
        return Place(self, rows, start, count)


@dataclass(frozen=True)
class Place:
    """Where the new positions of one pass go: `count` of them from `start` on, in the first `rows` rows."""

    cache: Cache
    rows: int
    start: int
    count: int

    @torch.no_grad()
    def write(self, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a block's new keys and values (B, K, T, D); return all that are there, (B, K, positions, D) each."""
        end = self.start + self.count
        kept = self.cache.layers[number][:, : self.rows, :, :end]
        kept[0, :, :, self.start :], kept[1, :, :, self.start :] = keys, values
        return (kept[0], kept[1]) if self.start else (keys, values)
