"""File formats become raw documents, a piece at a time: txt, JSON, JSON lines, CSV, TSV, Parquet.

Knows which module reads which format. Where bytes come from is known to `archives`, how they become characters to
`encodings`; what is kept of a document, and how it is cleaned, is not decided here.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from helpers.corpus import encodings, mojibake
from helpers.corpus.archives import list_archive, open_bytes
from helpers.corpus.conversations import Conversation
from helpers.corpus.encodings import BadFile, ByteSource, Encoding
from helpers.corpus.inputs import ARCHIVES, Input, kind_of
from helpers.corpus.json_values import json_items, json_lines
from helpers.corpus.plain_text import ENDS, even, has_blocks, split_documents
from helpers.corpus.records import ReadOptions, texts_of
from helpers.corpus.report import FileReport
from helpers.corpus.tables import parquet_rows, table_rows


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
            yield from texts_of(parquet_rows(source, stack, options), "row", options, report)
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
            yield from texts_of(json_items(pieces, encoding, report), "item", options, report)
        elif kind == ".jsonl":
            where = f"line (from byte {begin:,})" if begin else "line"
            yield from texts_of(json_lines(pieces()), where, options, report)
        else:
            rows = table_rows(pieces, kind, options, report)
            yield from texts_of(rows, "row", options, report)


def _line_ends(options: ReadOptions) -> str:
    """Return what ends a line; in mojibake, \x85 may be a part of a character (光 is E5 85 89)."""
    return ENDS.replace("\x85", "") if options.repair else ENDS


def _mode(source: ByteSource, encoding: Encoding, options: ReadOptions) -> str:
    if options.document != "auto":
        return options.document
    return "block" if has_blocks(even(encodings.blocks(source, encoding), Counter(), _line_ends(options))) else "file"
