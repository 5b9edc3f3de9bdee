"""File formats become raw documents, a piece at a time: txt, JSON, JSON lines, CSV, TSV, Parquet.

Knows what a document is. Where bytes come from is known to `archives`, how they become characters to `encodings`, what
a conversation looks like to `conversations`; what is kept of a document, and how it is cleaned, is not decided here.
"""

import contextlib
import csv
import functools
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from helpers.corpus import conversations, encodings, mojibake
from helpers.corpus.archives import list_archive, open_bytes, spool
from helpers.corpus.conversations import Conversation, NotAConversation
from helpers.corpus.encodings import BadFile, ByteSource, Encoding
from helpers.corpus.inputs import ARCHIVES, Input, kind_of
from helpers.corpus.report import FileReport

MODES = ("auto", "block", "line", "file")
HOLD = 1_000_000  # characters of one document held at a time; a longer one is cut, at the next line end
LINE = 2**26  # characters of a line or a JSON value; a longer one is no text
FIELD = 2**24  # characters of a field of a .csv: a quotation mark that is never closed takes all that follows
ROWS = 256  # read at a time of a .parquet
FIRST_FEW = 3  # bad lines that are described


@dataclass(frozen=True)
class ReadOptions:
    """How a file's text becomes documents. Raises ValueError."""

    # what is one document of a .txt: a "block" (between blank lines), a "line", the "file"; "auto" means block where
    # there is a blank line between text, else file
    document: str = "auto"
    # where the text is in other formats: a key or column, or a template over several, "{title}\n{ask}". Records without
    # a "text" may be conversations; "conversations" (or the list's own name, "messages") reads these beside a text, too
    text_key: str = "text"
    repair: bool = False  # mend mojibake (乱码) where no byte was lost

    def __post_init__(self):
        if self.document not in MODES:
            raise ValueError(f"document is '{self.document}': give one of {', '.join(MODES)}")
        _template(self.text_key)

    def may_converse(self, names: Collection[str]) -> bool:
        """Return whether a record or table with these keys may be a conversation: no text is asked for that it has."""
        return self.text_key not in names if self.text_key == "text" else self.text_key in conversations.LISTS


def slices(item: Input, options: ReadOptions, max_bytes: int) -> list[Input]:
    """Cut one large file into inputs of about `max_bytes` that give the same documents, in order; or [item].

    Only a .txt or .jsonl is cut, if it is neither packed nor in an archive and has one encoding, with line ends of one
    byte: at ends of documents, or in mode "file" at line ends. Reads the file once. Raises BadFile.
    """
    kind, packing = kind_of(item.path.name)
    if item.member or packing or kind not in (".txt", ".jsonl") or item.size <= max_bytes:
        return [item]
    encoding = encodings.find_encoding(item.path)
    mode = _mode(item.path, encoding, options) if kind == ".txt" else ""
    item = replace(item, encoding=encoding, mode=mode)
    if encoding.sections or encoding.name.startswith(("utf-16", "utf-32")):
        return [item]
    starts = [0]
    while 0 < (end := encodings.line_end(item.path, starts[-1] + max_bytes, mode == "block")) < item.size:
        starts.append(end)
    return [
        replace(item, start=start, stop=stop, size=(stop or item.size) - start)
        for start, stop in zip(starts, [*starts[1:], 0], strict=True)
    ]


def read(item: Input, options: ReadOptions, report: FileReport) -> Iterator[str]:
    """Yield the raw documents of an input; fill in the report's encoding, mode, notes and what was unreadable.

    A document is a text, or a `Conversation`. Memory is bounded by a block of the file and a document. Raises BadFile,
    OSError.
    """
    for text in _read(item, options, report):
        if options.repair and (mended := mojibake.repair(text)) is not None:
            report.rules["mojibake repaired"] += 1
            # the whole conversation is the evidence, a short turn is none; mending leaves line ends where they are
            text = text.with_lines(mended) if isinstance(text, Conversation) else mended
        yield text


