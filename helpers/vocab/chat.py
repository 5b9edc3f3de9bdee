"""Chat templates: a conversation becomes ids, and each id is marked as the assistant's own or not.

A template is a small Jinja program in the tokenizer's folder: every tool of Hugging Face runs it, and so do we. Only
the template writes special tokens. Messages are encoded apart from it, as plain text: "<assistant>" typed by a user is
eleven letters, and opens no turn. Knows nothing of files, windows or models.
"""

import json
import os.path
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jinja2
from transformers import PreTrainedTokenizerFast

from helpers.corpus.conversations import ASSISTANT, SYSTEM, TOOL, USER, Message
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
# around the number of what no message may write; from a private area of Unicode, which no template writes
_OPEN, _CLOSE = "\ue0fa", "\ue0fb"
# how a text and an answer are drawn where nobody says otherwise: measured in deeper/chat, a text may be more daring
TEXT_SAMPLING = {"temperature": 0.8, "top_k": 30, "top_p": 0.95}
ANSWER_SAMPLING = TEXT_SAMPLING | {"temperature": 0.2}
_THOUGHT = "</think>"  # what an answer has up to here, many templates drop or move
Tools = Sequence[dict[str, Any]]  # definitions in the form of OpenAI's API
_CACHED = 500  # long conversations have many orders of roles
_CALL = {"name": "a_tool", "arguments": {"a": 1}}  # to look for in what a template writes
_TURNS = re.compile("s?u((ct+)*au)*(ct+)*")  # system line, user, call, tool, assistant


class ChatError(ValueError):
    """A conversation that cannot be used, or a tokenizer that has no template; the message says why."""


class TooLong(ChatError):
    """A conversation whose last question alone has more tokens than are free."""


class Encoded(NamedTuple):
    """A conversation as ids."""

    ids: list[int]
    is_answer: list[bool]  # whether the assistant writes this id; the end of its turn included


class CallForm(NamedTuple):
    """How a template writes that the assistant calls a tool: a JSON object with "name" and "arguments", in marks."""

    opens: str  # text before the object; "" where only a special token says it, which no text shows
    closes: str
    marks: frozenset[int]  # special tokens of the marks: the model may write them

    def may_begin(self, text: str) -> bool:
        """Return whether a call begins in a text that is still being written, or its last characters may begin one."""
        if not self.opens:
            return text.lstrip()[:1] in ("", "{")
        return self.opens in text or any(text.endswith(self.opens[:n]) for n in range(1, len(self.opens)))

    def read(self, text: str, names: Collection[str]) -> tuple[str, list[dict[str, Any]]]:
        """Return what is said before the calls in a text, and their objects; a call of no tool of these is text."""
        said, opened, rest = text.partition(self.opens) if self.opens else ("", "{", text)
        calls: list[dict[str, Any]] = []
        while opened and (rest := rest.strip()):
            try:
                call, end = json.JSONDecoder().raw_decode(rest)
                is_call = call.keys() == {"name", "arguments"} and isinstance(call["arguments"], dict)
                is_call = is_call and call["name"] in names
            except (AttributeError, TypeError, ValueError, RecursionError):
                is_call = False
            if not is_call:
                return text, []
            calls.append(call)
            rest = rest[end:].strip().removeprefix(self.closes).strip().removeprefix(self.opens)
        return (said.strip(), calls) if calls else (text, [])


class _Token(NamedTuple):
    id: int
    special: bool


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


