"""Conversations: read from the forms in common use, as documents that know who said what.

A conversation is a document like any other, the plain text of its turns, but remembers where they begin. Its roles are
those of OpenAI's API. Knows records and texts: no file, no rule of cleaning, no chat template.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypedDict

SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")
# what the speakers are called in the forms that are known
_SPEAKERS = {
    "system": SYSTEM,
    "user": USER, "human": USER, "prompter": USER,
    "assistant": ASSISTANT, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "bot": ASSISTANT, "model": ASSISTANT,
}  # fmt: skip
# keys of a list of turns (OpenAI, ShareGPT), and in a turn those of the speaker and of what is said
LISTS = ("messages", "conversations", "conversation")
_WHO, _WHAT = ("role", "from"), ("content", "value")
# keys, or columns, of a single exchange: the question, what is added to it, the answer; the first is Alpaca's
_PAIRS = (
    ("instruction", "input", "output"),
    ("prompt", "", "completion"),
    ("prompt", "", "response"),
    ("query", "", "response"),
    ("question", "", "answer"),
    ("ask", "", "answer"),
    ("问题", "", "回答"),
    ("问", "", "答"),
)
_SYSTEM_LINE, _HISTORY = "system", "history"  # may stand beside; earlier exchanges, [[question, answer], …]
KEYS = frozenset([*LISTS, *(key for pair in _PAIRS for key in pair if key), _SYSTEM_LINE, _HISTORY])


class Message(TypedDict):
    """What one side said in its turn."""

    role: str
    content: str


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

    def __getnewargs__(self) -> tuple:
        return (self.messages,)

    @classmethod
    def of_lines(cls, text: str) -> "Conversation":
        """Return the conversation of a text whose lines are question and answer in turn."""
        return cls(_by_turns(text.split("\n")))

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
        """Return the conversation without the last exchanges, as many as make it too long; without the first, nothing.

        The length is in characters, the line ends between the turns included.
        """
        lengths = itertools.accumulate(len(message["content"]) + 1 for message in self.messages)
        first, end = _first_turn(self.messages), sum(length - 1 <= max_length for length in lengths)
        return _whole_exchanges(self.messages[:first], self.messages[first:end])


def _by_turns(contents: Iterable[str]) -> list[Message]:
    return [{"role": (USER, ASSISTANT)[i % 2], "content": content} for i, content in enumerate(contents)]


def _first_turn(messages: Sequence[Message]) -> int:
    """Return the number of the first question."""
    return int(bool(messages) and messages[0]["role"] == SYSTEM)


def _whole_exchanges(system: Sequence[Message], turns: Sequence[Message]) -> Conversation:
    """Return the conversation of a system line and turns, without a question that has no answer."""
    turns = turns[: len(turns) // 2 * 2]
    return Conversation([*system, *turns] if turns else [])


def contents_of(document: str) -> list[str]:
    """Return what a document says, turn by turn; a plain text is one."""
    return [message["content"] for message in document.messages] if isinstance(document, Conversation) else [document]


def changed(document: str, change: Callable[[str], str]) -> str:
    """Apply a function to a document's text, or to each turn of a conversation."""
    if isinstance(document, Conversation):
        return document.with_contents([change(content) for content in contents_of(document)])
    return change(document)


# ---- the forms ----


def has_pair(names: Collection[str]) -> bool:
    """Return whether a table with these columns has one for a question and one for its answer."""
    return any(question in names and answer in names for question, _, answer in _PAIRS)


def has_form(names: Collection[str]) -> bool:
    """Return whether records with these keys may be conversations: they have a list of turns, or such a pair."""
    return any(key in names for key in LISTS) or has_pair(names)


def read_messages(record: dict) -> list[Message] | None:
    """Return the messages of a record in one of the forms, or None where it has none of them.

    A last question without an answer is left out, a blank system line too. Raises NotAConversation.
    """
    key = next((key for key in LISTS if isinstance(record.get(key), list)), "")
    pair = next((pair for pair in _PAIRS if pair[0] in record and pair[2] in record), None)
    if key:
        turns = [_message(number, turn) for number, turn in enumerate(record[key], 1)]
    elif pair:
        turns = _exchanges(record, *pair)
    else:
        return None
    first = _first_turn(turns)
    for number, turn in enumerate(turns[first:], first + 1):
        wanted = (USER, ASSISTANT)[(number - 1 - first) % 2]
        if turn["role"] == SYSTEM:
            raise NotAConversation(f"turn {number} is a system line: there may be one, as the first turn")
        if turn["role"] != wanted:
            raise NotAConversation(f"turn {number} is of the {turn['role']}, where the {wanted} should speak")
    asked = turns[first : first + (len(turns) - first) // 2 * 2]
    if not asked:
        raise NotAConversation("no question with an answer")
    for number, turn in enumerate(asked, first + 1):
        if not turn["content"].strip():
            raise NotAConversation(f"turn {number}, of the {turn['role']}, says nothing")
    system = turns[:first]
    if not system and isinstance(line := record.get(_SYSTEM_LINE), str):
        system = [{"role": SYSTEM, "content": line}]
    return [*(turn for turn in system if turn["content"].strip()), *asked]


def _message(number: int, turn) -> Message:
    """Return one turn of a list of turns. Raises NotAConversation."""
    who = next((turn[key] for key in _WHO if turn.get(key) is not None), None) if isinstance(turn, dict) else None
    if not isinstance(who, str):
        raise NotAConversation(f"turn {number} says neither under 'role' nor under 'from' who speaks")
    role = _SPEAKERS.get(who.strip().lower())
    if not role:
        raise NotAConversation(f"turn {number} is of '{who[:40]}'; known are {', '.join(_SPEAKERS)}")
    what = next((turn[key] for key in _WHAT if turn.get(key) is not None), None)
    return {"role": role, "content": _text(what, f"turn {number}, of the {role},")}


def _exchanges(record: dict, question: str, addition: str, answer: str) -> list[Message]:
    """Return the turns of a record with a question and an answer, earlier ones first. Raises NotAConversation."""
    history = record.get(_HISTORY)
    history = [] if history in (None, "", "[]") else history
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise NotAConversation(f"'{_HISTORY}' is not a list of pairs, [question, answer]")
    asked = [_text(record.get(key), f"'{key}'") for key in (question, addition) if key]
    last = "\n".join(text for text in asked if text.strip()), _text(record[answer], f"'{answer}'")
    earlier = [_text(text, f"'{_HISTORY}'") for pair in history for text in pair]
    return _by_turns([*earlier, *last])


def _text(value, where: str) -> str:
    """Return what is said in a turn; a missing value is nothing. Raises NotAConversation for what is no text."""
    if isinstance(value, list):  # of parts, as in OpenAI's API
        return "\n".join(_text(part.get("text", part) if isinstance(part, dict) else part, where) for part in value)
    if value is None or value != value:  # NaN, which tables write for a field without a value
        return ""
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise NotAConversation(f"{where} holds something besides text")
    return value