def _read(item: Input, options: ReadOptions, report: FileReport) -> Iterator[str]:
    kind = kind_of(item.member or item.path.name)[0]
    if kind in ARCHIVES:
        list_archive(item, Counter())
        raise BadFile("this archive changed while it was read: run this room again")
    report.mode = kind[1:]
    with contextlib.ExitStack() as stack:
        source = open_bytes(item, stack)
        if kind == ".parquet":
            report.encoding = "-"
            yield from _texts_of(_parquet_rows(source, stack, options), "row", options, report)
            return
        encoding = item.encoding or encodings.find_encoding(source)
        report.encoding = str(encoding)
        begin, end = (0, 0) if item.member else (item.start, item.stop)
        if not begin:
            report.notes += encoding.notes()
        pieces = functools.partial(encodings.blocks, source, encoding, begin, end)
        if kind == ".txt":
            report.mode = item.mode or _mode(source, encoding, options)
            yield from split_documents(even(pieces(), report.rules, _line_ends(options)), report.mode)
        elif kind == ".json":
            yield from _texts_of(_json_items(pieces, encoding, report), "item", options, report)
        elif kind == ".jsonl":
            where = f"line (from byte {begin:,})" if begin else "line"
            yield from _texts_of(_json_lines(pieces()), where, options, report)
        else:
            rows = _table_rows(_rows(pieces()), kind, options, report)
            yield from _texts_of(rows, "row", options, report)


_ENDS = "\r\v\f\x85\u2028\u2029"


def _line_ends(options: ReadOptions) -> str:
    """Return what ends a line; in mojibake, \x85 may be a part of a character (光 is E5 85 89)."""
    return _ENDS.replace("\x85", "") if options.repair else _ENDS


def even(pieces: Iterable[str], counts: Counter, ends: str = _ENDS) -> Iterator[str]:
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


_GAP = re.compile(r"\n(?:[^\S\n]*\n)+")


def split_documents(pieces: Iterable[str], mode: str) -> Iterator[str]:
    """Yield the documents of a text: each "line", each "block" between blank lines, or the whole "file".

    The text comes in pieces, whose borders do not matter, with \\n as line end. A document longer than HOLD characters
    is cut at the next line end; a line of twice as many, in its middle.
    """
    rest = ""
    for piece in pieces:
        text = rest + piece
        *whole, rest = text.split("\n") if mode == "line" else _GAP.split(text) if mode == "block" else [text]
        for document in whole:
            yield from _held(document)
        while len(rest := _without_blank_start(rest)) > 2 * HOLD:
            document, rest = _hold(rest)
            yield document
    yield from _held(rest)


def _held(text: str) -> Iterator[str]:
    """Yield a document whole, or in pieces if it is too long; nothing if it is blank."""
    while len(text := _without_blank_start(text)) > HOLD:
        document, text = _hold(text)
        yield document
    if text and not text.isspace():
        # without blank lines at its end
        end = text.find("\n", len(text.rstrip()))
        yield text if end < 0 else text[:end]


def _hold(text: str) -> tuple[str, str]:
    """Cut a text after HOLD characters, at a line end if there is one within as many again."""
    at = text.find("\n", HOLD, 2 * HOLD)
    if at >= 0:
        return text[:at], text[at + 1 :]
    return text[: 2 * HOLD], text[2 * HOLD :]


def _without_blank_start(text: str) -> str:
    if not text[:1].isspace():
        return text
    return text[text.rfind("\n", 0, len(text) - len(text.lstrip())) + 1 :]


def has_blocks(pieces: Iterable[str]) -> bool:
    """Return whether there is a blank line with text before and after it."""
    seen, blanks = False, ""
    for piece in pieces:
        piece = blanks + piece if seen else piece.lstrip()
        text = piece.rstrip()
        if _GAP.search(text):
            return True
        seen = seen or bool(text)
        blanks = "\n" * min(2, piece.count("\n", len(text)))
    return False


def _mode(source: ByteSource, encoding: Encoding, options: ReadOptions) -> str:
    if options.document != "auto":
        return options.document
    return "block" if has_blocks(even(encodings.blocks(source, encoding), Counter(), _line_ends(options))) else "file"


def _rows(pieces: Iterable[str]) -> Iterator[str]:
    """Yield lines without their ends. Raises BadFile for one of more than LINE characters."""
    rest = ""
    for piece in even(pieces, Counter(), "\r"):
        *rows, rest = (rest + piece).split("\n")
        yield from rows
        if len(rest) > LINE:
            raise BadFile(f"a line of more than {LINE:,} characters: is it one record per line?")
    if rest:
        yield rest


def _json_lines(pieces: Iterable[str]) -> Iterator[tuple]:
    return ((number, _loads(row)) for number, row in enumerate(_rows(pieces), 1) if row and not row.isspace())


def _loads(row: str):
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        return error


