"""Which lines repeat across a whole corpus: counted where they stand, in any number of files, and decided once for all.

Knows keys and numbers: what such a line looks like is known to `cleaning`, where documents are kept to `partition`.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np

from helpers.corpus import cleaning
from helpers.files import atomic_write

REPEATS = 3  # places from which such a line is dirt
SPARSE = 30_000_000  # characters of a corpus for each place: in a large one, what stands in few places stays
_ROW = np.dtype([("line", "<u8"), ("rest", "<u8"), ("places", "<u4")])


def count_places(texts: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return a row for each document and such line in it: the line's key, what else the document says, places."""
    joined, rows = "\n".join(texts), []
    begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
    for number, lines in groupby(cleaning.candidates(joined), lambda line: bisect_right(begins, line[0]) - 1):
        starts, ends, keys = zip(*lines, strict=True)
        # what stands between them
        rests = zip((begins[number], *(end + 1 for end in ends)), (*starts, begins[number + 1]), strict=True)
        rest = "".join(joined[start:stop] for start, stop in rests).strip()
        identity = int.from_bytes(hashlib.blake2b(rest.encode(), digest_size=8).digest()) if rest else 0
        rows += [(key, identity, places) for key, places in Counter(keys).items()]
    return rows


def write_places(rows: list[tuple[int, int, int]], characters: int, path: Path) -> None:
    """Write the rows of one part, and how many characters its documents have."""
    with atomic_write(path) as file:
        np.savez(file, rows=np.array(rows, _ROW), characters=characters)


def find_repeated(files: Sequence[Path]) -> list[frozenset[int]]:
    """Return for each part of a corpus the keys of those of its lines that repeat in the corpus.

    A line repeats that stands in at least REPEATS places, and in a corpus beyond 90 million characters in one for each
    SPARSE of them. Of documents that differ in nothing but such lines, one counts: a web address in a text that was
    copied is no advertisement; but where nothing else is in a document, each counts. What is counted does not depend on
    the order of the parts, nor on how documents are spread over them.
    """
    characters, parts = 0, []
    for file in files:
        with np.load(file) as arrays:
            characters += int(arrays["characters"])
            parts.append(arrays["rows"])
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
