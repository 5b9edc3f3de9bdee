"""The map step of room 01: files, and slices of large ones, become parts of cleaned documents, in parallel.

A part is three files side by side: .lines, the lines of the shards to be; .npy, an index with a row per document; and,
where near duplicates are looked for, .minhash, their signatures. What became of its files is written last, as .json:
with it a part is finished, and a later build that needs the same part finds it by its name. Knows nothing of other
parts, nor of the split.

A document is a text or a `Conversation`; most of this sees no difference, for a conversation is a text.

Documents with a line that is dirt if it repeats in the corpus (see `repeats`) wait, as they were read, in .held beside
the part, their lines counted in .places; `read_held` cleans them when all parts are counted, and puts them back in
their places, in a part of another name.
"""

import contextlib
import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np

from helpers import parallel
from helpers.corpus import cleaning, conversations, dedup, formats, repeats
from helpers.corpus.conversations import Conversation, Message
from helpers.corpus.encodings import BadFile
from helpers.corpus.inputs import Input
from helpers.corpus.records import ReadOptions
from helpers.corpus.report import FileReport, PartReport
from helpers.files import atomic_write, fingerprint, stamp, write_text

TASK_BYTES, TASK_FILES = 8 * 2**20, 2000  # small files travel to a worker together, large ones in slices
BATCH = 1_000_000  # characters that are cleaned together
TOGETHER = 50  # documents that are checked for dirt together
_COPY_BYTES = 2**20
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


@dataclass(frozen=True)
class Held:
    """A document that waits until the lines of all parts are counted."""

    before: int  # documents of the part that come before it
    file: int  # the number of its file among the task's
    shown: dict[str, int]  # cleaning rule -> examples that come before it
    text: str
    messages: Sequence[Message] = ()  # of a conversation

    def document(self) -> str:
        """Return the document as it was read: a text, or a `Conversation`."""
        return Conversation(self.messages) if self.messages else self.text


class PartWriter(contextlib.ExitStack):
    """Writes the files of one part; use it with `with`, which leaves nothing behind of a part that was not finished."""

    def __init__(self, part: Path, seed: int, near: bool):
        super().__init__()
        self.part, self.seed, self.near = part, seed, near
        self.documents = 0
        self.rows: list[np.ndarray] = [np.empty(0, _ROW)]
        self.signatures: list[np.ndarray] = [np.empty((0, dedup.PERMUTATIONS), np.uint32)]
        self.lines = self.enter_context(atomic_write(part.with_suffix(".lines")))

    def write(self, texts: list[str], numbers: list[int], names: list[str]) -> None:
        """Add documents; `names` are those of the task's files, `numbers` say from which file each document is."""
        self.lines.write(b"".join(self.index(texts, numbers, names)))

    def index(self, texts: list[str], numbers: list[int], names: list[str]) -> list[bytes]:
        """Add the rows and signatures of documents, and return the lines that are to be written for them."""
        if not texts:
            return []
        lines, keys, positions = [], [], []
        for text, number in zip(texts, numbers, strict=True):
            key = digest(text)
            keys.append(key)
            positions.append(split_position(key, self.seed))
            # what json.dumps writes with ensure_ascii=False, without its detours
            line = f'{{"text": {encode_basestring(text)}, "source": {encode_basestring(names[number])}'
            if isinstance(text, Conversation):
                line += f', "messages": {json.dumps(text.messages, ensure_ascii=False)}'
            lines.append(f"{line}}}\n".encode())
        rows = np.empty(len(texts), _ROW)
        rows["hash"] = np.frombuffer(bytes.fromhex("".join(keys)), ">u8").reshape(-1, 2)
        rows["position"], rows["file"] = positions, numbers
        rows["characters"], rows["bytes"] = list(map(len, texts)), list(map(len, lines))
        self.documents += len(rows)
        self.rows.append(rows)
        if self.near:
            self.signatures.append(dedup.signatures(texts))
        return lines

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
    """Read, clean and cut the documents of some files into one part, and hold some back; return the part."""
    if _is_finished(task.part):
        return task.part
    names = [item.name for item in task.inputs]
    report = PartReport([FileReport(name) for name in names])
    places = repeats.Places()
    with PartWriter(task.part, task.settings.seed, task.settings.near) as part:
        with atomic_write(task.part.with_suffix(".held")) as file:
            for texts, numbers in _batches(task, report.files):
                _count_signs(texts, numbers, report.files)
                kept, owners, held = _clean_batch(texts, numbers, task.settings, report, places)
                rows = [vars(replace(document, before=part.documents + document.before)) for document in held]
                file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
                part.write(kept, owners, names)
        with atomic_write(task.part.with_suffix(".places")) as file:
            places.save(file)
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
    texts: list[str], numbers: list[int], settings: PartSettings, report: PartReport, places: repeats.Places
) -> tuple[list[str], list[int], list[Held]]:
    """Return the clean documents, none over `max_length`, with the numbers of their files, and those to hold back."""
    rules = settings.rules
    long_enough = max(1, settings.min_length) if not settings.limits else settings.max_length + 1
    # 1. on all texts at once: half characters, lines that may repeat, and which texts need any work
    texts, numbers = _whole_characters(texts, numbers, report.files)
    waiting = places.count(texts) if "repeated lines" in rules else set()
    dirty = _are_dirty([text for i, text in enumerate(texts) if i not in waiting], rules)
    # 2. one by one
    kept: list[str] = []
    owners: list[int] = []
    held: list[Held] = []
    for i, (text, number) in enumerate(zip(texts, numbers, strict=True)):
        if i in waiting:
            shown = {rule: len(pairs) for rule, pairs in report.examples.items()}
            held.append(Held(len(kept), number, shown, text, text.messages if isinstance(text, Conversation) else ()))
            continue
        if next(dirty):
            text = _clean(text, report.files[number], rules, report.examples)
        if long_enough <= len(text) <= settings.max_length:  # most do
            kept.append(text)
            owners.append(number)
        else:
            pieces = _fitting(text, report.files[number], settings)
            kept += pieces
            owners += [number] * len(pieces)
    return kept, owners, held


