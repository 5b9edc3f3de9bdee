"""Batched decoding: rows with their own settings and random numbers, which join and leave between two steps.

What continuous batching needs (Yu et al. 2022, "Orca"); the engine of room 06 is a thread around it.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from helpers.device import widest_float
from helpers.generate import sampling
from helpers.generate.constraints import ConstraintState
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import RANGES, Chunk, Sample, Settings, TokenLogprob
from helpers.model.cache import Cache
from helpers.model.decoder import decoder_of
from helpers.model.gpt import GPT
from helpers.vocab.chat import call_form, turn_borders
from helpers.vocab.tokenizer import decode, encode

MADE_ON_CPU = {"cpu", "mps"}  # types of devices for which NumPy makes the random numbers
_PADDING = -1  # where a row has no id; no token has this id


class Row:
    """A text that is being written: its ids so far, its settings, its own stream of random numbers.

    ids: those of the prompt, see `prompt_ids`. streamed: its chunks are read while it is written (`take`).
    """

    def __init__(self, ids: Sequence[int], settings: Settings, sample: int = 0, streamed: bool = False) -> None:
        self.ids = list(ids)
        self.settings = settings
        self.reason: str | None = "length" if settings.max_new_tokens == 0 else None  # why it ended; None until then
        self.logprobs: list[TokenLogprob] = []
        self.prompt_length = len(self.ids)
        # one stream per row, from the seed and the number of the sample: no other row of the batch can change it. On a
        # GPU only its first number is used, as the seed of a stream that is made there
        self.random = np.random.default_rng(None if settings.seed is None else [settings.seed, sample])
        self._on_gpu: torch.Generator | None = None
        self._sample = sample
        self._streamed = streamed
        self._detokenizer: Detokenizer | None = None
        self._constraint: ConstraintState | None = None
        self._taken = (0, 0)  # characters, tokens
        self._end_taken = False

    @property
    def new(self) -> list[int]:
        """The ids written so far, without those of the prompt."""
        return self.ids[self.prompt_length :]

    @property
    def done(self) -> bool:
        """Return whether the text has ended."""
        return self.reason is not None

    @property
    def finished(self) -> bool:
        """Return whether the text came to its own end."""
        return self.reason in ("end", "stop")

    def begin(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """Prepare to be written; raise ValueError for a constraint that cannot be met."""
        settings = self.settings
        if self._detokenizer is None and (self._streamed or settings.stop or settings.sentence):
            self._detokenizer = Detokenizer(tokenizer, settings.stop, settings.sentence, self.ids[: self.prompt_length])
        if self._constraint is None and settings.constraint is not None:
            self._constraint = settings.constraint.begin(tokenizer, tokenizer.eos_token_id, settings.max_new_tokens)

    def draw(self, noise: Tensor) -> None:
        """Fill the noise (V,) of one choice, on a device that makes random numbers: from a CPU they come slowly."""
        if self._on_gpu is None:
            self._on_gpu = torch.Generator(noise.device).manual_seed(int(self.random.integers(2**63)))
        noise.exponential_(generator=self._on_gpu)

    def allowed(self, width: int) -> Tensor:
        """Return (width,), true for the tokens that may come next: all of them without a constraint."""
        if self._constraint is None:
            return torch.ones(width, dtype=torch.bool)
        return self._constraint.allowed(width)

    def write(self, token: int, is_end: bool, logprob: TokenLogprob | None) -> None:
        """Add a token, unless it ends the text."""
        if is_end:
            self.reason = "end"
            return
        self.ids.append(token)
        if logprob:
            self.logprobs.append(logprob)
        if self._constraint:
            self._constraint.advance(token)
        if (self._detokenizer and self._detokenizer.push(token)) or (self._constraint and self._constraint.done):
            self.reason = "stop"
        elif len(self.ids) - self.prompt_length >= self.settings.max_new_tokens:
            self.reason = "length"

    def take(self) -> Chunk | None:
        """Return what is new since the last call, None if nothing is; only of a streamed row that has begun.

        The last chunk, which has the reason, may be empty; after it there is none.
        """
        written = self._detokenizer
        assert written is not None
        text = written.text if self.done else written.text[: written.settled]
        tokens = written.tokens if self.done else bisect_left(written.starts, len(text))
        (characters, taken), self._taken = self._taken, (len(text), tokens)
        if self._end_taken or (len(text) == characters and not self.done):
            return None
        self._end_taken = self.done
        return Chunk(self._sample, text[characters:], self._located(written, taken, tokens), self.reason)

    def result(self, tokenizer: PreTrainedTokenizerFast, prompt: str) -> Sample:
        """Return the text, which begins with this prompt; a character that is only half written is left out."""
        before = self.ids[: self.prompt_length]
        written = self._detokenizer or Detokenizer(tokenizer, before=before).extend(self.new)
        n = written.tokens
        logprobs = self._located(written, 0, n)
        return Sample(prompt + written.text, self.finished, self.new[:n], self.reason or "", logprobs)

    def _located(self, written: Detokenizer, first: int, end: int) -> tuple[TokenLogprob, ...]:
        """Return what was asked for about these tokens, each with its place in the text."""
        told = zip(self.logprobs[first:end], written.starts[first:end], strict=False)  # none may have been asked for
        return tuple(replace(each, start=start) for each, start in told)


def window_start(length: int, n_ctx: int) -> int:
    """Return the index of the first id that a model with n_ctx positions sees of a text of `length` ids.

    0 up to n_ctx ids. With one more, the window keeps the last n_ctx // 2; it grows back to n_ctx and slides again.
    """
    # n_ctx = 6:  length  1 2 3 4 5 6 | 7 8 9 10 | 11 12 13 14 | …
    #             start   0 0 0 0 0 0 | 4 4 4  4 |  8  8  8  8 | …
    #             seen    1 2 3 4 5 6 | 3 4 5  6 |  3  4  5  6 | …
    hop = n_ctx + 1 - max(1, n_ctx // 2)
    return max(0, math.ceil((length - n_ctx) / hop)) * hop


def end_ids(model: GPT, tokenizer: PreTrainedTokenizerFast) -> set[int]:
    """Return the special tokens that end a text: eos, what the model's own settings name, what ends a turn."""
    named = model.generation.get("eos_token_id")
    ends = {*(named if isinstance(named, list) else [named]), *turn_borders(tokenizer)}
    return {tokenizer.eos_token_id, *ends.intersection(tokenizer.all_special_ids)}