def _json_items(pieces: Callable[[], Iterator[str]], encoding: Encoding, report: FileReport) -> Iterator[tuple]:
    """Yield (number, value) of a .json: the items of its list, or its lines if it is JSON lines by another name."""
    text = _Json(pieces, encoding)
    if text.next() == "[":
        yield from enumerate(text.items(), 1)
        if text.next():
            text.fail("Extra data")
        return
    value = text.value()
    if not text.next():
        raise BadFile(f"a JSON list is expected, of strings or of objects; this is one {_type(value)}")
    report.notes.append("not one JSON value but several: read as JSON lines")
    yield from _json_lines(pieces())


_SOLID = re.compile("[^ \t\n\r]")


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
                if not cut or left > LINE or not self.more(left + 1):
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

    def fail(self, why: str, at: int | None = None) -> None:
        """Raise BadFile for a place in characters from the start (default: here); reads again to name its byte."""
        left = self.passed + self.at if at is None else at
        line, column, before = 1, 1, self.encoding.bom
        for piece in self.again():
            piece = piece[:left]
            left -= len(piece)
            line += piece.count("\n")
            last = piece.rfind("\n")
            column = len(piece) - last if last >= 0 else column + len(piece)
            before += len(piece.encode(self.encoding.name))
            if not left:
                break
        raise BadFile(f"byte {before:,} (line {line:,}, column {column:,}) is not JSON: {why}")


def _type(value) -> str:
    return {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}.get(type(value), "number")


def _table_rows(rows: Iterator[str], kind: str, options: ReadOptions, report: FileReport) -> Iterator[tuple]:
    """Yield (number, {column: field}) of a .csv or .tsv, whose first row names the columns."""
    csv.field_size_limit(FIELD)
    first = next((row for row in rows if row.strip()), "")
    if not first:
        return
    wanted = _template(options.text_key)[0]
    odd, number, before = [], 0, 0  # before: lines before the row that is read
    try:
        # 1. the columns
        mark = _separator(first, "\t" if kind == ".tsv" else ",;\t", wanted, options)
        reader = csv.reader(chain((f"{row}\n" for row in chain([first], rows)), [_END]), delimiter=mark)
        header = [name.strip() for name in next(reader)]
        if _END in header[-1]:
            raise BadFile("a quotation mark opens in the first row, and none closes it")
        missing = [name for name in wanted if name not in header]
        if missing and not (options.may_converse(header) and conversations.has_pair(header)):
            raise BadFile(
                f"no column '{missing[0]}'; the first row of a {kind} names its columns, here: "
                f"{', '.join(header)[:500]} (choose with text_key)"
            )
        short: dict[str, str] = dict.fromkeys(header, "") if missing else {}  # the answer that a short row lacks
        number, before = 1, reader.line_num
        # 2. the rows
        for number, row in enumerate(reader, 2):
            if row == [_END]:
                break
            if row and _END in row[-1]:
                raise BadFile(f"a quotation mark opens in row {number:,}, line {before + 1:,}, and none closes it")
            before = reader.line_num
            if row:
                odd += [number] if len(row) != len(header) else []
                yield number, short | dict(zip(header, row, strict=False))
    except csv.Error as error:
        hint = ": does a quotation mark open in it that none closes?" if "limit" in str(error) else ""
        raise BadFile(f"row {number + 1:,}, which starts in line {before + 1:,}: {error}{hint}") from None
    if odd:
        report.notes.append(f"{len(odd):,} row(s) do not have {len(header)} columns; the first is row {odd[0]:,}")


def _separator(line: str, marks: str, wanted: Sequence[str], options: ReadOptions) -> str:
    """Return which of the marks separates the columns: with it a table's first line names those that are wanted.

    If that says nothing, the one that makes most columns.
    """
    headers = {mark: [name.strip() for name in next(csv.reader([line], delimiter=mark))] for mark in marks}

    def likely(mark: str) -> tuple:
        names = headers[mark]
        paired = options.may_converse(names) and conversations.has_pair(names)
        return set(wanted) <= set(names) or paired, len(names), -marks.index(mark)

    return max(marks, key=likely)


_END = "\0end\0"  # a row of its own, or swallowed by a quotation mark that is never closed


