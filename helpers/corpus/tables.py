"""Tables: the rows of CSV, TSV and Parquet, each as {column: value}, a few at a time.

Rows that a separator or a quotation mark in the text has broken are mended where only one reading is possible, and
else reported. What a row becomes is decided in `records`.
"""

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from helpers.corpus import conversations
from helpers.corpus.encodings import BadFile
from helpers.corpus.plain_text import MARK, lines_of
from helpers.corpus.records import Problems, ReadOptions, parse_template
from helpers.corpus.report import FileReport

LONGEST_FIELD = 2**24  # characters of a field of a .csv: a quotation mark that is never closed takes all that follows
PARQUET_ROWS = 256  # read at a time of a .parquet


class _Rows:
    """How many rows are of one sort, and which is the first."""

    def __init__(self):
        self.count = self.first = 0

    def add(self, number: int) -> None:
        self.count, self.first = self.count + 1, self.first or number


def table_rows(
    pieces: Callable[[], Iterator[str]], kind: str, options: ReadOptions, problems: Problems
) -> Iterator[tuple]:
    """Yield (number, {column: field}) of a .csv or .tsv, whose first row names the columns.

    A row with more fields than there are columns is read where its text can only be one, else it is a problem.
    """
    csv.field_size_limit(LONGEST_FIELD)
    wanted, template = parse_template(options.text_key)
    # 1. the columns
    lines = lines_of(pieces())
    first = next((line for row in lines if (line := row.lstrip(MARK)).strip()), "")
    if not first:
        return
    mark = _separator(first, "\t" if kind == ".tsv" else ",;\t", wanted, options)
    plain = mark == "\t" and _has_plain_quotes(pieces, problems.report)
    rows = _fields(chain([first], lines), mark, plain)
    header = [name.strip().strip('"' if plain else "") for name in next(rows)[1]]
    missing = [name for name in wanted if name not in header]
    if missing and not (options.may_converse(header) and conversations.has_pair(header)):
        raise BadFile(
            f"no column '{missing[0]}'; the first row of a {kind} names its columns, here: "
            f"{', '.join(header)[:500]} (choose with text_key)"
        )
    columns, is_last = len(header), not template and header[-1] == wanted[0]
    empty: dict[str, str] = dict.fromkeys(header, "") if missing else {}  # the answer that a short row lacks
    # 2. the rows
    short, joined = _Rows(), _Rows()
    for number, row in rows:
        if len(row) < columns:
            short.add(number)
        elif len(row) > columns and any(map(str.strip, row[columns:])):
            if not is_last:
                why = f"{len(row):,} fields for {columns:,} columns: does one hold {mark!r}, but is not in quotes?"
                problems.add(number, why, len(mark.join(row)))
                continue
            joined.add(number)
            row[columns - 1 :] = [mark.join(row[columns - 1 :])]
        yield number, empty | dict(zip(header, row, strict=False))
    notes = problems.report.notes
    if short.count:
        notes.append(f"{short.count:,} row(s) have fewer than {columns:,} columns; the first is row {short.first:,}")
    if joined.count:
        notes.append(
            f"{joined.count:,} row(s) have more than {columns:,} columns: all that follows was joined to "
            f"'{wanted[0]}', with {mark!r}; the first is row {joined.first:,}"
        )