def banned(model: GPT, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return (V,), true for ids never sampled: of no token, the model's own, special ones that end or call nothing."""
    form = call_form(tokenizer)
    used = end_ids(model, tokenizer) | (form.marks if form else set())
    mask = torch.arange(model.config.vocab_size) >= len(tokenizer)
    never = {*tokenizer.all_special_ids, *(model.generation.get("suppress_tokens") or [])}
    mask[[i for i in never - used if i < len(mask)]] = True
    return mask.to(model.device)


def check_eval(model: GPT) -> None:
    """Raise ValueError for a model in training mode."""
    if model.training:
        raise ValueError("the model is in training mode, dropout would blur its text: call model.eval() first")


class DecodeBatch:
    """Rows decoded together, one token per row and step; rows join (`add`) and leave (`drop`) between steps.

    Row i of the batch is row i of the KV cache. Where a row leaves, the last one takes its place. Raises ValueError for
    a model in training mode.
    """

    def __init__(self, model: GPT, tokenizer: PreTrainedTokenizerFast) -> None:
        check_eval(model)
        self.rows: list[Row] = []
        self.logits: Tensor  # (B, V), for the token that each row writes next
        self.model, self.tokenizer = model, tokenizer
        self._ends = end_ids(model, tokenizer)
        self._decoder, self._cache = decoder_of(model), Cache(model.config, model.embed_tokens.weight)
        self.n_ctx = model.config.window
        self._banned = banned(model, tokenizer).nonzero()[:, 0]  # ids

    @property
    def ids(self) -> Tensor:
        """(B, T), what the model has seen of each row; see `padded`."""
        return padded([self._window(row) for row in self.rows], self.model.device)

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
        # 1. choose and write a token per row
        chosen = self._choose()  # (B,)
        tokens = chosen.tolist()
        logprobs = self._logprobs(tokens)
        for i, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            row.write(token, token in self._ends, logprobs.get(i))
        # 2. let the rows go that have ended
        ended = [row for row in self.rows if row.done]
        if ended:
            chosen = chosen[self._keep([i for i, row in enumerate(self.rows) if not row.done])]
        # 3. read the new tokens, and again the windows that have slid
        if self.rows:
            starts = [self._start(row) for row in self.rows]
            slid = [i for i, row in enumerate(self.rows) if starts[i] > window_start(len(row.ids) - 1, self.n_ctx)]
            # a row that has slid takes part in the step, but its logits are replaced below
            for i in slid:
                self._cache.lengths[i] = 0
            self.logits = self._decoder.advance(chosen, self._cache).index_fill_(1, self._banned, -torch.inf)
            if slid:
                self.logits[slid] = self._read(slid)
        return ended

    @torch.inference_mode()
    def drop(self, rows: Sequence[Row]) -> None:
        """Let rows leave before they are done."""
        stay = [i for i, row in enumerate(self.rows) if row not in rows]
        if len(stay) < len(self.rows):
            self.logits = self.logits[self._keep(stay)]

    def _start(self, row: Row) -> int:
        return window_start(len(row.ids), self.n_ctx)

    def _window(self, row: Row) -> list[int]:
        return row.ids[self._start(row) :]

    def _read(self, places: Sequence[int]) -> Tensor:
        """Read the windows of the rows at these places into the cache; return their logits (R, V)."""
        windows = [tuple(self._window(self.rows[place])) for place in places]
        distinct = {window: i for i, window in enumerate(dict.fromkeys(windows))}
        ids = pad_sequence([torch.tensor(window) for window in distinct], batch_first=True)  # (D, N)
        ids, lengths = ids.to(self.model.device), [len(window) for window in distinct]
        texts = [distinct[window] for window in windows]
        pairs = list(zip(places, texts, strict=True))
        return self._decoder.read(ids, lengths, self._cache, pairs).index_fill_(1, self._banned, -torch.inf)[texts]

    def _choose(self) -> Tensor:
        """Return the next token of every row (B,), by its own settings and its own stream of random numbers."""
        logits, device = self.logits, self.logits.device
        if self._filters or self._constrained:
            read = (torch.empty(0, 0, dtype=torch.long),) * 3
            if not sampling.LOOKING_BACK.isdisjoint(self._filters):  # not for nothing: they are made from lists
                starts = [self._start(row) for row in self.rows]
                # of a long text, only what a filter asks for
                oldest = [min(start, row.prompt_length) for start, row in zip(starts, self.rows, strict=True)]
                if "no_repeat_ngram" in self._filters:
                    oldest = [0] * len(starts)
                ids = [row.ids[first:] for row, first in zip(self.rows, oldest, strict=True)]
                seen = [len(row.ids) - start for row, start in zip(self.rows, starts, strict=True)]
                read = look_back(ids, [len(row.new) for row in self.rows], seen, device)
            allowed = None
            if self._constrained:
                allowed = torch.stack([row.allowed(logits.shape[-1]) for row in self.rows]).to(device)  # (B, V)
            logits = sampling.apply_filters(logits, *read, allowed=allowed, **self._filters)
        if self._all_greedy:
            return sampling.choose_likeliest(logits)
        return sampling.choose(logits, self._noise())

    def _noise(self) -> Tensor:
        """Return the noise of every row (B, V); a greedy one has one token left and needs none."""
        device, shape = self.logits.device, self.logits.shape
        drawn = [i for i, row in enumerate(self.rows) if not row.settings.greedy]
        if device.type not in MADE_ON_CPU:
            there = torch.ones(shape, dtype=widest_float(device), device=device)
            for i in drawn:
                self.rows[i].draw(there[i])
            return there
        noise = np.ones(shape)  # fp64
        for i in drawn:
            self.rows[i].random.standard_exponential(out=noise[i])
        return torch.from_numpy(noise).to(widest_float(device)).to(device)

    def _logprobs(self, tokens: list[int]) -> dict[int, TokenLogprob]:
        """Return the model's own view of each row's token, for the rows whose settings ask for it."""
        wanted = {i: n for i, row in enumerate(self.rows) if (n := row.settings.logprobs) is not None}
        if not wanted:
            return {}
        log_p = self.logits[list(wanted)].log_softmax(-1)  # (R, V)
        own = log_p.gather(1, torch.tensor([[tokens[i]] for i in wanted], device=log_p.device))  # (R, 1)
        ranks = 1 + (log_p > own).sum(-1)
        best = log_p.topk(min(max(wanted.values()), log_p.shape[1]))
        rows = zip(wanted, own[:, 0].tolist(), ranks.tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
        logprobs = {}
        for i, logprob, rank, others, values in rows:
            named = tuple(zip(map(self._text, others[: wanted[i]]), values, strict=False))
            logprobs[i] = TokenLogprob(tokens[i], self._text(tokens[i]), logprob, rank, named)
        return logprobs

    def _text(self, token: int) -> str:
        return "" if token in self._ends else decode(self.tokenizer, [token])

    def _keep(self, stay: list[int]) -> list[int]:
        """Keep the rows at these places; return the former place of each row that is left."""
        free = [place for place in range(len(stay)) if place not in stay]
        order = list(range(len(stay)))
        for target, source in zip(free, reversed(stay), strict=False):
            self._cache.move(source, target)
            order[target] = source
        self.rows = [self.rows[place] for place in order]
        self._settle()
        return order

    def _settle(self) -> None:
        # once for all steps until a row joins or leaves
        settings = [row.settings for row in self.rows]
        self._all_greedy = all(each.greedy for each in settings)
        self._constrained = any(each.constraint for each in settings)
        self._filters = active_filters(settings, self.model.device)
        if self._all_greedy:  # what shapes the distribution never changes which token is the likeliest
            self._filters = {name: value for name, value in self._filters.items() if name not in sampling.FILTERS}


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return rows of ids as (R, T); the shorter ones are preceded by -1, which is no token."""
    width = max(map(len, rows))
    return torch.tensor([[_PADDING] * (width - len(row)) + [*row] for row in rows], dtype=torch.long, device=device)


def look_back(
    rows: Sequence[Sequence[int]], written: Sequence[int], seen: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the filters read that look back, (R, T) each: all ids, the last `written[i]`, the last `seen[i]`."""
    ids = padded(rows, device)
    back = torch.arange(ids.shape[1], 0, -1, device=device)  # (T,), the newest id is the first from the end
    newest = [ids.where(back <= torch.tensor(counts, device=device)[:, None], _PADDING) for counts in (written, seen)]
    return ids, newest[0], newest[1]


def active_filters(settings: Sequence[Settings], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the settings (B,) that `sampling.apply_filters` needs; what is off in all of these rows is left out."""
    rows = [replace(row, temperature=0.0, top_p=1.0) if row.greedy else row for row in settings]
    columns = {name: [getattr(row, name) for row in rows] for name in RANGES}
    return {
        name: torch.tensor(values, dtype=widest_float(torch.device(device)), device=device)
        for name, values in columns.items()
        if any(value != RANGES[name].off for value in values)
    }


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Return the ids that a text begins with: the document's start, then the prompt, which may be empty."""
    return [tokenizer.bos_token_id, *encode(tokenizer, prompt)]
