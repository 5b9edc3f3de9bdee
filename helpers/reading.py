"""A file of unknown encoding becomes raw documents: .txt, .json, .jsonl, decoded strictly, a block at a time.

Knows one file; what is kept of its documents, and how they are cleaned, is not decided here.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers.cleaning import RULES

BLOCK_BYTES = 2**20  # read from disk at a time
HOLD = 1_000_000  # characters of one document held at a time; a longer one is cut anyway
FIRST_FEW = 3  # of many bad lines, so many are described


class BadFile(ValueError):
    """A file that cannot be used; the message names the byte and the reason."""


@dataclass
class FileReport:
    """What happened to one file; `dropped` and `rules` count documents and places, `lost` counts characters."""

    source: str
    encoding: str = "?"
    mode: str = ""
    documents: int = 0
    characters: int = 0
    dropped: Counter = field(default_factory=Counter)  # reason -> documents
    lost: Counter = field(default_factory=Counter)  # reason -> characters
    rules: Counter = field(default_factory=Counter)  # cleaning rule -> places changed
    notes: list[str] = field(default_factory=list)
    bad: str = ""  # why the file could not be used

    def drop(self, reason: str, characters: int) -> None:
        self.dropped[reason] += 1
        self.lost[reason] += characters


# ---------------------------------------------------------------- encodings

_BOMS = (  # UTF-32 before UTF-16: its mark starts with the other's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
_PLAIN = re.compile("[\t\n\r -~\u2010-\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_FREQUENT = re.compile("[\n ，。、]")


@dataclass(frozen=True)
class Encoding:
    """How to read a file: codec name, bytes of the byte order mark to skip, bytes of a cut last character."""

    name: str
    bom: int = 0
    cut: int = 0

    def __str__(self) -> str:
        return f"{self.name} with BOM" if self.bom else self.name


def find_encoding(path: Path) -> Encoding:
    """Find a text file's encoding by decoding all of it strictly; memory stays at one block.

    Tried in turn: a byte order mark, UTF-16 without one where that is evident, UTF-8, GB18030 (which contains GBK and
    GB2312). A last character cut in the middle is allowed. Raises BadFile for bytes that fit none.
    """
    with open(path, "rb") as file:
        head = file.read(2**16)
    for mark, name in _BOMS:
        if head.startswith(mark):
            return _try(path, Encoding(name, bom=len(mark)))
    for name in ("utf-16-le", "utf-16-be"):
        if _evidently(head, name):
            return _try(path, Encoding(name))
    if len(head) - len(head.translate(None, _CONTROL)) > max(4, len(head) // 50):
        at = next(i for i, byte in enumerate(head) if byte in _CONTROL)
        raise BadFile(f"byte {at:,} is 0x{head[at]:02x}, and many more like it follow: this is binary data, not text")
    failures = {}
    for name in ("utf-8", "gb18030"):
        try:
            return _try(path, Encoding(name))
        except BadFile as failure:
            failures[name] = failure
    raise BadFile(
        f"{failures['utf-8']}; {failures['gb18030']}. It is damaged, or two files of different encodings were joined: "
        "save it as UTF-8 in an editor that shows the whole text rightly"
    )


def _try(path: Path, encoding: Encoding) -> Encoding:
    """Decode the whole file strictly; return the encoding with the length of a cut last character, or raise BadFile."""
    decoder = codecs.getincrementaldecoder(encoding.name)()
    with open(path, "rb") as file:
        at = file.seek(encoding.bom)
        while block := file.read(BLOCK_BYTES):
            waiting = len(decoder.getstate()[0])  # the start of a character whose rest is in this block
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                at += error.start - waiting
                raise BadFile(_where(path, at, encoding)) from None
            at += len(block)
    return Encoding(encoding.name, encoding.bom, len(decoder.getstate()[0]))


def _where(path: Path, at: int, encoding: Encoding) -> str:
    with open(path, "rb") as file:
        before = sum(file.read(min(BLOCK_BYTES, at - i)).count(b"\n") for i in range(0, at, BLOCK_BYTES))
        file.seek(at)
        found = file.read(2).hex(" ")
    return f"byte {at:,} (line {before + 1:,}, hex {found}) is not {encoding.name}"


def _evidently(head: bytes, name: str) -> bool:
    """Tell whether bytes are UTF-16: nearly all of it everyday characters, blanks or commas among them.

    ASCII read as UTF-16 looks like rare Chinese, but it cannot hold a blank, a line end or a Chinese comma.
    """
    text = head[: len(head) // 2 * 2].decode(name, "replace")
    return len(_PLAIN.findall(text)) > 0.95 * len(text) and len(_FREQUENT.findall(text)) > 0.005 * len(text)


_LATIN = re.compile("[\x80-\xff]")
_MISREAD = re.compile("[锛銆鈥锟鐨鏄鍦]")  # what ，。“的是在 become when UTF-8 is read as GBK; else very rare


def look(text: str, seen: Counter) -> None:
    """Count in a raw text what speaks for mojibake (乱码): text that an earlier program read in the wrong encoding."""
    seen["all"] += len(text)
    seen["latin"] += len(_LATIN.findall(text))
    seen["misread"] += len(_MISREAD.findall(text))
    seen["?"] += text.count("?")
    seen["？"] += text.count("？")


def suspicions(seen: Counter, rules: Counter) -> list[str]:
    """Return in words what the counts of `look` and of `clean` say: mojibake, lost characters; or nothing."""
    found = []
    if seen["misread"] > 0.01 * seen["all"]:
        found.append("looks like mojibake, UTF-8 read as GBK (锛 for a comma)")
    if seen["latin"] > 0.4 * seen["all"]:
        found.append("looks like mojibake, Chinese bytes read as Latin-1 (Ö®Ë® and the like)")
    if seen["?"] > max(0.01 * seen["all"], seen["？"]):
        found.append(f"{seen['?']:,} '?' beside {seen['？']:,} '？': perhaps characters lost in an earlier conversion")
    if lost := rules["U+FFFD"]:
        found.append(f"{lost:,} U+FFFD removed: characters that were lost before this file was made")
    if private := rules["private-use characters"]:
        found.append(f"{private:,} private-use characters removed: they mean something only in one font")
    return found


_RULE = {name: pattern for name, pattern, _ in RULES}


# ---------------------------------------------------------------- documents of a file


def blocks(path: Path, encoding: Encoding) -> Iterator[str]:
    """Yield a file's text in pieces as they come from the disk; a cut last character is left out."""
    decoder = codecs.getincrementaldecoder(encoding.name)()
    with open(path, "rb") as file:
        file.seek(encoding.bom)
        while block := file.read(BLOCK_BYTES):
            yield decoder.decode(block)


