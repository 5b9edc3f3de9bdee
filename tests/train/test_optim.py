"""Room 04: the rate follows its schedule, each parameter has one optimizer, and an update is all or nothing."""

import math

import pytest
import torch
import torch.distributed as dist
from models import FIRST, TOK, tiny
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, MixtralConfig

from helpers.train import optim
from helpers.train.distributed import leave_group


def scaler(enabled: bool = False, **settings):
    return torch.amp.GradScaler("cpu", enabled=enabled, **settings)


def mixture():
    """A mixture of experts: the library keeps a layer's experts in one tensor, (E, out, in)."""
    cfg = MixtralConfig(
        vocab_size=len(TOK), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, max_position_embeddings=8, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(cfg)


def objective(model) -> torch.Tensor:
    ids = torch.randint(FIRST, len(TOK), (6, 8), generator=torch.Generator().manual_seed(0))
    return model(input_ids=ids, labels=ids).loss


def snapshot(model, optimizers) -> list[torch.Tensor]:
    """Return copies of all weights and of all that the optimizers remember."""
    states = [value for each in optimizers for state in each.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *states]]


def update(optimizers, parameters, max_grad_norm: float, scale, finite: bool = True) -> float:
    """Clip, step, zero: what `Trainer.step` does with a gradient; return its norm before clipping."""
    norm = optim.clip_gradient(optimizers, parameters, max_grad_norm, scale)
    optim.step(optimizers, scale, finite and math.isfinite(norm))
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return norm


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


# ---- the rate ----


@pytest.mark.parametrize("schedule", optim.SCHEDULES)
def test_the_rate_warms_up_and_decays_to_its_end(schedule):
    """One article began its schedule at 1.1 x lr, another stepped it once an epoch: constant all along."""
    rates = [optim.learning_rate(step, 100, 2.0, 10, schedule, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert max(rates) == 2.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    end = optim.learning_rate(100, 100, 2.0, 10, schedule, 0.1)
    assert end == pytest.approx(2.0 if schedule == "constant" else 0.2)
    assert rates[-1] >= end


def test_cosine_and_linear_are_half_way_in_the_middle():
    """After 10 updates of warm-up, update 55 is the middle of the other 90; a quarter on, cosine is still higher."""
    for schedule in ("linear", "cosine"):
        assert optim.learning_rate(55, 100, 2.0, 10, schedule, 0.1) == pytest.approx(1.1)
    quarter = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))
    assert optim.learning_rate(40, 130, 1.0, 10, "cosine", 0.1) == pytest.approx(quarter)


def test_wsd_is_flat_and_then_linear_in_the_last_fifth():
    rates = [optim.learning_rate(step, 200, 1.0, 20, "wsd", 0.0) for step in range(200)]
    assert set(rates[20:161]) == {1.0}
    assert rates[160:] == pytest.approx([k / 40 for k in range(40, 0, -1)])


@pytest.mark.parametrize("schedule", optim.SCHEDULES)
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (2, 1), (3, 2), (7, 0)])
def test_a_very_short_run_never_has_rate_0(schedule, total, warmup):
    """wsd's last fifth of three updates is a whole update; an update at rate 0 would be work for nothing."""
    rates = [optim.learning_rate(step, total, 1.0, warmup, schedule, 0.0) for step in range(total)]
    assert all(0 < rate <= 1 for rate in rates) and rates[min(warmup, total - 1)] == 1.0


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule"):
        optim.learning_rate(5, 10, 1.0, 0, "stairs", 0.0)


# ---- which optimizer moves which tensor ----


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("make", [tiny, lambda: tiny(architecture="llama"), mixture], ids=["gpt2", "llama", "mixture"])
def test_every_parameter_is_in_one_group_and_only_matrices_decay(name, make):
    model = make()
    groups = [group for optimizer in optim.make_optimizers(model, name, 0.1, 0.5) for group in optimizer.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    for group in groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.5 if p.ndim >= 2 else 0.0)


def test_muon_has_the_blocks_matrices_and_nothing_else():
    """Not the tables, whose rows are words and not directions; not the experts, one tensor of (E, out, in) a layer."""
    expected = {
        tiny: {"c_attn", "c_proj", "c_fc"},
        mixture: {"q_proj", "k_proj", "v_proj", "o_proj", "gate"},
    }
    for make, wanted in expected.items():
        model = make()
        muon, _ = optim.make_optimizers(model, "muon", 0.1, 0.5)
        held = {id(p) for group in muon.param_groups for p in group["params"]}
        names = [name for name, p in model.named_parameters() if id(p) in held]
        assert {name.split(".")[-2] for name in names} == wanted
        assert not any("wte" in name or "wpe" in name or "embed" in name for name in names)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="adamw or muon"):
        optim.make_optimizers(tiny(), "sgd", 0.1, 0.0)


