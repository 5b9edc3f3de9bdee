"""Word segmentation and the word list: a segmenter finds the words of a corpus, the most frequent become the list.

Knows nothing of ids, special tokens or models: `tokenizer` turns the word list into a tokenizer.
"""

import contextlib
import functools
import io
import re
import struct
import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from importlib import metadata
from itertools import accumulate, groupby
from pathlib import Path
from types import SimpleNamespace

import thulac
from thulac.base import Dat
from thulac.character import CBModel
from thulac.manage.Preprocesser import Preprocesser

from helpers import parallel, paths
from helpers.files import write_text
from helpers.vocab.segment_cache import SegmentCache, cut_line, pack_lengths

Segmenter = Callable[[str], list[str]]
Cache = SegmentCache | None

# a space (thulac swallows the second of two), or a stretch of text that fits thulac's buffer of 50,000 characters
_STRETCH = re.compile(r"\s|\S{1,4000}")
_CHUNK_CHARACTERS = 20_000  # in a worker's task, a third of a second of thulac: the progress bar moves
_BLOCK_CHARACTERS = 4_000_000  # held in memory at a time
_MOST_WORDS = 3_000_000  # distinct words that are counted at a time: some 400 MB
_HAN = re.compile(r"[\u4e00-\u9fff]")
_MENDED = "-mended"  # the cache holds nothing that thulac cut without `_mend`
_thulac_lock = threading.Lock()  # thulac is not thread-safe


def take_texts(texts: Iterable[str], characters: int) -> list[str]:
    """Return the first documents, whole, until they have at least `characters` characters; all if there are fewer."""
    return next(_groups(texts, characters), []) if characters > 0 else []


def sample_texts(texts: Iterable[str], share: float) -> Iterator[str]:
    """Yield whole documents, spread evenly over a corpus, with about `share` of its characters; 1.0 yields all."""
    seen = taken = 0
    for text in texts:
        seen += len(text)
        if taken < share * seen:
            taken += len(text)
            yield text


def _unpack(layout: str, data: bytes) -> memoryview:
    """Return the numbers of `data`, four bytes each as in thulac's file; its layout is always "<" and a number of i."""
    if len(data) != struct.calcsize(layout):
        raise ValueError("a file of thulac's model is cut off: install thulac again")
    return memoryview(data).cast("i")


@contextlib.contextmanager
def _compact() -> Iterator[None]:
    """Make thulac keep its model's 25 million numbers as four bytes each, and not as Python tuples.

    It then needs a fifth of the memory and is faster (`corpus` in benchmarks/README.md).
    """
    readers = [Dat, CBModel] if sys.byteorder == "little" else []
    for module in readers:
        vars(module).update(struct=SimpleNamespace(unpack=_unpack), tuple=lambda numbers: numbers)
    try:
        yield
    finally:
        for module in readers:
            vars(module)["struct"] = struct
            del vars(module)["tuple"]


def load_thulac() -> thulac.thulac:
    """Load thulac as published, but without its greeting and in 130 MB (see `_compact`)."""
    with contextlib.redirect_stdout(io.StringIO()), _compact():
        return thulac.thulac(seg_only=True)


@functools.cache
def _thulac_model() -> thulac.thulac:
    model = load_thulac()
    for part in vars(model).values():
        if isinstance(part, Preprocesser):
            _mend(part.otherSet)
    return model


def _mend(always_alone: list[int]) -> None:
    """Take the Chinese characters out of thulac's list of code points that are always words of their own.

    thulac 0.2.2 has 50 among its punctuation marks (的, 么, 家, 了, 不 …), so 什么, 国家 and 了解 are never words. The
    list is changed in place, because thulac's check closes over it.
    """
    always_alone[:] = [point for point in always_alone if not _HAN.match(chr(point))]