def _parquet_rows(source: ByteSource, stack: contextlib.ExitStack, options: ReadOptions) -> Iterator[tuple]:
    """Yield (number, {column: value}) of a .parquet, some rows at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadFile('reading .parquet needs a library: pip install -e ".[text]"') from None
    if not isinstance(source, Path):  # its directory is at its end
        with source() as stream:
            source = spool(iter(lambda: stream.read(encodings.BLOCK_BYTES), b""), stack)
    wanted, number = _template(options.text_key)[0], 0
    try:
        with parquet.ParquetFile(source, memory_map=False) as file:
            names = file.schema_arrow.names
            if missing := [name for name in wanted if name not in names]:
                wanted = [name for name in names if name in conversations.KEYS] if options.may_converse(names) else []
                if not conversations.has_form(wanted):
                    raise BadFile(f"no column '{missing[0]}'; there: {', '.join(names)[:500]} (choose with text_key)")
            for batch in file.iter_batches(batch_size=ROWS, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise BadFile(f"this .parquet cannot be read, after row {number:,}: {str(error)[:300]}") from None


@functools.cache
def _template(text_key: str) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the columns that a text is made of, and for a template its pieces: (text before, column or "").

    "{title}\\n{ask}" has braces, so it is a template; anything else is the name of one column. Raises ValueError.
    """
    try:
        parsed = list(string.Formatter().parse(text_key))
    except ValueError as error:
        raise ValueError(f"text_key '{text_key}': {error}. Write a template like {{title}}\\n{{ask}}") from None
    if all(name is None for _, name, _, _ in parsed):
        return [text_key], ()
    for _, name, form, conversion in parsed:
        if name is not None and (not name.strip() or form or conversion or set(name) & set(".[]")):
            raise ValueError(
                f"text_key '{text_key}': between braces, write the plain name of a column or key, like {{title}}"
            )
    pieces = tuple((before.replace("\\n", "\n"), name or "") for before, name, _, _ in parsed)
    return list(dict.fromkeys(name for _, name in pieces if name)), pieces


class _Unreadable(Exception):
    """A value has no text; the message says why."""


def _texts_of(items: Iterable[tuple], unit: str, options: ReadOptions, report: FileReport) -> Iterator[str]:
    """Yield the document of each value that has one; count the others, and describe the first few in a note."""
    keys: set[str] = set()
    problems: list[str] = []
    count = read = refused = 0
    for number, item in items:
        try:
            text = _document_of(item, options)
        except (_Unreadable, NotAConversation) as error:
            count += 1
            report.drop("unreadable", 0)
            if isinstance(error, NotAConversation):
                refused += 1
            elif isinstance(item, dict):
                keys.update(map(str, item))
            if len(problems) < FIRST_FEW:
                problems.append(f"{unit} {number:,}: {error}")
            continue
        if text is None:
            report.drop("empty", 0)
        else:
            read += isinstance(text, Conversation)
            yield text
    if read:
        report.notes.append("read as conversations")
    if count:
        more = f", and {count - FIRST_FEW:,} more" if count > FIRST_FEW else ""
        report.notes.append("; ".join(problems) + more)
    if refused:
        report.notes.append(
            "in a conversation user and assistant take turns, perhaps after a system line: mend these records, or read "
            "all of them as plain text (choose a key, or a template like {ask}\\n{answer}, with text_key)"
        )
    if keys:
        report.notes.append(f"keys there: {', '.join(sorted(keys)[:8])} (choose one with text_key)")


def _document_of(item, options: ReadOptions) -> str | None:
    """Return a string as it is, a conversation, what an object has under the key, or what a template makes of it.

    None stands for a template whose fields are all empty. Raises _Unreadable, NotAConversation.
    """
    wanted, pieces = _template(options.text_key)
    if isinstance(item, str):
        return item
    if isinstance(item, Exception):
        raise _Unreadable(f"not JSON, {item}")
    if not isinstance(item, dict):
        raise _Unreadable(f"a {_type(item)}, not a text")
    if not pieces:
        value = item.get(wanted[0])
        if not _is_text(value) and options.may_converse(item):
            if (messages := conversations.messages_of(item)) is not None:
                return Conversation(messages)
        return _field(value, f"no string under '{wanted[0]}'")
    if not any(name in item for name in wanted):
        raise _Unreadable(f"nothing under '{', '.join(wanted)}'")
    fields = []
    for _, name in pieces:
        value = item.get(name) if name else None
        value = "" if value in (None, []) else str(value) if isinstance(value, int | float) else value
        fields.append(_field(value, f"a {_type(value)} under '{name}', not a text"))
    if not any(map(str.strip, fields)):
        return None
    return "".join(before + field for (before, _), field in zip(pieces, fields, strict=True))


def _is_text(value) -> bool:
    return isinstance(value, str) or isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _field(value, problem: str) -> str:
    """Return a string, or a list of strings as lines; raise _Unreadable with the problem for anything else."""
    if not _is_text(value):
        raise _Unreadable(problem)
    return value if isinstance(value, str) else "\n".join(value)
