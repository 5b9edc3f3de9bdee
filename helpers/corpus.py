"""Any raw text -> clean documents in shards; a train/validation split; what was kept, dropped and why.

Text comes from the built-in corpus, files in any of the forms that `reading` knows, or the net (`fetching`). Workers
turn it into parts (`parts`); one reduction here drops duplicates, splits, and writes the shards. Memory is bounded by a
part and some 50 bytes a document. A build that was interrupted finds its finished parts again. Knows nothing of words
and tokens: a document is a text and the name of its source.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from helpers import cleaning, duplicates, fetching, parallel, paths, sample_corpus
from helpers.encodings import suspicions
from helpers.parts import Settings, Task, Writer, digest, make_tasks, place, read_index, read_task
from helpers.reading import FileReport, How
from helpers.sources import Input, NoDocuments, find_inputs

MODES = ("auto", "block", "line", "file")
KEEP = ("first", "all")
SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20
REDUCE_BYTES = 8 * 2**20  # of a part, copied into the shards at a time
NOTES = 10  # of a file in many slices, so many are kept
BUCKET = 2**21  # documents whose hashes are compared at a time


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
    examples: dict[str, list] = field(default_factory=dict)  # cleaning rule -> a few (before, after)
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

    def rule_rows(self) -> list[tuple]:
        """Return a row for each cleaning rule that had work: name, places, an example before and after."""
        empty = [("", "")]
        return [(name, n, *(self.examples.get(name) or empty)[0]) for name, n in self.rules.most_common()]

    def warnings(self) -> list[str]:
        """Return a line for each file that could not be used, or whose text a person should look at."""
        return [f"{file.source}: {line}" for file in self.files for line in [*filter(None, [file.bad]), *file.notes]]


# ---------------------------------------------------------------- reduce: parts -> train and validation shards

_KEPT, _DUPLICATE, _NEAR, _OVER, _BAD = range(5)
_REASON = {_DUPLICATE: "duplicate", _NEAR: "near duplicate", _OVER: "over max_documents"}


@dataclass(frozen=True)
class _Split:
    max_documents: int
    val_fraction: float
    near_duplicates: float = 0.0
    near_keep: str = "first"


def side(key: str, seed: int) -> float:
    """Return a document's place in [0, 1), from its hash and the seed alone: below `val_fraction` is validation."""
    return place(key, seed) / 2**48


def _threshold(places: Iterable[float], val_fraction: float) -> float:
    """Return the place below which documents are validation: `val_fraction`, moved only if a side would be empty."""
    places = np.asarray(places)
    low, high = places.min(), places.max()
    if low == high:
        raise NoDocuments(
            "only 1 document was found, and training and validation need one each. Choose how a .txt is cut into "
            "documents: document='line' or 'block', or a smaller max_length"
        )
    return float(min(max(val_fraction, low + 2**-48), high))