def _without_loss(name: str, cut: Segmenter, text: str) -> list[str]:
    pieces = []
    for stretch in _STRETCH.findall(text):
        words = [stretch] if stretch.isspace() else list(cut(stretch))
        if "".join(words) != stretch:
            raise RuntimeError(f"{name} changed the text it was to cut: {stretch!r} came back as {words!r}")
        pieces += words
    return pieces


def segment(text: str) -> list[str]:
    """Cut a text into words with thulac, without loss: segment("绿萝  浇水。") is ["绿萝", " ", " ", "浇水", "。"].

    The first call loads thulac's model: 130 MB.
    """
    with _thulac_lock:
        return _without_loss("thulac", lambda stretch: _thulac_model().cutline(stretch), text)


def segment_rjieba(text: str) -> list[str]:
    """Do the same with rjieba."""
    import rjieba  # here: its dictionary takes a seventh of a second

    return _without_loss("rjieba", lambda stretch: rjieba.cut(stretch, False), text)


SEGMENTERS: dict[str, Segmenter] = {"thulac": segment, "rjieba": segment_rjieba}


def get_segmenter(name: str) -> tuple[Segmenter, SegmentCache]:
    """Return the function of "thulac" or "rjieba" and the cache of its results; raise ValueError for another name."""
    if name not in SEGMENTERS:
        raise ValueError(f"segmenter is '{name}': choose {' or '.join(SEGMENTERS)}")
    version = metadata.version(name) + (_MENDED if name == "thulac" else "")
    return SEGMENTERS[name], SegmentCache(paths.runs_dir() / ".cuts" / f"{name}-{version}.sqlite")


def _lines(text: str) -> list[str]:
    """Split a text after each newline: no word crosses one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _groups(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Yield the texts in groups of at least `characters` characters; the last group may have fewer."""
    group, total = [], 0
    for text in texts:
        group.append(text)
        total += len(text)
        if total >= characters:
            yield group
            group, total = [], 0
    if group:
        yield group


def _segment_chunk(segmenter: Segmenter, lines: list[str]) -> list[bytes]:
    return [pack_lengths(segmenter(line)) for line in lines]


def _segment_lines(
    lines: Iterable[str], pool: Executor, label: str, segmenter: Segmenter, cache: Cache
) -> dict[str, bytes]:
    """Return {line: packed lengths} of distinct lines; lines missing from `cache` are segmented and added."""
    known = cache.find(lines) if cache else {}
    missing = [line for line in lines if line not in known]
    chunks = list(_groups(missing, _CHUNK_CHARACTERS))
    parts = parallel.map_shards(pool, functools.partial(_segment_chunk, segmenter), chunks, label if chunks else "")
    new = dict(zip(missing, (lengths for part in parts for lengths in part), strict=True))
    if cache and new:
        cache.keep(new)
    return known | new


def segment_texts(
    texts: Sequence[str], pool: Executor, label: str = "", segmenter: Segmenter = segment, cache: Cache = None
) -> list[list[str]]:
    """Return the pieces of each text, in order; each distinct line is segmented at most once (see `count_words`)."""
    lines = dict.fromkeys(line for text in texts for line in _lines(text))
    lengths = _segment_lines(lines, pool, label, segmenter, cache)
    return [[word for line in _lines(text) for word in cut_line(line, lengths[line])] for text in texts]


