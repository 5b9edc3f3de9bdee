"""Archives and packed files as streams of bytes: zip, tar, gz, zst.

They are read in place, but for the members of a .tar.gz, which go through a temporary file. There are limits against
"bombs": small files that unpack to very much.
"""

import contextlib
import functools
import gzip
import io
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO

from helpers.corpus import encodings
from helpers.corpus.encodings import BadFile, ByteSource
from helpers.corpus.inputs import ARCHIVES, KINDS, Input, is_ignored, kind_of

RATIO = 200  # bytes unpacked per packed byte; text has about 4
SMALL = 2**26  # up to so many unpacked bytes any ratio is accepted


def list_archive(item: Input, left_out: Counter) -> list[Input]:
    """Return the members of an archive that can be read; count the others by reason. Raises BadFile if it is broken."""
    inputs = []
    members = _zip_members if kind_of(item.path.name)[0] == ".zip" else _tar_members
    for name, start, stop, size, reason in members(item):
        parts = name.replace("\\", "/").split("/")
        kind = kind_of(parts[-1])[0]
        if ".." in parts or not parts[0] or re.match("[A-Za-z]:", name):
            left_out["members with a path that leads out of their archive"] += 1
        elif any(is_ignored(part) for part in parts if part != "."):
            continue
        elif reason or kind in ARCHIVES:
            left_out[reason or "archives inside an archive"] += 1
        elif kind not in KINDS:
            left_out[kind or "(none)"] += 1
        else:
            inputs.append(replace(item, name=f"{item.name}/{name}", member=name, start=start, stop=stop, size=size))
    return inputs


def _decode_name(raw: bytes, otherwise: str) -> str:
    """Return a member's name that does not say its encoding: UTF-8, or GBK as a Chinese Windows writes it."""
    for codec in ("utf-8", "gb18030"):
        with contextlib.suppress(UnicodeDecodeError):
            return encodings.decode(raw, codec)
    return otherwise


def _zip_members(item: Input) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield (name, offset, 0, packed size, why it cannot be read) of each file in a .zip."""
    infos = _open_zip(item.path, item.path.stat().st_mtime_ns)[1].values()
    total = sum(info.file_size for info in infos)
    if total > max(SMALL, RATIO * item.size):
        raise BadFile(f"it would unpack to {total:,} bytes, more than {RATIO} times its size: a bomb?")
    for info in infos:
        if info.is_dir():
            continue
        mode = info.external_attr >> 16 if info.create_system == 3 else 0  # 3: written on Unix
        reason = "links and devices in an archive" if stat.S_IFMT(mode) not in (0, stat.S_IFREG) else ""
        reason = "encrypted members" if info.flag_bits & 0x1 else reason
        name = info.filename
        if not info.flag_bits & 0x800:  # it does not say that it is UTF-8, and `zipfile` takes it for cp437
            with contextlib.suppress(UnicodeEncodeError):  # then the name is from the field that is always UTF-8
                name = _decode_name(name.encode("cp437"), name)
        yield name, info.header_offset, 0, info.compress_size, reason


@contextlib.contextmanager
def _or_bad(what: str) -> Iterator[None]:
    """Turn what `zipfile` raises for damaged bytes into BadFile; a file that cannot be opened keeps its OSError."""
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise BadFile(f"{what}: {error}") from None


@functools.lru_cache(maxsize=1)
def _open_zip(path: Path, changed: int) -> tuple[zipfile.ZipFile, dict[int, zipfile.ZipInfo]]:
    """Return an open .zip and its members by offset; kept for the next member, as its directory may be long."""
    with _or_bad("this .zip cannot be opened"):
        archive = zipfile.ZipFile(path)
    return archive, {info.header_offset: info for info in archive.infolist()}


def _tar_members(item: Input) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield (name, first byte, byte after the last, size, why it cannot be read) of each member of a .tar, .tar.gz."""
    packed = kind_of(item.path.name)[0] != ".tar"
    with _unpacked(open(item.path, "rb"), ".gz" if packed else "") as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|" if packed else "r:") as archive:
                while info := archive.next():
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                    reason = "" if info.isreg() and not info.issparse() else "links and devices in an archive"
                    if not info.isdir():
                        name = _decode_name(info.name.encode("utf-8", "surrogateescape"), ascii(info.name))
                        yield name, info.offset_data, info.offset_data + info.size, info.size, reason
        except (tarfile.TarError, EOFError) as error:
            raise BadFile(f"this archive is broken: {error}") from None


