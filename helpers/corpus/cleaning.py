"""Cleaning rules that remove dirt from a text, each with a name and a count; filters; and cutting long texts.

A rule looks for a shape, and code, verse, a table, a text about HTML may have the same one. So a rule acts on evidence
in the text itself; where there is none, the text stays. To add a rule, add a line to RULES, above its last three, which
are about spaces, or to OPTIONAL if it is off by default. Knows texts only: no file, no encoding, no corpus.
"""

import bisect
import datetime
import functools
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Collection
from html.entities import html5
from unicodedata import is_normalized, normalize

from opencc import OpenCC

from helpers.wording import did_you_mean

_JOINED = "\u0600-\u1fff\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"  # scripts and emoji where a joiner has a meaning
_CHINESE = "\u2018-\u201d\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# one word, or something with =: `<b and c>` is no tag
_ATTRIBUTES = r"(?:\s+\w+|\s(?=[^<>=]*=)(?:\"[^\"<]*\"|'[^'<]*'|[^<>\"'])*)?"
_BLOCK = (
    "p|br|hr|div|table|thead|tbody|tfoot|tr|td|th|ul|ol|li|dl|dt|dd|h[1-6]|blockquote|pre|section|article|header|footer"
    "|nav|aside|figure|figcaption|form|details|summary|html|body|center|head|title|main|address|caption|colgroup|dialog"
    "|fieldset|frame|frameset|hgroup|legend|menu|noframes|noscript|optgroup|option|select|textarea"
)
_INLINE = (
    "a|b|i|u|em|strong|span|font|img|sub|sup|small|big|code|del|ins|meta|iframe|svg|tt|strike|link|label|button|input|s"
    "|abbr|acronym|area|audio|base|basefont|bdi|bdo|canvas|cite|col|dfn|embed|kbd|map|mark|nobr|object|param|picture|q"
    "|rp|rt|ruby|samp|source|time|track|var|video|wbr|o:p"
)
_TAG = rf"(?:</(?:{{0}})\s*>|<(?:{{0}}){_ATTRIBUTES}\s*/?>)"
_BLOCK_TAG = rf"(?:{_TAG.format(_BLOCK)}|<(?:!doctype|\?xml)\b[^<>]*>)"
_BLOCK_TAGS = re.compile(rf"{_BLOCK_TAG}(?:\s*{_BLOCK_TAG})*\s*", re.I)
# as a page has them, and not a text about HTML: with an attribute; at both ends of a line, after a sentence, in a row
_PAGE_TAG = re.compile(
    rf"<(?:{_BLOCK}|{_INLINE})\s+[\w:-]+\s*=\s*[\"'\w]|(?:^|[>。！？…；”])[ \t\u3000]*</(?:{_BLOCK}|{_INLINE})\s*>"
    r"|[>。！？…；”][ \t\u3000]*<br\s*/?>(?![是表代])|</\w+\s*>\s*<|^<.*</\w+>$|(?:\w<br\s*/?>\n.*){2}",
    re.I | re.M,
)
# a document of its own kind, in which <body> or <p> has another meaning
_XML = re.compile(
    rf"\s*(?:<\?xml\b[^>]*>(?!\s*<(?:!doctype\s+)?html)|<(?!(?:{_BLOCK}|{_INLINE}|script|style)\b)([\w:.-]+)[^<>]*>.*</\1\s*>\s*\Z)",
    re.S | re.I,
)
_SCRIPT = re.compile(r"<(script|style)\b[^<>]*>(?=\s*</|[^<]*[{;=(])(?:(?!</?\1).)*</\1\s*>", re.S | re.I)
_ENTITY = re.compile(r"&(?<![=(,]&)(?<![=(,] &)(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# between fences, to the end where nothing closes them, and in backticks: no rule for markup or spaces touches it
_CODE = re.compile(
    r"^[ \t>]*(`{3,}|~{3,})[^`\n]*(?:\n(?:.*?^[ \t>]*\1[`~]*[ \t]*$|.*)|\Z)|(?<!`)(``?)(?!`)[^`\n]+\2(?!`)", re.M | re.S
)
_INDENT = re.compile(f"^(?:[ \t]*\u3000[ \t\u3000]*|[ \t]+(?=[{_CHINESE}]))(?=[^ \t\u3000\n])", re.M)
_NESTED = re.compile(r"(?:^(?:[-*+>#]|\d+[.)]) .*|[:|>({\[])\n[ \t]", re.M)  # lists, YAML, code


@functools.lru_cache(1)  # a text may have very many tags
def _closed_tags(text: str) -> set[str]:
    """Return the names of the tags that a page closes; of code, and of a text about HTML, none."""
    page = not _XML.match(text) and _PAGE_TAG.search(re.sub("^(?:  |\t).*", "", _CODE.sub("", text), flags=re.M))
    return {"br", *re.findall(r"</([\w:]+)\s*>", text.lower())} if page else set()


def _tag(match: re.Match) -> str:
    """Drop a tag of a page; but a bare `<b>` with no `</b>` in the text may be mathematics, and `<input>` a name."""
    closed, block, bare = _closed_tags(match.string), match.re is _BLOCK_TAGS, re.fullmatch(r"<([\w:]+)>", match[0])
    if not closed or (bare and not block and bare[1].lower() not in closed):
        return match[0]
    # a paragraph's tags stand for one line end, and for none where there is one already
    return "\n" if block and not match.string.endswith("\n", 0, match.start()) else ""


@functools.lru_cache(1)
def _is_uniform(text: str) -> bool:
    """Return whether indentation says nothing: all lines have it, or it is that of Chinese paragraphs."""
    lines = re.findall(r"^([ \t\u3000]*)(?=\S)(.*\S)", text, re.M)
    common, places = Counter(indent for indent, _ in lines if indent).most_common(1)[0]
    everywhere = places == len(lines) == len(_INDENT.findall(text))
    closed = sum(indent == common and line[-1] in "。！？…；：”’」』）" for indent, line in lines)
    prose = "\u3000" in common or (common == "    " and not _NESTED.search(text))
    return everywhere or (prose and min(closed / places, places / sum(bool(indent) for indent, _ in lines)) >= 0.8)


# name, what is looked for, its replacement. Run in this order, again until nothing changes.
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
    ("HTML comments and scripts", _SCRIPT, ""),
    ("HTML tags", _BLOCK_TAGS, _tag),
    ("HTML tags", re.compile(_TAG.format(_INLINE), re.I), _tag),
    ("HTML entities", _ENTITY, lambda m: html.unescape(m[0]) if m[0][1] == "#" or m[0][1:] in html5 else m[0]),
    ("unusual spaces", re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f]"), " "),
    ("indentation", _INDENT, lambda m: "" if _is_uniform(m.string) else m[0]),
    # but not two spaces before another line, Markdown's line break; nor two blank lines, as between functions
    ("trailing spaces", re.compile("[ \t\u3000](?<![ \t\u3000]{2})(?!(?<=[^\n] ) \n[^\n])[ \t\u3000]*$", re.M), ""),
    ("blank lines", re.compile("\n\n\n\n+"), "\n\n"),
)

