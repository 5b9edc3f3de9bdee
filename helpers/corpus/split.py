"""The reduce step of room 01: deduplication, the train/validation split, and the shards.

Works on the indices of all parts, a row of numbers per document; the texts themselves pass through once, from the parts
to the shards. Memory holds some 30 bytes per document and one block of text.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.corpus import dedup
from helpers.corpus.inputs import NoDocuments
from helpers.corpus.partition import read_index
from helpers.corpus.report import Report
from helpers.files import atomic_write

KEEP = ("first", "all")
SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20
REDUCE_BYTES = 8 * 2**20  # of a part, copied into the shards at a time
BUCKET = 2**21  # documents whose hashes are compared at a time

_FATES = range(5)
_KEPT, _DUPLICATE, _NEAR, _OVER, _BAD = _FATES
_REASON = {_DUPLICATE: "duplicate", _NEAR: "near duplicate", _OVER: "over max_documents"}


@dataclass(frozen=True)
class Split:
    """Which documents are kept, and on which side of the split."""

    max_documents: int  # 0: all
    val_fraction: float
    near_duplicates: float = 0.0  # similarity from which two documents are the same text; 0: only exact copies are
    near_keep: str = "first"  # or "all": keep a cluster of near duplicates whole, on one side


def threshold(positions: np.ndarray, val_fraction: float) -> float:
    """Return the position below which documents are validation: `val_fraction`, unless a side would then be empty."""
    low, high = positions.min(), positions.max()
    if low == high and len(positions) > 1:
        raise NoDocuments(
            "all documents are near duplicates of each other, and near_keep 'all' keeps these on one side, but "
            "training and validation need one each: give near_keep 'first', or a higher near_duplicates"
        )
    if low == high:
        raise NoDocuments(
            "only 1 document was found, and training and validation need one each. Choose how a .txt is cut into "
            "documents: document='line' or 'block', or a smaller max_length"
        )
    return float(min(max(val_fraction, low + 2**-48), high))


def _first_of_each(parts: list[Path], usable: np.ndarray) -> np.ndarray:
    """Return for each document the number of the first one with the same hash; memory holds a bucket of hashes."""
    first = np.arange(len(usable))
    buckets = 1 << max(0, (len(usable) // BUCKET).bit_length())
    for bucket in range(buckets):
        # 1. the hashes of this bucket, and whose they are
        chosen, start = [], 0
        for part in parts:
            keys = read_index(part)["hash"]
            rows = np.flatnonzero((keys[:, 0] % buckets == bucket) & usable[start : start + len(keys)])
            chosen.append((keys[rows], rows + start))
            start += len(keys)
        keys, documents = (np.concatenate(arrays) for arrays in zip(*chosen, strict=True))
        # 2. sorted, equal hashes are neighbours; the sort is stable, so the first document stays first of them
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        keys, documents = keys[order], documents[order]
        if len(keys):
            begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
            first[documents] = np.repeat(documents[begins], np.diff(begins, append=len(keys)))
    return first


def _decide(parts: list[Path], usable: np.ndarray, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the fate of each document, and the number of the document that decides on its side of the split."""
    # 1. exact copies
    leader = _first_of_each(parts, usable)
    every = np.arange(len(usable))
    fate = np.where(usable, np.where(leader == every, _KEPT, _DUPLICATE), _BAD).astype(np.uint8)
    # 2. near duplicates
    if split.near_duplicates:
        files = [part.with_suffix(".minhash") for part in parts]
        cluster = dedup.clusters(files, split.near_duplicates, fate == _KEPT)
        if split.near_keep == "first":
            fate[(fate == _KEPT) & (cluster != every)] = _NEAR
        leader = cluster[leader]
    # 3. the limit; a copy of a document that is over it is over it too
    kept = np.flatnonzero(fate == _KEPT)
    if split.max_documents and len(kept) > split.max_documents:
        last = kept[split.max_documents - 1]
        fate[(leader > last) & (fate != _BAD) | (fate == _KEPT) & (every > last)] = _OVER
    return fate, leader