def _fields(lines: Iterable[str], mark: str, plain: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, fields) of the rows that are not blank; `plain`: quotation marks are text.

    Raises BadFile for a quotation mark that none closes.
    """
    ended = chain((f"{line}\n" for line in lines), [_END])
    reader = csv.reader(ended, delimiter=mark, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL)
    number = before = 0  # before: lines before the row that is read
    try:
        for number, row in enumerate(reader, 1):
            if row == [_END]:
                return
            if row and _END in row[-1]:
                where = f"row {number:,}, line {before + 1:,}" if number > 1 else "the first row"
                raise BadFile(f"a quotation mark opens in {where}, and none closes it")
            before = reader.line_num
            if row:
                yield number, row
    except csv.Error as error:
        raise _bad_row(number + 1, before + 1, error) from None


def _bad_row(number: int, line: int, error: csv.Error) -> BadFile:
    hint = ": does a quotation mark open in it that none closes?" if "limit" in str(error) else ""
    return BadFile(f"row {number:,}, which starts in line {line:,}: {error}{hint}")


def _has_plain_quotes(pieces: Callable[[], Iterator[str]], report: FileReport) -> bool:
    """Return whether the quotation marks of a tab-separated table are text; note this, and where it may be so.

    They are where one opens a field but does not close it: at its end, as those do that programs write.
    """
    if not any('"' in piece for piece in pieces()):
        return False
    doubtful, columns = _Rows(), 0
    tabs: list[int] = []  # in each line of the row that is read

    def counted() -> Iterator[str]:
        for line in lines_of(pieces()):
            tabs.append(line.count("\t"))
            yield f"{line}\n"

    try:
        for number, row in enumerate(csv.reader(counted(), delimiter="\t", strict=True), 1):
            columns = columns or len(row)
            if len(tabs) > 1 and set(tabs) == {columns - 1} != {0}:  # each of its lines has all columns
                doubtful.add(number)
            tabs.clear()
    except csv.Error:
        report.notes.append("its quotation marks are part of the text: they do not enclose whole fields")
        return True
    if doubtful.count:
        report.notes.append(
            f"{doubtful.count:,} row(s) may be several rows each, joined by two quotation marks of the text; the first "
            f"is row {doubtful.first:,}: if so, write the marks of the text twice, and one more around its field"
        )
    return False


def _separator(line: str, marks: str, wanted: Sequence[str], options: ReadOptions) -> str:
    """Return the mark under which the header has the wanted columns, or else the most."""
    try:
        headers = {mark: [name.strip() for name in next(csv.reader([line], delimiter=mark))] for mark in marks}
    except csv.Error as error:
        raise _bad_row(1, 1, error) from None

    def likely(mark: str) -> tuple:
        names = headers[mark]
        paired = options.may_converse(names) and conversations.has_pair(names)
        return set(wanted) <= set(names) or paired, len(names), -marks.index(mark)

    return max(marks, key=likely)


_END = "\0end\0"  # a row of its own, or swallowed by a quotation mark that is never closed


def parquet_rows(path: Path, options: ReadOptions) -> Iterator[tuple]:
    """Yield (number, {column: value}) of a .parquet, some rows at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadFile('reading .parquet needs a library: pip install -e ".[text]"') from None
    wanted, number = parse_template(options.text_key)[0], 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = [name for name in wanted if name not in names]
            # a conversation, where there is no text, or beside it for the rows that have none
            beside = [name for name in names if name in conversations.KEYS and name not in wanted]
            if not options.may_converse(set(names) - set(wanted)) or not conversations.has_form(beside):
                beside = []
            if missing and not beside:
                raise BadFile(f"no column '{missing[0]}'; there: {', '.join(names)[:500]} (choose with text_key)")
            wanted = [name for name in wanted if name in names]
            bytes_types = (pyarrow.binary(), pyarrow.large_binary())
            binary = [field.name for field in file.schema_arrow if field.type in bytes_types]
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[*wanted, *beside], use_threads=False):
                if wanted and not batch.column(wanted[0]).null_count:
                    batch = batch.select(wanted)  # what stands beside is not needed, and may be much
                for row in batch.to_pylist():
                    number += 1
                    yield number, row | {name: _decoded(row[name]) for name in binary if name in row}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise BadFile(f"this .parquet cannot be read, after row {number:,}: {str(error)[:300]}") from None


def _decoded(value: bytes | None) -> str | bytes | None:
    """Return bytes that are UTF-8 as a string, and others as they are."""
    with contextlib.suppress(UnicodeDecodeError):
        return None if value is None else value.decode()
    return value
