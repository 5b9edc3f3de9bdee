"""Does a text create or copy? An index over training text finds every stretch of a text that stands in it.

A suffix array (Manber and Myers 1993): all places of the training text, sorted by what stands there. What begins like
a given text is then found by bisection, in memory of some seven bytes a byte of text while it is built and three
after that. Counts in characters, never in halves of one, and no stretch crosses from one document into the next. Knows
nothing of models and tokens, nor of where a stretch comes from: what stands in the training text often may well have
been learnt and not copied.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pydivsufsort import divsufsort

from helpers import paths
from helpers.manifest import RoomError
from helpers.wording import run_again

LIMIT = 100_000_000  # bytes of training text that an index holds
BORDER = b"\xff"  # after each document; UTF-8 never has this byte
FIRST_LOOK = 48  # bytes; most matches are shorter, and short slices compare faster


@dataclass(frozen=True)
class Stretch:
    """text[start:end] stands in the training text so many `times`; `document` is the first that has it, from 0."""

    start: int
    end: int
    document: int
    times: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Copied:
    """What of a text stands in the training text.

    longest: length of the longest stretch, in characters. stretches: the long ones, from left to right; none lies
    within another, though they may overlap. ngrams, known: how many sequences of `n` characters the text has, and how
    many of these stand in the training text.
    """

    text: str
    longest: int
    stretches: tuple[Stretch, ...]
    n: int
    ngrams: int
    known: int

    @property
    def share(self) -> float:
        """The share of the n-grams that stand in the training text; 0 for a text of less than n characters."""
        return self.known / self.ngrams if self.ngrams else 0.0


class Index:
    """The texts, and a suffix array over them: where each stretch of a text stands in them."""

    def __init__(self, texts: Iterable[str], limit: int = LIMIT) -> None:
        """Index texts in order, up to the first that would make it more than `limit` bytes of UTF-8.

        `whole` says whether all had room.
        """
        self._data = bytearray()
        starts, self.whole = [], True
        for text in texts:
            coded = _coded(text) + BORDER
            if len(self._data) + len(coded) > limit:
                self.whole = False
                break
            starts.append(len(self._data))
            self._data += coded
        self._starts = np.array(starts, dtype=np.int64)  # (D,), where each document begins
        self._order = _suffix_array(self._data)  # (C,), where each character or border begins, sorted by what follows

    @classmethod
    def of_run(cls, run: str, limit: int = LIMIT) -> "Index":
        """Index the training text of a run; of a large one the first `limit` bytes (100 MB take 0.7 GB to build)."""
        return cls(_training_texts(run), limit)

    @property
    def documents(self) -> int:
        """How many documents the index holds."""
        return len(self._starts)

    @property
    def characters(self) -> int:
        """How many characters the index holds."""
        return len(self._order) - self.documents

    def document(self, number: int) -> str:
        """Return a document by its number, from 0."""
        start = int(self._starts[number])
        return self._data[start : self._data.index(BORDER, start)].decode("utf-8", "surrogatepass")

    def copied(self, text: str, shortest: int = 8, n: int = 8) -> Copied:
        """Find every stretch of at least `shortest` characters, and the n-grams, that stand in the training text.

        Some 20 µs a character. Raises ValueError for numbers below 1.
        """
        if shortest < 1 or n < 1:
            raise ValueError(f"shortest is {shortest} and n is {n}: both count characters, from 1")
        data = _coded(text)
        borders = _character_borders(data)  # (C + 1,)
        lengths = [self._match(data, borders, i) for i in range(len(text))]
        stretches = []
        for i, length in enumerate(lengths):
            inside = i > 0 and lengths[i - 1] == length + 1  # of the stretch that began one character before
            if length >= shortest and not inside:
                stretches.append(self._place(data[borders[i] : borders[i + length]], i, length))
        ngrams = max(0, len(text) - n + 1)
        known = sum(length >= n for length in lengths[:ngrams])
        return Copied(text, max(lengths, default=0), tuple(stretches), n, ngrams, known)

    def _match(self, data: bytes, borders: list[int], i: int) -> int:
        """Return how many characters from character i on stand together in the training text."""
        start, look = borders[i], FIRST_LOOK
        while True:
            wanted = data[start : start + look]
            place = bisect_left(self._order, wanted, key=lambda at: self._data[at : at + len(wanted)])
            # the texts that agree longest stand beside the place where this one would stand
            beside = self._order[max(0, place - 1) : place + 1].tolist()
            agree = max((_agreement(wanted, self._data[at : at + len(wanted)]) for at in beside), default=0)
            if agree < len(wanted) or start + look >= len(data):
                return bisect_right(borders, start + agree) - 1 - i  # of a character that agrees in part: nothing
            look *= 2

    def _place(self, wanted: bytes, start: int, length: int) -> Stretch:
        """Return where and how often a stretch stands that does stand in the training text."""

        def cut(at: int) -> bytearray:
            return self._data[at : at + len(wanted)]

        low = bisect_left(self._order, wanted, key=cut)
        high = bisect_right(self._order, wanted, lo=low, key=cut)
        first = int(self._order[low:high].min())
        document = int(np.searchsorted(self._starts, first, side="right")) - 1
        return Stretch(start, start + length, document, high - low)


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # UTF-8 sorts as the characters do; no str is refused


def _character_borders(data: bytes) -> list[int]:
    """Return where each character of UTF-8 begins, and the end."""
    return [*np.flatnonzero(_begins_character(np.frombuffer(data, np.uint8))).tolist(), len(data)]


def _begins_character(data: np.ndarray) -> np.ndarray:
    return (data & 0xC0) != 0x80


def _agreement(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning."""
    n = min(len(one), len(other))
    difference = int.from_bytes(one[:n]) ^ int.from_bytes(other[:n])
    return n - (difference.bit_length() + 7) // 8


def _suffix_array(data: bytearray) -> np.ndarray:
    """Return the places (C,) where a character begins, or a document ends, sorted by the bytes from there on."""
    if not data:
        return np.empty(0, dtype=np.int32)
    codes = np.frombuffer(data, np.uint8)
    order = divsufsort(codes)  # (N,)
    return order[_begins_character(codes)[order]]


def _training_texts(run: str) -> Iterable[str]:
    shards = paths.shards(run, "corpus", "train", ".jsonl")
    if not shards:
        raise RoomError(f"run '{run}' has no training text: {run_again('corpus', run)}")
    for shard in shards:
        with open(shard, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]
