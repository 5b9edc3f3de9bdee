"""The map step of room 01: files, and slices of large ones, become parts of cleaned documents, in parallel.

A part is three files side by side: .lines, the lines of the shards to be; .npy, an index with a row per document; and,
where near duplicates are looked for, .minhash, their signatures. What became of its files is written last, as .json:
with it a part is finished, and a later build that needs the same part finds it by its name. Knows nothing of other
parts, nor of the split.
"""

import contextlib
import functools
import hashlib
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
from helpers.corpus.report import FileReport, PartReport
from helpers.files import atomic_write, fingerprint, stamp, write_text

TASK_BYTES, TASK_FILES = 8 * 2**20, 2000  # small files travel to a worker together, large ones in slices
BATCH = 1_000_000  # characters that are cleaned together, and among which a line can repeat
TOGETHER = 50  # documents that are checked for dirt together
LOOK = 500_000  # characters of a file, or of each slice of it, that are searched for mojibake
_ROW = np.dtype([("hash", "<u8", 2), ("position", "<f8"), ("characters", "<u4"), ("bytes", "<u4"), ("file", "<u4")])


@dataclass(frozen=True)
class PartSettings:
    """What the documents of a part depend on, beside its files."""

    options: ReadOptions
    rules: frozenset[str]  # names of the cleaning rules that are on
    min_length: int  # characters
    max_length: int  # characters
    limits: tuple[tuple[str, float], ...]  # arguments of cleaning.unfit
    near: bool  # whether near duplicates will be looked for
    seed: int  # of the split


@dataclass(frozen=True)
class Task:
    """The files of one part, and where it is to be written."""

    inputs: tuple[Input, ...]
    part: Path  # the name that its files share
    settings: PartSettings


def digest(text: str) -> str:
    """Return a document's identity: 16 bytes of hash as hex digits. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_position(key: str, seed: int) -> float:
    """Return a document's position in [0, 1), from its digest and the seed alone: below `val_fraction` is validation.

    A train/validation split by such a hash does not move a document when others come or go.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=6).digest()) / 2**48


def read_index(part: Path) -> np.ndarray:
    """Return a part's index, (documents,): hash, position in the split, characters, bytes, and number of its file."""
    return np.load(part.with_suffix(".npy"))


def read_report(part: Path) -> PartReport:
    """Return what became of the files of a finished part."""
    return PartReport.from_json(part.with_suffix(".json").read_text("utf-8"))


# ---- which files make which part ----


def _slice_large(item: Input, options: ReadOptions, max_bytes: int) -> list[Input] | str:
    """Return the slices of a large file, or why it cannot be used."""
    try:
        return formats.slices(item, options, max_bytes)
    except (BadFile, OSError) as error:
        return _reason(error)


def make_tasks(
    inputs: list[Input], bad: dict[str, str], folder: Path, settings: PartSettings, pool: Executor
) -> list[Task]:
    """Group inputs for the workers, by size alone, so that the number of workers changes nothing.

    What cannot be sliced is noted in `bad` (name -> why), and left out.
    """
    # 1. large files become slices
    large = [item for item in inputs if item.size > TASK_BYTES and not item.stop]
    slice_large = functools.partial(_slice_large, options=settings.options, max_bytes=TASK_BYTES)
    sliced = dict(zip(large, parallel.map_shards(pool, slice_large, large), strict=True))
    # 2. neighbours become groups of at most TASK_BYTES
    groups: list[list[Input]] = [[]]
    size = 0
    for item in inputs:
        slices = sliced.get(item, [item])
        if isinstance(slices, str):
            bad[item.name], slices = slices, []
        for piece in slices:
            if groups[-1] and (size + piece.size > TASK_BYTES or len(groups[-1]) == TASK_FILES):
                groups.append([])
                size = 0
            groups[-1].append(piece)
            size += piece.size
    # 3. the name of a part: the same for the same files, unchanged, with the same settings and the same code
    code = [stamp(path) for path in sorted(Path(__file__).parent.glob("*.py"))]
    how = {**vars(settings), "rules": sorted(settings.rules)}
    stamps = {path: stamp(path) for path in {item.path for item in inputs}}
    tasks = []
    for group in filter(None, groups):
        name = fingerprint(code, how, [(item, stamps[item.path]) for item in group])
        tasks.append(Task(tuple(group), folder / name, settings))
    return tasks


# ---- one part ----


class PartWriter(contextlib.ExitStack):
    """Writes the files of one part; use it with `with`, which leaves nothing behind of a part that was not finished."""

    def __init__(self, part: Path, seed: int, near: bool):
        super().__init__()
        self.part, self.seed, self.near = part, seed, near
        self.rows: list[np.ndarray] = [np.empty(0, _ROW)]
        self.signatures: list[np.ndarray] = [np.empty((0, dedup.PERMUTATIONS), np.uint32)]
        self.lines = self.enter_context(atomic_write(part.with_suffix(".lines")))

    def write(self, texts: list[str], numbers: list[int], names: list[str]) -> None:
        """Add documents; `names` are those of the task's files, `numbers` say from which file each document is."""
        if not texts:
            return
        lines, keys, positions = [], [], []
        for text, number in zip(texts, numbers, strict=True):
            key = digest(text)
            keys.append(key)
            positions.append(split_position(key, self.seed))
            # what json.dumps writes with ensure_ascii=False, without its detours
            line = f'{{"text": {encode_basestring(text)}, "source": {encode_basestring(names[number])}}}\n'
            lines.append(line.encode())
        rows = np.empty(len(texts), _ROW)
        rows["hash"] = np.frombuffer(bytes.fromhex("".join(keys)), ">u8").reshape(-1, 2)
        rows["position"], rows["file"] = positions, numbers
        rows["characters"], rows["bytes"] = list(map(len, texts)), list(map(len, lines))
        self.rows.append(rows)
        if self.near:
            self.signatures.append(dedup.signatures(texts))
        self.lines.write(b"".join(lines))

    def finish(self, report: PartReport) -> None:
        """Give the files their names; the report comes last."""
        self.close()
        with atomic_write(self.part.with_suffix(".npy")) as file:
            np.save(file, np.concatenate(self.rows))
        if self.near:
            with atomic_write(self.part.with_suffix(".minhash")) as file:
                np.save(file, np.concatenate(self.signatures))
        write_text(self.part.with_suffix(".json"), report.as_json())


