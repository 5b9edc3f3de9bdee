"""Plain text: pieces of it become lines with one kind of line end, and documents: lines, blocks, the whole file.

Knows neither files nor encodings: the pieces come decoded, and where one ends does not matter.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from helpers.corpus.encodings import BadFile

LONGEST_DOCUMENT = 1_000_000  # characters of one document held at a time; a longer one is cut, at the next line end
LONGEST_LINE = 2**26  # characters of a line or a JSON value; a longer one is no text
MARK = "\ufeff"  # a byte order mark; `cat a.jsonl b.jsonl` puts one inside the text
ENDS = "\r\v\f\x85\u2028\u2029"  # of lines, beside \n


def with_line_ends(pieces: Iterable[str], counts: Counter, ends: str = ENDS) -> Iterator[str]:
    """Yield pieces of text in which each line ends in \\n; those that ended otherwise are counted."""
    cr = ""
    for piece in pieces:
        piece = cr + piece
        cr = "\r" if piece.endswith("\r") else ""  # its \n may be in the next piece
        piece = piece.removesuffix(cr)
        if any(end in piece for end in ends):
            piece, places = re.subn(f"\r\n|[{ends}]", "\n", piece)
            counts["line ends"] += places
        if piece:
            yield piece
    if cr:
        counts["line ends"] += 1
        yield "\n"


_BLANK_START = re.compile(r"\A\s*\n")
_GAP = re.compile(r"\n(?:[^\S\n]*\n)+")
# marks of other trainers: those that part documents anywhere, those that do on a line of their own, and others
_PARTING = ("<|endoftext|>", "<|end_of_text|>")
_ALONE = ("</s>", "<s>", "[SEP]", "[CLS]", "[EOS]", "<eos>", "<sep>", "<|begin_of_text|>")
_MARKS = (*_PARTING, *_ALONE, "<|im_start|>", "<|im_end|>", "<|eot_id|>")
ADVICE = "make each a record, or in a .txt write <|endoftext|> there"
_EITHER = f"(?:{'|'.join(map(re.escape, _ALONE))})"
_BORDER = re.compile(rf"(?:{'|'.join(map(re.escape, _PARTING))})|(?<![^\n])[ \t]*{_EITHER}[ \t]*(?=\n)")
AT_ENDS = re.compile(rf"^[ \t]*{_EITHER}|{_EITHER}[ \t]*$", re.M)


def is_marked(text: str) -> bool:
    """Return whether a document has such a mark at its start or its end."""
    return text.endswith(_ALONE) or text.startswith(_ALONE)


def marks_in(text: str) -> list[str]:
    """Return which of other trainers' marks are in a text."""
    return [mark for mark in _MARKS if mark in text] if "<" in text or "[" in text else []


def split_documents(pieces: Iterable[str], mode: str, counts: Counter | None = None) -> Iterator[str]:
    """Yield the documents of a text: each "line", each "block" between blank lines, or the whole "file".

    In each mode a mark of other trainers that parts documents ends one, and is counted. The text comes in pieces, whose
    borders do not matter, with \\n as line end. A document longer than LONGEST_DOCUMENT is cut at the next line end; a
    line of twice as many characters, in its middle.
    """
    rest = ""
    for piece in itertools.chain(pieces, ["\n"]):
        texts = [rest + piece]
        if marks_in(texts[0]):
            if counts is not None:
                counts.update(
                    f"{mark[0].strip()} is taken as the end of a document" for mark in _BORDER.finditer(texts[0])
                )
            texts = _BORDER.split(texts[0])
        if mode != "file":
            texts = [each for text in texts for each in (text.split("\n") if mode == "line" else _GAP.split(text))]
        *whole, rest = texts
        for document in whole:
            yield from _of_bounded_length(document)
        while len(rest := _BLANK_START.sub("", rest)) > 2 * LONGEST_DOCUMENT:
            document, rest = _cut(rest)
            yield document
    yield from _of_bounded_length(rest)


def _of_bounded_length(text: str) -> Iterator[str]:
    """Yield a document whole, or in pieces if it is too long; nothing if it is blank."""
    while len(text := _BLANK_START.sub("", text) if text[:1].isspace() else text) > LONGEST_DOCUMENT:
        document, text = _cut(text)
        yield document
    if text and not text.isspace():
        # without blank lines at its end
        end = text.find("\n", len(text.rstrip()))
        yield text if end < 0 else text[:end]


def _cut(text: str) -> tuple[str, str]:
    """Cut a text after LONGEST_DOCUMENT characters, at a line end if there is one within as many again."""
    at = text.find("\n", LONGEST_DOCUMENT, 2 * LONGEST_DOCUMENT)
    return (text[:at], text[at + 1 :]) if at >= 0 else (text[: 2 * LONGEST_DOCUMENT], text[2 * LONGEST_DOCUMENT :])


def find_mode(pieces: Iterable[str]) -> str:
    """Return how a text is best cut: in "block" if there are some, but as a "file" where other trainers' marks part it.

    What is shorter than a piece of a long document is a block: a blank line stands beside it. Of a text with blocks,
    the start decides.
    """
    counts: Counter = Counter()
    blocks = characters = 0
    for text in split_documents(pieces, "block", counts):
        blocks, characters = blocks + (len(text) < LONGEST_DOCUMENT), characters + len(text)
        if blocks > 1 and characters > LONGEST_DOCUMENT:
            break
    return "block" if blocks > 1 and not counts else "file"


def lines_of(pieces: Iterable[str]) -> Iterator[str]:
    """Yield lines without their ends. Raises BadFile for one of more than LONGEST_LINE characters."""
    rest = ""
    for piece in with_line_ends(pieces, Counter(), "\r"):
        *rows, rest = (rest + piece).split("\n")
        yield from rows
        if len(rest) > LONGEST_LINE:
            raise BadFile(f"a line of more than {LONGEST_LINE:,} characters: is it one record per line?")
    if rest:
        yield rest
