"""Rooms 01 to 03 at size: cleaning, splitting, segmenting, encoding, and the memory they take.

    python -m benchmarks.corpus [--megabytes 250] [--dirty 120] [--workers 2] [--quick]

The text of the built-in corpus is repeated until it fills so many MB, half of it
as .jsonl and half as .txt with blank lines; a number in each document makes it one of its kind, so that none is dropped
as a duplicate. Then in turn: `build_corpus` from the files to the split, thulac in one process and in several on the
same fresh text, and `write_shards` from documents to token shards, with a word list that thulac made of a
sample. Speeds are end to end: the start of the processes and all reading and writing count. thulac's count from its
second call on, for its start takes seconds.

That text is clean. "dirty" builds a corpus from one in which every cleaning rule finds work, the optional ones of one
language included: a line in six has dirt, each rule's about as often, in four encodings. It is built twice, and the
better time counts.

Without arguments it takes minutes: a quarter of a gigabyte. A whole one: --megabytes 1000 --dirty 250. Memory is what
all processes of the stage hold together, measured ten times per second; pages they share count once (PSS; Linux only).
The stages run in a temporary folder, which needs about five times the size of the text.
"""

import itertools
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

from benchmarks.machine import MIB, command_line, describe_machine, met, report
from helpers import parallel, paths
from helpers.corpus import built_in, cleaning
from helpers.corpus.build import build_corpus
from helpers.corpus.shards import read_texts
from helpers.device import pick_device
from helpers.manifest import write_manifest
from helpers.tokens.shards import write_shards
from helpers.vocab import tokenizer
from helpers.vocab.words import choose_words, count_words, take_texts

AIMS = {
    "clean_and_split_mb_per_second": 20,
    "dirty_mb_per_second": 15,
    "encode_million_characters_per_second": 4,
    "peak_mib": 1024,
    "thulac_times_one_process": 1.8,
    "encode_times_thulac": 30,
}
AT_MOST = {"peak_mib"}  # the others are aims to reach or pass
RUN = "benchmark"


