"""The rules behind "auto" and 0 in notebook 02: which kind of tokens suits a corpus, and how large a vocabulary.

A large vocabulary makes texts short, but each of its rows has to be seen often enough to be learned, and in a small
model most of the work is in them. The measurements behind the rules: benchmarks/README.md. Knows figures of a corpus,
nothing of its text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from helpers.vocab.tokenizer import TOKEN_KINDS

ENOUGH = 0.85  # share of new text that a word list must cover, or the model would mostly read single characters anyway
SHORT_TEXT = 500_000  # characters; up to here the list holds frequent words only, and these are worth their rows
# characters of text up to which a row applies, most tokens, least occurrences of a character that is a token
_SIZES = ((50_000, 8000, 2), (200_000, 8000, 3), (500_000, 8000, 5), (5_000_000, 8000, 10), (50_000_000, 16_000, 20))
_LARGEST = (32_000, 50)


@dataclass(frozen=True, kw_only=True)
class VocabSettings:
    """What can be set of a vocabulary besides the cell of notebook 02's parameters. Raises ValueError."""

    special_tokens: str = "pad:<pad> bos:<bos> eos:<eos> unk:<unk> user:<user> assistant:<assistant>"  # in order of ids
    min_character_count: int = 0  # characters seen less often are spelled in bytes; 0: by rule
    sample_characters: int = 20_000_000  # learn the words from this much training text, spread evenly; 0: all of it

    def __post_init__(self) -> None:
        for name in ("min_character_count", "sample_characters"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be 0 or more")


def choose_sizes(vocab_size: int, min_character_count: int, characters: int, built_in: bool) -> tuple[int, int]:
    """Return both sizes, with each 0 replaced by the value for a corpus of `characters` characters.

    Every character of the built-in corpus is kept: in its grammar none is rare by chance.
    """
    by_rule = next((sizes for most, *sizes in _SIZES if characters <= most), _LARGEST)
    return vocab_size or by_rule[0], min_character_count or (1 if built_in else by_rule[1])


def sampled_share(sample_characters: int, facts: Mapping[str, int]) -> float:
    """Return the share of the training text from which words are learned; `facts`: the result of the corpus's room."""
    training = facts["characters"] - facts["val_characters"]
    return min(1.0, (sample_characters or math.inf) / max(1, training))


def choose_kind(kind: str, covered: float, characters: int) -> str:
    """Return the kind; "auto" is words if their list covers enough of new text or the text is short, else characters.

    `covered` is that share, `characters` the length of the text. Raises ValueError for an unknown kind.
    """
    if kind == "auto":
        return "words" if covered >= ENOUGH or characters <= SHORT_TEXT else "characters"
    if kind not in TOKEN_KINDS:
        raise ValueError(f"kind is '{kind}': choose one of {', '.join(TOKEN_KINDS)}, or auto")
    return kind


def kind_of_word_file(kind: str, pretrained_model: str) -> str:
    """Return "words", the kind of a given word list; raise ValueError where another vocabulary is asked for too."""
    if kind not in ("auto", "words"):
        raise ValueError(f"vocab_file is a list of words, but kind is '{kind}': leave it at auto, or drop vocab_file")
    if pretrained_model:
        raise ValueError("vocab_file and pretrained_model are both given: a pretrained model keeps its own vocabulary")
    return "words"
