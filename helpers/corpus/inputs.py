"""What a corpus is read from: files, members of archives, slices of large files; and which kinds of them are read."""

import os
from dataclasses import dataclass
from pathlib import Path

from helpers.corpus.encodings import Encoding

KINDS = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet")
ALSO = {".ndjson": ".jsonl", ".jsonlines": ".jsonl"}  # other names of these kinds
PACKED = (".gz", ".zst")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
EXTENSIONS = (*(kind + packed for kind in (*KINDS, *ALSO) for packed in ("", *PACKED)), *ARCHIVES)


class NoDocuments(ValueError):
    """There is nothing usable; the message says what was looked for and where."""


@dataclass(frozen=True)
class Input:
    """One file, one member of an archive, or one slice of a large file.

    In an archive `start` is the offset of the member (for .tar also `stop`); a slice goes from byte `start` to `stop`.
    """

    path: Path
    name: str  # its name in the corpus: a/b.txt, or for a member a.zip/b.txt
    member: str = ""  # the archive's member ("": the file itself)
    start: int = 0  # first byte
    stop: int = 0  # byte after the last (0: to the end)
    encoding: Encoding | None = None  # decided once for all slices of a file
    mode: str = ""  # how a .txt is cut into documents; decided once for all slices
    size: int = 0  # bytes on disk, to balance the work


def kind_of(name: str) -> tuple[str, str]:
    """Return a name's kind and packing, (".csv", ".gz"); (".zip", "") for archives; the bare suffix for other kinds."""
    name = name.lower()
    for archive in ARCHIVES:
        if name.endswith(archive):
            return archive, ""
    packed = next((suffix for suffix in PACKED if name.endswith(suffix)), "")
    suffix = os.path.splitext(name.removesuffix(packed))[1]
    kind = ALSO.get(suffix, suffix)
    return (kind, packed) if kind in KINDS else (suffix + packed, "")


def is_ignored(name: str) -> bool:
    """Return whether a file is hidden, or left behind by an office program or an operating system."""
    return name.startswith((".", "~$")) or name in ("__MACOSX", "Thumbs.db", "desktop.ini")
