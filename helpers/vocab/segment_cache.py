"""A cache of word segmentations on disk, keyed by a hash of the line: what was segmented once is not segmented again.

Knows nothing of segmenters, and stores no text: a line's value is the lengths of its pieces. A damaged file is replaced
by an empty one; a file that cannot be written costs time, never a result.
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

T = TypeVar("T")

_TABLE = "CREATE TABLE IF NOT EXISTS cuts (line BLOB PRIMARY KEY, lengths BLOB) WITHOUT ROWID"
_LOCK_SECONDS = 60  # how long to wait while another process writes


def pack(pieces: Iterable[str]) -> bytes:
    """Return the lengths of a line's pieces, two bytes each; OverflowError for a piece of more than 65,535 characters.

    pack(["绿萝", "浇水", "。"]) is the bytes of 2, 2, 1.
    """
    return array("H", map(len, pieces)).tobytes()


def unpack(line: str, lengths: bytes) -> list[str]:
    """Return the pieces of a line from their packed lengths: unpack("".join(pieces), pack(pieces)) == pieces."""
    return [line[start:end] for start, end in pairwise(accumulate(array("H", lengths), initial=0))]


def _fits(line: str, lengths: bytes) -> bool:
    return len(lengths) % 2 == 0 and sum(array("H", lengths)) == len(line)


def _key(line: str) -> bytes:
    return hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class SegmentCache:
    """A file of packed lengths, one entry per line of text; several processes may use it at the same time.

    One file is for one segmenter in one version. It may be deleted at any time: that costs nothing but time.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.usable = True  # until the file cannot be read or written

    def find(self, lines: Iterable[str]) -> dict[str, bytes]:
        """Return {line: packed lengths} of those lines that are in the cache."""

        def look_up(database: sqlite3.Connection) -> dict[str, bytes]:
            query = "SELECT lengths FROM cuts WHERE line = ?"
            known = {line: database.execute(query, (_key(line),)).fetchone() for line in lines}
            return {line: row[0] for line, row in known.items() if row and _fits(line, row[0])}

        return self._with_database(look_up) or {}

    def keep(self, segmented: Mapping[str, bytes]) -> None:
        """Add the packed lengths of lines, all or none of them."""
        rows = [(_key(line), lengths) for line, lengths in segmented.items()]
        self._with_database(lambda database: database.executemany("INSERT OR REPLACE INTO cuts VALUES (?, ?)", rows))

    def _with_database(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return work(open database), done in one transaction; None if the file is damaged or cannot be used."""
        if not self.usable:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_LOCK_SECONDS)) as database, database:
                database.execute(_TABLE)
                return work(database)
        except (OSError, sqlite3.OperationalError) as error:  # a full or read-only disk, a file that stays locked
            self.usable = False
            print(f"{self.path} cannot be used ({error}): every line is segmented again", file=sys.stderr)
        except sqlite3.DatabaseError as error:  # these are not the bytes that SQLite wrote
            print(f"{self.path} is damaged ({error}): it is replaced by an empty cache", file=sys.stderr)
            try:
                for suffix in ("", "-journal"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            except OSError:  # a read-only folder; on Windows, a file that another process has open
                self.usable = False
        return None
