"""What is only for speed in training is the same function with the same gradient as the plain lines."""

import functools

import pytest
import torch
from families import V, small_model

from helpers.chat import lora
from helpers.model import kernels
from helpers.model.config import ARCHITECTURES, make_config
from helpers.model.gpt import rotary_table
from helpers.train.loss import Loss

IDS = torch.randint(1, V, (2, 6, 16), generator=torch.Generator().manual_seed(0))  # inputs, labels
STARTS = torch.arange(16).remainder(torch.tensor([8, 5, 16, 8, 3, 7])[:, None])  # (6, 16), 0 where a text begins
tiny = functools.partial(small_model, n_embd=16, n_head=2)


def free(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def turns(positions: torch.Tensor, width: int):
    config = make_config("llama", V, n_ctx=16, n_embd=2 * width, n_layer=1, n_head=2)
    return tuple(table.double()[None, None] for table in rotary_table(config, positions))  # (1, 1, T, D/2) each


def gradients(model, half: bool, positions=None, ids=IDS):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        objective = Loss(model)(*ids, positions).objective
    objective.backward()
    return float(objective.detach()), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the norm, the attention and the SwiGLU."""
    counts = [0, 0, 0]
    for i, function in enumerate((kernels._RMSNorm, kernels._Attention, kernels._SwiGLU)):

        def forward(*args, i=i, before=function.forward):
            counts[i] += 1
            return before(*args)

        monkeypatch.setattr(function, "forward", staticmethod(forward))
    return counts


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_gradients_written_by_hand_are_those_of_the_functions(heads, turned):
    """In fp64, against differences of the function's values; keys shared or not, and where a second text begins."""
    check = torch.autograd.gradcheck
    assert check(lambda x, w: kernels._RMSNorm.apply(x, w, 1e-6, torch.float64), (free(2, 3, 8), free(8)))
    assert check(kernels.swiglu, (free(2, 3, 8),))
    visible = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    visible[1, :, 3:, :3] = False
    angles = turns(torch.arange(5), 4) if turned else None
    for seen in (None, visible):
        attention = functools.partial(lambda mask, qkv: kernels.causal_attention(qkv, heads, angles, mask), seen)
        assert check(attention, (free(2, 5, heads + 2 * (1 + (heads == 4)), 4),))


@pytest.mark.parametrize("positions", [None, STARTS], ids=["one text", "side by side"])
@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 1}, {"tied": False}], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradient_are_as_near_to_those_of_fp32_as_the_plain_lines(calls, architecture, changes, positions):
    model = tiny(architecture, **changes)
    truth, exact = gradients(model, half=False, positions=positions)
    with kernels.plain_lines():
        _, coarse = gradients(model, half=True, positions=positions)
    assert calls == [0, 0, 0]
    value, ours = gradients(model, half=True, positions=positions)
    assert calls[1] == 2 and value == pytest.approx(truth, rel=2e-3)
    assert calls[::2] == {"gpt2": [0, 0], "llama": [5, 2], "qwen3": [5, 2], "moe": [5, 8]}[architecture]

    def error(found):
        return sum(float((found[name] - exact[name]).square().sum()) for name in exact) ** 0.5

    assert 0 < error(ours) < 1.2 * error(coarse)
    for name in exact:  # no part of it is wrong
        if float(exact[name].norm()) > 1e-2:
            assert torch.cosine_similarity(ours[name].flatten(), exact[name].flatten(), 0) > 0.99, name


@pytest.mark.parametrize("bias", [True, False])
def test_what_stands_beside_a_matrix_is_not_forgotten(bias):
    """A bias, and the adapters of LoRA."""
    model = tiny("llama", qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    if not bias:
        lora.add_lora(model, rank=2)
    for name, p in model.named_parameters():
        if name.endswith(".bias") or ".lora_" in name:
            p.data.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    truth, exact = gradients(model, half=False)
    value, ours = gradients(model, half=True)
    assert value == pytest.approx(truth, rel=5e-3)
    for name in exact:
        if "k_proj.bias" not in name:  # it moves all scores of a query alike, but for the turns: hardly a gradient
            assert torch.cosine_similarity(ours[name].flatten(), exact[name].flatten(), 0) > 0.98, name


def test_outside_of_training_in_half_precision_only_the_plain_lines_are_used(calls):
    long = torch.randint(V, (2, 2, kernels.WRITTEN_OUT + 1))
    gradients(tiny("llama"), half=False)
    assert calls == [0, 0, 0]
    gradients(tiny("llama", n_ctx=kernels.WRITTEN_OUT + 1), half=True, ids=long)  # there the library's is quicker
    assert calls == [5, 0, 2]
    with torch.no_grad():
        tiny("llama").bfloat16()(IDS[0])
    assert calls == [5, 0, 2]


def test_a_compiler_is_given_the_plain_lines_and_no_mask():
    seen = []

    def backend(graph, inputs):
        seen.extend(node.kwargs for node in graph.graph.nodes if "scaled_dot" in str(node.target))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(tiny("llama").hidden, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(IDS[0])
    torch._dynamo.reset()
    assert seen and all(each["attn_mask"] is None and each["is_causal"] is True for each in seen)
