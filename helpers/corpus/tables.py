"""Tables: the rows of CSV, TSV and Parquet, each as {column: value}, a few at a time.

Of the dialects in which programs write a CSV, the one is taken that fits the most rows; a row that does not fit its
header is a problem, never half read. What a row becomes is decided in `records`.
"""

import contextlib
import csv
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from helpers.corpus.encodings import BadFile
from helpers.corpus.plain_text import MARK, lines_of
from helpers.corpus.records import Problems, distinct, has_text, require
from helpers.corpus.settings import parse_template
from helpers.wording import install, say

LONGEST_FIELD = 2**24  # characters of a field of a .csv: a quotation mark that is never closed takes all that follows
PARQUET_ROWS = 256  # read at a time of a .parquet


class _Dialect(NamedTuple):
    """How quotation marks are meant."""

    note: str  # what is said of a file that is read so; "" for the usual one
    form: dict  # what `csv.reader` takes
    escapes: bool = False  # \" is a quotation mark, and \\ a backslash


_PLAIN = _Dialect("its quotation marks are part of the text", {"quoting": csv.QUOTE_NONE})
_DIALECTS = (  # the likeliest first
    _Dialect("", {}),
    _Dialect('its quotation marks are written \\", as MySQL does: read as "', {}, escapes=True),
    _Dialect("spaces follow its separators: they are left out", {"skipinitialspace": True}),
    _PLAIN,
)


def table_rows(pieces: Callable[[], Iterator[str]], kind: str, text_key: str, problems: Problems) -> Iterator[tuple]:
    """Yield (number, {column: field}) of a .csv or .tsv, whose first row names the columns. Raises BadFile."""
    csv.field_size_limit(LONGEST_FIELD)
    wanted, template = parse_template(text_key)
    # 1. the columns
    first = next((row for row in (line.lstrip(MARK) for line in lines_of(pieces())) if row.strip()), "")
    if not first:
        return
    mark = _separator(first, "\t" if kind == ".tsv" else ",;\t", text_key)
    quoted = any('"' in piece for piece in pieces())
    misfits: list[float] = []
    for dialect in _DIALECTS:  # which differ in how they take quotation marks
        misfits.append(quoted and _misfits(_rows(lines_of(pieces()), mark, dialect), mark, dialect))
        if not misfits[-1]:
            break
    dialect = _DIALECTS[misfits.index(min(misfits))]
    rows = _rows(lines_of(pieces()), mark, dialect)
    _, names, _ = next(rows)
    header = distinct(name.strip().strip('"' if dialect is _PLAIN else "") for name in names)
    require(text_key, header)
    columns, joins = len(header), not template and header[-1] == wanted[0]
    needed = max(header.index(name) + 1 if name in header else columns for name in wanted)
    # 2. the rows
    if dialect.note:
        problems.report.notes.append(dialect.note)
    for number, fields, written in rows:
        fitted, why = _fitted(fields, written, columns, mark, needed, joins)
        if fields == names and columns > 1:  # a file that was put behind another
            fitted, why = [], "the header once more"
        if not fitted:
            problems.add(number, why, sum(map(len, written)))
            continue
        if why:
            problems.report.counts[why] += 1
        yield number, dict(zip(header, fitted, strict=False))


def _fitted(
    fields: list[str], written: list[str], columns: int, mark: str, needed: int = 0, joins: bool = False
) -> tuple[list[str], str]:
    """Return the fields of a row, one a column, or none; and what was guessed about it, or why there are none.

    The last columns may be missing, if the first `needed` are there; what is too much may belong to the last: `joins`.
    """
    found = len(fields)
    if found == columns and mark != "\t":  # as nearly all
        return fields, ""
    if not found:
        return [], "text follows a quotation mark that closes a field"
    if columns > found >= (needed or columns):
        return fields, f"a row has fewer than {columns:,} columns"
    if found >= columns and not any(map(str.strip, fields[columns:])):
        several = mark == "\t" and len(written) > 1 and {line.count(mark) for line in written} == {columns - 1} != {0}
        return fields[:columns], _SEVERAL if several else ""
    if joins and found > columns and written == [mark.join(fields)]:
        guess = f"a row has more than {columns:,} columns: all that follows was joined to the last"
        return [*fields[: columns - 1], mark.join(fields[columns - 1 :])], guess
    which = repr(mark) if found > columns else "a line end"
    return [], f"fields: {found:,}, columns: {columns:,}. Does one hold {which}, but is not in quotes?"


