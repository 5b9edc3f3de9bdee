"""Named rules that take the dirt out of a text, each counted; and the cut of a text that is too long.

Knows texts only: no file, no encoding, no corpus.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from html.entities import html5

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