class _Stream(io.RawIOBase):
    """The bytes that `blocks` gives from a file. Raises BadFile where this is damaged, cut off or a bomb."""

    def __init__(self, blocks: Iterator[bytes], file: IO[bytes], size: int = 0):
        self.blocks, self.file, self.size = blocks, file, size  # packed bytes (0: as many as were read until now)
        self.ready, self.count = memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.count

    def readinto(self, buffer) -> int:
        try:
            while not self.ready and (block := next(self.blocks, None)) is not None:
                self.ready = memoryview(block)
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise BadFile(f"damaged or cut off: unpacking stops after {self.count:,} bytes of text ({error})") from None
        data, self.ready = self.ready[: len(buffer)], self.ready[len(buffer) :]
        self.count += len(data)
        if self.count > max(SMALL, RATIO * (self.size or self.file.tell())):
            raise BadFile(f"it unpacks to more than {RATIO} times its size, {self.count:,} bytes until now: a bomb?")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.ready = memoryview(b"")  # may be 32 MB
        self.file.close()
        super().close()


def _buffered(blocks: Iterator[bytes], file: IO[bytes], size: int = 0) -> BinaryIO:
    return io.BufferedReader(_Stream(blocks, file, size), encodings.BLOCK_BYTES)


def _zst_blocks(packed: BinaryIO) -> Iterator[bytes]:
    """Yield what a .zst unpacks to, taking 1 KB at a time: that may become 32 MB.

    Unlike the library's own reader, this one raises EOFError for a file that is cut off.
    """
    try:
        import zstandard
    except ImportError:
        raise BadFile('reading .zst needs a library: pip install -e ".[text]"') from None
    frame, data = None, b""
    while data or (data := packed.read(1024)):
        # the largest window there is, which `zstd --long=31` writes; memory is taken as it fills
        frame = frame or zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
        try:
            yield frame.decompress(data)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
        data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame:
        raise EOFError("the last frame has no end")


def _unpacked(stream: BinaryIO, packing: str) -> BinaryIO:
    if not packing:
        return stream
    blocks = _blocks(gzip.GzipFile(fileobj=stream).read) if packing == ".gz" else _zst_blocks(stream)
    return _buffered(blocks, stream)


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(lambda: read(encodings.BLOCK_BYTES), b"")


@functools.lru_cache(maxsize=1)
def _open_tar_gz(path: Path, changed: int) -> BinaryIO:
    """Return an open .tar.gz or .tgz; kept for the next member, so that not each is looked for from the start."""
    return _unpacked(open(path, "rb"), ".gz")


def _member_blocks(stream: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes from `start` to before `stop` of a stream that is at `start` or before."""
    while block := stream.read(min(encodings.BLOCK_BYTES, (start if stream.tell() < start else stop) - stream.tell())):
        if stream.tell() > start:
            yield block


def open_bytes(item: Input, stack: contextlib.ExitStack) -> ByteSource:
    """Return the file, or a function that opens its unpacked stream, any number of times until `stack` closes."""
    packing = kind_of(item.member or item.path.name)[1]
    if packing and not item.member:
        return lambda: _unpacked(open(item.path, "rb"), packing)
    if not item.member and not item.start + item.stop and item.size <= encodings.SAMPLE_BYTES:
        data = item.path.read_bytes()  # it is opened several times: of many small files, opening is the work
        return lambda: io.BytesIO(data)
    if not item.member:
        return item.path
    archive = kind_of(item.path.name)[0]
    changed = item.path.stat().st_mtime_ns
    if archive == ".zip":
        return lambda: _unpacked(_zip_stream(item, changed), packing)
    if archive == ".tar":
        return lambda: _unpacked(_tar_stream(item), packing)
    stream = _open_tar_gz(item.path, changed)
    if stream.tell() > item.start:
        _open_tar_gz.cache_clear()
        stream = _open_tar_gz(item.path, changed)
    path = spool(_member_blocks(stream, item.start, item.stop), stack)
    return lambda: _unpacked(open(path, "rb"), packing)


def _tar_stream(item: Input) -> BinaryIO:
    file = open(item.path, "rb")
    file.seek(item.start)
    return _buffered(_member_blocks(file, item.start, item.stop), file, item.size)


def _zip_stream(item: Input, changed: int) -> BinaryIO:
    archive, members = _open_zip(item.path, changed)
    info = members[item.start]
    with _or_bad("this member cannot be read"):
        inner = archive.open(info)
    return _buffered(_blocks(inner.read), inner, info.compress_size or 1)


def spool(blocks: Iterable[bytes], stack: contextlib.ExitStack) -> Path:
    """Write a stream that can be read only once to a temporary file; it goes when `stack` closes."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chinese-gpt-"))) / "spool"
    with open(path, "wb") as file:
        file.writelines(blocks)
    return path
