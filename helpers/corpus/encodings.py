"""Charset detection and strict decoding: which encoding (编码) a file has, how sure that is, where it changes.

Knows bytes and characters: where the bytes come from, and what a document is, is not decided here.
"""

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import charset_normalizer

BLOCK_BYTES = 2**20  # read at a time
SAMPLE_BYTES = 2**16  # looked at for a guess; the guess is then tried on every byte
LINE_BYTES = 2**26  # the longest line held whole, where a file is cut at its lines
CERTAIN = 0.995  # confidence that need not be shown


class BadFile(ValueError):
    """A file that cannot be used; the message names the byte and the reason."""


@dataclass(frozen=True)
class Encoding:
    """How to read a stream of bytes."""

    name: str  # the codec, as Python calls it
    bom: int = 0  # bytes of byte order mark to skip
    size: int = 0  # bytes of all of it
    truncated: int = 0  # bytes of a last character that is not whole
    confidence: float = 1.0  # between 0 and 1
    sections: tuple[tuple[int, int, str], ...] = ()  # of a file that changes its encoding: (first byte, line, codec)
    hint: str = ""  # what else the bytes might be

    def __str__(self) -> str:
        if self.sections:
            return " + ".join(dict.fromkeys(_shown(name) for _, _, name in self.sections))
        sure = "" if self.confidence >= CERTAIN else f" ({self.confidence:.0%})"
        return f"{_shown(self.name)} with BOM" if self.bom else f"{_shown(self.name)}{sure}"

    def notes(self) -> list[str]:
        """Return in words what a reader of this file should know; usually nothing."""
        notes = [self.hint] if self.hint else []
        if self.sections:
            changes = [f"{_shown(name)} from byte {at:,} (line {line:,})" for at, line, name in self.sections[1:4]]
            more = f" and {len(self.sections) - 4:,} times more" if len(self.sections) > 4 else ""
            notes.append(
                f"changes its encoding: {_shown(self.sections[0][2])}, {', '.join(changes)}{more}; all was read"
            )
        if self.truncated:
            notes.append(f"the last character, at byte {self.size - self.truncated:,}, is cut in the middle: left out")
        return notes


def _shown(name: str) -> str:
    return "big5" if name == "cp950" else name  # Big5 as Windows writes it


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
# a third to a half of any Chinese text, old or new, simplified or traditional, is made of these (Song ci 33 %, 西游记
# 49 %); of the same bytes read as Big5 less than 1 %
EVERYDAY = re.compile(
    "[，。、：；？！“”「」《》（）的一是不了在人有我他这個个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之"
    "年过发后作里用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日"
    "這們來爲為國說時會對於着著過發後裡裏種經麼學現當沒動還進樣開從實無见見曰云山水风風月花春此何与與者乃兮不知相問问答]"
)
_ABROAD = ("cp932", "euc_jp", "cp949", "cp1252")  # Japanese, Korean, Western
_SIGNS = ("，".encode(), "。".encode(), "的".encode())  # very rare as bytes of GB18030 or Big5


def find_encoding(path: Path) -> Encoding:
    """Find a text's encoding by decoding all of it strictly; memory stays at a block or two.

    Tried in turn: a byte order mark, UTF-16 without one where that is evident, UTF-8, then GB18030 (which contains GBK
    and GB2312) or Big5, whichever gives the more everyday characters. Where no single one fits, the text is cut at
    line ends into sections that fit one each; a line of it is then held whole, up to LINE_BYTES. A last character cut
    in the middle is allowed. Raises BadFile for bytes that fit none.
    """
    # 1. the one that it says it has, or else seems to have
    with open(path, "rb") as stream:
        head = stream.read(SAMPLE_BYTES)
    marks = (Encoding(name, bom=len(mark)) for mark, name in _BOMS if head.startswith(mark))
    wide = (Encoding(name) for name in ("utf-16-le", "utf-16-be") if _evidently(head, name))
    first = next(marks, None) or next(wide, None)
    if first is None and len(head) - len(head.translate(None, _CONTROL)) > max(4, len(head) // 50):
        at = next(i for i, byte in enumerate(head) if byte in _CONTROL)
        raise BadFile(f"byte {at:,} is 0x{head[at]:02x}, and many more like it follow: this is binary data, not text")
    first = first or Encoding("utf-8")
    fault, found = _decode(path, first)
    if fault is None:
        return found
    if first.name != "utf-8":
        raise BadFile(f"{_where(path, fault, first.name)}. {_ADVICE}")
    # 2. another, or both by turns
    sample = _sample(path)
    for guess in [] if first.bom else _guesses(sample):
        fault, found = _decode(path, guess)
        if fault is None and not _has_utf8(path):
            return found
    return _several(path, first, _second(sample))


# ---- strict decoding, with two exceptions ----

_PAIR = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]")
_HALF_PAIR = re.compile(rb"\xed[\xa0-\xaf](?:[\x80-\xbf](?:\xed[\xb0-\xbf]?)?)?\Z")
_EXCEPTIONS = "chinese-gpt-exceptions"


