"""Prompt -> ids -> a loop with a cache of keys and values -> text: one text, many, or piece by piece.

All of it runs on one `DecodeBatch`, which rows join and leave between two steps. Knows nothing of HTTP, threads
or notebooks.

Beyond the context window: a model sees at most n_ctx ids. When a text grows past that, the window slides: the
last n_ctx // 2 ids are encoded anew, and the text goes on. A prompt that is too long is treated in the same way:
what the model sees depends only on how long the text is (`window_start`).
"""

import codecs
import math
import random
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from helpers import paths, sampling
from helpers.tokenizer import decode, encode
from helpers.tokenizer import load as load_tokenizer

transformers_logging.disable_progress_bar()  # a bar for each loaded file would fill the notebook

PADDING = -1  # stands left of a row's first id in a batch; no token has this id
MAX_ROWS = 64  # rows that generate_batch decodes at once


@dataclass(frozen=True)
class Settings:
    """How a text is continued; the defaults sample from the model's own distribution.

    max_new_tokens: the longest continuation. temperature, top_k, top_p, repetition_penalty: see `sampling`;
    temperature 0 or top_p 0 is greedy. seed: the same seed gives the same text, None another text each time.
    Raises ValueError for a setting out of its range.
    """

    max_new_tokens: int = 100
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, is_right, right in (
            ("max_new_tokens", self.max_new_tokens >= 0, "0 or more"),
            ("temperature", 0 <= self.temperature <= 100, "between 0 (greedy) and 100 (1 is off)"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 <= self.top_p <= 1, "between 0 (greedy) and 1 (off)"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100, "between 0.01 and 100 (1 is off)"),
        ):
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be {right}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0 or self.top_p == 0


DEFAULT = Settings()


@dataclass(frozen=True)
class Sample:
    """A text, which starts with its prompt; `finished` if the document's end was reached; the ids of what is new."""

    text: str
    finished: bool
    tokens: list[int]


class Row:
    """A text that is being written: its ids so far, its settings, its own stream of random numbers."""

    def __init__(self, ids: Sequence[int], settings: Settings, sample: int = 0) -> None:
        self.ids = list(ids)
        self.settings = settings
        self.finished = False
        self._prompt_length = len(self.ids)
        # a stream a row, from the seed and the number of the sample: no other row of the batch can change it
        self.random = random.Random(None if settings.seed is None else f"{settings.seed}/{sample}")

    @property
    def new(self) -> list[int]:
        """The ids written so far, without the prompt's."""
        return self.ids[self._prompt_length :]

    @property
    def done(self) -> bool:
        """Whether nothing is left to write."""
        return self.finished or len(self.ids) - self._prompt_length >= self.settings.max_new_tokens


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

    Rows of unequal length stand right-aligned, padded on the left, so that the newest token is the last column.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        if model.training:
            raise ValueError("the model is in training mode, dropout would blur its text: call model.eval() first")
        self.rows: list[Row] = []
        self.ids: Tensor  # (B, T), what the model has seen of each row
        self.logits: Tensor  # (B, V), for the token that each row writes next
        self.model = model
        self.eos = tokenizer.eos_token_id
        self.n_ctx = model.config.max_position_embeddings
        self._banned = banned(model, tokenizer)  # (V,)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Encode the rows' ids and let them join; rows with equal ids are encoded once (n samples, one prefill)."""
        if not rows:
            return
        windows = [tuple(row.ids[window_start(len(row.ids), self.n_ctx) :]) for row in rows]
        distinct = {window: i for i, window in enumerate(dict.fromkeys(windows))}
        width = max(map(len, distinct))
        ids = torch.tensor([(PADDING,) * (width - len(window)) + window for window in distinct])
        ids = ids.to(self.model.device)  # (D, T)
        cache = DynamicCache()  # of each layer the keys and values, (D, heads, T, head size)
        logits = self._forward(ids, ids, cache)  # (D, V)
        if len(distinct) < len(rows):
            index = torch.tensor([distinct[window] for window in windows], device=ids.device)  # (B,)
            ids, logits = ids[index], logits[index]
            cache.batch_select_indices(index)
        if self.rows:
            ids, logits, cache = self._merge(ids, logits, cache)
        self.rows = [*self.rows, *rows]
        self.ids, self.logits, self._cache = ids, logits, cache
        self._settle()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Write one token in every row; return the rows that are done: they have left the batch."""
        chosen = self._choose()  # (B,)
        ended, sliding, staying = [], [], []
        for i, (row, token) in enumerate(zip(self.rows, chosen.tolist(), strict=True)):
            row.finished = token == self.eos
            if not row.finished:
                row.ids.append(token)
            length = len(row.ids)
            if row.done:
                ended.append(row)
            elif window_start(length, self.n_ctx) > window_start(length - 1, self.n_ctx):
                sliding.append(row)
            else:
                staying.append(i)
        if len(staying) < len(self.rows):
            self._keep(staying)
            chosen = chosen[staying]
        if staying:
            chosen = chosen.unsqueeze(1)  # (B, 1)
            self.ids = torch.cat([self.ids, chosen], dim=1)
            self.logits = self._forward(chosen, self.ids, self._cache)
        self.add(sliding)  # out, and in again with half a window
        return ended

    @torch.inference_mode()
    def drop(self, rows: Sequence[Row]) -> None:
        """Let rows leave before they are done."""
        index = [i for i, row in enumerate(self.rows) if row not in rows]
        if len(index) < len(self.rows):
            self._keep(index)

    def _forward(self, new: Tensor, ids: Tensor, cache: DynamicCache) -> Tensor:
        """Return the logits (B, V) that follow ids (B, T), of which the cache knows all but the last, new (B, N)."""
        mask = ids != PADDING  # (B, T)
        # left to itself the model counts positions from the edge of the batch; with padding there, that is wrong
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]  # (B, N)
        logits = self.model(
            input_ids=new.clamp(min=0),  # padding is masked: any id will do
            attention_mask=None if bool(mask.all()) else mask.long(),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits.float().masked_fill(self._banned, -torch.inf)

    def _choose(self) -> Tensor:
        """Return the next token of every row (B,), by its own settings and its own stream of random numbers."""
        logits = sampling.filtered(self.logits, self.ids, **self._filters)
        if self._all_greedy:
            return logits.argmax(-1)
        draws = torch.tensor([row.random.random() for row in self.rows], dtype=torch.float64, device=logits.device)
        return sampling.choose(logits, draws)

    def _merge(self, ids: Tensor, logits: Tensor, cache: DynamicCache) -> tuple[Tensor, Tensor, DynamicCache]:
        """Put new rows below those that are there; the narrower of the two blocks is padded on its left."""
        width = max(self.ids.shape[1], ids.shape[1])

        def stack(above: Tensor, below: Tensor) -> Tensor:  # (B, heads, T, head size), each with its own B and T
            return torch.cat([pad(block, (0, 0, width - block.shape[2], 0)) for block in (above, below)])

        for mine, new in zip(self._cache.layers, cache.layers, strict=True):
            mine.keys, mine.values = stack(mine.keys, new.keys), stack(mine.values, new.values)
        blocks = [pad(block, (width - block.shape[1], 0), value=PADDING) for block in (self.ids, ids)]
        return torch.cat(blocks), torch.cat([self.logits, logits]), self._cache

    def _keep(self, index: list[int]) -> None:
        """Keep the rows of this index, and no column that is padding in all of them."""
        self.rows = [self.rows[i] for i in index]
        if not index:
            return
        self.ids, self.logits = self.ids[index], self.logits[index]
        left = int((self.ids != PADDING).any(0).int().argmax())  # the first column that some row needs
        self.ids = self.ids[:, left:]
        self._cache.batch_select_indices(torch.tensor(index, device=self.ids.device))
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[:, :, left:], layer.values[:, :, left:]
        self._settle()

    def _settle(self) -> None:
        # once for all steps until rows join or leave, and not once a step
        self._all_greedy = all(row.settings.greedy for row in self.rows)
        self._filters = filters([row.settings for row in self.rows], self.model.device)


def filters(settings: Sequence[Settings], device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the arguments of `sampling.filtered` for rows with these settings, (B,) each; what is off is left out."""
    columns = {
        "penalty": (1.0, [row.repetition_penalty for row in settings]),
        "t": (1.0, [0.0 if row.greedy else row.temperature for row in settings]),
        "k": (0, [row.top_k for row in settings]),
        "p": (1.0, [1.0 if row.greedy else row.top_p for row in settings]),
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
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), load_tokenizer(folder)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """Return the ids a text begins with: the document's start, then the prompt, which may be empty."""
    return [tokenizer.bos_token_id, *encode(tokenizer, prompt)]


