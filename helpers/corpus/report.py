"""What happened to the text on its way into the corpus: one report per file, one for the whole corpus."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class FileReport:
    """What happened to one file; `dropped` and `rules` count documents and places, `lost` counts characters."""

    source: str
    encoding: str = "?"
    mode: str = ""
    documents: int = 0
    characters: int = 0
    dropped: Counter = field(default_factory=Counter)  # reason -> documents
    lost: Counter = field(default_factory=Counter)  # reason -> characters
    rules: Counter = field(default_factory=Counter)  # cleaning rule -> places changed
    notes: list[str] = field(default_factory=list)
    bad: str = ""  # why the file could not be used

    def drop(self, reason: str, characters: int) -> None:
        self.dropped[reason] += 1
        self.lost[reason] += characters


@dataclass
class Report:
    """What became of a whole corpus; also written as corpus/report.json."""

    source: str
    files: list[FileReport]
    documents: int = 0
    characters: int = 0
    val_documents: int = 0
    val_characters: int = 0
    floor_bits_per_char: float | None = None
    dropped: Counter = field(default_factory=Counter)
    lost: Counter = field(default_factory=Counter)
    rules: Counter = field(default_factory=Counter)
    examples: dict[str, list] = field(default_factory=dict)  # cleaning rule -> a few (before, after)
    left_out: Counter = field(default_factory=Counter)  # extension -> files of a kind this room cannot read
    outputs: list[Path] = field(default_factory=list)  # the files written

    def result(self) -> dict:
        """Return the figures that go into the manifest."""
        result = {name: getattr(self, name) for name in ("source", "documents", "characters")}
        result |= {"val_documents": self.val_documents, "val_characters": self.val_characters}
        result |= {"dropped": sum(self.dropped.values()), "dropped_characters": sum(self.lost.values())}
        result |= {"files": len(self.files), "bad_files": sum(bool(file.bad) for file in self.files)}
        if self.floor_bits_per_char is not None:
            result["floor_bits_per_char"] = self.floor_bits_per_char
        return result

    def rows(self) -> list[tuple]:
        """Return a row a file: name, encoding, documents, characters, dropped, what to know about it."""
        return [
            (
                file.source,
                file.encoding,
                file.documents,
                file.characters,
                ", ".join(f"{n} {reason}" for reason, n in sorted(file.dropped.items())),
                "; ".join([*(["NOT USED: " + file.bad] if file.bad else []), *file.notes]),
            )
            for file in self.files
        ]

    def rule_rows(self) -> list[tuple]:
        """Return a row for each cleaning rule that had work: name, places, an example before and after."""
        empty = [("", "")]
        return [(name, n, *(self.examples.get(name) or empty)[0]) for name, n in self.rules.most_common()]

    def warnings(self) -> list[str]:
        """Return a line for each file that could not be used, or whose text a person should look at."""
        return [f"{file.source}: {line}" for file in self.files for line in [*filter(None, [file.bad]), *file.notes]]
