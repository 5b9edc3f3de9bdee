"""Build a corpus: read, clean, drop duplicates, split, write shards and a report. Room 01 in one call.

The map step is in `partition`, the reduce step in `split`.
"""

import inspect
import re
import shutil
from collections import Counter
from concurrent.futures import Executor
from pathlib import Path

from helpers import parallel, paths
from helpers.corpus import built_in, cleaning, download, partition, split
from helpers.corpus.conversations import Conversation
from helpers.corpus.find import BUILT_IN, find_corpus
from helpers.corpus.inputs import Input, NoDocuments
from helpers.corpus.partition import PartSettings, PartWriter
from helpers.corpus.records import ReadOptions
from helpers.corpus.report import FileReport, PartReport, Report
from helpers.corpus.shards import shard_documents
from helpers.corpus.split import KEEP, Split
from helpers.files import occupied, write_text
from helpers.manifest import MANIFEST


def build_corpus(
    run: str,
    source: str = BUILT_IN,
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

    `source` is "sample", a file, folder, glob or archive, or what `download.fetch` gets from the net; `document`,
    `text_key` and `repair` say how it is read (see `records.ReadOptions`); `rules` switches cleaning rules on and off
    (see `cleaning.choose`); lengths are in characters; the filters are those of `cleaning.unfit`. From a similarity of
    `near_duplicates` on, the "first" of a cluster is kept, or "all" on one side of the split (0: only exact copies are
    dropped). At most `max_documents` are used (0: all); `val_fraction` of them, chosen by hash and seed, are for
    validation. The bytes written depend neither on `workers` nor on `cluster` (see `parallel.executor`).

    The built-in corpus is written clean: of it only seed, max_documents, val_fraction and near duplicates matter.

    Raises ValueError for a parameter that makes no sense and ClusterError where no cluster answers, both before the old
    room is touched; NoDocuments where nothing usable is found.
    """
    # 1. check the parameters
    if source in download.CORPORA and text_key == "text":
        text_key = download.CORPORA[source].text_key
    options, names = ReadOptions(document, text_key, repair), cleaning.choose(rules)
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}: give a part between 0 and 1, say 0.05")
    if max_length < max(1, min_length):
        raise ValueError(f"max_length {max_length} is below min_length {min_length}: no document can be both")
    if not 0 <= near_duplicates <= 1:
        raise ValueError(f"near_duplicates is {near_duplicates}: give a similarity, say 0.8, or 0 to look for none")
    if near_keep not in KEEP:
        raise ValueError(f"near_keep is '{near_keep}': give 'first' or 'all'")
    if max_documents < 0 or max_documents == 1:
        raise ValueError(
            f"max_documents is {max_documents}: give 0 for all, or at least 2: training and validation need one each"
        )
    filters = (("min_chinese", min_chinese), ("max_symbols", max_symbols), ("max_repetition", max_repetition))
    for name, value in filters:
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}: give a share between 0 and 1")
    limits = () if (min_chinese, max_symbols, max_repetition) == (0, 1, 1) else filters
    settings = PartSettings(options, names, min_length, max_length, limits, near_duplicates > 0, seed)
    wanted = Split(max_documents, val_fraction, near_duplicates, near_keep)
    inputs, left_out = ([], Counter()) if source == BUILT_IN else find_corpus(source)
    pool = parallel.InProcess() if source == BUILT_IN else parallel.executor(workers, cluster)

    # what means nothing for the built-in corpus
    given = dict(
        document=document, text_key=text_key, repair=repair, rules=rules, min_length=min_length,
        max_length=max_length, min_chinese=min_chinese, max_symbols=max_symbols, max_repetition=max_repetition,
    )  # fmt: skip
    usual = inspect.signature(build_corpus).parameters
    unused = [name for name, value in given.items() if value != usual[name].default]

    # 2. clear the room; the manifest goes first: a room without one is unfinished, whatever happens from here on
    folder = paths.room(run, "corpus")
    with occupied(folder):
        parts = folder / "parts"
        parts.mkdir(parents=True, exist_ok=True)
        left_behind = [*folder.glob("*-[0-9]*.jsonl"), *folder.glob(".*.part")]
        for old in [folder / MANIFEST, folder / "report.json", *left_behind]:
            old.unlink(missing_ok=True)

        # 3. map, reduce; what stops a build on its way leaves the finished parts to the next one
        try:
            if source == BUILT_IN:
                report = _build_built_in(parts, folder, wanted, seed, unused)
            else:
                report = Report(source, [], left_out=left_out, inputs=list(dict.fromkeys(item.path for item in inputs)))
                _build_files(inputs, parts, folder, report, settings, wanted, pool)
        except NoDocuments:
            shutil.rmtree(parts)
            raise
        shutil.rmtree(parts)

        # 4. the report
        text = report.as_json()
        report.outputs.append(folder / "report.json")
        write_text(report.outputs[-1], text)
        return report


def _build_files(
    inputs: list[Input], parts: Path, folder: Path, report: Report, settings: PartSettings, wanted: Split,
    pool: Executor,
) -> None:  # fmt: skip
    """Make the parts that are missing, and the shards of all parts."""
    bad: dict[str, str] = {}
    with pool:
        tasks = partition.make_tasks(inputs, bad, parts, settings, pool)
        needed = {task.part.name for task in tasks}
        for old in parts.iterdir():
            if re.split("[-.]", old.name)[0] not in needed:
                old.unlink()
        parallel.map_shards(pool, partition.read_task, tasks, label="reading" if len(tasks) > 1 else "")
        # what may be an advertisement is decided when all is read
        waiting = partition.held_back(tasks)
        whole = dict(parallel.map_shards(pool, partition.read_held, waiting))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(item.name for item in inputs))}
    report.files = [FileReport(name, bad=bad.get(name, "")) for name in numbers]
    finished = [whole.get(task.part, task.part) for task in tasks]
    report.join(map(partition.read_report, finished), settings.max_length)
    if not tasks:
        raise NoDocuments(split.nothing_found(report))
    files = [[numbers[item.name] for item in task.inputs] for task in tasks]
    split.reduce(finished, files, folder, report, wanted)


def _build_built_in(parts: Path, folder: Path, wanted: Split, seed: int, unused: list[str]) -> Report:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability.

    `unused`: parameters that were given and mean nothing for it.
    """
    items = built_in.documents(wanted.max_documents or built_in.DEFAULT, seed)
    bits = {item.text: item.bits for item in items}
    with PartWriter(parts / BUILT_IN, seed, near=wanted.near_duplicates > 0) as part:
        part.write([Conversation.of_lines(text) for text in bits], [0] * len(bits), [BUILT_IN])
        part.finish(PartReport([]))
    report = Report(BUILT_IN, [FileReport(BUILT_IN, encoding="-", mode="grammar")])
    if unused:
        report.files[0].notes.append(f"written clean, so {', '.join(unused)} change nothing")
    report.inputs = sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    split.reduce([part.part], [[0]], folder, report, wanted)
    # the floor: what the grammar itself needs for the validation documents; summed in an order that no shard changes
    shards = [shard for shard in report.outputs if shard.name.startswith("val")]
    validation = [document["text"] for shard in shards for document in shard_documents(shard)]
    total = sum(bits[text] for text in sorted(validation, key=partition.digest))
    report.floor_bits_per_char = round(total / report.val_characters, 6)
    return report
