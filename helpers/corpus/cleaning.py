"""Cleaning rules that remove dirt from a text, each with a name and a count; filters; and cutting long texts.

To add a rule, add a line to RULES, above its last four, which are about spaces, or to OPTIONAL if it is off by default.
Knows texts only: no file, no encoding, no corpus.
"""

import datetime
import functools
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Collection
from html.entities import html5
from unicodedata import is_normalized, normalize

from helpers.wording import did_you_mean

_JOINED = "\u0600-\u1fff\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"  # scripts and emoji where a joiner has a meaning
_CHINESE = "\u2018-\u201d\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
# attributes that need no value; no other word is one: `<b and c>` is no tag
_FLAGS = (
    "(?:webkit|moz)?allowfullscreen|async|autofocus|autoplay|checked|compact|controls|default|defer|disabled|download"
    "|formnovalidate|hidden|inert|ismap|itemscope|loop|multiple|muted|nohref|nomodule|noresize|noshade|novalidate"
    "|nowrap|open|playsinline|readonly|required|reversed|selected"
)
_VALUE = r"(?:\"[^\"<]*\"|'[^'<]*'|[^\s<>\"']+)"
_ATTRIBUTES = rf"(?:\s+(?:[\w:-]+\s*=\s*{_VALUE}|(?:{_FLAGS})(?=[\s/>])))*"
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
# names that are also plain words or letters: a<b>c, "cat <input>"
_WORDS = (
    "[a-z]|head|title|main|address|caption|dialog|frame|legend|menu|option|select|link|label|button|input|area|audio"
    "|base|canvas|cite|col|embed|map|mark|object|param|picture|source|time|track|var|video"
)
_TAG = rf"(?:</(?:{{0}})\s*>|<(?:{{0}}){_ATTRIBUTES}\s*/?>)"


def _entity(match: re.Match) -> str:
    name = match[0][1:]
    return html.unescape(match[0]) if name[0] == "#" or name in html5 else match[0]


@functools.lru_cache(8)  # a text may have very many such tags
def _is_closed(name: str, text: str) -> bool:
    return re.search(rf"</{name}\s*>", text, re.I) is not None


def _tag(match: re.Match) -> str:
    """Drop a tag; but a bare `<b>` with no `</b>` in the text may be mathematics, and `<input>` stand for a name."""
    bare = _BARE.fullmatch(match[0])
    if bare and not _is_closed(bare[1].lower(), match.string):
        return match[0]
    # a paragraph's tags stand for one line end, and for none where there is one already
    return "\n" if match.re is _BLOCK_TAGS and not match.string.endswith("\n", 0, match.start()) else ""


_BARE = re.compile(rf"<({_WORDS})>\s*", re.I)
_BLOCK_TAG = rf"(?:{_TAG.format(_BLOCK)}|<(?:!doctype|\?xml)\b[^<>]*>)"
_BLOCK_TAGS = re.compile(rf"{_BLOCK_TAG}(?:\s*{_BLOCK_TAG})*\s*", re.I)

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
    ("HTML comments and scripts", re.compile(r"<(script|style)\b[^<>]*>(?:(?!</?\1).)*</\1\s*>", re.S | re.I), ""),
    ("HTML tags", _BLOCK_TAGS, _tag),
    ("HTML tags", re.compile(_TAG.format(_INLINE), re.I), _tag),
    ("HTML entities", re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"), _entity),
    ("unusual spaces", re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f]"), " "),
    ("indentation", re.compile(f"^(?:[ \t]*\u3000[ \t\u3000]*|[ \t]+(?=[{_CHINESE}]))", re.M), ""),
    ("trailing spaces", re.compile("[ \t\u3000](?<![ \t\u3000]{2})[ \t\u3000]*$", re.M), ""),
    ("repeated spaces", re.compile("([ \t\u3000])(?<=[^ \t\u3000\n].)[ \t\u3000]+(?=\\S)"), r"\1"),
    ("blank lines", re.compile("\n\n\n+"), "\n\n"),
)

_SPACING = RULES[-4:]
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


