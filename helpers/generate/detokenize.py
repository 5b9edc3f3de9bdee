"""Detokenize while a text is being written: ids become characters, stop strings and finished sentences are found."""

from transformers import PreTrainedTokenizerFast

from helpers.generate.settings import SENTENCE
from helpers.vocab.tokenizer import decode

LONGEST_CHARACTER = 4  # pieces that may spell one character: the bytes of UTF-8


class Detokenizer:
    """Tokens become text, one by one: never half a character, and nothing past a stop string or a finished sentence."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...] = (), sentence: bool = False) -> None:
        self.text = ""
        self.starts: list[int] = []  # of each token, where in the text it begins
        self.stopped = False
        self._tokenizer, self._stop, self._sentence = tokenizer, stop, sentence
        self._pending: list[int] = []  # pieces that may be the beginning of a character

    def push(self, token: int) -> bool:
        """Add a token; say whether the text ends with it."""
        self.starts.append(len(self.text))
        self._pending.append(token)
        new = decode(self._tokenizer, self._pending)
        if new.endswith("\ufffd") and len(self._pending) < LONGEST_CHARACTER:
            return False
        self._pending = []
        self.text += new
        if self._stop:
            # only what is new, and as much before it as a stop string may reach back
            start = max(0, len(self.text) - len(new) - max(map(len, self._stop)))
            ends = [at for each in self._stop if (at := self.text.find(each, start)) >= 0]
            if ends:
                return self._end(min(ends))
        if self._sentence and (found := SENTENCE.search(self.text)):
            return self._end(found.end())
        return self.stopped

    def _end(self, length: int) -> bool:
        self.text, self.stopped = self.text[:length], True
        return True

    @property
    def settled(self) -> int:
        """How many characters of the text stay, whatever comes: the rest may be the beginning of a stop string."""
        if self.stopped or not self._stop:
            return len(self.text)
        held = [n for each in self._stop for n in range(1, len(each)) if self.text.endswith(each[:n])]
        return len(self.text) - max(held, default=0)

    @property
    def tokens(self) -> int:
        """How many tokens stand in the text, be it with a part of them."""
        if not self.stopped:
            return len(self.starts)
        return sum(start < len(self.text) for start in self.starts)
