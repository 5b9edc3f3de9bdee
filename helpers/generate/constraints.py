"""Constrained decoding: acrostics, line lengths, rhymes, whatever the model prefers.

A constraint is a finite automaton that reads the text character by character. Its state has two parts: the place in the
form (line and column), and the rhyme chosen so far. For every state, the length of the shortest ending is known, in
characters. A token is allowed if an ending exists after its characters and fits into the tokens that are left, at one
token per character: so a text that has begun can always be finished. (Masks from automata: Willard and Louf 2023,
"Efficient Guided Generation for LLMs".)

Knows no model. Sees only the continuation, not the prompt.
"""

import functools
import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers.wording import install

# 中华新韵: what rhymes, by pinyin finals. The final i of zhi, chi, shi, ri, zi, ci and si is a group of its own, 十三支
RHYMES = {
    "一麻": "a ia ua", "二波": "o io e uo", "三皆": "ie ve", "四开": "ai uai", "五微": "ei uei", "六豪": "ao iao",
    "七尤": "ou iou", "八寒": "an ian uan van", "九文": "en in uen vn", "十唐": "ang iang uang",
    "十一庚": "eng ing ueng ong iong", "十二齐": "i er v", "十三支": "-i", "十四姑": "u",
}  # fmt: skip
_BY_FINAL = {final: number for number, finals in enumerate(RHYMES.values(), start=1) for final in finals.split()}
_LONGEST = 16  # characters; longer tokens (runs of spaces or signs in pretrained vocabularies) are never allowed
_MOST_STATES = 20_000_000  # places in the form × characters: a second of work, 80 MB
_FAR = 2**30  # the length of an ending that does not exist


@dataclass(frozen=True)
class Constraint:
    """A form for a text; every rule holds at once. Raises ValueError where fields contradict each other."""

    heads: str = ""  # the first characters of the lines, one per line (an acrostic, 藏头诗)
    # letters and digits in each line, its end not counted: one number for all lines, or one per line, in turn; nothing
    # else may occur within the line. 0: any number of characters from 1
    characters: int | tuple[int, ...] = 0
    lines: int = 0  # how many lines; 0: as many as heads
    ends: tuple[str, ...] = ("，", "。")  # what follows each line, in turn
    rhymes: tuple[int, ...] = ()  # the lines, counted from 1, whose last characters rhyme (`rhyme`)

    def __post_init__(self) -> None:
        for name in ("ends", "rhymes"):
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give a tuple, (…,) with a comma if it is one")
        counts = self._counts
        are_numbers = bool(counts) and all(isinstance(count, int) and count >= 0 for count in counts)
        is_double = self.heads and self.lines not in (0, len(self.heads))
        for is_wrong, what in (
            (not are_numbers, f"characters is {self.characters!r}: give 0 or more, or a tuple of numbers"),
            (len(set(map(bool, counts))) > 1, "characters has 0 for some lines: give a number for all, or for none"),
            (is_double, f"lines is {self.lines}, but there are {len(self.heads)} heads: leave lines out"),
            (not self.ends or not all(self.ends), "ends: each line needs an end of one character or more"),
            (self.rhymes and not any(counts), "rhymes needs characters"),
            (not set(self.rhymes) <= set(range(1, self._lines + 1)), f"rhymes: choose lines from 1 to {self._lines}"),
            (self._lines < 1, f"there is no form: give heads, or lines from 1 on; lines is {self.lines}"),
        ):
            if is_wrong:
                raise ValueError(what)

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.characters if isinstance(self.characters, tuple) else (self.characters,)

    @property
    def _lines(self) -> int:
        return len(self.heads) or self.lines

    def begin(self, tokenizer: PreTrainedTokenizerFast, eos: int, max_new_tokens: int) -> "ConstraintState":
        """Return the state before the first token; eos is the token of the document's end.

        Raises ValueError if no text of this vocabulary meets the constraint, or if none is sure to fit into
        max_new_tokens.
        """
        automaton = _automaton(self, tokenizer)
        if (shortest := automaton.shortest) > max_new_tokens:
            raise ValueError(
                f"max_new_tokens is {max_new_tokens}, but this constraint may take {shortest} tokens, one a character: "
                f"set max_new_tokens to {shortest} or more"
            )
        return ConstraintState(automaton, eos, max_new_tokens)


def quatrain(heads: str = "", characters: int = 7) -> Constraint:
    """Return the form of a 绝句: four lines of 7 (or 5) characters, of which the second and the fourth rhyme."""
    return Constraint(heads=heads, characters=characters, lines=0 if heads else 4, rhymes=(2, 4))


