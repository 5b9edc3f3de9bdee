"""A record becomes a document: the text under its key, what a template makes of its fields, or a conversation.

Knows no file format: a record is a string or a dict of fields. Those without a text are counted, and the first few
described.
"""

import itertools
import re
import reprlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from helpers.corpus import conversations
from helpers.corpus.conversations import Conversation, NotAConversation, characters, count_unused
from helpers.corpus.encodings import BadFile
from helpers.corpus.plain_text import MARK
from helpers.corpus.report import UNDECODABLE, FileReport
from helpers.corpus.settings import parse_template

FIRST_FEW = 3  # bad records that are described


def _may_converse(text_key: str, names: Collection[str]) -> bool:
    """Return whether to read a record with these keys as a conversation: it lacks the text that is asked for."""
    return text_key not in names if text_key == "text" else text_key in conversations.LISTS


def has_text(text_key: str, names: Collection[str]) -> bool:
    """Return whether records with these keys have all that a text is made of, or what a conversation is."""
    has_all = set(parse_template(text_key)[0]) <= set(names)
    return has_all or _may_converse(text_key, names) and conversations.has_form(names)


def distinct(names: Iterable[str]) -> list[str]:
    """Return names of columns or keys, none of them twice: of two "text", the second is called "text (2)"."""
    found: dict[str, None] = {}
    for number, name in enumerate(names, 1):
        name = name.strip(MARK) or f"column {number}"
        others = (f"{name} ({n})" for n in itertools.count(2))
        found[next(each for each in itertools.chain([name], others) if each not in found)] = None
    return list(found)


def require(text_key: str, names: Collection[str]) -> None:
    """Raise BadFile for a table in whose columns there is no text."""
    if not has_text(text_key, names):
        missing = next(name for name in parse_template(text_key)[0] if name not in names)
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

    def add(self, number: int, why: object, size: int) -> None:
        """Count a record that is left out, with so many characters."""
        self.report.counts["read"] += size
        self.report.drop("unreadable", size)
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


def read_texts_of(records: Iterable[tuple], asked: str, problems: Problems) -> Iterator[str]:
    """Yield the document of each (number, record) that has one; count and describe the others, and what is not used.

    `asked` is the setting `text_key`.
    """
    talks, report = 0, problems.report
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
                text = _document_of(record, asked, spare)
            except NotAConversation as error:
                problems.add(number, error, size)
                problems.refused += 1
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


def _document_of(record, text_key: str, spare: dict[str, int]) -> str | None:
    """Return a string as it is, a conversation, what an object has under the key, or what a template makes of it.

    None stands for a template whose fields are all empty. What is not used is counted in `spare`. Raises _Unreadable,
    NotAConversation.
    """
    wanted, pieces = parse_template(text_key)
    if not isinstance(record, dict):
        raise _Unreadable(f"no text but {reprlib.repr(record)}")
    if not pieces:
        value = record.get(wanted[0])
        is_list = text_key in conversations.LISTS and conversations.listed(value) is not None
        is_text = not is_list and conversations.text_of(value, defaultdict(int)) is not None
        if not is_text and _may_converse(text_key, [key for key in record if not _is_missing(record[key])]):
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
        raise _Unreadable(f"{'nothing' if value is None else f'no text but {reprlib.repr(value)}'} under '{name}'")
    return text
