"""The words of a corpus: a segmenter finds them, they are counted, the commonest become the word list.

Knows nothing of ids, special tokens or models; `tokenizer` makes those from the word list.
"""

import contextlib
import functools
import importlib.util
import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from importlib import metadata
from itertools import accumulate
from pathlib import Path

import thulac

from helpers import parallel, paths
from helpers.files import write_text
from helpers.vocab.segment_cache import SegmentCache, pack, unpack

Segmenter = Callable[[str], list[str]]

# A blank (thulac would swallow a second one), or a stretch of text that fits thulac's fixed buffer of 50,000.
_STRETCH = re.compile(r"\s|\S{1,4000}")
_CHUNK_CHARACTERS = 20_000  # a third of a second of thulac: small enough for a bar that moves
_BLOCK_CHARACTERS = 4_000_000  # text whose lines are held at a time
_MOST_WORDS = 3_000_000  # different words that are counted at a time: some 400 MB
_thulac_lock = threading.Lock()


def take_texts(texts: Iterable[str], characters: int) -> list[str]:
    """Return the first documents, as many as it takes to reach so many characters (all, if there are fewer)."""
    taken, total = [], 0
    for text in texts:
        if total >= characters:
            break
        taken.append(text)
        total += len(text)
    return taken


def sample_texts(texts: Iterable[str], share: float) -> Iterator[str]:
    """Yield about such a share of the characters of a corpus, whole documents, spread evenly over it; 1.0 is all."""
    seen = taken = 0
    for text in texts:
        seen += len(text)
        if taken < share * seen:
            taken += len(text)
            yield text


@functools.cache
def _model() -> thulac.thulac:
    with contextlib.redirect_stdout(io.StringIO()):  # thulac greets on loading
        return thulac.thulac(seg_only=True)


def _without_loss(name: str, cut: Segmenter, text: str) -> list[str]:
    pieces = []
    for stretch in _STRETCH.findall(text):
        words = [stretch] if stretch.isspace() else list(cut(stretch))
        if "".join(words) != stretch:
            raise RuntimeError(f"{name} changed the text it was to cut: {stretch!r} came back as {words!r}")
        pieces += words
    return pieces


def segment(text: str) -> list[str]:
    """Cut a text into words with thulac, losing nothing: "".join(segment(text)) == text, a blank is its own piece.

    The first call in a process loads thulac's model (about 3 s and 750 MB). thulac cannot serve two
    threads at once; the second one waits here.
    """
    with _thulac_lock:
        return _without_loss("thulac", lambda stretch: _model().cutline(stretch), text)


def segment_rjieba(text: str) -> list[str]:
    """Cut a text into words with rjieba, losing nothing, as `segment` does with thulac; it needs no loading."""
    import rjieba  # optional

    return _without_loss("rjieba", lambda stretch: rjieba.cut(stretch, False), text)


SEGMENTERS = {"thulac": segment, "rjieba": segment_rjieba}


def segmenter(name: str) -> tuple[Segmenter, SegmentCache]:
    """Return the function that cuts a text as `name`, "thulac" or "rjieba", does, and the file that keeps its cuts.

    The file is for all runs: a line that any of them had cut is not cut again.
    """
    if name not in SEGMENTERS:
        raise ValueError(f"segmenter is '{name}': choose {' or '.join(SEGMENTERS)}")
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"segmenter is '{name}', which is not installed: pip install -e \".[text]\"")
    return SEGMENTERS[name], SegmentCache(paths.runs_dir() / ".cuts" / f"{name}-{metadata.version(name)}.sqlite")


