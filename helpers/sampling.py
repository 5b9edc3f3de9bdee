"""Pure filters on the way from logits to the next token: (B, V) -> (B, V), what is removed becomes -inf.

Knows no model, no tokenizer and no text. Every setting is a number, or a tensor (B,) with a number a row, so
that rows with different settings share a batch.
"""

import torch
from torch import Tensor

Setting = float | int | Tensor
COLDEST = 1e-6  # logits divided by less would overflow


def _column(setting: Setting, logits: Tensor) -> Tensor:
    # float64: 1 - p must round to the logits' type once, not twice
    return torch.as_tensor(setting, dtype=torch.float64, device=logits.device).reshape(-1, 1)  # (B, 1) or (1, 1)


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


def repetition_penalty(logits: Tensor, ids: Tensor, penalty: Setting) -> Tensor:
    """Make every token that stands in ids (B, T) less likely; penalty = 1 changes nothing, 1.2 is usual.

    Divides positive logits and multiplies negative ones: dividing a negative logit would raise it, and make the
    repeat more likely (Keskar et al. 2019). Ids outside 0..V-1 (padding is -1) are no tokens.
    """
    vocab_size = logits.shape[-1]
    ids = ids.where((ids >= 0) & (ids < vocab_size), vocab_size)
    seen = logits.new_zeros((len(logits), vocab_size + 1), dtype=torch.bool).scatter_(1, ids, True)[:, :vocab_size]
    penalty = _column(penalty, logits).to(logits.dtype)
    return logits.where(~seen, torch.where(logits < 0, logits * penalty, logits / penalty))


def choose(logits: Tensor, draws: Tensor) -> Tensor:
    """Return one token a row (B,): where the cumulated probabilities pass draws (B,), uniform in [0, 1).

    A row's token depends on its own logits and its own draw, and on no other row. Raises ValueError where logits
    are NaN or nothing is left.
    """
    cumulated = logits.double().softmax(-1).cumsum(-1)  # (B, V); float64, so that no draw falls beyond the end
    total = cumulated[:, -1:]
    if not bool(total.isfinite().all()):
        raise ValueError("the logits are not numbers (NaN), or every token was removed: is the model well trained?")
    return torch.searchsorted(cumulated, draws.to(total).unsqueeze(1) * total, right=True).squeeze(1)


def filtered(
    logits: Tensor,
    ids: Tensor,
    *,
    t: Setting | None = None,
    k: Setting | None = None,
    p: Setting | None = None,
    penalty: Setting | None = None,
) -> Tensor:
    """Apply the filters in the usual order: penalty for what stands in ids, temperature, top-k, top-p; None skips."""
    if penalty is not None:
        logits = repetition_penalty(logits, ids, penalty)
    if t is not None:
        logits = temperature(logits, t)
    if k is not None:
        logits = top_k(logits, k)
    if p is not None:
        logits = top_p(logits, p)
    return logits
