"""Explain a written text: each token's probability and rank, what each filter removed, where a head attended."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import batch as generate_batch
from helpers.generate import sampling
from helpers.generate.batch import PADDING, DecodeBatch, banned, prompt_ids, window_start
from helpers.generate.detokenize import Detokenizer
from helpers.generate.settings import DEFAULT, Settings
from helpers.vocab.tokenizer import decode

ROWS = 64  # places whose filters are computed at once: a handful of tensors (ROWS, V) are in memory then


@dataclass(frozen=True)
class Filter:
    """What one filter did at one place.

    name: as in `Settings`. removed: how many tokens it took away; lost: the probability that these had, of what the
    filters before it had left. chosen: the probability of the written token after it; 0 if it took that away.
    likeliest: of what it took away, the likeliest (text, probability).
    """

    name: str
    removed: int
    lost: float
    chosen: float
    likeliest: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """One token of a text, as the model saw it coming.

    text: what it adds to the text; "" for the document's end, and for a byte piece that does not end a character.
    probability, rank (1 is the likeliest), bits (-log2 of the probability): in the model's own distribution, before
    any filter. bits_per_character: None where text is "". alternatives: the likeliest (text, probability).
    """

    token: int
    text: str
    probability: float
    rank: int
    bits: float
    bits_per_character: float | None
    alternatives: tuple[tuple[str, float], ...]
    filters: tuple[Filter, ...]

    @property
    def drawn_with(self) -> float:
        """The probability of the token after all filters: with this one it was drawn."""
        return self.filters[-1].chosen if self.filters else self.probability


@torch.inference_mode()
def explain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    tokens: Sequence[int],
    settings: Settings = DEFAULT,
    alternatives: int = 5,
) -> list[Step]:
    """Return a Step for each of the tokens that were written after a prompt with these settings.

    `tokens` as in `Sample`; the document's end may stand behind them. Each figure is the one that the
    generator had: past the context, too, the model sees what it saw then. One forward pass a window. Raises ValueError
    for a token that is never written, such as padding.
    """
    never = banned(model, tokenizer)  # (V,)
    for token in tokens:
        if not 0 <= token < len(never) or never[token]:
            raise ValueError(f"token {token} is never written: give the tokens of a Sample")
    begun = prompt_ids(tokenizer, prompt)
    ids, n_ctx = [*begun, *tokens], _n_ctx(model, tokenizer)
    texts = _texts(tokenizer, tokens)
    allowed = _allowed(model, tokenizer, tokens, settings)
    steps = []
    for places, logits in _read(model, ids, len(begun), n_ctx):
        logits = logits.float().masked_fill(never, -torch.inf)  # (N, V)
        starts = [window_start(place, n_ctx) for place in places]
        seen = [ids[start:place] for start, place in zip(starts, places, strict=True)]
        written = [ids[max(start, len(begun)) : place] for start, place in zip(starts, places, strict=True)]
        chosen = [ids[place] for place in places]
        new = slice(places[0] - len(begun), places[-1] + 1 - len(begun))
        mask = None if allowed is None else torch.stack(allowed[new]).to(logits.device)  # (N, V)
        work = _filter(tokenizer, logits, seen, written, chosen, mask, settings, alternatives)

        log_p = logits.log_softmax(-1)
        own = log_p.gather(1, torch.tensor(chosen, device=logits.device)[:, None])  # (N, 1)
        ranks = 1 + (log_p > own).sum(-1)
        best = _likeliest(tokenizer, log_p.exp(), alternatives)
        rows = zip(chosen, texts[new], own[:, 0].tolist(), ranks.tolist(), best, work, strict=True)
        for token, text, nats, rank, others, filters in rows:
            bits = -nats / math.log(2)
            each = bits / len(text) if text else None
            steps.append(Step(token, text, math.exp(nats), rank, bits, each, others, filters))
    return steps


def to_json(steps: Sequence[Step]) -> str:
    """Return steps as JSON: a list of objects with the fields of `Step`, and `drawn_with`."""
    return json.dumps([asdict(step) | {"drawn_with": step.drawn_with} for step in steps], ensure_ascii=False)


def token_name(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """Return a token as people read it: its text, or its name where it has no text of its own ([CLS], <0xE6>)."""
    text = decode(tokenizer, [token])
    return text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens(token)


def _n_ctx(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    return DecodeBatch(model, tokenizer).n_ctx  # which refuses a model in training mode, too


def _read(model: PreTrainedModel, ids: list[int], begun: int, n_ctx: int) -> Iterator[tuple[list[int], Tensor]]:
    """Yield places of ids from `begun` on, at most ROWS, and the logits (N, V) that the model had before each.

    Places that share a window share a forward pass.
    """
    for start, group in groupby(range(begun, len(ids)), key=lambda place: window_start(place, n_ctx)):
        places = list(group)
        window = torch.tensor([ids[start : places[-1]]], device=model.device)  # (1, T)
        logits = model(input_ids=window, use_cache=False, logits_to_keep=len(places)).logits[0]  # (N, V)
        for i in range(0, len(places), ROWS):
            yield places[i : i + ROWS], logits[i : i + ROWS]


def _filter(
    tokenizer: PreTrainedTokenizerFast,
    logits: Tensor,
    seen: list[list[int]],
    written: list[list[int]],
    chosen: list[int],
    allowed: Tensor | None,
    settings: Settings,
    alternatives: int,
) -> list[tuple[Filter, ...]]:
    """Return for each row of logits (N, V) what the filters did, one after the other."""
    work: list[list[Filter]] = [[] for _ in chosen]
    before = logits.softmax(-1)
    filters = generate_batch.filters([settings], logits.device)
    ids, own = (_padded(rows).to(logits.device) for rows in (seen, written))  # (N, T), (N, T')
    for title, after in sampling.steps(logits, ids, own, allowed=allowed, **filters):
        gone = (before > 0) & (after == -torch.inf)  # (N, V)
        lost = before.where(gone, 0)
        likeliest = _likeliest(tokenizer, lost, alternatives)
        before = after.softmax(-1)
        rows = zip(gone.sum(-1).tolist(), lost.sum(-1).tolist(), before, chosen, likeliest, strict=True)
        for row, (removed, share, left, token, some) in zip(work, rows, strict=True):
            row.append(Filter(title, removed, share, float(left[token]), some))
    return [tuple(row) for row in work]


def _padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[PADDING] * (width - len(row)) + row for row in rows], dtype=torch.long)  # (N, T)


def _likeliest(
    tokenizer: PreTrainedTokenizerFast, probabilities: Tensor, n: int
) -> list[tuple[tuple[str, float], ...]]:
    """Return of each row (N, V) the n likeliest (text, probability); none that has no chance."""
    best = probabilities.topk(min(n, probabilities.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple((token_name(tokenizer, i), p) for i, p in zip(*row, strict=True) if p > 0) for row in rows]


def _texts(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> list[str]:
    """Return what each token adds to the text, as it was streamed."""
    writing, texts = Detokenizer(tokenizer), []
    for token in tokens:
        length = len(writing.text)
        writing.push(token)
        texts.append(writing.text[length:])
    return texts


def _allowed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int], settings: Settings
) -> list[Tensor] | None:
    """Return for each token what the constraint allowed there, (V,) true; None without a constraint."""
    if settings.constraint is None:
        return None
    state = settings.constraint.begin(tokenizer, tokenizer.eos_token_id, settings.max_new_tokens)
    masks = []
    for token in tokens:
        mask = torch.zeros(model.config.vocab_size, dtype=torch.bool)
        allowed = state.allowed()
        mask[: len(allowed)] = allowed
        masks.append(mask)
        if token != tokenizer.eos_token_id:
            state.advance(token)
    return masks


@torch.inference_mode()
def attentions(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[str], Tensor]:
    """Return the tokens (T) that the model sees of a text, and the weights of all heads, (layers, heads, T, T).

    Row i says how much the head that writes at place i takes from each place; it sums to 1, and is 0 to the right
    of i. The first token is the document's start. Memory grows with T²: give a prompt, not a book.
    """
    ids = prompt_ids(tokenizer, text)
    ids = ids[window_start(len(ids), _n_ctx(model, tokenizer)) :]
    usual = model.config._attn_implementation
    # the fast kernels never hold the weights; the plain way does. For this one pass only
    model.set_attn_implementation("eager")
    try:
        window = torch.tensor([ids], device=model.device)  # (1, T)
        weights = model(input_ids=window, use_cache=False, output_attentions=True).attentions  # L × (1, H, T, T)
    finally:
        model.set_attn_implementation(usual)
    return [token_name(tokenizer, i) for i in ids], torch.cat(weights).float().cpu()


def attention(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, text: str, layer: int, head: int) -> Tensor:
    """Return the weights (T, T) of one head, both counted from 0, as `attentions` has them.

    Raises ValueError for a layer or head that the model does not have.
    """
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    if not (0 <= layer < layers and 0 <= head < heads):
        raise ValueError(f"layer {layer}, head {head}: this model has layers 0 to {layers - 1}, heads 0 to {heads - 1}")
    return attentions(model, tokenizer, text)[1][layer, head]