def test_adamw_is_the_papers_formula():
    """Loshchilov and Hutter 2019, algorithm 2, written out; three updates in fp64, 1e-12. Also: beta2, eps arrive."""
    lr, decay, beta1, beta2, eps = 0.03, 0.2, 0.9, 0.8, 1e-3
    model = tiny(dtype=torch.float64)
    optimizers = optim.make_optimizers(model, "adamw", lr, decay, beta2, eps)
    wanted = [p.detach().clone() for p in model.parameters()]
    m, v = [torch.zeros_like(p) for p in wanted], [torch.zeros_like(p) for p in wanted]
    generator = torch.Generator().manual_seed(0)
    for step in (1, 2, 3):
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            m[i] = beta1 * m[i] + (1 - beta1) * p.grad
            v[i] = beta2 * v[i] + (1 - beta2) * p.grad**2
            move = (m[i] / (1 - beta1**step)) / ((v[i] / (1 - beta2**step)).sqrt() + eps)
            wanted[i] = wanted[i] - lr * move - lr * (decay if p.ndim == 2 else 0.0) * wanted[i]
        update(optimizers, list(model.parameters()), 0.0, scaler())
    for p, value in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-12, atol=1e-14)


def test_muon_moves_all_directions_of_a_matrix_alike():
    """Its step has singular values of about 1 whatever the gradient's are, times 0.2 * sqrt(longer side) * lr.

    The five iterations end between 0.87 and 1.13, not at 1 (`train.muon`); the gradient's here reach from 1 to 50.
    """
    model = tiny()
    muon, _ = optim.make_optimizers(model, "muon", 0.1, 0.0)
    weight = model.transformer.h[0].mlp.c_fc.weight  # (16, 64)
    before = weight.detach().clone()
    random = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(random, full_matrices=False)
    weight.grad = u @ torch.diag(torch.linspace(1, 50, 16)) @ v
    muon.step()
    step = torch.linalg.svdvals((before - weight).detach()) / (0.1 * 0.2 * math.sqrt(64))
    assert 0.87 < step.min() and step.max() < 1.13


# ---- the update ----


def test_clipping_is_torchs_on_the_accumulated_gradient():
    """Clipping at every micro-batch bends the direction of the sum; here it happens once an update."""
    model, reference = tiny(), tiny()
    for each in (model, reference):
        objective(each).backward()
    wanted = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    norm = update([torch.optim.SGD(model.parameters(), lr=1.0)], list(model.parameters()), 0.05, scaler())
    assert norm == pytest.approx(wanted, rel=1e-5) and norm > 0.05
    for one, two in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


def test_clipping_at_0_lets_everything_through():
    model = tiny()
    objective(model).backward()
    wanted = [p.detach() - p.grad for p in model.parameters()]
    update([torch.optim.SGD(model.parameters(), lr=1.0)], list(model.parameters()), 0.0, scaler())
    assert same(wanted, [p.detach() for p in model.parameters()])


