"""Room 04: what is fused is the same function with the same gradient, and is used where that is so, nowhere else."""

import pytest
import torch
from models import FIRST, TOK, tiny
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb

from helpers.chat import lora
from helpers.device import autocast
from helpers.train import fused
from helpers.train.loss import Loss
from helpers.train.model import ARCHITECTURES, build_model, make_config
from helpers.train.settings import TrainSettings

CPU = torch.device("cpu")


def angles(length, width, dtype):
    turns = torch.arange(length, dtype=dtype)[:, None] / 10_000 ** (torch.arange(0, width, 2, dtype=dtype) / width)
    return turns.cos()[None, :, None], turns.sin()[None, :, None]  # (1, T, 1, D/2) each


def batch(windows=6, length=16):
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randint(FIRST, len(TOK), (2, windows, length), generator=generator)
    return inputs, labels


def gradients(model, precision, positions=None):
    model.zero_grad()
    with autocast(precision, CPU):
        scores = Loss(model)(*batch(), positions)
    scores.objective.backward()
    return float(scores.objective.detach()), {name: p.grad.clone() for name, p in model.named_parameters()}


# ---- the functions ----


def test_the_gradients_written_by_hand_are_those_of_the_functions():
    """In fp64, against differences of the function's values."""
    generator = torch.Generator().manual_seed(0)

    def free(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    assert torch.autograd.gradcheck(
        lambda x, w: fused._RMSNorm.apply(x, w, 1e-6, torch.float64), (free(2, 3, 8), free(8))
    )
    assert torch.autograd.gradcheck(fused._SwiGLU.apply, (free(2, 3, 8),))
    cos, sin = angles(5, 4, torch.float64)
    apart = fused._future(5).repeat(2, 1, 1, 1)
    apart[1, :, 3:, :3] = True  # in the second row another text begins
    for masked in (fused._future(5), apart):
        assert torch.autograd.gradcheck(
            lambda qkv, masked=masked: fused._Attention.apply(qkv, cos, sin, masked, 0.5), (free(2, 5, 3, 2, 4),)
        )


def test_the_functions_are_those_of_the_library():
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 7, 3, 2, 8, dtype=torch.float64, generator=generator)
    cos, sin = angles(7, 8, torch.float64)
    tables = [torch.cat([table, table], -1)[:, :, 0] for table in (cos, sin)]  # (1, T, D) each
    q, k = apply_rotary_pos_emb(*qkv[:, :, :2].permute(2, 0, 3, 1, 4), *tables)  # (B, H, T, D) each
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, qkv[:, :, 2].transpose(1, 2), is_causal=True, scale=0.3
    )
    ours = fused._Attention.apply(qkv, cos, sin, fused._future(7), 0.3)
    torch.testing.assert_close(ours, expected.transpose(1, 2))
    x = qkv.flatten(2)
    norm = LlamaRMSNorm(x.shape[-1]).double()
    norm.weight.data.normal_(generator=generator)
    ours = fused._RMSNorm.apply(x, norm.weight, norm.variance_epsilon, torch.float64)
    torch.testing.assert_close(ours, norm(x), rtol=0, atol=1e-5)  # the library's norm computes in fp32
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(fused._SwiGLU.apply(x), torch.nn.functional.silu(gate) * up)


# ---- the model ----


def test_its_loss_and_gradient_are_as_near_to_those_of_fp32_as_the_librarys():
    model = tiny(architecture="llama", n_ctx=16)
    truth, exact = gradients(model, "fp32")
    model.set_attn_implementation("sdpa")
    of_library, coarse = gradients(model, "bf16")
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
    of_ours, ours = gradients(model, "bf16")
    assert of_ours != of_library and of_ours == pytest.approx(truth, rel=2e-3)

    def error(gradient):
        return sum(float((gradient[name] - exact[name]).square().sum()) for name in exact) ** 0.5

    size = sum(float(each.square().sum()) for each in exact.values()) ** 0.5
    assert 0 < error(ours) < 1.1 * error(coarse) < 0.02 * size
    for name in exact:  # no part of it is wrong
        assert torch.cosine_similarity(ours[name].flatten(), exact[name].flatten(), 0) > 0.999, name


def count(monkeypatch, function):
    """Return a list that grows with each call of a function that is fused."""
    calls, before = [], function.forward
    monkeypatch.setattr(function, "forward", staticmethod(lambda *a: (calls.append(1), before(*a))[1]))
    return calls


@pytest.mark.parametrize("shared, dropout, length", [
    (1, 0.0, 16),  # heads share keys
    (0, 0.1, 16),  # of attention weights, in a model from elsewhere
    (0, 0.0, fused.WRITTEN_OUT + 1),  # long windows
])  # fmt: skip
def test_attention_that_is_another_is_left_to_the_library(monkeypatch, shared, dropout, length):
    calls = count(monkeypatch, fused._Attention)
    config = make_config("llama", TOK, n_ctx=length, n_embd=16, n_layer=2, n_head=2, n_kv_head=shared)
    config.attention_dropout = dropout
    model = build_model(config, seed=0).train()
    fused.speed_up(model, TrainSettings(), length, "bf16", CPU)
    with autocast("bf16", CPU):
        Loss(model)(*batch(length=length))
    assert not calls
    if shared:
        assert model.config._attn_implementation == "eager"  # the library's, written out


