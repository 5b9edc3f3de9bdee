"""File formats become raw documents, a piece at a time: txt, JSON, JSON lines, CSV, TSV, Parquet.

Where bytes come from is known to `archives`, how they become characters to `encodings`, what a record becomes to
`records`; how a document is cleaned is not decided here.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from helpers.corpus import encodings, mojibake
from helpers.corpus.archives import ARCHIVES, Input, kind_of, list_archive, plain_file
from helpers.corpus.conversations import Conversation
from helpers.corpus.encodings import BadFile, Encoding
from helpers.corpus.plain_text import ENDS, LONGEST_LINE, MARK, has_blocks, lines_of, split_documents, with_line_ends
from helpers.corpus.records import Problems, ReadOptions, read_texts_of, type_name
from helpers.corpus.report import UNDECODABLE, FileReport
from helpers.corpus.tables import parquet_rows, table_rows


def slice_file(item: Input, options: ReadOptions, max_bytes: int) -> list[Input]:
    """Cut one large file into inputs of about `max_bytes` that give the same documents, in order; or [item].

    Only a .txt or .jsonl is cut, if it is neither packed nor in an archive and has one encoding, with line ends of one
    byte: at ends of documents, or in mode "file" at line ends. Reads the file once.
    """
    kind, packing = kind_of(item.path.name)
    if item.member or packing or kind not in (".txt", ".jsonl") or item.size <= max_bytes:
        return [item]
    try:
        encoding = encodings.find_encoding(item.path)
        mode = _mode(item.path, encoding, options) if kind == ".txt" else ""
    except (BadFile, OSError):  # reading it will say why
        return [item]
    item = replace(item, encoding=encoding, mode=mode)
    if encoding.other or not encoding.is_in_lines():
        return [item]
    starts = [0]
    while 0 < (end := encodings.line_end(item.path, starts[-1] + max_bytes, mode == "block")) < item.size:
        starts.append(end)
    return [
        replace(item, start=start, stop=stop, size=(stop or item.size) - start)
        for start, stop in zip(starts, [*starts[1:], 0], strict=True)
    ]


def read_documents(item: Input, options: ReadOptions, report: FileReport) -> Iterator[str]:
    """Yield the raw documents of an input; fill in the report's encoding, mode, notes and what was unreadable.

    A document is a text, or a `Conversation`. Memory is bounded by a block of the file and a document. Raises BadFile,
    OSError.
    """
    for text in _read_as_they_are(item, options, report):
        if options.repair and (mended := mojibake.repair(text)) is not None:
            report.rules["mojibake repaired"] += 1
            # the whole conversation is the evidence, a short turn is none; mending leaves line ends where they are
            text = text.with_lines(mended) if isinstance(text, Conversation) else mended
        yield text


def _read_as_they_are(item: Input, options: ReadOptions, report: FileReport) -> Iterator[str]:
    kind = kind_of(item.member or item.path.name)[0]
    if kind in ARCHIVES:
        list_archive(item, Counter())
        raise BadFile("this archive changed while it was read: run this room again")
    report.mode = kind[1:]
    with plain_file(item) as path:
        if kind == ".parquet":
            report.encoding = "-"
            yield from read_texts_of(parquet_rows(path, options), options, Problems("row", report))
            return
        encoding = item.encoding or encodings.find_encoding(path)
        report.encoding = str(encoding)
        begin, end = (0, 0) if item.member else (item.start, item.stop)
        if not begin:
            report.notes += encoding.notes()
        if encoding.bad_lines and not begin and kind == ".txt":  # in other files a record goes, for such a line in it
            report.drop(UNDECODABLE, encoding.bad_characters, encoding.bad_lines)
        pieces = functools.partial(encodings.read_blocks, path, encoding, begin, end, marked=kind != ".txt")
        if kind == ".txt":
            report.mode = item.mode or _mode(path, encoding, options)
            yield from split_documents(with_line_ends(pieces(), report.rules, _line_ends(options)), report.mode)
            return
        unit = {".json": "item", ".jsonl": f"line (from byte {begin:,})" if begin else "line"}.get(kind, "row")
        problems = Problems(unit, report)
        if kind == ".json":
            records = json_items(pieces, problems)
        elif kind == ".jsonl":
            records = json_records(pieces(), problems)
        else:
            records = table_rows(pieces, kind, options, problems)
        yield from read_texts_of(records, options, problems)


def _line_ends(options: ReadOptions) -> str:
    """Return what ends a line; in mojibake, \x85 may be a part of a character (光 is E5 85 89)."""
    return ENDS.replace("\x85", "") if options.repair else ENDS


def _mode(path: Path, encoding: Encoding, options: ReadOptions) -> str:
    if options.document != "auto":
        return options.document
    pieces = encodings.read_blocks(path, encoding)
    return "block" if has_blocks(with_line_ends(pieces, Counter(), _line_ends(options))) else "file"


# ---- JSON ----


def json_records(pieces: Iterator[str], problems: Problems) -> Iterator[tuple]:
    """Yield (number, value) of each line that is not blank; a line that is no JSON is a problem."""
    for number, row in enumerate(lines_of(pieces), 1):
        row = row.lstrip(MARK)
        if not row or row.isspace():
            continue
        try:
            value = json.loads(row)
        except (ValueError, RecursionError) as error:
            problems.add(number, f"not JSON, {error}")
            continue
        yield number, value


def json_items(pieces: Callable[[], Iterator[str]], problems: Problems) -> Iterator[tuple]:
    """Yield (number, value) of a .json: the items of its list, its lines if it is JSON lines, or its values."""
    text = _JsonReader(pieces())
    if text.next() == "[":
        yield from enumerate(text.items(), 1)
        if text.next():
            text.fail("Extra data")
        return
    value = text.value()
    if not text.next():
        raise BadFile(f"a JSON list is expected, of strings or of objects; this is one {type_name(value)}")
    first_line = next(row for row in lines_of(pieces()) if row.strip(MARK + " \t\r\n"))
    try:
        json.loads(first_line.lstrip(MARK))
    except (ValueError, RecursionError):  # a value has several lines, or a line several values
        problems.report.notes.append("not one JSON value but several, one after another: all were read")
        yield 1, value
        number = 1
        while text.next():
            number += 1
            yield number, text.value()
    else:
        problems.report.notes.append("not one JSON value but several: read as JSON lines")
        yield from json_records(pieces(), problems)


_SOLID = re.compile(f"[^ \t\n\r{MARK}]")


class _JsonReader:
    """A streaming parser of JSON values, which holds one value at a time, and can name the line of a fault.

    ijson can't name it, refuses NaN, and takes half a character for a question mark.
    """

    def __init__(self, pieces: Iterator[str]):
        self.pieces = pieces
        self.text, self.at = "", 0
        self.line = self.column = 1  # of the text's first character
        self.decode = json.JSONDecoder().raw_decode

    def more(self, characters: int = 1) -> bool:
        """Read so many characters more; return whether there were any."""
        taken = []
        while characters > 0 and (piece := next(self.pieces, None)) is not None:
            taken.append(piece)
            characters -= len(piece)
        if taken:
            self.line, self.column = self.place(self.at)
            self.text, self.at = self.text[self.at :] + "".join(taken), 0
        return bool(taken)

    def place(self, at: int) -> tuple[int, int]:
        """Return the line and the column of a character of the text."""
        last = self.text.rfind("\n", 0, at)
        return self.line + self.text.count("\n", 0, at), at - last if last >= 0 else self.column + at

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
                if cut and left > LONGEST_LINE:
                    self.fail(f"one value of more than {LONGEST_LINE:,} characters, where a list or lines are expected")
                before = self.at
                if not cut or not self.more(left + 1):
                    self.fail(error.msg, error.pos - before + self.at)
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
        mark = "," if self.next() != "]" else "]"
        self.at += mark == "]"
        while mark != "]":
            yield self.value()
            mark = self.next()
            if mark not in (",", "]"):
                self.fail("Expecting ',' delimiter")
            self.at += 1

    def fail(self, why: str, at: int | None = None) -> None:
        """Raise BadFile for a place in the text (default: here)."""
        line, column = self.place(self.at if at is None else at)
        raise BadFile(f"line {line:,}, column {column:,} is not JSON: {why}")
