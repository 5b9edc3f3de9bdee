"""JSON, of any size: the values of a list, of JSON lines, or one after another, one at a time.

A fault is named by its byte, line and column; by line and column alone where bytes cannot be counted. What a value
becomes is decided in `records`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from helpers.corpus.encodings import BadFile, Encoding
from helpers.corpus.plain_text import LINE, MARK, lines_of
from helpers.corpus.records import type_name
from helpers.corpus.report import FileReport


def json_lines(pieces: Iterable[str]) -> Iterator[tuple]:
    """Yield (number, value) of each line that is not blank; the value is the error where a line is no JSON."""
    rows = ((number, row.lstrip(MARK)) for number, row in enumerate(lines_of(pieces), 1))
    return ((number, _loads(row)) for number, row in rows if row and not row.isspace())


def _loads(row: str):
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        return error


def json_items(pieces: Callable[[], Iterator[str]], encoding: Encoding, report: FileReport) -> Iterator[tuple]:
    """Yield (number, value) of a .json: the items of its list, its lines if it is JSON lines, or its values."""
    text = _Json(pieces, encoding)
    if text.next() == "[":
        yield from enumerate(text.items(), 1)
        if text.next():
            text.fail("Extra data")
        return
    value = text.value()
    if not text.next():
        raise BadFile(f"a JSON list is expected, of strings or of objects; this is one {type_name(value)}")
    _, first_line = next(json_lines(pieces()))
    if isinstance(first_line, Exception):  # a value has several lines, or a line several values
        report.notes.append("not one JSON value but several, one after another: all were read")
        yield from enumerate(chain([value], text.values()), 1)
    else:
        report.notes.append("not one JSON value but several: read as JSON lines")
        yield from json_lines(pieces())


_SOLID = re.compile(f"[^ \t\n\r{MARK}]")


class _Json:
    """A streaming parser of JSON values, which holds one value at a time, and can name the line of a fault."""

    def __init__(self, pieces: Callable[[], Iterator[str]], encoding: Encoding):
        self.again, self.pieces, self.encoding = pieces, pieces(), encoding
        self.text, self.at, self.passed = "", 0, 0
        self.decode = json.JSONDecoder().raw_decode

    def more(self, characters: int = 1) -> bool:
        """Read so many characters more; return whether there were any."""
        taken = []
        while characters > 0 and (piece := next(self.pieces, None)) is not None:
            taken.append(piece)
            characters -= len(piece)
        if taken:
            self.passed, self.text, self.at = self.passed + self.at, self.text[self.at :] + "".join(taken), 0
        return bool(taken)

    def next(self) -> str:
        """Skip white space; return the character that follows, "" at the end."""
        while True:
            solid = _SOLID.search(self.text, self.at)
            self.at = solid.start() if solid else len(self.text)
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def value(self):
        """Return the value that starts here. Raises BadFile."""
        while True:
            self.next()
            left = len(self.text) - self.at
            try:
                value, end = self.decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # perhaps only its end is not there yet
                cut = error.msg.startswith("Unterminated string") or error.pos > len(self.text) - 16
                place = self.passed + error.pos
                if cut and left > LINE:
                    raise BadFile(
                        f"{self.where()}: one value of more than {LINE:,} characters; "
                        "a list, or one line for each document, is expected"
                    ) from None
                if not cut or not self.more(left + 1):
                    self.fail(error.msg, place)
            except RecursionError:
                raise BadFile("this JSON is nested too deep") from None
            except ValueError as error:
                raise BadFile(f"this JSON: {error}") from None
            else:
                if len(self.text) - end < 3 and not isinstance(value, str | list | dict) and self.more(3):
                    continue  # a number may go on: 1, 1.5, 1e+5
                self.at = end
                return value

    def items(self) -> Iterator:
        """Yield the items of the list that starts here, one at a time."""
        self.at += 1
        if self.next() == "]":
            self.at += 1
            return
        while True:
            yield self.value()
            mark = self.next()
            if mark not in (",", "]"):
                self.fail("Expecting ',' delimiter")
            self.at += 1
            if mark == "]":
                return

    def values(self) -> Iterator:
        """Yield the values that follow one another from here to the end."""
        while self.next():
            yield self.value()

    def fail(self, why: str, at: int | None = None) -> None:
        """Raise BadFile for a place in characters from the start (default: here)."""
        raise BadFile(f"{self.where(at)} is not JSON: {why}")

    def where(self, at: int | None = None) -> str:
        """Return a place in words, given in characters from the start (default: here); reads again to name its byte.

        Bytes are counted by writing the text again. Where that gives another size than the file's, its bytes were not
        the usual ones of their characters (see `encodings`), and only line and column are said.
        """
        left = self.passed + self.at if at is None else at
        line, column, before = 1, 1, self.encoding.bom
        size = before + self.encoding.truncated
        for piece in self.again():
            size += len(piece.encode(self.encoding.name))
            piece = piece[:left]
            left -= len(piece)
            line += piece.count("\n")
            last = piece.rfind("\n")
            column = len(piece) - last if last >= 0 else column + len(piece)
            before += len(piece.encode(self.encoding.name))
        place = f"line {line:,}, column {column:,}"
        return f"byte {before:,} ({place})" if size == self.encoding.size else place
