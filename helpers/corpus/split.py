"""The reduction: drop duplicates, split into training and validation, write the shards."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.corpus import dedup
from helpers.corpus.inputs import NoDocuments
from helpers.corpus.partition import place, read_index
from helpers.corpus.report import Report

KEEP = ("first", "all")
SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20
REDUCE_BYTES = 8 * 2**20  # of a part, copied into the shards at a time
BUCKET = 2**21  # documents whose hashes are compared at a time


_KEPT, _DUPLICATE, _NEAR, _OVER, _BAD = range(5)
_REASON = {_DUPLICATE: "duplicate", _NEAR: "near duplicate", _OVER: "over max_documents"}


@dataclass(frozen=True)
class Split:
    max_documents: int
    val_fraction: float
    near_duplicates: float = 0.0
    near_keep: str = "first"


def side(key: str, seed: int) -> float:
    """Return a document's place in [0, 1), from its hash and the seed alone: below `val_fraction` is validation."""
    return place(key, seed) / 2**48


def _threshold(places: Iterable[float], val_fraction: float) -> float:
    """Return the place below which documents are validation: `val_fraction`, moved only if a side would be empty."""
    places = np.asarray(places)
    low, high = places.min(), places.max()
    if low == high:
        raise NoDocuments(
            "only 1 document was found, and training and validation need one each. Choose how a .txt is cut into "
            "documents: document='line' or 'block', or a smaller max_length"
        )
    return float(min(max(val_fraction, low + 2**-48), high))


