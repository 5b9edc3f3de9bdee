"""The map half of room 01: files, and slices of large ones, become parts: cleaned documents, and an index of them.

A part is three files beside each other: the lines of the shards to be; an index of them, a row a document; and, where
near duplicates are looked for, the signatures. What became of the files is written last: with it a part is finished,
and a later build that needs the same part finds it by its name. Knows nothing of other parts, nor of the split.
"""

import functools
import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from pathlib import Path

import numpy as np

from helpers import parallel
from helpers.corpus import cleaning, dedup, formats
from helpers.corpus.encodings import BadFile
from helpers.corpus.formats import ReadOptions
from helpers.corpus.inputs import Input
from helpers.corpus.mojibake import look
from helpers.corpus.report import FileReport
from helpers.files import write_text

TASK_BYTES, TASK_FILES = 8 * 2**20, 2000  # small files travel to a worker together, large ones in slices
BATCH = 1_000_000  # characters that are cleaned together, and among which a line can repeat
TOGETHER = 50  # documents of a batch with dirt in it that are looked at together
LOOK = 500_000  # characters of a file, or of each slice of it, that are searched for mojibake
_ROW = np.dtype([("hash", "<u8", 2), ("place", "<u8"), ("characters", "<u4"), ("bytes", "<u4"), ("file", "<u4")])


@dataclass(frozen=True)
class Settings:
    """What the documents of a part depend on, beside its files."""

    how: ReadOptions
    on: frozenset[str]
    min_length: int
    max_length: int
    limits: tuple[tuple[str, float], ...]  # of cleaning.unfit
    near: bool
    seed: int


@dataclass(frozen=True)
class Task:
    """The files of one part, and where it is to be written."""

    inputs: tuple[Input, ...]
    part: Path  # the name that its files share
    settings: Settings


def digest(text: str) -> str:
    """Return a document's identity: 16 bytes of hash as hex digits. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def place(key: str, seed: int) -> int:
    """Return a document's place in the split, below 2^48, from its digest and the seed alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=6).digest())


def read_index(part: Path) -> np.ndarray:
    """Return a part's index, a row a document: its hash, place in the split, characters, bytes, and number of file."""
    return np.load(part.with_suffix(".npy"))


# ---------------------------------------------------------------- which files make which part


def _cut_large(item: Input, how: ReadOptions, max_bytes: int) -> list[Input] | str:
    """Return the slices of a large file, or why it cannot be used."""
    try:
        return formats.slices(item, how, max_bytes)
    except (BadFile, OSError) as error:
        return _why(error)


def make_tasks(
    inputs: list[Input], bad: dict[str, str], folder: Path, settings: Settings, pool: Executor
) -> list[Task]:
    """Group inputs for the workers, by size alone, so that the number of workers changes nothing.

    What cannot be cut into slices is noted in `bad` (name -> why), and left out.
    """
    large = [item for item in inputs if item.size > TASK_BYTES and not item.stop]
    found = parallel.map_shards(pool, functools.partial(_cut_large, how=settings.how, max_bytes=TASK_BYTES), large)
    cut = dict(zip(large, found, strict=True))
    groups: list[list[Input]] = [[]]
    size = 0
    for item in inputs:
        pieces = cut.get(item, [item])
        if isinstance(pieces, str):
            bad[item.source], pieces = pieces, []
        for piece in pieces:
            if groups[-1] and (size + piece.size > TASK_BYTES or len(groups[-1]) == TASK_FILES):
                groups.append([])
                size = 0
            groups[-1].append(piece)
            size += piece.size
    groups = [group for group in groups if group]
    stamps: dict[Path, tuple] = {}
    return [Task(tuple(group), folder / _fingerprint(group, settings, stamps), settings) for group in groups]


