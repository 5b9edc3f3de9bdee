"""File formats become raw documents, a piece at a time: txt, JSON, JSON lines, CSV, TSV, Parquet, PDF …

Where bytes come from is known to `archives`, how they become characters to `encodings`, what a record becomes to
`records`; how a document is cleaned is not decided here.
"""

import contextlib
import functools
import itertools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree

from helpers.corpus import archives, encodings, mojibake, plain_text
from helpers.corpus.archives import Input, kind_of, list_archive, plain_file
from helpers.corpus.cleaning import clean, unwrap
from helpers.corpus.conversations import Conversation, count_unused, has_form
from helpers.corpus.encodings import BadFile, Encoding
from helpers.corpus.plain_text import MARK, lines_of, with_line_ends
from helpers.corpus.records import Problems, read_texts_of
from helpers.corpus.report import UNDECODABLE, FileReport
from helpers.corpus.settings import CorpusSettings, parse_template
from helpers.corpus.tables import parquet_rows, table_rows
from helpers.wording import install, say


def slice_file(item: Input, options: CorpusSettings, max_bytes: int) -> list[Input]:
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
        if kind == ".jsonl" and not has_json_lines(functools.partial(encodings.read_blocks, item.path, encoding), kind):
            return [item]
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


def read_documents(item: Input, options: CorpusSettings, report: FileReport) -> Iterator[str]:
    """Yield the raw documents of an input; fill in the report's encoding, mode, notes and what was unreadable.

    A document is a text, or a `Conversation`. Memory is bounded by a block of the file and a document. Raises BadFile,
    OSError.
    """
    for text in _read_as_they_are(item, options, report):
        if options.repair and (mended := mojibake.repair(text)) is not None:
            report.rules["mojibake repaired"] += 1
            report.counts["cleaned"] += len(text)
            # the whole conversation is the evidence, a short turn is none; mending leaves line ends where they are
            text = text.with_lines(mended) if isinstance(text, Conversation) else mended
            report.counts["cleaned"] -= len(text)
        yield text


def _read_as_they_are(item: Input, options: CorpusSettings, report: FileReport) -> Iterator[str]:
    kind = kind_of(item.member or item.path.name)[0]
    if kind in archives.ARCHIVES:
        list_archive(item, Counter())
        raise BadFile("this archive changed while it was read: run this room again")
    report.mode, text_key = kind[1:], options.text_key
    with plain_file(item) as path:
        if kind in archives.DOCUMENTS:
            report.encoding, mode = "-", "file" if options.document == "auto" else options.document
            for document in _document_texts(path, kind, report):
                yield from _split(iter([document]), mode, options, report)
            return
        if kind == ".parquet":
            report.encoding = "-"
            problems = Problems("row", report)
            yield from read_texts_of(parquet_rows(path, text_key, problems), text_key, problems)
            return
        encoding = item.encoding or encodings.find_encoding(path)
        report.encoding = str(encoding)
        begin, end = (0, 0) if item.member else (item.start, item.stop)
        if not begin:
            report.notes += encoding.notes()
        if encoding.bad_lines and not begin and kind == ".txt":  # in other files a record goes, for such a line in it
            report.counts["read"] += encoding.bad_characters
            report.drop(UNDECODABLE, encoding.bad_characters, encoding.bad_lines)
        pieces = functools.partial(encodings.read_blocks, path, encoding, begin, end, marked=kind != ".txt")
        if kind == ".txt":
            report.mode = item.mode or _mode(path, encoding, options)
            yield from _split(pieces(), report.mode, options, report)
            return
        unit = {".json": "item", ".jsonl": f"line (from byte {begin:,})" if begin else "line"}.get(kind, "row")
        problems = Problems(unit, report)
        if kind in (".json", ".jsonl"):
            in_lines = begin or has_json_lines(pieces, kind)
            records = json_lines(pieces(), problems) if in_lines else json_items("".join(pieces()), text_key, problems)
        else:
            records = table_rows(pieces, kind, text_key, problems)
        yield from read_texts_of(records, text_key, problems)