class ConstraintState:
    """The state of one text in its constraint: what it may continue with."""

    def __init__(self, automaton: "_Automaton", eos: int, max_new_tokens: int) -> None:
        self.done = False  # the text is complete
        self._automaton, self._eos, self._left = automaton, eos, max_new_tokens
        self._at = (0, 0)  # place in the form, rhyme

    def allowed(self, width: int) -> Tensor:
        """Return (width,), true for the tokens that may come next; when done, only the document's end.

        width: the model's vocab_size, which may be larger than the tokenizer's length; ids in between are not allowed.
        """
        mask = np.zeros(width, dtype=bool)
        if not self.done:
            after = self._automaton.after(self._at)  # (length of the tokenizer,)
            mask[: len(after)] = after < self._left  # an ending must fit into what is left then
        mask[self._eos] = self.done
        return torch.from_numpy(mask)

    def advance(self, token: int) -> None:
        """Take in a token that was written; raise ValueError for one that was not allowed."""
        if self.done and token == self._eos:
            return
        at = self._automaton.read(self._at, token)
        if self.done or self._automaton.needs[at] >= self._left:
            raise ValueError(f"token {token} is not allowed here: choose among allowed()")
        self._at, self._left = at, self._left - 1
        self.done = at[0] == self._automaton.end


def rhyme(character: str) -> str:
    """Return a character's rhyme group in 中华新韵, such as "八寒", by its commonest reading; "" if it has none."""
    number = _rhyme_numbers([character])[0]
    return list(RHYMES)[number - 1] if number else ""


def _rhyme_numbers(characters: list[str]) -> list[int]:
    try:
        from pypinyin import Style, lazy_pinyin  # optional
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"rhymes need pypinyin: {install('text')}") from None
    finals = lazy_pinyin(characters, style=Style.FINALS, errors=lambda _: [""])  # type: ignore[arg-type,return-value]
    initials = lazy_pinyin(characters, style=Style.INITIALS, errors=lambda _: [""])  # type: ignore[arg-type,return-value]
    sharp = ("zh", "ch", "sh", "r", "z", "c", "s")
    return [
        _BY_FINAL.get("-i" if final == "i" and initial in sharp else final, 0)
        for final, initial in zip(finals, initials, strict=True)
    ]


@functools.lru_cache(maxsize=4)  # it takes about 50 ms
def _vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Return the tokens whose text is the same whatever their neighbours are, with their texts."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    ids = [i for i, name in enumerate(names) if i not in special and not re.fullmatch("<0x[0-9A-F]{2}>", name)]
    decode = tokenizer.backend_tokenizer.decode_batch
    texts, doubled = decode([[i] for i in ids]), decode([[i, i] for i in ids])
    # BERT's Latin words get a space between them, half a character has no text: these are left out
    return {
        i: text
        for i, text, twice in zip(ids, texts, doubled, strict=True)
        if 0 < len(text) <= _LONGEST and "\ufffd" not in text and twice == text + text
    }


