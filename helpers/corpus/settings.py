"""What can be set of a corpus. Knows which rules and forms of reading there are, not what they do."""

from dataclasses import dataclass

from helpers.corpus.cleaning import choose_rules
from helpers.corpus.records import ReadOptions


@dataclass(frozen=True)
class CorpusSettings:
    """How documents are read, cleaned, chosen and split. Raises ValueError for what makes no sense."""

    document: str = "auto"  # what is one document of a .txt: block, line, file, or auto
    text_key: str = "text"  # where the text is in JSON, CSV and Parquet: a key, or a template
    repair: bool = False  # mend mojibake, where no byte was lost
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
        self.read_options()
        self.chosen_rules()
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

    def read_options(self) -> ReadOptions:
        """Return how files are read."""
        return ReadOptions(self.document, self.text_key, self.repair)

    def chosen_rules(self) -> frozenset[str]:
        """Return the names of the cleaning rules that are on."""
        return choose_rules(self.rules)