def _first_of_each(parts: list[Path], usable: np.ndarray) -> np.ndarray:
    """Return for each document the number of the first one with the same hash; in memory stands a bucket of hashes."""
    first = np.arange(len(usable))
    buckets = 1 << max(0, (len(usable) // BUCKET).bit_length())
    for bucket in range(buckets):
        found, start = [], 0
        for part in parts:
            keys = read_index(part)["hash"]
            here = np.flatnonzero((keys[:, 0] % buckets == bucket) & usable[start : start + len(keys)])
            found.append((keys[here], here + start))
            start += len(keys)
        keys, documents = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: of equal hashes the first document stays first
        keys, documents = keys[order], documents[order]
        if len(keys):
            begins = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
            first[documents] = np.repeat(documents[begins], np.diff(begins, append=len(keys)))
    return first


def _decide(parts: list[Path], usable: np.ndarray, split: _Split) -> tuple[np.ndarray, np.ndarray]:
    """Return what becomes of each document, and the number of the document that decides on its side of the split."""
    leader = _first_of_each(parts, usable)
    alone = np.arange(len(usable))
    status = np.where(usable, np.where(leader == alone, _KEPT, _DUPLICATE), _BAD).astype(np.uint8)
    if split.near_duplicates:
        files = [part.with_suffix(".minhash") for part in parts]
        cluster = duplicates.clusters(files, split.near_duplicates, status == _KEPT)
        if split.near_keep == "first":
            status[(status == _KEPT) & (cluster != alone)] = _NEAR
        leader = cluster[leader]
    kept = np.flatnonzero(status == _KEPT)
    if split.max_documents and len(kept) > split.max_documents:
        last = kept[split.max_documents - 1]
        # a copy of a document that is over the limit is over it too
        status[(leader > last) & (status != _BAD) | (status == _KEPT) & (alone > last)] = _OVER
    return status, leader


class _Shards:
    """Numbered files of one split, a new one when the last is full."""

    def __init__(self, folder: Path, split: str):
        self.folder, self.split, self.outputs = folder, split, []
        self.documents = self.characters = self.size = 0
        self.file = None

    def write(self, data: memoryview, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Add lines that stand somewhere in `data`, in order."""
        while len(sizes):
            if self.file is None or self.documents % SHARD_DOCUMENTS == 0 or self.size > SHARD_BYTES:
                self.close()
                self.outputs.append(self.folder / f"{self.split}-{len(self.outputs):05d}.jsonl")
                self.file = open(_beside(self.outputs[-1]), "wb")  # noqa: SIM115 (closed by close)
                self.size = 0
            until_full = int(np.searchsorted(np.cumsum(sizes), SHARD_BYTES - self.size, side="right")) + 1
            count = min(len(sizes), until_full, SHARD_DOCUMENTS - self.documents % SHARD_DOCUMENTS)
            here, ends = starts[:count], starts[:count] + sizes[:count]
            begins = np.flatnonzero(np.r_[True, here[1:] != ends[:-1]])  # lines side by side are one piece
            stops = ends[np.r_[begins[1:] - 1, count - 1]]
            self.size += self.file.write(b"".join(data[a:b] for a, b in zip(here[begins], stops, strict=True)))
            self.documents += count
            starts, sizes = starts[count:], sizes[count:]

    def close(self) -> None:
        """Give the last shard, complete now, its name."""
        if self.file:
            self.file.close()
            os.replace(self.file.name, self.outputs[-1])
            self.file = None


def _beside(shard: Path) -> Path:
    return shard.with_name(f".{shard.name}.part")


def _pieces(part: Path, index: np.ndarray) -> Iterator[tuple[slice, memoryview, np.ndarray]]:
    """Yield a part's lines, REDUCE_BYTES at a time: which rows, their bytes, where each line starts in these."""
    ends = np.cumsum(index["bytes"], dtype=np.int64)
    at = 0
    with open(part.with_suffix(".lines"), "rb") as file:
        while at < len(index):
            begin = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, begin + REDUCE_BYTES, side="right")))
            data = memoryview(file.read(int(ends[stop - 1]) - begin))
            yield slice(at, stop), data, ends[at:stop] - index["bytes"][at:stop] - begin
            at = stop


def _reduce(parts: list[Path], files: list[list[int]], folder: Path, report: Report, split: _Split) -> None:
    """Drop duplicates, split, write the shards; complete the report.

    `files` says for each part which of the report's files its files are.
    """
    bad = np.array([bool(file.bad) for file in report.files], bool)
    lengths, usable = [], []
    for part, numbers in zip(parts, files, strict=True):
        index = read_index(part)
        lengths.append(len(index))
        usable.append(~bad[np.asarray(numbers)[index["file"]]])
    status, leader = _decide(parts, np.concatenate(usable), split)
    if not (status == _KEPT).any():
        raise NoDocuments(_nothing_found(report))
    places = np.concatenate([read_index(part)["place"] for part in parts]) / 2**48
    if split.near_duplicates:
        places = places[leader]
    below = _threshold(places[status == _KEPT], split.val_fraction)

    shards = {name: _Shards(folder, name) for name in ("train", "val")}
    start = 0
    for part, numbers, length in zip(parts, files, lengths, strict=True):
        index = read_index(part)
        fate, validation = status[start : start + length], places[start : start + length] < below
        _count(report, index, fate, np.asarray(numbers))
        for name, shard in shards.items():
            shard.characters += int(index["characters"][(fate == _KEPT) & (validation == (name == "val"))].sum())
        for rows, data, at in _pieces(part, index):
            for name, shard in shards.items():
                mine = (fate[rows] == _KEPT) & (validation[rows] == (name == "val"))
                shard.write(data, at[mine], index["bytes"][rows][mine].astype(np.int64))
        start += length
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


