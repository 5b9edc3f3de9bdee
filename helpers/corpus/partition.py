"""The map step of room 01: files, and slices of large ones, become parts of cleaned documents, in parallel.

Two passes, each a function of a `Task`, for what is dirt depends on the whole corpus. `read_task` reads a task's
documents as they are (.raw) and counts the lines that are advertisements if they repeat. `clean_task`, told which of
them do, writes a part: .lines, the lines of the shards to be, and .minhash, where near duplicates are looked for, their
signatures; it returns an index with a row per document. Knows nothing of other parts, nor of the split.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from pathlib import Path

import numpy as np

from helpers import parallel
from helpers.corpus import cleaning, conversations, dedup, formats, mojibake, plain_text
from helpers.corpus.archives import Input
from helpers.corpus.conversations import Conversation
from helpers.corpus.encodings import BadFile
from helpers.corpus.report import FileReport, PartReport
from helpers.corpus.settings import CorpusSettings
from helpers.files import atomic_write

TASK_BYTES, TASK_FILES = 8 * 2**20, 2000  # small files travel to a worker together, large ones in slices
BATCH = 1_000_000  # characters that are cleaned together
LOOK = 500_000  # characters of a file, or of each slice of it, that are searched for mojibake
_ROW = np.dtype([("hash", "<u8", 2), ("position", "<f8"), ("characters", "<u4"), ("bytes", "<u4"), ("file", "<u4")])


@dataclass(frozen=True)
class Task:
    """The files of one part, and where it is to be written."""

    inputs: tuple[Input, ...]
    part: Path  # the name of its files
    settings: CorpusSettings
    report: PartReport = field(default_factory=PartReport)  # what the first pass found
    repeated: frozenset[int] = frozenset()  # keys of its lines that repeat in the corpus; see `dedup`


def digest(text: str) -> str:
    """Return a document's identity: 16 bytes of hash as hex digits. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_position(key: str, seed: int) -> float:
    """Return a document's position in [0, 1), from its digest and the seed alone: below `val_fraction` is validation.

    A train/validation split by such a hash does not move a document when others come or go.
    """
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=6).digest()) / 2**48


# ---- which files make which part ----


def make_tasks(inputs: list[Input], folder: Path, settings: CorpusSettings, pool: Executor) -> list[Task]:
    """Group inputs for the workers, by size alone, so that the number of workers changes nothing."""
    # 1. large files become slices
    large = [item for item in inputs if item.size > TASK_BYTES and not item.stop]
    slice_file = functools.partial(formats.slice_file, options=settings, max_bytes=TASK_BYTES)
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
    return [Task(tuple(group), folder / f"{number:06d}", settings) for number, group in enumerate(groups)]


# ---- the first pass ----


def read_task(task: Task) -> tuple[PartReport, np.ndarray, int]:
    """Read the documents of some files as they are; return the report, the places of their lines, their characters."""
    report = PartReport([FileReport(item.name) for item in task.inputs])
    places, characters = [dedup.count_places([])], 0
    with atomic_write(task.part.with_suffix(".raw")) as file:
        for texts, numbers in _batches(task, report.files):
            _count_signs(texts, numbers, report.files)
            characters += sum(map(len, texts))
            if "repeated lines" in cleaning.choose_rules(task.settings.rules):
                places.append(dedup.count_places(texts))
            documents = [text.messages if isinstance(text, Conversation) else text for text in texts]
            file.write(json.dumps([documents, numbers], ensure_ascii=False).encode() + b"\n")
    return report, np.concatenate(places), characters


