"""Any raw text -> clean documents in shards; a train/validation split; what was kept, dropped and why.

Text comes from the built-in corpus, a file, or a folder of .txt, .json and .jsonl. Each file is read once to find its
encoding and once, line by line, for its documents, so memory is bounded by a shard and not by the corpus.
Knows nothing of words and tokens. A document is only a text and the name of its source.
"""

import codecs
import hashlib
import html
import json
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.entities import html5
from pathlib import Path

from helpers import parallel, paths, sample_corpus

EXTENSIONS = (".txt", ".json", ".jsonl")
MODES = ("auto", "block", "line", "file")
SHARD_DOCUMENTS, SHARD_BYTES = 50_000, 64 * 2**20
TASK_BYTES = 8 * 2**20  # small files travel to a worker together
BLOCK_BYTES = 2**20  # read from disk at a time
HOLD = 1_000_000  # characters of one document held at a time; a longer one is cut anyway
FIRST_FEW = 3  # of many bad lines, so many are described


class BadFile(ValueError):
    """A file that cannot be used; the message names the byte and the reason."""


class NoDocuments(ValueError):
    """Nothing usable was found; the message says what was looked for and where."""


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


@dataclass
class Report:
    """What became of a whole corpus; also written as corpus/report.json."""

    source: str
    files: list[FileReport]
    documents: int = 0
    characters: int = 0
    val_documents: int = 0
    val_characters: int = 0
    floor_bits_per_char: float | None = None
    dropped: Counter = field(default_factory=Counter)
    lost: Counter = field(default_factory=Counter)
    rules: Counter = field(default_factory=Counter)
    left_out: Counter = field(default_factory=Counter)  # extension -> files of a kind this room cannot read
    outputs: list[Path] = field(default_factory=list)  # the files written

    def result(self) -> dict:
        """Return the figures that go into the manifest."""
        result = {name: getattr(self, name) for name in ("source", "documents", "characters")}
        result |= {"val_documents": self.val_documents, "val_characters": self.val_characters}
        result |= {"dropped": sum(self.dropped.values()), "dropped_characters": sum(self.lost.values())}
        result |= {"files": len(self.files), "bad_files": sum(bool(file.bad) for file in self.files)}
        if self.floor_bits_per_char is not None:
            result["floor_bits_per_char"] = self.floor_bits_per_char
        return result

    def rows(self) -> list[tuple]:
        """Return a row a file: name, encoding, documents, characters, dropped, what to know about it."""
        return [
            (
                file.source,
                file.encoding,
                file.documents,
                file.characters,
                ", ".join(f"{n} {reason}" for reason, n in sorted(file.dropped.items())),
                "; ".join([*(["NOT USED: " + file.bad] if file.bad else []), *file.notes]),
            )
            for file in self.files
        ]

    def warnings(self) -> list[str]:
        """Return a line for each file that could not be used, or whose text a person should look at."""
        return [f"{file.source}: {line}" for file in self.files for line in [*filter(None, [file.bad]), *file.notes]]


# ---------------------------------------------------------------- cleaning

_JOINED = "\u0600-\u1fff\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"  # scripts and emoji where a joiner has a meaning
_CHINESE = "\u2018-\u201d\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'|[^\s<>\"']+))*"
_BLOCK = (
    "p|br|hr|div|table|thead|tbody|tfoot|tr|td|th|ul|ol|li|dl|dt|dd|h[1-6]|blockquote|pre|section|article|header|footer"
    "|nav|aside|figure|figcaption|form|details|summary|html|body|center"
)
_INLINE = "a|b|i|u|em|strong|span|font|img|sub|sup|small|big|code|del|ins|meta|iframe|svg|tt|strike"
_TAG = rf"(?:</(?:{{0}})\s*>|<(?:{{0}}){_ATTRIBUTES}\s*/?>)"


def _entity(match: re.Match) -> str:
    name = match[0][1:]
    return html.unescape(match[0]) if name[0] == "#" or name in html5 else match[0]


def _tag(match: re.Match) -> str:
    """Drop a tag; but a bare `<b>` with no `</b>` in the text may be mathematics: a<b>c."""
    letter = re.fullmatch(r"<([a-z])>\s*", match[0], re.I)
    if letter and not re.search(rf"</{letter[1]}\s*>", match.string, re.I):
        return match[0]
    # a paragraph's tags stand for one line end, and for none where there is one already
    return "\n" if match.re is _BLOCK_TAGS and not match.string.endswith("\n", 0, match.start()) else ""


