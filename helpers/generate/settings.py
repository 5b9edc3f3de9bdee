"""Sampling settings with their ranges, and the results: samples, chunks. Knows no model and no filter's arithmetic."""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.generate.constraints import Constraint
from helpers.vocab.chat import ANSWER_SAMPLING, TEXT_SAMPLING
from helpers.wording import say


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values of one sampling setting: what `Settings` accepts, and what is offered to users."""

    meaning: str  # what the setting does, in a few words
    off: float  # the default, which changes nothing; an int for a setting that counts
    low: float  # the smallest value that `Settings` accepts
    high: float  # the largest one; math.inf: there is none
    low_is_open: bool = False  # `low` itself is not accepted
    greedy: float | None = None  # at this value the likeliest token is always taken
    least: float  # the smallest value that a request over HTTP may ask for
    most: float  # the largest one
    slider: tuple[float, float, float] | None = None  # least, most and step of a slider; None: it has no slider

    @property
    def note(self) -> str:
        """What the special values mean: "1 is off, 0 is greedy"."""
        return f"{self.off:g} is off" + ("" if self.greedy is None else f", {self.greedy:g} is greedy")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.low_is_open and value == self.low)

    def __str__(self) -> str:
        """Return the accepted values in words: "between 0 (greedy) and 1 (off)"."""
        names = {self.off: say(" (off)"), self.greedy: say(" (greedy)")}
        low, high = (f"{value:g}{names.get(value, '')}" for value in (self.low, self.high))
        if self.high == math.inf:
            return say("{} or more", low)
        if self.low_is_open:
            return say("above {}, and at most {}", low, high)
        return say("between {} and {}", low, high) + say(" ({:g} is off)", self.off) * (self.low < self.off < self.high)


def _ranged(meaning: str, off: float, low: float, high: float, **more: Any) -> Any:
    values: dict[str, Any] = {"off": off, "low": low, "high": high, "least": low, "most": high}
    return field(default=off, metadata={"range": Range(meaning=meaning, **values | more)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a text is continued; the defaults sample from the model's own distribution.

    Raises ValueError for a setting out of its range.
    """

    max_new_tokens: int = 100  # the longest continuation
    # filters, explained in `sampling`: here are meanings and ranges (off, low, high), there functions of the same names
    temperature: float = _ranged("below 1 careful, above 1 daring", 1.0, 0, 100, most=2, greedy=0, slider=(0, 2, 0.05))
    top_p: float = _ranged(
        "only the likeliest tokens that together have this probability", 1.0, 0, 1, greedy=0, slider=(0, 1, 0.01)
    )
    top_k: int = _ranged("only so many of the likeliest tokens", 0, 0, math.inf, most=1000, slider=(0, 100, 1))
    min_p: float = _ranged(
        "only tokens that have this share of the likeliest token's probability", 0.0, 0, 1, greedy=1,
        slider=(0, 1, 0.01),
    )  # fmt: skip
    typical_p: float = _ranged(
        "only the most typical tokens that together have this probability", 1.0, 0, 1, low_is_open=True
    )
    repetition_penalty: float = _ranged(
        "above 1 makes tokens less likely that the model sees in the text", 1.0, 0.01, 100, least=1, most=2,
        slider=(1, 2, 0.05),
    )  # fmt: skip
    presence_penalty: float = _ranged("lowers a token's score once if it was written", 0.0, -100, 100, least=-2, most=2)
    frequency_penalty: float = _ranged(
        "lowers a token's score each time it was written", 0.0, -100, 100, least=-2, most=2
    )
    no_repeat_ngram: int = _ranged("so many tokens in a row never occur twice", 0, 0, math.inf, most=20)
    seed: int | None = None  # the same seed gives the same text (a GPU's is not a CPU's); None gives another each time
    stop: tuple[str, ...] = ()  # the text ends before the first of these strings
    sentence: bool = False  # the text ends after its first finished sentence or line
    logprobs: int | None = None  # record a `TokenLogprob` per token, with this many alternatives; None records none
    constraint: Constraint | None = None  # see `constraints`; it is never violated

    def __post_init__(self) -> None:
        for name, is_right, right in (
            ("max_new_tokens", self.max_new_tokens >= 0, say("{} or more", 0)),
            *((name, getattr(self, name) in values, values) for name, values in RANGES.items()),
            ("seed", self.seed is None or self.seed >= 0, say("None (each time another text), 0 or more")),
            ("stop", isinstance(self.stop, tuple) and all(self.stop), "a tuple of strings, none of them empty"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "None (off), 0 or more"),
        ):
            if not is_right:
                raise ValueError(say("{} is {!r}: it must be {}", name, getattr(self, name), right))

    @property
    def greedy(self) -> bool:
        """Return whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_p == 0


# the settings that are filters, in the order of their fields: HTTP schema, panel and page read this table
RANGES: dict[str, Range] = {each.name: each.metadata["range"] for each in fields(Settings) if "range" in each.metadata}
DEFAULT_SETTINGS = Settings()
_NOTED = {"no_repeat_ngram": "no_repeat_ngram_size"}  # a setting's name in a model's folder, where it is another


def default_settings(folder: Path, chat: bool = False) -> dict[str, float]:
    """Return all sampling settings for where nobody says otherwise: those of the model's generation_config.json.

    Where that says nothing of them, a text (or in a `chat` an answer) is drawn as room 04 and deeper/chat would note.
    """
    try:
        noted = dict(json.loads((folder / "generation_config.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        noted = {}
    if noted.get("do_sample") is False:
        noted["temperature"] = 0.0
    elif noted.keys().isdisjoint(TEXT_SAMPLING):
        noted |= ANSWER_SAMPLING if chat else TEXT_SAMPLING
    named = {name: noted.get(_NOTED.get(name, name)) for name in RANGES}
    return {
        name: value if isinstance(value := named[name], int | float) and value in values else values.off
        for name, values in RANGES.items()
    }


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written, as the model saw it, before all filters."""

    token: int
    text: str
    logprob: float  # natural logarithm of its probability
    rank: int  # 1 for the likeliest token
    alternatives: tuple[tuple[str, float], ...]  # the likeliest tokens with their logarithms, in order
    start: int = 0  # where it begins in the text that was written; bytes of one character begin where that does


@dataclass(frozen=True)
class Sample:
    """A text, which starts with its prompt."""

    text: str
    finished: bool  # it came to its own end: reason "end" or "stop"
    tokens: list[int]  # the new ids, without the prompt's
    # "end": the model ended the document; "stop": a stop string, a finished sentence, a met constraint; or "length"
    reason: str = "length"
    logprobs: tuple[TokenLogprob, ...] = ()  # one per new id, if `Settings.logprobs` was set


@dataclass(frozen=True)
class Chunk:
    """The new part of a sample that is streamed: text that nothing will change any more."""

    sample: int  # the sample's number
    text: str
    logprobs: tuple[TokenLogprob, ...]
    reason: str | None  # why the sample ended, in its last chunk
