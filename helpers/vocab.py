"""The words of a corpus: thulac finds them, they are counted, the commonest become the word list.

Knows nothing of ids, special tokens or models; `tokenizer` makes those from the word list.
"""

import contextlib
import functools
import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import accumulate
from pathlib import Path

import thulac

from helpers import parallel, paths

Segmenter = Callable[[str], list[str]]

# A blank (thulac would swallow a second one), or a stretch of text that fits thulac's fixed buffer of 50,000.
_STRETCH = re.compile(r"\s|\S{1,4000}")
_CHUNK_CHARACTERS = 20_000  # a third of a second of thulac: small enough for a bar that moves
_thulac_lock = threading.Lock()


def take(texts: Iterable[str], characters: int) -> list[str]:
    """Return the first documents, as many as it takes to reach so many characters (all, if there are fewer)."""
    taken, total = [], 0
    for text in texts:
        if total >= characters:
            break
        taken.append(text)
        total += len(text)
    return taken


@functools.cache
def _model() -> thulac.thulac:
    with contextlib.redirect_stdout(io.StringIO()):  # thulac greets on loading
        return thulac.thulac(seg_only=True)


def segment(text: str) -> list[str]:
    """Cut a text into words with thulac, losing nothing: "".join(segment(text)) == text, a blank is its own piece.

    The first call in a process loads thulac's model (about 3 s and 750 MB). thulac cannot serve two
    threads at once; the second one waits here.
    """
    pieces = []
    with _thulac_lock:
        for stretch in _STRETCH.findall(text):
            words = [stretch] if stretch.isspace() else list(_model().cutline(stretch))
            if "".join(words) != stretch:
                raise RuntimeError(f"thulac changed the text it was to cut: {stretch!r} came back as {words!r}")
            pieces += words
    return pieces


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


def _segment_lines(segmenter: Segmenter, lines: list[str]) -> list[list[str]]:
    return [segmenter(line) for line in lines]


def _count_lines(segmenter: Segmenter, lines: list[tuple[str, int]]) -> Counter[str]:
    counts = Counter()
    for line, times in lines:
        for word in segmenter(line):
            counts[word] += times
    return counts


def count_words(texts: Iterable[str], pool: Executor, label: str = "", segmenter: Segmenter = segment) -> Counter[str]:
    """Count the words of all texts as they stand, case and punctuation and blanks included.

    Each distinct line is segmented once, however often it occurs. The counts do not depend on the
    number of workers in `pool` (see `parallel.executor`). `segmenter` must cut without loss.
    """
    lines = Counter(line for text in texts for line in _lines(text))
    chunks = ([(line, lines[line]) for line in chunk] for chunk in _chunks(lines))
    counts = Counter()
    for part in parallel.map_shards(pool, functools.partial(_count_lines, segmenter), chunks, label):
        counts.update(part)
    return counts


def segment_texts(
    texts: Sequence[str], pool: Executor, label: str = "", segmenter: Segmenter = segment
) -> list[list[str]]:
    """Return the pieces of each text, in order; each distinct line is segmented once."""
    lines = list(dict.fromkeys(line for text in texts for line in _lines(text)))
    parts = parallel.map_shards(pool, functools.partial(_segment_lines, segmenter), _chunks(lines), label)
    pieces = dict(zip(lines, (words for part in parts for words in part), strict=True))
    return [[word for line in _lines(text) for word in pieces[line]] for text in texts]


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
    paths.write_text(Path(path), "".join(f"{word}\n" for word in words))


def read_words(path: Path) -> list[str]:
    """Return the lines of a word list file; a word's line number, from 0, is its id."""
    return Path(path).read_text("utf-8").removesuffix("\n").split("\n")
