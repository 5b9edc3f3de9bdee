"""What can be asked of a generated text, and what comes back: settings, samples, chunks, token log-probabilities."""

import re
from dataclasses import dataclass

from helpers.generate.constraints import Constraint

SENTENCE = re.compile(r"\S\s*?(?:\n|[。！？!?…]+[”’」』）)\]】》]*(?=[^。！？!?…”’」』）)\]】》]))", re.DOTALL)


@dataclass(frozen=True)
class Settings:
    """How a text is continued; the defaults sample from the model's own distribution.

    max_new_tokens: the longest continuation. temperature … no_repeat_ngram: see `sampling`; temperature 0 or top_p 0
    is greedy. seed: the same seed gives the same text, None another text each time. stop: the text ends before the
    first of these strings. sentence: it ends after its first finished sentence or line. logprobs: note each token's
    `TokenLogprob`, with so many alternatives; None notes nothing. constraint: see `constraints`; it is never violated.
    Raises ValueError for a setting out of its range.
    """

    max_new_tokens: int = 100
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    stop: tuple[str, ...] = ()
    sentence: bool = False
    logprobs: int | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name, is_right, right in (
            ("max_new_tokens", self.max_new_tokens >= 0, "0 or more"),
            ("temperature", 0 <= self.temperature <= 100, "between 0 (greedy) and 100 (1 is off)"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 <= self.top_p <= 1, "between 0 (greedy) and 1 (off)"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100, "between 0.01 and 100 (1 is off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1 (greedy)"),
            ("typical_p", 0 < self.typical_p <= 1, "above 0, and at most 1 (off)"),
            ("presence_penalty", abs(self.presence_penalty) <= 100, "between -100 and 100 (0 is off)"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 100, "between -100 and 100 (0 is off)"),
            ("seed", self.seed is None or self.seed >= 0, "None (each time another text), 0 or more"),
            ("no_repeat_ngram", self.no_repeat_ngram >= 0, "0 (off) or more"),
            ("stop", isinstance(self.stop, tuple) and all(self.stop), "a tuple of strings, none of them empty"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "None (off), 0 or more"),
        ):
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be {right}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_p == 0


DEFAULT = Settings()


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written, as the model saw it, before all filters.

    logprob: natural logarithm of its probability; rank: 1 for the likeliest token; alternatives: the likeliest tokens
    with theirs, in order.
    """

    token: int
    text: str
    logprob: float
    rank: int
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Sample:
    """A text, which starts with its prompt; the ids of what is new, with a `TokenLogprob` each if they were asked for.

    reason: why it ends: "end" (the model ended the document), "stop" (a stop string, a finished sentence, a met
    constraint), or "length". finished: it came to an end of its own: the first two.
    """

    text: str
    finished: bool
    tokens: list[int]
    reason: str = "length"
    choices: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """What is new of a sample: text that nothing will change any more, its choices; the reason in its last piece."""

    sample: int
    text: str
    choices: tuple[TokenLogprob, ...]
    reason: str | None
