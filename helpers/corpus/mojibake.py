"""Mojibake (乱码): text that an earlier program decoded with the wrong charset; its signs, and its repair.

Three kinds are seen: UTF-8 that was read as GBK, Chinese bytes that were read as Latin-1, and characters that were
replaced by ?, U+FFFD or private-use characters. Knows texts only.
"""

import codecs
import re
from collections import Counter

from helpers.corpus.encodings import EVERYDAY, decode_strictly

_MISREAD = "锛銆鈥锟鐨鏄鍦"  # what ，。“的是在 become when UTF-8 is read as GBK; else very rare
_ODD = re.compile(f"[\x80-\xff{_MISREAD}]")
# Shares of a text's characters from which it looks like mojibake. Tried on 西游记 and the Song ci: good text has 0 of
# both signs; read wrongly, it has 5 to 6 % of the first and 95 % or more of the second
_MUCH_MISREAD, _MUCH_LATIN = 0.01, 0.4


def count_signs(text: str) -> dict[str, int]:
    """Return what speaks for mojibake in a raw text, in characters; "repairable" is 1 if `repair` would mend it."""
    misread, latin = _odd_characters(text)
    signs = {"characters": len(text), "?": text.count("?"), "？": text.count("？"), "misread": misread, "latin": latin}
    return signs | {"repairable": repair(text) is not None}


def notes_on(signs: Counter, rules: Counter) -> list[str]:
    """Return in words what the signs in a file, and the counts of its cleaning rules, say; usually nothing."""
    notes = []
    if signs["misread"] > _MUCH_MISREAD * signs["characters"]:
        notes.append("looks like mojibake, UTF-8 read as GBK (锛 for a comma)")
    if signs["latin"] > _MUCH_LATIN * signs["characters"]:
        notes.append("looks like mojibake, Chinese bytes read as Latin-1 (Ö®Ë® and the like)")
    if texts := signs["repairable"]:
        notes.append(f"repair=True would mend the mojibake (乱码) of {texts:,} document(s)")
    # a Chinese text asks with ？, so a ? in it is likely a character that could not be converted
    narrow, wide = signs["?"], signs["？"]
    if narrow > max(0.01 * signs["characters"], wide):
        notes.append(f"{narrow:,} '?' beside {wide:,} '？': perhaps characters lost in an earlier conversion")
    if lost := rules["U+FFFD"]:
        notes.append(f"{lost:,} U+FFFD removed: characters that were lost before this file was made")
    if private := rules["private-use characters"]:
        notes.append(f"{private:,} private-use characters removed: they mean something only in one font")
    return notes


def _odd_characters(text: str) -> tuple[int, int]:
    """Count the signs of UTF-8 read as GBK, and of anything read as Latin-1."""
    odd = _ODD.findall(text)
    latin = sum(character <= "\xff" for character in odd)
    return len(odd) - latin, latin


def _is_suspicious(text: str) -> bool:
    misread, latin = _odd_characters(text)
    return misread > _MUCH_MISREAD * len(text) or latin > _MUCH_LATIN * len(text) or _starts_misread(text)


def _starts_misread(text: str) -> bool:
    """Return whether the GBK bytes of a text's start are UTF-8: those of a text that was read rightly never are."""
    try:
        start = codecs.utf_8_decode(text[:100].encode("gb18030"), "strict", False)[0]
    except UnicodeError:
        return False
    return not text.isascii() and len(start) > 6 and _is_cjk(start)


def _is_cjk(text: str) -> bool:
    """Return whether more than half of what is not ASCII is Chinese, or its punctuation."""
    others = [character for character in text if character > "\x7f"]
    return sum(character >= "\u2e80" for character in others) > len(others) / 2


def repair(text: str) -> str | None:
    """Return the text with its mojibake mended, or None where there is none, or none that can be mended.

    Only where no byte was lost: UTF-8 that was read as GBK or GB18030; UTF-8, GBK or Big5 that was read as Latin-1 or
    cp1252. The text is mended as a whole, or else line by line where a line can be mended.
    """
    if not _is_suspicious(text):
        return None
    if (mended := _mend(text)) is not None:
        return mended
    rows = text.split("\n")
    better = [_mend(row) if _is_suspicious(row) else None for row in rows]
    if not any(better):
        return None
    return "\n".join(row if new is None else new for row, new in zip(rows, better, strict=True))


def _mend(text: str) -> str | None:
    try:
        if _odd_characters(text)[1] <= _MUCH_LATIN * len(text):  # Windows reads the byte 0x80 as €
            mended = b"\x80".join(piece.encode("gb18030") for piece in text.split("€")).decode("utf-8")
            return mended if _is_cjk(mended) else None
        # what a Western program shows as this character: Latin-1, or cp1252 (Windows) for “ ” € …
        raw = b"".join(each.encode("latin-1" if each <= "\xff" else "cp1252") for each in text)
    except UnicodeError:
        return None
    for name in ("utf-8", "gb18030", "cp950"):
        try:
            mended = decode_strictly(raw, name)
        except UnicodeDecodeError:
            continue
        if len(EVERYDAY.findall(mended)) > 0.1 * len(mended):  # good text has 33 to 49 % of them
            return mended
    return None
