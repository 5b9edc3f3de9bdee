"""Detokenize while a text is being written: turn ids into characters, find stop strings and finished sentences."""

import functools
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerFast

from helpers.vocab.tokenizer import decode

# up to the end of the first finished sentence or line: some text, then a line break, or end marks with closing quotes
# and brackets; only the next character shows that no further mark follows. An ellipsis alone is a pause, and no end
_ENDS, _CLOSING = "。！？!?", r"”’\"'」』）)\]】》"
SENTENCE = re.compile(
    rf"[\s{_ENDS}…]*[^\s{_ENDS}…].*?(?:\n|…*[{_ENDS}][{_ENDS}…]*[{_CLOSING}]*(?=[^{_ENDS}…{_CLOSING}]))", re.DOTALL
)
LONGEST_CHARACTER = 4  # tokens that may spell one character: the bytes of UTF-8
# decoders that turn a token into the same text whatever stands before it; others set or strip spaces between tokens
CONTEXT_FREE = {"Sequence", "ByteFallback", "Fuse", "ByteLevel"}


@functools.lru_cache(maxsize=4)  # a large vocabulary is read for it
def _joins(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether the text of a token depends on the tokens before it."""
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    if decoder is None:  # then tokens have spaces between them
        return True
    return not set(re.findall(r'"type": "(\w+)"', json.dumps(decoder))) <= CONTEXT_FREE


class Detokenizer:
    """Tokens become text, one by one: never half a character, and nothing after a stop string or finished sentence.

    `before` are the ids that the text follows: in WordPiece, "cats" is " cats" after "the".
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        stop: tuple[str, ...] = (),
        sentence: bool = False,
        before: Sequence[int] = (),
    ) -> None:
        self.text = ""
        self.starts: list[int] = []  # where in the text each token begins
        self.stopped = False
        self._tokenizer, self._stop, self._sentence = tokenizer, stop, sentence
        self._pending: list[int] = []  # tokens since the text last ended with a whole character
        self._shown = 0  # characters of these that are in the text already
        self._waiting = 0  # tokens that have brought no character yet
        self._joins = _joins(tokenizer)
        self._set_context(before[-LONGEST_CHARACTER:])

    def push(self, token: int) -> bool:
        """Add a token; return whether the text ends with it."""
        # 1. take the characters that are whole; a half one may be completed by the next token
        self.starts.append(len(self.text))
        self._pending.append(token)
        self._waiting += 1
        new = decode(self._tokenizer, [*self._context, *self._pending])[self._context_length + self._shown :]
        half = new.endswith("\ufffd") and self._waiting < LONGEST_CHARACTER
        if half:
            new = new.rstrip("\ufffd")
        # bytes of no character are told from its first ones by what follows them
        strays = len(new) - len(new.lstrip("\ufffd"))
        for number in range(1, self._waiting):
            self.starts[number - self._waiting] += min(number, strays)
        self.text += new
        if half and not new:
            return False
        self._waiting = 0
        self._shown += len(new)
        if not half:
            self._set_context(self._pending)
            self._pending, self._shown = [], 0
        # 2. look for a stop string in what is new, and as far before it as one may reach back
        if self._stop:
            start = max(0, len(self.text) - len(new) - max(map(len, self._stop)))
            ends = [at for each in self._stop if (at := self.text.find(each, start)) >= 0]
            if ends:
                return self._end(min(ends))
        # 3. look for the end of a sentence
        if self._sentence and (match := SENTENCE.match(self.text)):
            said = match.group()
            opens = said[-1] in "\"'" and said.count(said[-1]) % 2  # straight: it may belong to the next sentence
            return self._end(match.end() - opens)
        return self.stopped

    def extend(self, tokens: Iterable[int]) -> "Detokenizer":
        """Add all tokens; return this detokenizer."""
        for token in tokens:
            self.push(token)
        return self

    def _set_context(self, tokens: Sequence[int]) -> None:
        """Remember the tokens that decide how the next one is joined to the text; none where it is always the same."""
        self._context = list(tokens) if self._joins else []
        text = decode(self._tokenizer, self._context) if self._context else ""
        while text.startswith("\ufffd"):  # it begins inside a character
            del self._context[0]
            text = decode(self._tokenizer, self._context) if self._context else ""
        if text.endswith("\ufffd"):
            self._context, text = [], ""
        self._context_length = len(text)

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
