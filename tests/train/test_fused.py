"""Room 04: what is fused, written out or without a mask is the same function with the same gradient."""

import functools

import pytest
import torch
from models import CPU, FIRST, TOK, tiny
from transformers import AutoModelForCausalLM, MistralConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from helpers.chat import lora
from helpers.device import autocast
from helpers.train import fused
from helpers.train.loss import Loss
from helpers.train.model import build_model, make_config
from helpers.train.settings import TrainSettings

CUDA = torch.device("cuda")
OURS = set(fused._FUSED.values())
IDS = torch.randint(FIRST, len(TOK), (2, 6, 16), generator=torch.Generator().manual_seed(0))  # inputs, labels
STARTS = torch.arange(16).remainder(torch.tensor([8, 5, 16, 8, 3, 7])[:, None])  # (6, 16) 0 where a text begins


def free(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def angles(length, width):
    turns = torch.arange(length, dtype=torch.float64)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return turns.cos()[None, :, None], turns.sin()[None, :, None]  # (1, T, 1, D/2) each


def gradients(model, precision, positions=None, ids=IDS):
    model.zero_grad()
    with autocast(precision, CPU):
        objective = Loss(model)(*ids, positions).objective
    objective.backward()
    return float(objective.detach()), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the norm, the attention and the SwiGLU that are fused."""
    counts = [0, 0, 0]
    for i, function in enumerate((fused._RMSNorm, fused._Attention, fused._SwiGLU)):

        def forward(*args, i=i, before=function.forward):
            counts[i] += 1
            return before(*args)

        monkeypatch.setattr(function, "forward", staticmethod(forward))
    return counts


def test_the_gradients_written_by_hand_are_those_of_the_functions():
    """In fp64, against differences of the function's values; also where a second text begins in a row."""
    apart = fused._future(5).repeat(2, 1, 1, 1)
    apart[1, :, 3:, :3] = True
    check = torch.autograd.gradcheck
    assert check(lambda x, w: fused._RMSNorm.apply(x, w, 1e-6, torch.float64), (free(2, 3, 8), free(8)))
    assert check(fused._SwiGLU.apply, (free(2, 3, 8),))
    for masked in (fused._future(5), apart):
        attention = functools.partial(lambda mask, qkv: fused._Attention.apply(qkv, *angles(5, 4), mask, 0.5), masked)
        assert check(attention, (free(2, 5, 3, 2, 4),))


def test_the_functions_are_those_of_the_library():
    qkv, (cos, sin) = free(2, 7, 3, 2, 8), angles(7, 8)
    tables = [torch.cat([table, table], -1)[:, :, 0] for table in (cos, sin)]  # (1, T, D) each
    q, k = apply_rotary_pos_emb(*qkv[:, :, :2].permute(2, 0, 3, 1, 4), *tables)  # (B, H, T, D) each
    v = qkv[:, :, 2].transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    torch.testing.assert_close(
        fused._Attention.apply(qkv, cos, sin, fused._future(7), 0.3), expected.transpose(1, 2)
    )  # fmt: skip
    x, norm = qkv.flatten(2), LlamaRMSNorm(48).double()
    norm.weight.data = free(48).detach()
    ours = fused._RMSNorm.apply(x, norm.weight, norm.variance_epsilon, torch.float64)
    torch.testing.assert_close(ours, norm(x), rtol=0, atol=1e-5)  # the library's norm computes in fp32
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(fused._SwiGLU.apply(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("positions", [None, STARTS], ids=["one text", "side by side"])
def test_the_models_loss_and_gradient_are_as_near_to_those_of_fp32_as_the_librarys(calls, positions):
    model = tiny(architecture="llama", n_ctx=16)
    truth, exact = gradients(model, "fp32", positions)
    model.set_attn_implementation("sdpa")
    _, coarse = gradients(model, "bf16", positions)
    assert calls == [0, 0, 0]
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU, packed=positions is not None)
    value, ours = gradients(model, "bf16", positions)
    assert calls == [5, 2, 2] and value == pytest.approx(truth, rel=2e-3)  # a norm before each part, and the last one

    def error(found):
        return sum(float((found[name] - exact[name]).square().sum()) for name in exact) ** 0.5

    assert 0 < error(ours) < 1.1 * error(coarse)
    for name in exact:  # no part of it is wrong
        assert torch.cosine_similarity(ours[name].flatten(), exact[name].flatten(), 0) > 0.999, name


@pytest.mark.parametrize("bias", [True, False])
def test_what_stands_beside_a_matrix_is_not_forgotten(calls, bias):
    """A bias, as some LLaMA-like models have it, and the adapters of LoRA."""
    config = make_config("llama", TOK, n_ctx=16, n_embd=16, n_layer=2, n_head=2)
    config.attention_bias = config.mlp_bias = bias
    model = build_model(config, seed=0)
    if not bias:
        lora.add_lora(model, rank=2)
    for name, p in model.named_parameters():
        if name.endswith(".bias") or ".lora_" in name:
            p.data.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    truth, exact = gradients(model, "fp32")
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
    value, ours = gradients(model, "bf16")
    assert value == pytest.approx(truth, rel=5e-3) and calls == [5, 0, 0]
    assert all(torch.cosine_similarity(ours[name].flatten(), exact[name].flatten(), 0) > 0.98 for name in exact)


@pytest.mark.parametrize(("changes", "length", "fuses"), [
    (dict(n_kv_head=1), 16, 0), (dict(attention_dropout=0.1), 16, 0), ({}, fused.WRITTEN_OUT + 1, 0),
    (dict(dropout=0.2), 16, 2),  # it drops the attention's output, not its weights
])  # fmt: skip
def test_attention_that_is_another_is_left_to_the_library(calls, changes, length, fuses):
    shape = {name: value for name, value in changes.items() if name != "attention_dropout"}
    config = make_config("llama", TOK, n_ctx=length, n_embd=16, n_layer=2, n_head=2, **shape)
    config.attention_dropout = changes.get("attention_dropout", 0.0)
    model = build_model(config, seed=0).train()
    fused.speed_up(model, TrainSettings(), length, "bf16", CPU)
    gradients(model, "bf16", ids=torch.randint(FIRST, len(TOK), (2, 2, length)))
    assert calls[1] == fuses


def test_outside_of_training_in_half_precision_it_is_the_librarys_model_to_the_bit(calls, tmp_path):
    model, same = tiny(architecture="llama", n_ctx=32), tiny(architecture="llama", n_ctx=32)
    fused.speed_up(model, TrainSettings(), 32, "bf16", CPU)
    assert gradients(model, "fp32")[0] == gradients(same, "fp32")[0]
    prompt = torch.tensor([[TOK.bos_token_id, FIRST]])
    options = dict(max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(prompt))
    assert torch.equal(model.generate(prompt, **options), same.generate(prompt, **options))
    assert calls == [0, 0, 0]
    model.save_pretrained(tmp_path)  # what is saved does not say how it was trained
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa" and not OURS & {type(each) for each in loaded.modules()}


@pytest.mark.parametrize(("architecture", "n_ctx", "precision", "device", "changes", "attention", "fuses"), [
    ("llama", 128, "bf16", CPU, {}, "sdpa", True), ("llama", 129, "fp16", CPU, {}, "sdpa", True),
    ("llama", 40, "fp32", CPU, {}, "sdpa", False),
    ("gpt2", 128, "bf16", CPU, {}, "eager", False), ("moe", 129, "bf16", CPU, {}, "sdpa", False),
    # a compiler fuses by itself, and parts of weights cannot be joined
    ("llama", 40, "bf16", CPU, dict(compile=True), "eager", False),
    ("llama", 40, "bf16", CPU, dict(parallel="fsdp"), "eager", False),
    # a GPU's attention, and a compiled one, do without a mask
    ("llama", 40, "bf16", CUDA, {}, "causal", False), ("gpt2", 40, "fp32", CPU, dict(compile=True), "causal", False),
])  # fmt: skip
def test_where_it_is_used(architecture, n_ctx, precision, device, changes, attention, fuses):
    model = tiny(architecture=architecture, n_ctx=n_ctx)
    fused.speed_up(model, TrainSettings(**changes), n_ctx, precision, device)
    used = OURS & {type(each) for each in model.modules()}
    assert (model.config._attn_implementation, used) == (attention, OURS if fuses else set())


# ---- attention without a mask ----


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_without_a_mask_loss_and_gradients_are_the_librarys(architecture):
    """fp64, 1e-12; also where query heads share keys. And the library writes the same text with it."""
    model = tiny(architecture=architecture, dtype=torch.float64, n_kv_head=0 if architecture == "gpt2" else 1, n_ctx=16)
    prompt = torch.tensor([[4, 5, 6]])
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(prompt))
    value, exact = gradients(model, "fp32")
    text = model.generate(prompt, **options)
    model.set_attn_implementation(fused.CAUSAL)
    ours, found = gradients(model, "fp32")
    assert ours == pytest.approx(value, rel=1e-12) and torch.equal(model.generate(prompt, **options), text)
    for name in exact:
        torch.testing.assert_close(found[name], exact[name], rtol=1e-12, atol=1e-14)


def test_compiled_too_the_kernel_is_given_no_mask(monkeypatch):
    """Compiled, the library's "sdpa" may make one (before torch 2.14 it does), which is why there is "causal"."""
    seen = []

    def backend(graph, inputs):
        seen.extend(node.kwargs for node in graph.graph.nodes if "scaled_dot" in str(node.target))
        return graph.forward

    model = tiny()
    model.set_attn_implementation(fused.CAUSAL)
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    Loss(model, compile=True)(IDS[0, :, :8], IDS[1, :, :8])
    torch._dynamo.reset()
    assert seen and all(each["attn_mask"] is None and each["is_causal"] is True for each in seen)


def test_texts_that_must_not_see_each_other_keep_their_mask_and_are_refused_without():
    model, ids, positions = tiny(), torch.randint(3, 10, (1, 8)), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    fused.speed_up(model, TrainSettings(), 8, "fp32", CUDA, packed=True)
    assert Loss(model)(ids, ids, positions).loss != Loss(model)(ids, ids).loss
    fused.speed_up(model, TrainSettings(), 8, "fp32", CUDA)
    with pytest.raises(ValueError, match="would see each other"):
        Loss(model)(ids, ids, positions)
    whole = fused._sees_whole_window
    assert whole(MistralConfig(sliding_window=16), 16) and whole(MistralConfig(sliding_window=None), 10**6)
    assert not whole(MistralConfig(sliding_window=16), 17)
