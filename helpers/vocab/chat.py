"""Chat templates: a conversation becomes ids, and each id is marked as the assistant's own or not.

A template is a small Jinja program in the tokenizer's folder: every tool of Hugging Face runs it, and so do we. Only
the template writes special tokens. Messages are encoded apart from it, as plain text: "<assistant>" typed by a user is
eleven letters, and opens no turn. Knows nothing of files, windows or models.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import jinja2
from transformers import PreTrainedTokenizerFast

from helpers.corpus.conversations import ASSISTANT, ROLES, SYSTEM, USER, Message
from helpers.vocab.tokenizer import encode_batch

# ours: <bos> system line <user> question <assistant> answer <eos> <user> question <assistant> answer <eos> …
TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == "system" %}{{- message.content }}
{%- elif message.role == "user" %}{{- user_token + message.content }}
{%- else %}{{- assistant_token + message.content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- assistant_token }}{% endif %}"""
# mark the places of the contents; from a private area of Unicode, which no template writes
_OPEN, _CLOSE = "\ue0fa", "\ue0fb"
_CACHED = 500  # long conversations have many orders of roles


class ChatError(ValueError):
    """A conversation that cannot be used, or a tokenizer that has no template; the message says why."""


class TooLong(ChatError):
    """A conversation whose last question alone has more tokens than are free."""


class Encoded(NamedTuple):
    """A conversation as ids."""

    ids: list[int]
    is_answer: list[bool]  # whether the assistant writes this id; the end of its turn included


class _Piece(NamedTuple):
    """A piece of a rendered conversation, written by the template or by a message."""

    text: str  # of the template; "" for a message
    message: int  # its number; -1 for the template


# ---- the template of a tokenizer ----


