"""Causal attention without a mask: the library's numbers, never asked for a mask, refused where texts are packed."""

import functools
from unittest import mock

import pytest
import torch
from models import tiny
from transformers import MistralConfig

from helpers.train import attention, fused
from helpers.train.loss import Loss
from helpers.train.settings import TrainSettings

CPU = torch.device("cpu")


def objective(model, ids):
    model.zero_grad()
    value = Loss(model)(ids, ids.roll(-1, 1)).objective
    value.backward()
    return [value, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_loss_and_gradients_are_those_of_the_librarys_attention(architecture):
    """fp64, 1e-12; also where query heads share keys."""
    model = tiny(architecture=architecture, dtype=torch.float64, **({} if architecture == "gpt2" else {"n_kv_head": 1}))
    ids = torch.randint(3, 10, (2, 8))
    wanted = objective(model, ids)
    model.set_attn_implementation(attention.CAUSAL)
    for ours, theirs in zip(objective(model, ids), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_it_is_given_no_mask_compiled_or_not(monkeypatch):
    """Compiled, the library's "sdpa" may make one (before torch 2.14 it does), which is why there is "causal"."""
    masks = []
    real = torch.nn.functional.scaled_dot_product_attention

    def seen(*args, attn_mask=None, is_causal=False, **more):
        masks.append((attn_mask, is_causal))
        return real(*args, attn_mask=attn_mask, is_causal=is_causal, **more)

    model, ids = tiny(), torch.randint(3, 10, (2, 8))
    model.set_attn_implementation(attention.CAUSAL)
    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", seen):
        objective(model, ids)
    assert masks and set(masks) == {(None, True)}
    torch._dynamo.reset()
    calls = []

    def backend(graph, inputs):
        calls.extend(node.kwargs for node in graph.graph.nodes if "scaled_dot" in str(node.target))
        return graph.forward

    with mock.patch.object(torch, "compile", functools.partial(torch.compile, backend=backend)):
        Loss(model, compile=True)(ids, ids)
    assert calls and all(call["attn_mask"] is None and call["is_causal"] is True for call in calls)
    torch._dynamo.reset()


def test_the_library_writes_the_same_text_with_it():
    """With the library's cache a step has one query, which sees all keys."""
    model, prompt = tiny(n_ctx=16).eval(), torch.tensor([[4, 5, 6]])
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(prompt))
    wanted = model.generate(prompt, **options)
    model.set_attn_implementation(attention.CAUSAL)
    assert torch.equal(model.generate(prompt, **options), wanted)


def test_packed_texts_keep_their_mask_and_are_refused_without():
    model, ids = tiny(), torch.randint(3, 10, (1, 8))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    fused.speed_up(model, TrainSettings(), 8, "fp32", torch.device("cuda"), packed=True)
    assert model.config._attn_implementation == "sdpa"
    apart = Loss(model)(ids, ids, positions).loss
    fused.speed_up(model, TrainSettings(), 8, "fp32", torch.device("cuda"))
    with pytest.raises(ValueError, match="texts side by side would see each other"):
        Loss(model)(ids, ids, positions)
    assert apart != Loss(model)(ids, ids).loss


def test_a_sliding_window_that_is_shorter_keeps_its_mask():
    config = MistralConfig(sliding_window=16)
    assert attention.sees_whole_window(config, 16) and not attention.sees_whole_window(config, 17)
    assert attention.sees_whole_window(MistralConfig(sliding_window=None), 10**6)
