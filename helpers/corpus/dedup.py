"""What a corpus says twice: near duplicates, by MinHash signatures of texts; and lines that repeat from text to text.

Knows texts and arrays of numbers: not where documents come from, nor what is done with their copies. What a line looks
like that may repeat is known to `cleaning`.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
from rensa import RMinHash

from helpers.corpus import cleaning

SHINGLE = 5  # neighbouring characters
PERMUTATIONS = 128  # numbers in a signature: an estimate of the similarity is off by 0.09 at most, 19 times in 20
_SEED = 42
_CERTAIN = 0.99  # how surely two texts whose similarity is the threshold are compared
_PAIRS_AT_ONCE = 2**15


def shingles(text: str) -> set[str]:
    """Return the shingles of a text: its stretches of 5 characters; a shorter text is one."""
    return {text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1))}


def similarity(a: str, b: str) -> float:
    """Return the exact Jaccard similarity of two texts: the share of their shingles that both have."""
    first, second = shingles(a), shingles(b)
    return len(first & second) / len(first | second)


def signatures(texts: Sequence[str]) -> np.ndarray:
    """Return the MinHash signature of each text, (texts, 128) uint32.

    The share of numbers in which two signatures agree estimates the Jaccard similarity of the texts (Broder 1997).
    """
    digests = RMinHash.digests_from_token_sets([list(shingles(text)) for text in texts], PERMUTATIONS, _SEED)
    return np.array(digests, np.uint32).reshape(len(texts), PERMUTATIONS)


def rows_per_band(threshold: float) -> int:
    """Return the length of the bands of a signature: the longest with which two texts at the threshold share a band.

    Two texts of similarity s share a band of n numbers with probability s ** n; of 128 // n bands they miss all with
    probability (1 - s ** n) ** (128 // n).
    """
    lengths = range(1, PERMUTATIONS + 1)
    return max(n for n in lengths if n == 1 or (1 - threshold**n) ** (PERMUTATIONS // n) <= 1 - _CERTAIN)


def clusters(files: Sequence[Path], threshold: float, keep: np.ndarray) -> np.ndarray:
    """Return for each document the number of the first one in its cluster of near duplicates (its own, if alone).

    `files` hold the signatures, one array after the other (.npy); documents where `keep` is false stay alone. Texts
    are compared when a band of their signatures agrees (locality-sensitive hashing; Leskovec, Rajaraman and Ullman,
    Mining of Massive Datasets, chapter 3), and joined from an estimated similarity of `threshold` on; a cluster is
    what is joined directly or through others.
    """
    import networkx  # a fifth of a second: only here

    signed = np.concatenate([np.load(file) for file in files])
    alike, kept = networkx.Graph(), np.flatnonzero(keep)
    rows = rows_per_band(threshold)
    for band in range(PERMUTATIONS // rows):
        # 1. documents whose band is equal are pairs to compare
        columns = slice(band * rows, (band + 1) * rows)
        keys = _hash(signed[:, columns])[kept]
        order = np.argsort(keys, kind="stable")
        pairs = _candidates(kept[order], keys[order])
        # 2. join those whose whole signatures agree well enough
        for at in range(0, len(pairs), _PAIRS_AT_ONCE):
            batch = pairs[at : at + _PAIRS_AT_ONCE]
            agree = (signed[batch[:, 0]] == signed[batch[:, 1]]).mean(axis=1)
            alike.add_edges_from(batch[agree >= threshold].tolist())
    # 3. each document points at the first of its cluster
    leader = np.arange(len(signed))
    for cluster in networkx.connected_components(alike):
        leader[list(cluster)] = min(cluster)
    return leader


def _candidates(documents: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return pairs of documents with the same band, (pairs, 2): each with the first of its group and the one before."""
    if not len(keys):
        return np.empty((0, 2), np.int64)
    begins = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    first = np.repeat(documents[begins], np.diff(begins, append=len(keys)))
    before = np.r_[documents[:1], documents[:-1]]
    other = first != documents
    pairs = ((first, other), (before, other & (first != before)))
    return np.concatenate([np.stack([partner[which], documents[which]], axis=1) for partner, which in pairs])


def _hash(columns: np.ndarray) -> np.ndarray:
    """Return one number per row of a band; 0x9E37… is 2^64 divided by the golden ratio (Fibonacci hashing, Knuth)."""
    mixed = np.zeros(len(columns), np.uint64)
    for column in columns.T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


# ---- lines that repeat across a whole corpus: counted where they stand, decided once for all ----

REPEATS = 3  # places from which such a line is dirt
SPARSE = 30_000_000  # characters of a corpus for each place: in a large one, what stands in few places stays
_ROW = np.dtype([("line", "<u8"), ("rest", "<u8"), ("places", "<u4")])


def count_places(texts: Sequence[str]) -> np.ndarray:
    """Return a row for each document and such line in it: the line's key, what else the document says, places."""
    joined, rows = "\n".join(texts), list[tuple[int, int, int]]()
    begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
    for number, lines in groupby(cleaning.candidates(joined), lambda line: bisect_right(begins, line[0]) - 1):
        starts, ends, keys = zip(*lines, strict=True)
        # what stands between them
        rests = zip((begins[number], *(end + 1 for end in ends)), (*starts, begins[number + 1]), strict=True)
        rest = "".join(joined[start:stop] for start, stop in rests).strip()
        identity = int.from_bytes(hashlib.blake2b(rest.encode(), digest_size=8).digest()) if rest else 0
        rows += [(key, identity, places) for key, places in Counter(keys).items()]
    return np.array(rows, _ROW)


def find_repeated(parts: Sequence[np.ndarray], characters: int) -> list[frozenset[int]]:
    """Return for each part of a corpus, by its rows, the keys of those of its lines that repeat in the corpus.

    A line repeats that stands in at least REPEATS places, and in a corpus beyond 90 million characters in one for each
    SPARSE of them. Of documents that differ in nothing but such lines, one counts: a web address in a text that was
    copied is no advertisement; but where nothing else is in a document, each counts. What is counted does not depend on
    the order of the parts, nor on how documents are spread over them.
    """
    rows = np.sort(np.concatenate(parts), order=("line", "rest", "places"))
    if not len(rows):
        return [frozenset() for _ in parts]
    # 1. the copies of a document are neighbours; the last has the most places
    same = (rows["line"][1:] == rows["line"][:-1]) & (rows["rest"][1:] == rows["rest"][:-1])
    rows = rows[np.r_[~same | (rows["rest"][1:] == 0), True]]
    # 2. the places of each line
    begins = np.flatnonzero(np.r_[True, rows["line"][1:] != rows["line"][:-1]])
    places = np.add.reduceat(rows["places"], begins, dtype=np.int64)
    repeated = rows["line"][begins][places >= max(REPEATS, characters // SPARSE)]
    return [frozenset(np.intersect1d(part["line"], repeated).tolist()) for part in parts]
