"""Pure filters on the way from logits to the next token: (B, V) -> (B, V), what is removed becomes -inf.

Knows no model, no tokenizer and no text. Every setting is a number, or a tensor (B,) with a number a row, so
that rows with different settings share a batch. Ids (B, T) may be padded with -1, which is no token.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

Setting = float | int | Tensor
COLDEST = 1e-6  # logits divided by less would overflow


def _column(setting: Setting, logits: Tensor) -> Tensor:
    # float64: 1 - p must round to the logits' type once, not twice
    return torch.as_tensor(setting, dtype=torch.float64, device=logits.device).reshape(-1, 1)  # (B, 1) or (1, 1)


def _targets(ids: Tensor, vocab_size: int) -> Tensor:
    """Return ids with everything that is no token sent to a spare column, number `vocab_size`."""
    return ids.where((ids >= 0) & (ids < vocab_size), vocab_size)


def temperature(logits: Tensor, t: Setting) -> Tensor:
    """Divide logits (B, V) by t: below 1 sharpens the distribution, above 1 flattens it, 1 changes nothing.

    t = 0 is the limit: only the likeliest token is left (greedy); of equals, the first. So it is below 1e-6.
    """
    t = _column(t, logits)
    greedy = t < COLDEST
    scaled = logits / torch.where(greedy, 1.0, t).to(logits.dtype)
    if not greedy.any():
        return scaled
    best = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.argmax(-1, keepdim=True), True)
    return scaled.masked_fill(greedy & ~best, -torch.inf)


def top_k(logits: Tensor, k: Setting) -> Tensor:
    """Keep the k likeliest tokens of each row, and those equal to the k-th; k = 0 keeps all (Fan et al. 2018)."""
    k = _column(k, logits).clamp(max=logits.shape[-1]).long()  # (B, 1)
    most = int(k.max())
    if most == 0:
        return logits
    best = logits.topk(most).values  # (B, most), the likeliest first
    smallest = best.gather(1, (k - 1).clamp(min=0).expand(len(logits), 1))  # (B, 1), the k-th
    return logits.masked_fill((logits < smallest) & (k > 0), -torch.inf)


def top_p(logits: Tensor, p: Setting) -> Tensor:
    """Keep the fewest tokens whose probabilities add up to p or more; p = 1 keeps all, p = 0 the likeliest one.

    Nucleus sampling (Holtzman et al. 2020). Removes the tail: sorted from the least likely, tokens go while their
    sum is at most 1 - p.
    """
    p = _column(p, logits)
    ascending, order = logits.sort(dim=-1)
    tail = ascending.softmax(-1).cumsum(-1) <= (1 - p).to(logits.dtype)
    tail[:, -1] = False  # the likeliest token always stays
    return logits.masked_fill(tail.scatter(1, order, tail) & (p < 1), -torch.inf)


def min_p(logits: Tensor, p: Setting) -> Tensor:
    """Keep the tokens that are at least p times as likely as the likeliest one; p = 0 keeps all (Nguyen et al. 2024).

    So the sharper the distribution, the fewer are left; the likeliest always stays.
    """
    probabilities = logits.softmax(-1)
    return logits.masked_fill(
        probabilities < _column(p, logits).to(logits.dtype) * probabilities.amax(-1, keepdim=True), -torch.inf
    )


def typical(logits: Tensor, mass: Setting) -> Tensor:
    """Keep the tokens whose surprise is nearest to the expected one, until they hold `mass`; mass = 1 keeps all.

    Locally typical sampling (Meister et al. 2023): surprise is -log p, the expected one is the entropy. So a very
    likely token may go, too.
    """
    mass = _column(mass, logits)
    log_p = logits.log_softmax(-1)
    entropy = -(log_p * log_p.exp()).nansum(-1, keepdim=True)  # (B, 1); what is removed has log p = -inf: 0 × inf
    distance, order = (-log_p - entropy).abs().sort(dim=-1)  # (B, V), the most typical first
    cumulated = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (cumulated < mass.to(logits.dtype)).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    beyond = distance > distance.gather(-1, last)
    return logits.masked_fill(beyond.scatter(1, order, beyond) & (mass < 1), -torch.inf)


def repetition_penalty(logits: Tensor, ids: Tensor, penalty: Setting) -> Tensor:
    """Make every token that stands in ids (B, T) less likely; penalty = 1 changes nothing, 1.2 is usual.

    Divides positive logits and multiplies negative ones: dividing a negative logit would raise it, and make the
    repeat more likely (Keskar et al. 2019). Ids outside 0..V-1 (padding is -1) are no tokens.
    """
    size = logits.shape[-1]
    seen = logits.new_zeros((len(logits), size + 1), dtype=torch.bool).scatter_(1, _targets(ids, size), True)[:, :size]
    penalty = _column(penalty, logits).to(logits.dtype)
    return logits.where(~seen, torch.where(logits < 0, logits * penalty, logits / penalty))


def presence_and_frequency(logits: Tensor, written: Tensor, presence: Setting, frequency: Setting) -> Tensor:
    """Lower each token's logit by `presence` once it is written, and by `frequency` for every time it is.

    The formula of OpenAI's API: logit - count × frequency - (count > 0) × presence. 0 and 0 change nothing, negative
    numbers invite repeats. written (B, T) are the ids that the row itself wrote, without its prompt.
    """
    size = logits.shape[-1]
    targets = _targets(written, size)
    counts = logits.new_zeros((len(logits), size + 1))
    counts = counts.scatter_add_(1, targets, torch.ones_like(targets, dtype=logits.dtype))[:, :size]
    presence, frequency = (_column(setting, logits).to(logits.dtype) for setting in (presence, frequency))
    return logits - counts * frequency - (counts > 0) * presence


def no_repeat_ngram(logits: Tensor, ids: Tensor, n: Setting) -> Tensor:
    """Remove every token that would make n tokens in a row stand in ids (B, T) twice; n = 0 is off.

    Paulus et al. 2018. ids may be padded on either side. It may remove all tokens of a row.
    """
    vocab_size, width = logits.shape[-1], ids.shape[1]
    n = _column(n, logits).long()  # (B, 1) or (1, 1)
    columns = torch.arange(width, device=ids.device)
    last = torch.where(ids >= 0, columns, -1).amax(1, keepdim=True) if width else n  # (B, 1), the last real id
    moved = columns - (width - 1 - last)  # padding on the right goes to the left
    ids = torch.where(moved >= 0, ids.gather(1, moved.clamp(min=0)), -1)
    for size in set(n.flatten().tolist()):  # of each length once: rows differ in few
        if not 0 < size <= width:
            continue
        windows = ids.unfold(1, size, 1)  # (B, T - size + 1, size)
        newest = ids[:, width - size + 1 :].unsqueeze(1)  # (B, 1, size - 1), what the next token would continue
        again = ((windows[..., :-1] == newest) & (newest >= 0)).all(-1) & (n == size)
        targets = torch.where(again, _targets(windows[..., -1], vocab_size), vocab_size)
        mask = logits.new_zeros((len(logits), vocab_size + 1), dtype=torch.bool).scatter_(1, targets, True)
        logits = logits.masked_fill(mask[:, :vocab_size], -torch.inf)
    return logits


def ban(logits: Tensor, mask: Tensor) -> Tensor:
    """Remove the tokens of a mask, (V,) for all rows or (B, V): true is never written."""
    return logits.masked_fill(mask, -torch.inf)


def force(logits: Tensor, tokens: Tensor) -> Tensor:
    """Leave one token alone in each row: that of tokens (B,), also if it was removed before; -1 leaves the row free."""
    tokens = tokens.unsqueeze(1)  # (B, 1)
    chosen = torch.arange(logits.shape[-1], device=logits.device) == tokens  # (B, V)
    return torch.where(tokens < 0, logits, torch.zeros_like(logits).masked_fill(~chosen, -torch.inf))


def choose(logits: Tensor, waits: Tensor) -> Tensor:
    """Return one token a row (B,), each with its probability: the winner of a race.

    waits: (B, V), float64, drawn from the exponential distribution with mean 1. A token arrives after its wait divided
    by its probability; the first one wins, token i with probability p_i. In logarithms it is the Gumbel-max trick
    (Gumbel 1954). On a line of cumulated probabilities, a change in the last digits of some logits moves all borders
    behind them, thousands in a large vocabulary; here it matters only where two tokens arrive together.
    A row's token depends on its own logits and its own waits, and on no other row. Raises ValueError where logits are
    NaN or nothing is left.
    """
    best, tokens = (logits - waits.log()).max(-1)  # (B,) each; float64
    if not bool(best.isfinite().all()):
        raise ValueError("the logits are not numbers (NaN), or every token was removed: is the model well trained?")
    return tokens


def steps(
    logits: Tensor,
    ids: Tensor,
    written: Tensor | None = None,
    *,
    allowed: Tensor | None = None,
    penalty: Setting | None = None,
    presence: Setting | None = None,
    frequency: Setting | None = None,
    ngram: Setting | None = None,
    t: Setting | None = None,
    k: Setting | None = None,
    p: Setting | None = None,
    min_p: Setting | None = None,
    typical: Setting | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield each active filter's name, as in the settings, and the logits (B, V) after it, in the usual order.

    None skips a filter. ids (B, T) is all that the row's model sees, written (B, T') what the row itself wrote (None:
    all of ids). allowed (B, V) is true for what a constraint leaves. A row that no_repeat_ngram would leave without
    any token goes on as if it were off: what a constraint demands is written, also if it stood there before.
    """
    if allowed is not None:
        yield "constraint", (logits := ban(logits, ~allowed))
    if penalty is not None:
        yield "repetition_penalty", (logits := repetition_penalty(logits, ids, penalty))
    if presence is not None or frequency is not None:
        own = ids if written is None else written
        presence, frequency = (0.0 if setting is None else setting for setting in (presence, frequency))
        yield "presence_penalty", (logits := presence_and_frequency(logits, own, presence, frequency))
    if ngram is not None:
        fresh = no_repeat_ngram(logits, ids, ngram)
        logits = torch.where((fresh > -torch.inf).any(-1, keepdim=True), fresh, logits)
        yield "no_repeat_ngram", logits
    if t is not None:
        yield "temperature", (logits := temperature(logits, t))
    for name, filter, setting in (
        ("top_k", top_k, k),
        ("top_p", top_p, p),
        ("min_p", _min_p, min_p),
        ("typical_p", _typical, typical),
    ):
        if setting is not None:
            yield name, (logits := filter(logits, setting))


_min_p, _typical = min_p, typical  # the parameters of `steps` have the same names


def filtered(logits: Tensor, ids: Tensor, written: Tensor | None = None, **settings: Tensor | None) -> Tensor:
    """Return the logits (B, V) after all active filters: the last of `steps`, whose arguments these are."""
    for _, after in steps(logits, ids, written, **settings):
        logits = after
    return logits
