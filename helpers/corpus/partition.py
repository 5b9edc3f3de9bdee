"""The map step of room 01: files, and slices of large ones, become parts of cleaned documents, in parallel.

Two passes, each a function of a `Task`, for what is dirt depends on the whole corpus. `count_task` counts the lines of
a task that are advertisements if they repeat (.places); `with_repeats` tells each task which of its lines do.
`clean_task` then reads the same documents again and writes a part: .lines, the lines of the shards to be; .npy, an
index with a row per document; .minhash, where near duplicates are looked for, their signatures; and last .json, what
became of the files. A later build that needs the same part finds it by its name. Knows nothing of other parts, nor of
the split.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from pathlib import Path

import numpy as np

from helpers import parallel
from helpers.corpus import cleaning, conversations, dedup, formats, mojibake, repeats
from helpers.corpus.archives import Input
from helpers.corpus.conversations import Conversation
from helpers.corpus.encodings import BadFile
from helpers.corpus.report import FileReport, PartReport
from helpers.corpus.settings import CorpusSettings
from helpers.files import atomic_write, fingerprint, stamp, write_text

TASK_BYTES, TASK_FILES = 8 * 2**20, 2000  # small files travel to a worker together, large ones in slices
BATCH = 1_000_000  # characters that are cleaned together
TOGETHER = 50  # documents that are checked for dirt together
LOOK = 500_000  # characters of a file, or of each slice of it, that are searched for mojibake
_ROW = np.dtype([("hash", "<u8", 2), ("position", "<f8"), ("characters", "<u4"), ("bytes", "<u4"), ("file", "<u4")])


@dataclass(frozen=True)
class Task:
    """The files of one part, and where it is to be written."""

    inputs: tuple[Input, ...]
    part: Path  # the name of its files
    settings: CorpusSettings
    repeated: frozenset[int] = frozenset()  # keys of its lines that repeat in the corpus; see `repeats`

    def cleaned(self) -> Path:
        """Return the name of the files of the second pass: without other lines, it is another part."""
        lines = fingerprint(sorted(self.repeated))[:16]
        return self.part.with_name(f"{self.part.name}-{lines}") if self.repeated else self.part

    def new_report(self) -> PartReport:
        """Return the report of its files before they are read."""
        return PartReport([FileReport(item.name) for item in self.inputs])


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


def make_tasks(inputs: list[Input], folder: Path, settings: CorpusSettings, pool: Executor) -> list[Task]:
    """Group inputs for the workers, by size alone, so that the number of workers changes nothing."""
    # 1. large files become slices
    large = [item for item in inputs if item.size > TASK_BYTES and not item.stop]
    slice_file = functools.partial(formats.slice_file, options=settings.read_options(), max_bytes=TASK_BYTES)
    sliced = dict(zip(large, parallel.map_shards(pool, slice_file, large), strict=True))
    # 2. neighbours become groups of at most TASK_BYTES
    groups: list[list[Input]] = [[]]
    size = 0
    for piece in (piece for item in inputs for piece in sliced.get(item, [item])):
        if groups[-1] and (size + piece.size > TASK_BYTES or len(groups[-1]) == TASK_FILES):
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.size
    # 3. the name of a part: the same for the same files, unchanged, with the same settings and the same code
    code = [stamp(path) for path in sorted(Path(__file__).parent.glob("*.py"))]
    stamps = {path: stamp(path) for path in {item.path for item in inputs}}
    names = [fingerprint(code, vars(settings), [(item, stamps[item.path]) for item in group]) for group in groups]
    return [Task(tuple(group), folder / name, settings) for group, name in zip(groups, names, strict=True)]


# ---- the first pass ----


def count_task(task: Task) -> Path:
    """Count the lines of some files, where that rule is on; return the file of the counts."""
    path = task.part.with_suffix(".places")
    if not path.is_file():
        places, characters = [], 0
        if "repeated lines" in task.settings.chosen_rules():
            for texts, _ in _batches(task, task.new_report().files):
                characters += sum(map(len, texts))
                places += repeats.count_places(texts)
        repeats.write_places(places, characters, path)
    return path


def _batches(task: Task, files: list[FileReport]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the raw documents of a task's files, many at a time, and the number of the file of each."""
    texts: list[str] = []
    numbers: list[int] = []
    size = 0
    for number, item in enumerate(task.inputs):
        try:
            for text in formats.read_documents(item, task.settings.read_options(), files[number]):
                if _has_half_character(text, files[number]):
                    continue
                texts.append(text)
                numbers.append(number)
                size += len(text)
                if size >= BATCH:
                    yield texts, numbers
                    texts, numbers, size = [], [], 0
        except (BadFile, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # not a file that cannot be opened: the disk itself is full or failing
            why = str(error) if isinstance(error, BadFile) else f"cannot be read: {error.strerror}"
            files[number] = FileReport(item.name, files[number].encoding, bad=why)
    if texts:
        yield texts, numbers


def _has_half_character(text: str, file: FileReport) -> bool:
    """Return whether a text holds half a character (a lone surrogate), which no file can store; count it."""
    try:
        text.encode()  # three times as fast as searching it
    except UnicodeEncodeError as error:
        if not file.dropped["with half characters"]:
            file.notes.append(f"character {error.start:,} of a document is half a character (lone surrogate)")
        file.drop("with half characters", len(text))
        return True
    return False


def _count_signs(texts: list[str], numbers: list[int], files: list[FileReport]) -> None:
    for number, group in groupby(zip(numbers, texts, strict=True), itemgetter(0)):
        if files[number].counts["characters"] < LOOK:
            files[number].counts.update(mojibake.count_signs("\n".join(text for _, text in group)))


def with_repeats(tasks: list[Task], places: list[Path]) -> list[Task]:
    """Return the tasks with those of their lines that repeat in the corpus, of which all are counted."""
    found = repeats.find_repeated(places)
    return [replace(task, repeated=lines) for task, lines in zip(tasks, found, strict=True)]


# ---- the second pass ----


def clean_task(task: Task) -> Path:
    """Clean and cut the documents of some files; return their part."""
    part = task.cleaned()
    if not _is_finished(part):
        report = task.new_report()
        write_part(part, _clean_batches(task, report), task.settings, report)
    return part


def write_part(
    part: Path, batches: Iterable[tuple[list[str], list[int]]], settings: CorpusSettings, report: PartReport
) -> None:
    """Write the files of one part from (documents, numbers of their files in the report), the report itself last."""
    rows: list[np.ndarray] = [np.empty(0, _ROW)]
    signatures: list[np.ndarray] = [np.empty((0, dedup.PERMUTATIONS), np.uint32)]
    with atomic_write(part.with_suffix(".lines")) as file:
        for texts, numbers in batches:
            keys = list(map(digest, texts))
            sources = [encode_basestring(report.files[number].name) for number in numbers]
            lines = list(map(_shard_line, texts, sources))
            file.write(b"".join(lines))
            index = np.empty(len(texts), _ROW)
            index["hash"] = np.frombuffer(bytes.fromhex("".join(keys)), ">u8").reshape(-1, 2)
            index["position"] = [split_position(key, settings.seed) for key in keys]
            index["file"] = numbers
            index["characters"], index["bytes"] = list(map(len, texts)), list(map(len, lines))
            rows.append(index)
            if settings.near_duplicates:
                signatures.append(dedup.signatures(texts))
    with atomic_write(part.with_suffix(".npy")) as file:
        np.save(file, np.concatenate(rows))
    if settings.near_duplicates:
        with atomic_write(part.with_suffix(".minhash")) as file:
            np.save(file, np.concatenate(signatures))
    write_text(part.with_suffix(".json"), report.as_json())


def _shard_line(text: str, source: str) -> bytes:
    # what json.dumps writes with ensure_ascii=False, without its detours
    line = f'{{"text": {encode_basestring(text)}, "source": {source}'
    if isinstance(text, Conversation):
        line += f', "messages": {json.dumps(text.messages, ensure_ascii=False)}'
    return f"{line}}}\n".encode()


def _is_finished(part: Path) -> bool:
    """Return whether an earlier build left this part whole; a power cut may have kept only the names."""
    if not part.with_suffix(".json").is_file():
        return False
    try:
        return part.with_suffix(".lines").stat().st_size == read_index(part)["bytes"].sum()
    except (OSError, ValueError, EOFError):
        return False


def _clean_batches(task: Task, report: PartReport) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the clean documents, none over `max_length`, with the numbers of their files, many at a time."""
    settings = task.settings
    # filters are checked by `_fitting`, and so is what may be too short or too long
    least = max(1, settings.min_length) if settings.filters() == (0, 1, 1) else settings.max_length + 1
    for texts, numbers in _batches(task, report.files):
        _count_signs(texts, numbers, report.files)
        kept: list[str] = []
        owners: list[int] = []
        for text, number, dirty in zip(texts, numbers, _are_dirty(texts, task), strict=True):
            if dirty:
                text = _clean(text, report.files[number], task, report.examples)
            fits = least <= len(text) <= settings.max_length  # most do
            pieces = [text] if fits else _fitting(text, report.files[number], settings)
            kept += pieces
            owners += [number] * len(pieces)
        yield kept, owners


def _clean(text: str, file: FileReport, task: Task, examples: dict) -> str:
    """Return a document without dirt and without the lines that repeat; in a conversation each turn for itself."""

    def clean(part: str) -> str:
        if task.repeated:
            part = cleaning.without_lines(part, task.repeated, file.rules, examples)
        return cleaning.clean(part, file.rules, task.settings.chosen_rules(), examples)

    cleaned = conversations.changed(text, clean)
    if isinstance(text, Conversation) and isinstance(cleaned, Conversation):
        file.shorten(text, cleaned)
    return cleaned


def _fitting(text: str, file: FileReport, settings: CorpusSettings) -> list[str]:
    """Return the pieces of a clean text that are short enough, and not too short or unfit; count the others.

    A conversation is never torn: its last exchanges go, and where the first alone is too long, all of it.
    """
    pieces = [text]
    if len(text) > settings.max_length and isinstance(text, Conversation):
        if not (shorter := text.shortened(settings.max_length)):
            file.drop("with a first exchange too long", len(text))
            return []
        file.shorten(text, shorter)
        pieces = [shorter]
    elif len(text) > settings.max_length:
        pieces = [piece.strip() for piece in cleaning.cut(text, settings.max_length)]
        file.counts.update(long=1, pieces=len(pieces))
    kept = []
    for piece in pieces:
        if len(piece) < settings.min_length or not piece:
            file.drop("too short" if piece else "empty", len(piece))
        elif reason := cleaning.unfit(piece, *settings.filters()):
            file.drop(reason, len(piece))
        else:
            kept.append(piece)
    return kept


def _are_dirty(texts: list[str], task: Task) -> Iterator[bool]:
    """Yield for each text whether it may need cleaning: one check of some dozens together decides for most."""
    for at in range(0, len(texts), TOGETHER):
        group = texts[at : at + TOGETHER]
        parts = [part for text in group for part in conversations.contents_of(text)]
        dirty = not cleaning.needs_nothing(parts, task.settings.chosen_rules())
        if not dirty and task.repeated:
            dirty = any(key in task.repeated for _, _, key in cleaning.candidates("\n".join(parts)))
        yield from [dirty] * len(group)