def _exception(error: UnicodeError) -> tuple[str, int]:
    """Return the character that bytes stand for which only other programs write, and the byte after them."""
    if isinstance(error, UnicodeDecodeError):
        if error.encoding == "gb18030" and error.object[error.start] == 0x80:  # GBK as Windows writes it
            return "€", error.start + 1
        # CESU-8, as Java and Oracle write emoji: the two halves of UTF-16, each as if it were a character of UTF-8
        if error.encoding == "utf-8" and (pair := _PAIR.match(error.object, error.start)):
            halves = pair[0].decode("utf-8", "surrogatepass")
            return halves.encode("utf-16", "surrogatepass").decode("utf-16"), pair.end()
    raise error


codecs.register_error(_EXCEPTIONS, _exception)


class _Utf8Decoder(codecs.BufferedIncrementalDecoder):
    """Python's own, but where a block ends inside a pair of CESU-8, its start waits for the rest."""

    def _buffer_decode(self, data, errors: str, final: bool) -> tuple[str, int]:
        half = None if final else _HALF_PAIR.search(data, max(0, len(data) - 5))
        return codecs.utf_8_decode(data[: half.start()] if half else data, errors, final)


def decode_strictly(data: bytes, name: str) -> str:
    """Decode a whole text strictly, as files are decoded here. Raises UnicodeDecodeError."""
    return data.decode(name, _EXCEPTIONS)


def _decoder(name: str) -> codecs.IncrementalDecoder:
    return (_Utf8Decoder if name == "utf-8" else codecs.getincrementaldecoder(name))(_EXCEPTIONS)


def _finish(decoder: codecs.IncrementalDecoder, name: str) -> tuple[str, int]:
    """Return the characters that a decoder still holds at the end, and how many bytes of one that is not whole."""
    waiting = decoder.getstate()[0]
    try:
        return decode_strictly(waiting, name), 0
    except UnicodeDecodeError as error:
        return decode_strictly(waiting[: error.start], name), len(waiting) - error.start


def _decode(path: Path, encoding: Encoding) -> tuple[int | None, Encoding]:
    """Decode all of it strictly; return the first byte that does not fit (or None), and the encoding completed."""
    decoder = _decoder(encoding.name)
    with open(path, "rb") as stream:
        at = len(stream.read(encoding.bom))
        while block := stream.read(BLOCK_BYTES):
            waiting = len(decoder.getstate()[0])  # the start of a character whose rest is in this block
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                return at + error.start - waiting, encoding
            at += len(block)
    return None, replace(encoding, size=at, truncated=_finish(decoder, encoding.name)[1])


def _where(path: Path, at: int, name: str) -> str:
    line, left = 1, at
    with open(path, "rb") as stream:
        while left and (block := stream.read(min(BLOCK_BYTES, left))):
            line += block.count(b"\n")
            left -= len(block)
        found = stream.read(2).hex(" ")
    return f"byte {at:,} (line {line:,}, hex {found}) is not {name}"