def _split(pieces: Iterator[str], mode: str, options: CorpusSettings, report: FileReport) -> Iterator[str]:
    """Yield the documents of a text; its characters are counted as read, and as form if they are in none."""

    def counted(piece: str) -> str:
        report.account(len(piece), 0, {})
        return piece

    text = map(counted, with_line_ends(pieces, report.rules, _line_ends(options)))
    for document in plain_text.split_documents(text, mode, report.counts):
        report.counts["form"] -= len(document)
        yield document


def _line_ends(options: CorpusSettings) -> str:
    """Return what ends a line; in mojibake, \x85 may be a part of a character (光 is E5 85 89)."""
    return plain_text.ENDS.replace("\x85", "") if options.repair else plain_text.ENDS


def _mode(path: Path, encoding: Encoding, options: CorpusSettings) -> str:
    if options.document != "auto":
        return options.document
    pieces = encodings.read_blocks(path, encoding)
    return plain_text.find_mode(with_line_ends(pieces, Counter(), _line_ends(options)))


# ---- PDF, Word, EPUB, web pages ----


def _document_texts(path: Path, kind: str, report: FileReport) -> Iterator[str]:
    """Yield the text of a .pdf, .docx or .html, or of each chapter of an .epub; count what is left out of it.

    Raises BadFile for a PDF without text, a password, damage, a zip that unpacks to very much, a missing library.
    """
    try:
        if kind == ".pdf":
            yield _pdf(path, report)
        elif kind == ".html":
            encoding = encodings.find_encoding(path)
            report.encoding, report.notes = str(encoding), [each for each in encoding.notes() if "web page" not in each]
            yield _page("".join(encodings.read_blocks(path, encoding)), _MENUS, report)
        else:
            with zipfile.ZipFile(path) as parts:
                most = max(archives.SMALL_BYTES, archives.RATIO * path.stat().st_size)
                if sum(part.file_size for part in parts.infolist()) > most:
                    raise BadFile(say("it unpacks to more than {} times its size: a bomb?", archives.RATIO))
                yield from [_word(parts, report)] if kind == ".docx" else _chapters(parts, report)
    except ImportError:
        raise BadFile(say("reading {} needs a library: {}", kind, install("documents"))) from None
    except (*archives.DAMAGE, ElementTree.ParseError, KeyError, UnicodeError) as error:
        why = "damaged, locked with a password, or no {}: save a copy that opens without one ({})"
        raise BadFile(say(why, kind, error)) from None


def _leave_out(report: FileReport, reason: str, characters: int) -> None:
    report.account(characters, 0, {reason: characters} if characters else {})


_SPREAD = re.compile("(?:[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef\U00020000-\U0003ffff] ){3,}")  # to fill a line
_CUT_WORD = re.compile(r"(\w*)\ufffe\n?(\w*)")  # U+FFFE is PDFium's sign for a hyphen that a line ends with


def _pdf(path: Path, report: FileReport) -> str:
    """Return the text of a PDF in the order in which it was written, which is column after column."""
    import pypdfium2

    with pypdfium2.PdfDocument(path) as pdf:
        texts = [re.sub("\ufffe|\u2010\r", "\ufffe\n", page.get_textpage().get_text_range()) for page in pdf]
    pages = [[line.strip() for line in text.splitlines() if line.strip()] for text in texts]
    # what the first or last lines of three pages have in common, but for a number that grows with the page
    places = [
        (page, at) for page, lines in enumerate(pages) for at in range(len(lines)) if not 2 <= at < len(lines) - 2
    ]
    forms = {(page, at): _forms(pages[page][at], page) for page, at in places}
    counts = Counter(itertools.chain.from_iterable(forms.values()))
    repeated = {place for place in places if max(counts[form] for form in forms[place]) >= 3}
    _leave_out(report, "headers, footers and page numbers", sum(len(pages[page][at]) for page, at in repeated))
    pages = [[line for at, line in enumerate(lines) if (page, at) not in repeated] for page, lines in enumerate(pages)]
    if not any(pages):
        raise BadFile(say("this PDF holds pictures of text (a scan), and no text: run OCR over it, such as ocrmypdf"))
    if empty := pages.count([]):
        report.notes.append(f"{empty:,} of {len(pages):,} pages have no text: are they scanned?")
    text, report.rules["hard wraps"], _ = unwrap("\n".join(itertools.chain(*pages)), printed=True)
    text = clean(text, report.rules, frozenset({"Kangxi radicals"}))
    text = _SPREAD.sub(lambda match: match[0].replace(" ", ""), text)
    # a hyphen stays where the text has the word with one elsewhere, or what follows is no word
    whole = {*re.findall(r"\w+-\w+", text)}
    return _CUT_WORD.sub(lambda m: m[1] + "-" * (not m[2].islower() or f"{m[1]}-{m[2]}" in whole) + m[2], text)


