"""Conversations: read from the forms in common use, as documents that know who said what.

A conversation is a document like any other, the plain text of its turns, but remembers where they begin. Its roles are
those of OpenAI's API. Knows records and texts: no file, no rule of cleaning, no chat template.
"""

import ast
import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NotRequired, TypedDict

SYSTEM, USER, ASSISTANT = ("system", "user", "assistant")
TOOL = "tool"  # whose result a template gives the assistant; a corpus has none
# what the speakers are called in the forms that are known
_SPEAKERS = {
    "system": SYSTEM, "developer": SYSTEM,
    "user": USER, "human": USER, "prompter": USER,
    "assistant": ASSISTANT, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT,
}  # fmt: skip
LISTS = ("messages", "conversations", "conversation")  # keys of a list of turns (OpenAI, ShareGPT)
_MASKED = "an answer that is not to be learned (its weight or loss is 0), and what follows"
_LEARNED, _NOT_LEARNED = ("weight", "loss", "train"), (0, "0", "false", "False")  # of a turn of the assistant
# keys, or columns, of a single exchange: the question, what is added to it, the answer
_PAIRS = (
    ("instruction", "input", "output"), ("instruction", "context", "response"),  # Alpaca, Dolly
    ("input", "", "target"), ("input", "", "output"),  # Firefly, XTuner
    ("prompt", "", "completion"), ("prompt", "", "response"), ("query", "", "response"),
    ("question", "context", "answer"), ("ask", "", "answer"), ("问题", "", "回答"), ("问", "", "答"),
)  # fmt: skip
_STARTS = frozenset([*LISTS, *(pair[0] for pair in _PAIRS)])  # one of these is in each
_SYSTEM_LINE, _HISTORY = "system", "history"  # may stand beside; earlier exchanges, [[question, answer], …]


class Message(TypedDict):
    """What one side said in its turn."""

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]  # of the assistant, in OpenAI's form; their arguments are an object


class NotAConversation(ValueError):
    """A record looks like a conversation but is not one; the message says why."""


# ---- the document ----


class Conversation(str):
    """A conversation as a document: a plain text, the turns with a line end between them, that knows its messages.

    Perhaps a system line, then questions and answers in turn, none of them blank; or nothing at all. What makes a new
    text of it (`strip`, a slice) knows no messages any more; see `changed`.
    """

    messages: tuple[Message, ...]

    def __new__(cls, messages: Iterable[Message]) -> "Conversation":
        kept = tuple(messages)
        self = super().__new__(cls, "\n".join(message["content"] for message in kept))
        self.messages = kept
        return self

    def with_contents(self, contents: Sequence[str]) -> "Conversation":
        """Return the conversation with other contents.

        It ends before the first exchange of which one side is blank; a blank system line goes alone.
        """
        pairs = zip(self.messages, contents, strict=True)
        said: list[Message] = [{"role": message["role"], "content": content} for message, content in pairs]
        first = _first_turn(said)
        turns = list(itertools.takewhile(lambda turn: turn["content"].strip(), said[first:]))
        return _whole_exchanges([turn for turn in said[:first] if turn["content"].strip()], turns)

    def with_lines(self, text: str) -> "Conversation":
        """Return the conversation with the lines of another text, which has as many."""
        lines = iter(text.split("\n"))
        counts = (message["content"].count("\n") + 1 for message in self.messages)
        return self.with_contents(["\n".join(itertools.islice(lines, count)) for count in counts])

    def shortened(self, max_length: int) -> "Conversation":
        """Return the conversation without the last exchanges that make it too long; without the first, nothing."""
        lengths = itertools.accumulate(len(message["content"]) + 1 for message in self.messages)
        first, end = _first_turn(self.messages), sum(length - 1 <= max_length for length in lengths)
        return _whole_exchanges(self.messages[:first], self.messages[first:end])


def by_turns(contents: Iterable[str]) -> list[Message]:
    """Return messages of questions and answers in turn."""
    return [{"role": (USER, ASSISTANT)[i % 2], "content": content} for i, content in enumerate(contents)]


def _first_turn(messages: Sequence[Message]) -> int:
    """Return the number of the first question."""
    return int(bool(messages) and messages[0]["role"] == SYSTEM)


def _whole_exchanges(system: Sequence[Message], turns: Sequence[Message]) -> Conversation:
    """Return the conversation of a system line and turns, without a question that has no answer."""
    turns = turns[: len(turns) // 2 * 2]
    return Conversation([*system, *turns] if turns else [])


def changed(document: str, change: Callable[[str], str]) -> str:
    """Apply a function to a document's text, or to each turn of a conversation."""
    if isinstance(document, Conversation):
        return document.with_contents([change(message["content"]) for message in document.messages])
    return change(document)


# ---- the forms ----


def characters(value) -> int:
    """Return how many characters the strings have that are anywhere in a value of JSON."""
    if isinstance(value, str):  # as most are
        return len(value)
    total, left = 0, [value]
    for part in left:  # no recursion: JSON may be nested deeper than Python's stack
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, dict | list):
            left += part.values() if isinstance(part, dict) else part
    return total


def count_unused(record: dict, used: Collection[str], spare: dict[str, int]) -> None:
    """Count in `spare` how many characters each field of a record has, but for the used ones."""
    for key in record:
        if key not in used and (n := characters(record[key])):
            spare[f"field '{key}' is not used"] += n


