"""What can be set of a corpus. Knows which rules and forms of reading there are, not what they do."""

import functools
import re
from dataclasses import dataclass

from helpers.corpus.cleaning import choose_rules

MODES = ("auto", "block", "line", "file")


@dataclass(frozen=True)
class CorpusSettings:
    """How documents are read, cleaned, chosen and split. Raises ValueError for what makes no sense."""

    # what is one document of a .txt: a "block" (between blank lines), a "line", the "file"; "auto" means block where
    # there is a blank line between text, else file
    document: str = "auto"
    # where the text is in other formats: a key or column, or a template over several, "{title}\n{ask}". Records without
    # a "text" may be conversations; "conversations" (or the list's own name, "messages") reads these beside a text, too
    text_key: str = "text"
    repair: bool = False  # mend mojibake (乱码) where no byte was lost
    rules: str = ""  # cleaning rules to switch on or off, see `cleaning.choose_rules`
    min_length: int = 2  # shorter documents are dropped, and counted; in characters
    max_length: int = 2000  # longer documents are cut at line ends; in characters
    min_chinese: float = 0.0  # drop documents with a smaller share of Chinese characters (0: keep all)
    max_symbols: float = 1.0  # drop documents with a larger share of digits and signs (1: keep all)
    max_repetition: float = 1.0  # drop documents that repeat more than this share of themselves (1: keep all)
    near_duplicates: float = 0.0  # similarity from which of two documents only the first stays (0: copies alone go)
    max_documents: int = 0  # use only so many documents (0: all)
    val_fraction: float = 0.05  # the part of the documents that is kept for validation, chosen by hash and seed
    seed: int = 0  # another seed draws another built-in corpus and another validation set

    def __post_init__(self):
        if self.document not in MODES:
            raise ValueError(f"document is '{self.document}': give one of {', '.join(MODES)}")
        parse_template(self.text_key)
        choose_rules(self.rules)
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction is {self.val_fraction}: give a part between 0 and 1, say 0.05")
        if self.max_length < max(1, self.min_length):
            raise ValueError(f"max_length {self.max_length} is below min_length {self.min_length}: no text can be both")
        if self.max_documents < 0 or self.max_documents == 1:
            raise ValueError(
                f"max_documents is {self.max_documents}: give 0 for all, or at least 2: one to train, one to validate"
            )
        for name in ("near_duplicates", "min_chinese", "max_symbols", "max_repetition"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give a share between 0 and 1")


@functools.cache
def parse_template(text_key: str) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the columns that a text is made of, and for a template its pieces: (text before, column or "").

    "{title}\\n{ask}" has braces, so it is a template; anything else is the name of one column. Raises ValueError.
    """
    parts = re.split(r"\{([^{}\[\].!:]+)\}", text_key)
    texts, names = parts[::2], parts[1::2]
    if any(brace in text for text in texts for brace in "{}"):
        raise ValueError(
            f"text_key '{text_key}': between braces, write the plain name of a column or key, like {{title}}\\n{{ask}}"
        )
    if not names:
        return [text_key], ()
    pieces = zip((text.replace("\\n", "\n") for text in texts), [*names, ""], strict=True)
    return list(dict.fromkeys(names)), tuple(pieces)