def _forms(line: str, page: int) -> list[str]:
    """Return a line, and with each of its numbers as it would stand on page 0, if that counts the pages."""
    numbers = re.finditer(r"\d{1,9}", line)
    return [line, *(f"{line[: m.start()]}\0{int(m[0]) - page}{line[m.end() :]}" for m in numbers)]


_STORY = re.compile(r"word/(document|footnotes|endnotes|header\d*|footer\d*|comments)\.xml")
_SIGNS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def _word(parts: zipfile.ZipFile, report: FileReport) -> str:
    """Return the text of a Word file and its notes."""
    stories = {name[5:-4]: ElementTree.fromstring(parts.read(name)) for name in parts.namelist() if _STORY.match(name)}
    passed: list[ElementTree.Element] = []
    read = [stories.pop("document"), *(stories.pop(name) for name in ("footnotes", "endnotes") if name in stories)]
    text = "".join(_text_of(story, passed) for story in read)
    size = sum(len(part) for node in [*passed, *stories.values()] for part in node.itertext())
    _leave_out(report, "headers, footers, comments, deleted text and ruby", size)
    return text


def _text_of(node: ElementTree.Element, passed: list[ElementTree.Element]) -> str:
    """Return the text of a node of Word's XML, a line a paragraph, or a row of a table; add to what is passed by."""
    tag = node.tag.rpartition("}")[2]
    if tag in ("del", "moveFrom", "rt"):
        passed.append(node)
        return ""
    if tag in ("pPr", "rPr", "Fallback"):  # the last repeats a text box for old programs
        return ""
    text = node.text or "" if tag == "t" else _SIGNS.get(tag) or "".join(_text_of(inner, passed) for inner in node)
    ends = {"p": text + "\n", "tc": text.strip().replace("\n", " ") + "\t", "tr": text.rstrip("\t") + "\n"}
    return ends.get(tag, "\n" + text if tag == "txbxContent" else text)


_NOTES = ["nav", "rt", "rp", "[hidden]"]  # of a book, an <aside> is a footnote
_MENUS = [*_NOTES, "aside", "footer", "header:not(article *):not(main *)", "button", "select", "textarea", "label"]
# in HTML such a tag would hold the rest of the page
_EMPTY_TAG = re.compile(r"<(?!(?:br|hr|img|input|link|meta|wbr|col|area|base|embed|source)\b)([\w:]+)\b([^<>]*)/>")


def _chapters(book: zipfile.ZipFile, report: FileReport) -> Iterator[str]:
    container = ElementTree.fromstring(book.read("META-INF/container.xml"))
    main = next(container.iterfind(".//{*}rootfile")).attrib["full-path"]
    package = ElementTree.fromstring(book.read(main))
    files = {item.get("id"): item.attrib["href"] for item in package.iterfind("{*}manifest/{*}item")}
    for chapter in package.iterfind("{*}spine/{*}itemref"):
        data = book.read(normpath(join(dirname(main), unquote(files[chapter.get("idref")]))))
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        yield _page(_EMPTY_TAG.sub(r"<\1\2></\1>", text), _NOTES, report)


