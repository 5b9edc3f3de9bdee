"""A record becomes a document: the text under its key, what a template makes of its fields, or a conversation.

Knows no file format: a record is a string, a dict of fields, or the error that stands in its place. Records without a
text are counted, and the first few described.
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
        """Return whether a record or table with these keys may be a conversation: no text is asked for that it has."""
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


_TYPES = {dict: "object", list: "list", str: "string", bytes: "string of bytes", bool: "boolean", type(None): "null"}


def type_name(value) -> str:
    """Return what JSON calls a value: object, list, string, boolean, null, number."""
    return _TYPES.get(type(value), "number")


class Unreadable(Exception):
    """A value has no text; the message says why."""

    def __init__(self, why: str, characters: int = 0):
        super().__init__(why)
        self.characters = characters  # that are lost with it, where this is known


class _Problems:
    """What was unreadable of a file: how much, the first few in words, and what may help."""

    def __init__(self, unit: str):
        self.unit, self.count, self.refused = unit, 0, 0
        self.described: list[str] = []
        self.keys: set[str] = set()

    def add(self, number: int, item, error: Unreadable | NotAConversation) -> None:
        self.count += 1
        if isinstance(error, NotAConversation):
            self.refused += 1
        elif isinstance(item, dict):
            self.keys.update(map(str, item))
        if self.count <= FIRST_FEW:
            self.described.append(f"{self.unit} {number:,}: {error}")

    def notes(self) -> list[str]:
        notes = []
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
        return notes


def texts_of(items: Iterable[tuple], unit: str, options: ReadOptions, report: FileReport) -> Iterator[str]:
    """Yield the document of each value that has one; count the others, and describe the first few in a note."""
    problems, talks = _Problems(unit), 0
    for number, item in items:
        try:
            text = _document_of(item, options)
        except (Unreadable, NotAConversation) as error:
            report.drop("unreadable", error.characters if isinstance(error, Unreadable) else 0)
            problems.add(number, item, error)
            continue
        if text is None:
            report.drop("empty", 0)
        else:
            talks += isinstance(text, Conversation)
            yield text
    if talks:
        report.notes.append("read as conversations")
    report.notes += problems.notes()


def _document_of(item, options: ReadOptions) -> str | None:
    """Return a string as it is, a conversation, what an object has under the key, or what a template makes of it.

    None stands for a template whose fields are all empty. Raises Unreadable, NotAConversation.
    """
    wanted, pieces = parse_template(options.text_key)
    if isinstance(item, str):
        return item
    if isinstance(item, Exception):
        raise item if isinstance(item, Unreadable) else Unreadable(f"not JSON, {item}")
    if not isinstance(item, dict):
        raise Unreadable(f"a {type_name(item)}, not a text")
    if not pieces:
        value = item.get(wanted[0])
        if not _is_text(value) and options.may_converse([key for key in item if not _is_missing(item[key])]):
            if (messages := conversations.messages_of(item)) is not None:
                return Conversation(messages)
        return _field(value, f"{'bytes, not a' if isinstance(value, bytes) else 'no'} string under '{wanted[0]}'")
    if not any(name in item for name in wanted):
        raise Unreadable(f"nothing under '{', '.join(wanted)}'")
    fields = []
    for _, name in pieces:
        value = item.get(name) if name else None
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
    """Return a string, or a list of strings as lines; raise Unreadable with the problem for anything else."""
    if not _is_text(value):
        raise Unreadable(problem)
    return value if isinstance(value, str) else "\n".join(value)