def test_dropout_of_the_stream_leaves_the_attention_fused(monkeypatch):
    """It is the attention's output that is dropped, not its weights, which the fused function does not show."""
    calls = count(monkeypatch, fused._Attention)
    model = tiny(architecture="llama", n_ctx=16, dropout=0.2).train()
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
    with autocast("bf16", CPU):
        Loss(model)(*batch())
    assert len(calls) == 2


@pytest.mark.parametrize("bias", [True, False])
def test_what_stands_beside_a_matrix_is_not_forgotten(monkeypatch, bias):
    """A bias, as some LLaMA-like models have it, and the adapters of LoRA."""
    config = make_config("llama", TOK, n_ctx=16, n_embd=16, n_layer=2, n_head=2)
    config.attention_bias = config.mlp_bias = bias
    model, generator = build_model(config, seed=0), torch.Generator().manual_seed(0)
    if not bias:
        lora.add_lora(model, rank=2)
    for name, p in model.named_parameters():
        if name.endswith(".bias") or ".lora_" in name:
            p.data.normal_(std=0.1, generator=generator)
    learnt = [p for p in model.parameters() if p.requires_grad]

    def pull(precision):
        with autocast(precision, CPU):
            objective = Loss(model)(*batch()).objective
        return float(objective.detach()), torch.autograd.grad(objective, learnt)

    truth, exact = pull("fp32")
    calls = [count(monkeypatch, each) for each in (fused._RMSNorm, fused._Attention, fused._SwiGLU)]
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
    ours, gradient = pull("bf16")
    assert ours == pytest.approx(truth, rel=5e-3) and list(map(len, calls)) == [5, 0, 0]
    for one, other in zip(gradient, exact, strict=True):
        assert torch.cosine_similarity(one.flatten(), other.flatten(), 0) > 0.98


def test_texts_side_by_side_do_not_see_each_other(monkeypatch):
    calls = count(monkeypatch, fused._Attention)
    positions = torch.arange(16).remainder(torch.tensor([8, 5, 16, 8, 3, 7])[:, None])  # (6, 16) 0 where a text begins
    model, other = tiny(architecture="llama", n_ctx=16), tiny(architecture="llama", n_ctx=16)
    fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
    (ours, grads), (truth, exact) = gradients(model, "bf16", positions), gradients(other, "fp32", positions)
    assert len(calls) == 2 and ours == pytest.approx(truth, rel=2e-3)
    assert abs(gradients(model, "bf16")[0] - truth) > 2 * abs(ours - truth)  # as one text it is another loss
    for name in exact:
        assert torch.cosine_similarity(grads[name].flatten(), exact[name].flatten(), 0) > 0.999, name


def test_outside_of_training_in_half_precision_it_is_the_librarys_model_to_the_bit(monkeypatch):
    functions = [count(monkeypatch, each) for each in (fused._RMSNorm, fused._Attention, fused._SwiGLU)]
    model, same = tiny(architecture="llama", n_ctx=32), tiny(architecture="llama", n_ctx=32)
    fused.speed_up(model, TrainSettings(), 32, "bf16", CPU)
    assert gradients(model, "fp32")[0] == gradients(same, "fp32")[0]
    prompt = torch.tensor([[TOK.bos_token_id, FIRST]])
    options = dict(max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(prompt))
    assert torch.equal(model.generate(prompt, **options), same.generate(prompt, **options))
    assert functions == [[], [], []]
    gradients(model, "bf16")
    assert list(map(len, functions)) == [5, 2, 2]  # of two blocks: a norm before each part, and the last one


def test_where_it_is_used(tmp_path):
    def speed_up(architecture, n_ctx, precision, device=CPU, **changes):
        model = tiny(architecture=architecture, n_ctx=n_ctx)
        fused.speed_up(model, TrainSettings(**changes), n_ctx, precision, device)
        return model.config._attn_implementation, {type(each) for each in model.modules()} & set(fused._FUSED.values())

    everything = set(fused._FUSED.values())
    assert speed_up("llama", 128, "bf16") == speed_up("llama", 129, "fp16") == ("sdpa", everything)
    assert speed_up("llama", 40, "fp32") == ("sdpa", set())
    # a GPU's attention, and a compiled one where it is not written out, do without a mask
    assert speed_up("llama", 40, "bf16", torch.device("cuda")) == speed_up("gpt2", 40, "fp32", compile=True)
    assert speed_up("gpt2", 40, "fp32", compile=True) == ("causal", set())
    # a compiler fuses by itself, and parts of weights cannot be joined: there the library's attention, written out
    assert speed_up("llama", 40, "bf16", compile=True) == speed_up("llama", 40, "bf16", parallel="fsdp")
    assert speed_up("llama", 40, "bf16", compile=True) == ("eager", set())
    for other in set(ARCHITECTURES) - {"llama"}:  # attention written out, where that is faster
        assert speed_up(other, 128, "bf16") == ("eager", set())
        assert speed_up(other, 129, "bf16") == speed_up(other, 40, "fp32") == ("sdpa", set())
    # what is saved does not say how it was trained: whoever loads it has the library's own
    for architecture in ("llama", "gpt2"):
        model = tiny(architecture=architecture)
        fused.speed_up(model, TrainSettings(), 16, "bf16", CPU)
        model.save_pretrained(tmp_path / architecture)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / architecture)
        assert loaded.config._attn_implementation == "sdpa"
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
        kinds = {type(each) for each in loaded.modules()}
        assert not kinds & everything and (architecture != "llama" or kinds >= {LlamaAttention, LlamaMLP, LlamaRMSNorm})
