"""Sampling filters between logits and the next token: temperature, top-k, top-p (nucleus), repetition penalty, ….

Pure functions (B, V) -> (B, V): what a filter removes becomes -inf. They know no model, no tokenizer and no text. A
setting is one number, or a tensor (B,) with one number per row, so that rows with different settings share a batch.
Filters have the names of their settings. Ids (B, T) may be padded on the left with -1, which is not a token.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.device import widest_float

Setting = float | int | Tensor
COLDEST = 1e-6  # logits divided by a smaller temperature would overflow
LOOKING_BACK = frozenset({"repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram"})  # read ids


def _column(setting: Setting, logits: Tensor) -> Tensor:
    """Return a setting as (B, 1) or (1, 1), in fp64: 1 - p must be rounded to the logits' type once, not twice."""
    return torch.as_tensor(setting, dtype=widest_float(logits.device), device=logits.device).reshape(-1, 1)


def _counts(ids: Tensor, logits: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return how often each token occurs in ids (B, T), as (B, V); what is no token (padding is -1) does not count.

    counted (B, T): false for ids that are left out.
    """
    size = logits.shape[-1]
    is_token = (ids >= 0) & (ids < size)
    targets = ids.where(is_token if counted is None else is_token & counted, size)  # others go to a spare column
    counts = logits.new_zeros((len(logits), size + 1))
    return counts.scatter_add_(1, targets, torch.ones_like(targets, dtype=logits.dtype))[:, :size]


def temperature(logits: Tensor, temperature: Setting) -> Tensor:
    """Divide logits (B, V) by the temperature: below 1 sharpens the distribution, above 1 flattens it, 1 is off.

    At 0, the limit, only the likeliest token is left (greedy); of several equal ones the first. So it is below 1e-6.
    """
    t = _column(temperature, logits)
    greedy = t < COLDEST
    scaled = logits / torch.where(greedy, 1.0, t).to(logits.dtype)
    if not greedy.any():
        return scaled
    best = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.argmax(-1, keepdim=True), True)
    return scaled.masked_fill(greedy & ~best, -torch.inf)


def top_k(logits: Tensor, top_k: Setting) -> Tensor:
    """Keep the k likeliest tokens of each row, and those equal to the k-th; 0 keeps all (Fan et al. 2018)."""
    k = _column(top_k, logits).clamp(max=logits.shape[-1]).long()  # (B, 1)
    most = int(k.max())
    if most == 0:
        return logits
    best = logits.topk(most).values  # (B, most), the likeliest first
    smallest = best.gather(1, (k - 1).clamp(min=0).expand(len(logits), 1))  # (B, 1), the k-th
    return logits.masked_fill((logits < smallest) & (k > 0), -torch.inf)


def top_p(logits: Tensor, top_p: Setting) -> Tensor:
    """Keep the fewest tokens whose probabilities add up to p or more; 1 keeps all, 0 the likeliest one.

    Nucleus sampling (Holtzman et al. 2020). Removes the tail: in ascending order, tokens go while their sum is at most
    1 - p.
    """
    # p = 0.7: the tail may hold 0.3
    # probabilities, ascending   0.05  0.10  0.25  0.60
    # sum up to here             0.05  0.15  0.40  1.00
    # removed: sum <= 0.3        yes   yes   no    no      -> 0.60 + 0.25 = 0.85 is left
    p = _column(top_p, logits)
    ascending, order = logits.sort(dim=-1)
    tail = ascending.softmax(-1).cumsum(-1) <= (1 - p).to(logits.dtype)
    tail[:, -1] = False  # the likeliest token always stays
    return logits.masked_fill(tail.scatter(1, order, tail) & (p < 1), -torch.inf)


def min_p(logits: Tensor, min_p: Setting) -> Tensor:
    """Keep the tokens that are at least min_p times as likely as the likeliest one; 0 keeps all (Nguyen et al. 2024).

    The sharper the distribution, the fewer are left; the likeliest always stays.
    """
    # min_p = 0.2, sure of itself:  0.80  0.15  0.05  -> from 0.2 × 0.80 = 0.16 on: one token
    #              undecided:       0.40  0.35  0.25  -> from 0.2 × 0.40 = 0.08 on: all three
    probabilities = logits.softmax(-1)
    least = _column(min_p, logits).to(logits.dtype) * probabilities.amax(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(probabilities < least, -torch.inf)


def typical_p(logits: Tensor, typical_p: Setting) -> Tensor:
    """Keep the tokens whose surprise is nearest to the expected one, until they hold this probability; 1 keeps all.

    Locally typical sampling (Meister et al. 2023): surprise is -log p, the expected one is the entropy. A very likely
    token may be removed, too.
    """
    # typical_p = 0.5
    # probabilities              0.45  0.35  0.15  0.05    their entropy is 1.16 nats
    # surprise, -log p           0.80  1.05  1.90  3.00
    # distance to 1.16           0.36  0.11  0.74  1.84    -> nearest first: 0.35, then 0.45: these two hold 0.80
    mass = _column(typical_p, logits)
    log_p = logits.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)  # (B, 1); a removed token has log p = -inf: 0 × inf
    distance, order = (-log_p - entropy).abs().sort(dim=-1)  # (B, V), the most typical first
    cumulated = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (cumulated < mass.to(logits.dtype)).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    beyond = distance > distance.gather(-1, last)
    return logits.masked_fill(beyond.scatter(1, order, beyond) & (mass < 1), -torch.inf)


def repetition_penalty(logits: Tensor, ids: Tensor, repetition_penalty: Setting) -> Tensor:
    """Make every token that occurs in ids (B, T) less likely; 1 is off, 1.2 is usual (Keskar et al. 2019).

    Divides positive logits and multiplies negative ones: dividing a negative logit would raise it and make the repeat
    more likely. Ids outside 0 … V-1 (padding is -1) are ignored.
    """
    # penalty 2, ids 0 and 2:  [3, 1, -1] -> [1.5, 1, -2]; dividing -1 as well would give -0.5
    penalty = _column(repetition_penalty, logits).to(logits.dtype)
    return logits.where(_counts(ids, logits) == 0, torch.where(logits < 0, logits * penalty, logits / penalty))


def presence_and_frequency(
    logits: Tensor, written: Tensor, presence_penalty: Setting, frequency_penalty: Setting
) -> Tensor:
    """Lower each token's logit once if it was written, and again for every time that it was.

    The formula of OpenAI's API: logit - count × frequency_penalty - (count > 0) × presence_penalty. 0 is off, negative
    numbers invite repeats. written (B, T): the ids that the row itself wrote, without its prompt.
    """
    counts = _counts(written, logits)
    presence = _column(presence_penalty, logits).to(logits.dtype)
    frequency = _column(frequency_penalty, logits).to(logits.dtype)
    return logits - counts * frequency - (counts > 0) * presence


def no_repeat_ngram(logits: Tensor, ids: Tensor, no_repeat_ngram: Setting) -> Tensor:
    """Remove every token that would repeat an n-gram of ids (B, T), maybe all; 0 is off (Paulus et al. 2018)."""
    width = ids.shape[1]
    n = _column(no_repeat_ngram, logits).long()  # (B, 1) or (1, 1)
    for size in set(n.flatten().tolist()):  # rows differ in few sizes
        if not 0 < size <= width:
            continue
        # 1. compare the beginning of every n-gram with the newest n - 1 ids
        windows = ids.unfold(1, size, 1)  # (B, T - size + 1, size)
        newest = ids[:, width - size + 1 :].unsqueeze(1)  # (B, 1, size - 1), what the next token would continue
        again = ((windows[..., :-1] == newest) & (newest >= 0)).all(-1) & (n == size)
        # 2. remove the last ids of those that agree
        logits = logits.masked_fill(_counts(windows[..., -1], logits, again) > 0, -torch.inf)
    return logits


def choose(logits: Tensor, noise: Tensor) -> Tensor:
    """Return one token per row (B,), drawn with its probability: the winner of a race.

    noise (B, V), float64 where the device has it, is drawn from the exponential distribution with mean 1. A token
    arrives after its noise divided by its probability; the first one wins, token i with probability p_i. In logarithms
    this is the Gumbel-max trick (Gumbel 1954). A row's token depends on its own logits and its own noise, and on no
    other row. Raises ValueError for logits that are not numbers.
    """
    # probabilities    0.60   0.30   0.10
    # noise            1.80   0.30   0.50
    # arrives after    3.00   1.00   5.00    -> the second token wins this time
    # Drawing a point on a line of cumulated probabilities would be simpler. But a change in the last digits of a few
    # logits moves all borders behind them, thousands in a large vocabulary; here only two tokens that arrive together
    # can change places.
    best, tokens = (logits.to(noise.dtype) - noise.log()).max(-1)  # (B,) each
    check_numbers(best)
    return tokens


def choose_likeliest(logits: Tensor) -> Tensor:
    """Return the likeliest token per row (B,), of several equal ones the first; raise ValueError as `choose` does."""
    best, tokens = logits.max(-1)  # (B,) each
    check_numbers(best)
    return tokens


def check_numbers(best: Tensor) -> None:
    """Raise ValueError unless the largest logit of each row, (B,), is a number; among others, NaN is the largest."""
    if not math.isfinite(best.sum()):
        raise ValueError(
            "the logits are not numbers (NaN or infinite): the model's training diverged. "
            "Train it again with a smaller lr, in notebook 04"
        )


# the filters that need nothing but the logits, in their order; `steps` calls the others
FILTERS: dict[str, Callable[[Tensor, Setting], Tensor]] = {
    each.__name__: each for each in (temperature, top_k, top_p, min_p, typical_p)
}


def steps(
    logits: Tensor,
    ids: Tensor,
    written: Tensor | None = None,
    seen: Tensor | None = None,
    /,
    *,
    allowed: Tensor | None = None,
    **settings: Setting,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each active filter and the logits (B, V) after it, in the order of the transformers library.

    settings: as in `Settings`; a filter that is left out is off. ids (B, T): the row's whole text so far, for
    no_repeat_ngram; written (B, T'): what the row itself wrote of it, for the penalties of presence and frequency,
    which are one step; seen (B, T''): what its model sees of it, for the repetition penalty (None: all of ids). allowed
    (B, V): true for what a constraint permits. A row that no_repeat_ngram would leave without any token goes on as if
    it were off: what a constraint demands is written even if it repeats. Raises TypeError for an unknown setting.
    """
    if unknown := settings.keys() - FILTERS.keys() - LOOKING_BACK:
        raise TypeError(f"no filter has the name {', '.join(sorted(unknown))}: see sampling.FILTERS")
    # 1. what the constraint and the text so far rule out
    if allowed is not None:
        yield "constraint", (logits := logits.masked_fill(~allowed, -torch.inf))
    if "repetition_penalty" in settings:
        near = ids if seen is None else seen
        yield "repetition_penalty", (logits := repetition_penalty(logits, near, settings["repetition_penalty"]))
    if "presence_penalty" in settings or "frequency_penalty" in settings:
        presence, frequency = settings.get("presence_penalty", 0.0), settings.get("frequency_penalty", 0.0)
        logits = presence_and_frequency(logits, ids if written is None else written, presence, frequency)
        yield "presence_penalty", logits
    if "no_repeat_ngram" in settings:
        fresh = no_repeat_ngram(logits, ids, settings["no_repeat_ngram"])
        logits = torch.where((fresh > -torch.inf).any(-1, keepdim=True), fresh, logits)
        yield "no_repeat_ngram", logits
    # 2. the shape of the distribution
    for name, filter in FILTERS.items():
        if name in settings:
            yield name, (logits := filter(logits, settings[name]))


def apply_filters(logits: Tensor, *ids: Any, allowed: Tensor | None = None, **settings: Setting) -> Tensor:
    """Return the logits (B, V) after all active filters: the last of `steps`, which explains the arguments."""
    for _, after in steps(logits, *ids, allowed=allowed, **settings):
        logits = after
    return logits
