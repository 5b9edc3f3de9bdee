"""Constrained decoding: acrostics, line lengths, rhymes, required and forbidden words, whatever the model prefers.

A constraint is a finite automaton that reads the text character by character. Its state has three parts: the place in
the form (line and column), the rhyme chosen so far, and how much of the words has been read. For every state, the
length of the shortest ending is known, in characters. A token is allowed if an ending exists after its characters and
fits into the tokens that are left, at one token per character: so a text that has begun can always be finished. (Masks
from automata: Willard and Louf 2023, "Efficient Guided Generation for LLMs".)

Knows no model. Sees only the continuation, not the prompt.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

# 中华新韵: what rhymes, by pinyin finals. The final i of zhi, chi, shi, ri, zi, ci and si is a group of its own, 十三支
RHYMES = {
    "一麻": "a ia ua", "二波": "o io e uo", "三皆": "ie ve", "四开": "ai uai", "五微": "ei uei", "六豪": "ao iao",
    "七尤": "ou iou", "八寒": "an ian uan van", "九文": "en in uen vn", "十唐": "ang iang uang",
    "十一庚": "eng ing ueng ong iong", "十二齐": "i er v", "十三支": "-i", "十四姑": "u",
}  # fmt: skip
_BY_FINAL = {final: number for number, finals in enumerate(RHYMES.values(), start=1) for final in finals.split()}
_LONGEST = 16  # characters; longer tokens (runs of spaces or signs in pretrained vocabularies) are never allowed
_MOST_STATES = 20_000_000  # states × classes of characters: a second of work, 100 MB
_FAR = 2**30  # the length of an ending that does not exist


@dataclass(frozen=True)
class Constraint:
    """A form and words for a text; every rule holds at once. Without a form the text is free.

    Raises ValueError where fields contradict each other.
    """

    heads: str = ""  # the first characters of the lines, one per line (an acrostic, 藏头诗)
    # letters and digits in each line, its end not counted: one number for all lines, or one per line, in turn; nothing
    # else may occur within the line. 0: any number of characters from 1
    characters: int | tuple[int, ...] = 0
    # how many lines; 0: as many as heads; without heads as many as the model likes, up to the last of `ends`
    lines: int = 0
    ends: tuple[str, ...] = ("，", "。")  # what follows each line, in turn
    rhymes: tuple[int, ...] = ()  # the lines, counted from 1, whose last characters rhyme (`rhyme`)
    required: tuple[str, ...] = ()  # words that must occur
    forbidden: tuple[str, ...] = ()  # words that must not occur, however tokens spell them

    def __post_init__(self) -> None:
        for name in ("ends", "rhymes", "required", "forbidden"):
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give a tuple, (…,) with a comma if it is one")
        counts = self._counts
        for is_right, what in (
            (
                counts and all(isinstance(count, int) and count >= 0 for count in counts),
                f"characters is {self.characters!r}: give 0 or more, or a tuple of numbers",
            ),
            (len(set(map(bool, counts))) < 2, "characters has 0 for some lines: give a number for all, or for none"),
            (self.lines >= 0, f"lines is {self.lines}: give 0 (not fixed) or more"),
            (
                not (self.heads and self.lines) or self.lines == len(self.heads),
                f"lines is {self.lines}, but there are {len(self.heads)} heads: leave lines out",
            ),
            (self.ends and all(self.ends), "ends: each line needs an end of one character or more"),
            (not self.rhymes or (self._lines and any(counts)), "rhymes needs characters, and heads or lines"),
            (all(1 <= line <= self._lines for line in self.rhymes), f"rhymes: choose lines from 1 to {self._lines}"),
            (all(self.required) and all(self.forbidden), "required and forbidden: a word has one character or more"),
        ):
            if not is_right:
                raise ValueError(what)

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.characters if isinstance(self.characters, tuple) else (self.characters,)

    @property
    def _lines(self) -> int:
        return len(self.heads) or self.lines

    @property
    def _is_free(self) -> bool:
        return not self._lines and not any(self._counts)

    def begin(self, tokenizer: PreTrainedTokenizerFast, eos: int, max_new_tokens: int) -> "ConstraintState":
        """Return the state before the first token; eos is the token of the document's end.

        Raises ValueError if no text of this vocabulary meets the constraint, or if none is sure to fit into
        max_new_tokens.
        """
        automaton = _automaton(self, tokenizer)
        if automaton.shortest > max_new_tokens:
            raise ValueError(
                f"max_new_tokens is {max_new_tokens}, but this constraint may take {automaton.shortest} tokens, one a "
                f"character: set max_new_tokens to {automaton.shortest} or more"
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
        self._at = (0, 0, 0)  # place in the form, rhyme, words

    def allowed(self, width: int) -> Tensor:
        """Return (width,), true for the tokens that may come next; when done, only the document's end.

        width: the model's vocab_size, which may be larger than the tokenizer's length; ids in between are not allowed.
        """
        mask = np.zeros(width, dtype=bool)
        if not self.done:
            after = self._automaton.after(self._at)  # (length of the tokenizer,)
            mask[: len(after)] = after < self._left  # an ending must fit into what is left then
        mask[self._eos] = self._automaton.needs[self._at] == 0
        return torch.from_numpy(mask)

    def advance(self, token: int) -> None:
        """Take in a token that was written; raise ValueError for one that was not allowed."""
        if token == self._eos:
            at, is_right = self._at, self._automaton.needs[self._at] == 0
        else:
            at = self._automaton.read(self._at, token)
            is_right = not self.done and self._automaton.needs[at] < self._left
        if not is_right:
            raise ValueError(f"token {token} is not allowed here: choose among allowed()")
        self._left -= token != self._eos
        self._at = at
        self.done = token == self._eos or at[0] == self._automaton.end


def rhyme(character: str) -> str:
    """Return a character's rhyme group in 中华新韵, such as "八寒", by its commonest reading; "" if it has none."""
    number = _rhyme_numbers([character])[0]
    return list(RHYMES)[number - 1] if number else ""