def _count(report: Report, index: np.ndarray, fate: np.ndarray, numbers: np.ndarray) -> None:
    """Add the documents of one part to the reports of its files."""
    owner = numbers[index["file"]]
    for kind in np.unique(fate):
        mine = fate == kind
        found, at = np.unique(owner[mine], return_inverse=True)
        documents = np.bincount(at)
        characters = np.bincount(at, weights=index["characters"][mine]).astype(np.int64)
        for number, n, length in zip(found, documents.tolist(), characters.tolist(), strict=True):
            file = report.files[number]
            if kind == _KEPT:
                file.documents += n
                file.characters += length
            elif kind in _REASON:
                file.dropped[_REASON[kind]] += n
                file.lost[_REASON[kind]] += length


def _nothing_found(report: Report) -> str:
    lines = [f"no usable document in {len(report.files):,} file(s) of '{report.source}':"]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {reason}" for reason, n in file.dropped.items())
        lines.append(f"  {file.source}: {'; '.join(filter(None, [file.bad, dropped, *file.notes]))}")
    if len(report.files) > 20:
        lines.append(f"  and {len(report.files) - 20:,} files more")
    return "\n".join(lines)


# ---------------------------------------------------------------- the stage


def find(source: str) -> tuple[list[Input], Counter]:
    """Return what a corpus is made from, and the files of other kinds by extension; fetch what is on the net first.

    A relative path starts at the repository root; what is fetched is kept in runs/fetched, for every run. Raises
    NoDocuments where there is nothing to read.
    """
    found = fetching.fetch(source, paths.runs_dir() / "fetched")
    return find_inputs(str(found), paths.repo_root())


def input_files(source: str) -> list[Path]:
    """Return the files a corpus is made from, for the manifest; the built-in corpus is made from the table in data/."""
    if source == "sample":
        return sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    return list(dict.fromkeys(item.path for item in find(source)[0]))


def _joined(
    tasks: list[Task], bad: dict[str, str], inputs: list[Input], report: Report, max_length: int
) -> list[list[int]]:
    """Put the reports of slices together, a report a file; return for each task which of these its inputs are."""
    number = {source: n for n, source in enumerate(dict.fromkeys(item.source for item in inputs))}
    report.files = [FileReport(source, bad=bad.get(source, "")) for source in number]
    facts = [Counter() for _ in number]
    files = []
    for task in tasks:
        told = json.loads(task.part.with_suffix(".json").read_text("utf-8"))
        files.append([number[item.source] for item in task.inputs])
        for n, part, fact in zip(files[-1], told["files"], told["facts"], strict=True):
            file = report.files[n]
            facts[n].update(fact)
            file.encoding, file.mode = (file.encoding, file.mode) if file.mode else (part["encoding"], part["mode"])
            file.bad = file.bad or part["bad"]
            file.notes += [note for note in part["notes"] if note not in file.notes]
            for name in ("dropped", "lost", "rules"):
                getattr(file, name).update(part[name])
        for name, shown in told["examples"].items():
            report.examples.setdefault(name, []).extend(shown)
    report.examples = {name: shown[: cleaning.EXAMPLES] for name, shown in report.examples.items()}
    for file, fact in zip(report.files, facts, strict=True):
        if file.bad:  # no half of a file stays behind
            file.dropped, file.lost, file.rules, file.notes = Counter(), Counter(), Counter(), []
            continue
        if len(file.notes) > NOTES:
            file.notes[NOTES:] = [f"and {len(file.notes) - NOTES:,} notes more, of other slices of this file"]
        if long := fact["long"]:
            file.notes.append(f"{long:,} longer than {max_length:,} characters, cut into {fact['pieces']:,} documents")
        if not fact["all"] and not file.dropped:
            file.notes.append("no text in it")
        file.notes += suspicions(fact, file.rules)
    return files