def _batches(task: Task, files: list[FileReport]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the raw documents of a task's files, many at a time, and the number of the file of each."""
    texts: list[str] = []
    numbers: list[int] = []
    size = 0
    for number, item in enumerate(task.inputs):
        try:
            for text in formats.read_documents(item, task.settings, files[number]):
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


def _count_signs(texts: list[str], numbers: list[int], files: list[FileReport]) -> None:
    for number, pairs in groupby(zip(numbers, texts, strict=True), itemgetter(0)):
        counts, group = files[number].counts, [text for _, text in pairs]
        counts.update(read_documents=len(group), marked=sum(map(plain_text.is_marked, group)))
        if counts["characters"] < LOOK:
            counts.update(mojibake.count_signs("\n".join(group)))


# ---- the second pass ----


def clean_task(task: Task) -> tuple[PartReport, np.ndarray]:
    """Clean and cut the documents that the first pass has read, write their part; return its report and index."""
    return task.report, write_part(task, _clean_batches(task))


def write_part(task: Task, batches: Iterable[tuple[list[str], list[int]]]) -> np.ndarray:
    """Write the files of one part from (documents, numbers of their files in the report); return its index."""
    part, settings = task.part, task.settings
    rows: list[np.ndarray] = [np.empty(0, _ROW)]
    signatures: list[np.ndarray] = [np.empty((0, dedup.PERMUTATIONS), np.uint32)]
    with atomic_write(part.with_suffix(".lines")) as file:
        for texts, numbers in batches:
            keys = list(map(digest, texts))
            sources = [encode_basestring(task.report.files[number].name) for number in numbers]
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
    if settings.near_duplicates:
        with atomic_write(part.with_suffix(".minhash")) as file:
            np.save(file, np.concatenate(signatures))
    return np.concatenate(rows)


def _shard_line(text: str, source: str) -> bytes:
    # what json.dumps writes with ensure_ascii=False, without its detours
    line = f'{{"text": {encode_basestring(text)}, "source": {source}'
    if isinstance(text, Conversation):
        line += f', "messages": {json.dumps(text.messages, ensure_ascii=False)}'
    return f"{line}}}\n".encode()


def _clean_batches(task: Task) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the clean documents, none over `max_length`, with the numbers of their files, many at a time."""
    with open(task.part.with_suffix(".raw"), encoding="utf-8", newline="\n") as batches:
        for documents, numbers in map(json.loads, batches):
            kept: list[str] = []
            owners: list[int] = []
            for number, group in groupby(zip(numbers, documents, strict=True), itemgetter(0)):
                file = task.report.files[number]
                clean, cleaned, lost = _cleaning(file, task), 0, file.lost.total()
                for _, document in group:
                    text = Conversation(document) if isinstance(document, list) else document
                    pieces = _fitting(text, conversations.changed(text, clean), file, task.settings)
                    cleaned += len(text) - sum(map(len, pieces))
                    kept += pieces
                    owners += [number] * len(pieces)
                file.counts["cleaned"] += cleaned - (file.lost.total() - lost)
            yield kept, owners


def _cleaning(file: FileReport, task: Task) -> Callable[[str], str]:
    """Return a function that takes dirt from a text of a file, and the lines that repeat."""
    on = cleaning.choose_rules(task.settings.rules)
    are_ends = file.counts["marked"] > file.counts["read_documents"] / 2

    def clean(part: str) -> str:
        if are_ends and plain_text.marks_in(part):
            part, places = plain_text.AT_ENDS.subn("", part)
            file.rules["marks of other trainers"] += places
        for mark in plain_text.marks_in(part):
            told = f"{mark} is learned as text: where it parts documents, {plain_text.ADVICE}"
            file.counts[told] += part.count(mark)
        if task.repeated:
            part = cleaning.without_lines(part, task.repeated, file.rules, task.report.examples)
        return cleaning.clean(part, file.rules, on, task.report.examples)

    return clean


def _fitting(raw: str, text: str, file: FileReport, settings: CorpusSettings) -> list[str]:
    """Return the pieces of a text, now clean, that are short enough, and not too short or unfit; count the others.

    A conversation is never torn: its last exchanges go, and where the first alone is too long, all of it.
    """
    pieces = [text]
    if isinstance(raw, Conversation) and isinstance(text, Conversation):
        file.shorten(raw, text)
    if len(text) > settings.max_length and isinstance(text, Conversation):
        if not (shorter := text.shortened(settings.max_length)):
            file.drop("with a first exchange too long", len(text))
            return []
        file.shorten(text, shorter)
        pieces = [shorter]
    elif len(text) > settings.max_length:
        pieces = [piece.strip() for piece in cleaning.cut(text, settings.max_length)]
        file.counts.update(long=1, pieces=len(pieces))
    kept, filters = [], (settings.min_chinese, settings.max_symbols, settings.max_repetition)
    for piece in pieces:
        if len(piece) < settings.min_length or not piece:
            file.drop("too short" if piece else "empty", len(piece))
        elif reason := cleaning.unfit(piece, *filters):
            file.drop(reason, len(piece))
        else:
            kept.append(piece)
    return kept