def test_one_norm_over_all_optimizers():
    """Clipped apart, the gradients of Muon's matrices and of AdamW's tables would lose their proportion."""
    model = tiny()
    optimizers = optim.make_optimizers(model, "muon", 1e-3, 0.0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    norm = update(optimizers, list(model.parameters()), 1.0, scaler())
    assert norm == pytest.approx(math.sqrt(sum(p.numel() for p in model.parameters())))


def test_a_large_loss_scale_changes_nothing():
    """The book clipped while gradients were still scaled: with scale 65536 its step shrank to about 0.0014 of lr."""
    weights = []
    for each in (scaler(), scaler(True, init_scale=65536.0)):
        model = tiny()
        each.scale(objective(model)).backward()
        norm = update([torch.optim.SGD(model.parameters(), lr=0.5)], list(model.parameters()), 0.1, each)
        assert norm > 0.1  # so that clipping happens
        weights.append([p.detach() for p in model.parameters()])
    for one, two in zip(*weights, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(name, bad):
    """One bad number in one tensor: no optimizer moves a weight, ages a momentum, or counts a step."""
    model = tiny()
    optimizers = optim.make_optimizers(model, name, 0.1, 0.1)
    for number, p in enumerate(model.parameters()):
        objective(model).backward()
        update(optimizers, list(model.parameters()), 1.0, scaler())
        before = snapshot(model, optimizers)
        objective(model).backward()
        p.grad.view(-1)[number % p.numel()] = bad
        assert not math.isfinite(update(optimizers, list(model.parameters()), 1.0, scaler()))
        assert same(before, snapshot(model, optimizers))


def test_a_loss_that_is_not_finite_changes_nothing_either():
    model = tiny()
    optimizers = optim.make_optimizers(model, "muon", 0.1, 0.1)
    before = snapshot(model, optimizers)
    objective(model).backward()
    assert math.isfinite(update(optimizers, list(model.parameters()), 1.0, scaler(), finite=False))
    assert same(before, snapshot(model, optimizers))


@pytest.mark.parametrize("hit", ["wte.weight", "h.0.mlp.c_fc.weight"], ids=["adamw's", "muon's"])
def test_an_overflow_under_fp16_stops_both_optimizers(hit):
    """A scaler alone decides for each optimizer apart: with the overflow in a table, Muon's matrices would move."""
    model = tiny()
    optimizers = optim.make_optimizers(model, "muon", 0.1, 0.1)
    scale = scaler(True, init_scale=1024.0)
    scale.scale(objective(model)).backward()
    update(optimizers, list(model.parameters()), 1.0, scale)
    assert scale.get_scale() == 1024.0
    before = snapshot(model, optimizers)  # both have a momentum now

    scale.scale(objective(model)).backward()
    dict(model.transformer.named_parameters())[hit].grad.view(-1)[3] = math.inf
    assert not math.isfinite(update(optimizers, list(model.parameters()), 1.0, scale))
    assert same(before, snapshot(model, optimizers))
    assert scale.get_scale() == 512.0

    scale.scale(objective(model)).backward()
    assert math.isfinite(update(optimizers, list(model.parameters()), 1.0, scale))
    assert not same(before, snapshot(model, optimizers))


def test_the_scales_arithmetic():
    """Halved at each overflow, doubled after growth_interval good updates in a row: 64 32 32 64 | 32 32 64."""
    model = tiny()
    optimizers = optim.make_optimizers(model, "muon", 1e-3, 0.0)
    scale = scaler(True, init_scale=64.0, growth_interval=2)
    seen = []
    for good in (False, True, True, False, True, True):
        scale.scale(objective(model)).backward()
        if not good:
            next(model.parameters()).grad.fill_(math.inf)
        update(optimizers, list(model.parameters()), 1.0, scale)
        seen.append(scale.get_scale())
    assert seen == [32, 32, 64, 32, 32, 64]


# ---- on several processes ----


def three_updates(model, name: str) -> None:
    optimizers = optim.make_optimizers(model, name, 0.01, 0.1)
    for _ in range(3):
        objective(model).backward()
        update(optimizers, list(model.parameters()), 0.1, scaler())


def train_sharded(rank: int, folder: str) -> None:
    """Make three updates of models whose tensors lie on two processes; the first one saves the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name in ("adamw", "muon"):
        model = tiny(architecture="llama")
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        three_updates(model, name)
        whole = {str(i): p.full_tensor().detach() for i, p in enumerate(model.parameters())}
        if rank == 0:
            save_file(whole, f"{folder}/{name}.safetensors")
    leave_group(0)


@pytest.mark.slow
def test_a_sharded_model_makes_the_same_updates(tmp_path):
    """Two gloo processes with fully_shard, same batch on both; the distance from one process's way, relative to it.

    Muon's iterations lift what rounding does to small singular values; a wrong update differs by 1.
    """
    torch.multiprocessing.spawn(train_sharded, (str(tmp_path),), nprocs=2)
    for name, tolerance in (("adamw", 1e-4), ("muon", 1e-3)):
        alone = tiny(architecture="llama")
        before = [p.detach().clone() for p in alone.parameters()]
        three_updates(alone, name)
        sharded = load_file(tmp_path / f"{name}.safetensors")
        for i, (start, one) in enumerate(zip(before, alone.parameters(), strict=True)):
            assert (one.detach() - sharded[str(i)]).norm() <= tolerance * (one.detach() - start).norm()