_IN_CODE = frozenset([*(name for name, *_ in RULES[:8]), "personal data"])  # rules that change code as well
_MARKUP = frozenset(name for name, *_ in RULES if "HTML" in name)
# what a pattern starts with: a class, or one character
_START = re.compile(r"(?:\(\?:)*(\[(?:[^\]\\]|\\.)+\]|\\x..|[^\\(\[])", re.S)


# ---- rules that are off unless asked for ----


def _identity(match: re.Match) -> str:
    """Mask a number that is a Chinese ID: a real date of birth, and the check character of GB 11643 (ISO 7064)."""
    number = match[0].upper()
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    total = sum(weight * int(digit) for weight, digit in zip(weights, number, strict=False))
    try:
        datetime.date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return match[0]
    return "[身份证]" if "10X98765432"[total % 11] == number[-1] else match[0]


_PHONE = r"(?:(?<=\+)86[- ]?1|(?<=8)6[- ]?1|(?<=1))[3-9][0-9](?:[0-9]{8}|([- ])[0-9]{4}\1[0-9]{4})(?![0-9])"
_MAIL = r"(?<![A-Za-z0-9._%+-].)[A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
_NOT_BEFORE = r"(?<![0-9A-Za-z.].)"
OPTIONAL: tuple[tuple[str, re.Pattern, str | Callable], ...] = (
    ("repeated spaces", re.compile("([ \t\u3000])(?<=[^ \t\u3000\n].)[ \t\u3000]+(?=\\S)"), r"\1"),  # or columns
    ("Kangxi radicals", re.compile("[\u2f00-\u2fd5]+"), lambda m: normalize("NFKC", m[0])),  # out of a PDF, or meant
    ("full width", re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]+"), lambda m: normalize("NFKC", m[0])),
    ("half-width punctuation", re.compile(f"[,:;!?](?<=[{_CHINESE}].)(?![!-~])"), lambda m: chr(ord(m[0]) + 0xFEE0)),
    ("personal data", re.compile(rf"[1-9]{_NOT_BEFORE}[0-9]{{16}}[0-9Xx](?![0-9A-Za-z])"), _identity),
    ("personal data", re.compile(rf"[+81]{_NOT_BEFORE}{_PHONE}"), "[电话]"),
    ("personal data", re.compile(rf"[A-Za-z0-9._%+-]{_MAIL}"), "[邮箱]"),
)
_SCRIPTS = {"traditional to simplified": "t2s", "simplified to traditional": "s2t"}
DEFAULT_RULES = tuple(dict.fromkeys([*(name for name, *_ in RULES), "NFC", "hard wraps", "repeated lines"]))
OPTIONAL_RULES = tuple(dict.fromkeys([*(name for name, *_ in OPTIONAL), *_SCRIPTS]))