def _fingerprint(inputs: list[Input], settings: Settings, stamps: dict[Path, tuple]) -> str:
    """Return the name of a part: the same for the same files, unchanged, with the same settings and the same code."""
    code = sorted(Path(__file__).parent.glob("*.py"))
    for path in [*code, *(item.path for item in inputs)]:
        if path not in stamps:
            stat = path.stat()
            stamps[path] = (stat.st_size, stat.st_mtime_ns)
    told = [{**vars(settings), "on": sorted(settings.on)}, [stamps[path] for path in code]]
    told += [(item, stamps[item.path]) for item in inputs]
    return hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


# ---------------------------------------------------------------- one part


class Writer:
    """Writes the files of one part under names nobody else uses, and gives them their real names at the end."""

    def __init__(self, part: Path, seed: int, near: bool):
        self.part, self.seed, self.near = part, seed, near
        self.name = f".{part.name}.{uuid.uuid4().hex}"  # the same task may run twice, on two machines
        self.rows: list[np.ndarray] = []
        self.signatures: list[np.ndarray] = []
        self.file = open(self._beside(".lines"), "wb")  # noqa: SIM115 (closed by finish or discard)

    def _beside(self, suffix: str) -> Path:
        return self.part.with_name(self.name + suffix)

    def write(self, texts: list[str], numbers: list[int], sources: list[str]) -> None:
        """Add documents; `sources` are the names of the task's files, `numbers` say from which each document is."""
        if not texts:
            return
        lines, keys, places = [], [], []
        for text, number in zip(texts, numbers, strict=True):
            key = hashlib.blake2b(text.encode(), digest_size=16)
            keys.append(key.digest())
            places.append(place(key.hexdigest(), self.seed))
            # what json.dumps writes with ensure_ascii=False, without its detours
            line = f'{{"text": {encode_basestring(text)}, "source": {encode_basestring(sources[number])}}}\n'
            lines.append(line.encode())
        rows = np.empty(len(texts), _ROW)
        rows["hash"] = np.frombuffer(b"".join(keys), ">u8").reshape(-1, 2)
        rows["place"], rows["file"] = places, numbers
        rows["characters"], rows["bytes"] = list(map(len, texts)), list(map(len, lines))
        self.rows.append(rows)
        if self.near:
            self.signatures.append(dedup.signatures(texts))
        self.file.write(b"".join(lines))

    def finish(self, facts: dict) -> None:
        """Give the files their names; the facts come last."""
        self.file.close()
        written = [".lines", ".npy"]
        with open(self._beside(".npy"), "wb") as file:
            np.save(file, np.concatenate([np.empty(0, _ROW), *self.rows]))
        if self.near:
            written.append(".minhash")
            with open(self._beside(".minhash"), "wb") as file:
                empty = np.empty((0, dedup.PERMUTATIONS), np.uint32)
                np.save(file, np.concatenate([empty, *self.signatures]))
        for suffix in written:
            os.replace(self._beside(suffix), self.part.with_suffix(suffix))
        write_text(self.part.with_suffix(".json"), json.dumps(facts, ensure_ascii=False))

    def discard(self) -> None:
        """Leave nothing behind of a part that was not finished."""
        self.file.close()
        for suffix in (".lines", ".npy", ".minhash"):
            self._beside(suffix).unlink(missing_ok=True)


def read_task(task: Task) -> Path:
    """Read, clean and cut the documents of some files into one part; return the part."""
    if _finished(task.part):
        return task.part
    part = Writer(task.part, task.settings.seed, task.settings.near)
    try:
        reports = [FileReport(item.source) for item in task.inputs]
        facts = [Counter() for _ in task.inputs]  # of each file, counts that become notes when its slices are joined
        examples: dict[str, list] = {}
        sources = [item.source for item in task.inputs]
        for texts, numbers in _batches(task, reports):
            _look(texts, numbers, facts)
            part.write(*_clean_batch(texts, numbers, task.settings, reports, facts, examples), sources)
        files = [vars(report) for report in reports]
        part.finish({"files": files, "facts": facts, "examples": examples})
    finally:
        part.discard()
    return task.part


