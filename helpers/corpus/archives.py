"""What a corpus is read from: files, slices of large ones, members of archives; and their bytes, unpacked.

What is packed (.gz, .zst) or in a zip or tar is first unpacked to a temporary file, within a limit against "bombs":
small files that unpack to very much. Knows nothing of characters.
"""

import contextlib
import functools
import gzip
import os
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO

from helpers.corpus import encodings
from helpers.corpus.encodings import BadFile, Encoding
from helpers.wording import install, say

DOCUMENTS = (".pdf", ".docx", ".epub", ".html")
FILE_KINDS = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", *DOCUMENTS)
ALSO = {".ndjson": ".jsonl", ".jsonlines": ".jsonl", ".htm": ".html", ".xhtml": ".html"}  # other names of these kinds
PACKED = (".gz", ".zst")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
EXTENSIONS = (*(kind + packed for kind in (*FILE_KINDS, *ALSO) for packed in ("", *PACKED)), *ARCHIVES)
IN_WORDS = f"{', '.join([*FILE_KINDS, *ALSO])}, each also {' or '.join(PACKED)}, {', '.join(ARCHIVES)}"
RATIO = 200  # bytes unpacked per packed byte; text has about 4
SMALL_BYTES = 2**26  # up to so many unpacked bytes any ratio is accepted


class NoDocuments(ValueError):
    """There is nothing usable; the message says what was looked for and where."""


@dataclass(frozen=True)
class Input:
    """One file, one member of an archive, or one slice of a large file."""

    path: Path
    name: str  # its name in the corpus: a/b.txt, or for a member a.zip/b.txt
    member: str = ""  # the archive's member ("": the file itself)
    start: int = 0  # first byte of a slice; where a member begins in its archive
    stop: int = 0  # byte after the last of a slice (0: to the end)
    encoding: Encoding | None = None  # decided once for all slices of a file
    mode: str = ""  # how a .txt is cut into documents; decided once for all slices
    size: int = 0  # bytes on disk, to balance the work

    def identity(self) -> tuple[Path, int]:
        """Return what only the slices of one file share, or of one member: names may be equal."""
        return self.path, self.start if self.member else -1


def kind_of(name: str) -> tuple[str, str]:
    """Return a name's kind and packing, (".csv", ".gz"); (".zip", "") for archives; the bare suffix for other kinds."""
    name = name.lower()
    for archive in ARCHIVES:
        if name.endswith(archive):
            return archive, ""
    packed = next((suffix for suffix in PACKED if name.endswith(suffix)), "")
    suffix = os.path.splitext(name.removesuffix(packed))[1]
    kind = ALSO.get(suffix, suffix)
    return (kind, packed) if kind in FILE_KINDS else (suffix + packed, "")


def is_ignored(name: str) -> bool:
    """Return whether a file is hidden, or left behind by an office program or an operating system."""
    return name.startswith((".", "~$")) or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


# ---- what is in an archive ----


def list_archive(item: Input, left_out: Counter) -> list[Input]:
    """Return the members of an archive that can be read; count the others by reason. Raises BadFile if it is broken."""
    archive, infos = open_archive(item.path, item.path.stat().st_mtime_ns)
    total = sum(info.file_size if isinstance(info, zipfile.ZipInfo) else info.size for info in infos.values())
    if total > max(SMALL_BYTES, RATIO * item.size):
        raise BadFile(f"it would unpack to {total:,} bytes, more than {RATIO} times its size: a bomb?")
    inputs = []
    for start, info in infos.items():
        name, size, reason = (_zip_member if isinstance(info, zipfile.ZipInfo) else _tar_member)(info)
        parts = name.replace("\\", "/").split("/")
        kind = kind_of(parts[-1])[0]
        if ".." in parts or not parts[0] or re.match("[A-Za-z]:", name):
            left_out["members with a path that leads out of their archive"] += 1
        elif any(is_ignored(part) for part in parts if part != "."):
            continue
        elif reason or kind in ARCHIVES:
            left_out[reason or "archives inside an archive"] += 1
        elif kind not in FILE_KINDS:
            left_out[kind or "(none)"] += 1
        else:
            inputs.append(replace(item, name=f"{item.name}/{name}", member=name, start=start, size=size))
    return inputs


