"""What can be set of a corpus. Knows which rules and forms of reading there are, not what they do."""

from dataclasses import dataclass

from helpers.corpus.cleaning import choose_rules
from helpers.corpus.records import ReadOptions


@dataclass(frozen=True)
class CorpusSettings:
    """How documents are read, cleaned, chosen and split. Raises ValueError for what makes no sense."""

    # how files are read; see `records.ReadOptions`
    document: str = "auto"
    text_key: str = "text"
    repair: bool = False
    # how documents are cleaned; see `cleaning.choose_rules`
    rules: str = ""
    # which are kept: lengths in characters, shares as in `cleaning.unfit`
    min_length: int = 2
    max_length: int = 2000
    min_chinese: float = 0.0
    max_symbols: float = 1.0
    max_repetition: float = 1.0
    near_duplicates: float = 0.0  # similarity from which two documents are the same text; 0: only exact copies are
    near_keep: str = "first"  # of a cluster of near duplicates; or "all", on one side of the split
    max_documents: int = 0  # 0: all
    val_fraction: float = 0.05  # of the documents, chosen by hash and seed
    seed: int = 0

    def __post_init__(self):
        self.read_options()
        self.chosen_rules()
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction is {self.val_fraction}: give a part between 0 and 1, say 0.05")
        if self.max_length < max(1, self.min_length):
            raise ValueError(
                f"max_length {self.max_length} is below min_length {self.min_length}: no document can be both"
            )
        if self.near_keep not in ("first", "all"):
            raise ValueError(f"near_keep is '{self.near_keep}': give 'first' or 'all'")
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

    def filters(self) -> tuple[float, float, float]:
        """Return the limits of `cleaning.unfit`."""
        return self.min_chinese, self.max_symbols, self.max_repetition