_BLOCK_TAGS = re.compile(rf"{_TAG.format(_BLOCK)}(?:\s*{_TAG.format(_BLOCK)})*\s*", re.I)

# name, what is looked for, what stands there afterwards. Run in this order, again until nothing changes.
# A pattern starts with the characters it looks for and looks behind afterwards: `re` then skips the rest of the text
RULES: tuple[tuple[str, re.Pattern, str | Callable], ...] = (
    ("line ends", re.compile("[\r\v\f\x85\u2028\u2029](?:(?<=\r)\n)?"), "\n"),
    ("terminal colours", re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    ("control characters", re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufff9-\ufffb\ufffe\uffff]"), ""),
    ("zero-width", re.compile("[\xad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f]"), ""),
    ("joiners", re.compile(f"[\u200c\u200d](?<![{_JOINED}].)"), ""),
    ("BOM in the text", re.compile("\ufeff"), ""),
    ("U+FFFD", re.compile("\ufffd"), ""),
    ("private-use characters", re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]"), ""),
    ("HTML comments and scripts", re.compile(r"<!--(?:(?!<!--|-->).)*-->", re.S), ""),
    ("HTML comments and scripts", re.compile(r"<(script|style)\b[^<>]*>(?:(?!</?\1).)*</\1\s*>", re.S | re.I), ""),
    ("HTML tags", _BLOCK_TAGS, _tag),
    ("HTML tags", re.compile(_TAG.format(_INLINE), re.I), _tag),
    ("HTML entities", re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"), _entity),
    ("unusual spaces", re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f]"), " "),
    ("indentation", re.compile(f"^(?:[ \t]*\u3000[ \t\u3000]*|[ \t]+(?=[{_CHINESE}]))", re.M), ""),
    ("trailing spaces", re.compile("[ \t\u3000](?<![ \t\u3000]{2})[ \t\u3000]*$", re.M), ""),
    ("repeated spaces", re.compile("([ \t\u3000])(?<=[^ \t\u3000\n].)[ \t\u3000]+(?=\\S)"), r"\1"),
    ("blank lines", re.compile("\n{3,}"), "\n\n"),
)

_SPACING = RULES[-4:]
# every character that one of the other rules starts with: most texts hold none, and are spared those rules
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f&<\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\ue000-\uf8ff\ufeff\ufff9-\uffff\U000f0000-\U0010ffff]"
)


def clean(text: str, counts: Counter | None = None) -> str:
    """Return the text without dirt; what each rule changed is added to `counts` (rule -> places).

    Conservative: what might be meant stays (`a < b`, `A & B`, `<think>`, emoji). Cleaning twice changes nothing more,
    and decent text comes back as it was. A document's blank first and last lines go too.
    """
    counts = Counter() if counts is None else counts
    while True:  # one rule may uncover work for another: &amp;lt;p&gt; is a tag inside an entity inside an entity
        before = text
        for name, pattern, new in RULES if _SUSPECT.search(text) else _SPACING:
            if callable(new):  # it may leave a match as it is
                changed = [match[0] for match in pattern.finditer(text) if new(match) != match[0]]
                places = sum(max(1, match.count("<")) for match in changed)  # one match may be several tags
                text = pattern.sub(new, text) if places else text
            else:
                text, places = pattern.subn(new, text)
            if places:
                counts[name] += places
        if not unicodedata.is_normalized("NFC", text):
            text, places = _compose(text)
            counts["NFC"] += places
        text = text.strip("\n")
        if text == before:
            return text


def _compose(text: str) -> tuple[str, int]:
    """Return the text in Unicode's composed form NFC, and how many characters that touched (at least 1)."""
    composed = unicodedata.normalize("NFC", text)
    single = sum(not unicodedata.is_normalized("NFC", character) for character in set(text))
    return composed, max(1, single, len(text) - len(composed))


_SENTENCE_END = re.compile("[。！？!?；;…][”’」』）)]*|[.](?=\\s)")


