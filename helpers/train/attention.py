"""Causal attention without a mask, for windows that hold one text each: nothing but the future is hidden in them.

The library looks into the positions of each batch for several texts side by side. While a model is compiled it cannot
look, and makes a mask in any case; with a mask, the kernel of a GPU computes the half that is hidden as well. Knows
nothing of the training loop.
"""

from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

CAUSAL = "causal"  # among the library's attention implementations; without a function for masks, it is given none


def causal_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, **more: Any
) -> tuple[torch.Tensor, None]:
    """Return what the library's "sdpa" returns where no mask is needed: (B, T, H, D) of query (B, H, T, D)."""
    return sdpa_attention_forward(module, query, key, value, None, **more)


AttentionInterface.register(CAUSAL, causal_attention)


def sees_whole_window(config: PretrainedConfig, n_ctx: int) -> bool:
    """Return whether each place of a window of `n_ctx` tokens sees all before it: no sliding window is shorter."""
    return (getattr(config, "sliding_window", None) or n_ctx) >= n_ctx
