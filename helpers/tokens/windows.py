"""Memory-mapped token shards become windows, and windows batches: packing, padding, labels, the order of an epoch.

Knows nothing of texts or models.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.manifest import RoomError
from helpers.tokens.shards import dtype_for, encode_joined
from helpers.wording import run_again

if TYPE_CHECKING:
    import torch

IGNORE = -100  # the label of a position without an answer; torch's cross-entropy skips it
_BLOCK = 32  # windows of about equal length that stay together in an epoch; notebook 04's batch has two such blocks
_SORTED = 128 * _BLOCK  # windows sorted by length at a time: few enough to leave the epoch's order random


class Stream:
    """Shards, 1-D arrays of ids, as one read-only sequence; `offsets` says where documents start in each of them."""

    def __init__(self, shards: Sequence[np.ndarray], offsets: Sequence[np.ndarray]):
        self.shards = shards
        self.starts = np.cumsum([0] + [len(shard) for shard in shards])  # where each shard begins in the stream
        self.documents = np.concatenate([start + at for start, at in zip(self.starts, offsets, strict=False)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return ids[start:stop] as int64, also across the edge of two shards."""
        stop = min(stop, len(self))
        parts = []
        shard = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self.starts[shard + 1]))
            parts.append(self.shards[shard][start - self.starts[shard] : end - self.starts[shard]])
            start, shard = end, shard + 1
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


class TokenStream(Stream):
    """All shards of one split of a run, memory-mapped: never loaded whole. RoomError if there are none."""

    def __init__(self, run: str, split: str, dtype: str):
        files = paths.shards(run, "tokenize", split, ".bin")
        if not files:
            raise RoomError(f"run '{run}' has no {split} shards: {run_again('tokenize', run)}")
        offsets = [np.load(file.with_suffix(".offsets.npy")) for file in files]
        super().__init__([np.memmap(file, dtype, "r") for file in files], offsets)


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Stream:
    """Encode a few documents into memory, with the ids of their shard: to try a tokenizer."""
    ids, lengths = encode_joined(tokenizer, texts, dtype_for(len(tokenizer)))
    return Stream([ids], [np.cumsum([0, *lengths[:-1]])])


def choose_n_ctx(n_ctx: int, stream: Stream) -> int:
    """Return `n_ctx`; for 0 the smallest power of two, from 64 on, that holds 19 of 20 documents whole.

    At most 128 for a stream of up to 3 million tokens, 256 up to 20 million, else 1,024: only a long run learns from
    what stands far back.
    """
    if n_ctx:
        return n_ctx
    lengths = np.diff(stream.documents, append=len(stream))
    most = next((size for tokens, size in ((3_000_000, 128), (20_000_000, 256)) if len(stream) <= tokens), 1024)
    return next((size for size in (64, 128, 256, 512) if size < most and np.mean(lengths <= size + 1) >= 0.95), most)


def choose_packing(packing: str, stream: Stream, n_ctx: int) -> str:
    """Return "documents" or "stream"; "auto" is documents if three of four of them fit into a window.

    documents, for short texts: a window never holds two of them, and the model sees each from its start. stream, for
    long texts: all in one row, cut every `stride` tokens, no padding. Raises ValueError for any other word.
    """
    if packing == "auto":
        lengths = np.diff(stream.documents, append=len(stream))
        return "documents" if np.mean(lengths <= n_ctx + 1) > 0.75 else "stream"
    if packing not in ("documents", "stream"):
        raise ValueError(f"packing is '{packing}': choose documents, stream or auto")
    return packing