class _Automaton:
    """A constraint over one vocabulary: its tables, and for every state the characters to the nearest ending.

    A state is a place in the form and a rhyme (0: none yet); each has a table of what follows by character. -1 is wrong
    in both; as an index it is the last row, and after what is wrong all is wrong.
    """

    def __init__(self, constraint: Constraint, tokenizer: PreTrainedTokenizerFast) -> None:
        vocabulary = _vocabulary(tokenizer)
        _check_spelling(constraint, vocabulary)
        characters = sorted({*"".join([*vocabulary.values(), constraint.heads, *constraint.ends]), "\n"})
        numbers = {character: i for i, character in enumerate(characters)}
        # tokens as rows of characters, -1 beyond the end, and all along where a token is never allowed
        self._tokens = np.full((max(map(len, vocabulary.values())), len(tokenizer)), -1)  # (L, V)
        for token, text in vocabulary.items():
            self._tokens[: len(text), token] = [numbers[character] for character in text]
        self._build_form(constraint, numbers)
        # rhyme after a character, by [is the place a rhyming one, rhyme before, character]
        group = np.array(_rhyme_numbers(characters) if constraint.rhymes else [0] * len(characters))  # (A,)
        self._rhyme = np.tile(np.append(np.arange(1 + max(group)), -1)[:, None], (2, 1, len(group)))
        self._rhyme[1] = -1
        rhyming = np.flatnonzero(group)
        self._rhyme[1, 0, rhyming] = self._rhyme[1, group[rhyming], rhyming] = group[rhyming]
        # the fewest characters to an ending, (F + 2, G + 1), from the end backwards
        written = np.array([numbers[text] for text in vocabulary.values() if len(text) == 1])
        self.needs = np.full((len(self._form), self._rhyme.shape[1]), _FAR, dtype=np.int64)
        self.needs[self.end, :-1] = 0
        for place in reversed(range(self.end)):
            onward = written[self._form[place, written] == place + 1]
            if len(onward):
                rhymes = self._rhyme[self._rhyming[place], :-1][:, onward]
                self.needs[place, :-1] = 1 + self.needs[place + 1, rhymes].min(1)
        self.shortest = int(self.needs[0, 0])
        if self.shortest >= _FAR:
            raise ValueError(
                "no text of this vocabulary meets all of the constraint at once: its heads and rhymes contradict each "
                "other"
            )

    def _build_form(self, constraint: Constraint, numbers: dict[str, int]) -> None:
        """Make the table (F + 2, A) of places in the form: one per character of each line and of its end."""
        letters = [number for character, number in numbers.items() if character.isalnum()]
        marks = {"\n", *"".join(constraint.ends)}
        inner = [number for character, number in numbers.items() if character not in marks]
        form: list[tuple[list[int], list[int]]] = []  # of each place: characters that lead on, and that stay
        rhyming = []  # places
        counts, ends = constraint._counts, constraint.ends
        for line in range(constraint._lines):
            count = counts[line % len(counts)]
            end = [numbers[character] for character in ends[line % len(ends)]]
            for column in range(count or 1):
                if column == count - 1 and line + 1 in constraint.rhymes:
                    rhyming.append(len(form))
                allowed = letters if count else inner
                form.append(([numbers[constraint.heads[line]]] if constraint.heads and not column else allowed, []))
            if not count:  # any number of characters, until the end begins
                form.append((end[:1], inner))
            form += [([character], []) for character in end[0 if count else 1 :]]
        if len(form) * len(numbers) > _MOST_STATES:
            raise ValueError(f"this constraint has too many characters ({len(form):,} and more): ask for fewer lines")
        self.end = len(form)  # reaching this place completes the text
        self._form = np.full((len(form) + 2, len(numbers)), -1, dtype=np.int32)
        for place, (onward, staying) in enumerate(form):
            self._form[place, onward] = place + 1
            self._form[place, staying] = place
        self._rhyming = np.isin(np.arange(len(form) + 2), rhyming).astype(np.int64)

    def _follow(self, at: tuple[int, int], tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the state (V,) after each token; tokens (L, V), as rows of characters."""
        place, rhyme = (np.full(tokens.shape[1], part) for part in at)
        for characters in tokens:
            long = np.flatnonzero(characters >= 0)  # the tokens that have a character here
            here = characters[long]
            rhyme[long] = self._rhyme[self._rhyming[place[long]], rhyme[long], here]
            place[long] = self._form[place[long], here]
        return place, rhyme

    def after(self, at: tuple[int, int]) -> np.ndarray:
        """Return (V,): the fewest characters to an ending after each token; 2**30 if there is none."""
        return np.where(self._tokens[0] < 0, _FAR, self.needs[self._follow(at, self._tokens)])

    def read(self, at: tuple[int, int], token: int) -> tuple[int, int]:
        """Return the state after one token; after one that is never allowed, what is wrong."""
        if self._tokens[0, token] < 0:
            return -1, -1
        place, rhyme = self._follow(at, self._tokens[:, [token]])
        return int(place[0]), int(rhyme[0])


@functools.lru_cache(maxsize=32)  # all samples of a request share one
def _automaton(constraint: Constraint, tokenizer: PreTrainedTokenizerFast) -> _Automaton:
    return _Automaton(constraint, tokenizer)


def _check_spelling(constraint: Constraint, vocabulary: dict[int, str]) -> None:
    """Raise ValueError for what this vocabulary cannot spell."""
    alphabet = {text for text in vocabulary.values() if len(text) == 1}  # what can surely be written
    if not alphabet:
        raise ValueError(
            "this vocabulary has no characters, its tokens are bytes: constraints need a run whose vocabulary (notebook"
            " 02) is words, characters or bpe"
        )
    for name, texts in (("head", constraint.heads), ("end", constraint.ends[: constraint._lines])):
        for text in texts:
            if missing := "".join(character for character in text if character not in alphabet):
                raise ValueError(
                    f"the {name} '{text}' cannot be written: '{missing}' is not in this vocabulary. Choose another, or "
                    "train on a text that has it"
                )