_NOT_BEFORE = r"(?<![0-9A-Za-z.].)"
OPTIONAL: tuple[tuple[str, re.Pattern, str | Callable], ...] = (
    ("full width", re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]+"), lambda m: normalize("NFKC", m[0])),
    ("half-width punctuation", re.compile(f"[,:;!?](?<=[{_CHINESE}].)(?![!-~])"), lambda m: chr(ord(m[0]) + 0xFEE0)),
    ("personal data", re.compile(rf"[1-9]{_NOT_BEFORE}[0-9]{{16}}[0-9Xx](?![0-9A-Za-z])"), _identity),
    (
        "personal data",
        re.compile(
            rf"[+81]{_NOT_BEFORE}(?:(?<=\+)86[- ]?1|(?<=8)6[- ]?1|(?<=1))[3-9][0-9]"
            r"(?:[0-9]{8}|([- ])[0-9]{4}\1[0-9]{4})(?![0-9])"
        ),
        "[电话]",
    ),
    (
        "personal data",
        re.compile(
            r"[A-Za-z0-9._%+-](?<![A-Za-z0-9._%+-].)[A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
        ),
        "[邮箱]",
    ),
)
_SCRIPTS = {"traditional to simplified": "t2s", "simplified to traditional": "s2t"}
DEFAULT_RULES = tuple(dict.fromkeys([*(name for name, *_ in RULES), "NFC", "hard wraps", "repeated lines"]))
OPTIONAL_RULES = tuple(dict.fromkeys([*(name for name, *_ in OPTIONAL), *_SCRIPTS]))


@functools.cache
def choose_rules(rules: str = "") -> frozenset[str]:
    """Return the names of the rules that are on: the default ones, changed by `rules` ("+personal data, -HTML tags").

    Raises ValueError for a name that no rule has, RuntimeError for one that needs OpenCC where that is not installed.
    """
    chosen = set(DEFAULT_RULES)
    for word in filter(None, (word.strip() for word in re.split("[,，]", rules))):
        sign, name = word[0], word[1:].strip()
        if sign not in "+-" or name not in DEFAULT_RULES + OPTIONAL_RULES:
            hint = did_you_mean(word.lstrip("+- "), DEFAULT_RULES + OPTIONAL_RULES)
            raise ValueError(f"rules: '{word}' is not + or - and the name of a rule{hint}")
        chosen = chosen | {name} if sign == "+" else chosen - {name}
    if chosen >= set(_SCRIPTS):
        raise ValueError(f"rules: choose one of {' and '.join(_SCRIPTS)}, they undo each other")
    for name in chosen & set(_SCRIPTS):
        _converter(_SCRIPTS[name])
    return frozenset(chosen)


class _Plan:
    """The rules that are on, and which of them a text can have work for: those that start with a character it has."""

    def __init__(self, on: frozenset[str]):
        self.spacing = tuple(rule for rule in _SPACING if rule[0] in on)
        self.rules = tuple(rule for rule in RULES[:-4] + OPTIONAL if rule[0] in on)
        self.starts = [re.compile(_START.findall(pattern.pattern)[0]) for _, pattern, _ in self.rules]
        # one class: most texts have nothing of it
        self.suspect = re.compile("|".join(start.pattern for start in self.starts) or "(?!)")

    def needed(self, text: str) -> tuple[int, ...]:
        """Return the numbers of the rules that start with a character of this text, in order."""
        return _started_by(self, frozenset(self.suspect.findall(text)))


@functools.lru_cache(2**14)  # most texts have the same few of these characters
def _started_by(plan: _Plan, characters: frozenset[str]) -> tuple[int, ...]:
    return tuple(number for number, start in enumerate(plan.starts) if any(map(start.match, characters)))


_plan = functools.cache(_Plan)


@functools.cache
def _converter(config: str):
    try:
        from opencc import OpenCC
    except ImportError as error:
        raise RuntimeError('traditional and simplified characters need OpenCC: pip install -e ".[text]"') from error
    return OpenCC(config)


# ---- cleaning one text ----

EXAMPLES = 3  # kept of each rule


def clean(
    text: str, counts: Counter | None = None, on: frozenset[str] | None = None, examples: dict | None = None
) -> str:
    """Return the text without dirt; add to `counts` what each rule changed (rule -> places).

    Conservative: what might be meant stays (`a < b`, `A & B`, `<think>`, emoji). Cleaning twice changes nothing more,
    and decent text comes back as it was. Blank lines at the start and the end go too. `on` names the rules that are on
    (see `choose_rules`); `examples` gets a few pairs (before, after) per rule.
    """
    on = choose_rules() if on is None else on
    counts = Counter() if counts is None else counts
    plan = _plan(on)
    wrapped, composed = "hard wraps" in on, False
    while True:  # one rule may uncover work for another: &amp;lt;p&gt; is a tag inside an entity inside an entity
        before = text
        text = _apply_needed(plan, text, counts, examples)
        if wrapped:  # before the indentation goes, which shows where a paragraph starts
            joined, places = unwrap(text)
            if places:
                counts["hard wraps"] += places
                _show_difference(examples, "hard wraps", text, joined, 10, 9)
            text, wrapped = joined, False
        if " " in text or "\u3000" in text or "\t" in text or "\n\n\n" in text:
            for rule in plan.spacing:
                text = _apply(rule, text, counts, examples)
        if composed and text == before:
            break
        if "NFC" in on and not is_normalized("NFC", text):
            normal, places = _compose(text)
            _show_difference(examples, "NFC", text, normal, 8, 7)
            text, counts["NFC"] = normal, counts["NFC"] + places
        text, composed = text.strip("\n"), True
        if text == before:
            break
    for name, config in _SCRIPTS.items():
        if name in on and (converted := _converter(config).convert(text)) != text:
            counts[name] += sum(a != b for a, b in zip(text, converted, strict=False)) or 1
            _show_difference(examples, name, text, converted, 8, 8)
            text = converted
    return text