def _finished(part: Path) -> bool:
    """Tell whether an earlier build left this part whole; a power cut may have kept only the names."""
    if not part.with_suffix(".json").is_file():
        return False
    try:
        return part.with_suffix(".lines").stat().st_size == read_index(part)["bytes"].sum()
    except (OSError, ValueError, EOFError):
        return False


def _batches(task: Task, reports: list[FileReport]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the raw documents of a task's files, many at a time, and the number of the file of each."""
    texts: list[str] = []
    numbers: list[int] = []
    size = 0
    for number, item in enumerate(task.inputs):
        try:
            for text in formats.read(item, task.settings.how, reports[number]):
                texts.append(text)
                numbers.append(number)
                size += len(text)
                if size >= BATCH:
                    yield texts, numbers
                    texts, numbers, size = [], [], 0
        except (BadFile, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # not a file that cannot be opened: the disk itself is full or failing
            reports[number] = FileReport(item.source, reports[number].encoding, bad=_why(error))
    if texts:
        yield texts, numbers


def _why(error: BadFile | OSError) -> str:
    return str(error) if isinstance(error, BadFile) else f"cannot be read: {error.strerror}"


def _look(texts: list[str], numbers: list[int], facts: list[Counter]) -> None:
    for number, group in groupby(zip(numbers, texts, strict=True), itemgetter(0)):
        if facts[number]["all"] < LOOK:
            look("\n".join(text for _, text in group), facts[number])


def _clean_batch(
    texts: list[str], numbers: list[int], settings: Settings, reports: list[FileReport], facts: list, examples: dict
) -> tuple[list[str], list[int]]:
    """Return the clean documents, none over `max_length`, with their files; the reports tell of the others."""
    on, limits = settings.on, dict(settings.limits)
    texts, numbers = _whole_characters(texts, numbers, reports)
    if "repeated lines" in on and (shapes := cleaning.repeated_lines("\n".join([*texts, ""]))):
        texts = [
            cleaning.without_lines(text, shapes, reports[number].rules, examples)
            for text, number in zip(texts, numbers, strict=True)
        ]
    dirty = _dirty(texts, on)
    kept: list[str] = []
    files: list[int] = []
    for text, number, needs_work in zip(texts, numbers, dirty, strict=True):
        if needs_work:
            text = cleaning.clean(text, reports[number].rules, on, examples)
        if len(text) > settings.max_length:
            pieces = [piece.strip() for piece in cleaning.cut(text, settings.max_length)]
            facts[number]["long"] += 1
            facts[number]["pieces"] += len(pieces)
        else:
            pieces = (text,)
        for piece in pieces:
            if len(piece) < settings.min_length or not piece:
                reports[number].drop("too short" if piece else "empty", len(piece))
            elif limits and (why := cleaning.unfit(piece, **limits)):
                reports[number].drop(why, len(piece))
            else:
                kept.append(piece)
                files.append(number)
    return kept, files


def _dirty(texts: list[str], on: frozenset[str]) -> list[bool]:
    """Return for each text whether it must be cleaned: mostly one look tells it of a whole batch, or of some dozens."""
    if cleaning.needs_nothing(texts, on):
        return [False] * len(texts)
    found = []
    for at in range(0, len(texts), TOGETHER):
        some = texts[at : at + TOGETHER]
        found += [not cleaning.needs_nothing(some, on)] * len(some)
    return found


def _whole_characters(texts: list[str], numbers: list[int], reports: list[FileReport]) -> tuple[list[str], list[int]]:
    """Return the texts without those that hold half a character (a lone surrogate), which no file can store."""
    if _half("".join(texts)) is None:
        return texts, numbers
    whole = []
    for text, number in zip(texts, numbers, strict=True):
        if (at := _half(text)) is None:
            whole.append((text, number))
            continue
        if not reports[number].dropped["with half characters"]:
            reports[number].notes.append(f"character {at:,} of a document is half a character (lone surrogate)")
        reports[number].drop("with half characters", len(text))
    return [text for text, _ in whole], [number for _, number in whole]


def _half(text: str) -> int | None:
    """Return where half a character stands; to try and write the text is three times as quick as to look for one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
