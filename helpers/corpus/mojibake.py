"""Mojibake (乱码): text that an earlier program decoded with the wrong charset; its signs, and its repair."""

import codecs
import re
from collections import Counter

from helpers.corpus.encodings import EVERYDAY

_MISREAD = "锛銆鈥锟鐨鏄鍦"  # what ，。“的是在 become when UTF-8 is read as GBK; else very rare
_ODD = re.compile(f"[\x80-\xff{_MISREAD}]")
_LOST = re.compile("[?\ufffd\ue000-\uf8ff]")  # signs that something was lost
_ENOUGH = 500_000  # characters of lines with such signs are looked at closely


def look(text: str, seen: Counter) -> None:
    """Count in a raw text what speaks for mojibake (乱码): text that an earlier program read in the wrong encoding."""
    seen["all"] += len(text)
    seen["?"] += text.count("?")
    seen["？"] += text.count("？")
    misread, latin = _signs(text)
    seen["misread"] += misread
    seen["latin"] += latin
    if _suspicious(text, misread, latin) and repair(text) is not None:
        seen["repairable"] += 1
    if seen["checked"] < _ENOUGH and not text.isascii() and _LOST.search(text):
        rows = [row for row in text.split("\n") if _LOST.search(row)]
        seen["checked"] += sum(map(len, rows))
        seen["halved"] += sum(map(_halved, rows))


def _halved(row: str) -> int:
    """Count the characters of a line that were misread because half a character before them was lost.

    In GBK, a byte too few shifts all that follows: the everyday characters come back when another byte is taken away.
    """
    found = 0
    for text in re.findall(r"[^\s?\ufffd]{8,}", row):
        shifted = text.encode("gb18030", "ignore")[1:].decode("gb18030", "ignore")
        if len(EVERYDAY.findall(shifted)) > 1.5 * len(EVERYDAY.findall(text)) + 2:
            found += len(text)
    return found


def _signs(text: str) -> tuple[int, int]:
    """Count the characters that speak for UTF-8 read as GBK, and for anything read as Latin-1."""
    odd = _ODD.findall(text)
    latin = sum(character <= "\xff" for character in odd)
    return len(odd) - latin, latin


def _suspicious(text: str, misread: int, latin: int) -> bool:
    return misread > 0.01 * len(text) or latin > 0.4 * len(text) or _is_misread(text)


def _is_misread(text: str) -> bool:
    """Tell whether the GBK bytes of a text's start are UTF-8: those of a text that was read rightly never are."""
    if text.isascii():
        return False
    try:
        start = codecs.utf_8_decode(text[:100].encode("gb18030"), "strict", False)[0]
    except UnicodeError:
        return False
    return len(start) > 6 and _is_cjk(start)


def _is_cjk(text: str) -> bool:
    """Tell whether more than half of what is not ASCII is Chinese, or its punctuation."""
    others = [character for character in text if character > "\x7f"]
    return sum(character >= "\u2e80" for character in others) > len(others) / 2


def suspicions(seen: Counter, rules: Counter) -> list[str]:
    """Return in words what the counts of `look` and of `clean` say: mojibake, lost characters; or nothing."""
    found = []
    if seen["misread"] > 0.01 * seen["all"]:
        found.append("looks like mojibake, UTF-8 read as GBK (锛 for a comma)")
    if seen["latin"] > 0.4 * seen["all"]:
        found.append("looks like mojibake, Chinese bytes read as Latin-1 (Ö®Ë® and the like)")
    if seen["repairable"]:
        found.append(f"repair=True would mend the mojibake (乱码) of {seen['repairable']:,} document(s)")
    if seen["halved"] > 20:
        found.append(
            f"about {seen['halved']:,} characters are mojibake that cannot be mended: GBK that lost some bytes"
        )
    if seen["?"] > max(0.01 * seen["all"], seen["？"]):
        found.append(f"{seen['?']:,} '?' beside {seen['？']:,} '？': perhaps characters lost in an earlier conversion")
    if lost := rules["U+FFFD"]:
        found.append(f"{lost:,} U+FFFD removed: characters that were lost before this file was made")
    if private := rules["private-use characters"]:
        found.append(f"{private:,} private-use characters removed: they mean something only in one font")
    return found


def repair(text: str) -> str | None:
    """Return the text with its mojibake mended, or None where there is none, or none that can be mended.

    Only where no byte was lost: UTF-8 that was read as GBK or GB18030; UTF-8, GBK or Big5 that was read as Latin-1 or
    cp1252. All of a text at once, or else the lines of it that can be mended.
    """
    if not _suspicious(text, *_signs(text)):
        return None
    if (mended := _mend(text)) is not None:
        return mended
    rows = text.split("\n")
    better = [_mend(row) if _suspicious(row, *_signs(row)) else None for row in rows]
    if not any(better):
        return None
    return "\n".join(row if new is None else new for row, new in zip(rows, better, strict=True))


def _mend(text: str) -> str | None:
    try:
        if _signs(text)[1] <= 0.4 * len(text):  # Windows reads the byte 0x80 as €
            mended = b"\x80".join(part.encode("gb18030") for part in text.split("€")).decode("utf-8")
            return mended if _is_cjk(mended) else None
        raw = b"".join(map(_western, text))
    except UnicodeError:
        return None
    for name in ("utf-8", "gb18030", "cp950"):
        try:
            mended = raw.decode(name)
        except UnicodeDecodeError:
            continue
        if len(EVERYDAY.findall(mended)) > 0.1 * len(mended):
            return mended
    return None


def _western(character: str) -> bytes:
    """Return the byte that a Western program showed as this character: Latin-1, or cp1252 (Windows) for “ ” € …"""
    return character.encode("latin-1" if character <= "\xff" else "cp1252")