def _apply_needed(plan: _Plan, text: str, counts: Counter, examples: dict | None, after: int = -1) -> str:
    """Apply the rules that the text needs, of those after a number."""
    for number in plan.needed(text):
        if number > after:
            before, text = text, _apply(plan.rules[number], text, counts, examples)
            if text is not before and callable(plan.rules[number][2]):  # it may have put work for later rules there
                return _apply_needed(plan, text, counts, examples, number)
    return text


def _apply(rule: tuple, text: str, counts: Counter, examples: dict | None) -> str:
    name, pattern, new = rule
    if not (match := pattern.search(text)):
        return text
    if callable(new):  # it may leave a match as it is
        matches = [match for match in pattern.finditer(text) if new(match) != match[0]]
        if not matches:
            return text
        match = matches[0]
        places = sum(max(1, match[0].count("<")) for match in matches)  # one match may span several tags
        result = pattern.sub(new, text)
    else:
        result, places = pattern.subn(new, text)
    counts[name] += places
    if examples is not None and len(examples.get(name, ())) < EXAMPLES:
        left, right = text[max(0, match.start() - 8) : match.start()], text[match.end() : match.end() + 8]
        old = match[0] if len(match[0]) <= 40 else match[0][:30] + "…" + match[0][-9:]
        replaced = new(match) if callable(new) else match.expand(new)
        _show(examples, name, left + old + right, left + replaced[:40] + right)
    return result


def _show(examples: dict | None, name: str, before: str, after: str) -> None:
    """Keep an example, unless there are enough; what is invisible is written out."""
    if examples is not None and len(shown := examples.setdefault(name, [])) < EXAMPLES:
        shown.append((_visible(before), _visible(after)))


def _show_difference(examples: dict | None, name: str, before: str, after: str, old: int, new: int) -> None:
    """Keep the first place where two texts differ as an example: 8 characters before it, `old` and `new` from it on."""
    at = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    _show(examples, name, before[max(0, at - 8) : at + old], after[max(0, at - 8) : at + new])


def _visible(text: str) -> str:
    """Return a text with invisible characters written out: a zero-width space as \\u200b, a newline as \\n."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _compose(text: str) -> tuple[str, int]:
    """Return the text in Unicode's composed form NFC, and how many characters that touched (at least 1)."""
    composed = normalize("NFC", text)
    single = sum(not is_normalized("NFC", character) for character in set(text))
    return composed, max(1, single, len(text) - len(composed))


# ---- hard wraps ----

_WRAP_COLUMNS = 40  # lines of prose are cut at 20 Chinese characters or more; verse is shorter
_CLOSED = re.compile("[。！？!?；;…：:][”’」』）)]*$")
_NEW_PARAGRAPH = re.compile(
    r"[ \t\u3000]|第.{1,9}[章回节卷部集篇]|[一二三四五六七八九十]{1,3}[、．.]|[-*•·#>（(【]|\d+[.、)）]"
)
_OPEN_END = re.compile("\n(?:(?<=[^。！？!?；;…：:”’」』）)\\s]\n)|(?<=[^。！？!?；;…：:”’」』）)\\s][ \t\u3000]\n))")