class Memory:
    """The most memory that this process and its children held while the `with` block ran, in MiB; 0 off Linux."""

    def __enter__(self):
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self.done.wait(0.1):
            family = [me, *me.children(recursive=True)]
            self.peak = max(self.peak, sum(map(held, family)) // MIB)


def held(process: psutil.Process) -> int:
    """Return the bytes of memory of one process; a page that n processes share counts 1/n for each of them."""
    try:
        return getattr(process.memory_full_info(), "pss", 0)
    except psutil.Error:
        return 0  # it has just ended


def documents() -> Iterator[str]:
    """Yield documents without end, no two of them equal."""
    one = [document.text for document in built_in.draw_documents()]
    for number in itertools.count():
        for part in one:
            middle = len(part) // 2
            yield f"{part[:middle]}{number}{part[middle:]}"


def _insert(dirt: str) -> Callable[[str], str]:
    """Return a function that puts dirt in the middle of a line."""
    return lambda line: line[: len(line) // 2] + dirt + line[len(line) // 2 :]


# rule -> what it is there to mend, in a line; "hard wraps" are made of whole documents
DIRT: dict[str, Callable[[str], str]] = {
    "line ends": _insert("\u2028"),
    "terminal colours": lambda line: f"\x1b[1;31m{line}\x1b[0m",
    "control characters": _insert("\x07"),
    "zero-width": _insert("\u200b"),
    "joiners": _insert("\u200d"),
    "BOM in the text": _insert("\ufeff"),
    "U+FFFD": _insert("\ufffd"),
    "private-use characters": _insert("\ue5e5"),
    "HTML comments and scripts": lambda line: f"<!-- 广告位 -->{line}<script type='text/javascript'>show(1);</script>",
    "HTML tags": lambda line: f'<p class="text">{line} <a href="/list/1.html">详情</a></p>',
    "HTML entities": _insert("&mdash;&#39;"),
    "unusual spaces": _insert("\xa0"),
    "indentation": lambda line: "\u3000\u3000" + line,
    "trailing spaces": lambda line: line + " \u3000 ",
    "repeated spaces": _insert("\u3000\u3000 "),
    "blank lines": lambda line: line + "\n\n\n",
    "NFC": _insert("e\u0301"),
    "repeated lines": lambda line: f"{line}\n更多内容请访问 www.example.com/list",
    "full width": _insert("ＡＢＣ１２３"),
    "half-width punctuation": lambda line: line.replace("，", ",", 1) if "，" in line else line + ",",
    # no .com: lines with a web address are an advertisement if they repeat, as the lines of this text do
    "personal data": lambda line: line + "电话13812345678，邮箱 li@example.edu，身份证11010519491231002X。",
}
ASKED = "+full width, +half-width punctuation, +personal data, +repeated spaces"
DIRTY_LINES, LINES, WRAPPED, WIDTH = 1 / 6, 8, 0.01, 33  # share of lines, lines per document, share of documents
CLEAN = (("a.jsonl", "utf-8", 0.5), ("b.txt", "utf-8", 0.5))
DIRTY = (("a.jsonl", "utf-8", 0.5), ("b.txt", "gb18030", 0.3), ("c.txt", "utf-8-sig", 0.15), ("d.txt", "utf-16", 0.05))


def dirty_documents() -> Iterator[str]:
    """Yield documents of some lines without end, no two of them equal, with dirt in each sixth line."""
    chance, source, rules = random.Random(0), documents(), list(DIRT.values())
    while True:
        lines = [line for document in itertools.islice(source, LINES // 2) for line in document.split("\n")]
        if chance.random() < WRAPPED:
            prose = "".join(lines).rstrip("。") + "。"
            yield "\n".join(prose[at : at + WIDTH] for at in range(0, len(prose), WIDTH))
            continue
        for i, line in enumerate(lines):
            if chance.random() < DIRTY_LINES:
                lines[i] = chance.choice(rules)(line)
        yield "\n".join(lines)


def write_files(folder: Path, source: Iterator[str], parts: tuple[tuple[str, str, float], ...], size: int) -> None:
    """Write `size` bytes of documents in files of these names, encodings and shares."""
    folder.mkdir()
    for name, encoding, share in parts:
        # with a mark at the start, where the encoding has one
        with open(folder / name, "w", encoding=encoding, newline="\r\n" if name == "c.txt" else "\n") as file:
            while file.tell() < share * size:
                for document in itertools.islice(source, 100):
                    row = json.dumps({"text": document}, ensure_ascii=False) if name == "a.jsonl" else document + "\n"
                    file.write(f"{row}\n")


def clean_dirty(raw: Path, workers: int) -> dict:
    """Build a corpus of dirty text twice; return figures: the better speed, and what each rule had to do."""
    size = sum(file.stat().st_size for file in raw.iterdir())
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        report = build_corpus("dirty", str(raw), rules=ASKED, workers=workers)
        seconds.append(time.perf_counter() - begin)
    idle = {*cleaning.DEFAULT_RULES, *DIRT} - {rule for rule, places in report.rules.items() if places}
    if idle:
        raise RuntimeError(f"these rules had no work, so their cost was not measured: {', '.join(sorted(idle))}")
    return {
        "dirty_mb": round(size / 1e6),
        "dirty_mb_per_second": round(size / 1e6 / min(seconds), 1),
        "dirty_rules": dict(report.rules.most_common()),
    }


def clean_and_split(raw: Path, workers: int) -> dict:
    """Build the corpus, and return its figures."""
    size = sum(file.stat().st_size for file in raw.iterdir())
    with Memory() as memory:
        begin = time.perf_counter()
        report = build_corpus(RUN, str(raw), workers=workers)
        seconds = time.perf_counter() - begin
    write_manifest(RUN, "corpus", parameters={}, inputs=[], outputs=[], result=report.result())
    return {
        "input_mb": round(size / 1e6),
        "documents": report.documents,
        "characters": report.characters,
        "dropped": sum(report.dropped.values()),
        "clean_and_split_seconds": round(seconds, 1),
        "clean_and_split_mb_per_second": round(size / 1e6 / seconds, 1),
        "clean_and_split_peak_mib": memory.peak,
    }


def segment(characters: int, workers: int) -> tuple[dict, dict]:
    """Segment fresh text with one process and with several, turn by turn; return figures and the words counted."""

    texts = take_texts(read_texts(RUN, "train"), (2 * workers + 4) * characters)
    size = max(1, len(texts) // (2 * workers + 4))
    warm, *rest = (texts[at : at + 2 * size] for at in range(0, len(texts), 2 * size))
    speeds: dict[int, list[float]] = {1: [], workers: []}
    words = {}
    with parallel.executor(1) as one, parallel.executor(workers) as several:
        for pool in (one, several):  # thulac's own start, in each process
            words = count_words(warm, pool)
        for (count, pool), some in zip(itertools.cycle([(1, one), (workers, several)]), rest, strict=False):
            begin = time.perf_counter()
            count_words(some, pool)
            speeds[count].append(sum(map(len, some)) / (time.perf_counter() - begin))
    alone, together = (max(speeds[count]) for count in (1, workers))
    return {
        "thulac_characters_per_second": round(alone),
        "thulac_characters_per_second_together": round(together),
        "thulac_times_one_process": round(together / alone, 2),
    }, words


def encode(words: dict, workers: int) -> dict:
    """Make a tokenizer of the words, encode the corpus to shards, and return figures."""

    folder = paths.room(RUN, "vocab")
    tok = tokenizer.build_words(choose_words(words, 50_000), sorted({c for word in words for c in word}))
    tok.save_pretrained(folder)
    with Memory() as memory:
        begin = time.perf_counter()
        shards = write_shards(RUN, num_pieces=8, workers=workers)
        seconds = time.perf_counter() - begin
    characters = sum(shard["characters"] for split in shards.values() for shard in split)
    return {
        "vocab_size": len(tok),
        "tokens": sum(shard["tokens"] for split in shards.values() for shard in split),
        "encode_seconds": round(seconds, 1),
        "encode_million_characters_per_second": round(characters / seconds / 1e6, 2),
        "encode_peak_mib": memory.peak,
    }


def main() -> None:
    """Measure, print a table, and print one JSON line."""
    parser = command_line("corpus", __doc__)
    parser.add_argument("--megabytes", type=int, default=250, help="size of the clean raw text (default 250)")
    parser.add_argument("--dirty", type=int, default=120, help="MB of dirty raw text (default 120)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--quick", action="store_true", help="10 MB, to see that it runs; no aims")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    os.environ |= {"RUNS_DIR": str(folder / "runs"), "HEADLESS": "1"}
    try:
        begin = time.perf_counter()
        write_files(folder / "raw", documents(), CLEAN, (10 if options.quick else options.megabytes) * 10**6)
        write_files(folder / "dirty", dirty_documents(), DIRTY, (2 if options.quick else options.dirty) * 10**6)
        print(f"raw text written in {time.perf_counter() - begin:.0f} s", flush=True)
        figures = clean_dirty(folder / "dirty", options.workers)
        figures |= clean_and_split(folder / "raw", options.workers)
        # in a process of its own, which takes thulac's memory with it when it ends
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            size = 20_000 if options.quick else 300_000
            segmented, words = alone.submit(segment, size, options.workers).result()
        figures |= segmented | encode(words, options.workers)
    finally:
        shutil.rmtree(folder)
    figures["peak_mib"] = max(figures["clean_and_split_peak_mib"], figures["encode_peak_mib"])
    figures["encode_times_thulac"] = round(
        figures["encode_million_characters_per_second"] * 1e6 / figures["thulac_characters_per_second_together"], 1
    )
    aims = {} if options.quick else met(figures, AIMS, AT_MOST)
    report("corpus", describe_machine(pick_device("cpu")), figures, aims)


if __name__ == "__main__":
    main()
