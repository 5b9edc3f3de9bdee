"""Build a corpus: read, clean, drop duplicates, split, write shards and a report."""

import json
import shutil
from collections import Counter
from concurrent.futures import Executor
from pathlib import Path

from helpers import parallel, paths
from helpers.corpus import built_in, cleaning, download
from helpers.corpus.find import find_corpus
from helpers.corpus.formats import ReadOptions
from helpers.corpus.inputs import Input, NoDocuments
from helpers.corpus.mojibake import suspicions
from helpers.corpus.partition import Settings, Task, Writer, digest, make_tasks, read_task
from helpers.corpus.report import FileReport, Report
from helpers.corpus.shards import shard_texts
from helpers.corpus.split import KEEP, Split, nothing_found, reduce
from helpers.files import write_text
from helpers.manifest import MANIFEST

MODES = ("auto", "block", "line", "file")
NOTES = 10  # of a file in many slices, so many are kept


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


def build_corpus(
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
    if source in download.CORPORA and text_key == "text":
        text_key = download.CORPORA[source].text_key
    how, on = ReadOptions(document, text_key, repair), cleaning.choose(rules)
    settings = Settings(how, on, min_length, max_length, limits, near_duplicates > 0, seed)
    split = Split(max_documents, val_fraction, near_duplicates, near_keep)
    inputs, others = ([], Counter()) if source == "sample" else find_corpus(source)
    folder = paths.room(run, "corpus")
    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    # the manifest goes first: a room without one is unfinished, whatever happens from here on
    for old in [folder / MANIFEST, folder / "report.json", folder / "train.json", *folder.glob("*-[0-9]*.jsonl")]:
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
    write_text(report.outputs[-1], json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    return report


def _build_files(
    inputs: list[Input], parts: Path, folder: Path, report: Report, settings: Settings, split: Split, pool: Executor
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
        raise NoDocuments(nothing_found(report))
    reduce([task.part for task in tasks], files, folder, report, split)


def _build_sample(parts: Path, folder: Path, split: Split, seed: int) -> Report:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability."""
    file = FileReport("sample", encoding="-", mode="grammar")
    chosen = (split.max_documents,) if split.max_documents else ()
    items = list(built_in.documents(*chosen, seed=seed))
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
    reduce([part.part], [[0]], folder, report, split)
    bits = {item.text: item.bits for item in items}
    validation = [text for shard in report.outputs if shard.name.startswith("val") for text in shard_texts(shard)]
    report.floor_bits_per_char = round(sum(map(bits.get, sorted(validation, key=digest))) / report.val_characters, 6)
    return report