def unwrap(text: str) -> tuple[str, int]:
    """Join lines that were cut at a fixed width; return the text and how many line ends went.

    Only on evidence in the text itself: hardly a line is longer than the width, most lines are just as long, and most
    of those stop in the middle of a sentence. A line is joined to the next one unless that is blank, indented, or
    looks like a heading or an item of a list. Verse, dialogue and code give no such evidence and stay.
    """
    # most texts have few lines, or lines that end where a sentence does
    if text.count("\n") < 4 or len(text) < 2 * _WRAP_COLUMNS or len(_OPEN_END.findall(text)) < 3:
        return text, 0
    lines = [line.rstrip(" \t\u3000") for line in text.split("\n")]
    widths = [len(line.encode("gb18030", "replace")) for line in lines]  # 2 columns per Chinese character, else 1
    common = Counter(width for width in widths if width >= _WRAP_COLUMNS).most_common(1)
    if not common:
        return text, 0
    # 1. the evidence
    least, most = common[0][0] - 4, common[0][0] + 4  # a comma that must not start a line hangs over
    written = [width for width in widths if width]
    full = [line for line, width in zip(lines, widths, strict=True) if least <= width <= most]
    open_ends = [line for line in full if not _CLOSED.search(line)]
    chinese = sum("\u2e80" <= line[-1] <= "\uffef" or line[-1] in "“”‘’—…" for line in full)
    # shares tried on a novel wrapped at 66 columns: 86 % of its lines are full, 0.9 % are longer, 87 % of the full
    # ones stop in a sentence. No line of 西游记 or of 21,000 Song ci is joined
    if (
        len(full) < max(4, 0.5 * len(written))
        or sum(width > most for width in written) > 0.02 * len(written)
        or len(open_ends) < 0.6 * len(full)
        or len(set(full)) < 0.9 * len(full)
        or chinese < 0.8 * len(full)
    ):
        return text, 0
    # 2. join
    indents = any(line[:1] in (" ", "\t", "\u3000") for line in lines if line)
    joined, places = [lines[0]], 0
    for before, width, line in zip(lines, widths, lines[1:], strict=False):
        ends = width < least or (not indents and _CLOSED.search(before)) or _RULER.fullmatch(before)
        if ends or not line or _NEW_PARAGRAPH.match(line):
            joined.append(line)
        else:
            # two words of letters need a space between them, a number in two pieces does not
            words = before[-1].isascii() and line[0].isascii() and not (before[-1].isdigit() and line[0].isdigit())
            joined[-1] += " " + line if words else line
            places += 1
    return ("\n".join(joined), places) if places else (text, 0)


# ---- lines that repeat from text to text ----

_ADDRESS = re.compile(r"https?://|www\.|[A-Za-z0-9-]\.(?:com|net|org|cn|cc|info|xyz)(?![A-Za-z0-9])", re.I)
# Each such line holds one of these. It is looked for by the last character: one class is quick, alternatives are not
_MARK = re.compile(
    r"[-=_~*─━═—·/.页0-9](?:(?<=[-=_~*─━═—·]{5})|(?<=://)|(?<=[wW]{3}\.)|(?<=\.)(?=(?:com|net|org|cn|cc|info|xyz)\b)"
    r"|(?<=[0-9 ]页)|(?<=[Pp]age [0-9])|(?<=PAGE [0-9])|(?<=[0-9 ][-—])(?=[ \t]*\n))"
)
_LONGEST = 200  # characters of a line that can be an advertisement
_RULER = re.compile(
    r"[-=_~*─━═—·\s]*(?:(?:第 ?\d+ ?页(?:[ ,，/]*共 ?\d+ ?页)?|page ?\d+(?: ?of ?\d+)?)[-=_~*─━═—·\s]*|"
    r"[-—] ?\d+ ?[-—]|[-=_~*─━═—·]{5}[-=_~*─━═—·\s]*)",
    re.I,
)


def _shape(line: str) -> str:
    """Return what an advertisement or page ruler is counted as: its line with 0 for numbers; "" for other lines."""
    line = line.strip()
    if 3 <= len(line) <= _LONGEST and (_RULER.fullmatch(line) or _ADDRESS.search(line)):
        return re.sub(r"\d+", "0", re.sub(r"([-=_~*─━═—·])\1+", r"\1", line))
    return ""


@functools.lru_cache(2**12)  # what repeats is asked for again
def _key(shape: str) -> int:
    """Return eight bytes of hash as a number: of a billion shapes, two have the same one with a chance of 3 %."""
    return int.from_bytes(hashlib.blake2b(shape.encode(), digest_size=8).digest(), "little")


def candidates(text: str) -> list[tuple[int, int, int]]:
    """Return the lines that are dirt if they repeat: (first character, character after the last, key of its shape).

    They have a web address, or are rulers and page numbers and nothing else. A refrain, a speaker, a chapter's heading
    are none of them, and may repeat any number of times. The text may be that of many documents.
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

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
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
    """Cut a long text into pieces of at most `max_length` characters: at line ends, else sentence ends, else anywhere.

    Nothing is lost: the pieces joined are the text.
    """
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
