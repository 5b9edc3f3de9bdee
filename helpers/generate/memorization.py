"""Memorization: which stretches of a text occur verbatim in the training text; and how diverse several texts are.

A suffix array (Manber and Myers 1993): all positions of the training text, sorted by the text from there on. Whatever
begins like a given text is then found by bisection. Building takes about seven bytes of memory per byte of text,
searching about three. Counts in characters, never in halves of one; no stretch crosses from one document into the next.
Knows no tokens and no pictures.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pydivsufsort import divsufsort

LIMIT = 100_000_000  # bytes of training text that an index holds
_BORDER = b"\xff"  # after each document; UTF-8 never has this byte
_FIRST_LOOK = 48  # bytes; most matches are shorter, and short slices compare faster


@dataclass(frozen=True)
class Stretch:
    """text[start:end] occurs in the training text."""

    start: int
    end: int
    document: int  # the first document that has it, from 0
    times: int  # how often it occurs

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Copied:
    """What a text has in common with the training text."""

    text: str
    longest: int  # length of the longest stretch that occurs there, in characters
    stretches: tuple[Stretch, ...]  # the long ones, from left to right; none is within another, but they may overlap
    n: int  # characters per n-gram
    ngrams: int  # n-grams of the text
    known: int  # those of them that occur in the training text

    @property
    def share(self) -> float:
        """The share of the n-grams that occur in the training text; 0 for a text of less than n characters."""
        return self.known / self.ngrams if self.ngrams else 0.0


class Index:
    """Training texts and a suffix array over them."""

    def __init__(self, texts: Iterable[str], limit: int = LIMIT) -> None:
        """Index texts in order, as many as fit into `limit` bytes of UTF-8, and the first in any case.

        `whole`: all did. None after the one that crosses the limit is read.
        """
        data, starts = bytearray(), list[int]()
        self.whole = True
        for text in texts:
            coded = _coded(text) + _BORDER
            if starts and len(data) + len(coded) > limit:
                self.whole = False
                break
            starts.append(len(data))
            data += coded
        self._starts = np.array(starts, dtype=np.int64)  # (D,), where each document begins
        self._order = _suffix_array(data)  # (C,), where each character or border begins, sorted by what follows
        self._data = bytes(data)

    @property
    def documents(self) -> int:
        """How many documents the index holds."""
        return len(self._starts)

    @property
    def characters(self) -> int:
        """How many characters the index holds."""
        return len(self._order) - self.documents

    def copied(self, text: str, n: int = 8) -> Copied:
        """Find every stretch of at least n characters, and every n-gram, that occurs in the training text.

        Takes about 20 µs per character.
        """
        data = _coded(text)
        # where each UTF-8 character begins, and the end: (C + 1,)
        borders = [*np.flatnonzero(_begins_character(np.frombuffer(data, np.uint8))).tolist(), len(data)]
        lengths = [self._match(data, borders, i) for i in range(len(text))]
        stretches = []
        for i, length in enumerate(lengths):
            inside = i > 0 and lengths[i - 1] == length + 1  # it is the end of the stretch that began one before
            if length >= n and not inside:
                stretches.append(self._locate(data[borders[i] : borders[i + length]], i, length))
        ngrams = max(0, len(text) - n + 1)
        known = sum(length >= n for length in lengths[:ngrams])
        return Copied(text, max(lengths, default=0), tuple(stretches), n, ngrams, known)

    def _match(self, data: bytes, borders: list[int], i: int) -> int:
        """Return how many characters from character i on occur together in the training text."""
        start, look = borders[i], _FIRST_LOOK
        while True:
            wanted = data[start : start + look]
            place = bisect_left(self._order, wanted, key=lambda at: self._slice(at, len(wanted)))
            # in the sorted order, the texts that agree longest are neighbours
            beside = self._order[max(0, place - 1) : place + 1].tolist()
            agree = max((_agreement(wanted, self._slice(at, len(wanted))) for at in beside), default=0)
            if agree < len(wanted) or start + look >= len(data):
                return bisect_right(borders, start + agree) - 1 - i  # a character that agrees in part does not count
            look *= 2

    def _locate(self, wanted: bytes, start: int, length: int) -> Stretch:
        """Return where and how often a stretch occurs that is known to occur."""
        low = bisect_left(self._order, wanted, key=lambda at: self._slice(at, len(wanted)))
        high = bisect_right(self._order, wanted, lo=low, key=lambda at: self._slice(at, len(wanted)))
        first = int(self._order[low:high].min())
        document = int(np.searchsorted(self._starts, first, side="right")) - 1
        return Stretch(start, start + length, document, high - low)

    def _slice(self, at: int, length: int) -> bytes:
        return self._data[at : at + length]


def _coded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # UTF-8 sorts as the characters do; any str is accepted


def _begins_character(data: np.ndarray) -> np.ndarray:
    return (data & 0xC0) != 0x80


def _agreement(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning."""
    # read as big numbers, XOR leaves zeros where they agree: much faster than a loop
    n = min(len(one), len(other))
    difference = int.from_bytes(one[:n]) ^ int.from_bytes(other[:n])
    return n - (difference.bit_length() + 7) // 8


def _suffix_array(data: bytearray) -> np.ndarray:
    """Return the positions (C,) of characters and document ends, sorted by the bytes from there on."""
    codes = np.frombuffer(data, np.uint8)
    order = divsufsort(codes) if data else np.empty(0, dtype=np.int32)  # (N,)
    return order[_begins_character(codes)[order]]


def distinct_share(texts: Sequence[str], n: int = 4) -> float:
    """Return the share of different n-grams of characters in all of the texts (Li et al. 2016, distinct-n); 1 if there
    are none.
    """
    grams = [text[i : i + n] for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