def _evidently(head: bytes, name: str) -> bool:
    """Return whether bytes are UTF-16: nearly all of it common characters, with line ends or punctuation among them.

    ASCII read as UTF-16 looks like rare Chinese, but it cannot hold a space, a line end or a Chinese comma. Tried on
    西游记, the Song ci and English: UTF-16 has 99.9 % and 14 % or more of these, other bytes 60 % or less and 0 %.
    """
    text = head[: len(head) // 2 * 2].decode(name, "replace")
    return len(_PLAIN.findall(text)) > 0.95 * len(text) and len(_FREQUENT.findall(text)) > 0.005 * len(text)


def _sample(path: Path) -> bytes:
    """Return the lines, or the starts of long ones, that are not UTF-8: at most SAMPLE_BYTES of them."""
    taken = bytearray()
    with open(path, "rb") as stream:
        while len(taken) < SAMPLE_BYTES and (line := stream.readline(SAMPLE_BYTES)):
            if not fits(line, "utf-8"):
                taken += line
    return bytes(taken[:SAMPLE_BYTES])


def fits(data: bytes, name: str) -> bool:
    """Return whether bytes are a text in this encoding; its last character may be cut, if no line end follows it."""
    try:
        _decoder(name).decode(data, data.endswith(b"\n"))
    except UnicodeDecodeError:
        return False
    return True


def _everyday(data: bytes, name: str) -> int:
    return len(EVERYDAY.findall(data.decode(name, "replace")))


def _guesses(sample: bytes) -> list[Encoding]:
    """Return the two-byte encodings that fit a sample, the likeliest first, with confidence.

    The right one gives everyday characters, a wrong one gives rare ones: each everyday character more makes it about
    ten times as likely.
    """
    runs = re.findall(rb"[\x80-\xff]+", sample)
    if sum(map(len, runs)) < len(sample) / 10 and sum(len(run) == 1 for run in runs) > 0.7 * len(runs):
        return [Encoding("cp1252", confidence=0.8)] if fits(sample, "cp1252") else []  # don’t, café
    names = [name for name in ("gb18030", "cp950") if fits(sample, name)]
    if "cp950" not in names and fits(sample, "big5hkscs"):
        names.append("big5hkscs")
    hits = {name: _everyday(sample, name) for name in names}
    names.sort(key=hits.__getitem__, reverse=True)
    if names and _everyday(sample, "utf-8") > hits[names[0]]:
        return []  # UTF-8 with a fault in it
    guesses = []
    for name in names:
        ahead = hits[name] - max((hits[other] for other in names if other != name), default=-3)
        odds = 10.0 ** max(-9, min(9, ahead))
        guesses.append(Encoding(name, confidence=odds / (1 + odds)))
    # Chinese has 33 % or more of everyday characters, Japanese and Korean bytes read as GB18030 have none (tried)
    if guesses and hits[names[0]] < 0.02 * sum(map(len, runs)) / 2:
        guesses[0] = replace(guesses[0], **_doubt(sample, names[0]))
    return guesses


def _doubt(sample: bytes, name: str) -> dict:
    """Ask charset-normalizer about bytes that fit an encoding but give no everyday text."""
    best = charset_normalizer.from_bytes(sample, cp_isolation=[name, *_ABROAD]).best()
    if best is None or best.encoding == name:
        return {"confidence": 0.6, "hint": f"few everyday characters in it: is it really {_shown(name)}?"}
    return {"confidence": 0.3, "hint": f"perhaps it is {best.encoding}, not {_shown(name)}: save it as UTF-8"}


def _has_utf8(path: Path) -> bool:
    """Return whether some line is surely UTF-8, in a text that also fits GB18030 or Big5."""
    with open(path, "rb") as stream:
        # up to a line end; of a line that is longer than a block, the pieces are looked at
        while block := stream.read(BLOCK_BYTES) + stream.readline(BLOCK_BYTES):
            if any(sign in block for sign in _SIGNS) and any(map(_surely_utf8, io.BytesIO(block))):
                return True
    return False


def _surely_utf8(line: bytes) -> bool:
    return len(line) - len(line.translate(None, bytes(range(128, 256)))) > 8 and fits(line, "utf-8")


def _several(path: Path, first: Encoding, other: str) -> Encoding:
    """Return the sections of a text in UTF-8 and one other encoding, cut at line ends, or raise BadFile."""
    sections = [(first.bom, 1, "utf-8")]
    position, number, last = first.bom, 1, b""
    with open(path, "rb") as stream:
        stream.read(first.bom)
        while line := stream.readline(LINE_BYTES):
            now = sections[-1][2]
            at, name = _change(line, now, other)
            if at < 0:
                likelier, tried = _by_likelihood(line, now, other if now == "utf-8" else "utf-8")
                fault = _where(path, position + _fits_to(line, likelier), _shown(likelier))
                raise BadFile(f"{fault}, and its line is not {_shown(tried)} either. {_ADVICE}")
            if name != now:
                start = position + at
                if start == sections[-1][0]:
                    sections.pop()  # it would be empty
                sections.append((start, number, name))
            position += len(line)
            number += 1
            last = line
    start, _, name = sections[-1]
    decoder = _decoder(name)
    decoder.decode(last[max(0, len(last) - (position - start)) :])
    truncated = _finish(decoder, name)[1]
    if len(sections) == 1:
        return Encoding(name, first.bom, position, truncated)
    return Encoding("utf-8", first.bom, position, truncated, sections=tuple(sections))


_ADVICE = "It is damaged: save it as UTF-8 in an editor that displays all of the text correctly"


def _change(line: bytes, now: str, other: str) -> tuple[int, str]:
    """Return where in a line the encoding that it ends with starts, and that encoding; (-1, "") if none fits."""
    if line.isascii():
        return 0, now
    if fits(line, "utf-8"):
        return 0, now if now == other and not _surely_utf8(line) and fits(line, other) else "utf-8"
    if fits(line, other) and _everyday(line, other) >= _everyday(line, "utf-8"):
        return 0, other
    # two files joined in the middle of a line
    if now == "utf-8":
        at = _fits_to(line, "utf-8")
        rest = line[at:]
        return (at, other) if fits(rest, other) and _everyday(rest, other) > _everyday(rest, "utf-8") else (-1, "")
    starts = (match.start() for match in re.finditer(rb"[\xe3-\xe9\xef](?=[\x80-\xbf]{2})", line))
    both = (at for at in starts if fits(line[at:], "utf-8") and fits(line[:at] + b"\n", other))
    return next(((at, "utf-8") for at in both), (-1, ""))


def _by_likelihood(line: bytes, *names: str) -> list[str]:
    """Return the encodings that a line fits neither of, the likelier first; the first named where nothing tells."""
    first = len(line) - len(line.lstrip(bytes(range(128))))  # not ASCII
    return sorted(names, key=lambda name: (_everyday(line, name), _fits_to(line, name) > first), reverse=True)


def _fits_to(data: bytes, name: str) -> int:
    """Return the first byte that does not fit."""
    try:
        decode_strictly(data, name)
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _second(sample: bytes) -> str:
    """Return the likeliest encoding of a sample of lines that are not UTF-8."""
    lines = sample.split(b"\n")
    names = ("gb18030", "cp950", "big5hkscs")
    return max(names, key=lambda name: sum(_everyday(line, name) for line in lines if fits(line, name)))


def read_blocks(path: Path, encoding: Encoding, start: int = 0, stop: int = 0) -> Iterator[str]:
    """Yield a text in pieces as they come from the disk, from byte `start` to before `stop` (0: the end).

    Both must be ends of lines. A truncated last character is left out.
    """
    sections = encoding.sections or ((encoding.bom, 1, encoding.name),)
    ends = [at for at, _, _ in sections[1:]] + [stop or 2**63]
    with open(path, "rb") as stream:
        position = stream.seek(start) if start else len(stream.read(encoding.bom))
        for (_, _, name), end in zip(sections, ends, strict=True):
            decoder = _decoder(name)
            while position < end and (block := stream.read(min(BLOCK_BYTES, end - position))):
                position += len(block)
                if text := decoder.decode(block):
                    yield text
            if text := _finish(decoder, name)[0]:
                yield text


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