@functools.cache
def choose_rules(rules: str = "") -> frozenset[str]:
    """Return the names of the rules that are on: the default ones, changed by `rules` ("+full width, -HTML tags")."""
    chosen = set(DEFAULT_RULES)
    for word in filter(None, (word.strip() for word in re.split("[,，]", rules))):
        sign, name = word[0], word[1:].strip()
        if sign not in "+-" or name not in DEFAULT_RULES + OPTIONAL_RULES:
            hint = did_you_mean(word.lstrip("+- "), DEFAULT_RULES + OPTIONAL_RULES)
            raise ValueError(f"rules: '{word}' is not + or - and the name of a rule{hint}")
        chosen = chosen | {name} if sign == "+" else chosen - {name}
    if chosen >= set(_SCRIPTS):
        raise ValueError(f"rules: choose one of {' and '.join(_SCRIPTS)}, they undo each other")
    return frozenset(chosen)


@functools.cache
def _plan(on: frozenset[str]) -> tuple[list[tuple], list[re.Pattern], re.Pattern]:
    """Return the rules that are on but for those about spaces, what each starts with, and all that in one class."""
    rules = [rule for rule in RULES[:-3] + OPTIONAL if rule[0] in on]
    starts = [re.compile(_START.findall(pattern.pattern)[0]) for _, pattern, _ in rules]
    return rules, starts, re.compile("|".join(start.pattern for start in starts) or "(?!)")


@functools.lru_cache(2**14)  # most texts have the same few of these characters
def _needed(on: frozenset[str], characters: frozenset[str]) -> list[tuple]:
    """Return the rules that a text can have work for: those that start with one of these characters of it."""
    characters |= {"\xa0"} if "&" in characters else set()  # &nbsp;
    return [rule for rule, start in zip(*_plan(on)[:2], strict=True) if any(map(start.match, characters))]


_converter = functools.cache(OpenCC)


# ---- cleaning one text ----

_SPACE = re.compile("[ \t\u3000]")
EXAMPLES = 3  # kept of each rule


