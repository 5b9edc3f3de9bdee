"""Charset detection and decoding: which encoding (编码) a file has, how sure that is, which lines are in none.

Knows bytes and characters: where the bytes come from, and what a document is, is not decided here.
"""

import codecs
import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.wording import printable

BLOCK_BYTES = 2**20  # read at a time
SAMPLE_BYTES = 2**16  # looked at for a guess; the guess is then tried on every byte
LINE_BYTES = 2**26  # the longest line held whole
CERTAIN = 0.995  # confidence that need not be shown
_FEW, _SHARE = 3, 10  # lines that may be bad, and in a long text one in so many: else the encoding is another


class BadFile(ValueError):
    """A file that cannot be used; the message names the place and the reason."""

    def __init__(self, message: str):
        super().__init__(printable(message))


@dataclass(frozen=True)
class Encoding:
    """How to read a stream of bytes."""

    name: str  # the codec, as Python calls it
    bom: int = 0  # bytes of byte order mark to skip
    truncated: int = 0  # bytes of a last character that is not whole
    confidence: float = 1.0  # between 0 and 1
    other: str = ""  # the codec of the lines that are in another
    bad_lines: int = 0  # lines with bytes that are no text
    bad_characters: int = 0  # in these, a byte counted as one
    bad_places: tuple[str, ...] = ()  # the first of them
    hint: str = ""  # what else the bytes might be

    def __str__(self) -> str:
        if self.other:
            return f"{_known_as(self.name)} + {_known_as(self.other)}"
        sure = "" if self.confidence >= CERTAIN else f" ({self.confidence:.0%})"
        return f"{_known_as(self.name)} with BOM" if self.bom else f"{_known_as(self.name)}{sure}"

    def is_in_lines(self) -> bool:
        """Return whether the byte 10 is a line end, and nothing else, and no line needs those before it."""
        return self.name in ("utf-8", "gb18030", "cp950", "cp1252")

    def notes(self) -> list[str]:
        """Return in words what a reader of this file should know; usually nothing."""
        notes = [self.hint] if self.hint else []
        if self.other:
            notes.append(f"changes its encoding: each line was read as what it is, {self}")
        if self.bad_lines:
            where = ", ".join([*self.bad_places, *["…"] * (self.bad_lines > len(self.bad_places))])
            what = f"{self.bad_lines:,} line(s) with bytes that are not {self} are left out: {where}"
            notes.append(f"{what}; mend them in an editor, and save the file as UTF-8")
        if self.truncated:
            notes.append("the last character is cut in the middle: left out")
        return notes


def _known_as(name: str) -> str:
    return "big5" if name == "cp950" else name  # Big5 as Windows writes it


# ---- what a file is ----

