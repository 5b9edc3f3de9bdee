"""What happened to the text on its way into the corpus: a report per file, per part, and for the whole corpus."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from helpers.corpus.cleaning import EXAMPLES
from helpers.corpus.conversations import SYSTEM, Conversation
from helpers.corpus.mojibake import notes_on
from helpers.wording import printable, say

UNDECODABLE = "undecodable"  # why lines of a text were left out, and records with such a line
NOTES = 10  # notes kept of a file; one in many slices may have thousands
HARMLESS = ("read as conversations", "cut into", "切成", "written clean")  # notes on what is no loss
FIELDS = 100  # reasons kept of a file, most of them fields that are not used
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
    lost: Counter = field(default_factory=Counter)  # reason -> characters in these, or of a field that is not used
    rules: Counter = field(default_factory=Counter)  # cleaning rule -> places changed
    notes: list[str] = field(default_factory=list)  # what a person should know about it
    bad: str = ""  # why the file could not be used
    # what becomes notes when the slices of the file are joined: the signs of mojibake; "long" documents and the
    # "pieces" that they were cut into; "shortened" conversations, which lost their end; how often something was read by
    # a guess, a sentence each. And, of characters, what `balance` needs
    counts: Counter = field(default_factory=Counter)

    def drop(self, reason: str, characters: int, documents: int = 1) -> None:
        """Count a document that was dropped, or several."""
        self.dropped[reason] += documents
        self.lost[reason] += characters

    def account(self, read: int, kept: int, spare: dict[str, int]) -> None:
        """Count the characters of a record: `kept` of them became a document; `spare` says of others why not."""
        self.counts["read"] += read
        self.counts["form"] += read - kept
        for reason, n in spare.items():
            self.counts["form"] -= n
            self.lost[reason if reason in self.lost or len(self.lost) < FIELDS else "other fields"] += n

    def balance(self) -> dict[str, int]:
        """Return where the characters went that were read: "form" are blank lines and roles, less what joins fields."""
        went = {"kept": self.characters, "lost": self.lost.total()}
        return went | {name: self.counts[name] for name in ("read", "cleaned", "form")}

    def shorten(self, before: Conversation, after: Conversation) -> None:
        """Count what a conversation lost at its end, if anything; a lone system line is not counted."""
        turns, kept = (sum(message["role"] != SYSTEM for message in each.messages) for each in (before, after))
        if kept < turns:
            self.counts["shortened"] += kept > 0  # else it is counted as dropped
            self.lost["end of a conversation"] += sum(len(turn["content"]) for turn in before.messages[kept - turns :])

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
        self.notes = list(map(printable, self.notes))
        if self.bad:  # no half of a file stays behind
            self.notes = []
            for name in _COUNTERS:
                getattr(self, name).clear()
            return
        self.notes[:0] = [f"{told} ({n:,} times)" if n > 1 else told for told, n in self.counts.items() if " " in told]
        if len(self.notes) > NOTES:
            self.notes[NOTES:] = [f"and {len(self.notes) - NOTES:,} notes more, of other slices of this file"]
        if long := self.counts["long"]:
            words = "{:,} longer than {:,} characters, cut into {:,} documents"
            self.notes.append(say(words, long, max_length, self.counts["pieces"]))
        if shortened := self.counts["shortened"]:
            self.notes.append(f"{shortened:,} conversation(s) lost their last exchanges: too long, or a blank turn")
        if not self.counts["characters"] and not self.dropped:
            self.notes.append("no text in it")
        self.notes += notes_on(self.counts, self.rules)


@dataclass
class PartReport:
    """What became of the files of one part."""

    files: list[FileReport] = field(default_factory=list)
    examples: dict[str, list] = field(default_factory=dict)  # cleaning rule -> a few (before, after)


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

    def join(self, parts: Iterable[PartReport], numbers: Iterable[list[int]], max_length: int) -> None:
        """Put the reports of all parts together, one per file; `numbers` says which files those of each part are."""
        for part, owners in zip(parts, numbers, strict=True):
            for file, owner in zip(part.files, owners, strict=True):
                self.files[owner].add(file)
            for rule, pairs in part.examples.items():
                self.examples.setdefault(rule, []).extend(pairs)
        self.examples = {rule: pairs[:EXAMPLES] for rule, pairs in self.examples.items()}
        for file in self.files:
            file.finish(max_length)

    def as_json(self) -> str:
        """Return the text of report.json."""
        files = [{**vars(file), "source": file.name, "balance": file.balance()} for file in self.files]
        for file in files:
            if not file.pop("counts")["read"]:  # the built-in corpus is not read
                del file["balance"]
            del file["name"]
        written = {**vars(self), "files": files, "outputs": [path.name for path in self.outputs]}
        del written["inputs"]
        return printable(json.dumps(written, ensure_ascii=False, indent=1, sort_keys=True)) + "\n"

    def result(self) -> dict:
        """Return the figures that go into the manifest."""
        names = ("source", "documents", "characters", "val_documents", "val_characters")
        result = {name: getattr(self, name) for name in names}
        result |= {"dropped": sum(self.dropped.values()), "dropped_characters": sum(self.lost.values())}
        result |= {"files": len(self.files), "bad_files": sum(bool(file.bad) for file in self.files)}
        if self.floor_bits_per_char is not None:
            result["floor_bits_per_char"] = self.floor_bits_per_char
        return result | ({"losses": losses[:10]} if (losses := self.losses()) else {})

    def losses(self) -> list[str]:
        """Return in sentences what was left out, lost or read by a guess: whole files, then most characters first."""
        told = [say("{} is not used: {}", file.name, file.bad) for file in self.files if file.bad]
        told += [say("not read: {:,} {}", n, kind) for kind, n in self.left_out.most_common()]
        lost = self.lost + Counter(
            {"taken away by the cleaning rules": sum(file.counts["cleaned"] for file in self.files)}
        )
        for reason in dict.fromkeys([*(reason for reason, _ in lost.most_common()), *self.dropped]):
            names = [file.name for file in self.files if file.lost[reason] or file.dropped[reason]]
            where = say(", in {}", ", ".join([*names[:3], f"… (+{len(names) - 3:,})"][: len(names)])) if names else ""
            kind = "{:,} document(s) left out, {}" if reason in self.dropped else "{1}"
            told.append(say("{}: {:,} characters{}", say(kind, self.dropped[reason], say(reason)), lost[reason], where))
        notes = ((file.name, note) for file in self.files for note in file.notes)
        return told + [f"{name}: {note}" for name, note in notes if not any(map(note.__contains__, HARMLESS))]

    def rows(self) -> list[tuple]:
        """Return a row per file: name, encoding, documents, characters, dropped, what to know about it."""
        rows = []
        for file in self.files:
            dropped = ", ".join(f"{n} {say(reason)}" for reason, n in sorted(file.dropped.items()))
            notes = [*([say("NOT USED: {}", file.bad)] if file.bad else []), *map(say, file.notes)]
            rows.append((file.name, file.encoding, file.documents, file.characters, dropped, "; ".join(notes)))
        return rows
