"""Any raw text -> clean documents in shards; a train/validation split; what was kept, dropped and why.

Text comes from the built-in corpus, a file, or a folder of .txt, .json and .jsonl. Workers read files into cleaned
parts (`reading`, `cleaning`); one reduction drops duplicates, splits, and writes the shards. Memory is bounded by a
shard, not by the corpus. Knows nothing of words and tokens: a document is a text and the name of its source.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers import parallel, paths, sample_corpus
from helpers.cleaning import clean, cut
from helpers.reading import BadFile, FileReport, look, read_file, suspicions

EXTENSIONS = (".txt", ".json", ".jsonl")
MODES = ("auto", "block", "line", "file")
SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20
TASK_BYTES = 8 * 2**20  # small files travel to a worker together


class NoDocuments(ValueError):
    """Nothing usable was found; the message says what was looked for and where."""


@dataclass
class Report:
    """What became of a whole corpus; also written as corpus/report.json."""

    source: str
    files: list[FileReport]
    documents: int = 0
    characters: int = 0
    val_documents: int = 0
    val_characters: int = 0
    floor_bits_per_char: float | None = None
    dropped: Counter = field(default_factory=Counter)
    lost: Counter = field(default_factory=Counter)
    rules: Counter = field(default_factory=Counter)
    left_out: Counter = field(default_factory=Counter)  # extension -> files of a kind this room cannot read
    outputs: list[Path] = field(default_factory=list)  # the files written

    def result(self) -> dict:
        """Return the figures that go into the manifest."""
        result = {name: getattr(self, name) for name in ("source", "documents", "characters")}
        result |= {"val_documents": self.val_documents, "val_characters": self.val_characters}
        result |= {"dropped": sum(self.dropped.values()), "dropped_characters": sum(self.lost.values())}
        result |= {"files": len(self.files), "bad_files": sum(bool(file.bad) for file in self.files)}
        if self.floor_bits_per_char is not None:
            result["floor_bits_per_char"] = self.floor_bits_per_char
        return result

    def rows(self) -> list[tuple]:
        """Return a row a file: name, encoding, documents, characters, dropped, what to know about it."""
        return [
            (
                file.source,
                file.encoding,
                file.documents,
                file.characters,
                ", ".join(f"{n} {reason}" for reason, n in sorted(file.dropped.items())),
                "; ".join([*(["NOT USED: " + file.bad] if file.bad else []), *file.notes]),
            )
            for file in self.files
        ]

    def warnings(self) -> list[str]:
        """Return a line for each file that could not be used, or whose text a person should look at."""
        return [f"{file.source}: {line}" for file in self.files for line in [*filter(None, [file.bad]), *file.notes]]


# ---------------------------------------------------------------- map: files -> cleaned parts


@dataclass(frozen=True)
class _Task:
    files: tuple[tuple[Path, str], ...]  # where it is, what it is called in the corpus
    part: Path
    mode: str
    json_key: str
    min_length: int
    max_length: int


def digest(text: str) -> str:
    """Return a document's identity: 16 bytes of hash as hex digits. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _part_line(text: str, source: str, number: int) -> bytes:
    """Return a line of a part: hash, length, number of the file in its task, and the line of the shard to be."""
    shard_line = json.dumps({"text": text, "source": source}, ensure_ascii=False)
    return f"{digest(text)} {len(text)} {number} {shard_line}\n".encode()


def _read_task(task: _Task) -> list[FileReport]:
    """Read, clean and cut the documents of some files into one part; return a report a file."""
    reports = []
    with open(task.part, "wb") as part:
        for number, (path, source) in enumerate(task.files):
            report = FileReport(source)
            mark = part.tell()
            try:
                for text in _documents_of(path, task, report):
                    part.write(_part_line(text, source, number))
            except (BadFile, OSError) as error:
                if isinstance(error, OSError) and error.filename is None:
                    raise  # not a file that cannot be opened: the disk itself is full or failing
                part.seek(mark)
                part.truncate()  # no half of a file stays behind
                why = str(error) if isinstance(error, BadFile) else f"cannot be read: {error.strerror}"
                report = FileReport(source, report.encoding, bad=why)
            reports.append(report)
    return reports


