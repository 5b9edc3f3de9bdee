"""Documents become token shards; shards become windows; windows become batches.

A shard is a flat file of ids (`train-00000.bin`, uint16 or uint32, no header) and beside it
`train-00000.offsets.npy`, where each document starts. All shards of a split, one after the other,
are one stream of tokens that is mapped into memory and never loaded. Knows nothing of models.
"""

import copy
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers import parallel, paths, tokenizer

if TYPE_CHECKING:
    import torch

_PART_BYTES = 2**22  # of corpus files that a worker encodes at a time: half a second, whatever their number
_PARTS_EACH = 4  # a worker that has fewer is not started: it would take longer than the work
_BATCH = 1000  # documents that the tokenizer gets at once
IGNORE = -100  # the label of a position that has no answer; torch's cross-entropy skips it


# ---------------------------------------------------------------- writing shards


def cut_points(files: list[Path], size: int) -> list[list[tuple[Path, int, int]]]:
    """Divide JSONL files into runs of whole lines of about `size` bytes each.

    Returns one list of (file, first byte, byte after the last) for each run.
    """
    spans: list[list[tuple[Path, int, int]]] = [[]]
    held = 0
    for file in files:
        start = position = 0
        with open(file, "rb") as lines:
            for line in lines:
                if held >= size:
                    if position > start:
                        spans[-1].append((file, start, position))
                    spans.append([])
                    start, held = position, 0
                position += len(line)
                held += len(line)
        if position > start:
            spans[-1].append((file, start, position))
    return [span for span in spans if span]


def _texts(span: list[tuple[Path, int, int]]) -> Iterator[str]:
    for file, start, stop in span:
        with open(file, "rb") as lines:
            lines.seek(start)
            while lines.tell() < stop:
                yield json.loads(lines.readline())["text"]


def _documents(tok, texts: list[str], dtype: str) -> list[np.ndarray]:
    start, end = tok.bos_token_id, tok.eos_token_id
    return [np.array([start, *ids, end], dtype) for ids in tokenizer.encode_batch(tok, texts)]


_load_once = lru_cache(maxsize=1)(tokenizer.load)


def encode_part(task: tuple[list, Path, Path, str]) -> None:
    """Encode one run of the corpus's lines into a part; `task` is (span, tokenizer folder, file to write, dtype).

    A document is `[MASK] ids… [CLS]`: a start, its text, an end. Beside the part lies the length of each of its
    documents, in tokens and in characters: (2, documents). It comes last: a part that has it is finished, and kept.
    """
    span, folder, file, dtype = task
    lengths_file = file.with_suffix(".npy")
    if lengths_file.exists() and file.exists():
        return
    tok = _load_once(folder)
    texts, lengths = _texts(span), []
    mine = file.with_name(f"{file.name}.{uuid.uuid4().hex}")  # the same part may be made twice, on two machines
    with open(mine, "wb") as out:
        while batch := list(islice(texts, _BATCH)):
            rows = _documents(tok, batch, dtype)
            np.concatenate(rows).tofile(out)
            lengths += zip(map(len, rows), map(len, batch), strict=True)
    os.replace(mine, file)
    with open(mine, "wb") as out:
        np.save(out, np.array(lengths, np.int64).reshape(-1, 2).T)
    os.replace(mine, lengths_file)


def write_shards(run: str, num_pieces: int, workers: int = 0, cluster: str = "") -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`, `num_pieces` shards for training, validation in proportion.

    Shards hold whole documents, and as equal numbers of tokens as these allow. Returns {"train": [facts of each
    shard], "val": [...]}. Their bytes do not depend on `workers` or `cluster` (see `parallel.executor`). Shards of an
    earlier run are removed first; the finished parts of an interrupted one, of the same text and tokenizer, are used.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder = paths.room(run, "tokenize")
    vocab = paths.room(run, "vocab")
    dtype = dtype_for(len(tokenizer.load(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}
    parts = folder / "parts" / _fingerprint(files["train"] + files["val"], vocab)
    for other in set((folder / "parts").glob("*")) - {parts}:
        shutil.rmtree(other)
    parts.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
        old.unlink()
    tasks = [
        (span, vocab, parts / f"{split}-{i:06d}.bin", dtype)
        for split in files
        for i, span in enumerate(cut_points(files[split], _PART_BYTES))
    ]
    with parallel.executor(min(workers or parallel.cores(), len(tasks) // _PARTS_EACH or 1), cluster) as pool:
        parallel.map_shards(pool, encode_part, tasks, label="tokenize")
    encoded = {split: [file for _, _, file, _ in tasks if file.name.startswith(split)] for split in files}
    sizes = {split: sum(file.stat().st_size for file in encoded[split]) for split in files}
    pieces = {"train": num_pieces, "val": max(1, round(num_pieces * sizes["val"] / max(1, sizes["train"])))}
    facts = {split: _join(encoded[split], folder, split, pieces[split], np.dtype(dtype)) for split in files}
    shutil.rmtree(folder / "parts")
    return facts


def _fingerprint(files: list[Path], vocab: Path) -> str:
    """Return a name for what parts are made of: the same for the same shards of text and the same tokenizer."""
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    told = repr((stamps, paths.sha256(vocab / "tokenizer.json"), _PART_BYTES))
    return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


def _join(parts: list[Path], folder: Path, split: str, pieces: int, dtype: np.dtype) -> list[dict]:
    """Write the documents of all parts, in order, into at most `pieces` shards; return the facts of each."""
    total = sum(part.stat().st_size for part in parts) // dtype.itemsize
    shards, done = [], 0
    for part in parts:
        ids, lengths = np.memmap(part, dtype, "r"), np.load(part.with_suffix(".npy"))
        ends = np.cumsum(lengths[0])
        # a document belongs to the shard in which its middle falls: so no shard is off by more than a document
        shard_of = np.minimum((done + ends - lengths[0] / 2) * pieces / total, pieces - 1).astype(np.int64)
        for shard in np.unique(shard_of):
            if not shards or shards[-1]["number"] != shard:
                shards.append({"number": int(shard), "tokens": 0, "characters": 0, "offsets": []})
            fact, chosen = shards[-1], shard_of == shard
            tokens, first = lengths[0][chosen], int((ends - lengths[0])[chosen][0])
            with open(folder / f"{split}-{len(shards) - 1:05d}.bin", "ab") as out:
                ids[first : first + int(tokens.sum())].tofile(out)
            fact["offsets"].append(fact["tokens"] + np.cumsum(tokens) - tokens)
            fact["tokens"] += int(tokens.sum())
            fact["characters"] += int(lengths[1][chosen].sum())
        done += len(ids)
    facts = []
    for i, fact in enumerate(shards):
        offsets, file = np.concatenate(fact["offsets"]), folder / f"{split}-{i:05d}.bin"
        np.save(file.with_suffix(".offsets.npy"), offsets)
        facts.append({"file": file.name, "documents": len(offsets)} | {k: fact[k] for k in ("tokens", "characters")})
    return facts


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


# ---------------------------------------------------------------- reading them


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
            raise paths.RoomError(f"run '{run}' has no {split} shards: run notebook 03_tokenize first")
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
