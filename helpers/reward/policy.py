"""The policy: the model as the chooser of an ending's tokens, with the log-probability of each choice.

Several endings share one opening, which is read once: its keys and values serve all of them (`past_key_values`), and
the gradient flows through them. How far apart two policies are is their KL divergence. Knows nothing of rewards.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from helpers.device import autocast

Branch = tuple[Sequence[int], Sequence[Sequence[int]]]  # ids of an opening, and of each of its endings


class EndingScores(NamedTuple):
    """What a model says of endings: a row per token, all endings in a row."""

    log_p: Tensor  # (N, V) log-probabilities of all tokens in this place
    chosen: Tensor  # (N,) of the token that came
    ending: Tensor  # (N,) which ending it belongs to, counted through all branches


def score_endings(model: PreTrainedModel, branches: Sequence[Branch], precision: str = "fp32") -> EndingScores:
    """Return the log-probabilities of all endings, each after its opening; the model should be in eval mode.

    Openings have two ids or more, endings one or more.
    """
    device, embed = model.device, model.get_input_embeddings()
    # 1. the openings without their last id, padded on the left so that endings join on directly
    openings = [torch.tensor(opening[:-1]) for opening, _ in branches]
    ids = pad_sequence(openings, batch_first=True, padding_side="left").to(device)  # (G, T)
    lengths = torch.tensor([len(each) for each in openings], device=device)  # (G,)
    seen = torch.arange(ids.shape[1], 0, -1, device=device) <= lengths[:, None]  # (G, T)
    positions = (seen.cumsum(1) - 1).clamp(min=0)  # (G, T)
    cache = DynamicCache(config=model.config)
    with autocast(precision, device):
        model.base_model(
            inputs_embeds=embed(ids), attention_mask=seen.long(), position_ids=positions, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        # 2. the endings, each beside a copy of its opening's keys and values; they begin with the opening's last id
        group = torch.tensor([g for g, (_, endings) in enumerate(branches) for _ in endings], device=device)  # (E,)
        cache.batch_select_indices(group)
        written = [torch.tensor(ending) for _, endings in branches for ending in endings]
        labels = pad_sequence(written, batch_first=True, padding_value=-1).to(device)  # (E, L)
        last = torch.tensor([opening[-1] for opening, _ in branches], device=device)[group]  # (E,)
        inputs = torch.cat([last[:, None], labels[:, :-1].clamp(min=0)], 1)  # (E, L)
        real = labels >= 0  # (E, L); what lies right of an ending is seen by nothing left of it
        positions = lengths[group, None] + torch.arange(inputs.shape[1], device=device)  # (E, L)
        positions = positions.masked_fill(~real, 0)  # GPT-2's table has no row for a place beyond the window
        hidden = model.base_model(
            inputs_embeds=embed(inputs), attention_mask=torch.cat([seen[group], torch.ones_like(real)], 1).long(),
            position_ids=positions, past_key_values=cache, use_cache=True,
        ).last_hidden_state  # fmt: skip  # (E, L, C)
    # 3. logits where there is a token, in fp32 or wider
    weight = cast(Tensor, model.get_output_embeddings().weight)  # (V, C)
    log_p = (hidden[real].to(weight.dtype) @ weight.T).log_softmax(-1)  # (N, V)
    chosen = log_p.gather(1, labels[real][:, None])[:, 0]  # (N,)
    ending = torch.arange(len(labels), device=device)[:, None].expand_as(real)[real]  # (N,)
    return EndingScores(log_p, chosen, ending)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the KL divergence KL(p ‖ q) in nats of each row, (N,), over all tokens: exact, not from a sample."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """Return the entropy in nats of each row, (N,)."""
    return -(log_p.exp() * log_p).sum(-1)