_SEVERAL = 'a row may be several rows, joined by two " of the text: if so, write these twice, and one around its field'


def _misfits(rows: Iterator[tuple], mark: str, dialect: _Dialect) -> float:
    """Return how many rows do not fit the header if they are read in this dialect."""
    count = 0
    try:
        columns = len(next(rows)[1])
        if dialect is _PLAIN and columns == 1 and mark != "\t":
            return math.inf  # any line would fit
        for _, fields, written in rows:
            quoted = dialect is _PLAIN and any(re.fullmatch('".+"', field, re.S) for field in fields)
            count += quoted or not _fitted(fields, written, columns, mark)[0]
    except BadFile:
        return count + 1
    return count


def _rows(lines: Iterable[str], mark: str, dialect: _Dialect) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (number, fields, lines) of the rows that are not blank; a torn one has no field. Raises BadFile."""
    held: list[str] = []  # the lines of the row that is read

    def ended() -> Iterator[str]:
        for line in lines:
            line = line.lstrip(MARK)  # which stands in the middle where one file was put behind another
            held.append(line)
            if dialect.escapes:
                line = _ESCAPE.sub(lambda m: '""' if m[1] == '"' else m[1], line)
            yield line + "\n"

    reader, line = csv.reader(ended(), delimiter=mark, strict=True, **dialect.form), 1
    for number in itertools.count(1):
        fields, fault = [], ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = str(error)
        if "limit" in fault or "end of data" in fault:
            raise BadFile(f"a quotation mark opens in row {number:,}, line {line:,}, and none closes it")
        if fields or fault:
            yield number, fields, held
        line += len(held)
        held.clear()


_ESCAPE = re.compile(r'\\(["\\])')


def _separator(line: str, marks: str, text_key: str) -> str:
    """Return the mark under which the header has the wanted columns, or else the most."""

    def likely(mark: str) -> tuple:
        with contextlib.suppress(csv.Error):
            names = [name.strip() for name in next(csv.reader([line], delimiter=mark))]
            return has_text(text_key, names), len(names), -marks.index(mark)
        return False, 0, 0

    return max(marks, key=likely)


def parquet_rows(path: Path, text_key: str, problems: Problems) -> Iterator[tuple]:
    """Yield (number, {column: value}) of a .parquet, some rows at a time, without the columns of bytes."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadFile(say("reading {} needs a library: {}", ".parquet", install("text"))) from None
    wanted, number = parse_template(text_key)[0], 0
    try:
        with parquet.ParquetFile(path) as file:
            require(text_key, names := file.schema_arrow.names)
            if len({*names}) < len(names):
                problems.report.notes.append("of columns with the same name, only the last is read")
            binary = [column.name for column in file.schema_arrow if "binary" in str(column.type)]
            if passed := [name for name in binary if name not in wanted]:
                problems.report.notes.append(f"no text but bytes, which are not read: {', '.join(passed)}")
            kept = [name for name in names if name not in passed]
            for batch in file.iter_batches(PARQUET_ROWS, columns=kept, use_threads=False):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record | {name: _decoded(record[name]) for name in binary if name in record}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        raise BadFile(f"this .parquet cannot be read, after row {number:,}: {str(error)[:300]}") from None


def _decoded(value: bytes | None) -> str | bytes | None:
    """Return bytes that are UTF-8 as a string, and others as they are."""
    with contextlib.suppress(UnicodeDecodeError):
        return None if value is None else value.decode()
    return value