def _byte(tokenizer: PreTrainedTokenizerFast, token: int) -> bytes | None:
    piece = re.fullmatch("<0x([0-9A-F]{2})>", tokenizer.convert_ids_to_tokens(token))
    return piece and bytes.fromhex(piece[1])


def _whole(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> list[int]:
    """Return tokens without the last byte pieces, should they begin a character and not end it."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        byte = _byte(tokenizer, token)
        utf8.decode(byte) if byte else utf8.reset()
    waiting, _ = utf8.getstate()
    return tokens[: len(tokens) - len(waiting)]


def sample(tokenizer: PreTrainedTokenizerFast, prompt: str, row: Row) -> Sample:
    """Return the text of a row that began as this prompt; a character that is only half written is left out."""
    return Sample(prompt + decode(tokenizer, _whole(tokenizer, row.new)), row.finished, row.new)


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
    return [sample(tokenizer, prompt, row) for row in rows]


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
    return [sample(tokenizer, prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


def stream(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings = DEFAULT,
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Yield the continuation (without the prompt) piece by piece; setting `stop` ends it within one token.

    The pieces add up to exactly what `generate` returns. Byte pieces are held back until the next word, so that
    no character is cut in two.
    """
    batch, row = DecodeBatch(model, tokenizer), Row(prompt_ids(tokenizer, prompt), settings)
    shown = len(row.ids)
    if not row.done:
        batch.add([row])
    while batch.rows and not (stop and stop.is_set()):
        batch.step()
        if len(row.ids) > shown and _byte(tokenizer, row.ids[-1]) is None:
            yield decode(tokenizer, row.ids[shown:])
            shown = len(row.ids)
    if rest := decode(tokenizer, _whole(tokenizer, row.ids[shown:])):
        yield rest


def next_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: str) -> tuple[Tensor, Tensor]:
    """Return what the model sees of a prompt, ids (1, T), and the logits (1, V) of the token that comes next."""
    batch = DecodeBatch(model, tokenizer)
    batch.add([Row(prompt_ids(tokenizer, prompt), DEFAULT)])
    return batch.ids, batch.logits


def filtered(logits: Tensor, ids: Tensor, settings: Settings) -> Tensor:
    """Return logits (B, V) after all filters that the settings ask for; softmax gives what is sampled from."""
    return sampling.filtered(logits, ids, **filters([settings], logits.device))