def _first_of_each(parts: list[Path], usable: np.ndarray) -> np.ndarray:
    """Return for each document the number of the first one with the same hash; in memory stands a bucket of hashes."""
    first = np.arange(len(usable))
    buckets = 1 << max(0, (len(usable) // BUCKET).bit_length())
    for bucket in range(buckets):
        found, start = [], 0
        for part in parts:
            keys = read_index(part)["hash"]
            here = np.flatnonzero((keys[:, 0] % buckets == bucket) & usable[start : start + len(keys)])
            found.append((keys[here], here + start))
            start += len(keys)
        keys, documents = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: of equal hashes the first document stays first
        keys, documents = keys[order], documents[order]
        if len(keys):
            begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
            first[documents] = np.repeat(documents[begins], np.diff(begins, append=len(keys)))
    return first


def _decide(parts: list[Path], usable: np.ndarray, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return what becomes of each document, and the number of the document that decides on its side of the split."""
    leader = _first_of_each(parts, usable)
    alone = np.arange(len(usable))
    status = np.where(usable, np.where(leader == alone, _KEPT, _DUPLICATE), _BAD).astype(np.uint8)
    if split.near_duplicates:
        files = [part.with_suffix(".minhash") for part in parts]
        cluster = dedup.clusters(files, split.near_duplicates, status == _KEPT)
        if split.near_keep == "first":
            status[(status == _KEPT) & (cluster != alone)] = _NEAR
        leader = cluster[leader]
    kept = np.flatnonzero(status == _KEPT)
    if split.max_documents and len(kept) > split.max_documents:
        last = kept[split.max_documents - 1]
        # a copy of a document that is over the limit is over it too
        status[(leader > last) & (status != _BAD) | (status == _KEPT) & (alone > last)] = _OVER
    return status, leader


class _Shards:
    """Numbered files of one split, a new one when the last is full."""

    def __init__(self, folder: Path, split: str):
        self.folder, self.split, self.outputs = folder, split, []
        self.documents = self.characters = self.size = 0
        self.file = None

    def write(self, data: memoryview, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Add lines that stand somewhere in `data`, in order."""
        while len(sizes):
            if self.file is None or self.documents % SHARD_DOCUMENTS == 0 or self.size > SHARD_BYTES:
                self.close()
                self.outputs.append(self.folder / f"{self.split}-{len(self.outputs):05d}.jsonl")
                self.file = open(_beside(self.outputs[-1]), "wb")  # noqa: SIM115 (closed by close)
                self.size = 0
            until_full = int(np.searchsorted(np.cumsum(sizes), SHARD_BYTES - self.size, side="right")) + 1
            count = min(len(sizes), until_full, SHARD_DOCUMENTS - self.documents % SHARD_DOCUMENTS)
            here, ends = starts[:count], starts[:count] + sizes[:count]
            begins = np.flatnonzero(np.r_[True, here[1:] != ends[:-1]])  # lines side by side are one piece
            stops = ends[np.r_[begins[1:] - 1, count - 1]]
            self.size += self.file.write(b"".join(data[a:b] for a, b in zip(here[begins], stops, strict=True)))
            self.documents += count
            starts, sizes = starts[count:], sizes[count:]

    def close(self) -> None:
        """Give the last shard, complete now, its name."""
        if self.file:
            self.file.close()
            os.replace(self.file.name, self.outputs[-1])
            self.file = None


def _beside(shard: Path) -> Path:
    return shard.with_name(f".{shard.name}.part")


def _pieces(part: Path, index: np.ndarray) -> Iterator[tuple[slice, memoryview, np.ndarray]]:
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


def reduce(parts: list[Path], files: list[list[int]], folder: Path, report: Report, split: Split) -> None:
    """Drop duplicates, split, write the shards; complete the report.

    `files` says for each part which of the report's files its files are.
    """
    bad = np.array([bool(file.bad) for file in report.files], bool)
    lengths, usable = [], []
    for part, numbers in zip(parts, files, strict=True):
        index = read_index(part)
        lengths.append(len(index))
        usable.append(~bad[np.asarray(numbers)[index["file"]]])
    status, leader = _decide(parts, np.concatenate(usable), split)
    if not (status == _KEPT).any():
        raise NoDocuments(nothing_found(report))
    places = np.concatenate([read_index(part)["place"] for part in parts]) / 2**48
    if split.near_duplicates:
        places = places[leader]
    below = _threshold(places[status == _KEPT], split.val_fraction)

    shards = {name: _Shards(folder, name) for name in ("train", "val")}
    start = 0
    for part, numbers, length in zip(parts, files, lengths, strict=True):
        index = read_index(part)
        fate, validation = status[start : start + length], places[start : start + length] < below
        _count(report, index, fate, np.asarray(numbers))
        for name, shard in shards.items():
            shard.characters += int(index["characters"][(fate == _KEPT) & (validation == (name == "val"))].sum())
        for rows, data, at in _pieces(part, index):
            for name, shard in shards.items():
                mine = (fate[rows] == _KEPT) & (validation[rows] == (name == "val"))
                shard.write(data, at[mine], index["bytes"][rows][mine].astype(np.int64))
        start += length
    for shard in shards.values():
        shard.close()
        report.outputs += shard.outputs
    report.val_documents, report.val_characters = shards["val"].documents, shards["val"].characters
    report.documents = shards["train"].documents + report.val_documents
    report.characters = shards["train"].characters + report.val_characters
    for file in report.files:
        report.dropped += file.dropped
        report.lost += file.lost
        report.rules += file.rules


def _count(report: Report, index: np.ndarray, fate: np.ndarray, numbers: np.ndarray) -> None:
    """Add the documents of one part to the reports of its files."""
    owner = numbers[index["file"]]
    for kind in np.unique(fate):
        mine = fate == kind
        found, at = np.unique(owner[mine], return_inverse=True)
        documents = np.bincount(at)
        characters = np.bincount(at, weights=index["characters"][mine]).astype(np.int64)
        for number, n, length in zip(found, documents.tolist(), characters.tolist(), strict=True):
            file = report.files[number]
            if kind == _KEPT:
                file.documents += n
                file.characters += length
            elif kind in _REASON:
                file.dropped[_REASON[kind]] += n
                file.lost[_REASON[kind]] += length


def nothing_found(report: Report) -> str:
    lines = [f"no usable document in {len(report.files):,} file(s) of '{report.source}':"]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {reason}" for reason, n in file.dropped.items())
        lines.append(f"  {file.source}: {'; '.join(filter(None, [file.bad, dropped, *file.notes]))}")
    if len(report.files) > 20:
        lines.append(f"  and {len(report.files) - 20:,} files more")
    return "\n".join(lines)
