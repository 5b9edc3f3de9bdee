"""The shape of a model: what it costs is what the real one has and does, and what cannot be is refused."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.model.config import ARCHITECTURES, GPTConfig, make_config
from helpers.model.gpt import GPT
from helpers.train.loss import Loss

V = 90
SHAPE = dict(n_ctx=16, n_embd=32, n_layer=2, n_head=4)
IDS = torch.randint(1, V, (4, 16), generator=torch.Generator().manual_seed(0))


def config(architecture: str, **changes) -> GPTConfig:
    return make_config(architecture, V, **SHAPE | changes)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_real_model(architecture):
    for shape in (config(architecture), config(architecture, n_kv_head=2, tied=False, head_size=6, n_inner=20)):
        assert shape.sizes()["parameters"] == sum(p.numel() for p in GPT(shape).parameters())


def test_of_a_mixture_only_the_chosen_experts_are_active():
    dense, mixture = (config(kind).sizes() for kind in ("qwen3", "moe"))
    assert dense["active_parameters"] == dense["parameters"] < mixture["active_parameters"] < mixture["parameters"]
    assert mixture["active_parameters"] == dense["parameters"] + 2 * 4 * 32  # in two layers: four experts' rows
    both = config("moe", experts_per_token=2).sizes()
    expert = 2 * 3 * 32 * 64  # two layers, three matrices
    assert both["parameters"] == mixture["parameters"]
    assert both["active_parameters"] - mixture["active_parameters"] == expert


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_agree_with_torchs_own_counter(architecture):
    """Against torch.utils.flop_counter, which counts attention over the whole square: we halve it. To 3 %."""
    model = GPT(config(architecture)).init_weights(0)
    cfg = model.config
    with (
        FlopCounterMode(display=False) as counter,
        torch.autocast("cpu", torch.bfloat16),
    ):
        Loss(model)(IDS, IDS).objective.backward()  # 64 tokens: the loss pads no chunk
    square = 6 * cfg.n_layer * 16 * cfg.n_embd  # the half that the causal mask throws away
    vectors = sum(p.numel() for p in model.parameters() if p.ndim < 2)
    ours = (cfg.sizes()["flops_per_token"] + square - 6 * vectors) * IDS.numel()
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_a_shorter_window_an_untied_table_and_shared_keys_cost_less():
    cfg = config("llama")
    full = cfg.sizes()
    assert full["flops_per_token"] - cfg.sizes(8)["flops_per_token"] == 6 * 2 * 8 * 32
    untied = replace(cfg, tied=False).sizes()  # the first table is only looked up, the second multiplies
    assert untied["flops_per_token"] == full["flops_per_token"] and untied["parameters"] > full["parameters"]
    # two layers, key and value, 32 wide, 16 fewer outputs
    assert full["parameters"] - config("llama", n_kv_head=2).sizes()["parameters"] == 2 * 2 * 32 * 16


@pytest.mark.parametrize(("architecture", "changes", "word"), [
    ("gpt2", dict(n_embd=30), "heads"), ("llama", dict(n_kv_head=3), "key/value"), ("llma", {}, "did you mean 'llama'"),
    ("moe", dict(experts_per_token=5), "n_experts, which is 4"), ("llama", dict(n_embd=36), "rotary"),
])  # fmt: skip
def test_shapes_that_make_no_sense_are_refused(architecture, changes, word):
    with pytest.raises(ValueError, match=word):
        config(architecture, **changes)
