"""Texts that are nearly the same: MinHash signatures, and clusters of documents whose signatures agree.

Knows texts and arrays of numbers: not where documents come from, nor what is done with their copies.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rensa import RMinHash

SHINGLE = 5  # characters that stand side by side
PERMUTATIONS = 128  # numbers in a signature: an estimate of the similarity is off by 0.09 at most, 19 times in 20
_SEED = 42
_CERTAIN = 0.99  # how surely two texts at the very threshold are compared
_PAIRS_AT_ONCE = 2**15


def shingles(text: str) -> set[str]:
    """Return the stretches of 5 characters of a text; a shorter text is one stretch."""
    return {text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1))}


def similarity(a: str, b: str) -> float:
    """Return the exact Jaccard similarity of two texts: shingles that both have, as a part of all they have."""
    ours, theirs = shingles(a), shingles(b)
    return len(ours & theirs) / len(ours | theirs)


def signatures(texts: Sequence[str]) -> np.ndarray:
    """Return the MinHash signature of each text, (texts, 128) uint32.

    The part of numbers in which two signatures agree estimates the Jaccard similarity of the texts (Broder 1997).
    """
    found = RMinHash.digests_from_token_sets([list(shingles(text)) for text in texts], PERMUTATIONS, _SEED)
    return np.array(found, np.uint32).reshape(len(texts), PERMUTATIONS)


def rows_per_band(threshold: float) -> int:
    """Return into how long bands a signature is cut: as long as two texts at the threshold surely share a band."""
    lengths = range(1, PERMUTATIONS + 1)
    return max(n for n in lengths if n == 1 or (1 - threshold**n) ** (PERMUTATIONS // n) <= 1 - _CERTAIN)


def clusters(files: Sequence[Path], threshold: float, keep: np.ndarray) -> np.ndarray:
    """Return for each document the number of the first one in its cluster of near duplicates (its own, if it is alone).

    `files` hold the signatures, one array after the other (.npy); documents where `keep` is false stand alone. Texts
    are compared when a band of their signatures agrees (locality-sensitive hashing; Leskovec, Rajaraman and Ullman,
    Mining of Massive Datasets, chapter 3), and joined from an estimated similarity of `threshold` on; clusters are
    what is joined directly or through others. In memory stands one band of all documents, not their signatures.
    """
    starts = np.cumsum([0] + [len(np.load(file, mmap_mode="r")) for file in files])
    parent = np.arange(starts[-1])
    kept = np.flatnonzero(keep)
    rows = rows_per_band(threshold)
    for band in range(PERMUTATIONS // rows):
        columns = slice(band * rows, (band + 1) * rows)
        keys = np.concatenate([_hash(np.load(file, mmap_mode="r")[:, columns]) for file in files])[kept]
        order = np.argsort(keys, kind="stable")
        pairs = _candidates(kept[order], keys[order])
        for at in range(0, len(pairs), _PAIRS_AT_ONCE):
            some = pairs[at : at + _PAIRS_AT_ONCE]
            some = some[parent[some[:, 0]] != parent[some[:, 1]]]
            ours, theirs = (_gather(files, starts, side) for side in some.T)
            for a, b in some[(ours == theirs).mean(axis=1) >= threshold]:
                a, b = sorted((_root(parent, a), _root(parent, b)))
                parent[b] = a
        while not np.array_equal(parent, parent[parent]):
            parent = parent[parent]
    return parent


def _candidates(documents: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return pairs of documents with the same band, (pairs, 2): each with the first of its group and the one before."""
    if not len(keys):
        return np.empty((0, 2), np.int64)
    begins = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    first = np.repeat(documents[begins], np.diff(begins, append=len(keys)))
    before = np.r_[documents[:1], documents[:-1]]
    other = first != documents
    pairs = ((first, other), (before, other & (first != before)))
    return np.concatenate([np.stack([ours[which], documents[which]], axis=1) for ours, which in pairs])


def _gather(files: Sequence[Path], starts: np.ndarray, documents: np.ndarray) -> np.ndarray:
    found = np.empty((len(documents), PERMUTATIONS), np.uint32)
    where = np.searchsorted(starts, documents, side="right") - 1
    for number in np.unique(where):
        here = where == number
        found[here] = np.load(files[number], mmap_mode="r")[documents[here] - starts[number]]
    return found


def _root(parent: np.ndarray, document: int) -> int:
    while parent[document] != document:
        parent[document] = parent[parent[document]]
        document = parent[document]
    return int(document)


def _hash(columns: np.ndarray) -> np.ndarray:
    """Return one number for each row of a band."""
    mixed = np.zeros(len(columns), np.uint64)
    for column in columns.T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed
