"""The shape of a model: what it costs is what the real one has and does, and what cannot be is refused."""

from dataclasses import replace

import pytest
import torch
from families import TOKENS, small_config
from torch.utils.flop_counter import FlopCounterMode

from helpers.model.config import ARCHITECTURES
from helpers.model.gpt import GPT
from helpers.train.loss import Loss


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_real_model(architecture):
    for changes in ({}, dict(n_kv_head=2, tied=False, head_size=6, n_inner=20)):
        shape = small_config(architecture, **changes)
        assert shape.sizes()["parameters"] == sum(p.numel() for p in GPT(shape).parameters())


def test_of_a_mixture_only_the_chosen_experts_are_active():
    dense, mixture = (small_config(kind).sizes() for kind in ("qwen3", "moe"))
    assert dense["active_parameters"] == dense["parameters"] < mixture["active_parameters"] < mixture["parameters"]
    assert mixture["active_parameters"] == dense["parameters"] + 2 * 4 * 32  # in two layers: four experts' rows
    both = small_config("moe", experts_per_token=2).sizes()
    expert = 2 * 3 * 32 * 64  # two layers, three matrices
    assert both["parameters"] == mixture["parameters"]
    assert both["active_parameters"] - mixture["active_parameters"] == expert


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_agree_with_torchs_own_counter(architecture):
    """Against torch.utils.flop_counter, which counts attention over the whole square: we halve it. To 3 %."""
    model = GPT(small_config(architecture)).init_weights(0)
    cfg = model.config
    with (
        FlopCounterMode(display=False) as counter,
        torch.autocast("cpu", torch.bfloat16),
    ):
        Loss(model)(TOKENS, TOKENS).objective.backward()  # 64 tokens: the loss pads no chunk
    square = 6 * cfg.n_layer * 16 * cfg.n_embd  # the half that the causal mask throws away
    vectors = sum(p.numel() for p in model.parameters() if p.ndim < 2)
    ours = (cfg.sizes()["flops_per_token"] + square - 6 * vectors) * TOKENS.numel()
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_a_shorter_window_an_untied_table_and_shared_keys_cost_less():
    cfg = small_config("llama")
    full = cfg.sizes()
    assert full["flops_per_token"] - cfg.sizes(8)["flops_per_token"] == 6 * 2 * 8 * 32
    untied = replace(cfg, tied=False).sizes()  # the first table is only looked up, the second multiplies
    assert untied["flops_per_token"] == full["flops_per_token"] and untied["parameters"] > full["parameters"]
    # two layers, key and value, 32 wide, 16 fewer outputs
    assert full["parameters"] - small_config("llama", n_kv_head=2).sizes()["parameters"] == 2 * 2 * 32 * 16


@pytest.mark.parametrize(("architecture", "changes", "word"), [
    ("gpt2", dict(n_embd=30), "heads"), ("llama", dict(n_kv_head=3), "key/value"), ("llma", {}, "did you mean 'llama'"),
    ("moe", dict(experts_per_token=5), "n_experts, which is 4"), ("llama", dict(n_embd=36), "rotary"),
])  # fmt: skip
def test_shapes_that_make_no_sense_are_refused(architecture, changes, word):
    with pytest.raises(ValueError, match=word):
        small_config(architecture, **changes)
