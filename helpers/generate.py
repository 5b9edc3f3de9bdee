"""Prompt -> ids -> a loop with a cache of keys and values -> text: one text, many, or piece by piece.

All of it runs on one `DecodeBatch`, which rows join and leave between two steps. Knows nothing of HTTP, threads
or notebooks.

Beyond the context window: a model sees at most n_ctx ids. When a text grows past that, the window slides: the
last n_ctx // 2 ids are read anew, and the text goes on. A prompt that is too long is treated in the same way:
what the model sees depends only on how long the text is (`window_start`). The filters see what the model sees.
"""

import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from helpers import decoder, paths, sampling
from helpers.constraints import Constraint
from helpers.tokenizer import decode, encode
from helpers.tokenizer import load as load_tokenizer

transformers_logging.disable_progress_bar()  # a bar for each loaded file would fill the notebook

PADDING = -1  # stands where a row has no id; no token has this id
MAX_ROWS = 64  # rows that generate_batch decodes at once
LONGEST_CHARACTER = 4  # pieces that may spell one character: the bytes of UTF-8
SENTENCE = re.compile(r"\S\s*?(?:\n|[。！？!?…]+[”’」』）)\]】》]*(?=[^。！？!?…”’」』）)\]】》]))", re.DOTALL)


@dataclass(frozen=True)
class Settings:
    """How a text is continued; the defaults sample from the model's own distribution.

    max_new_tokens: the longest continuation. temperature … no_repeat_ngram: see `sampling`; temperature 0 or top_p 0
    is greedy. seed: the same seed gives the same text, None another text each time. stop: the text ends before the
    first of these strings. sentence: it ends after its first finished sentence or line. logprobs: note each token's
    `Choice`, with so many alternatives; None notes nothing. constraint: see `constraints`; it is never violated.
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
class Choice:
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
    """A text, which starts with its prompt; the ids of what is new, with a `Choice` each if they were asked for.

    reason: why it ends: "end" (the model ended the document), "stop" (a stop string, a finished sentence, a met
    constraint), or "length". finished: it came to an end of its own: the first two.
    """

    text: str
    finished: bool
    tokens: list[int]
    reason: str = "length"
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Piece:
    """What is new of a sample: text that nothing will change any more, its choices; the reason in its last piece."""

    sample: int
    text: str
    choices: tuple[Choice, ...]
    reason: str | None


class Writing:
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


class Row:
    """A text that is being written: its ids so far, its settings, its own stream of random numbers.

    `watched`: somebody wants its pieces while it is written (`take`). reason: why it ended, None until then.
    """

    def __init__(self, ids: Sequence[int], settings: Settings, sample: int = 0, watched: bool = False) -> None:
        self.ids = list(ids)
        self.settings = settings
        self.reason: str | None = None
        self.choices: list[Choice] = []
        self.prompt_length = len(self.ids)
        self._sample = sample
        self._watched = watched
        self._writing: Writing | None = None
        self._state = None  # of the constraint
        self._taken = (0, 0)  # characters, choices
        # a stream a row, from the seed and the number of the sample: no other row of the batch can change it
        self.random = np.random.default_rng(None if settings.seed is None else [settings.seed, sample])
        if settings.max_new_tokens == 0:
            self.reason = "length"

    @property
    def new(self) -> list[int]:
        """The ids written so far, without the prompt's."""
        return self.ids[self.prompt_length :]

    @property
    def done(self) -> bool:
        """Whether nothing is left to write."""
        return self.reason is not None

    @property
    def finished(self) -> bool:
        """Whether the text came to an end of its own."""
        return self.reason in ("end", "stop")

    def begin(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Make ready what follows the text while it is written; ValueError for a constraint that cannot be met."""
        settings = self.settings
        if self._writing is None and (self._watched or settings.stop or settings.sentence):
            self._writing = Writing(tokenizer, settings.stop, settings.sentence)
        if self._state is None and settings.constraint is not None:
            self._state = settings.constraint.begin(tokenizer, tokenizer.eos_token_id, settings.max_new_tokens)

    def allowed(self) -> Tensor | None:
        """Return (V,), true for the tokens that the constraint allows next; None if there is no constraint."""
        return self._state and self._state.allowed()

    def write(self, token: int, eos: int, choice: Choice | None) -> None:
        """Add a token, which may be the document's end."""
        if token == eos:
            self.reason = "end"
            return
        self.ids.append(token)
        if choice:
            self.choices.append(choice)
        if self._state:
            self._state.advance(token)
        if (self._writing and self._writing.push(token)) or (self._state and self._state.done):
            self.reason = "stop"
        elif len(self.ids) - self.prompt_length >= self.settings.max_new_tokens:
            self.reason = "length"

    def take(self) -> Piece | None:
        """Return what is new since the last time, None if that is nothing; of a watched row only."""
        writing = self._writing
        text = writing.text if self.done else writing.text[: writing.settled]
        choices = writing.tokens if self.done else sum(start < len(text) for start in writing.starts)
        (characters, seen), self._taken = self._taken, (len(text), choices)
        if len(text) == characters and not self.done:
            return None
        return Piece(self._sample, text[characters:], tuple(self.choices[seen:choices]), self.reason)

    def result(self, tokenizer: PreTrainedTokenizerFast, prompt: str) -> Sample:
        """Return the text, which began as this prompt; a character that is only half written is left out."""
        if (writing := self._writing) is None:
            writing = Writing(tokenizer)
            for token in self.new:
                writing.push(token)
        n = writing.tokens
        return Sample(prompt + writing.text, self.finished, self.new[:n], self.reason or "", tuple(self.choices[:n]))


def window_start(length: int, n_ctx: int) -> int:
    """Return the index of the first id that a model of n_ctx positions sees of a text of `length` ids.

    0 up to n_ctx ids. With one more, the window keeps the last n_ctx // 2; it grows back to n_ctx, slides again.
    """
    hop = n_ctx + 1 - max(1, n_ctx // 2)
    return max(0, math.ceil((length - n_ctx) / hop)) * hop


def banned(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return (V,), true for ids that are never sampled: special tokens but the document's end, ids without a token."""
    mask = torch.arange(model.config.vocab_size) >= len(tokenizer)
    mask[[i for i in tokenizer.all_special_ids if i < len(mask)]] = True
    mask[tokenizer.eos_token_id] = False
    return mask.to(model.device)


class DecodeBatch:
    """Rows decoded together, a token each a step; rows join (`add`) and leave (`drop`) between steps.

    Row i of the batch is row i of the cache. Where one leaves, the last one takes its place.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        if model.training:
            raise ValueError("the model is in training mode, dropout would blur its text: call model.eval() first")
        self.rows: list[Row] = []
        self.logits: Tensor  # (B, V), for the token that each row writes next
        self.model, self.tokenizer = model, tokenizer
        self.eos = tokenizer.eos_token_id
        self._decoder = decoder.of(model)
        self._cache = self._decoder.cache()
        self.n_ctx = self._decoder.n_ctx
        self._banned = banned(model, tokenizer)  # (V,)

    @property
    def ids(self) -> Tensor:
        """(B, T), what the model has seen of each row; behind the shorter ones PADDING."""
        return self._padded([self._window(row) for row in self.rows], PADDING)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Read the rows' ids and let them join; rows with equal ids are read once (n samples, one prefill)."""
        if not rows:
            return
        for row in rows:
            row.begin(self.tokenizer)
        places = range(len(self.rows), len(self.rows) + len(rows))
        self.rows = [*self.rows, *rows]
        logits = self._read(places)
        self.logits = torch.cat([self.logits, logits]) if len(rows) < len(self.rows) else logits
        self._settle()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Write one token in every row; return the rows that are done: they have left the batch."""
        chosen = self._choose()  # (B,)
        tokens = chosen.tolist()
        choices = self._choices(tokens) if self._noting else [None] * len(tokens)
        for row, token, choice in zip(self.rows, tokens, choices, strict=True):
            row.write(token, self.eos, choice)
        ended = [row for row in self.rows if row.done]
        if ended:
            chosen = chosen[self._keep([i for i, row in enumerate(self.rows) if not row.done])]
        if self.rows:
            windows = [self._start(len(row.ids)) for row in self.rows]
            known = [len(row.ids) - 1 - start for row, start in zip(self.rows, windows, strict=True)]
            slid = [i for i, row in enumerate(self.rows) if windows[i] > self._start(len(row.ids) - 1)]
            for i in slid:
                known[i] = 0  # this row is stepped with the others and thrown away: it is read anew below
            self.logits = self._masked(self._decoder.step(chosen, known, self._cache))
            if slid:
                self.logits[slid] = self._read(slid)
        return ended

    @torch.inference_mode()
    def drop(self, rows: Sequence[Row]) -> None:
        """Let rows leave before they are done."""
        stay = [i for i, row in enumerate(self.rows) if row not in rows]
        if len(stay) < len(self.rows):
            self.logits = self.logits[self._keep(stay)]

    def _start(self, length: int) -> int:
        return window_start(length, self.n_ctx)

    def _window(self, row: Row) -> list[int]:
        return row.ids[self._start(len(row.ids)) :]

    def _padded(self, lists: Sequence[Sequence[int]], filler: int) -> Tensor:
        width = max(map(len, lists))
        padded = [[*each, *[filler] * (width - len(each))] for each in lists]
        return torch.tensor(padded, device=self.model.device)  # (B, T)

    def _read(self, places: Sequence[int]) -> Tensor:
        """Read the windows of the rows at these places into the cache; return their logits (R, V)."""
        windows = [tuple(self._window(self.rows[place])) for place in places]
        distinct = {window: i for i, window in enumerate(dict.fromkeys(windows))}
        ids = self._padded(list(distinct), 0)  # (D, N)
        texts = [distinct[window] for window in windows]
        pairs = list(zip(places, texts, strict=True))
        return self._masked(self._decoder.read(ids, [len(window) for window in distinct], self._cache, pairs))[texts]

    def _masked(self, logits: Tensor) -> Tensor:
        return logits.masked_fill_(self._banned, -torch.inf)

    def _choose(self) -> Tensor:
        """Return the next token of every row (B,), by its own settings and its own stream of random numbers."""
        logits = self.logits
        if self._filters or self._constrained:
            ids = self.ids if self._looking_back else None
            written = self._written(ids) if self._looking_back else None
            allowed = self._allowed() if self._constrained else None
            logits = sampling.filtered(logits, ids, written, allowed=allowed, **self._filters)
        if self._all_greedy:
            return logits.argmax(-1)
        waits = np.ones(tuple(logits.shape))  # (B, V); a greedy row has one token left, and needs no chance
        for row, own in zip(self.rows, waits, strict=True):
            if not row.settings.greedy:
                row.random.standard_exponential(out=own)
        return sampling.choose(logits, torch.from_numpy(waits).to(logits.device))

    def _written(self, ids: Tensor) -> Tensor:
        """Return ids (B, T) without those of the prompts."""
        starts = [max(0, row.prompt_length - self._start(len(row.ids))) for row in self.rows]
        new = torch.arange(ids.shape[1], device=ids.device) >= torch.tensor(starts, device=ids.device)[:, None]
        return ids.where(new, PADDING)

    def _allowed(self) -> Tensor:
        """Return (B, V), true for what the constraints allow."""
        every = torch.ones(self.logits.shape[-1], dtype=torch.bool)
        masks = [row.allowed() for row in self.rows]
        masks = [
            every if mask is None else torch.nn.functional.pad(mask, (0, len(every) - len(mask))) for mask in masks
        ]
        return torch.stack(masks).to(self.logits.device)

    def _choices(self, tokens: list[int]) -> list[Choice | None]:
        """Return what the model thought of each row's token, for the rows whose settings ask."""
        rows = [i for i, row in enumerate(self.rows) if row.settings.logprobs is not None]
        logprobs = self.logits[rows].log_softmax(-1)  # (R, V)
        own = logprobs.gather(1, torch.tensor([[tokens[i]] for i in rows], device=logprobs.device))  # (R, 1)
        ranks = (logprobs > own).sum(-1).tolist()
        best = logprobs.topk(min(max(self.rows[i].settings.logprobs for i in rows), logprobs.shape[1]))
        choices: list[Choice | None] = [None] * len(self.rows)
        for at, i in enumerate(rows):
            n = self.rows[i].settings.logprobs
            others = zip(best.indices[at, :n].tolist(), best.values[at, :n].tolist(), strict=True)
            alternatives = tuple((self._text(token), logprob) for token, logprob in others)
            choices[i] = Choice(tokens[i], self._text(tokens[i]), float(own[at]), 1 + ranks[at], alternatives)
        return choices

    def _text(self, token: int) -> str:
        return "" if token == self.eos else decode(self.tokenizer, [token])

    def _keep(self, stay: list[int]) -> list[int]:
        """Keep the rows of these places; return where each row that is there now stood before."""
        free = [place for place in range(len(stay)) if place not in stay]
        order = list(range(len(stay)))
        for target, source in zip(free, reversed(stay), strict=False):
            self._cache.move(source, target, min(len(self.rows[source].ids), self.n_ctx))
            order[target] = source
        self.rows = [self.rows[place] for place in order]
        self._settle()
        return order

    def _settle(self) -> None:
        # once for all steps until rows join or leave, and not once a step
        settings = [row.settings for row in self.rows]
        self._all_greedy = all(each.greedy for each in settings)
        self._constrained = any(each.constraint for each in settings)
        self._noting = any(each.logprobs is not None for each in settings)
        self._filters = filters(settings, self.model.device)
        self._looking_back = not {"penalty", "presence", "frequency", "ngram"}.isdisjoint(self._filters)


def filters(settings: Sequence[Settings], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the arguments of `sampling.filtered` for rows with these settings, (B,) each; what is off is left out."""
    columns = {
        "penalty": (1.0, [row.repetition_penalty for row in settings]),
        "presence": (0.0, [row.presence_penalty for row in settings]),
        "frequency": (0.0, [row.frequency_penalty for row in settings]),
        "ngram": (0, [row.no_repeat_ngram for row in settings]),
        "t": (1.0, [0.0 if row.greedy else row.temperature for row in settings]),
        "k": (0, [row.top_k for row in settings]),
        "p": (1.0, [1.0 if row.greedy else row.top_p for row in settings]),
        "min_p": (0.0, [row.min_p for row in settings]),
        "typical": (1.0, [row.typical_p for row in settings]),
    }
    return {
        name: torch.tensor(values, dtype=torch.float64, device=device)
        for name, (off, values) in columns.items()
        if any(value != off for value in values)
    }


def load(run: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return (model in eval mode, tokenizer) of a run given by name, or of a folder given as a Path.

    On the GPU where there is one. A run's files are checked first; raises paths.RoomError with the notebook that
    mends it.
    """
    if isinstance(run, Path):
        folder = run
        if not (folder / "config.json").is_file():
            raise paths.RoomError(f"{folder} holds no model: there is no config.json in it")
    else:
        paths.open_room(run, "train")
        folder = paths.room(run, "train") / "final_model"
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval().requires_grad_(False), load_tokenizer(folder)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Return the ids a text begins with: the document's start, then the prompt, which may be empty."""
    return [tokenizer.bos_token_id, *encode(tokenizer, prompt)]


def _run(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: list[Row], max_rows: int) -> None:
    """Write all rows to their end, at most max_rows at a time; others join when half of the places are free."""
    batch = DecodeBatch(model, tokenizer)
    waiting = [row for row in reversed(rows) if not row.done]
    while waiting or batch.rows:
        if len(batch.rows) <= max_rows // 2:
            free = max_rows - len(batch.rows)
            batch.add([waiting.pop() for _ in range(min(free, len(waiting)))])
        batch.step()


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings = DEFAULT,
    samples: int = 1,
) -> list[Sample]:
    """Return `samples` continuations of one prompt, written in one batch from one encoding of the prompt.

    Sample i of a seed is the same text however many samples are asked for. Raises ValueError for samples < 1.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}: ask for 1 or more")
    ids = prompt_ids(tokenizer, prompt)
    rows = [Row(ids, settings, number) for number in range(samples)]
    _run(model, tokenizer, rows, max_rows=samples)
    return [row.result(tokenizer, prompt) for row in rows]


def generate_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], settings: Settings = DEFAULT
) -> list[Sample]:
    """Return one continuation a prompt, in order: the same texts as `generate` one by one, in far less time.

    Raises ValueError when there is no prompt.
    """
    if not prompts:
        raise ValueError("there is no prompt: give at least one (it may be empty)")
    rows = [Row(prompt_ids(tokenizer, prompt), settings) for prompt in prompts]
    _run(model, tokenizer, rows, MAX_ROWS)
    return [row.result(tokenizer, prompt) for prompt, row in zip(prompts, rows, strict=True)]


def stream_pieces(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings = DEFAULT,
    stop: threading.Event | None = None,
) -> Iterator[Piece]:
    """Yield the continuation (without the prompt) piece by piece; setting `stop` ends it within one token.

    The texts add up to exactly what `generate` returns. Byte pieces are held back until their character is whole, and
    what may become a stop string until it cannot any more.
    """
    batch, row = DecodeBatch(model, tokenizer), Row(prompt_ids(tokenizer, prompt), settings, watched=True)
    if not row.done:
        batch.add([row])
    while batch.rows and not (stop and stop.is_set()):
        batch.step()
        if piece := row.take():
            yield piece


def stream(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings = DEFAULT,
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Yield only the texts of `stream_pieces`."""
    for piece in stream_pieces(model, tokenizer, prompt, settings, stop):
        if piece.text:
            yield piece.text


def next_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str) -> tuple[Tensor, Tensor]:
    """Return what the model sees of a prompt, ids (1, T), and the logits (1, V) of the token that comes next."""
    batch = DecodeBatch(model, tokenizer)
    batch.add([Row(prompt_ids(tokenizer, prompt), DEFAULT)])
    return batch.ids, batch.logits


def filtered(logits: Tensor, ids: Tensor, settings: Settings, written: Tensor | None = None) -> Tensor:
    """Return logits (B, V) after all filters that the settings ask for; softmax gives what is sampled from.

    ids: (B, T), the text so far; written: (B, N), of these the ids after the prompt, for the two penalties of OpenAI.
    """
    return sampling.filtered(logits, ids, written, **filters([settings], logits.device))
