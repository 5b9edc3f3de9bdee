"""A cache of word segmentations on disk: a hash of the line maps to the lengths of its pieces.

Knows nothing of segmenters and stores no text. A file that is damaged or cannot be written costs time, never a result.
"""

import contextlib
import hashlib
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")

_TABLE = "CREATE TABLE IF NOT EXISTS cuts (line BLOB PRIMARY KEY, lengths BLOB) WITHOUT ROWID"
_LOCK_SECONDS = 60  # how long to wait while another process writes


def pack_lengths(pieces: Iterable[str]) -> bytes:
    """Return the lengths of a line's pieces, two bytes each: 2, 2, 1 for ["绿萝", "浇水", "。"].

    Raises OverflowError for a piece of more than 65,535 characters.
    """
    return array("H", map(len, pieces)).tobytes()


def cut_line(line: str, lengths: bytes) -> list[str]:
    """Return the pieces of a line from their packed lengths."""
    return [line[start:end] for start, end in pairwise(accumulate(array("H", lengths), initial=0))]


def _key(line: str) -> bytes:
    return hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class SegmentCache:
    """A file of packed lengths, an entry for each line of text; several processes may use it at once.

    Each version of a segmenter has a file of its own. It may be deleted at any time.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.usable = True  # until the file cannot be read or written

    def find(self, lines: Iterable[str]) -> dict[str, bytes]:
        """Return {line: packed lengths} for the lines in the cache."""

        def look_up(database: sqlite3.Connection) -> dict[str, bytes]:
            query = "SELECT lengths FROM cuts WHERE line = ?"
            rows = {line: database.execute(query, (_key(line),)).fetchone() or (b"\1",) for line in lines}
            known = {line: lengths for line, (lengths,) in rows.items() if len(lengths) % 2 == 0}
            return {line: lengths for line, lengths in known.items() if sum(array("H", lengths)) == len(line)}

        return self._with_database(look_up) or {}

    def keep(self, segmented: Mapping[str, bytes]) -> None:
        """Add the packed lengths of lines: all of them or, after a fault, none."""
        rows = [(_key(line), lengths) for line, lengths in segmented.items()]
        self._with_database(lambda database: database.executemany("INSERT OR REPLACE INTO cuts VALUES (?, ?)", rows))

    def _with_database(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Return the result of one transaction; None if the file cannot be used."""
        if not self.usable:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_LOCK_SECONDS)) as database, database:
                database.execute(_TABLE)
                return work(database)
        except (OSError, sqlite3.Error) as error:  # a full disk, a file that stays locked, bytes of something else
            self.usable = False
            cure = "every line is segmented again. If it is damaged, delete it"
            print(f"{self.path} cannot be used ({error}): {cure}", file=sys.stderr)
            return None
