"""Documents become token shards; shards become windows; windows become batches.

A shard is a flat file of ids (`train-00000.bin`, uint16 or uint32, no header) and beside it
`train-00000.offsets.npy`, where each document starts. All shards of a split, one after the other,
are one stream of tokens that is mapped into memory and never loaded. Knows nothing of models.
"""

import copy
import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from helpers import parallel, paths, tokenizer

IGNORE = -100  # the label of a position that has no answer; torch's cross-entropy skips it


# ---------------------------------------------------------------- writing shards


def cut_points(files: list[Path], pieces: int) -> list[list[tuple[Path, int, int]]]:
    """Divide JSONL files into at most `pieces` runs of whole lines with about equal bytes.

    Returns one list of (file, first byte, byte after the last) for each piece.
    """
    total = sum(file.stat().st_size for file in files)
    spans: list[list[tuple[Path, int, int]]] = [[]]
    done = 0
    for file in files:
        start = position = 0
        with open(file, "rb") as lines:
            for line in lines:
                position += len(line)
                if done + position >= total * len(spans) / pieces and len(spans) < pieces:
                    spans[-1].append((file, start, position))
                    spans.append([])
                    start = position
        if position > start:
            spans[-1].append((file, start, position))
        done += position
    return [span for span in spans if span]


def _texts(span: list[tuple[Path, int, int]]) -> Iterator[str]:
    for file, start, stop in span:
        with open(file, "rb") as lines:
            lines.seek(start)
            while lines.tell() < stop:
                yield json.loads(lines.readline())["text"]


_load_once = lru_cache(maxsize=1)(tokenizer.load)


def write_shard(task: tuple[list, Path, Path, str]) -> dict:
    """Encode one piece of the corpus into one shard; `task` is (span, tokenizer folder, file to write, dtype).

    A document is `[MASK] ids… [CLS]`: a start, its text, an end. Returns the shard's documents, tokens, characters.
    """
    span, folder, file, dtype = task
    tok = _load_once(folder)
    offsets, tokens, characters = [], 0, 0
    with open(file, "wb") as out:
        batch: list[str] = []

        def flush() -> None:
            nonlocal tokens
            for ids in tokenizer.encode_batch(tok, batch):
                offsets.append(tokens)
                document = np.array([tok.bos_token_id, *ids, tok.eos_token_id], dtype)
                document.tofile(out)
                tokens += len(document)
            batch.clear()

        for text in _texts(span):
            batch.append(text)
            characters += len(text)
            if len(batch) == 1000:
                flush()
        flush()
    np.save(file.with_suffix(".offsets.npy"), np.array(offsets, np.int64))
    return {"documents": len(offsets), "tokens": tokens, "characters": characters}


def write_shards(run: str, num_pieces: int, workers: int = 0) -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`, `num_pieces` shards for training, validation in proportion.

    Returns {"train": [facts of each shard], "val": [...]}. Shards of an earlier run are removed first.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder = paths.room(run, "tokenize")
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
        old.unlink()
    vocab = paths.room(run, "vocab")
    dtype = dtype_for(len(tokenizer.load(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}
    size = {split: sum(file.stat().st_size for file in files[split]) for split in files}
    pieces = {"train": num_pieces, "val": max(1, round(num_pieces * size["val"] / max(1, size["train"])))}
    tasks = [
        (span, vocab, folder / f"{split}-{i:05d}.bin", dtype)
        for split in files
        for i, span in enumerate(cut_points(files[split], pieces[split]))
    ]
    with parallel.executor(min(workers or parallel.cores(), len(tasks))) as pool:
        facts = parallel.map_shards(pool, write_shard, tasks, label="tokenize")
    shards: dict[str, list[dict]] = {"train": [], "val": []}
    for (_, _, file, _), fact in zip(tasks, facts, strict=True):
        shards[file.name.split("-")[0]].append({"file": file.name, **fact})
    return shards


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


# ---------------------------------------------------------------- reading them


class TokenStream:
    """All shards of one split as one read-only sequence of ids, mapped from disk."""

    def __init__(self, run: str, split: str, dtype: str):
        files = paths.shards(run, "tokenize", split, ".bin")
        if not files:
            raise paths.RoomError(f"run '{run}' has no {split} shards: run notebook 03_tokenize first")
        self.shards = [np.memmap(file, dtype, "r") for file in files]
        self.starts = np.cumsum([0] + [len(shard) for shard in self.shards])  # where each shard begins in the stream
        within = [np.load(file.with_suffix(".offsets.npy")) for file in files]
        self.documents = np.concatenate([start + at for start, at in zip(self.starts, within, strict=False)])

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

    def batch(self, indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (inputs, labels) of several windows, each (B, T) int64; T is what the longest needs, in eights."""
        inputs, labels = zip(*(self[int(i)] for i in indices), strict=True)
        width = min(self.n_ctx, -8 * (-int(self.lengths[np.asarray(indices)].max()) // 8))
        return torch.from_numpy(np.stack(inputs)[:, :width]), torch.from_numpy(np.stack(labels)[:, :width])


def count_windows(tokens, n_ctx: int, stride: int):
    """Return how many windows texts of `tokens` ids need so that each of their tokens - 1 answers is in one."""
    return 1 + np.maximum(0, -(-(tokens - 1 - n_ctx) // stride))


def order(lengths: np.ndarray, seed: int, epoch: int) -> np.ndarray:
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


# ---------------------------------------------------------------- what a model must beat


def baselines(train: TokenStream, val: TokenStream, vocab_size: int, bos_id: int) -> dict[str, float]:
    """Return the cross-entropy on `val`, in nats a token, of three models that only count.

    uniform: ln vocab_size. unigram: add-one frequencies. bigram: Witten-Bell interpolation with the
    unigram (Witten and Bell 1991): a context is trusted as far as it repeats itself. The start of a document
    follows every end; it is nobody's answer.
    """
    ids, held = train.read(0, len(train)), val.read(0, len(val))
    counts = np.bincount(ids[ids != bos_id], minlength=vocab_size)
    unigram = (counts + 1) / (counts.sum() + vocab_size)
    pairs, pair_counts = np.unique(ids[:-1] * vocab_size + ids[1:], return_counts=True)
    follows = np.bincount(pairs // vocab_size, minlength=vocab_size)  # distinct successors of each id
    seen = np.bincount(ids[:-1], minlength=vocab_size)
    first, second = held[:-1][held[1:] != bos_id], held[1:][held[1:] != bos_id]
    wanted = first * vocab_size + second
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    joint = np.where(pairs[at] == wanted, pair_counts[at], 0)
    trust = seen[first] + follows[first]
    bigram = np.where(trust > 0, (joint + follows[first] * unigram[second]) / np.maximum(trust, 1), unigram[second])
    return {
        "uniform": math.log(vocab_size),
        "unigram": float(-np.log(unigram[second]).mean()),
        "bigram": float(-np.log(bigram).mean()),
    }