class Examples:
    """What the training loop learns from: windows of ids with labels."""

    n_ctx: int
    lengths: np.ndarray  # (windows,) of ids
    labels: np.ndarray  # (windows,) how many of them have a label
    packed: bool  # whether a window holds several texts, none of which sees another; it then comes with positions

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        """Return the inputs, the labels and, if packed, the positions of one window, each (n_ctx,) int64."""
        raise NotImplementedError

    def count_labels(self, indices: np.ndarray) -> int:
        """Return how many tokens of these windows have a label."""
        return int(self.labels[indices].sum())

    def batch(self, indices: Sequence[int] | np.ndarray) -> "tuple[torch.Tensor, ...]":
        """Return the same of several windows, each (B, T); T is the longest of them, rounded up to a multiple of 8."""
        import torch  # here, because each worker that writes shards would wait three seconds for it

        rows = zip(*(self[int(i)] for i in indices), strict=True)
        width = min(self.n_ctx, -8 * (-int(self.lengths[np.asarray(indices)].max()) // 8))
        return tuple(torch.from_numpy(np.stack(each)[:, :width]) for each in rows)


class Windows(Examples):
    """Windows of at most `n_ctx` ids with the next id of each as its label, over each document or the whole stream.

    A text of L tokens holds L - 1 answers. Its windows start `stride` ids apart; every answer is in at least one of
    them, and with stride = n_ctx in exactly one. A short window is padded with `pad_id`, its labels with IGNORE. With
    `once`, answers of an earlier window are IGNORE as well: each is scored exactly once, after at least n_ctx - stride
    tokens of its text. The text 1 2 3 4 5 6 with n_ctx = stride = 4, pad_id = 0:

        window 0    inputs 1 2 3 4    labels 2 3    4    5
        window 1    inputs 5 0 0 0    labels 6 -100 -100 -100

    Raises ValueError for a stride outside 1…n_ctx and for a stream of fewer than two tokens.
    """

    packed = False

    def __init__(
        self, stream: Stream, n_ctx: int, stride: int, pad_id: int, packing: str = "stream", once: bool = False
    ):
        if not 1 <= stride <= n_ctx:
            raise ValueError(f"stride is {stride}, n_ctx is {n_ctx}: a stride outside 1…n_ctx would leave tokens out")
        if len(stream) < 2:
            raise ValueError("the stream holds fewer than two tokens: there is nothing to predict")
        self.stream, self.n_ctx, self.pad_id = stream, n_ctx, pad_id
        # 1. the texts: each document, or the whole stream as one
        begins = stream.documents if choose_packing(packing, stream, n_ctx) == "documents" else np.zeros(1, np.int64)
        sizes = np.diff(begins, append=len(stream))  # (texts,) in tokens
        per_text = count_windows(sizes, n_ctx, stride)
        # 2. of each window: its number within its text
        first = np.repeat(np.cumsum(per_text) - per_text, per_text)  # (windows,): the first window of its text
        number = np.arange(len(first)) - first
        # 3. of each window: its start, how many answers it holds, how many of these are not scored again
        self.starts = np.repeat(begins, per_text) + number * stride
        self.lengths = np.minimum(n_ctx, np.repeat(begins + sizes, per_text) - 1 - self.starts)
        self.skip = np.where(once & (number > 0), n_ctx - stride, 0)
        self.labels = self.lengths - self.skip
        self.answers = int((sizes - 1).sum())

    def first(self, count: int) -> "Windows":
        """Return the first `count` of these windows: enough to compare models quickly."""
        return self._some(np.arange(min(count, len(self))))

    def spread(self, answers: int) -> "Windows":
        """Return windows from all over the text with about `answers` answers to score, or all if there are fewer."""
        scored = int(self.labels.sum())
        count = max(1, round(len(self) * answers / scored)) if scored > answers else len(self)
        return self._some(np.arange(count) * len(self) // count)

    def _some(self, indices: np.ndarray) -> "Windows":
        part = copy.copy(self)
        for name in ("starts", "lengths", "skip", "labels"):
            setattr(part, name, getattr(self, name)[indices])
        part.answers = int(part.labels.sum())
        return part

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        start, length = int(self.starts[index]), int(self.lengths[index])
        ids = self.stream.read(start, start + length + 1)
        inputs = np.full(self.n_ctx, self.pad_id, np.int64)
        labels = np.full(self.n_ctx, IGNORE, np.int64)
        inputs[:length] = ids[:-1]
        labels[:length] = ids[1:]
        labels[: self.skip[index]] = IGNORE
        return inputs, labels


def count_windows(tokens: np.ndarray | int, n_ctx: int, stride: int) -> np.ndarray:
    """Return how many windows texts of `tokens` ids need so that each of their tokens - 1 answers is in one."""
    return 1 + np.maximum(0, -(-(np.asarray(tokens) - 1 - n_ctx) // stride))


def epoch_order(lengths: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return the order, (windows,), in which an epoch visits windows of these lengths: a function of seed and epoch.

    The order is random, but 32 windows of about equal length stay together, so that batches hold little padding. (Texts
    of one length are often of one kind: an update is steadier if it holds several such blocks.) What comes next
    follows from (seed, epoch, position) alone, for any batch size and any number of processes: a resumed run repeats
    nothing.
    """
    random = np.random.default_rng([seed, epoch])
    # the last windows, fewer than a block, stay unsorted and come last
    shuffled = random.permutation(len(lengths))
    whole, rest = np.split(shuffled, [len(shuffled) // _BLOCK * _BLOCK])
    # sort runs of the shuffled windows by length, and cut them into blocks
    blocks: list[np.ndarray] = []
    for chunk in np.split(whole, range(_SORTED, len(whole), _SORTED)):
        blocks += np.split(chunk[lengths[chunk].argsort(kind="stable")], range(_BLOCK, len(chunk), _BLOCK))
    return np.concatenate([*(blocks[i] for i in random.permutation(len(blocks))), rest])
