"""A record becomes a document: the text under its key, what a template makes of its fields, or a conversation.

Knows no file format: a record is a string or a dict of fields. Those without a text are counted, and the first few
described.
"""

import functools
import string
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from helpers.corpus import conversations
from helpers.corpus.conversations import Conversation, NotAConversation
from helpers.corpus.report import FileReport

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


@functools.cache
def parse_template(text_key: str) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the columns that a text is made of, and for a template its pieces: (text before, column or "").

    "{title}\\n{ask}" has braces, so it is a template; anything else is the name of one column. Raises ValueError.
    """
    try:
        parsed = list(string.Formatter().parse(text_key))
    except ValueError as error:
        raise ValueError(f"text_key '{text_key}': {error}. Write a template like {{title}}\\n{{ask}}") from None
    if all(name is None for _, name, _, _ in parsed):
        return [text_key], ()
    for _, name, form, conversion in parsed:
        if name is not None and (not name.strip() or form or conversion or set(name) & set(".[]")):
            raise ValueError(
                f"text_key '{text_key}': between braces, write the plain name of a column or key, like {{title}}"
            )
    pieces = tuple((before.replace("\\n", "\n"), name or "") for before, name, _, _ in parsed)
    return list(dict.fromkeys(name for _, name in pieces if name)), pieces


def type_name(value) -> str:
    """Return what JSON calls a value: object, list, string, boolean, null, number."""
    names = {dict: "object", list: "list", str: "string", bytes: "string of bytes", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


class _Unreadable(Exception):
    """A record has no text; the message says why."""


class Problems:
    """The records of a file that have no document: how many, the first few in words, and what may help."""

    def __init__(self, unit: str, report: FileReport):
        self.unit, self.report = unit, report  # what a record is called: "line", "row"
        self.count = self.refused = 0
        self.described: list[str] = []
        self.keys: set[str] = set()

    def add(self, number: int, why: object, characters: int = 0) -> None:
        """Count a record that is left out, with so many characters of text if that is known."""
        self.report.drop("unreadable", characters)
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
            notes.append(
                "in a conversation user and assistant take turns, perhaps after a system line: mend these records, or "
                "read all of them as plain text (choose a key, or a template like {ask}\\n{answer}, with text_key)"
            )
        if self.keys:
            notes.append(f"keys there: {', '.join(sorted(self.keys)[:8])} (choose one with text_key)")


def read_texts_of(records: Iterable[tuple], options: ReadOptions, problems: Problems) -> Iterator[str]:
    """Yield the document of each (number, record) that has one; count and describe the others."""
    talks = 0
    for number, record in records:
        try:
            text = _document_of(record, options)
        except (_Unreadable, NotAConversation) as error:
            problems.add(number, error)
            if isinstance(error, NotAConversation):
                problems.refused += 1
            elif isinstance(record, dict):
                problems.keys.update(map(str, record))
            continue
        if text is None:
            problems.report.drop("empty", 0)
        else:
            talks += isinstance(text, Conversation)
            yield text
    if talks:
        problems.report.notes.append("read as conversations")
    problems.note()


def _document_of(record, options: ReadOptions) -> str | None:
    """Return a string as it is, a conversation, what an object has under the key, or what a template makes of it.

    None stands for a template whose fields are all empty. Raises _Unreadable, NotAConversation.
    """
    wanted, pieces = parse_template(options.text_key)
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        raise _Unreadable(f"a {type_name(record)}, not a text")
    if not pieces:
        value = record.get(wanted[0])
        if isinstance(value, str):  # as nearly all are
            return value
        if not _is_text(value) and options.may_converse([key for key in record if not _is_missing(record[key])]):
            if (messages := conversations.read_messages(record)) is not None:
                return Conversation(messages)
        return _field(value, f"{'bytes, not a' if isinstance(value, bytes) else 'no'} string under '{wanted[0]}'")
    if not any(name in record for name in wanted):
        raise _Unreadable(f"nothing under '{', '.join(wanted)}'")
    fields = []
    for _, name in pieces:
        value = record.get(name) if name else None
        value = "" if _is_missing(value) or value == [] else str(value) if isinstance(value, int | float) else value
        fields.append(_field(value, f"a {type_name(value)} under '{name}', not a text"))
    if not any(map(str.strip, fields)):
        return None
    return "".join(before + field for (before, _), field in zip(pieces, fields, strict=True))


def _is_missing(value) -> bool:
    """Return whether there is no value: null, or the NaN that tables write for a field without one."""
    return value is None or value != value


def _is_text(value) -> bool:
    return isinstance(value, str) or isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _field(value, problem: str) -> str:
    """Return a string, or a list of strings as lines. Raises _Unreadable with the problem for anything else."""
    if not _is_text(value):
        raise _Unreadable(problem)
    return value if isinstance(value, str) else "\n".join(value)