def clean(
    text: str, counts: Counter | None = None, on: frozenset[str] | None = None, examples: dict | None = None
) -> str:
    """Return the text without dirt; add to `counts` what each rule changed (rule -> places).

    Conservative: what might be meant stays (`a < b`, `A & B`, `<think>`, emoji, code), and so does a text that is all
    markup, like the answer "<br>". Cleaning twice changes nothing more, and decent text comes back as it was. Blank
    lines at the start and the end go too. `on` names the rules that are on (see `choose_rules`); `examples` gets a few
    pairs (before, after) per rule. "… left" counts the places that a rule looked at and left.
    """
    on = choose_rules() if on is None else on
    if text.count("\n") < 4 and not (_plan(on)[2].search(text) or _SPACE.search(text)) and is_normalized("NFC", text):
        if on.isdisjoint(_SCRIPTS):
            return text.strip("\n")  # as most texts
    given, composed = text, False
    found, left = Counter[str](), Counter[str]()
    while True:  # one rule may uncover work for another: &amp;lt;p&gt; is a tag inside an entity inside an entity
        before = text
        left.clear()
        for rule in _needed(on, frozenset(_plan(on)[2].findall(text))):
            text = _apply(rule, text, found, left, examples)
        if "hard wraps" in on and len(_OPEN_END.findall(text)) > 3:  # before indentation goes: it starts paragraphs
            joined, places, left["hard wraps left"] = unwrap(text)
            if places:
                found["hard wraps"] += places
                _show_difference(examples, "hard wraps", text, joined, 10, 9)
            text = joined
        if "\n\n\n" in text or _SPACE.search(text):
            for rule in RULES[-3:]:
                text = _apply(rule, text, found, left, examples) if rule[0] in on else text
        if composed and text == before:
            break
        if "NFC" in on and not is_normalized("NFC", text):
            normal = normalize("NFC", text)
            _show_difference(examples, "NFC", text, normal, 8, 7)
            text, found["NFC"] = normal, found["NFC"] + max(1, len(text) - len(normal))
        text, composed = text.strip("\n"), True
        if text == before:
            break
    for name, config in _SCRIPTS.items():
        if name in on and (converted := _converter(config).convert(text)) != text:
            found[name] += sum(a != b for a, b in zip(text, converted, strict=False)) or 1
            _show_difference(examples, name, text, converted, 8, 8)
            text = converted
    if found and not text and not on.isdisjoint(_MARKUP):
        return clean(given, counts, on - _MARKUP, examples)
    if counts is not None:
        counts.update(found + left)
    return text


def _apply(rule: tuple, text: str, counts: Counter, left: Counter, examples: dict | None) -> str:
    name, pattern, new = rule
    if not (match := pattern.search(text)):
        return text
    code = [match.span() for match in _CODE.finditer(text)] if "`" in text or "~~~" in text else []

    def replacement(match: re.Match) -> str:
        at = bisect.bisect_left(code, (match.end(),)) - 1
        if at >= 0 and match.start() < code[at][1] and name not in _IN_CODE:
            return match[0]
        return new(match) if callable(new) else match.expand(new)

    if callable(new) or code:  # it may leave a match as it is
        matches = [match for match in pattern.finditer(text) if replacement(match) != match[0]]
        left[f"{name} left"] += len(pattern.findall(text)) - len(matches)
        if not matches:
            return text
        match = matches[0]
        places = sum(max(1, match[0].count("<")) for match in matches)  # one match may span several tags
        result = pattern.sub(replacement, text)
    else:
        result, places = pattern.subn(new, text)
    counts[name] += places
    if examples is not None and len(examples.get(name, ())) < EXAMPLES:
        start, end = text[max(0, match.start() - 8) : match.start()], text[match.end() : match.end() + 8]
        old = match[0] if len(match[0]) <= 40 else match[0][:30] + "…" + match[0][-9:]
        _show(examples, name, start + old + end, start + replacement(match)[:40] + end)
    return result


