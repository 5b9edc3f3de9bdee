"""Token shards become windows, and windows become batches: packing, padding, labels, the order of an epoch."""

import copy
from typing import TYPE_CHECKING

import numpy as np

from helpers import paths
from helpers.manifest import RoomError
from helpers.tokens.shards import _documents, dtype_for
from helpers.wording import run_again

if TYPE_CHECKING:
    import torch
IGNORE = -100  # the label of a position that has no answer; torch's cross-entropy skips it


class Stream:
    """Several arrays of ids, one after the other, as one read-only sequence; `offsets` says where documents start."""

    def __init__(self, shards: list[np.ndarray], offsets: list[np.ndarray]):
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
    """All shards of one split of a run, mapped from disk and never loaded."""

    def __init__(self, run: str, split: str, dtype: str):
        files = paths.shards(run, "tokenize", split, ".bin")
        if not files:
            raise RoomError(f"run '{run}' has no {split} shards: {run_again('tokenize', run)}")
        within = [np.load(file.with_suffix(".offsets.npy")) for file in files]
        super().__init__([np.memmap(file, dtype, "r") for file in files], within)


def encode_texts(tok, texts: list[str]) -> Stream:
    """Encode a few documents, as a shard holds them, into memory: to try a tokenizer out."""
    rows = _documents(tok, texts, dtype_for(len(tok)))
    lengths = np.array([len(row) for row in rows])
    return Stream([np.concatenate(rows)], [np.cumsum(lengths) - lengths])


def choose_packing(packing: str, stream: TokenStream, n_ctx: int) -> str:
    """Return "documents" or "stream"; "auto" is documents where most of them fit into a window whole.

    documents: a window never holds two of them. For short texts: each is seen from its start, and nothing distracts.
    stream: all texts in one row, cut every `stride` tokens. For long texts: no window is padded.
    """
    if packing == "auto":
        lengths = np.diff(stream.documents, append=len(stream))
        return "documents" if np.mean(lengths <= n_ctx + 1) > 0.75 else "stream"
    if packing not in ("documents", "stream"):
        raise ValueError(f"packing is '{packing}': choose documents, stream or auto")
    return packing


class Windows:
    """Windows of at most `n_ctx` ids with the next id of each as its label, over each document or the whole stream.

    A text of L tokens holds L - 1 answers. Its windows start `stride` ids apart; every answer is in one, at
    stride = n_ctx in exactly one. A short window is filled with `pad_id` and its labels with IGNORE, so nothing
    is ragged and no token is lost. With `once` the answers that an earlier window holds are IGNOREd as well:
    then each token is scored exactly once, with at least n_ctx - stride tokens of its text before it.
    """

    def __init__(
        self, stream: TokenStream, n_ctx: int, stride: int, pad_id: int, packing: str = "stream", once: bool = False
    ):
        if not 1 <= stride <= n_ctx:
            raise ValueError(f"stride is {stride}, n_ctx is {n_ctx}: a stride outside 1…n_ctx would leave tokens out")
        if len(stream) < 2:
            raise ValueError("the stream holds fewer than two tokens: there is nothing to predict")
        self.stream, self.n_ctx, self.pad_id = stream, n_ctx, pad_id
        begins = stream.documents if choose_packing(packing, stream, n_ctx) == "documents" else np.zeros(1, np.int64)
        sizes = np.diff(begins, append=len(stream))  # of each text, in tokens
        per_text = count_windows(sizes, n_ctx, stride)
        first = np.repeat(np.cumsum(per_text) - per_text, per_text)  # of each window: the first window of its text
        number = np.arange(len(first)) - first  # of each window: 0, 1, 2, … within its text
        self.starts = np.repeat(begins, per_text) + number * stride
        self.lengths = np.minimum(n_ctx, np.repeat(begins + sizes, per_text) - 1 - self.starts)  # answers in each
        self.skip = np.where(once & (number > 0), n_ctx - stride, 0)  # how many of them are not scored again
        self.answers = int((sizes - 1).sum())

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, count: int) -> "Windows":
        """Return the first `count` of these windows: enough to compare models quickly."""
        part = copy.copy(self)
        part.starts, part.lengths, part.skip = self.starts[:count], self.lengths[:count], self.skip[:count]
        part.answers = int((part.lengths - part.skip).sum())
        return part

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (inputs, labels) of one window, each (n_ctx,) int64."""
        start, length = int(self.starts[index]), int(self.lengths[index])
        ids = self.stream.read(start, start + length + 1)
        inputs = np.full(self.n_ctx, self.pad_id, np.int64)
        labels = np.full(self.n_ctx, IGNORE, np.int64)
        inputs[:length] = ids[:-1]
        labels[:length] = ids[1:]
        labels[: self.skip[index]] = IGNORE
        return inputs, labels

    def batch(self, indices) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return (inputs, labels) of several windows, each (B, T) int64; T is what the longest needs, in eights."""
        import torch  # not at the top: the workers that write shards would each wait three seconds for it

        inputs, labels = zip(*(self[int(i)] for i in indices), strict=True)
        width = min(self.n_ctx, -8 * (-int(self.lengths[np.asarray(indices)].max()) // 8))
        return torch.from_numpy(np.stack(inputs)[:, :width]), torch.from_numpy(np.stack(labels)[:, :width])


def count_windows(tokens, n_ctx: int, stride: int):
    """Return how many windows texts of `tokens` ids need so that each of their tokens - 1 answers is in one."""
    return 1 + np.maximum(0, -(-(tokens - 1 - n_ctx) // stride))


def epoch_order(lengths: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which an epoch visits windows of these lengths: a function of seed and epoch alone.

    Random, but windows of about equal length stand together in blocks of 64, so that batches hold little padding.
    Whoever knows (seed, epoch, position) knows which windows come next, so a resumed run replays nothing.
    """
    random = np.random.default_rng([seed, epoch])
    shuffled = random.permutation(len(lengths))
    whole, rest = np.split(shuffled, [len(shuffled) // 64 * 64])  # the rest, unsorted, comes last
    blocks = []
    for chunk in np.split(whole, range(4096, len(whole), 4096)):
        blocks += np.split(chunk[lengths[chunk].argsort(kind="stable")], range(64, len(chunk), 64))
    return np.concatenate([*(blocks[i] for i in random.permutation(len(blocks))), rest])