# UTF-32 before UTF-16: its mark starts with the other's
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_BOMS = [("\ufeff".encode(name), name) for name in ("utf-8", *_WIDE)]
_EXPORT = "open it in its program, and save it as plain text (.txt) or CSV, in UTF-8"
_RENAME = "give its name that ending"
_KINDS = (  # first bytes, what they begin, what to do
    (rb"\{\\rtf", "RTF, a word processor's text", _EXPORT),
    (rb"%PDF-", "a PDF, .pdf", _RENAME),
    (rb"PK\x03\x04|PK\x05\x06", "a ZIP, as .docx, .xlsx and .epub are", f"{_RENAME}; if that is .xlsx, {_EXPORT}"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a file of an older office program, .doc or .xls", _EXPORT),
    (rb"\x1f\x8b\x08", "packed with gzip, .gz", _RENAME),
    (rb"\x28\xb5\x2f\xfd", "packed with Zstandard, .zst", _RENAME),
    (rb"BZh[1-9]1AY&SY|\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "packed: .bz2, .xz, .7z or .rar", "unpack it"),
    (rb"PAR1", "a .parquet", _RENAME),
    (rb"(?s:.{,99})\x1b\$[)*@AB]", "ISO-2022, of mail", "convert it: iconv -f ISO-2022-CN -t UTF-8 OLD > NEW"),
)
_CONTROL = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x0e\x0f\x1b"))
_PLAIN = re.compile("[\t\n\r -~\u2010-\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_FREQUENT = re.compile("[\n ，。、]")
# a third to a half of any Chinese text, old or new, simplified or traditional, is made of these (Song ci 33 %, 西游记
# 49 %); of the same bytes read as Big5 less than 1 %
EVERYDAY = re.compile(
    "[，。、：；？！“”「」《》（）的一是不了在人有我他這个個们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之"
    "年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日"
    "這們來爲為國說時會對於着著過發後裡裏種經麼學現當沒動還進樣開從實無见見曰云山水風风月花春此何与與者乃兮不知相問问答]"
)
_KANA_SIGNS = re.compile("[ぁ-ヶ]")
_HIGH = bytes(range(128, 256))
_THREE = re.compile(rb"[\xe0-\xef][\x80-\xbf]{2}")  # a character of UTF-8, Chinese above all
_SEVERAL = re.compile(rb"(?:[\xe3-\xe9][\x80-\xbf]{2}[\x00-\x7f]*){4}")  # not in 10 million characters of GBK or Big5
_BETWEEN = re.compile("[\u0250-\u07ff]")  # what two bytes of GBK give as UTF-8, by chance


def find_encoding(path: Path) -> Encoding:
    """Find a text's encoding by decoding all of it; memory stays at a block or two, where no line is bad.

    Tried in turn: a byte order mark, UTF-16 without one where that is evident, UTF-8, then GB18030 (which contains GBK
    and GB2312) or Big5, whichever gives the more everyday characters. A text that is UTF-8 by its lines stays UTF-8:
    others of its lines are read as a second encoding only where they show that by everyday characters. A line with
    bytes that fit neither is a bad one; a last character cut in the middle is allowed. Raises BadFile for what is no
    text, and where more than a few lines are bad.
    """
    # 1. the one that it says it has, or else seems to have
    with open(path, "rb") as stream:
        head = stream.read(SAMPLE_BYTES)
    if kind := next((kind for kind in _KINDS if re.match(kind[0], head)), None):
        raise BadFile(f"this is {kind[1]}, whatever its name says: {kind[2]}")
    marks = (Encoding(name, bom=len(mark)) for mark, name in _BOMS if head.startswith(mark))
    wide = (Encoding(name) for name in _WIDE if _evidently(head, name))
    first = next(marks, None) or next(wide, None)
    text = head.strip(b"\x00")  # what fills up a block of the disk
    if first is None and len(text) - len(text.translate(None, _CONTROL)) > max(4, len(head) // 50):
        at = next(i for i, byte in enumerate(head) if byte in _CONTROL)
        raise BadFile(f"byte {at:,} is 0x{head[at]:02x}, and many more like it follow: this is binary data, not text")
    first = first or Encoding("utf-8")
    found = _survey(path, first) if first.name != "utf-8" else _fitting(path, first) or _of_lines(path, first)
    if re.match(rb"\s*<(?:!doctype html|html)", head[found.bom :], re.IGNORECASE):
        return replace(found, hint="a whole web page, of which menus may be read as text: name it .html")
    return found


def _evidently(head: bytes, name: str) -> bool:
    """Return whether bytes are UTF-16: nearly all of it common characters, with line ends or punctuation among them.

    ASCII read as UTF-16 looks like rare Chinese, but it cannot hold a space, a line end or a Chinese comma. Tried on
    西游记, the Song ci and English: UTF-16 has 99.9 % and 14 % or more of these, other bytes 60 % or less and 0 %.
    """
    text = head[: len(head) // 4 * 4].decode(name, "replace")
    return len(_PLAIN.findall(text)) > 0.95 * len(text) and len(_FREQUENT.findall(text)) > 0.005 * len(text)


def _of_lines(path: Path, first: Encoding) -> Encoding:
    """Return the encoding of a text that is not all UTF-8: UTF-8 by most of its lines, another, or both by turns."""
    sample, utf8, others = _sample(path)
    guess = _guess(sample)
    broken = _share_of_utf8(sample) > 0.5
    with open(path, "rb") as stream:
        several = any(_SEVERAL.search(block) for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
    if not (first.bom or broken or several or utf8 > others):
        return _survey(path, guess)
    rows = [row for row in sample.splitlines(keepends=True) if _share_of_utf8(row) <= 0.5 and fits(row, guess.name)]
    text = decode_strictly(b"".join(rows), guess.name, "ignore")
    everyday = len(EVERYDAY.findall(text))
    strong = everyday >= 3 and everyday > 0.15 * sum(character > "\x7f" for character in text)
    return _survey(path, replace(first, other=guess.name) if strong or others > utf8 and not broken else first)


def _sample(path: Path) -> tuple[bytes, int, int]:
    """Return lines, or the starts of long ones, that are not UTF-8, at most SAMPLE_BYTES; how many are, and are not."""
    taken = bytearray()
    counts = [0, 0]
    with open(path, "rb") as stream:
        while len(taken) < SAMPLE_BYTES and (line := stream.readline(SAMPLE_BYTES)):
            if not line.isascii():
                other = not fits(line, "utf-8")
                counts[other] += 1
                taken += line if other else b""
    return bytes(taken[:SAMPLE_BYTES]), counts[0], counts[1]


def _share_of_utf8(data: bytes) -> float:
    """Return how much of what is not ASCII is made of whole Chinese characters of UTF-8."""
    return 3 * len(_THREE.findall(data)) / max(1, len(data) - len(data.translate(None, _HIGH)))


def fits(data: bytes, name: str) -> bool:
    """Return whether bytes are a text in this encoding; its last character may be cut, if no line end follows it."""
    try:
        _decoder(name).decode(data, data.endswith(b"\n"))
    except UnicodeDecodeError:
        return False
    return True


def _guess(sample: bytes) -> Encoding:
    """Return the likeliest encoding of lines that are not UTF-8, with its confidence.

    The right one gives everyday characters, a wrong one gives rare ones: each everyday character more makes it about
    ten times as likely.
    """
    runs = re.findall(rb"[\x80-\xff]+", sample)
    if sum(map(len, runs)) < len(sample) / 10 and sum(len(run) == 1 for run in runs) > 0.7 * len(runs):
        return Encoding("cp1252", confidence=0.8)  # don’t, café
    rows = sample.splitlines(keepends=True)
    fitting = {name: b"".join(row for row in rows if fits(row, name)) for name in ("gb18030", "cp950")}
    hits = {name: len(EVERYDAY.findall(data.decode(name, "replace"))) for name, data in fitting.items()}
    name, second = sorted(hits, key=lambda name: (hits[name], len(fitting[name])), reverse=True)
    odds = 10.0 ** max(-9, min(9, hits[name] - (hits[second] if fitting[second] else -3)))
    guess = Encoding(name, confidence=odds / (1 + odds))
    # Chinese has 33 % or more of everyday characters, Japanese and Korean bytes read as GB18030 none, or kana (tried)
    few, kana = 0.01 * sum(map(len, runs)), len(_KANA_SIGNS.findall(fitting[name].decode(name, "ignore")))
    if hits[name] >= few and kana <= 10 * few:
        return guess
    doubt = f"few everyday characters in it: is it {_known_as(name)}, or Japanese or Korean? Then save it as UTF-8"
    return replace(guess, confidence=0.5, hint=doubt)


# ---- decoding, strict but for what only other programs write ----

_EXCEPTIONS, _MARKING = "chinese-gpt-exceptions", "chinese-gpt-marking"
_ALL_MARKS = "".join(map(chr, range(0xDC80, 0xDD00)))  # half characters that stand for bytes which are no text
_MARK = re.compile(f"[{_ALL_MARKS}]+")
_LINE = re.compile("[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


def _exception(error: UnicodeError) -> tuple[str, int]:
    """Return the character that bytes stand for which only other programs write, and the byte after them."""
    if isinstance(error, UnicodeDecodeError):
        data, at = error.object, error.start
        if error.encoding == "gb18030" and data[at] == 0x80:  # GBK as Windows writes it
            return "€", at + 1
        if error.encoding == "cp950":  # the characters of Hong Kong
            with contextlib.suppress(UnicodeDecodeError):
                return data[at : at + 2].decode("big5hkscs"), at + 2
    raise error


def _marking(error: UnicodeError) -> tuple[str, int]:
    try:
        return _exception(error)
    except UnicodeDecodeError as fault:
        return "".join(chr(0xDC80 | byte) for byte in fault.object[fault.start : fault.end]), fault.end


codecs.register_error(_EXCEPTIONS, _exception)
codecs.register_error(_MARKING, _marking)


# kana and signs on which browsers, Hong Kong and Taiwan agree, where Python's table has a meaning of its own
_KANA: dict[int, int | str] = {**str.maketrans("にはぱびぺほ", "廴无癶隶〃仝")}
for _code in range(0xC6A1, 0xC8FF):
    _ours, _theirs = (_code.to_bytes(2).decode(name, "ignore") for name in ("cp950", "big5hkscs"))
    if len(_ours) == 1 and _theirs:
        _KANA[ord(_ours)] = _theirs


class _Big5Decoder(codecs.getincrementaldecoder("cp950")):  # type: ignore[misc]
    """Python's own, with the kana of browsers."""

    def decode(self, data: bytes, final: bool = False) -> str:
        """Decode the next bytes."""
        return super().decode(data, final).translate(_KANA)


def _decoder(name: str, errors: str = _EXCEPTIONS) -> codecs.IncrementalDecoder:
    return (_Big5Decoder if name == "cp950" else codecs.getincrementaldecoder(name))(errors)


def decode_strictly(data: bytes, name: str, errors: str = _EXCEPTIONS) -> str:
    """Decode a whole text strictly, as files are decoded here. Raises UnicodeDecodeError."""
    text = data.decode(name, errors)
    return text.translate(_KANA) if name == "cp950" else text


def _fitting(path: Path, encoding: Encoding) -> Encoding | None:
    """Return the encoding completed, where all of the text is in it."""
    cut: list[int] = []
    try:
        last = deque(_pieces(path, encoding, cut=cut, errors=_EXCEPTIONS), maxlen=1).pop()
    except UnicodeDecodeError:
        return None
    return None if _MARK.search(last) else replace(encoding, truncated=cut[0])


def _survey(path: Path, encoding: Encoding) -> Encoding:
    """Return the encoding completed, with the lines that are not in it. Raises BadFile where these are many."""
    if not encoding.other and (found := _fitting(path, encoding)):
        return found
    cut: list[int] = []
    places: list[str] = []
    lines = characters = faults = 0
    for lines, row in enumerate(_rows(_pieces(path, encoding, cut=cut)), 1):
        if marks := _MARK.findall(row):
            places.append(f"line {lines:,} (character {row.index(marks[0]) + 1:,}, hex {ord(marks[0][0]) & 0xFF:02x})")
            characters, faults = characters + len(row.rstrip("\r\n")), faults + len(marks)
    # of UTF-16 a lost byte makes one long line
    if (len(places) if encoding.is_in_lines() else faults) > max(_FEW, lines // _SHARE):
        what = f"{len(places):,} of {lines:,} lines hold bytes that are not {encoding}, the first {places[0]}"
        raise BadFile(f"{what}. {encoding.hint or _ADVICE}")
    found = replace(encoding, truncated=cut[0], bad_lines=len(places), bad_characters=characters)
    return replace(found, bad_places=tuple(places[:_FEW]))


_ADVICE = "It is damaged: save it as UTF-8 in an editor that displays all of the text correctly"


def _codec_of(line: bytes, encoding: Encoding) -> str:
    """Return in which of two encodings a line is; by default UTF-8, whether it fits or not."""
    if not encoding.other or line.isascii() or not fits(line, encoding.other):
        return encoding.name
    if fits(line, "utf-8"):
        chance = _BETWEEN.search(line.decode("utf-8", "ignore")) and not _THREE.search(line)
        return encoding.other if chance else encoding.name
    return encoding.name if _share_of_utf8(line) > 0.5 else encoding.other


def _pieces(
    path: Path, encoding: Encoding, start: int = 0, stop: int = 0, cut: list[int] | None = None, errors: str = _MARKING
) -> Iterator[str]:
    """Yield a text in pieces, bytes that are no text as marks; add to `cut` the bytes of a last half character."""
    decoders = {name: _decoder(name, errors) for name in (encoding.name, encoding.other) if name}
    name = encoding.name
    with open(path, "rb") as stream:
        position = stream.seek(start or encoding.bom)
        while block := stream.read(min(BLOCK_BYTES, (stop or 2**63) - position)):
            if encoding.other:
                block += stream.readline(LINE_BYTES) if not block.endswith(b"\n") else b""
                texts = []
                for line in block.splitlines(keepends=True):
                    name = _codec_of(line, encoding)
                    whole = line[-1] in b"\r\n"
                    texts.append(decode_strictly(line, name, _MARKING) if whole else decoders[name].decode(line))
                text = "".join(texts)
            else:
                text = decoders[name].decode(block)
            position += len(block)
            yield text
    text = decode_strictly(decoders[name].getstate()[0], name, _MARKING)  # what waits for more
    if cut is not None:
        cut.append(len(text) - len(text.rstrip(_ALL_MARKS)))
    yield text.rstrip(_ALL_MARKS)


def _rows(pieces: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends."""
    rest = ""
    for piece in pieces:
        *rows, rest = _LINE.findall(rest + piece) or [""]
        yield from rows
    if rest:
        yield rest


def read_blocks(path: Path, encoding: Encoding, start: int = 0, stop: int = 0, marked: bool = False) -> Iterator[str]:
    """Yield a text in pieces as they come from the disk, from byte `start` to before `stop` (0: the end).

    Both must be ends of lines. A truncated last character is left out, and so are bad lines; where they are `marked`
    they stay, with half characters (U+DC80 to U+DCFF) for their bad bytes, so that a record is seen to be bad.
    """
    pieces = _pieces(path, encoding, start, stop)
    return pieces if marked or not encoding.bad_lines else (row for row in _rows(pieces) if not _MARK.search(row))


def line_end(path: Path, at: int, blank: bool = False) -> int:
    """Return the end of the line that byte `at` - 1 is in, or with `blank` of the first blank line after that one.

    It is 0 if there is none, or only after a line of more than LINE_BYTES. Not for UTF-16 and UTF-32.
    """
    with open(path, "rb") as stream:
        stream.seek(at - 1)
        line = stream.readline(LINE_BYTES)
        while blank and line.endswith(b"\n"):
            line = stream.readline(LINE_BYTES)
            blank = not line.isspace()
        return stream.tell() if line.endswith(b"\n") else 0
