"""Archives and packed files as streams of bytes: zip, tar, gz, zst; read in place, with limits against bombs."""

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
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from helpers.corpus import encodings
from helpers.corpus.encodings import BadFile, Source
from helpers.corpus.inputs import ARCHIVES, KINDS, Input, is_ignored, kind_of

# what is packed may unpack to very much: a "bomb"
MEMBERS = 1_000_000  # of one archive
UNPACKED = 2**36  # bytes of one packed file or member
RATIO = 200  # bytes unpacked for each packed one; text has about 4
SMALL = 2**26  # up to so many bytes anything goes


def list_archive(item: Input, others: Counter) -> list[Input]:
    """Return the members of an archive that can be read; count the others by reason. Raises BadFile if it is broken."""
    inputs = []
    found = _zip_members if kind_of(item.path.name)[0] == ".zip" else _tar_members
    for number, (name, start, stop, size, why) in enumerate(found(item)):
        if number == MEMBERS:
            raise BadFile(f"more than {MEMBERS:,} members: unpack it yourself, and give the folder")
        parts = name.replace("\\", "/").split("/")
        kind = kind_of(parts[-1])[0]
        if ".." in parts or not parts[0] or re.match("[A-Za-z]:", name):
            others["members with a path that leads out of their archive"] += 1
        elif any(is_ignored(part) for part in parts if part != "."):
            continue
        elif why or kind in ARCHIVES:
            others[why or "archives inside an archive"] += 1
        elif kind not in KINDS:
            others[kind or "(none)"] += 1
        else:
            inputs.append(replace(item, source=f"{item.source}/{name}", member=name, start=start, stop=stop, size=size))
    return inputs


def _zip_members(item: Input) -> Iterator[tuple]:
    """Yield (name, place, 0, packed size, why it cannot be read) of each file in a .zip."""
    infos = list(_open_zip(item.path, item.path.stat().st_mtime_ns)[1].values())
    total = sum(info.file_size for info in infos)
    if total > max(SMALL, RATIO * item.size):
        raise BadFile(f"it would unpack to {total:,} bytes, more than {RATIO} times its size: a bomb?")
    names = _old_names([_old_name(info) for info in infos])
    for info in infos:
        if info.is_dir():
            continue
        mode = info.external_attr >> 16 if info.create_system == 3 else 0  # 3: written on Unix
        why = "links and devices in an archive" if stat.S_IFMT(mode) not in (0, stat.S_IFREG) else ""
        why = "encrypted members" if info.flag_bits & 0x1 else why
        yield names.get(_old_name(info), info.filename), info.header_offset, 0, info.compress_size, why