def _page(markup: str, passed: list[str], report: FileReport) -> str:
    """Return the text of a web page, less the elements that are passed by."""
    from resiliparse.extract.html2text import extract_plain_text

    whole = extract_plain_text(markup, list_bullets=False, alt_texts=False)
    text = extract_plain_text(markup, list_bullets=False, alt_texts=False, skip_elements=passed)
    _leave_out(report, "menus, forms, footers and ruby", len(whole) - len(text))
    return re.sub("^ +(?=[^ -~])|\t(?=\t)", "", text, flags=re.M)  # of lists and tables


# ---- JSON ----


_DECODER = json.JSONDecoder()
_AROUND = MARK + " \t\r\n\x1e"  # what may stand around a value: RFC 7464 begins each with \x1e
_SOLID = re.compile(f"[^{_AROUND}]")


def _value(row: str):
    """Return the value of a line. Raises ValueError, RecursionError."""
    return _DECODER.decode(row.strip(_AROUND).removesuffix(","))


def has_json_lines(pieces: Callable[[], Iterator[str]], kind: str) -> bool:
    """Return whether a .jsonl is what its name says, and no value in many lines; or whether a .json is one as well."""
    start = next((piece for piece in pieces() if piece.strip(_AROUND)), "").strip(_AROUND)
    if kind == ".json" and start[:1] == "[":  # all of it may be one line
        return False
    rows = (row.strip(_AROUND) for row in lines_of(pieces()) if row.strip(_AROUND))
    first = next(rows, "")
    try:
        _value(first) if kind == ".json" else _DECODER.raw_decode(first)
    except (ValueError, RecursionError):
        return kind == ".jsonl" and first[:1] != "[" and first != "{"  # a torn line
    return kind == ".jsonl" or next(rows, None) is not None


def json_lines(pieces: Iterator[str], problems: Problems) -> Iterator[tuple]:
    """Yield (number, value) of each line that is not blank; a line that is no JSON is a problem."""
    for number, row in enumerate(lines_of(pieces), 1):
        if not row.strip(_AROUND):
            continue
        try:
            values = [_value(row)]
        except (ValueError, RecursionError) as error:
            values = []
            with contextlib.suppress(ValueError, RecursionError):  # one file behind another, without a line end
                values = _values(row)
            if not values:
                problems.add(number, f"not JSON, {str(error).split(': line')[0]}", len(row))
        for value in values:
            yield number, value


def json_items(text: str, text_key: str, problems: Problems) -> Iterator[tuple]:
    """Yield (number, value) of a .json that is no JSON lines: the items of its list, or its values. Raises BadFile."""
    try:
        values = _values(text)
    except json.JSONDecodeError as error:
        raise BadFile(f"line {error.lineno:,}, column {error.colno:,} is not JSON: {error.msg}") from None
    except RecursionError:
        raise BadFile("this JSON is nested too deep") from None
    except ValueError as error:
        raise BadFile(f"this JSON: {error}") from None
    if len(values) == 1:
        values = _items_of(values[0], text_key, problems)
    yield from enumerate(values, 1)


def _values(text: str) -> list:
    """Return the values that follow one another in a text. Raises ValueError, RecursionError."""
    values, at = [], 0
    while solid := _SOLID.search(text, at):
        value, at = _DECODER.raw_decode(text, solid.start())
        values.append(value)
    return values


def _items_of(value, text_key: str, problems: Problems) -> list:
    """Return the records of what is all of a .json: a list of them, an object with one such list, or one record."""
    if isinstance(value, dict) and not {*parse_template(text_key)[0]} & {*value} and not has_form(value):
        lists = [name for name in value if isinstance(value[name], list) and isinstance((value[name] or [0])[0], dict)]
        if len(lists) == 1:
            problems.report.notes.append(f"one object, of which the list under '{lists[0]}' was read")
            spare: Counter = Counter()
            count_unused(value, lists, spare)
            problems.report.account(sum(spare.values()), 0, spare)
            return value[lists[0]]
    return value if isinstance(value, list) else [value]