def _clean(
    text: str, file: FileReport, rules: frozenset[str], examples: dict, repeated: frozenset[int] = frozenset()
) -> str:
    """Return a document without dirt and without the lines that repeat; in a conversation each turn for itself."""

    def clean(part: str) -> str:
        if repeated:
            part = cleaning.without_lines(part, repeated, file.rules, examples)
        return cleaning.clean(part, file.rules, rules, examples)

    cleaned = conversations.changed(text, clean)
    if isinstance(text, Conversation) and isinstance(cleaned, Conversation):
        file.shorten(text, cleaned)
    return cleaned


def _fitting(text: str, file: FileReport, settings: PartSettings) -> list[str]:
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
        file.long += 1
        file.pieces += len(pieces)
    kept = []
    for piece in pieces:
        if len(piece) < settings.min_length or not piece:
            file.drop("too short" if piece else "empty", len(piece))
        elif settings.limits and (reason := cleaning.unfit(piece, **dict(settings.limits))):
            file.drop(reason, len(piece))
        else:
            kept.append(piece)
    return kept


def _are_dirty(texts: list[str], rules: frozenset[str]) -> Iterator[bool]:
    """Yield for each text whether it may need cleaning: one check of some dozens together decides for most."""
    for at in range(0, len(texts), TOGETHER):
        group = texts[at : at + TOGETHER]
        parts = [part for text in group for part in conversations.contents_of(text)]
        yield from [not cleaning.needs_nothing(parts, rules)] * len(group)


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


# ---- the documents that were held back ----


def held_back(tasks: list[Task]) -> Iterator[tuple[Task, frozenset[int]]]:
    """Yield each task of whose documents some were held back, and the keys of those of its lines that repeat."""
    files = [task.part.with_suffix(".places") for task in tasks]
    repeated = repeats.find_repeated(files)
    for task, file in zip(tasks, files, strict=True):
        if len(lines := repeats.read_rows(file)["line"]):
            yield task, frozenset(np.intersect1d(lines, repeated).tolist())


def read_held(waiting: tuple[Task, frozenset[int]]) -> tuple[Path, Path]:
    """Clean the documents that a task held back, without the lines that repeat; return the old part and the whole one.

    The whole part is what one part would have been that had known these lines from the start.
    """
    task, repeated = waiting
    whole = task.part.with_name(f"{task.part.name}-{fingerprint(sorted(repeated))[:16]}")
    if _is_finished(whole):
        return task.part, whole
    names = [item.name for item in task.inputs]
    index, report = read_index(task.part), read_report(task.part)
    ends = np.cumsum(index["bytes"], dtype=np.int64)
    before: list[int] = []  # of each new document: how many old ones come before it
    with PartWriter(whole, task.settings.seed, task.settings.near) as part:
        with open(task.part.with_suffix(".lines"), "rb") as old:
            for texts, owners, places in _clean_held(task, repeated, report):
                for line, place in zip(part.index(texts, owners, names), places, strict=True):
                    _copy(old, part.lines, int(ends[place - 1]) if place else 0)
                    part.lines.write(line)
                before += places
            shutil.copyfileobj(old, part.lines, _COPY_BYTES)
        part.rows = [np.insert(index, before, np.concatenate(part.rows))]
        if part.near:
            signatures = np.load(task.part.with_suffix(".minhash"))
            part.signatures = [np.insert(signatures, before, np.concatenate(part.signatures), axis=0)]
        part.finish(report)
    return task.part, whole


def _copy(source: BinaryIO, target: BinaryIO, stop: int) -> None:
    """Copy what stands before byte `stop` and was not copied yet."""
    while (left := stop - source.tell()) > 0:
        target.write(source.read(min(left, _COPY_BYTES)))


def _clean_held(
    task: Task, repeated: frozenset[int], report: PartReport
) -> Iterator[tuple[list[str], list[int], list[int]]]:
    """Yield the clean documents that were held back, many at a time: texts, their files, how many come before each."""
    texts: list[str] = []
    owners: list[int] = []
    before: list[int] = []
    new: Counter = Counter()  # rule -> examples from these documents
    size = 0
    with open(task.part.with_suffix(".held"), "rb") as rows:
        for document in (Held(**json.loads(row)) for row in rows):
            file = report.files[document.file]
            # 1. clean; an example takes its place among those of the documents around it
            shown = new + Counter(document.shown)
            found = {rule: [()] * min(count, cleaning.EXAMPLES) for rule, count in shown.items()}
            text = _clean(document.document(), file, task.settings.rules, found, repeated)
            for rule, pairs in found.items():
                place = shown[rule]
                if place < len(pairs):
                    report.examples.setdefault(rule, [])[place:place] = pairs[place:]
                    new[rule] += len(pairs) - place
            # 2. cut, drop
            pieces = _fitting(text, file, task.settings)
            texts += pieces
            owners += [document.file] * len(pieces)
            before += [document.before] * len(pieces)
            size += len(document.text)
            if size >= BATCH:
                yield texts, owners, before
                texts, owners, before, size = [], [], [], 0
    report.examples = {rule: pairs[: cleaning.EXAMPLES] for rule, pairs in report.examples.items()}
    yield texts, owners, before
