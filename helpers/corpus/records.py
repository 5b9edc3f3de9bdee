"""A record becomes a document: the text under its key, what a template makes of its fields, or a conversation.

Knows no file format: a record is a string or a dict of fields. Those without a text are counted, and the first few
described.
"""

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from helpers.corpus import conversations
from helpers.corpus.conversations import Conversation, NotAConversation, characters, count_unused
from helpers.corpus.encodings import BadFile
from helpers.corpus.plain_text import MARK
from helpers.corpus.report import UNDECODABLE, FileReport

MODES = ("auto", "block", "line", "file")
FIRST_FEW = 3  # bad records that are described


@dataclass(frozen=True)
class ReadOptions:
    """How a file's text becomes documents. Raises ValueError."""

    # what is one document of a .txt: a "block" (between blank lines), a "line", the "file"; "auto" means block where
    # there is a blank line between text, else file
    document: str = "auto"
    # where the text is in other formats: a key or column, or a template over several, "{title}\n{ask}". Records without
    # a "text" may be conversations; "conversations" (or the list's own name, "messages") reads these beside a text, too
    text_key: str = "text"
    repair: bool = False  # mend mojibake (乱码) where no byte was lost

    def __post_init__(self):
        if self.document not in MODES:
            raise ValueError(f"document is '{self.document}': give one of {', '.join(MODES)}")
        parse_template(self.text_key)

    def may_converse(self, names: Collection[str]) -> bool:
        """Return whether to read a record with these keys as a conversation: it lacks the text that is asked for."""
        return self.text_key not in names if self.text_key == "text" else self.text_key in conversations.LISTS

    def fits(self, names: Collection[str]) -> bool:
        """Return whether records with these keys have all that a text is made of, or what a conversation is."""
        has_all = set(parse_template(self.text_key)[0]) <= set(names)
        return has_all or self.may_converse(names) and conversations.has_form(names)


@functools.cache
def parse_template(text_key: str) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the columns that a text is made of, and for a template its pieces: (text before, column or "").

    "{title}\\n{ask}" has braces, so it is a template; anything else is the name of one column. Raises ValueError.
    """
    parts = re.split(r"\{([^{}\[\].!:]+)\}", text_key)
    texts, names = parts[::2], parts[1::2]
    if any(brace in text for text in texts for brace in "{}"):
        raise ValueError(
            f"text_key '{text_key}': between braces, write the plain name of a column or key, like {{title}}\\n{{ask}}"
        )
    if not names:
        return [text_key], ()
    pieces = zip((text.replace("\\n", "\n") for text in texts), [*names, ""], strict=True)
    return list(dict.fromkeys(names)), tuple(pieces)


def type_name(value) -> str:
    """Return what JSON calls a value: object, list, string, boolean, null, number."""
    names = {dict: "object", list: "list", str: "string", bytes: "string of bytes", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def distinct(names: Iterable[str]) -> list[str]:
    """Return names of columns or keys, none of them twice: of two "text", the second is called "text (2)"."""
    found: dict[str, None] = {}
    for number, name in enumerate(names, 1):
        name = name.strip(MARK) or f"column {number}"
        others = (f"{name} ({n})" for n in itertools.count(2))
        found[next(each for each in itertools.chain([name], others) if each not in found)] = None
    return list(found)


def require(options: ReadOptions, names: Collection[str]) -> None:
    """Raise BadFile for a table in whose columns there is no text."""
    if not options.fits(names):
        missing = next(name for name in parse_template(options.text_key)[0] if name not in names)
        raise BadFile(f"no column '{missing}'; the columns are {', '.join(names)[:500]} (choose with text_key)")


class _Unreadable(Exception):
    """A record has no text; the message says why."""


class Problems:
    """The records of a file that have no document: how many, the first few in words, and what may help."""

    def __init__(self, unit: str, report: FileReport):
        self.unit, self.report = unit, report  # what a record is called: "line", "row"
        self.count = self.refused = 0
        self.described: list[str] = []
        self.keys: set[str] = set()

    def add(self, number: int, why: object, size: int, reason: str = "unreadable") -> None:
        """Count a record that is left out, with so many characters."""
        self.report.counts["read"] += size
        self.report.drop(reason, size)
        self.count += 1
        if self.count <= FIRST_FEW:
            self.described.append(f"{self.unit} {number:,}: {why}")

    def note(self) -> None:
        """Write to the file's report what was found."""
        notes = self.report.notes
        if self.count:
            more = f", and {self.count - FIRST_FEW:,} more" if self.count > FIRST_FEW else ""
            notes.append("; ".join(self.described) + more)
        if self.refused:
            notes.append("user and assistant take turns: mend these, or read all as texts (text_key={ask}\\n{answer})")
        if self.keys:
            notes.append(f"keys there: {', '.join(sorted(self.keys)[:8])} (choose one with text_key)")