def listed(value) -> list | None:
    """Return a list, which in a table is a string, as JSON or as Python (pandas) writes it; None for what is none."""
    for parse in (json.loads, ast.literal_eval) if isinstance(value, str) and value.lstrip()[:1] == "[" else ():
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(value.strip())
    return value if isinstance(value, list) else None


def _pair_of(names: Collection[str]) -> tuple[str, str, str] | None:
    return next((pair for pair in _PAIRS if pair[0] in names and pair[2] in names), None)


def has_form(names: Collection[str]) -> bool:
    """Return whether records with these keys may be conversations: they have a list of turns, or such a pair."""
    return not _STARTS.isdisjoint(names) and (any(key in names for key in LISTS) or _pair_of(names) is not None)


def read_messages(record: dict, spare: dict[str, int]) -> list[Message] | None:
    """Return the messages of a record in one of the forms, or None where it has none of them.

    What is in none of them is counted in `spare`: all other fields of the record and of its turns, a last question
    without an answer, and all from the first answer on that is not to be learned. Raises NotAConversation.
    """
    key = next((key for key in LISTS if listed(record.get(key)) is not None), "")
    pair = None if key else _pair_of(record)
    if not key and not pair:
        return None
    turns = _exchanges(record, pair, spare) if pair else _turns(listed(record[key]) or [], spare)
    first = _first_turn(turns)
    asked = turns[first : first + (len(turns) - first) // 2 * 2]
    for number, turn in enumerate(turns[first:], 1):
        wanted = (ASSISTANT, USER)[number % 2]
        if turn["role"] == SYSTEM:
            raise NotAConversation(f"turn {number + first} is a system line: there may be one, as the first turn")
        if turn["role"] != wanted:
            raise NotAConversation(f"turn {number + first} is of the {turn['role']}, where the {wanted} should speak")
        if number <= len(asked) and not turn["content"].strip():
            raise NotAConversation(f"turn {number + first}, of the {wanted}, says nothing")
    if not asked:
        raise NotAConversation(f"no question with an answer{' before ' + _MASKED if _MASKED in spare else ''}")
    if rest := turns[first + len(asked) :]:
        spare["last question without an answer"] += len(rest[0]["content"])
    system = turns[:first]
    used = {key, *(pair or ()), _HISTORY if pair else key}
    if not system and isinstance(line := record.get(_SYSTEM_LINE), str):
        system = [{"role": SYSTEM, "content": line}]
        used.add(_SYSTEM_LINE)
    count_unused(record, used, spare)
    return [*(turn for turn in system if turn["content"].strip()), *asked]


def _turns(items: list, spare: dict[str, int]) -> list[Message]:
    """Return the turns of a list of them, before the first answer not to be learned. Raises NotAConversation."""
    turns: list[Message] = []
    for number, item in enumerate(items, 1):
        named = item if isinstance(item, dict) else {}
        who = "role" if named.get("role") is not None else "from"
        what = "content" if named.get("content") is not None else "value"
        role = _SPEAKERS.get(str(named.get(who)).strip().lower())
        if role == ASSISTANT and any(named.get(key) in _NOT_LEARNED for key in _LEARNED):
            spare[_MASKED] += characters(items[number - 1 :])
            break
        if not isinstance(named.get(who), str):
            raise NotAConversation(f"turn {number} says neither under 'role' nor under 'from' who speaks")
        if not role:
            raise NotAConversation(f"turn {number} is of '{named[who][:40]}'; known are {', '.join(_SPEAKERS)}")
        count_unused(named, (who, what), spare)
        turns.append({"role": role, "content": _text(named.get(what), f"turn {number}, of the {role},", spare)})
    return turns


def _exchanges(record: dict, pair: tuple[str, str, str], spare: dict[str, int]) -> list[Message]:
    """Return the turns of a record with a question and an answer, earlier ones first. Raises NotAConversation."""
    *asking, answer = pair
    history = [] if record.get(_HISTORY) in (None, "") else listed(record[_HISTORY])
    if history is None or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise NotAConversation(f"'{_HISTORY}' is not a list of pairs, [question, answer]")
    asked = [_text(record.get(key), f"'{key}'", spare) for key in asking if key]
    last = "\n".join(text for text in asked if text.strip()), _text(record[answer], f"'{answer}'", spare)
    earlier = [_text(text, f"'{_HISTORY}'", spare) for pair in history for text in pair]
    return by_turns([*earlier, *last])


def text_of(value, spare: dict[str, int]) -> str | None:
    """Return a string, or as lines a list of strings or of parts, as in OpenAI's API; None for anything else."""
    if isinstance(value, str):  # as nearly all are
        return value
    parts = value if isinstance(value, list) else [value]
    texts: list = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        return None
    for part in parts:
        count_unused(part if isinstance(part, dict) else {}, ("text", "type"), spare)
    return "\n".join(texts)


def _text(value, where: str, spare: dict[str, int]) -> str:
    """Return what is said in a turn; a missing value is nothing. Raises NotAConversation for what is no text."""
    if (text := text_of(value, spare)) is not None:
        return text
    if value is None or value == [] or value != value:  # NaN, which tables write for a field without a value
        return ""
    if isinstance(value, int | float):
        return str(value)
    raise NotAConversation(f"{where} holds something besides text")
