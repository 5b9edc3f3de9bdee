"""Use an existing word list, such as the vocab_user.txt of another project: line n becomes token id n.

One word a line, in any encoding, with an optional count after a tab, or a line of jieba's lists; special tokens may be
among the lines. Knows nothing of tokenizers: `tokenizer.build_words` makes one.
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
_JIEBA = re.compile(r"(\S+)(?: +([0-9]+))?(?: +[a-z]{1,5})? *")  # a line of jieba's lists: 云计算 5 n
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

    def with_counts(self, seen: Mapping[str, int]) -> dict[str, int]:
        """Return each word with its line's count, or else its count in the corpus, at least 1."""
        return {word: max(1, count or seen.get(word, 0)) for word, count in self.words.items()}

    def summary(self) -> str:
        """Return what was accepted and what was refused, in a few lines."""
        lines = [f"{len(self.words):,} words from {self.path.name} ({self.encoding}), in its order"]
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
        raise ValueError(f"vocab_file: {file} cannot be read as text ({why}): give one word a line") from None
    if sum(line.startswith("##") and len(line) > 2 for line in lines) > len(lines) / 10:
        raise ValueError(
            f"vocab_file: many lines of {file.name} begin with '##', as in a BERT tokenizer's WordPiece list: give its "
            "folder as pretrained_model"
        )
    as_jieba = [_JIEBA.fullmatch(line) for line in lines]
    if sum(bool(found and found[2]) for found in as_jieba) > len(lines) / 2:  # else a word with a space may be meant
        lines = [f"{row[1]}\t{row[2] or ''}" if row else line for row, line in zip(as_jieba, lines, strict=True)]
    known: dict[str, int] = {}  # each accepted line, with its count
    refused: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        word, _, count = (part.strip() for part in line.partition("\t"))
        if why := _fault(word, count or "0", known):
            refused.setdefault(why, []).append(number)
        else:
            known[word] = int(count or 0)
    nameless = [word for word in known if _SPECIAL.fullmatch(word) and word not in special_tokens.values()]
    no_words = {*special_tokens.values(), *nameless}
    words = {word: count for word, count in known.items() if word not in no_words}
    if not words:
        raise ValueError(f"vocab_file: {file.name} has no line with a word: put one on each line, without spaces")
    missing = [name for name in special_tokens.values() if name not in known]
    return WordFile(file, str(encoding), [*known, *missing], words, nameless, refused)


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
