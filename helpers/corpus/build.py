"""Build a corpus: read, clean, drop duplicates, split, write shards and a report. Room 01 in one call.

The map step is in `partition`, the reduce step in `split`.
"""

import shutil
from collections import Counter
from concurrent.futures import Executor
from dataclasses import fields, replace
from pathlib import Path

from helpers import parallel, paths
from helpers.corpus import built_in, dedup, download, partition, split
from helpers.corpus.archives import Input, open_archive
from helpers.corpus.conversations import Conversation, by_turns
from helpers.corpus.find import BUILT_IN, find_inputs
from helpers.corpus.report import FileReport, PartReport, Report
from helpers.corpus.settings import CorpusSettings
from helpers.corpus.shards import shard_documents
from helpers.files import occupied, write_text
from helpers.manifest import MANIFEST


def build_corpus(run: str, source: str = BUILT_IN, *, workers: int = 0, **settings) -> Report:
    """Write a run's corpus room (shards and report.json; not the manifest) and return the report.

    `source` is "sample" (the built-in corpus), a file, folder, glob or archive, or what `download.fetch` gets from the
    net; `settings` are those of `CorpusSettings`. The bytes written do not depend on `workers`. Raises ValueError
    before the old room is touched; NoDocuments where nothing usable is found.
    """
    # 1. what is asked for
    if source in download.CORPORA and settings.get("text_key", "text") == "text":
        settings["text_key"] = download.CORPORA[source].text_key
    wanted = CorpusSettings(**settings)
    inputs, left_out, pool = list[Input](), Counter[str](), parallel.executor(workers)
    if source != BUILT_IN:
        place = download.fetch(source, paths.runs_dir() / "fetched")  # for every run
        inputs, left_out = find_inputs(str(place), paths.repo_root())
    report = Report(source, [], left_out=left_out, inputs=list(dict.fromkeys(item.path for item in inputs)))

    # 2. clear the room, build
    folder = paths.room(run, "corpus")
    with occupied(folder):
        parts = folder / "parts"
        shutil.rmtree(parts, ignore_errors=True)  # of a build that was killed
        parts.mkdir(parents=True)
        # the manifest goes first: a room without one is unfinished
        left_behind = [*folder.glob("*-[0-9]*.jsonl"), *folder.glob(".*.part")]
        for old in [folder / MANIFEST, folder / "report.json", *left_behind]:
            old.unlink(missing_ok=True)
        try:
            if source == BUILT_IN:
                _build_built_in(parts, report, wanted)
            else:
                _build_files(inputs, parts, report, wanted, pool)
        finally:
            open_archive.cache_clear()  # what an archive was unpacked to is gone then
            shutil.rmtree(parts)

        # 3. the report
        text = report.as_json()
        report.outputs.append(folder / "report.json")
        write_text(report.outputs[-1], text)
        return report


def _build_files(inputs: list[Input], parts: Path, report: Report, wanted: CorpusSettings, pool: Executor) -> None:
    """Make the parts, and the shards of all parts."""
    with pool:
        # 1. map
        tasks = partition.make_tasks(inputs, parts, wanted, pool)
        several = len(tasks) > 1
        read = parallel.map_shards(pool, partition.read_task, tasks, label="reading" if several else "")
        reports, places, characters = zip(*read, strict=True)
        repeated = dedup.find_repeated(places, sum(characters))
        found = zip(tasks, reports, repeated, strict=True)
        tasks = [replace(task, report=told, repeated=lines) for task, told, lines in found]
        finished = parallel.map_shards(pool, partition.clean_task, tasks, label="cleaning" if several else "")
    # 2. reduce
    numbers = {item.identity(): number for number, item in enumerate(inputs)}
    report.files = [FileReport(item.name) for item in inputs]
    files = [[numbers[item.identity()] for item in task.inputs] for task in tasks]
    report.join((told for told, _ in finished), files, wanted.max_length)
    split.reduce_parts([task.part for task in tasks], [index for _, index in finished], files, report, wanted)


# the settings that change the built-in corpus
_MEANT = ("near_duplicates", "max_documents", "val_fraction", "seed")


def _build_built_in(parts: Path, report: Report, wanted: CorpusSettings) -> None:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability."""
    items = built_in.draw_documents(wanted.max_documents or built_in.DEFAULT_DOCUMENTS, wanted.seed)
    bits = {item.text: item.bits for item in items}
    task = partition.Task((), parts / BUILT_IN, wanted, PartReport([FileReport(BUILT_IN)]))
    texts: list[str] = [Conversation(by_turns(text.split("\n"))) for text in bits]
    index = partition.write_part(task, [(texts, [0] * len(texts))])
    report.files = [FileReport(BUILT_IN, encoding="-", mode="grammar")]
    changed = [each.name for each in fields(wanted) if getattr(wanted, each.name) != each.default]
    if unused := [name for name in changed if name not in _MEANT]:
        report.files[0].notes.append(f"written clean, so {', '.join(unused)} change nothing")
    report.inputs = sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    split.reduce_parts([task.part], [index], [[0]], report, wanted)
    # the floor: what the grammar itself needs for the validation documents; summed in an order that no shard changes
    shards = [shard for shard in report.outputs if shard.name.startswith("val")]
    validation = [document["text"] for shard in shards for document in shard_documents(shard)]
    total = sum(bits[text] for text in sorted(validation, key=partition.digest))
    report.floor_bits_per_char = round(total / report.val_characters, 6)