def turn_borders(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Return the special tokens that a template writes after an answer: where one comes, the turn is over.

    None without a template, or with one that has no second question.
    """
    talk = [_message(USER, "?"), _message(ASSISTANT, _OPEN), _message(USER, "?")]
    try:
        text = _render(tokenizer, talk, True)
    except ChatError:
        return frozenset()
    return frozenset(token.id for token in _tokens(tokenizer, text[text.find(_OPEN) :]) if token.special)


def call_form(tokenizer: PreTrainedTokenizerFast) -> CallForm | None:
    """Return how a model calls tools; None where its template leaves out tools, calls or results, or has no JSON."""
    return _call_form(tokenizer, str(tokenizer.chat_template))


@lru_cache(_CACHED)
def _call_form(tokenizer: PreTrainedTokenizerFast, template: str) -> CallForm | None:
    talk = [_message(USER, "?"), _calling(_CALL), _message(TOOL, _CLOSE)]
    tools = [{"type": "function", "function": {"name": _OPEN, "description": "", "parameters": {}}}]
    try:
        before, whole, answered = (_render(tokenizer, talk[:count], True, tools) for count in (1, 2, 3))
        begin = len(os.path.commonprefix([before, whole]))
        brace = whole.rfind("{", begin, whole.index(str(_CALL["name"]), begin))
        call, end = json.JSONDecoder().raw_decode(whole, max(brace, begin))
    except ValueError:  # a ChatError, no name, no JSON
        return None
    if call != _CALL or _OPEN not in before or _CLOSE not in answered:
        return None
    specials, borders = _specials(tokenizer, len(tokenizer)), turn_borders(tokenizer)
    opens, closes = _split(tokenizer, whole[begin:brace]), _split(tokenizer, whole[end:])
    closes = closes[: next((i for i in range(1, len(closes), 2) if specials[closes[i]][0] in borders), len(closes))]
    marks = frozenset(specials[name][0] for name in (*opens[1::2], *closes[1::2]))
    return CallForm("".join(opens[::2]).strip(), "".join(closes[::2]).strip(), marks)


# ---- checks ----


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ChatError unless an optional system line comes first, then user and assistant in turns, last the user.

    Before it answers, the assistant may call tools, whose results come next.
    """
    roles = [message["role"] for message in messages]
    if USER not in roles:
        raise ChatError("there is no message of the user")
    if not _TURNS.fullmatch("".join("c" if message.get("tool_calls") else message["role"][0] for message in messages)):
        said = ", ".join(role[:40] for role in roles)
        raise ChatError(
            f"the messages are of {said}: user and assistant take turns, the user, or a tool that was called, has the "
            "last word"
        )


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _calling(function: dict[str, Any]) -> Message:
    return {"role": ASSISTANT, "content": "", "tool_calls": [{"type": "function", "function": function}]}


# ---- messages to ids ----


def encode_messages(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], generation_prompt: bool = False, tools: Tools = ()
) -> Encoded:
    """Return a conversation as ids, in the form of the tokenizer's template: those that the library makes of it.

    `generation_prompt`: the ids continue to where the assistant's next answer begins. Without it, they begin with those
    that the last answer is asked with, and an answer is all that follows, up to the token that ends its turn; a call of
    one of the `tools` is an answer, too. Where `adds_only` is false, only the last answer counts as one. Raises
    ChatError where the template refuses the messages or changes more of them than outer space and thoughts, and for a
    lone surrogate.
    """
    # no message can write a special token, nor the definition of a tool
    safe: list[Message] = _veiled(tokenizer, [{**each, "content": each.get("content") or ""} for each in messages])
    tools = _veiled(tokenizer, list(tools))
    kinds = tuple("call" if message.get("tool_calls") else message["role"] for message in safe)
    _check_template(tokenizer, str(tokenizer.chat_template), kinds)
    text = _render(tokenizer, safe, generation_prompt, tools)
    tokens = _tokens(tokenizer, text)
    own: set[int] = set()  # places of the assistant's
    marks = form.marks if "call" in kinds and (form := call_form(tokenizer)) else frozenset()
    answers = [number for number, message in enumerate(safe) if message["role"] == ASSISTANT and not generation_prompt]
    for number in answers if adds_only(tokenizer) else answers[-1:]:
        message, asked = safe[number], _render(tokenizer, safe[:number], True, tools)
        prompt = _tokens(tokenizer, asked)
        end = common = len(os.path.commonprefix([text, asked]))
        for forms in _parts(message):
            found = [(text.index(form, end), len(form)) for form in forms if form in text[end:]]
            if not found:
                raise ChatError(f"the chat template of this model changes what message {number + 1} says")
            begin, end = found[0][0], sum(found[0])
        if message.get("tool_calls"):
            begin = common
        if common < len(asked):  # what the template writes before an answer is not what it asks with
            text, end = asked + text[begin:], end + len(asked) - begin
            tokens = _tokens(tokenizer, text)
        if number == len(safe) - 1 and tokens[: len(prompt)] != prompt:  # a token would reach over the border
            tokens = prompt + _tokens(tokenizer, text[len(asked) :])
        first = next((i for i, (had, has) in enumerate(zip(prompt, tokens, strict=False)) if had != has), len(prompt))
        specials = [i for i, token in enumerate(tokens) if token.special]
        before = len(_split(tokenizer, text[:end])) // 2
        last = next((i for i in specials[before:] if tokens[i].id not in marks), len(tokens) - 1)
        own |= {*range(first, last + 1)}
    return Encoded([token.id for token in tokens], [i in own for i in range(len(tokens))])


