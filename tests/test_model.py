"""Room 04, before the first step: the size of a model, its cost, and its loss before it has learnt anything."""

import math

import pytest
import torch

from helpers import model as models
from helpers import tokenizer
from helpers.train import Loss

TOK = tokenizer.build({"浇水": 3}, "今天浇水很热。")
SHAPE = dict(n_ctx=16, n_embd=32, n_layer=2, n_head=4)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_sizes_are_those_of_the_real_model(architecture):
    cfg = models.config(architecture, TOK, **SHAPE)
    model = models.build(cfg, seed=0)
    sizes = models.sizes(cfg)
    assert sizes["parameters"] == sum(p.numel() for p in model.parameters())
    assert cfg.vocab_size == len(TOK)
    assert (cfg.bos_token_id, cfg.eos_token_id, cfg.pad_token_id) == (
        TOK.bos_token_id,
        TOK.eos_token_id,
        TOK.pad_token_id,
    )


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_flops_agree_with_torchs_own_counter(architecture):
    """Against torch.utils.flop_counter, which counts attention over the whole square: we halve it."""
    from torch.utils.flop_counter import FlopCounterMode

    cfg = models.config(architecture, TOK, **SHAPE)
    cfg._attn_implementation = "eager"
    model = models.build(cfg, seed=0)
    with FlopCounterMode(display=False) as counter:
        loss, _ = Loss(model)(torch.zeros(1, 16, dtype=torch.long), torch.ones(1, 16, dtype=torch.long))
        loss.backward()
    square = 6 * cfg.num_hidden_layers * 16 * cfg.hidden_size  # the half that the causal mask throws away
    vectors = sum(p.numel() for p in model.parameters() if p.ndim < 2)
    ours = (models.sizes(cfg)["flops_per_token"] + square - 6 * vectors) * 16
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_the_first_loss_is_ln_vocab_size(architecture):
    model = models.build(models.config(architecture, TOK, **SHAPE), seed=1)
    ids = torch.randint(5, len(TOK), (8, 16))
    loss, _ = Loss(model)(ids, ids.roll(-1, 1))
    assert loss.item() / ids.numel() == pytest.approx(math.log(len(TOK)), abs=0.1)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone():
    cfg = models.config("gpt2", TOK, **SHAPE)
    before = torch.random.get_rng_state()
    one, two = models.build(cfg, 7), models.build(cfg, 7)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert torch.equal(before, torch.random.get_rng_state())


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads"):
        models.config("gpt2", TOK, n_ctx=16, n_embd=30, n_layer=1, n_head=4)
    with pytest.raises(ValueError, match="unknown"):
        models.config("rnn", TOK, **SHAPE)


def test_grouped_query_attention_is_smaller():
    full = models.sizes(models.config("llama", TOK, **SHAPE))["parameters"]
    grouped = models.sizes(models.config("llama", TOK, **SHAPE, n_kv_head=2))["parameters"]
    assert full - grouped == 2 * 2 * 32 * 16  # two layers, key and value, 32 wide, 16 fewer outputs
