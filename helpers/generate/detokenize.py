"""Detokenize while a text is being written: turn ids into characters, find stop strings and finished sentences."""

import re
from bisect import bisect_left
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from helpers.vocab.tokenizer import decode

# up to the end of the first finished sentence or line: some text, then a line break, or end marks with closing quotes
# and brackets; only the next character shows that no further mark follows
SENTENCE = re.compile(r"\S\s*?(?:\n|[。！？!?…]+[”’」』）)\]】》]*(?=[^。！？!?…”’」』）)\]】》]))", re.DOTALL)
LONGEST_CHARACTER = 4  # tokens that may spell one character: the bytes of UTF-8


class Detokenizer:
    """Tokens become text, one by one: never half a character, and nothing after a stop string or finished sentence."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...] = (), sentence: bool = False) -> None:
        self.text = ""
        self.starts: list[int] = []  # where in the text each token begins
        self.stopped = False
        self._tokenizer, self._stop, self._sentence = tokenizer, stop, sentence
        self._pending: list[int] = []  # tokens that may be the beginning of a character

    def push(self, token: int) -> bool:
        """Add a token; return whether the text ends with it."""
        # 1. wait until a character is whole
        self.starts.append(len(self.text))
        self._pending.append(token)
        new = decode(self._tokenizer, self._pending)
        if new.endswith("\ufffd") and len(self._pending) < LONGEST_CHARACTER:
            return False
        self._pending = []
        self.text += new
        # 2. look for a stop string in what is new, and as far before it as one may reach back
        if self._stop:
            start = max(0, len(self.text) - len(new) - max(map(len, self._stop)))
            ends = [at for each in self._stop if (at := self.text.find(each, start)) >= 0]
            if ends:
                return self._end(min(ends))
        # 3. look for the end of a sentence
        if self._sentence and (match := SENTENCE.search(self.text)):
            return self._end(match.end())
        return self.stopped

    def extend(self, tokens: Iterable[int]) -> "Detokenizer":
        """Add all tokens; return this detokenizer."""
        for token in tokens:
            self.push(token)
        return self

    def _end(self, length: int) -> bool:
        self.text, self.stopped = self.text[:length], True
        return True

    @property
    def settled(self) -> int:
        """How many characters of the text are final; the rest may be the beginning of a stop string."""
        if self.stopped or not self._stop:
            return len(self.text)
        held = [n for each in self._stop for n in range(1, len(each)) if self.text.endswith(each[:n])]
        return len(self.text) - max(held, default=0)

    @property
    def tokens(self) -> int:
        """How many tokens are in the text, at least in part."""
        if not self.stopped:
            return len(self.starts)
        return bisect_left(self.starts, len(self.text))