def adds_only(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether a template leaves what it wrote as it is when a conversation goes on.

    Where it does not, as where the thoughts of older answers go, each answer has to be learnt by itself.
    """
    return _adds_only(tokenizer, str(tokenizer.chat_template))


@lru_cache(_CACHED)
def _adds_only(tokenizer: PreTrainedTokenizerFast, template: str) -> bool:
    talk = [_message(role, str(number)) for number, role in enumerate((USER, ASSISTANT, USER, ASSISTANT))]
    texts = [_render(tokenizer, talk[:count], count % 2 == 1) for count in range(1, 5)]
    return all(later.startswith(earlier) for earlier, later in pairwise(texts))


@lru_cache(_CACHED)
def _check_template(tokenizer: PreTrainedTokenizerFast, template: str, kinds: tuple[str, ...]) -> None:
    """Raise ChatError unless messages of these roles, or calls, all come, once and in order; `template` is a key."""
    marks = [f"{_OPEN}{number}{_CLOSE}" for number in range(len(kinds))]
    marked = [
        _calling(_CALL | {"arguments": {"a": mark}}) if kind == "call" else _message(kind, mark)
        for kind, mark in zip(kinds, marks, strict=True)
    ]
    if re.findall(f"{_OPEN}[0-9]+{_CLOSE}", _render(tokenizer, marked, False)) != marks:
        raise ChatError("the chat template of this model leaves messages out, or repeats them: it cannot be used")


def _parts(message: Message) -> list[list[str]]:
    """Return what a template writes of a message, in order: a text but for outer space or thoughts, names of tools."""
    said, names = message["content"].strip(), [[call["function"]["name"]] for call in message.get("tool_calls", ())]
    forms = [said, said.rpartition(_THOUGHT)[2].strip()] if message["role"] == ASSISTANT else [said]
    return names if names and not said else [forms, *names]


def _render(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], generation_prompt: bool, tools: Tools = ()
) -> str:
    if not has_template(tokenizer):
        raise ChatError("this model has no chat template: it continues texts. Run deeper/chat to teach it to answer")
    try:
        text = tokenizer.apply_chat_template(
            cast(list[dict[str, str]], list(messages)),
            cast(list[dict | Callable], list(tools)) or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise ChatError(f"the chat template of this model refuses these messages: {why}") from None
    return str(text)


@lru_cache(_CACHED)
def _specials(tokenizer: PreTrainedTokenizerFast, size: int) -> dict[str, tuple[int, bool, bool]]:
    """Return id, lstrip and rstrip of each special token, the longest first; `size`, len(tokenizer), is for the cache.

    The two say whether it swallows the space before it and after it.
    """
    added = {token.content: (i, token) for i, token in tokenizer.added_tokens_decoder.items()}
    names = {name: added[name] for name in added if added[name][1].special or name in tokenizer.all_special_tokens}
    longest = sorted(names, key=len, reverse=True)
    return {name: (names[name][0], names[name][1].lstrip, names[name][1].rstrip) for name in longest}


def _veiled(tokenizer: PreTrainedTokenizerFast, said: list[Any]) -> list[Any]:
    """Return what somebody says, values of JSON, with numbers in place of the names of special tokens."""
    names = [*_specials(tokenizer, len(tokenizer)), _OPEN]
    pattern = re.compile("|".join(map(re.escape, names)))

    def veiled(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda found: f"{_OPEN}{names.index(found.group())}{_CLOSE}", value)
        if isinstance(value, dict):
            return {veiled(key): veiled(each) for key, each in value.items()}
        return [veiled(each) for each in value] if isinstance(value, list) else value

    return veiled(said)


def _split(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Return a rendered text as plain text, a special token, plain text, and so on."""
    return re.split("(" + "|".join(map(re.escape, _specials(tokenizer, len(tokenizer)))) + ")", text)


def _tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[_Token]:
    """Return the tokens of a rendered text, as the library cuts it; what `_veiled` has veiled is plain text again."""
    specials, parts = _specials(tokenizer, len(tokenizer)), _split(tokenizer, text)
    for i, name in enumerate(parts[1::2]):
        _, before, after = specials[name]
        parts[2 * i] = parts[2 * i].rstrip() if before else parts[2 * i]
        parts[2 * i + 2] = parts[2 * i + 2].lstrip() if after else parts[2 * i + 2]
    tokens: list[_Token] = []
    for i, part in enumerate(parts):
        tokens += [_Token(specials[part][0], True)] if i % 2 else _plain(tokenizer, len(tokenizer), part, i > 0)
    return tokens


@lru_cache(_CACHED)  # a conversation's prompts have its texts again
def _plain(tokenizer: PreTrainedTokenizerFast, size: int, text: str, inside: bool) -> list[_Token]:
    names = [*_specials(tokenizer, size), _OPEN]
    text = re.sub(f"{_OPEN}([0-9]+){_CLOSE}", lambda found: names[int(found[1])], text)
    try:
        return [_Token(i, False) for i in encode_batch(tokenizer, [text], inside)[0]]
    except ValueError as error:
        raise ChatError(str(error)) from None


def fit_messages(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], most: int, tools: Tools = ()
) -> tuple[list[int], int]:
    """Return (ids with the generation prompt, messages left out), at most `most` ids.

    The oldest question is left out with its answer, then the next; the system line and `tools` stay. Raises TooLong
    where the last question alone has more ids, ChatError for messages that `check_messages` or the template refuses.
    """
    check_messages(messages)
    system = list(messages[:1]) if messages[0]["role"] == SYSTEM else []
    spoken = list(messages[len(system) :])
    questions = [at for at, message in enumerate(spoken) if message["role"] == USER]

    def ids_from(begin: int) -> list[int]:
        return encode_messages(tokenizer, [*system, *spoken[begin:]], generation_prompt=True, tools=tools).ids

    # fewer messages never have more ids: halving finds the first question that can stay
    left_out = questions[bisect_left(questions[:-1], True, key=lambda begin: len(ids_from(begin)) <= most)]
    if len(ids := ids_from(left_out)) > most:
        kept = "question and system line have" if system else "question has"
        raise TooLong(f"the {kept} {len(ids)} tokens, and {most} are free: ask in fewer words")
    return ids, left_out
