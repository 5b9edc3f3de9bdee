"""The rules behind "auto" and 0 in notebook 02: which kind of tokens suits a corpus, and how large a vocabulary.

A large vocabulary makes texts short, but each of its rows has to be seen often enough to be learned, and in a small
model most of the work is in them. What the rules rest on was measured: benchmarks/README.md. Knows figures of a corpus,
and nothing of its text.
"""

from helpers.vocab.tokenizer import KINDS

ENOUGH = 0.85  # share of new text that a word list must cover, or the model would mostly read single characters anyway
SHORT = 500_000  # characters of a text; up to here the list holds frequent words only, and these are worth their rows
# up to so many characters of text: tokens at most, and how often a character must occur to be one
SIZES = ((50_000, 8000, 2), (200_000, 8000, 3), (500_000, 8000, 5), (5_000_000, 8000, 10), (50_000_000, 16_000, 20))
LARGEST = (32_000, 50)


def choose_sizes(vocab_size: int, min_character_count: int, characters: int, built_in: bool) -> tuple[int, int]:
    """Return both; a 0 is replaced by what suits a corpus of so many characters.

    Of the built-in corpus every character is kept, for in its grammar none is rare by chance.
    """
    by_rule = next((sizes for most, *sizes in SIZES if characters <= most), LARGEST)
    return vocab_size or by_rule[0], min_character_count or (1 if built_in else by_rule[1])


def choose_kind(kind: str, covered: float, characters: int) -> str:
    """Return the kind; for "auto" words if their list covers enough of new text or the text is short, else characters.

    `covered` is that share, `characters` is the length of the text. Raises ValueError for a kind that is none of KINDS.
    """
    if kind == "auto":
        return "words" if covered >= ENOUGH or characters <= SHORT else "characters"
    if kind not in KINDS:
        raise ValueError(f"kind is '{kind}': choose one of {', '.join(KINDS)}, or auto")
    return kind


def kind_of_word_file(kind: str, pretrained_model: str) -> str:
    """Return the kind where a word list is given, "words"; raise ValueError where something else is asked for too."""
    if kind not in ("auto", "words"):
        raise ValueError(
            f"vocab_file is a list of words, but kind is '{kind}': leave it at auto, or give no vocab_file"
        )
    if pretrained_model:
        raise ValueError(
            "vocab_file and pretrained_model are both given: a pretrained model keeps its own vocabulary, so give one"
        )
    return "words"