def _show(examples: dict | None, name: str, before: str, after: str) -> None:
    """Keep an example, unless there are enough; what is invisible is written out."""
    if examples is not None and len(shown := examples.setdefault(name, [])) < EXAMPLES:
        shown.append(tuple("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text) for text in (before, after)))


def _show_difference(examples: dict | None, name: str, before: str, after: str, old: int, new: int) -> None:
    """Keep the first place where two texts differ as an example: 8 characters before it, `old` and `new` from it on."""
    at = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    _show(examples, name, before[max(0, at - 8) : at + old], after[max(0, at - 8) : at + new])


# ---- hard wraps ----

_WRAP_COLUMNS = 40  # lines of prose are cut at 20 Chinese characters or more
_LOOK = 1000  # cuts in which evidence is looked for: in more lines, nearly all pairs of characters stand together
_OPEN_END = re.compile("\n(?:(?<=[一-鿿]\n)|(?<=[一-鿿][ \u3000]\n))")
_CLOSED = re.compile("[。！？!?；;…：:][”’」』）)]*$")
_NEW_PARAGRAPH = re.compile(
    r"[ \t\u3000]|第.{1,9}[章回节卷部集篇]|[一二三四五六七八九十]{1,3}[、．.]|[-*•·#>（(【]|\d+[.、)）]"
)


def unwrap(text: str, printed: bool = False) -> tuple[str, int, int]:
    """Join lines that were cut at a fixed width; return the text, how many line ends went, and how many stay in doubt.

    At least half of the lines are equally long, and hardly one is longer. A line is joined to the next one unless it is
    shorter, or that is blank, indented, or looks like a heading or an item of a list. Verses, titles, posts of which
    only the beginning was kept have this shape, too, and stay: see `_are_cuts`. In a `printed` text, from a PDF, all
    paragraphs were cut, at about the same width; of verses, most of which end in a comma, the lines stay.
    """
    if "```" in text or "~~~" in text:
        return text, 0, 0
    lines = [line.rstrip(" \t\u3000") for line in text.split("\n")]
    widths = [len(line.encode("gb18030", "replace")) for line in lines]  # 2 columns per Chinese character, else 1
    common = max(Counter(width for width in widths if width >= _WRAP_COLUMNS).most_common(1), default=(0, 0))[0]
    least, most = common - 4, common + 4  # a comma that must not start a line hangs over
    full, written = sum(least <= width <= most for width in widths), sum(map(bool, widths))
    if printed:
        least = int(0.8 * sorted(widths)[9 * len(widths) // 10])
    elif not common or full < max(4, 0.5 * written) or sum(width > most for width in widths) > 0.02 * written:
        return text, 0, 0
    indents = any(line[:1] in (" ", "\t", "\u3000") for line in lines if line)
    joined, cuts = [lines[0]], []
    for before, width, line in zip(lines, widths, lines[1:], strict=False):
        ends = width < least or (not indents and _CLOSED.search(before)) or before[-5:] == before[-1] * 5  # a ruler
        if printed:  # there was no room for the next word, and this is no line of a table of contents
            room = max(2, len(re.split("[^!-~]", line, maxsplit=1)[0]))
            row = before[-1] == "." or ". . ." in before or "...." in before
            ends = width + room < least or _CLOSED.search(before) or row
        if ends or not line or _NEW_PARAGRAPH.match(line):
            joined.append(line)
        else:
            # two words of letters need a space between them, a number in two pieces does not
            words = before[-1].isascii() and line[0].isascii() and not (before[-1].isdigit() and line[0].isdigit())
            joined[-1] += " " + line if words else line
            cuts.append(before[-1] + line[0])
    prose = sum(pair[0] in "，、" for pair in cuts) < len(cuts) / 2
    if cuts and (prose if printed else _are_cuts(cuts[:_LOOK], lines[: 2 * _LOOK])):
        return "\n".join(joined), len(cuts), 0
    return text, 0, len(cuts)


def _are_cuts(cuts: list[str], lines: list[str]) -> bool:
    """Return whether a text was cut, by the two characters at each cut: the last of a line, the first of the next.

    Either the second is a mark that starts no line, or the two stand together inside a line, more often than by chance:
    three times as often as the end of a line and the start of another, one to four further on. In a novel a fifth do,
    by chance a fortieth; in verses cut off at 20 characters it is a fortieth both times.
    """
    inside = {pair for line in lines for pair in map("".join, zip(line, line[1:], strict=False)) if _HAN.match(pair)}

    def together(distance: int) -> int:
        pairs = [end[0] + start[1] for end, start in zip(cuts, cuts[distance:], strict=False)]
        return sum(pair in inside and _HAN.match(pair[1]) is not None for pair in pairs)

    marks = sum(pair[1] in "，、；：" for pair in cuts)
    return marks + together(0) - 3 * max(map(together, range(1, 5))) >= max(4, 0.05 * len(cuts))


# ---- lines that repeat from text to text ----

_ADDRESS = re.compile(r"https?://|www\.|[A-Za-z0-9-]\.(?:com|net|org|cn|cc|info|xyz)(?![A-Za-z0-9])", re.I)
_AD = re.compile("更多|阅读|好书|小说|电子书|书友|章|首发|抢先|连载|更新|收藏|本站|记住|关注|广告|公众号|下载|免费")
# Each such line holds one of these. It is looked for by the last character: one class is quick, alternatives are not
_MARK = re.compile(
    r"[-—/.页0-9](?:(?<=://)|(?<=[wW]{3}\.)|(?<=\.)(?=(?:com|net|org|cn|cc|info|xyz)\b)|(?<=[0-9 ]页)"
    r"|(?<=[Pp]age [0-9])|(?<=PAGE [0-9])|(?<=[0-9 ][-—])(?=[ \t]*\n))"
)
_LONGEST = 200  # characters of a line that can be an advertisement
_PAGE = re.compile(
    r"[-=_~*─━═—·\s]*(?:第 ?\d+ ?页(?:[ ,，/]*共 ?\d+ ?页)?|page ?\d+(?: ?of ?\d+)?)[-=_~*─━═—·\s]*|[-—] ?\d+ ?[-—]",
    re.I,
)


def _shape(line: str) -> str:
    """Return what an advertisement or page number is counted as; "" for other lines.

    A link is no advertisement, and a rule of dashes alone may be Markdown: neither is one of these.
    """
    line = line.strip()
    if len(line) > _LONGEST:
        return ""
    if _PAGE.fullmatch(line):
        return re.sub(r"\d+", "0", re.sub(r"([-=_~*─━═—·])\1+", r"\1", line))
    return line if _ADDRESS.search(line) and _AD.search(line) else ""


@functools.lru_cache(2**12)  # what repeats is asked for again
def _key(shape: str) -> int:
    """Return eight bytes of hash as a number: of a billion shapes, two have the same one with a chance of 3 %."""
    return int.from_bytes(hashlib.blake2b(shape.encode(), digest_size=8).digest(), "little")


def candidates(text: str) -> list[tuple[int, int, int]]:
    """Return the lines that are dirt if they repeat: (first character, character after the last, key of its shape).

    They have a web address and words of an advertisement, or are a page number and nothing else. A link, a refrain, a
    speaker, a chapter's heading may repeat any number of times. The text may be that of many documents.
    """
    text += "\n"
    found, end = [], -1
    for match in _MARK.finditer(text):
        if match.start() > end:
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
            if shape := _shape(text[start:end]):
                found.append((start, end, _key(shape)))
    return found


def without_lines(text: str, repeated: Collection[int], counts: Counter, examples: dict | None = None) -> str:
    """Return the text without the lines whose keys are among `repeated` (see `candidates`)."""
    kept, done = [], 0
    for start, stop, key in candidates(text):
        if key in repeated:
            counts["repeated lines"] += 1
            _show(examples, "repeated lines", text[start:stop].strip()[:60], "")
            kept.append(text[done:start])
            done = min(stop + 1, len(text))
    return "".join([*kept, text[done:]])


# ---- filters ----

_SIGNS = re.compile(r"[^\w\s，。、！？；：“”‘’（）《》…—,.!?;:'\"()-]|[\d_]")
_NGRAM = 10  # characters


def unfit(text: str, min_chinese: float = 0.0, max_symbols: float = 1.0, max_repetition: float = 1.0) -> str:
    """Return why a document does not belong in the corpus, in words, or "".

    Shares of its characters, spaces not counted: Chinese ones, below `min_chinese`; digits and signs that are no
    punctuation, above `max_symbols`. `max_repetition` is the largest share of stretches of 10 characters that occur
    in it a second time (Rae et al. 2021, Gopher, appendix A, measure the same in words).
    """
    if min_chinese > 0 or max_symbols < 1:
        written = len(text) - sum(map(text.count, " \n\t\u3000")) or 1
        if min_chinese > 0 and len(_HAN.findall(text)) < min_chinese * written:
            return "too little Chinese"
        if max_symbols < 1 and len(_SIGNS.findall(text)) > max_symbols * written:
            return "too many symbols"
    if max_repetition < 1 and len(text) >= 2 * _NGRAM:
        grams = [text[at : at + _NGRAM] for at in range(len(text) - _NGRAM + 1)]
        if 1 - len(set(grams)) / len(grams) > max_repetition:
            return "too repetitive"
    return ""


# ---- cutting ----

_SENTENCE_END = re.compile("[。！？!?；;…][”’」』）)]*|[.](?=\\s)")


def cut(text: str, max_length: int) -> list[str]:
    """Cut a long text into pieces of at most `max_length` characters, at line ends or else sentence ends if it can."""
    pieces, start = [], 0
    while (rest := len(text) - start) > max_length:
        aim = max_length if rest >= 2 * max_length else (rest + 1) // 2  # halves, not a whole and a crumb
        window = text[start + aim // 2 : start + aim]
        at = window.rfind("\n") + 1
        if not at:
            ends = [match.end() for match in _SENTENCE_END.finditer(window)]
            at = ends[-1] if ends else len(window)
        pieces.append(text[start : start + aim // 2 + at])
        start += aim // 2 + at
    return [*pieces, text[start:]]
