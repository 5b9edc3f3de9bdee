"""A word list that somebody brings, such as the vocab_user.txt of another project: its lines become the first tokens.

One word a line, in any encoding and with any line ends; behind a tab may stand how often the word was seen. Special
tokens may be among the lines. Knows nothing of tokenizers: `tokenizer.build_words` makes one of the tokens.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.corpus.encodings import BadFile, find_encoding, read_blocks

# what other projects call a special token: [CLS], [unused7], <s>, <eod>, <|endoftext|>
_SPECIAL = re.compile(r"\[(?:[A-Z]+|unused)\d*\]|<[/|]?[a-z_]+\|?>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SHOWN = 3  # line numbers named for each reason


@dataclass(frozen=True)
class WordFile:
    """A word list as it was read."""

    path: Path
    encoding: str
    tokens: list[str]  # the lines taken, then the special tokens that the file lacks; a token's index is its id
    lines: int  # how many of the tokens are lines of the file
    words: dict[str, int]  # the words among them, with the count of their line (0: it has none)
    nameless: list[str]  # special tokens among the lines that have no meaning here
    refused: dict[str, list[int]]  # why a line was not taken -> the numbers of the lines, from 1
    moved: int  # lines whose id is not their number, because lines before them were refused

    def with_counts(self, seen: Mapping[str, int]) -> dict[str, int]:
        """Return each word with the count of its line, else with how often the corpus has it, at least 1."""
        return {word: max(1, count or seen.get(word, 0)) for word, count in self.words.items()}

    def summary(self) -> str:
        """Return what was taken and what was refused, in a few lines."""
        said = [f"{len(self.words):,} words from {self.path.name} ({self.encoding}), in its order"]
        if self.nameless:
            names = " ".join(self.nameless[:8]) + (" …" if len(self.nameless) > 8 else "")
            said.append(f"special tokens whose meaning special_tokens does not say, so that nothing uses them: {names}")
        for why, numbers in self.refused.items():
            more = ", …" if len(numbers) > _SHOWN else ""
            where = f"line {', '.join(map(str, numbers[:_SHOWN]))}{more}"
            said.append(f"{len(numbers):,} line{'s' if len(numbers) > 1 else ''} refused, {why}: {where}")
        if self.moved:
            said.append(f"so {self.moved:,} lines have another id than their number")
        return "\n".join(said)


def read_word_file(path: str, special_tokens: Mapping[str, str]) -> WordFile:
    """Read a word list; `special_tokens` maps a meaning to a name (see `tokenizer.parse_special_tokens`).

    A line's number, from 0, is the id of its word, unless lines before it are refused: those that are empty, have a
    space in the word, repeat one, or name a byte. Raises ValueError for a file that is no word list.
    """
    file = Path(os.path.abspath(Path(path).expanduser()))
    try:
        encoding = find_encoding(file)
        lines = re.split("\r\n|\r|\n", "".join(read_blocks(file, encoding)).rstrip())
    except (OSError, BadFile) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"vocab_file: {file} cannot be read as text ({why}): give a file with one word a line"
        ) from None
    if sum(line.startswith("##") and len(line) > 2 for line in lines) > len(lines) / 10:
        raise ValueError(
            f"vocab_file: many lines of {file.name} begin with '##', so it is the WordPiece list of a BERT tokenizer: "
            "give the folder that it is in as pretrained_model"
        )
    tokens: dict[str, int] = {}  # in order -> the index of its line
    words: dict[str, int] = {}
    nameless: list[str] = []
    refused: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        word, _, count = (part.strip() for part in line.partition("\t"))
        if why := _fault(word, count or "0", tokens):
            refused.setdefault(why, []).append(index + 1)
            continue
        tokens[word] = index
        if word in special_tokens.values():
            continue
        if _SPECIAL.fullmatch(word):
            nameless.append(word)
        else:
            words[word] = int(count or 0)
    if not words:
        raise ValueError(
            f"vocab_file: {file.name} has no line with a word: one word a line is expected, and behind a tab its count "
            "(a space may stand nowhere in it)"
        )
    moved = sum(index != number for number, index in enumerate(tokens.values()))
    missing = [name for name in special_tokens.values() if name not in tokens]
    return WordFile(file, str(encoding), [*tokens, *missing], len(tokens), words, nameless, refused, moved)


def _fault(word: str, count: str, before: Mapping[str, int]) -> str:
    """Return why a line cannot be taken, "" if it can."""
    if not word:
        return "empty"
    if re.search(r"\s", word):
        return "with a space in the word"
    if word in before:
        return "a word that an earlier line has"
    if _BYTE.fullmatch(word):
        return "the name of a byte"
    return "" if re.fullmatch(r"[0-9]{1,15}", count) else "no count behind the tab"