def count_words(
    texts: Iterable[str], pool: Executor, label: str = "", segmenter: Segmenter = segment, cache: Cache = None
) -> Counter[str]:
    """Count the words of all texts as written: letter case, punctuation and spaces are kept.

    Each distinct line of a block of texts is segmented once, or never if `cache` has it; `segmenter` must be lossless.
    Beyond three million distinct words the rarest are forgotten.
    """
    counts: Counter[str] = Counter()
    for number, block in enumerate(_groups(texts, _BLOCK_CHARACTERS), 1):
        lines = Counter(line for text in block for line in _lines(text))
        name = f"{label} ({number})" if label and number > 1 else label
        lengths = _segment_lines(lines, pool, name, segmenter, cache)
        for line, times in lines.items():
            for word in cut_line(line, lengths[line]):
                counts[word] += times
        if len(counts) > _MOST_WORDS:
            counts = Counter(dict(counts.most_common(_MOST_WORDS // 2)))
    return counts


def choose_words(
    counts: Mapping[str, int], vocab_size: int, min_count: int = 1, max_word_length: int = 12
) -> dict[str, int]:
    """Return the `vocab_size` most frequent words with their counts, in that order; ties follow the code points.

    A word has no space, at most `max_word_length` characters and at least `min_count` occurrences.
    """
    if vocab_size < 0 or min_count < 1 or max_word_length < 1:
        raise ValueError(
            f"vocab_size={vocab_size} must be 0 or more, min_count={min_count} and "
            f"max_word_length={max_word_length} 1 or more"
        )
    frequent = [word for word in counts if counts[word] >= min_count and len(word) <= max_word_length]
    words = [word for word in frequent if not re.search(r"\s", word)]
    return {word: counts[word] for word in sorted(words, key=lambda word: (-counts[word], word))[:vocab_size]}


def count_characters(counts: Mapping[str, int]) -> Counter[str]:
    """Return how often each character occurs in the counted pieces: {"绿萝": 3} -> {"绿": 3, "萝": 3}."""
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            totals[character] += count
    return totals


def coverage(counts: Mapping[str, int], words: Iterable[str]) -> float:
    """Return the share of the running words in `counts` that are in `words`, spaces left out; 1.0 for no word.

    The others would be `<unk>` in a closed word list.
    """
    known = set(words)
    running = {word: count for word, count in counts.items() if not word.isspace()}
    covered = sum(count for word, count in running.items() if word in known)
    return covered / sum(running.values()) if running else 1.0


def _boundaries(pieces: Sequence[str]) -> set[int]:
    return set(accumulate(map(len, pieces[:-1])))


def boundary_f1(segmented: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> float:
    """Return how well two segmentations of the same texts agree: F1 of their inner boundaries, 1.0 if there is none.

    F1 is the harmonic mean of precision and recall: 0.5 for 我|爱|绿萝, boundaries {1, 2}, and 我爱|绿|萝, boundaries
    {2, 3}. Raises ValueError where the texts differ.
    """
    shared = total = 0
    for a, b in zip(segmented, reference, strict=True):
        if "".join(a) != "".join(b):
            raise ValueError(f"two segmentations of different texts: {''.join(a)[:40]!r}… and {''.join(b)[:40]!r}…")
        boundaries_a, boundaries_b = _boundaries(a), _boundaries(b)
        shared += len(boundaries_a & boundaries_b)
        total += len(boundaries_a) + len(boundaries_b)
    return 2 * shared / total if total else 1.0


def _between(pieces: Sequence[str], boundaries: set[int]) -> list[tuple[str, ...]]:
    """Return the pieces in groups that end at the boundaries."""
    ends, placed = sorted(boundaries), zip(accumulate(map(len, pieces), initial=0), pieces, strict=False)
    groups = groupby(placed, key=lambda each: bisect_right(ends, each[0]))
    return [tuple(piece for _, piece in group) for _, group in groups]


def count_differences(
    segmented: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]
) -> Counter[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Count the shortest stretches that are cut differently: (("归来",), ("归", "来")) -> times."""
    counts: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for a, b in zip(segmented, reference, strict=True):
        shared = _boundaries(a) & _boundaries(b)
        pairs = zip(_between(a, shared), _between(b, shared), strict=True)
        counts.update(pair for pair in pairs if pair[0] != pair[1])
    return counts


def write_words(path: Path, words: Iterable[str]) -> None:
    """Write one word per line, UTF-8; raise ValueError for a word that a line cannot hold (empty, or with a space)."""
    words = list(words)
    for number, word in enumerate(words, 1):
        if not word or re.search(r"\s", word):
            raise ValueError(f"word {number}, {word!r}, cannot stand on a line of its own in {Path(path).name}")
    write_text(Path(path), "".join(f"{word}\n" for word in words))
