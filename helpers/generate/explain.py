"""Explain a text: each token's probability and rank, what each filter removed, the attention weights.

Knows no files and no pictures.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers.generate import sampling
from helpers.generate.batch import active_filters, banned, check_eval, look_back, prompt_ids, window_start
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import DEFAULT_SETTINGS, Settings
from helpers.model.gpt import GPT
from helpers.vocab.tokenizer import decode

_PLACES = 64  # whose filters are computed at once: a handful of tensors (_PLACES, V) are in memory
Named = tuple[tuple[str, float], ...]  # tokens by their text, and their probabilities


@dataclass(frozen=True)
class Filter:
    """What one filter did at one place."""

    name: str  # as in `Settings`
    removed: int  # how many tokens it removed
    lost: float  # their probability, of what the filters before had left
    chosen: float  # the probability of the written token after this filter; 0 if it was removed
    likeliest: Named  # of those removed


@dataclass(frozen=True)
class Step:
    """One token of a text; its figures belong to the model's own distribution, before any filter."""

    token: int
    text: str  # what it adds to the text; "" for the document's end, and for a byte that does not end a character
    probability: float
    rank: int  # 1 is the likeliest
    bits: float  # -log2 of the probability
    alternatives: Named  # the likeliest
    filters: tuple[Filter, ...]

    @property
    def drawn_with(self) -> float:
        """The probability of the token after all filters, with which it was drawn."""
        return self.filters[-1].chosen if self.filters else self.probability


@torch.inference_mode()
def explain_text(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    tokens: Sequence[int],
    settings: Settings = DEFAULT_SETTINGS,
    alternatives: int = 5,
) -> list[Step]:
    """Return a Step for each of the tokens that were written after a prompt with these settings.

    `tokens` as in `Sample`; the document's end may follow them. Each figure is the one that the generator had, beyond
    the context too; but a constraint is no filter here. Raises ValueError for a token that is never written, and for a
    model in training mode.
    """
    never = banned(model, tokenizer)  # (V,)
    for token in tokens:
        if not 0 <= token < len(never) or never[token]:
            raise ValueError(f"token {token} is never written: give the tokens of a Sample")
    begun = prompt_ids(tokenizer, prompt)
    ids = [*begun, *tokens]
    whole = Detokenizer(tokenizer, before=begun).extend(tokens)
    texts = [whole.text[start:end] for start, end in pairwise([*whole.starts, len(whole.text)])]  # as it was streamed
    n_ctx = model.config.window
    filters = active_filters([settings], model.device)
    # of all greedy settings `active_filters` makes temperature 0
    shown = {"temperature": "top_p"} if settings.top_p == 0 and settings.temperature != 0 else {}
    steps = []
    for places, logits in read_logits(model, ids, len(begun)):
        logits = logits.float().masked_fill(never, -torch.inf)  # (N, V)
        new = slice(places[0] - len(begun), places[-1] + 1 - len(begun))
        counts = [place - len(begun) for place in places], [place - window_start(place, n_ctx) for place in places]
        read = look_back([ids[:place] for place in places], *counts, logits.device)
        stages = sampling.steps(logits, *read, **filters)
        named = ((shown.get(name, name), after) for name, after in stages)
        work = _explain_filters(tokenizer, logits, named, tokens[new], alternatives)
        log_p = logits.log_softmax(-1)
        own = log_p.gather(1, torch.tensor(tokens[new], device=logits.device)[:, None])  # (N, 1)
        ranks = 1 + (log_p > own).sum(-1)
        best = _likeliest(tokenizer, log_p.exp(), alternatives)
        rows = zip(tokens[new], texts[new], own[:, 0].tolist(), ranks.tolist(), best, work, strict=True)
        for token, text, log_probability, rank, others, filtered in rows:
            bits = -log_probability / math.log(2)
            steps.append(Step(token, text, math.exp(log_probability), rank, bits, others, tuple(filtered)))
    return steps


def to_json(steps: Sequence[Step]) -> str:
    """Return steps as JSON: a list of objects with the fields of `Step`, and `drawn_with`."""
    return json.dumps([asdict(step) | {"drawn_with": step.drawn_with} for step in steps], ensure_ascii=False)


def token_name(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """Return a token as people read it: its text, or its name where it has no text of its own (<eos>, <0xE6>)."""
    text = decode(tokenizer, [token])
    return text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens([token])[0]


def read_logits(model: GPT, ids: list[int], begun: int) -> Iterator[tuple[list[int], Tensor]]:
    """Yield places of ids from `begun` on, _PLACES at most, and the logits (N, V) that the model had before each.

    Places that share a window share a forward pass. Raises ValueError for a model in training mode.
    """
    check_eval(model)
    n_ctx = model.config.window
    for start, group in groupby(range(begun, len(ids)), key=lambda place: window_start(place, n_ctx)):
        places = list(group)
        window = torch.tensor([ids[start : places[-1]]], device=model.device)  # (1, T)
        logits = model.lm_head(model.hidden(window)[0, -len(places) :])  # (N, V)
        for i in range(0, len(places), _PLACES):
            yield places[i : i + _PLACES], logits[i : i + _PLACES]


def _explain_filters(
    tokenizer: PreTrainedTokenizerFast,
    logits: Tensor,
    stages: Iterable[tuple[str, Tensor]],
    chosen: Sequence[int],
    alternatives: int,
) -> list[list[Filter]]:
    """Return what each filter did, for each row of the logits (N, V)."""
    work: list[list[Filter]] = [[] for _ in chosen]
    before = logits.softmax(-1)
    for name, after in stages:
        gone = (before > 0) & (after == -torch.inf)  # (N, V)
        lost = before.where(gone, 0)
        before = after.softmax(-1)
        likeliest = _likeliest(tokenizer, lost, alternatives)
        results = zip(work, gone.sum(-1).tolist(), lost.sum(-1).tolist(), before, chosen, likeliest, strict=True)
        for row, removed, share, left, token, texts in results:
            row.append(Filter(name, removed, share, float(left[token]), texts))
    return work


def _likeliest(tokenizer: PreTrainedTokenizerFast, probabilities: Tensor, n: int) -> list[Named]:
    """Return the n likeliest tokens of each row (N, V), without those of probability 0."""
    best = probabilities.topk(min(n, probabilities.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple((token_name(tokenizer, i), p) for i, p in zip(*row, strict=True) if p > 0) for row in rows]


@torch.inference_mode()
def attentions(model: GPT, tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[str], Tensor]:
    """Return the tokens (T) that the model sees of a text, and the attention weights (layers, heads, T, T).

    Row i of a head: how much it takes from each token when it reads token i; it sums to 1, and is 0 to the right of i.
    The first token is the document's start. Memory grows with T². Raises ValueError for a model in training mode.
    """
    check_eval(model)
    ids = prompt_ids(tokenizer, text)
    ids = ids[window_start(len(ids), model.config.window) :]
    window, weights = torch.tensor([ids], device=model.device), []  # (1, T)
    future = torch.ones(len(ids), len(ids), dtype=torch.bool, device=model.device).triu(1)
    x, view = model.begin(window)
    for block in cast(Iterable[Any], model.layers):  # the fast kernels never hold the weights
        q, k, _ = block.self_attn.heads(block.input_layernorm(x), view)  # (1, H, T, D) each
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future, -torch.inf)  # (1, H, T, T)
        weights.append(scores.softmax(-1))
        x = block(x, view)
    return [token_name(tokenizer, i) for i in ids], torch.cat(weights).float().cpu()