def read_task(task: Task) -> Path:
    """Read, clean and cut the documents of some files into one part; return the part."""
    if _is_finished(task.part):
        return task.part
    names = [item.name for item in task.inputs]
    report = PartReport([FileReport(name) for name in names])
    with PartWriter(task.part, task.settings.seed, task.settings.near) as part:
        for texts, numbers in _batches(task, report.files):
            _count_signs(texts, numbers, report.files)
            part.write(*_clean_batch(texts, numbers, task.settings, report), names)
        part.finish(report)
    return task.part


def _is_finished(part: Path) -> bool:
    """Return whether an earlier build left this part whole; a power cut may have kept only the names."""
    if not part.with_suffix(".json").is_file():
        return False
    try:
        return part.with_suffix(".lines").stat().st_size == read_index(part)["bytes"].sum()
    except (OSError, ValueError, EOFError):
        return False


def _batches(task: Task, files: list[FileReport]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the raw documents of a task's files, many at a time, and the number of the file of each."""
    texts: list[str] = []
    numbers: list[int] = []
    size = 0
    for number, item in enumerate(task.inputs):
        try:
            for text in formats.read(item, task.settings.options, files[number]):
                texts.append(text)
                numbers.append(number)
                size += len(text)
                if size >= BATCH:
                    yield texts, numbers
                    texts, numbers, size = [], [], 0
        except (BadFile, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # not a file that cannot be opened: the disk itself is full or failing
            files[number] = FileReport(item.name, files[number].encoding, bad=_reason(error))
    if texts:
        yield texts, numbers


def _reason(error: BadFile | OSError) -> str:
    return str(error) if isinstance(error, BadFile) else f"cannot be read: {error.strerror}"


def _count_signs(texts: list[str], numbers: list[int], files: list[FileReport]) -> None:
    for number, group in groupby(zip(numbers, texts, strict=True), itemgetter(0)):
        if files[number].signs.characters < LOOK:
            files[number].signs.count("\n".join(text for _, text in group))


def _clean_batch(
    texts: list[str], numbers: list[int], settings: PartSettings, report: PartReport
) -> tuple[list[str], list[int]]:
    """Return the clean documents, none over `max_length`, with the numbers of their files; count the others."""
    rules, limits, files = settings.rules, dict(settings.limits), report.files
    # 1. on all texts at once: half characters, lines that repeat, and which texts need any work
    texts, numbers = _whole_characters(texts, numbers, files)
    if "repeated lines" in rules and (shapes := cleaning.repeated_lines("\n".join([*texts, ""]))):
        texts = [
            cleaning.without_lines(text, shapes, files[number].rules, report.examples)
            for text, number in zip(texts, numbers, strict=True)
        ]
    kept: list[str] = []
    owners: list[int] = []
    for text, number, needs_work in zip(texts, numbers, _are_dirty(texts, rules), strict=True):
        file = files[number]
        # 2. clean
        if needs_work:
            text = cleaning.clean(text, file.rules, rules, report.examples)
        # 3. cut what is too long
        pieces = [text]
        if len(text) > settings.max_length:
            pieces = [piece.strip() for piece in cleaning.cut(text, settings.max_length)]
            file.long += 1
            file.pieces += len(pieces)
        # 4. drop what is too short or unfit
        for piece in pieces:
            if len(piece) < settings.min_length or not piece:
                file.drop("too short" if piece else "empty", len(piece))
            elif limits and (reason := cleaning.unfit(piece, **limits)):
                file.drop(reason, len(piece))
            else:
                kept.append(piece)
                owners.append(number)
    return kept, owners


def _are_dirty(texts: list[str], rules: frozenset[str]) -> Iterator[bool]:
    """Yield for each text whether it may need cleaning: one check of some dozens together decides for most."""
    for at in range(0, len(texts), TOGETHER):
        group = texts[at : at + TOGETHER]
        yield from [not cleaning.needs_nothing(group, rules)] * len(group)


def _whole_characters(texts: list[str], numbers: list[int], files: list[FileReport]) -> tuple[list[str], list[int]]:
    """Return the texts without those that hold half a character (a lone surrogate), which no file can store."""
    whole = []
    for text, number in zip(texts, numbers, strict=True):
        try:
            text.encode()  # three times as fast as searching it
        except UnicodeEncodeError as error:
            file = files[number]
            if not file.dropped["with half characters"]:
                file.notes.append(f"character {error.start:,} of a document is half a character (lone surrogate)")
            file.drop("with half characters", len(text))
        else:
            whole.append((text, number))
    return [text for text, _ in whole], [number for _, number in whole]