def _zip_member(info: zipfile.ZipInfo) -> tuple[str, int, str]:
    """Return a member's name, its packed size, and why it cannot be read."""
    mode = info.external_attr >> 16 if info.create_system == 3 else 0  # 3: written on Unix
    reason = "links and devices in an archive" if stat.S_IFMT(mode) not in (0, stat.S_IFREG) else ""
    reason = "encrypted members" if info.flag_bits & 0x1 else reason
    name = info.filename
    if not info.flag_bits & 0x800:  # it does not say that it is UTF-8, and `zipfile` takes it for cp437
        with contextlib.suppress(UnicodeEncodeError):  # then the name is from the field that is always UTF-8
            name = _decode_name(name.encode("cp437"), name)
    return name, info.compress_size, reason


def _tar_member(info: tarfile.TarInfo) -> tuple[str, int, str]:
    """Return a member's name, its size, and why it cannot be read."""
    reason = "" if info.isreg() and not info.issparse() else "links and devices in an archive"
    return _decode_name(info.name.encode("utf-8", "surrogateescape"), ascii(info.name)), info.size, reason


def _decode_name(raw: bytes, otherwise: str) -> str:
    """Return a member's name that does not say its encoding: UTF-8, or GBK as a Chinese Windows writes it."""
    for codec in ("utf-8", "gb18030"):
        with contextlib.suppress(UnicodeDecodeError):
            return encodings.decode_strictly(raw, codec)
    return otherwise


@functools.lru_cache(maxsize=1)
def open_archive(path: Path, changed: int):
    """Return an open archive and its files by offset; kept for the next member, as its directory may be long."""
    try:
        if kind_of(path.name)[0] == ".zip":
            zipped = zipfile.ZipFile(path)
            return zipped, {info.header_offset: info for info in zipped.infolist() if not info.is_dir()}
        tar = tarfile.open(path, "r:" if kind_of(path.name)[0] == ".tar" else "r:gz")
        return tar, {info.offset: info for info in tar if not info.isdir()}
    except (*DAMAGE, tarfile.TarError, ValueError, OSError) as error:
        if isinstance(error, BadFile) or getattr(error, "filename", None):  # the file itself cannot be opened
            raise
        raise BadFile(f"this archive cannot be opened: {error}") from None


# ---- bytes ----


DAMAGE = (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


@contextlib.contextmanager
def plain_file(item: Input) -> Iterator[Path]:
    """Give the file of an input, or one that it is unpacked to while the block runs."""
    packing = kind_of(item.member or item.path.name)[1]
    if not item.member and not packing:
        yield item.path
        return
    with tempfile.TemporaryDirectory(prefix="chinese-gpt-") as folder:
        path = Path(folder, "unpacked")
        with _open_member(item) if item.member else open(item.path, "rb") as stream, open(path, "wb") as file:
            _unpack(stream, packing, item.size, file)
        yield path


def _open_member(item: Input) -> IO[bytes]:
    archive, infos = open_archive(item.path, item.path.stat().st_mtime_ns)
    try:
        member = infos[item.start]
        return archive.open(member) if isinstance(archive, zipfile.ZipFile) else archive.extractfile(member)
    except (*DAMAGE, KeyError, OSError) as error:
        raise BadFile(f"this member cannot be read: {error}") from None


def _unpack(stream: IO[bytes], packing: str, size: int, file: BinaryIO) -> None:
    """Write what a stream of `size` bytes unpacks to. Raises BadFile if it is damaged, cut off or a bomb."""
    read = gzip.GzipFile(fileobj=stream).read1 if packing == ".gz" else stream.read  # all that was good before a fault
    if packing == ".zst":
        try:
            import pyarrow
        except ImportError:
            raise BadFile(say("reading {} needs a library: {}", ".zst", install("text"))) from None
        read = pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd").read
    blocks = iter(lambda: read(encodings.BLOCK_BYTES), b"")
    while True:
        try:
            block = next(blocks, None)
        except (*DAMAGE, OSError) as error:
            if isinstance(error, gzip.BadGzipFile) and not file.tell():
                raise BadFile("not packed with gzip, whatever its name says: take .gz away from it") from None
            raise BadFile(f"damaged or cut off: unpacking stops after {file.tell():,} bytes ({error})") from None
        if block is None:
            return
        file.write(block)  # an error here is one of the disk
        if file.tell() > max(SMALL_BYTES, RATIO * size):
            raise BadFile(f"it unpacks to more than {RATIO} times its size, {file.tell():,} bytes until now: a bomb?")