def _lines(text: str) -> list[str]:
    """Cut a text behind each newline: no word crosses one, so the lines' words are the text's words."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    chunk, total = [], 0
    for line in lines:
        chunk.append(line)
        total += len(line)
        if total >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _cut_lines(segmenter: Segmenter, lines: list[str]) -> list[bytes]:
    return [pack(segmenter(line)) for line in lines]


def _cut(
    lines: Iterable[str], pool: Executor, label: str, segmenter: Segmenter, cuts: SegmentCache | None
) -> dict[str, bytes]:
    """Return the packed lengths of different lines; what `cuts` has is not cut again, what it lacks is added."""
    known = cuts.find(lines) if cuts else {}
    new = [line for line in lines if line not in known]
    chunks = list(_chunks(new))
    parts = parallel.map_shards(pool, functools.partial(_cut_lines, segmenter), chunks, label if chunks else "")
    found = dict(zip(new, (lengths for part in parts for lengths in part), strict=True))
    if cuts and found:
        cuts.keep(found)
    return known | found


def _blocks(texts: Iterable[str]) -> Iterator[Counter[str]]:
    """Yield the different lines of the texts and how often each occurs, so much text at a time as memory may hold."""
    lines, total = Counter(), 0
    for text in texts:
        lines.update(_lines(text))
        total += len(text)
        if total >= _BLOCK_CHARACTERS:
            yield lines
            lines, total = Counter(), 0
    if lines:
        yield lines


def _forget_rare(counts: Counter[str]) -> None:
    """Drop the words seen once, then those seen twice, and so on, until half of the places are free."""
    floor = 0
    while len(counts) > _MOST_WORDS // 2:
        floor += 1
        for word in [word for word, count in counts.items() if count <= floor]:
            del counts[word]


def count_words(
    texts: Iterable[str],
    pool: Executor,
    label: str = "",
    segmenter: Segmenter = segment,
    cuts: SegmentCache | None = None,
) -> Counter[str]:
    """Count the words of all texts as they stand, case and punctuation and blanks included.

    Lines that repeat are segmented once; those that `cuts` has from an earlier run not at all. The counts do not
    depend on the number of workers in `pool` (see `parallel.executor`). `segmenter` must cut without loss. Memory is
    bounded, however long the texts: whenever there are three million different words, the rarest are forgotten.
    """
    counts = Counter()
    for number, lines in enumerate(_blocks(texts), 1):
        cut = _cut(lines, pool, f"{label} ({number})" if label and number > 1 else label, segmenter, cuts)
        for line, times in lines.items():
            for word in unpack(line, cut[line]):
                counts[word] += times
        if len(counts) > _MOST_WORDS:
            _forget_rare(counts)
    return counts


def segment_texts(
    texts: Sequence[str],
    pool: Executor,
    label: str = "",
    segmenter: Segmenter = segment,
    cuts: SegmentCache | None = None,
) -> list[list[str]]:
    """Return the pieces of each text, in order; each distinct line is segmented once, or never if `cuts` has it."""
    cut = _cut(dict.fromkeys(line for text in texts for line in _lines(text)), pool, label, segmenter, cuts)
    return [[word for line in _lines(text) for word in unpack(line, cut[line])] for text in texts]


def choose_words(
    counts: dict[str, int], vocab_size: int, min_count: int = 1, max_word_length: int = 12
) -> dict[str, int]:
    """Return the `vocab_size` commonest words with their counts, commonest first, ties in order of code points.

    A word has no blank in it, at most `max_word_length` characters, and was seen `min_count` times
    or more; so a small corpus gives a list that fits it, shorter than `vocab_size`.
    """
    if vocab_size < 0 or min_count < 1 or max_word_length < 1:
        raise ValueError(
            f"vocab_size={vocab_size} must be 0 or more, min_count={min_count} and "
            f"max_word_length={max_word_length} 1 or more"
        )
    words = (
        (word, count)
        for word, count in counts.items()
        if count >= min_count and len(word) <= max_word_length and not re.search(r"\s", word)
    )
    return dict(sorted(words, key=lambda item: (-item[1], item[0]))[:vocab_size])


def characters(counts: dict[str, int]) -> Counter[str]:
    """Return how often each character occurs in the counted pieces, blanks included."""
    seen = Counter()
    for word, count in counts.items():
        for character in word:
            seen[character] += count
    return seen


def coverage(counts: dict[str, int], words: Iterable[str]) -> float:
    """Return the share of the running words in `counts` that are in `words`; blanks are no words, 1.0 if none is left.

    What is not covered would be `[UNK]` in a closed word list.
    """
    known = set(words)
    running = {word: count for word, count in counts.items() if not word.isspace()}
    covered = sum(count for word, count in running.items() if word in known)
    return covered / sum(running.values()) if running else 1.0


def _boundaries(pieces: Sequence[str]) -> set[int]:
    return set(accumulate(map(len, pieces[:-1])))


def boundary_f1(pieces: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]) -> float:
    """Return how well the inner cuts of the same texts agree: F1 over all of them, 1.0 if there is none to make.

    One list of pieces a text. Precision is the share of our cuts that the reference makes too, recall
    the share of the reference's cuts that we make, F1 their harmonic mean.
    """
    shared = ours = theirs = 0
    for a, b in zip(pieces, reference, strict=True):
        if "".join(a) != "".join(b):
            raise ValueError(
                f"the two segmentations are not of the same text: {''.join(a)[:40]!r}… and {''.join(b)[:40]!r}…"
            )
        cuts_a, cuts_b = _boundaries(a), _boundaries(b)
        shared += len(cuts_a & cuts_b)
        ours += len(cuts_a)
        theirs += len(cuts_b)
    return 2 * shared / (ours + theirs) if ours + theirs else 1.0


def _between(pieces: Sequence[str], cuts: set[int]) -> list[tuple[str, ...]]:
    groups, group = [], []
    for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True):
        group.append(piece)
        if end in cuts:
            groups.append(tuple(group))
            group = []
    return [*groups, tuple(group)] if group else groups


def differences(
    pieces: Sequence[Sequence[str]], reference: Sequence[Sequence[str]]
) -> Counter[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Count the shortest stretches of the same texts that are cut differently: (("归来",), ("归", "来")) -> times."""
    counts = Counter()
    for a, b in zip(pieces, reference, strict=True):
        cuts = _boundaries(a) & _boundaries(b)
        pairs = zip(_between(a, cuts), _between(b, cuts), strict=True)
        counts.update(pair for pair in pairs if pair[0] != pair[1])
    return counts


def write_words(path: Path, words: Iterable[str]) -> None:
    """Write one word a line, UTF-8; raise ValueError for a word that a line cannot hold (empty, or with a blank)."""
    words = list(words)
    for number, word in enumerate(words, 1):
        if not word or re.search(r"\s", word):
            raise ValueError(f"word {number}, {word!r}, cannot stand on a line of its own in {Path(path).name}")
    write_text(Path(path), "".join(f"{word}\n" for word in words))


def read_words(path: Path) -> list[str]:
    """Return the lines of a word list file; a word's line number, from 0, is its id."""
    return Path(path).read_text("utf-8").removesuffix("\n").split("\n")
