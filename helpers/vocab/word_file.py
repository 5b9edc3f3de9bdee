"""Use an existing word list, such as the vocab_user.txt of another project: line n becomes token id n.

One word a line, in any encoding, with an optional count after a tab; or jieba's columns: word, count, part of speech.
Special tokens may be among the lines. Knows nothing of tokenizers: `tokenizer.build_words` makes one.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.corpus.encodings import BadFile, find_encoding, read_blocks

# special tokens of other projects: [CLS], [unused7], <s>, <eod>, <|endoftext|>
_SPECIAL = re.compile(r"\[(?:[A-Z]+|unused)\d*\]|<[/|]?[a-z_]+\|?>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# jieba's list: word, count, part of speech; where most lines have a count, in the others both may be missing
_COLUMNS = re.compile(r"\s*(\S+)(?:[ \t]+([0-9]{1,15}))?(?:[ \t]+[a-z]+)?\s*", re.IGNORECASE)
_SHOWN = 3  # line numbers named for each reason


@dataclass(frozen=True)
class WordFile:
    """A word list that was read."""

    path: Path
    encoding: str
    tokens: list[str]  # the accepted lines, then the special tokens that the file lacks; a token's index is its id
    words: dict[str, int]  # the words among them, with their counts (0: the line has none)
    nameless: list[str]  # special tokens among the lines that have no meaning here
    refused: dict[str, list[int]]  # reason -> line numbers, from 1
    in_columns: bool = False  # word, count, part of speech, with spaces between them

    def with_counts(self, seen: Mapping[str, int]) -> dict[str, int]:
        """Return each word with its line's count, or else its count in the corpus, at least 1."""
        return {word: max(1, count or seen.get(word, 0)) for word, count in self.words.items()}

    def summary(self) -> str:
        """Return what was accepted and what was refused, in a few lines."""
        lines = [f"{len(self.words):,} words from {self.path.name} ({self.encoding}), in its order"]
        if self.in_columns:
            lines.append("read as a list of jieba: of each line the first column is the word, the number its count")
        if self.nameless:
            names = " ".join(self.nameless[:8]) + (" …" if len(self.nameless) > 8 else "")
            lines.append(f"special tokens that special_tokens gives no meaning, so nothing uses them: {names}")
        for why, numbers in self.refused.items():
            where = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
            lines.append(f"{len(numbers):,} line{'s' if len(numbers) > 1 else ''} refused, {why}: line {where}")
        if self.refused:
            lines.append("the ids of the lines after a refused one are smaller than their numbers")
        return "\n".join(lines)


def read_word_file(path: str, special_tokens: Mapping[str, str]) -> WordFile:
    """Read a word list; `special_tokens` maps a meaning to a name (see `tokenizer.parse_special_tokens`).

    A line's number, from 0, is its word's id, except after refused lines: empty ones, words with a space, repeated
    words and names of bytes. Raises ValueError for a file that is not a word list.
    """
    file = Path(os.path.abspath(Path(path).expanduser()))
    try:
        encoding = find_encoding(file)
        if encoding.bad_lines:  # without them the other words would have other ids
            raise BadFile(f"not {encoding}: {', '.join(encoding.bad_places)}")
        lines = re.split("\r\n|\r|\n", "".join(read_blocks(file, encoding)).rstrip())
    except (OSError, BadFile) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"vocab_file: {file} cannot be read as text ({why}): give a file with one word a line"
        ) from None
    if sum(line.startswith("##") and len(line) > 2 for line in lines) > len(lines) / 10:
        raise ValueError(
            f"vocab_file: many lines of {file.name} begin with '##', as in a BERT tokenizer's WordPiece list: give its "
            "folder as pretrained_model"
        )
    counted = [found for line in lines if (found := _COLUMNS.fullmatch(line)) and found[2]]
    in_columns = 2 * len(counted) >= len(lines) and any(" " in found[0].strip() for found in counted)
    tokens: list[str] = []
    words: dict[str, int] = {}
    nameless: list[str] = []
    refused: dict[str, list[int]] = {}
    known: set[str] = set()
    for number, line in enumerate(lines, 1):
        columns = _COLUMNS.fullmatch(line) if in_columns else None
        word, _, count = columns.group(1, 0, 2) if columns else (part.strip() for part in line.partition("\t"))
        if why := _fault(word, count or "0", known):
            refused.setdefault(why, []).append(number)
            continue
        known.add(word)
        tokens.append(word)
        if word in special_tokens.values():
            continue
        if _SPECIAL.fullmatch(word):
            nameless.append(word)
        else:
            words[word] = int(count or 0)
    if not words:
        raise ValueError(
            f"vocab_file: {file.name} has no line with a word: put one word on each line, without spaces, and if you "
            "like its count after a tab"
        )
    missing = [name for name in special_tokens.values() if name not in known]
    return WordFile(file, str(encoding), [*tokens, *missing], words, nameless, refused, in_columns)


def _fault(word: str, count: str, known: Collection[str]) -> str:
    """Return why a line is refused, "" if it is not."""
    reasons = {
        "empty": not word,
        "with a space in the word": re.search(r"\s", word),
        "a word that an earlier line has": word in known,
        "the name of a byte": _BYTE.fullmatch(word),
        "no count after the tab": not re.fullmatch(r"[0-9]{1,15}", count),
    }
    return next((why for why, found in reasons.items() if found), "")