def _rhyme_numbers(characters: list[str]) -> list[int]:
    try:
        from pypinyin import Style, lazy_pinyin  # optional
    except ModuleNotFoundError:
        raise ModuleNotFoundError('rhymes need pypinyin: pip install -e ".[text]"') from None
    finals = lazy_pinyin(characters, style=Style.FINALS, errors=lambda _: [""])  # type: ignore[arg-type,return-value]
    initials = lazy_pinyin(characters, style=Style.INITIALS, errors=lambda _: [""])  # type: ignore[arg-type,return-value]
    sharp = ("zh", "ch", "sh", "r", "z", "c", "s")
    return [
        _BY_FINAL.get("-i" if final == "i" and initial in sharp else final, 0)
        for final, initial in zip(finals, initials, strict=True)
    ]


class _Vocabulary:
    """The tokens whose text is the same whatever their neighbours are, and their characters as numbers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.size = len(tokenizer)
        names = tokenizer.convert_ids_to_tokens(list(range(self.size)))
        special = set(tokenizer.all_special_ids)
        ids = [i for i, name in enumerate(names) if i not in special and not re.fullmatch("<0x[0-9A-F]{2}>", name)]
        decode = tokenizer.backend_tokenizer.decode_batch
        texts, doubled = decode([[i] for i in ids]), decode([[i, i] for i in ids])
        # BERT's Latin words get a space between them, half a character has no text: these are left out
        kept = [
            (i, text)
            for i, text, twice in zip(ids, texts, doubled, strict=True)
            if 0 < len(text) <= _LONGEST and "\ufffd" not in text and twice == text + text
        ]
        self.ids = np.array([i for i, _ in kept], dtype=np.int64)  # (N,)
        self.texts = [text for _, text in kept]
        self.characters = sorted(set("".join(self.texts)))
        number = {character: i for i, character in enumerate(self.characters)}
        self.spelled = np.full((len(kept), max(map(len, self.texts), default=1)), -1)  # (N, L), -1 beyond the end
        for row, text in zip(self.spelled, self.texts, strict=True):
            row[: len(text)] = [number[character] for character in text]
        self.alphabet = {text for text in self.texts if len(text) == 1}  # what can surely be written


_vocabulary = functools.lru_cache(maxsize=4)(_Vocabulary)  # it takes about 50 ms


class _Automaton:
    """A constraint over one vocabulary: its tables, and for every state the characters to the nearest ending.

    Characters that no rule tells apart form one class: 6,000 characters have a few dozen classes.
    """

    def __init__(self, constraint: Constraint, vocabulary: _Vocabulary) -> None:
        self.vocab_size = vocabulary.size
        _check_spelling(constraint, vocabulary)
        self._classify(constraint, vocabulary)
        self._build_words(constraint)
        self._build_form(constraint)
        # rhyme after a character, by [is the place a rhyming one, rhyme before, class]; 0: none yet, the last: wrong
        groups = 1 + (max(self._group, default=0) if constraint.rhymes else 0)
        self._rhyme = np.tile(np.arange(groups + 1)[:, None], (2, 1, len(self._group)))
        self._rhyme[1] = groups
        rhyming = np.flatnonzero(self._group)
        self._rhyme[1, 0, rhyming] = self._rhyme[1, self._group[rhyming], rhyming] = self._group[rhyming]
        shape = (len(self._form), groups + 1, len(self._words))
        if np.prod(shape) * len(self._group) > _MOST_STATES:
            raise ValueError(
                f"this constraint has too many states ({' × '.join(map(str, shape))}): ask for fewer lines or words"
            )
        self._reach(shape)
        self.shortest = int(self.needs[0, 0, 0])
        if self.shortest >= _FAR:
            raise ValueError(
                "no text of this vocabulary meets all of the constraint at once: its heads, lengths, rhymes, required "
                "and forbidden words contradict each other, or a required word has no place in the lines"
            )

    def _classify(self, constraint: Constraint, vocabulary: _Vocabulary) -> None:
        """Give every character a class, and the tokens the rows of classes that they are, each row once."""
        # 1. characters that the rules name have a class of their own; the others share one by rhyme and kind
        rules = "".join([constraint.heads, *constraint.ends, *constraint.required, *constraint.forbidden, "\n"])
        own = {character: i for i, character in enumerate(dict.fromkeys(rules))}
        characters = [*own, *(character for character in vocabulary.characters if character not in own)]
        groups = _rhyme_numbers(characters) if constraint.rhymes else [0] * len(characters)
        inside = set("\n".join(constraint.ends))
        kinds: dict[tuple, int] = {}
        class_of = {
            character: kinds.setdefault(
                (own.get(character), group, character.isalnum(), character not in inside and character != "\n"),
                len(kinds),
            )
            for character, group in zip(characters, groups, strict=True)
        }
        _, group, letter, inner = zip(*kinds, strict=True)
        self._class_of = class_of
        self._group, self._letter, self._inner = np.array(group), np.array(letter), np.array(inner)  # (C,) each
        self._written = np.unique([class_of[character] for character in vocabulary.alphabet])  # classes that occur
        # 2. tokens as rows of classes, -1 beyond the end; tokens with the same row are treated as one
        classes = [class_of[character] for character in vocabulary.characters]
        rows, which = np.unique(np.array([*classes, -1])[vocabulary.spelled], axis=0, return_inverse=True)
        self._rows = rows.T.copy()  # (L, R): the first characters of all, the second ones, …
        # 3. the row of each token; tokens that are never allowed have one behind all others
        self._row_of = np.full(vocabulary.size, len(rows))
        self._row_of[vocabulary.ids] = which.reshape(-1)

    def _build_words(self, constraint: Constraint) -> None:
        """Make the table (W + 1, C) of how much of the words has been read (Aho and Corasick 1975); row W is wrong.

        A state is a node of the tree of all words, and a set of required words that have been read.
        """
        classes = len(self._group)
        # 1. the tree of all words; per node its children, the required words that end there, and whether a forbidden
        # word does
        tree: list[dict[int, int]] = [{}]
        read, wrong = [0], [False]
        required = list(dict.fromkeys(constraint.required))
        for number, word in enumerate([*constraint.forbidden, *required], start=-len(constraint.forbidden)):
            node = 0
            for character in word:
                node = tree[node].setdefault(self._class_of[character], len(tree))
                if node == len(tree):
                    tree.append({})
                    read.append(0)
                    wrong.append(False)
            wrong[node] |= number < 0
            read[node] |= 1 << number if number >= 0 else 0
        sets = 1 << len(required)
        if len(tree) * sets * classes > _MOST_STATES:
            raise ValueError(f"{len(required)} required words and {len(constraint.forbidden)} forbidden ones: too many")
        # 2. the next node for every class, in order of depth: where a word breaks off, its longest end that begins
        # another word goes on (`fails`)
        nodes = np.zeros((len(tree), classes), dtype=np.int64)
        fails = [0] * len(tree)
        queue = [0]
        for node in queue:
            if node:
                nodes[node] = nodes[fails[node]]
                read[node] |= read[fails[node]]
                wrong[node] |= wrong[fails[node]]
            for kind, child in tree[node].items():
                fails[child] = nodes[node, kind] if node else 0
                nodes[node, kind] = child
                queue.append(child)
        # 3. times the sets of required words that have been read
        have = np.arange(sets)[:, None, None] | np.array(read)[nodes]  # (sets, nodes, C)
        table = np.where(np.array(wrong)[nodes], sets * len(tree), have * len(tree) + nodes)
        dead = np.full((1, classes), sets * len(tree))
        self._words = np.concatenate([table.reshape(-1, classes), dead])
        self._complete = np.append(np.repeat(np.arange(sets) == sets - 1, len(tree)), False)  # (W + 1,)

    def _build_form(self, constraint: Constraint) -> None:
        """Make the table (F + 1, C) of places in the form; row F is wrong. At a place that `accepts` a text may end."""
        places: list[dict[int, int]] = []  # of each place: class -> next place
        rhyming: list[bool] = []

        def place(classes: Iterable[int], target: int | None = None, rhymes: bool = False) -> None:
            places.append(dict.fromkeys(classes, len(places) + 1 if target is None else target))
            rhyming.append(rhymes)

        # 1. a place per character of each line and of its end; without a number of lines the form is a ring
        letters, inner = np.flatnonzero(self._letter), np.flatnonzero(self._inner)
        counts, ends = constraint._counts, constraint.ends
        lines = constraint._lines or int(np.lcm(len(counts), len(ends)))
        accepts = []
        for line in range(0 if constraint._is_free else lines):
            count, end = counts[line % len(counts)], ends[line % len(ends)]
            accepts.append(len(places))
            first = [self._class_of[constraint.heads[line]]] if constraint.heads else letters if count else inner
            for column in range(count or 1):
                place(letters if column else first, rhymes=column == count - 1 and line + 1 in constraint.rhymes)
            if not count:  # any number of characters: this place leads to itself, until the end begins
                place(inner, target=len(places))
                places[-1][self._class_of[end[0]]] = len(places)
            for character in end[0 if count else 1 :]:
                place([self._class_of[character]])
        # 2. where the text may end
        self.end = -1  # reaching this place completes the text
        if constraint._lines:
            self.end = len(places)
            place([])
            accepts = [self.end]
        elif constraint._is_free:
            place(range(len(self._group)), target=0)
            accepts = [0]
        else:
            place([])  # after the last line the ring goes on as at the start
            places[-1] = places[0]
            rhyming[-1] = rhyming[0]
            accepts = [*accepts[len(ends) :: len(ends)], len(places) - 1]
        # 3. as tables
        wrong = len(places)
        self._form = np.full((wrong + 1, len(self._group)), wrong)
        for number, targets in enumerate(places):
            self._form[number, list(targets)] = list(targets.values())
        self._rhyming = np.array([*rhyming, False]).astype(np.int64)  # (F + 1,)
        self._accepts = np.isin(np.arange(wrong + 1), accepts)  # (F + 1,)

    def _reach(self, shape: tuple[int, int, int]) -> None:
        """Fill `needs` (F + 1, G + 1, W + 1): the fewest characters to an ending; backwards, until nothing changes."""
        needs = np.full(shape, _FAR, dtype=np.int64)
        needs[:, :-1] = np.where(self._accepts[:, None, None] & self._complete, 0, _FAR)
        changed = True
        while changed:
            changed = False
            for place in reversed(range(shape[0] - 1)):
                classes = self._written[self._form[place, self._written] != shape[0] - 1]  # (A,)
                if not len(classes):
                    continue
                targets = self._form[place, classes][:, None, None]
                rhymes = self._rhyme[self._rhyming[place]][:-1, classes].T[:, :, None]  # (A, G, 1)
                words = self._words[:-1, classes].T[:, None, :]  # (A, 1, W)
                nearest = np.minimum(needs[place, :-1, :-1], 1 + needs[targets, rhymes, words].min(0))  # (G, W)
                if not np.array_equal(nearest, needs[place, :-1, :-1]):
                    needs[place, :-1, :-1] = nearest
                    changed = True
        self.needs = needs

    def after(self, at: tuple[int, int, int]) -> np.ndarray:
        """Return (V,): the fewest characters to an ending after each token; 2**30 if there is none."""
        place, rhyme, words = (np.full(self._rows.shape[1], part) for part in at)  # (R,) each
        for classes in self._rows:
            long = np.flatnonzero(classes >= 0)  # the tokens that have a character here
            kinds = classes[long]
            rhyme[long] = self._rhyme[self._rhyming[place[long]], rhyme[long], kinds]
            place[long] = self._form[place[long], kinds]
            words[long] = self._words[words[long], kinds]
        return np.append(self.needs[place, rhyme, words], _FAR)[self._row_of]

    def read(self, at: tuple[int, int, int], token: int) -> tuple[int, int, int]:
        """Return the state after one token; after one without a text place -1, from which there is no ending."""
        if self._row_of[token] == self._rows.shape[1]:
            return -1, 0, 0
        place, rhyme, words = at
        for kind in self._rows[:, self._row_of[token]]:
            if kind >= 0:
                rhyme = self._rhyme[self._rhyming[place], rhyme, kind]
                place, words = self._form[place, kind], self._words[words, kind]
        return int(place), int(rhyme), int(words)


@functools.lru_cache(maxsize=32)  # all samples of a request share one
def _automaton(constraint: Constraint, tokenizer: PreTrainedTokenizerFast) -> _Automaton:
    return _Automaton(constraint, _vocabulary(tokenizer))


def _check_spelling(constraint: Constraint, vocabulary: _Vocabulary) -> None:
    """Raise ValueError for what this vocabulary cannot spell, and for words that exclude each other."""
    if not vocabulary.alphabet:
        raise ValueError(
            "this vocabulary has no characters, its tokens are bytes: constraints need a run whose vocabulary (notebook"
            " 02) is words, characters or bpe"
        )
    ends = () if constraint._is_free else constraint.ends[: constraint._lines or None]
    for name, texts in (("head", constraint.heads), ("end", ends), ("required word", constraint.required)):
        for text in texts:
            if missing := "".join(character for character in text if character not in vocabulary.alphabet):
                raise ValueError(
                    f"the {name} '{text}' cannot be written: '{missing}' is not in this vocabulary. Choose another, or "
                    "train on a text that has it"
                )
    for word in constraint.required:
        for other in constraint.forbidden:
            if other in word:
                raise ValueError(f"the word '{word}' is required, but '{other}' in it is forbidden")
