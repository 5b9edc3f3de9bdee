"""What happened to the text on its way into the corpus: a report per file, per part, and for the whole corpus."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from helpers.corpus.cleaning import EXAMPLES
from helpers.corpus.conversations import SYSTEM, Conversation
from helpers.corpus.mojibake import notes_on

NOTES = 10  # notes kept of a file; one in many slices may have thousands
_COUNTERS = ("dropped", "lost", "rules", "counts")  # fields of a file's report


@dataclass
class FileReport:
    """What happened to one file, or to a slice of it."""

    name: str  # as in the corpus: a/b.txt, a.zip/b.txt
    encoding: str = "?"
    mode: str = ""  # how it was cut into documents, or its kind: "block", "csv"
    documents: int = 0  # kept
    characters: int = 0  # in these
    dropped: Counter = field(default_factory=Counter)  # reason -> documents
    lost: Counter = field(default_factory=Counter)  # reason -> characters in these
    rules: Counter = field(default_factory=Counter)  # cleaning rule -> places changed
    notes: list[str] = field(default_factory=list)  # what a person should know about it
    bad: str = ""  # why the file could not be used
    # what becomes notes when the slices of the file are joined, and is not in report.json: the signs of mojibake;
    # "long" documents and the "pieces" that they were cut into; "shortened" conversations, which lost their end
    counts: Counter = field(default_factory=Counter)

    def drop(self, reason: str, characters: int) -> None:
        """Count a document that was dropped."""
        self.dropped[reason] += 1
        self.lost[reason] += characters

    def drop_broken(self, text: str, at: int) -> None:
        """Count a document that holds half a character (a lone surrogate), which no file can store."""
        if not self.dropped["with half characters"]:
            self.notes.append(f"character {at:,} of a document is half a character (lone surrogate)")
        self.drop("with half characters", len(text))

    def shorten(self, before: Conversation, after: Conversation) -> None:
        """Count what a conversation lost at its end, if anything; a lone system line is not counted."""
        turns, kept = (sum(message["role"] != SYSTEM for message in each.messages) for each in (before, after))
        if kept < turns:
            self.counts["shortened"] += kept > 0  # else it is counted as dropped
            self.lost["end of a conversation"] += sum(
                len(message["content"]) for message in before.messages[kept - turns :]
            )

    def add(self, other: "FileReport") -> None:
        """Add the next slice of the same file."""
        if not self.mode:
            self.encoding, self.mode = other.encoding, other.mode
        self.bad = self.bad or other.bad
        self.notes += [note for note in other.notes if note not in self.notes]
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))

    def finish(self, max_length: int) -> None:
        """Put the counts of the whole file in words, as notes."""
        if self.bad:  # no half of a file stays behind
            self.dropped, self.lost, self.rules, self.notes = Counter(), Counter(), Counter(), []
            return
        if len(self.notes) > NOTES:
            self.notes[NOTES:] = [f"and {len(self.notes) - NOTES:,} notes more, of other slices of this file"]
        if long := self.counts["long"]:
            pieces = self.counts["pieces"]
            self.notes.append(f"{long:,} longer than {max_length:,} characters, cut into {pieces:,} documents")
        if shortened := self.counts["shortened"]:
            lost = "conversation lost its" if shortened == 1 else "conversations lost their"
            self.notes.append(f"{shortened:,} {lost} last exchanges: too long, or a blank turn")
        if not self.counts["characters"] and not self.dropped:
            self.notes.append("no text in it")
        self.notes += notes_on(self.counts, self.rules)


@dataclass
class PartReport:
    """What became of the files of one part; also written beside it, as .json."""

    files: list[FileReport]
    examples: dict[str, list] = field(default_factory=dict)  # cleaning rule -> a few (before, after)

    def as_json(self) -> str:
        """Return the part as it is written beside its shards."""
        return json.dumps(self, ensure_ascii=False, default=vars)

    @classmethod
    def from_json(cls, text: str) -> "PartReport":
        """Return the part that `as_json` wrote."""
        part = json.loads(text)
        counted = [file | {name: Counter(file[name]) for name in _COUNTERS} for file in part["files"]]
        return cls([FileReport(**file) for file in counted], part["examples"])


@dataclass
class Report:
    """What became of a whole corpus; also written as corpus/report.json."""

    source: str  # what the corpus was built from, as the user named it
    files: list[FileReport]
    documents: int = 0
    characters: int = 0
    val_documents: int = 0
    val_characters: int = 0
    floor_bits_per_char: float | None = None  # entropy of the validation documents; only the built-in corpus has it
    dropped: Counter = field(default_factory=Counter)  # reason -> documents
    lost: Counter = field(default_factory=Counter)  # reason -> characters in these
    rules: Counter = field(default_factory=Counter)  # cleaning rule -> places changed
    examples: dict[str, list] = field(default_factory=dict)  # cleaning rule -> a few (before, after)
    left_out: Counter = field(default_factory=Counter)  # extension -> files of a kind this room cannot read
    inputs: list[Path] = field(default_factory=list)  # the files read; for the manifest, not in report.json
    outputs: list[Path] = field(default_factory=list)  # the files written

    def join(self, parts: Iterable[PartReport], max_length: int) -> None:
        """Put the reports of all parts together, one per file."""
        files = {file.name: file for file in self.files}
        for part in parts:
            for file in part.files:
                files[file.name].add(file)
            for rule, pairs in part.examples.items():
                self.examples.setdefault(rule, []).extend(pairs)
        self.examples = {rule: pairs[:EXAMPLES] for rule, pairs in self.examples.items()}
        for file in self.files:
            file.finish(max_length)

    def as_json(self) -> str:
        """Return the text of report.json."""
        files = [{**vars(file), "source": file.name} for file in self.files]
        for file in files:
            del file["name"], file["counts"]
        written = {**vars(self), "files": files, "outputs": [path.name for path in self.outputs]}
        del written["inputs"]
        return json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True) + "\n"

    def result(self) -> dict:
        """Return the figures that go into the manifest."""
        names = ("source", "documents", "characters", "val_documents", "val_characters")
        result = {name: getattr(self, name) for name in names}
        result |= {"dropped": sum(self.dropped.values()), "dropped_characters": sum(self.lost.values())}
        result |= {"files": len(self.files), "bad_files": sum(bool(file.bad) for file in self.files)}
        result |= {"losses": lost[:10]} if (lost := self.losses()) else {}
        floor = self.floor_bits_per_char
        return result if floor is None else result | {"floor_bits_per_char": floor}

    def losses(self) -> list[str]:
        """Return what of the source is not in the corpus, in sentences, worst first."""
        kinds = [f"{n:,} file(s) that are not read: {kind}" for kind, n in self.left_out.most_common()]
        lost = [f"{n:,} characters: {reason}" for reason, n in self.lost.most_common()]
        return [f"{file.name} is not used: {file.bad}" for file in self.files if file.bad] + kinds + lost

    def rows(self) -> list[tuple]:
        """Return a row per file: name, encoding, documents, characters, dropped, what to know about it."""
        rows = []
        for file in self.files:
            dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(file.dropped.items()))
            notes = [*(["NOT USED: " + file.bad] if file.bad else []), *file.notes]
            rows.append((file.name, file.encoding, file.documents, file.characters, dropped, "; ".join(notes)))
        return rows

    def rule_rows(self) -> list[tuple]:
        """Return a row for each cleaning rule that had work: name, places, an example before and after."""
        return [(name, n, *(self.examples.get(name) or [("", "")])[0]) for name, n in self.rules.most_common()]