def has_template(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether a tokenizer has a chat template."""
    return bool(tokenizer.chat_template)


def role_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return the special token that opens each role's turn in our template: its own, or <role>."""
    known = tokenizer.special_tokens_map
    return {role: known.get(f"{role}_token", f"<{role}>") for role in (USER, ASSISTANT)}


def add_template(tokenizer: PreTrainedTokenizerFast) -> int:
    """Give a tokenizer our template if it has none, and the roles' tokens if they are missing; return how many.

    New tokens take the next free ids, so a model needs as many new rows. From now on the library's own call reads a
    special token wherever its name stands in a text.
    """
    before = len(tokenizer)
    if not has_template(tokenizer):
        names = role_tokens(tokenizer)
        missing = [name for name in names.values() if name not in tokenizer.all_special_tokens]
        tokenizer.add_special_tokens({"extra_special_tokens": missing}, replace_extra_special_tokens=False)
        template = TEMPLATE
        for role, name in names.items():  # written out: some tools pass a template only bos_token and eos_token
            template = template.replace(f"{role}_token", repr(name))
        tokenizer.chat_template = template
    tokenizer.split_special_tokens = False
    return len(tokenizer) - before


def end_of_turn(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the id of the special token that ends an answer. Raises ChatError if the template writes none."""
    ids, is_answer = encode_messages(tokenizer, [_message(USER, "?"), _message(ASSISTANT, "!")])
    last = max(i for i, own in enumerate(is_answer) if own)
    if ids[last] not in tokenizer.all_special_ids:
        raise ChatError("this tokenizer's template ends an answer with no special token: nothing would stop it")
    return ids[last]


# ---- checks ----


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ChatError unless an optional system line comes first, then user and assistant in turns, last the user."""
    spoken = messages[1:] if messages and messages[0]["role"] == SYSTEM else messages
    if not spoken:
        raise ChatError("there is no message of the user")
    first = len(messages) - len(spoken)
    for number, message in enumerate(spoken):
        role, wanted, where = message["role"], (USER, ASSISTANT)[number % 2], f"message {first + number + 1}"
        if role not in ROLES:
            raise ChatError(f"{where} has the role '{role[:40]}': the roles are {', '.join(ROLES)}")
        if role == SYSTEM:
            raise ChatError(f"{where} is a system line: only the first message may be one")
        if role != wanted:
            raise ChatError(f"{where} is of the {role}, where the {wanted} should speak: they take turns")
    if spoken[-1]["role"] != USER:
        raise ChatError(f"the last message is of the {spoken[-1]['role']}; it should be of the {USER}")


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


# ---- messages to ids ----


def encode_messages(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], generation_prompt: bool = False
) -> Encoded:
    """Return a conversation as ids, in the form of the tokenizer's template.

    `generation_prompt`: the ids continue to where the assistant's next answer begins. Raises ChatError where the
    template refuses the messages or changes more of them than surrounding space, and for a lone surrogate.
    """
    # 1. what the template writes, and where it puts the messages
    roles = tuple(message["role"] for message in messages)
    contents = [message["content"] for message in messages]
    stripped = [content.strip() for content in contents]  # as many templates do
    whole = _render(tokenizer, messages, generation_prompt)
    pieces = _pieces(tokenizer, str(tokenizer.chat_template), roles, generation_prompt)
    if whole not in (_joined(pieces, contents), _joined(pieces, stripped)):  # some write today's date
        _pieces.cache_clear()
        whole = _render(tokenizer, messages, generation_prompt)
        pieces = _pieces(tokenizer, str(tokenizer.chat_template), roles, generation_prompt)
    if _joined(pieces, contents) != whole:
        contents = stripped
        if _joined(pieces, contents) != whole:
            raise ChatError("the chat template of this model changes what these messages say: they cannot be used")
    # 2. ids: special tokens from the template only
    try:
        said = encode_batch(tokenizer, contents)
    except ValueError as error:
        raise ChatError(str(error)) from None
    ids: list[int] = []
    is_answer: list[bool] = []
    ending = False  # in what follows an answer, up to the token that ends its turn
    for text, number in pieces:
        if number >= 0:
            ids += said[number]
            ending = roles[number] == ASSISTANT
            is_answer += [ending] * len(said[number])
            continue
        for token, special in _template_ids(tokenizer, str(tokenizer.chat_template), text):
            ids.append(token)
            is_answer.append(ending)
            ending = ending and not special
    return Encoded(ids, is_answer)


def _joined(pieces: Sequence[_Piece], contents: Sequence[str]) -> str:
    return "".join(text if number < 0 else contents[number] for text, number in pieces)


@lru_cache(_CACHED)
def _pieces(
    tokenizer: PreTrainedTokenizerFast, template: str, roles: tuple[str, ...], generation_prompt: bool
) -> list[_Piece]:
    """Return the pieces of a conversation with these roles; `template`, the tokenizer's, is there for the cache."""
    marked = [_message(role, f"{_OPEN}{number}{_CLOSE}") for number, role in enumerate(roles)]
    parts = re.split(f"{_OPEN}([0-9]+){_CLOSE}", _render(tokenizer, marked, generation_prompt))
    if [int(number) for number in parts[1::2]] != list(range(len(roles))):
        raise ChatError("the chat template of this model leaves messages out, or repeats them: it cannot be used")
    pieces = [_Piece("", int(part)) if i % 2 else _Piece(part, -1) for i, part in enumerate(parts)]
    return [piece for piece in pieces if piece.text or piece.message >= 0]


def _render(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], generation_prompt: bool) -> str:
    if not has_template(tokenizer):
        raise ChatError("this model has no chat template: it continues texts. Run deeper/chat to teach it to answer")
    try:
        text = tokenizer.apply_chat_template(
            cast(list[dict[str, str]], list(messages)), tokenize=False, add_generation_prompt=generation_prompt
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise ChatError(f"the chat template of this model refuses these messages: {why}") from None
    return str(text)


@lru_cache(_CACHED)
def _template_ids(tokenizer: PreTrainedTokenizerFast, template: str, text: str) -> list[tuple[int, bool]]:
    """Return (id, whether it is a special token) of a text that the template writes."""
    names = {token.content: i for i, token in tokenizer.added_tokens_decoder.items()}
    names |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    parts = re.split("(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")", text)
    ids: list[tuple[int, bool]] = []
    for i, part in enumerate(parts):
        ids += [(names[part], True)] if i % 2 else [(token, False) for token in encode_batch(tokenizer, [part])[0]]
    return ids


def fit_messages(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], most: int) -> tuple[list[int], int]:
    """Return (ids with the generation prompt, messages left out), at most `most` ids.

    The oldest question is left out with its answer, then the next; the system line stays. Raises TooLong where the last
    question alone has more ids, ChatError for messages that `check_messages` or the template refuses.
    """
    check_messages(messages)
    system = list(messages[:1]) if messages[0]["role"] == SYSTEM else []
    spoken = list(messages[len(system) :])

    def ids_without(exchanges: int) -> list[int]:
        return encode_messages(tokenizer, [*system, *spoken[2 * exchanges :]], generation_prompt=True).ids

    # fewer messages never have more ids: halving finds how many exchanges must go
    exchanges = bisect_left(range(len(spoken) // 2), True, key=lambda left_out: len(ids_without(left_out)) <= most)
    if len(ids := ids_without(exchanges)) > most:
        kept = "question and system line have" if system else "question has"
        raise TooLong(f"the {kept} {len(ids)} tokens, and {most} are free: ask in fewer words")
    return ids, 2 * exchanges