class _ShardWriter:
    """Numbered files of one side of the split, a new one when the last is full; `shard` closes the last."""

    def __init__(self, folder: Path, side: str):
        self.folder, self.side, self.shard = folder, side, contextlib.ExitStack()
        self.outputs: list[Path] = []
        self.documents = self.characters = self.size = 0

    def write(self, data: memoryview, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Add lines, in order: those of `sizes` bytes that begin at `starts` in `data`."""
        while len(sizes):
            # 1. a new shard, if there is none yet or the last is full
            if not self.outputs or self.documents % SHARD_DOCUMENTS == 0 or self.size > SHARD_BYTES:
                self.shard.close()
                self.outputs.append(self.folder / f"{self.side}-{len(self.outputs):05d}.jsonl")
                self.file = self.shard.enter_context(atomic_write(self.outputs[-1]))
                self.size = 0
            # 2. how many of the lines go into it; the one that fills it is the last
            until_full = int(np.searchsorted(np.cumsum(sizes), SHARD_BYTES - self.size, side="right")) + 1
            count = min(len(sizes), until_full, SHARD_DOCUMENTS - self.documents % SHARD_DOCUMENTS)
            # 3. neighbouring lines are copied as one piece
            heads, ends = starts[:count], starts[:count] + sizes[:count]
            begins = np.flatnonzero(np.r_[True, heads[1:] != ends[:-1]])
            stops = ends[np.r_[begins[1:] - 1, count - 1]]
            self.size += self.file.write(b"".join(data[a:b] for a, b in zip(heads[begins], stops, strict=True)))
            self.documents += count
            starts, sizes = starts[count:], sizes[count:]


def _blocks(part: Path, index: np.ndarray) -> Iterator[tuple[slice, memoryview, np.ndarray]]:
    """Yield a part's lines, REDUCE_BYTES at a time: which rows, their bytes, where each line starts in these."""
    ends = np.cumsum(index["bytes"], dtype=np.int64)
    at = 0
    with open(part.with_suffix(".lines"), "rb") as file:
        while at < len(index):
            begin = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, begin + REDUCE_BYTES, side="right")))
            data = memoryview(file.read(int(ends[stop - 1]) - begin))
            yield slice(at, stop), data, ends[at:stop] - index["bytes"][at:stop] - begin
            at = stop


def reduce_parts(parts: list[Path], files: list[list[int]], folder: Path, report: Report, split: Split) -> None:
    """Drop duplicates, split, write the shards; complete the report.

    `files` says for each part which of the report's files its files are. Raises NoDocuments.
    """
    # 1. the fate of each document
    bad = np.array([bool(file.bad) for file in report.files], bool)
    lengths, usable = [], []
    for part, numbers in zip(parts, files, strict=True):
        index = read_index(part)
        lengths.append(len(index))
        usable.append(~bad[np.asarray(numbers)[index["file"]]])
    fate, leader = _decide(parts, np.concatenate(usable), split)
    if not (fate == _KEPT).any():
        raise NoDocuments(nothing_found(report))

    # 2. its side
    positions = np.concatenate([read_index(part)["position"] for part in parts])
    if split.near_duplicates:
        positions = positions[leader]
    validation = positions < threshold(positions[fate == _KEPT], split.val_fraction)

    # 3. the shards
    start = 0
    train, val = _ShardWriter(folder, "train"), _ShardWriter(folder, "val")
    with train.shard, val.shard:
        for part, numbers, length in zip(parts, files, lengths, strict=True):
            index, rows = read_index(part), slice(start, start + length)
            _count(report, index, fate[rows], np.asarray(numbers))
            sides = [
                (train, (fate[rows] == _KEPT) & ~validation[rows]),
                (val, (fate[rows] == _KEPT) & validation[rows]),
            ]
            for shards, chosen in sides:
                shards.characters += int(index["characters"][chosen].sum())
            for block, data, starts in _blocks(part, index):
                for shards, chosen in sides:
                    lines = chosen[block]
                    shards.write(data, starts[lines], index["bytes"][block][lines].astype(np.int64))
            start += length

    # 4. the figures
    report.outputs += train.outputs + val.outputs
    report.val_documents, report.val_characters = val.documents, val.characters
    report.documents = train.documents + val.documents
    report.characters = train.characters + val.characters
    for file in report.files:
        report.dropped += file.dropped
        report.lost += file.lost
        report.rules += file.rules


def _count(report: Report, index: np.ndarray, fate: np.ndarray, numbers: np.ndarray) -> None:
    """Add the documents of one part to the reports of its files."""
    owners, at = np.unique(numbers[index["file"]] * len(_FATES) + fate, return_inverse=True)
    characters = np.bincount(at, weights=index["characters"]).astype(np.int64)
    for owner, n, length in zip(owners.tolist(), np.bincount(at).tolist(), characters.tolist(), strict=True):
        file, kind = report.files[owner // len(_FATES)], owner % len(_FATES)
        if kind == _KEPT:
            file.documents += n
            file.characters += length
        elif kind in _REASON:
            file.dropped[_REASON[kind]] += n
            file.lost[_REASON[kind]] += length


def nothing_found(report: Report) -> str:
    """Return the message of an empty corpus: what became of each of the first 20 files."""
    lines = [f"no usable document in {len(report.files):,} file(s) of '{report.source}':"]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {reason}" for reason, n in file.dropped.items())
        lines.append(f"  {file.name}: {'; '.join(filter(None, [file.bad, dropped, *file.notes]))}")
    if len(report.files) > 20:
        lines.append(f"  and {len(report.files) - 20:,} files more")
    return "\n".join(lines)