def _old_name(info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a name that does not say it is UTF-8; b"" where it does."""
    return b"" if info.flag_bits & 0x800 else info.filename.encode("cp437")


def _old_names(raw: list[bytes]) -> dict[bytes, str]:
    """Decode the names of a .zip that does not say their encoding: on a Chinese Windows that was GBK."""
    raw = [name for name in raw if not name.isascii()]
    try:
        codec = encodings.find_encoding(lambda: io.BytesIO(b"\n".join(raw))).name
        return {name: name.decode(codec) for name in raw}
    except (BadFile, UnicodeDecodeError):
        return {}


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
    """Return an open .zip and its members by place; kept for the next member, as its directory may be long."""
    with _or_bad("this .zip cannot be opened"):
        archive = zipfile.ZipFile(path)
    return archive, {info.header_offset: info for info in archive.infolist()}


def _tar_members(item: Input) -> Iterator[tuple]:
    """Yield (name, first byte, byte after the last, size, why it cannot be read) of each member of a .tar, .tar.gz."""
    packed = kind_of(item.path.name)[0] != ".tar"
    with _unpacked(open(item.path, "rb"), ".gz" if packed else "") as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|" if packed else "r:") as archive:
                while info := archive.next():
                    archive.members = []  # it would keep them all
                    why = "" if info.isreg() and not info.issparse() else "links and devices in an archive"
                    if info.size > UNPACKED:
                        raise BadFile(f"its member {info.name} has {info.size:,} bytes: more than {UNPACKED:,}")
                    if not info.isdir():
                        yield _tar_name(info), info.offset_data, info.offset_data + info.size, info.size, why
        except (tarfile.TarError, EOFError) as error:
            raise BadFile(f"this archive is broken: {error}") from None


def _tar_name(info: tarfile.TarInfo) -> str:
    """Return a member's name as text: where it is not UTF-8 it is likely GBK."""
    raw = info.name.encode("utf-8", "surrogateescape")
    return next((raw.decode(codec) for codec in ("utf-8", "gb18030") if encodings.fits(raw, codec)), ascii(info.name))


class _Unpacked(io.RawIOBase):
    """What comes out of a packed stream, as long as it is whole and no bomb."""

    def __init__(self, inner: BinaryIO, packed: BinaryIO, size: int = 0):
        self.inner, self.packed, self.size, self.count = inner, packed, size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            data = self.inner.read(len(buffer))
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise BadFile(f"damaged or cut off: unpacking stops after {self.count:,} bytes of text ({error})") from None
        self.count += len(data)
        if self.count > max(SMALL, RATIO * (self.size or self.packed.tell())):
            raise BadFile(f"it unpacks to more than {RATIO} times its size, {self.count:,} bytes until now: a bomb?")
        if self.count > UNPACKED:
            raise BadFile(f"it unpacks to more than {UNPACKED:,} bytes: cut it into several files")
        buffer[: len(data)] = data
        return len(data)

    def tell(self) -> int:
        return self.count

    def close(self) -> None:
        self.inner.close()
        self.packed.close()
        super().close()


class _Zst:
    """A .zst as a stream. Takes little at a time, for 1 KB may become 32 MB; tells a file that is cut off."""

    def __init__(self, packed: BinaryIO):
        try:
            import zstandard
        except ImportError:
            raise BadFile('reading .zst needs a library: pip install -e ".[text]"') from None
        self.packed, self.error, self.unpacker = packed, zstandard.ZstdError, zstandard.ZstdDecompressor()
        self.frame, self.rest, self.ready, self.at = None, b"", b"", 0

    def read(self, size: int) -> bytes:
        while self.at == len(self.ready):
            data = self.rest or self.packed.read(1024)
            if not data:
                if self.frame:
                    raise EOFError("the last frame has no end")
                return b""
            self.frame = self.frame or self.unpacker.decompressobj()
            try:
                self.ready, self.at = self.frame.decompress(data), 0
            except self.error as error:
                raise EOFError(str(error)) from None
            self.rest = self.frame.unused_data if self.frame.eof else b""
            self.frame = None if self.frame.eof else self.frame
        self.at += size
        return self.ready[self.at - size : self.at] if self.at <= len(self.ready) else self._last(size)

    def _last(self, size: int) -> bytes:
        data = self.ready[self.at - size :]
        self.at = len(self.ready)
        return data

    def close(self) -> None:
        self.ready = b""


def _unpacked(stream: BinaryIO, packing: str) -> BinaryIO:
    if not packing:
        return stream
    inner = gzip.GzipFile(fileobj=stream) if packing == ".gz" else _Zst(stream)
    return io.BufferedReader(_Unpacked(inner, stream), encodings.BLOCK_BYTES)


class _Tape:
    """A .tar.gz or .tgz whose members are read in order, without starting again for each."""

    def __init__(self, path: Path):
        self.path, self.stream, self.at = path, None, 0

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        if self.stream is None or start < self.at:
            self.stream, self.at = _unpacked(open(self.path, "rb"), ".gz"), 0
        while block := self.stream.read(min(encodings.BLOCK_BYTES, (start if self.at < start else stop) - self.at)):
            self.at += len(block)
            if self.at > start:
                yield block


@functools.lru_cache(maxsize=1)
def _tape(path: Path, changed: int) -> _Tape:
    return _Tape(path)


class _Window(io.RawIOBase):
    """A member of a .tar: the bytes of a file from one place to another."""

    def __init__(self, file: BinaryIO, start: int, stop: int):
        self.file, self.left, self.count = file, stop - start, 0
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = self.file.readinto(memoryview(buffer)[: self.left])
        self.left -= count
        self.count += count
        return count

    def tell(self) -> int:
        return self.count

    def close(self) -> None:
        self.file.close()
        super().close()


def open_source(item: Input, stack: contextlib.ExitStack) -> Source:
    """Return the file, or a function that opens the stream of its text, as often as one likes."""
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
        window = functools.partial(_Window, start=item.start, stop=item.stop)
        return lambda: _unpacked(io.BufferedReader(window(open(item.path, "rb"))), packing)
    path = spool(_tape(item.path, changed).read(item.start, item.stop), stack)
    return lambda: _unpacked(open(path, "rb"), packing)


def _zip_stream(item: Input, changed: int) -> BinaryIO:
    archive, places = _open_zip(item.path, changed)
    info = places[item.start]
    with _or_bad("this member cannot be read"):
        inner = archive.open(info)
    return io.BufferedReader(_Unpacked(inner, inner, info.compress_size or 1), encodings.BLOCK_BYTES)


def spool(blocks: Iterable[bytes], stack: contextlib.ExitStack) -> Path:
    """Write a stream that can be read only once to a temporary file; it goes when `stack` closes."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chinese-gpt-"))) / "spool"
    with open(path, "wb") as file:
        file.writelines(blocks)
    return path
