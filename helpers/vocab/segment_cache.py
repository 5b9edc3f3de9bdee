"""Where lines of text were cut into words before: a file that a segmenter's work is kept in, by content.

Knows nothing of segmenters, and keeps no text: a line's key is its hash, its value the lengths of its pieces. A file
that is damaged is begun anew; one that cannot be written costs time, never a result.
"""

import contextlib
import hashlib
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path

_TABLE = "CREATE TABLE IF NOT EXISTS cuts (line BLOB PRIMARY KEY, lengths BLOB) WITHOUT ROWID"
_AT_ONCE = 500  # keys in one question; SQLite may refuse more than 999
_PATIENCE = 60  # seconds to wait while another process writes


def pack(pieces: Iterable[str]) -> bytes:
    """Return the lengths of the pieces of a line, two bytes each; a piece has at most 65,535 characters."""
    return array("H", map(len, pieces)).tobytes()


def unpack(line: str, lengths: bytes) -> list[str]:
    """Return the pieces of a line whose lengths were packed."""
    return [line[start:end] for start, end in pairwise(accumulate(array("H", lengths), initial=0))]


def _fits(line: str, lengths: bytes) -> bool:
    return len(lengths) % 2 == 0 and sum(array("H", lengths)) == len(line)


def _key(line: str) -> bytes:
    return hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class SegmentCache:
    """A file of packed lengths by line; several processes may use one at the same time.

    It is for one segmenter in one version: another one needs another file. Deleting the file loses nothing but time.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.usable = True  # until the file cannot be read or written

    def find(self, lines: Iterable[str]) -> dict[str, bytes]:
        """Return the packed lengths of those lines that are known."""
        by_key = {_key(line): line for line in lines}
        keys = list(by_key)

        def look_up(file: sqlite3.Connection) -> dict[str, bytes]:
            known = {}
            for i in range(0, len(keys), _AT_ONCE):
                some = keys[i : i + _AT_ONCE]
                question = f"SELECT line, lengths FROM cuts WHERE line IN ({','.join('?' * len(some))})"
                known |= {by_key[key]: lengths for key, lengths in file.execute(question, some)}
            return {line: lengths for line, lengths in known.items() if _fits(line, lengths)}

        return self._with_file(look_up) or {}

    def keep(self, cut: Mapping[str, bytes]) -> None:
        """Add the packed lengths of lines, all or none of them."""
        rows = [(_key(line), lengths) for line, lengths in cut.items()]
        self._with_file(lambda file: file.executemany("INSERT OR REPLACE INTO cuts VALUES (?, ?)", rows))

    def _with_file(self, work: Callable):
        """Return what `work` makes of the open file, in one transaction; None without a file that works."""
        if not self.usable:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, _PATIENCE)) as file, file:
                file.execute(_TABLE)
                return work(file)
        except (OSError, sqlite3.OperationalError) as error:  # a disk that is full or read-only, a file locked for long
            self.usable = False
            print(f"{self.path} cannot be used ({error}): lines are cut as if it were not there", file=sys.stderr)
        except sqlite3.DatabaseError as error:  # not the bytes that SQLite wrote
            print(f"{self.path} is damaged ({error}) and is begun anew", file=sys.stderr)
            for suffix in ("", "-journal"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        return None