def lines(pieces: Iterable[str], end: re.Pattern, counts: Counter) -> Iterator[str]:
    """Yield lines without their ends; ends that match `end` (\\r\\n, …) count as \\n, and are counted."""
    held, cr = [], ""
    for piece in pieces:
        piece = cr + piece
        cr = "\r" if piece.endswith("\r") else ""  # its \n may stand in the next piece
        piece, places = end.subn("\n", piece.removesuffix(cr))
        if places:
            counts["line ends"] += places
        first, *more = piece.split("\n")
        held.append(first)
        if more:
            yield "".join(held)
            yield from more[:-1]
            held = [more[-1]]
    if "".join(held):
        yield "".join(held)


def split_documents(rows: Iterable[str], mode: str) -> Iterator[str]:
    """Yield the documents of a text's lines: each `line`, each `block` between blank lines, or the whole `file`."""
    held, length = [], 0
    for row in rows:
        if held and (mode == "line" or length > HOLD or (mode == "block" and not row.strip())):
            yield "\n".join(held)
            held, length = [], 0
        if row.strip() or (held and mode == "file"):
            held.append(row)
            length += len(row) + 1
    if held:
        yield "\n".join(held)


def has_blocks(rows: Iterable[str]) -> bool:
    """Tell whether there is a blank line with text before and after it."""
    text, gap = False, False
    for row in rows:
        if row.strip():
            if gap:
                return True
            text = True
        else:
            gap = text
    return False


def read_file(path: Path, mode: str, json_key: str, report: FileReport) -> Iterator[str]:
    """Yield a file's raw documents; fill in the report's encoding, mode and notes. Raises BadFile, OSError."""
    encoding = find_encoding(path)
    report.encoding = str(encoding)
    if encoding.cut:
        at = path.stat().st_size - encoding.cut
        report.notes.append(f"the last character, at byte {at:,}, is cut in the middle: left out")
    if path.suffix.lower() == ".txt":
        any_end = _RULE["line ends"]
        if mode == "auto":
            mode = "block" if has_blocks(lines(blocks(path, encoding), any_end, Counter())) else "file"
        report.mode = mode
        yield from split_documents(lines(blocks(path, encoding), any_end, report.rules), mode)
        return
    report.mode = path.suffix.lower()[1:]
    if report.mode == "json":
        text = "".join(blocks(path, encoding))
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            if not str(error).startswith("Extra data"):
                raise BadFile(_bad_json(error, text, encoding)) from None
            report.notes.append("not one JSON value but several: read as JSON lines")
        else:
            if not isinstance(items, list):
                raise BadFile(f"a JSON list is expected, of strings or of objects; this is one {_kind(items)}")
            yield from _texts_of(((i, item) for i, item in enumerate(items, 1)), "item", json_key, report)
            return
    numbered = enumerate(lines(blocks(path, encoding), re.compile("\r\n?"), Counter()), 1)
    yield from _texts_of(((i, _loads(row)) for i, row in numbered if row.strip()), "line", json_key, report)


def _loads(row: str):
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        return error


def _kind(value) -> str:
    return {dict: "object", list: "list", str: "string", type(None): "null", bool: "boolean"}.get(type(value), "number")


def _bad_json(error: Exception, text: str, encoding: Encoding) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return "this JSON is nested too deep" if isinstance(error, RecursionError) else f"this JSON: {error}"
    at = encoding.bom + len(text[: error.pos].encode(encoding.name))
    return f"byte {at:,} (line {error.lineno:,}, column {error.colno:,}) is not JSON: {error.msg}"


def _texts_of(items: Iterator[tuple], unit: str, json_key: str, report: FileReport) -> Iterator[str]:
    """Yield the text of each JSON value: a string, or an object's string (or list of strings) under the key."""
    keys: Counter = Counter()
    problems, count = [], 0
    for number, item in items:
        text = item.get(json_key) if isinstance(item, dict) else item
        if isinstance(item, dict) and isinstance(text, list) and text and all(isinstance(row, str) for row in text):
            text = "\n".join(text)
        if isinstance(text, str):
            yield text
            continue
        count += 1
        report.drop("unreadable", 0)
        if isinstance(item, dict):
            keys.update(item.keys())
        if len(problems) < FIRST_FEW:
            why = f"no string under '{json_key}'" if isinstance(item, dict) else f"a {_kind(item)}, not a text"
            problems.append(f"{unit} {number:,}: {f'not JSON, {item}' if isinstance(item, Exception) else why}")
    if count:
        more = f", and {count - FIRST_FEW:,} more" if count > FIRST_FEW else ""
        report.notes.append("; ".join(problems) + more)
    if keys:
        report.notes.append(f"keys there: {', '.join(sorted(map(str, keys))[:8])} (choose one with json_key)")