def cut(text: str, max_length: int) -> list[str]:
    """Cut a long text into parts of at most `max_length` characters: at line ends, else sentence ends, else anywhere.

    Nothing is lost: the parts joined are the text.
    """
    parts, start = [], 0
    while (rest := len(text) - start) > max_length:
        aim = max_length if rest >= 2 * max_length else (rest + 1) // 2  # halves, not a whole and a crumb
        window = text[start + aim // 2 : start + aim]
        at = window.rfind("\n") + 1
        if not at:
            ends = [match.end() for match in _SENTENCE_END.finditer(window)]
            at = ends[-1] if ends else len(window)
        parts.append(text[start : start + aim // 2 + at])
        start += aim // 2 + at
    return [*parts, text[start:]]


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


# ---------------------------------------------------------------- map: files -> cleaned parts


@dataclass(frozen=True)
class _Task:
    files: tuple[tuple[Path, str], ...]  # where it is, what it is called in the corpus
    part: Path
    mode: str
    json_key: str
    min_length: int
    max_length: int


def digest(text: str) -> str:
    """Return a document's identity: 16 bytes of hash as hex digits. Raises UnicodeEncodeError for lone surrogates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _part_line(text: str, source: str, number: int) -> bytes:
    """Return a line of a part: hash, length, number of the file in its task, and the line of the shard to be."""
    shard_line = json.dumps({"text": text, "source": source}, ensure_ascii=False)
    return f"{digest(text)} {len(text)} {number} {shard_line}\n".encode()


def _read_task(task: _Task) -> list[FileReport]:
    """Read, clean and cut the documents of some files into one part; return a report a file."""
    reports = []
    with open(task.part, "wb") as part:
        for number, (path, source) in enumerate(task.files):
            report = FileReport(source)
            mark = part.tell()
            try:
                for text in _documents_of(path, task, report):
                    part.write(_part_line(text, source, number))
            except (BadFile, OSError) as error:
                if isinstance(error, OSError) and error.filename is None:
                    raise  # not a file that cannot be opened: the disk itself is full or failing
                part.seek(mark)
                part.truncate()  # no half of a file stays behind
                why = str(error) if isinstance(error, BadFile) else f"cannot be read: {error.strerror}"
                report = FileReport(source, report.encoding, bad=why)
            reports.append(report)
    return reports


def _documents_of(path: Path, task: _Task, report: FileReport) -> Iterator[str]:
    """Yield a file's clean documents, none longer than the task's `max_length`; the report says what became of all."""
    seen: Counter = Counter()
    long = parts = 0
    for text in read_file(path, task.mode, task.json_key, report):
        look(text, seen)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if not report.dropped["with half characters"]:
                report.notes.append(f"character {error.start:,} of a document is half a character (lone surrogate)")
            report.drop("with half characters", len(text))
            continue
        pieces = cut(clean(text, report.rules), task.max_length)
        if len(pieces) > 1:
            long, parts = long + 1, parts + len(pieces)
            pieces = [piece.strip() for piece in pieces]
        for piece in pieces:
            if len(piece) < max(1, task.min_length):
                report.drop("too short" if piece else "empty", len(piece))
            else:
                report.documents += 1
                report.characters += len(piece)
                yield piece
    if long:
        report.notes.append(f"{long:,} longer than {task.max_length:,} characters, cut into {parts:,} documents")
    if not report.documents and not report.dropped:
        report.notes.append("no text in it")
    report.notes += suspicions(seen, report.rules)


# ---------------------------------------------------------------- reduce: parts -> train and validation shards


def side(key: str, seed: int) -> float:
    """Return a document's place in [0, 1), from its hash and the seed alone: below `val_fraction` is validation."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {key}".encode(), digest_size=6).digest()) / 2**48


def _threshold(keys: Iterable[str], val_fraction: float, seed: int) -> float:
    """Return the place below which documents are validation: `val_fraction`, moved only if a side would be empty."""
    places = [side(key, seed) for key in keys]
    low, high = min(places), max(places)
    if low == high:
        raise NoDocuments(
            "only 1 document was found, and training and validation need one each. Choose how a .txt is cut into "
            "documents: document='line' or 'block', or a smaller max_length"
        )
    return min(max(val_fraction, low + 2**-48), high)


class _Shards:
    """Numbered files of one split, a new one when the last is full."""

    def __init__(self, folder: Path, split: str):
        self.folder, self.split, self.outputs = folder, split, []
        self.documents = self.characters = 0
        self.file = None

    def write(self, line: bytes, characters: int) -> None:
        if self.file is None or self.documents % SHARD_DOCUMENTS == 0 or self.file.tell() > SHARD_BYTES:
            self.close()
            self.outputs.append(self.folder / f"{self.split}-{len(self.outputs):05d}.jsonl")
            self.file = open(self.outputs[-1], "wb")  # noqa: SIM115 (closed by close)
        self.file.write(line)
        self.documents += 1
        self.characters += characters

    def close(self) -> None:
        if self.file:
            self.file.close()


def _part_lines(part: Path) -> Iterator[tuple[str, int, int, bytes]]:
    with open(part, "rb") as file:
        for line in file:
            key, characters, number, rest = line.split(b" ", 3)
            yield key.decode(), int(characters), int(number), rest


def _reduce(parts: list[Path], reports: list[list[FileReport]], folder: Path, report: Report, **split) -> set[str]:
    """Drop duplicates, split, write the shards; complete the report. Returns the hashes of the validation documents."""
    max_documents, seed = split["max_documents"], split["seed"]
    wanted: set[str] = set()
    for key in (line[0] for part in parts for line in _part_lines(part)):
        if max_documents and len(wanted) == max_documents:
            break
        wanted.add(key)
    if not wanted:
        raise NoDocuments(_nothing_found(report))
    below = _threshold(wanted, split["val_fraction"], seed)
    shards = {name: _Shards(folder, name) for name in ("train", "val")}
    written: set[str] = set()
    validation: set[str] = set()
    for part, files in zip(parts, reports, strict=True):
        for key, characters, number, line in _part_lines(part):
            if key in wanted and key not in written:
                name = "val" if side(key, seed) < below else "train"
                shards[name].write(line, characters)
                written.add(key)
                if name == "val":
                    validation.add(key)
                continue
            file = files[number]
            file.drop("duplicate" if key in written else "over max_documents", characters)
            file.documents -= 1
            file.characters -= characters
    for shard in shards.values():
        shard.close()
        report.outputs += shard.outputs
    report.val_documents, report.val_characters = shards["val"].documents, shards["val"].characters
    report.documents = shards["train"].documents + report.val_documents
    report.characters = shards["train"].characters + report.val_characters
    for file in report.files:
        report.dropped += file.dropped
        report.lost += file.lost
        report.rules += file.rules
    return validation


def _nothing_found(report: Report) -> str:
    lines = [f"no usable document in {len(report.files):,} file(s) of '{report.source}':"]
    for file in report.files[:20]:
        dropped = ", ".join(f"{n} {reason}" for reason, n in file.dropped.items())
        lines.append(f"  {file.source}: {'; '.join(filter(None, [file.bad, dropped, *file.notes]))}")
    if len(report.files) > 20:
        lines.append(f"  and {len(report.files) - 20:,} files more")
    return "\n".join(lines)


# ---------------------------------------------------------------- the stage


def find_files(source: str) -> tuple[list[Path], Path, Counter]:
    """Return a corpus's files (sorted), the folder their names start from, and the files of other kinds by extension.

    A relative path starts at the repository root. Raises NoDocuments where there is nothing to read.
    """
    place = paths.repo_root() / Path(source).expanduser()
    kinds = ", ".join(EXTENSIONS)
    if place.is_file():
        if place.suffix.lower() not in EXTENSIONS:
            raise NoDocuments(f"{place} is not one of {kinds}: save it as one of these")
        return [place], place.parent, Counter()
    if not place.is_dir():
        raise NoDocuments(f"{place} does not exist: give 'sample', a file or a folder ({kinds})")
    found = [Path(folder) / name for folder, _, names in os.walk(place) for name in names]
    files = sorted((file for file in found if file.suffix.lower() in EXTENSIONS and file.is_file()), key=Path.as_posix)
    others = Counter(file.suffix.lower() or "(none)" for file in found if file.suffix.lower() not in EXTENSIONS)
    if not files:
        there = ", ".join(f"{n} {kind}" for kind, n in others.most_common(5)) or "no file at all"
        raise NoDocuments(f"no file of the kinds {kinds} in {place} or its folders; there: {there}")
    return files, place, others


def input_files(source: str) -> list[Path]:
    """Return the files a corpus is made from, for the manifest; the built-in corpus is made from the table in data/."""
    if source == "sample":
        return sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    return find_files(source)[0]


def _tasks(files: list[Path], base: Path, folder: Path, **settings) -> list[_Task]:
    """Group files for the workers, by size alone, so that the number of workers changes nothing."""
    groups, size = [[]], 0
    for file in files:
        if groups[-1] and size + file.stat().st_size > TASK_BYTES:
            groups.append([])
            size = 0
        # a name that is not UTF-8 on disk becomes readable text
        groups[-1].append((file, os.fsencode(file.relative_to(base).as_posix()).decode("utf-8", "replace")))
        size += file.stat().st_size
    return [_Task(tuple(group), folder / f"{i:05d}.part", **settings) for i, group in enumerate(groups)]


def build(
    run: str,
    source: str = "sample",
    *,
    document: str = "auto",
    json_key: str = "text",
    min_length: int = 2,
    max_length: int = 2000,
    max_documents: int = 0,
    val_fraction: float = 0.05,
    seed: int = 0,
    workers: int = 0,
) -> Report:
    """Write a run's corpus room (shards and report.json; not the manifest) and return the report.

    `source` is "sample" or a path; `document` says what one document of a .txt is; lengths are in characters; at most
    `max_documents` are used (0: all); `val_fraction` of them, chosen by hash and seed, are for validation. The bytes
    written do not depend on `workers`. Raises NoDocuments.
    """
    if document not in MODES:
        raise ValueError(f"document is '{document}': give one of {', '.join(MODES)}")
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}: give a part between 0 and 1, say 0.05")
    if max_length < max(1, min_length):
        raise ValueError(f"max_length {max_length} is below min_length {min_length}: no document can be both")
    folder = paths.room(run, "corpus")
    temporary = folder / "parts"
    shutil.rmtree(temporary, ignore_errors=True)
    split = {"max_documents": max_documents, "val_fraction": val_fraction, "seed": seed}
    settings = {"mode": document, "json_key": json_key, "min_length": min_length, "max_length": max_length}
    files, base, others = ([], Path(), Counter()) if source == "sample" else find_files(source)
    temporary.mkdir(parents=True)
    # the manifest goes first: a room without one is unfinished, whatever happens from here on
    for old in [folder / paths.MANIFEST, folder / "report.json", folder / "train.json", *folder.glob("*-[0-9]*.jsonl")]:
        old.unlink(missing_ok=True)
    try:
        if source == "sample":
            report = _build_sample(temporary, folder, split)
        else:
            tasks = _tasks(files, base, temporary, **settings)
            with parallel.executor(min(workers or parallel.cores(), len(tasks))) as pool:
                reports = parallel.map_shards(pool, _read_task, tasks, label="reading" if len(tasks) > 1 else "")
            report = Report(source, [file for group in reports for file in group], left_out=others)
            _reduce([task.part for task in tasks], reports, folder, report, **split)
    finally:
        shutil.rmtree(temporary)
    written = {**vars(report), "files": [vars(file) for file in report.files]}
    written["outputs"] = [file.name for file in report.outputs]
    report.outputs.append(folder / "report.json")
    paths.write_text(report.outputs[-1], json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    return report


def _build_sample(temporary: Path, folder: Path, split: dict) -> Report:
    """Write the built-in corpus, whose documents come clean, distinct and with their probability."""
    file = FileReport("sample", encoding="-", mode="grammar")
    chosen = (split["max_documents"],) if split["max_documents"] else ()
    bits, part = {}, temporary / "sample.part"
    with open(part, "wb") as lines_:
        for item in sample_corpus.documents(*chosen, seed=split["seed"]):
            if clean(item.text) != item.text:
                raise AssertionError(f"cleaning changes a document of the built-in corpus: {item.text!r}")
            lines_.write(_part_line(item.text, "sample", 0))
            bits[digest(item.text)] = item.bits
            file.documents += 1
            file.characters += len(item.text)
    report = Report("sample", [file])
    validation = _reduce([part], [[file]], folder, report, **split)
    report.floor_bits_per_char = round(sum(bits[key] for key in sorted(validation)) / report.val_characters, 6)
    return report


# ---------------------------------------------------------------- for the rooms that follow


def shard_paths(run: str, split: str) -> list[Path]:
    """Return the shards of a split, "train" or "val", in order; RoomError if the room is not there."""
    shards = paths.shards(run, "corpus", split, ".jsonl")
    if not shards:
        raise paths.RoomError(
            f"run '{run}' has no {split} shards: run notebook 01_corpus, or: python -m helpers.run corpus --run {run}"
        )
    return shards


def read_shards(run: str, split: str) -> Iterator[dict]:
    """Yield the documents of a split, {"text", "source"}, one at a time."""
    for shard in shard_paths(run, split):
        with open(shard, encoding="utf-8", newline="\n") as file:
            yield from map(json.loads, file)


def texts(run: str, split: str) -> Iterator[str]:
    """Yield the texts of a split, one at a time."""
    return (document["text"] for document in read_shards(run, split))


def write_json_list(run: str) -> Path:
    """Write the training documents as one JSON list of strings, corpus/train.json, and return its path."""
    path = paths.room(run, "corpus") / "train.json"
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for i, text in enumerate(texts(run, "train")):
            file.write((",\n" if i else "[\n") + json.dumps(text, ensure_ascii=False))
        file.write("\n]\n")
    return path
