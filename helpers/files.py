"""Atomic writes of files and folders, folders kept for one program, and SHA-256 fingerprints.

An atomic write leaves the old content or the new, also when the process is killed or the disk is full: the file gets
a hidden temporary name first, is flushed to the disk, and is then renamed. Knows nothing of what a file holds.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

PATIENCE = 10.0  # seconds that a program which is just ending has to leave a folder

_hashes: dict[Path, tuple[tuple[int, int, int], str]] = {}  # file -> (inode, size, time of change), SHA-256


def log_rows(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log in JSON lines; what a crash or a full disk left torn is no row."""
    for line in lines:
        with contextlib.suppress(ValueError):
            if isinstance(row := json.loads(line), dict):
                yield row


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, and drop a file's cached pages, so that the next reader reads the disk."""
    windows = sys.platform == "win32"
    if windows and path.is_dir():  # no folder can be opened there; NTFS keeps a journal of names
        return
    # Windows flushes only what is open for writing
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if path.is_file() and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file that takes the place of `path` when the block ends, and is removed when the block raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")  # two machines may make the same file at once
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.errno:  # of a full disk the system names no file
            error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically; line ends stay as they are."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def write_folder(folder: Path, write: Callable[[Path], object], check: Callable[[Path], object] | None = None) -> None:
    """Make a folder atomically: call write(temporary folder), flush it, call check(temporary folder), and rename it.

    A folder that exists is replaced. Raises OSError and what `write` and `check` raise; then `folder` is as before.
    """
    if not folder.parent.exists():  # a new folder lasts a power cut only if its own parent is flushed too
        folder.parent.mkdir(parents=True)
        sync(folder.parent.parent)
    tidy_folder(folder)
    part, old = _hidden(folder, "part"), _hidden(folder, "old")
    try:
        # 1. the content, under a temporary name
        part.mkdir()
        write(part)
        for path in (*part.rglob("*"), part):
            if path.is_file():  # safetensors' own are for their owner alone, whatever the umask allows
                path.chmod(part.stat().st_mode & 0o666)
            sync(path)
        if check:
            check(part)
        # 2. two renames; a process that dies between them leaves `old`, and `tidy_folder` puts it back
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        sync(folder.parent)
    finally:
        tidy_folder(folder)


def tidy_folder(folder: Path) -> None:
    """Remove what a killed `write_folder` left behind; put the old folder back if it died between two renames."""
    shutil.rmtree(_hidden(folder, "part"), ignore_errors=True)
    old = _hidden(folder, "old")
    if not folder.exists():
        with contextlib.suppress(FileNotFoundError):  # nothing to put back, or another process was quicker
            old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


class Occupied(RuntimeError):
    """Another program is at work in the same folder."""


@contextlib.contextmanager
def occupied(folder: Path, mends: str = "Wait until it has ended, or end it.") -> Iterator[None]:
    """Keep a folder for one program; the system releases it when the process ends, however it ends.

    Raises Occupied if another one keeps it for longer than PATIENCE; `mends` says what to do about it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise Occupied(
            f"another program, or another notebook, is at work in {folder}: two would spoil each other's files. {mends}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _hidden(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def sha256(path: Path) -> str:
    """Return a file's SHA-256 as hex digits, read block by block."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_sha256(path: Path) -> str:
    """Return a file's SHA-256; one that has not changed since this process last read it is not read again."""
    stat = path.stat()
    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    stamped, digest = _hashes.get(path, (None, ""))
    if stamped == stamp:
        return digest
    digest = sha256(path)
    # a file changed just now may change again within the same tick of the file system's clock
    if time.time_ns() - stat.st_mtime_ns > 100_000_000:
        _hashes[path] = stamp, digest
    return digest


def hash_files(files: Iterable[Path], base: Path) -> dict[str, str]:
    """Return {path: SHA-256}, sorted by path; paths under `base` are written relative to it, others as they are."""
    hashes = {}
    for file in sorted(map(Path, files)):
        name = file.relative_to(base) if file.is_relative_to(base) else file
        hashes[name.as_posix()] = known_sha256(file)
    return hashes


def fingerprint(*parts: object) -> str:
    """Return a SHA-256 of values that JSON can hold (of others, of their `repr`): equal values, equal fingerprints."""
    text = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def stamp(path: Path) -> tuple[str, int, int]:
    """Return (path, size, time of change): a cheap sign of whether a file that is too large to hash has changed."""
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns
