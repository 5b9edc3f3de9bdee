"""The reduce step of room 01: deduplication, the train/validation split, and the shards.

Works on the indices of all parts, a row of numbers per document; the texts themselves pass through once, from the parts
to the shards. Memory holds some 200 bytes per document, and no text.
"""

import contextlib
from pathlib import Path

import numpy as np

from helpers.corpus import dedup
from helpers.corpus.archives import NoDocuments
from helpers.corpus.report import Report
from helpers.corpus.settings import CorpusSettings
from helpers.files import atomic_write
from helpers.wording import say

SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20

_FATES = range(5)
_KEPT, _DUPLICATE, _NEAR, _OVER, _BAD = _FATES
_REASON = {_DUPLICATE: "duplicate", _NEAR: "near duplicate", _OVER: "over max_documents"}


def threshold(positions: np.ndarray, val_fraction: float) -> float:
    """Return the position below which documents are validation: `val_fraction`, unless a side would then be empty."""
    return float(min(max(val_fraction, positions.min() + 2**-48), positions.max()))


def _decide(parts: list[Path], hashes: np.ndarray, usable: np.ndarray, settings: CorpusSettings) -> np.ndarray:
    """Return the fate of each document."""
    # 1. exact copies, of documents that are usable
    every = np.arange(len(usable))
    leader, chosen = every.copy(), np.flatnonzero(usable)
    whole = np.ascontiguousarray(hashes[chosen]).view("V16").ravel()
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    leader[chosen] = chosen[first[group]]
    fate = np.where(usable, np.where(leader == every, _KEPT, _DUPLICATE), _BAD).astype(np.uint8)
    # 2. near duplicates
    if settings.near_duplicates:
        files = [part.with_suffix(".minhash") for part in parts]
        cluster = dedup.clusters(files, settings.near_duplicates, fate == _KEPT)
        fate[(fate == _KEPT) & (cluster != every)] = _NEAR
        leader = cluster[leader]
    # 3. the limit; a copy of a document that is over it is over it too
    kept = np.flatnonzero(fate == _KEPT)
    if settings.max_documents and len(kept) > settings.max_documents:
        last = kept[settings.max_documents - 1]
        fate[(leader > last) & (fate != _BAD) | (fate == _KEPT) & (every > last)] = _OVER
    return fate


class _ShardWriter:
    """Numbered files of one side of the split, a new one when the last is full; `shard` closes the last."""

    def __init__(self, folder: Path, side: str):
        self.folder, self.side, self.shard = folder, side, contextlib.ExitStack()
        self.outputs: list[Path] = []
        self.documents = self.size = 0

    def write(self, line: bytes) -> None:
        """Add the line of a document."""
        if not self.outputs or self.documents % SHARD_DOCUMENTS == 0 or self.size > SHARD_BYTES:
            self.shard.close()
            self.outputs.append(self.folder / f"{self.side}-{len(self.outputs):05d}.jsonl")
            self.file = self.shard.enter_context(atomic_write(self.outputs[-1]))
            self.size = 0
        self.size += self.file.write(line)
        self.documents += 1


def reduce_parts(
    parts: list[Path], indices: list[np.ndarray], files: list[list[int]], report: Report, settings: CorpusSettings
) -> None:
    """Drop duplicates, split, write the shards, into the folder above the parts; complete the report.

    Each part has its index, and its files: the numbers that these have in the report. Raises NoDocuments.
    """
    # 1. the fate of each document
    owners = np.concatenate([np.asarray(numbers)[index["file"]] for numbers, index in zip(files, indices, strict=True)])
    borders = np.cumsum(list(map(len, indices)))[:-1]
    index = np.concatenate(indices)
    indices.clear()  # the same rows once more
    bad = np.array([bool(file.bad) for file in report.files], bool)
    fate = _decide(parts, index["hash"], ~bad[owners], settings)
    kept = fate == _KEPT
    if not kept.any():
        raise NoDocuments(nothing_found(report))
    _count(report, index["characters"], fate, owners)
    for file in report.files:
        report.dropped += file.dropped
        report.lost += file.lost
        report.rules += file.rules
    if kept.sum() == 1:
        raise NoDocuments(only_one(report))

    # 2. its side
    validation = index["position"] < threshold(index["position"][kept], settings.val_fraction)

    # 3. the shards
    folder = parts[0].parent.parent
    train, val = _ShardWriter(folder, "train"), _ShardWriter(folder, "val")
    sides = np.where(kept, validation, np.uint8(2))  # 2: neither
    rows = zip(parts, np.split(index["bytes"], borders), np.split(sides, borders), strict=True)
    with train.shard, val.shard:
        for part, part_sizes, part_sides in rows:
            with open(part.with_suffix(".lines"), "rb") as lines:
                for size, side in zip(part_sizes.tolist(), part_sides.tolist(), strict=True):
                    line = lines.read(size)
                    if side < 2:
                        (train, val)[side].write(line)

    # 4. the figures
    report.outputs += train.outputs + val.outputs
    report.documents, report.val_documents = train.documents + val.documents, val.documents
    report.characters, report.val_characters = (
        int(index["characters"][chosen].sum()) for chosen in (kept, kept & validation)
    )


def _count(report: Report, characters: np.ndarray, fate: np.ndarray, owners: np.ndarray) -> None:
    """Add the documents to the reports of their files."""
    kinds, at = np.unique(owners * len(_FATES) + fate, return_inverse=True)
    lengths = np.bincount(at, weights=characters).astype(np.int64)
    for kind, n, length in zip(kinds.tolist(), np.bincount(at).tolist(), lengths.tolist(), strict=True):
        file, kind = report.files[kind // len(_FATES)], kind % len(_FATES)
        if kind == _KEPT:
            file.documents += n
            file.characters += length
        elif kind in _REASON:
            file.dropped[_REASON[kind]] += n
            file.lost[_REASON[kind]] += length


def only_one(report: Report) -> str:
    """Return the message of a corpus of one document: why there are no more, and what to do."""
    others = ", ".join(f"{n:,} {say(reason)}" for reason, n in report.dropped.most_common())
    left = say("only 1 document is left") + (f" ({others})" if others else "")
    return say(
        "{}, and training and validation need one each. Add texts that differ, or cut long ones: a smaller max_length, "
        "or for a .txt document='line' or 'block'",
        left,
    )


def nothing_found(report: Report) -> str:
    """Return the message of an empty corpus: what became of each of the first 20 files."""
    lines = [say("no usable document in {:,} file(s) of '{}':", len(report.files), report.source)]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {say(reason)}" for reason, n in file.dropped.items())
        lines.append(f"  {file.name}: {'; '.join(map(say, filter(None, [file.bad, dropped, *file.notes])))}")
    if len(report.files) > 20:
        lines.append(say("  and {:,} files more", len(report.files) - 20))
    return "\n".join(lines)