def _documents_of(path: Path, task: _Task, report: FileReport) -> Iterator[str]:
    """Yield a file's clean documents, none longer than the task's `max_length`; the report says what became of all."""
    seen: Counter = Counter()
    long = parts = 0
    for text in read_file(path, task.mode, task.json_key, report):
        look(text, seen)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if not report.dropped["with half characters"]:
                report.notes.append(f"character {error.start:,} of a document is half a character (lone surrogate)")
            report.drop("with half characters", len(text))
            continue
        pieces = cut(clean(text, report.rules), task.max_length)
        if len(pieces) > 1:
            long, parts = long + 1, parts + len(pieces)
            pieces = [piece.strip() for piece in pieces]
        for piece in pieces:
            if len(piece) < max(1, task.min_length):
                report.drop("too short" if piece else "empty", len(piece))
            else:
                report.documents += 1
                report.characters += len(piece)
                yield piece
    if long:
        report.notes.append(f"{long:,} longer than {task.max_length:,} characters, cut into {parts:,} documents")
    if not report.documents and not report.dropped:
        report.notes.append("no text in it")
    report.notes += suspicions(seen, report.rules)


# ---------------------------------------------------------------- reduce: parts -> train and validation shards


def side(key: str, seed: int) -> float:
    """Return a document's place in [0, 1), from its hash and the seed alone: below `val_fraction` is validation."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=6).digest()) / 2**48


def _threshold(keys: Iterable[str], val_fraction: float, seed: int) -> float:
    """Return the place below which documents are validation: `val_fraction`, moved only if a side would be empty."""
    places = [side(key, seed) for key in keys]
    low, high = min(places), max(places)
    if low == high:
        raise NoDocuments(
            "only 1 document was found, and training and validation need one each. Choose how a .txt is cut into "
            "documents: document='line' or 'block', or a smaller max_length"
        )
    return min(max(val_fraction, low + 2**-48), high)


class _Shards:
    """Numbered files of one split, a new one when the last is full."""

    def __init__(self, folder: Path, split: str):
        self.folder, self.split, self.outputs = folder, split, []
        self.documents = self.characters = 0
        self.file = None

    def write(self, line: bytes, characters: int) -> None:
        if self.file is None or self.documents % SHARD_DOCUMENTS == 0 or self.file.tell() > SHARD_BYTES:
            self.close()
            self.outputs.append(self.folder / f"{self.split}-{len(self.outputs):05d}.jsonl")
            self.file = open(self.outputs[-1], "wb")  # noqa: SIM115 (closed by close)
        self.file.write(line)
        self.documents += 1
        self.characters += characters

    def close(self) -> None:
        if self.file:
            self.file.close()


def _part_lines(part: Path) -> Iterator[tuple[str, int, int, bytes]]:
    with open(part, "rb") as file:
        for line in file:
            key, characters, number, rest = line.split(b" ", 3)
            yield key.decode(), int(characters), int(number), rest


def _reduce(parts: list[Path], reports: list[list[FileReport]], folder: Path, report: Report, **split) -> set[str]:
    """Drop duplicates, split, write the shards; complete the report. Returns the hashes of the validation documents."""
    max_documents, seed = split["max_documents"], split["seed"]
    wanted: set[str] = set()
    for key in (line[0] for part in parts for line in _part_lines(part)):
        if max_documents and len(wanted) == max_documents:
            break
        wanted.add(key)
    if not wanted:
        raise NoDocuments(_nothing_found(report))
    below = _threshold(wanted, split["val_fraction"], seed)
    shards = {name: _Shards(folder, name) for name in ("train", "val")}
    written: set[str] = set()
    validation: set[str] = set()
    for part, files in zip(parts, reports, strict=True):
        for key, characters, number, line in _part_lines(part):
            if key in wanted and key not in written:
                name = "val" if side(key, seed) < below else "train"
                shards[name].write(line, characters)
                written.add(key)
                if name == "val":
                    validation.add(key)
                continue
            file = files[number]
            file.drop("duplicate" if key in written else "over max_documents", characters)
            file.documents -= 1
            file.characters -= characters
    for shard in shards.values():
        shard.close()
        report.outputs += shard.outputs
    report.val_documents, report.val_characters = shards["val"].documents, shards["val"].characters
    report.documents = shards["train"].documents + report.val_documents
    report.characters = shards["train"].characters + report.val_characters
    for file in report.files:
        report.dropped += file.dropped
        report.lost += file.lost
        report.rules += file.rules
    return validation


def _nothing_found(report: Report) -> str:
    lines = [f"no usable document in {len(report.files):,} file(s) of '{report.source}':"]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {reason}" for reason, n in file.dropped.items())
        lines.append(f"  {file.source}: {'; '.join(filter(None, [file.bad, dropped, *file.notes]))}")
    if len(report.files) > 20:
        lines.append(f"  and {len(report.files) - 20:,} files more")
    return "\n".join(lines)


# ---------------------------------------------------------------- the stage


def find_files(source: str) -> tuple[list[Path], Path, Counter]:
    """Return a corpus's files (sorted), the folder their names start from, and the files of other kinds by extension.

    A relative path starts at the repository root. Raises NoDocuments where there is nothing to read.
    """
    place = paths.repo_root() / Path(source).expanduser()
    kinds = ", ".join(EXTENSIONS)
    if place.is_file():
        if place.suffix.lower() not in EXTENSIONS:
            raise NoDocuments(f"{place} is not one of {kinds}: save it as one of these")
        return [place], place.parent, Counter()
    if not place.is_dir():
        raise NoDocuments(f"{place} does not exist: give 'sample', a file or a folder ({kinds})")
    found = [Path(folder) / name for folder, _, names in os.walk(place) for name in names]
    files = sorted((file for file in found if file.suffix.lower() in EXTENSIONS and file.is_file()), key=Path.as_posix)
    others = Counter(file.suffix.lower() or "(none)" for file in found if file.suffix.lower() not in EXTENSIONS)
    if not files:
        there = ", ".join(f"{n} {kind}" for kind, n in others.most_common(5)) or "no file at all"
        raise NoDocuments(f"no file of the kinds {kinds} in {place} or its folders; there: {there}")
    return files, place, others


def input_files(source: str) -> list[Path]:
    """Return the files a corpus is made from, for the manifest; the built-in corpus is made from the table in data/."""
    if source == "sample":
        return sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    return find_files(source)[0]


def _tasks(files: list[Path], base: Path, folder: Path, **settings) -> list[_Task]:
    """Group files for the workers, by size alone, so that the number of workers changes nothing."""
    groups, size = [[]], 0
    for file in files:
        if groups[-1] and size + file.stat().st_size > TASK_BYTES:
            groups.append([])
            size = 0
        # a name that is not UTF-8 on disk becomes readable text
        groups[-1].append((file, os.fsencode(file.relative_to(base).as_posix()).decode("utf-8", "replace")))
        size += file.stat().st_size
    return [_Task(tuple(group), folder / f"{i:05d}.part", **settings) for i, group in enumerate(groups)]


def build(
    run: str,
    source: str = "sample",
    *,
    document: str = "auto",
    json_key: str = "text",
    min_length: int = 2,
    max_length: int = 2000,
    max_documents: int = 0,
    val_fraction: float = 0.05,
    seed: int = 0,
    workers: int = 0,
) -> Report:
    """Write a run's corpus room (shards and report.json; not the manifest) and return the report.

    `source` is "sample" or a path; `document` says what one document of a .txt is; lengths are in characters; at most
    `max_documents` are used (0: all); `val_fraction` of them, chosen by hash and seed, are for validation. The bytes
    written do not depend on `workers`. Raises NoDocuments.
    """
    if document not in MODES:
        raise ValueError(f"document is '{document}': give one of {', '.join(MODES)}")
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}: give a part between 0 and 1, say 0.05")
    if max_length < max(1, min_length):
        raise ValueError(f"max_length {max_length} is below min_length {min_length}: no document can be both")
    folder = paths.room(run, "corpus")
    temporary = folder / "parts"
    shutil.rmtree(temporary, ignore_errors=True)
    split = {"max_documents": max_documents, "val_fraction": val_fraction, "seed": seed}
    settings = {"mode": document, "json_key": json_key, "min_length": min_length, "max_length": max_length}
    files, base, others = ([], Path(), Counter()) if source == "sample" else find_files(source)
    temporary.mkdir(parents=True)
    # the manifest goes first: a room without one is unfinished, whatever happens from here on
    for old in [folder / paths.MANIFEST, folder / "report.json", folder / "train.json", *folder.glob("*-[0-9]*.jsonl")]:
        old.unlink(missing_ok=True)
    try:
        if source == "sample":
            report = _build_sample(temporary, folder, split)
        else:
            tasks = _tasks(files, base, temporary, **settings)
            with parallel.executor(min(workers or parallel.cores(), len(tasks))) as pool:
                reports = parallel.map_shards(pool, _read_task, tasks, label="reading" if len(tasks) > 1 else "")
            report = Report(source, [file for group in reports for file in group], left_out=others)
            _reduce([task.part for task in tasks], reports, folder, report, **split)
    finally:
        shutil.rmtree(temporary)
    written = {**vars(report), "files": [vars(file) for file in report.files]}
    written["outputs"] = [file.name for file in report.outputs]
    report.outputs.append(folder / "report.json")
    paths.write_text(report.outputs[-1], json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    return report


def _build_sample(temporary: Path, folder: Path, split: dict) -> Report:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability."""
    file = FileReport("sample", encoding="-", mode="grammar")
    chosen = (split["max_documents"],) if split["max_documents"] else ()
    bits, part = {}, temporary / "sample.part"
    with open(part, "wb") as lines_:
        for item in sample_corpus.documents(*chosen, seed=split["seed"]):
            if clean(item.text) != item.text:
                raise AssertionError(f"cleaning changes a document of the built-in corpus: {item.text!r}")
            lines_.write(_part_line(item.text, "sample", 0))
            bits[digest(item.text)] = item.bits
            file.documents += 1
            file.characters += len(item.text)
    report = Report("sample", [file])
    validation = _reduce([part], [[file]], folder, report, **split)
    report.floor_bits_per_char = round(sum(bits[key] for key in sorted(validation)) / report.val_characters, 6)
    return report


# ---------------------------------------------------------------- for the rooms that follow


def shard_paths(run: str, split: str) -> list[Path]:
    """Return the shards of a split, "train" or "val", in order; RoomError if the room is not there."""
    shards = paths.shards(run, "corpus", split, ".jsonl")
    if not shards:
        raise paths.RoomError(
            f"run '{run}' has no {split} shards: run notebook 01_corpus, or: python -m helpers.run corpus --run {run}"
        )
    return shards


def read_shards(run: str, split: str) -> Iterator[dict]:
    """Yield the documents of a split, {"text", "source"}, one at a time."""
    for shard in shard_paths(run, split):
        with open(shard, encoding="utf-8", newline="\n") as file:
            yield from map(json.loads, file)


def texts(run: str, split: str) -> Iterator[str]:
    """Yield the texts of a split, one at a time."""
    return (document["text"] for document in read_shards(run, split))


def write_json_list(run: str) -> Path:
    """Write the training documents as one JSON list of strings, corpus/train.json, and return its path."""
    path = paths.room(run, "corpus") / "train.json"
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for i, text in enumerate(texts(run, "train")):
            file.write((",\n" if i else "[\n") + json.dumps(text, ensure_ascii=False))
        file.write("\n]\n")
    return path