def read_texts_of(records: Iterable[tuple], options: ReadOptions, problems: Problems) -> Iterator[str]:
    """Yield the document of each (number, record) that has one; count and describe the others, and what is not used."""
    talks = 0
    report, asked = problems.report, options.text_key
    key = None if asked in conversations.LISTS else asked
    for number, record in records:
        spare: dict[str, int] = defaultdict(int)
        text = record.get(key) if isinstance(record, dict) else record
        if isinstance(text, str):  # as nearly all are
            if len(record) > 1 and text is not record:
                count_unused(record, (asked,), spare)
            size = sum(spare.values(), len(text))
        else:
            size = characters(record)
            try:
                text = _document_of(record, options, spare)
            except NotAConversation as error:
                problems.add(number, error, size, error.reason)
                problems.refused += error.reason == "unreadable"
                continue
            except _Unreadable as error:
                problems.add(number, error, size)
                problems.keys.update(map(str, record.keys() - {asked} if isinstance(record, dict) else ()))
                continue
        report.account(size, len(text or ""), spare)
        if text is None:
            report.drop("empty", 0)
            continue
        if isinstance(text, Conversation):
            talks += 1
        elif asked == "text" and isinstance(record, dict) and conversations.has_form(record):
            report.counts[_BESIDE] += 1
        if (text := _without_halves(text, report)) is not None:
            yield text
    if talks:
        report.notes.append("read as conversations")
    problems.note()


_BESIDE = "a conversation stands beside a 'text', which alone was read: text_key='conversations' reads it instead"
_HALF = re.compile("[\ud800-\udfff]")


def _without_halves(text: str, report: FileReport) -> str | None:
    """Return a document with U+FFFD for each half character (a lone surrogate), which no file can store.

    None for one in which bytes are no text: these are there as marks, see `encodings.read_blocks`.
    """
    try:
        text.encode()  # three times as fast as searching it
    except UnicodeEncodeError as error:
        if "\udc80" <= text[error.start] <= "\udcff":
            report.drop(UNDECODABLE, len(text))
            return None
        mended, halves = _HALF.subn("\ufffd", text)
        report.rules["half characters"] += halves
        return text.with_lines(mended) if isinstance(text, Conversation) else mended
    return text


def _document_of(record, options: ReadOptions, spare: dict[str, int]) -> str | None:
    """Return a string as it is, a conversation, what an object has under the key, or what a template makes of it.

    None stands for a template whose fields are all empty. What is not used is counted in `spare`. Raises _Unreadable,
    NotAConversation.
    """
    wanted, pieces = parse_template(options.text_key)
    if not isinstance(record, dict):
        raise _Unreadable(f"a {type_name(record)}, not a text")
    if not pieces:
        value = record.get(wanted[0])
        is_list = options.text_key in conversations.LISTS and conversations.listed(value) is not None
        is_text = not is_list and conversations.text_of(value, defaultdict(int)) is not None
        if not is_text and options.may_converse([key for key in record if not _is_missing(record[key])]):
            if (messages := conversations.read_messages(record, spare)) is not None:
                return Conversation(messages)
        count_unused(record, wanted, spare)
        return _field(value, wanted[0], spare)
    if not any(name in record for name in wanted):
        raise _Unreadable(f"nothing under '{', '.join(wanted)}'")
    count_unused(record, wanted, spare)
    fields = []
    for _, name in pieces:
        value = record.get(name) if name else None
        value = "" if _is_missing(value) or value == [] else str(value) if isinstance(value, int | float) else value
        fields.append(_field(value, name, spare))
    if not any(map(str.strip, fields)):
        return None
    return "".join(before + field for (before, _), field in zip(pieces, fields, strict=True))


def _is_missing(value) -> bool:
    """Return whether there is no value: null, or the NaN that tables write for a field without one."""
    return value is None or value != value


def _field(value, name: str, spare: dict[str, int]) -> str:
    """Return a string, or a list of strings as lines. Raises _Unreadable for anything else."""
    if (text := conversations.text_of(value, spare)) is None:
        raise _Unreadable(f"{'nothing' if value is None else f'no text but a {type_name(value)}'} under '{name}'")
    return text
