"""Rows decoded together: each has its own settings and random numbers, and may join or leave between two steps."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import inference, sampling
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import Chunk, Sample, Settings, TokenLogprob
from helpers.vocab.tokenizer import decode, encode

PADDING = -1  # stands where a row has no id; no token has this id
MAX_ROWS = 64  # rows that generate_batch decodes at once


class Row:
    """A text that is being written: its ids so far, its settings, its own stream of random numbers.

    `watched`: somebody wants its pieces while it is written (`take`). reason: why it ended, None until then.
    """

    def __init__(self, ids: Sequence[int], settings: Settings, sample: int = 0, watched: bool = False) -> None:
        self.ids = list(ids)
        self.settings = settings
        self.reason: str | None = None
        self.choices: list[TokenLogprob] = []
        self.prompt_length = len(self.ids)
        self._sample = sample
        self._watched = watched
        self._writing: Detokenizer | None = None
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
            self._writing = Detokenizer(tokenizer, settings.stop, settings.sentence)
        if self._state is None and settings.constraint is not None:
            self._state = settings.constraint.begin(tokenizer, tokenizer.eos_token_id, settings.max_new_tokens)

    def allowed(self) -> Tensor | None:
        """Return (V,), true for the tokens that the constraint allows next; None if there is no constraint."""
        return self._state and self._state.allowed()

    def write(self, token: int, eos: int, choice: TokenLogprob | None) -> None:
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

    def take(self) -> Chunk | None:
        """Return what is new since the last time, None if that is nothing; of a watched row only."""
        writing = self._writing
        text = writing.text if self.done else writing.text[: writing.settled]
        choices = writing.tokens if self.done else sum(start < len(text) for start in writing.starts)
        (characters, seen), self._taken = self._taken, (len(text), choices)
        if len(text) == characters and not self.done:
            return None
        return Chunk(self._sample, text[characters:], tuple(self.choices[seen:choices]), self.reason)

    def result(self, tokenizer: PreTrainedTokenizerFast, prompt: str) -> Sample:
        """Return the text, which began as this prompt; a character that is only half written is left out."""
        if (writing := self._writing) is None:
            writing = Detokenizer(tokenizer)
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
        self._decoder = inference.of(model)
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

    def _choices(self, tokens: list[int]) -> list[TokenLogprob | None]:
        """Return what the model thought of each row's token, for the rows whose settings ask."""
        rows = [i for i, row in enumerate(self.rows) if row.settings.logprobs is not None]
        logprobs = self.logits[rows].log_softmax(-1)  # (R, V)
        own = logprobs.gather(1, torch.tensor([[tokens[i]] for i in rows], device=logprobs.device))  # (R, 1)
        ranks = (logprobs > own).sum(-1).tolist()
        best = logprobs.topk(min(max(self.rows[i].settings.logprobs for i in rows), logprobs.shape[1]))
        choices: list[TokenLogprob | None] = [None] * len(self.rows)
        for at, i in enumerate(rows):
            n = self.rows[i].settings.logprobs
            others = zip(best.indices[at, :n].tolist(), best.values[at, :n].tolist(), strict=True)
            alternatives = tuple((self._text(token), logprob) for token, logprob in others)
            choices[i] = TokenLogprob(tokens[i], self._text(tokens[i]), float(own[at]), 1 + ranks[at], alternatives)
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


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Return the ids a text begins with: the document's start, then the prompt, which may be empty."""
    return [tokenizer.bos_token_id, *encode(tokenizer, prompt)]