def build(
    run: str,
    source: str = "sample",
    *,
    document: str = "auto",
    text_key: str = "text",
    repair: bool = False,
    rules: str = "",
    min_length: int = 2,
    max_length: int = 2000,
    min_chinese: float = 0.0,
    max_symbols: float = 1.0,
    max_repetition: float = 1.0,
    near_duplicates: float = 0.0,
    near_keep: str = "first",
    max_documents: int = 0,
    val_fraction: float = 0.05,
    seed: int = 0,
    workers: int = 0,
    cluster: str = "",
) -> Report:
    """Write a run's corpus room (shards and report.json; not the manifest) and return the report.

    `source` is "sample", a file, folder, glob or archive, or what `fetching` gets from the net; `document`, `text_key`
    and `repair` say how it is read (see `reading.How`); `rules` switches cleaning rules on and off; lengths are in
    characters; the filters are those of `cleaning.unfit`. From a similarity of `near_duplicates` on, the "first" of a
    cluster is kept, or "all" on one side of the split (0: only exact copies are dropped). At most `max_documents` are
    used (0: all); `val_fraction` of them, chosen by hash and seed, are for validation. The bytes written depend neither
    on `workers` nor on `cluster` (see `parallel.executor`). Raises NoDocuments.
    """
    if document not in MODES:
        raise ValueError(f"document is '{document}': give one of {', '.join(MODES)}")
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}: give a part between 0 and 1, say 0.05")
    if max_length < max(1, min_length):
        raise ValueError(f"max_length {max_length} is below min_length {min_length}: no document can be both")
    if not 0 <= near_duplicates <= 1:
        raise ValueError(f"near_duplicates is {near_duplicates}: give a similarity, say 0.8, or 0 to look for none")
    if near_keep not in KEEP:
        raise ValueError(f"near_keep is '{near_keep}': give 'first' or 'all'")
    limits = (("min_chinese", min_chinese), ("max_symbols", max_symbols), ("max_repetition", max_repetition))
    for name, value in limits:
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}: give a share between 0 and 1")
    limits = () if (min_chinese, max_symbols, max_repetition) == (0, 1, 1) else limits
    if source in fetching.CORPORA and text_key == "text":
        text_key = fetching.CORPORA[source].text_key
    how, on = How(document, text_key, repair), cleaning.choose(rules)
    settings = Settings(how, on, min_length, max_length, limits, near_duplicates > 0, seed)
    split = _Split(max_documents, val_fraction, near_duplicates, near_keep)
    inputs, others = ([], Counter()) if source == "sample" else find(source)
    folder = paths.room(run, "corpus")
    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    # the manifest goes first: a room without one is unfinished, whatever happens from here on
    for old in [folder / paths.MANIFEST, folder / "report.json", folder / "train.json", *folder.glob("*-[0-9]*.jsonl")]:
        old.unlink(missing_ok=True)
    try:
        if source == "sample":
            report = _build_sample(parts, folder, split, seed)
        else:
            report = Report(source, [], left_out=others)
            _build_files(inputs, parts, folder, report, settings, split, parallel.executor(workers, cluster))
    except NoDocuments:
        shutil.rmtree(parts)
        raise
    shutil.rmtree(parts)  # only now: what stops a build on its way leaves the finished parts to the next
    written = {**vars(report), "files": [vars(file) for file in report.files]}
    written["outputs"] = [file.name for file in report.outputs]
    report.outputs.append(folder / "report.json")
    paths.write_text(report.outputs[-1], json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    return report


def _build_files(
    inputs: list[Input], parts: Path, folder: Path, report: Report, settings: Settings, split: _Split, pool: Executor
) -> None:
    """Make the parts that are missing, and of all parts the shards."""
    bad: dict[str, str] = {}
    with pool:
        tasks = make_tasks(inputs, bad, parts, settings, pool)
        mine = {task.part.name for task in tasks}
        for old in parts.iterdir():
            if old.name.split(".")[0] not in mine:
                old.unlink()
        parallel.map_shards(pool, read_task, tasks, label="reading" if len(tasks) > 1 else "")
    files = _joined(tasks, bad, inputs, report, settings.max_length)
    if not tasks:
        raise NoDocuments(_nothing_found(report))
    _reduce([task.part for task in tasks], files, folder, report, split)


def _build_sample(parts: Path, folder: Path, split: _Split, seed: int) -> Report:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability."""
    file = FileReport("sample", encoding="-", mode="grammar")
    chosen = (split.max_documents,) if split.max_documents else ()
    items = list(sample_corpus.documents(*chosen, seed=seed))
    texts = [item.text for item in items]
    for text in texts:
        if cleaning.clean(text) != text:
            raise AssertionError(f"cleaning changes a document of the built-in corpus: {text!r}")
    part = Writer(parts / "sample", seed, near=split.near_duplicates > 0)
    try:
        part.write(texts, [0] * len(texts), ["sample"])
        part.finish({})
    finally:
        part.discard()
    report = Report("sample", [file])
    _reduce([part.part], [[0]], folder, report, split)
    bits = {item.text: item.bits for item in items}
    validation = [text for shard in report.outputs if shard.name.startswith("val") for text in _shard_texts(shard)]
    report.floor_bits_per_char = round(sum(map(bits.get, sorted(validation, key=digest))) / report.val_characters, 6)
    return report


def _shard_texts(shard: Path) -> list[str]:
    with open(shard, encoding="utf-8", newline="\n") as file:
        return [json.loads(line)["text"] for line in file]


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
