"""Room 04: the rate follows its schedule, each parameter has one optimizer, and an update is all or nothing."""

import math

import pytest
import torch
from models import FIRST, TOK, tiny

from helpers.train import optim
from helpers.train.settings import TrainSettings


def make_optimizers(model, name: str, lr: float, weight_decay: float, **more):
    return optim.make_optimizers(model, TrainSettings(optimizer=name, lr=lr, weight_decay=weight_decay, **more))


def scaler(enabled: bool = False, **settings):
    return torch.amp.GradScaler("cpu", enabled=enabled, **settings)


def mixture():
    return tiny(architecture="moe")


def objective(model) -> torch.Tensor:
    ids = torch.randint(FIRST, len(TOK), (6, 8), generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def snapshot(model, optimizers) -> list[torch.Tensor]:
    """Return copies of all weights and of all that the optimizers remember."""
    states = [value for each in optimizers for state in each.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *states]]


def update(optimizers, parameters, max_grad_norm: float, scale) -> float:
    """Clip, step, zero: what `Trainer.step` does with a gradient; return its norm before clipping."""
    norm = optim.clip_gradient(optimizers, parameters, max_grad_norm, scale)
    optim.step(optimizers, scale, math.isfinite(norm))
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return norm


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


# ---- the rate ----


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
def test_the_rate_warms_up_and_decays_to_its_end(schedule):
    """One article began its schedule at 1.1 x lr, another stepped it once an epoch: constant all along."""
    rates = [optim.learning_rate(step, 100, 2.0, 10, schedule, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert max(rates) == 2.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    end = optim.learning_rate(100, 100, 2.0, 10, schedule, 0.1)
    assert end == pytest.approx(2.0 if schedule == "constant" else 0.2)
    assert rates[-1] >= end


@pytest.mark.parametrize(("schedule", "step", "total", "rate"), [
    ("linear", 55, 100, 0.55), ("cosine", 55, 100, 0.55),  # the middle of the 90 updates after the warm-up of 10
    ("cosine", 40, 130, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))),  # a quarter on it is still higher
])  # fmt: skip
def test_cosine_and_linear_at_a_place(schedule, step, total, rate):
    assert optim.learning_rate(step, total, 1.0, 10, schedule, 0.1) == pytest.approx(rate)


def test_wsd_is_flat_and_then_linear_in_the_last_fifth():
    rates = [optim.learning_rate(step, 200, 1.0, 20, "wsd", 0.0) for step in range(200)]
    assert set(rates[20:161]) == {1.0}
    assert rates[160:] == pytest.approx([k / 40 for k in range(40, 0, -1)])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (2, 1), (3, 2), (7, 0)])
def test_a_very_short_run_never_has_rate_0(schedule, total, warmup):
    """wsd's last fifth of three updates is a whole update; an update at rate 0 would be work for nothing."""
    rates = [optim.learning_rate(step, total, 1.0, warmup, schedule, 0.0) for step in range(total)]
    assert all(0 < rate <= 1 for rate in rates) and rates[min(warmup, total - 1)] == 1.0


# ---- which optimizer moves which tensor ----


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("make", [tiny, lambda: tiny(architecture="llama"), mixture], ids=["gpt2", "llama", "mixture"])
def test_every_parameter_is_in_one_group_and_only_matrices_decay(name, make):
    model = make()
    groups = [group for optimizer in make_optimizers(model, name, 0.1, 0.5) for group in optimizer.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    for group in groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.5 if p.ndim >= 2 else 0.0)


def test_adamw_has_the_settings_numbers():
    (adamw,) = make_optimizers(tiny(), "adamw", 0.03, 0.2, beta2=0.8, eps=1e-3)
    assert {(group["lr"], *group["betas"], group["eps"]) for group in adamw.param_groups} == {(0.03, 0.9, 0.8, 1e-3)}


def test_muon_has_the_blocks_matrices_and_nothing_else():
    """Not the tables, whose rows are words and not directions."""
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    for make, wanted in ((tiny, {"up_proj", "down_proj"}), (mixture, {"gate", "gate_proj", "up_proj", "down_proj"})):
        model = make()
        muon, _ = make_optimizers(model, "muon", 0.1, 0.5)
        held = {id(p) for group in muon.param_groups for p in group["params"]}
        names = [name for name, p in model.named_parameters() if id(p) in held]
        assert {name.split(".")[-2] for name in names} == attention | wanted
        assert all(name.startswith("layers.") for name in names)


# ---- the update ----


@pytest.mark.parametrize("most", [0.05, 0.0], ids=["clipped", "0: no limit"])
def test_clipping_is_torchs(most):
    model, reference = tiny(), tiny()
    for each in (model, reference):
        objective(each).backward()
    wanted = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), most or math.inf))
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    norm = update([torch.optim.SGD(model.parameters(), lr=1.0)], list(model.parameters()), most, scaler())
    assert norm == pytest.approx(wanted, rel=1e-5) and norm > 0.05
    for one, two in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


def test_one_norm_over_all_optimizers():
    """Clipped apart, the gradients of Muon's matrices and of AdamW's tables would lose their proportion."""
    model = tiny()
    optimizers = make_optimizers(model, "muon", 1e-3, 0.0)
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
    optimizers = make_optimizers(model, name, 0.1, 0.1)
    for number, p in enumerate(model.parameters()):
        objective(model).backward()
        update(optimizers, list(model.parameters()), 1.0, scaler())
        before = snapshot(model, optimizers)
        objective(model).backward()
        p.grad.view(-1)[number % p.numel()] = bad
        assert not math.isfinite(update(optimizers, list(model.parameters()), 1.0, scaler()))
        assert same(before, snapshot(model, optimizers))


@pytest.mark.parametrize("hit", ["embed_tokens.weight", "layers.0.mlp.up_proj.weight"], ids=["adamw's", "muon's"])
def test_an_overflow_under_fp16_stops_both_optimizers(hit):
    """A scaler alone decides for each optimizer apart: with the overflow in a table, Muon's matrices would move."""
    model = tiny()
    optimizers = make_optimizers(model, "muon", 0.1, 0.1)
    scale = scaler(True, init_scale=1024.0)
    scale.scale(objective(model)).backward()
    update(optimizers, list(model.parameters()), 1.0, scale)
    assert scale.get_scale() == 1024.0
    before = snapshot(model, optimizers)  # both have a momentum now

    scale.scale(objective(model)).backward()
    model.get_parameter(hit).grad.view(-1)[3] = math.inf
    assert not math.isfinite(update(optimizers, list(model.parameters()), 1.0, scale))
    assert same(before, snapshot(model, optimizers))
    assert scale.get_scale() == 512.0

    scale.scale(objective(model)).backward()
    assert math.isfinite(update(optimizers, list(model.parameters()), 1.0, scale))
    assert not same(before, snapshot(model, optimizers))


# ---- Muon: against a decomposition, and by hand ----


def like_gradients(shape, number: int = 3, dtype=torch.float64) -> torch.Tensor:
    """Matrices as gradients are: a few strong directions and many weak ones, down to a hundredth."""
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(number, *shape, generator=generator, dtype=dtype), full_matrices=False)
    return u @ torch.diag_embed(torch.logspace(0, -2, min(shape), dtype=dtype).expand(number, -1)) @ v


@pytest.mark.parametrize("shape", [(16, 16), (16, 44), (44, 16), (1, 8), (8, 1)])
def test_only_the_singular_values_change_and_by_the_polynomial(shape):
    """The reference computes with the decomposition what the iteration computes with products: fp64, 1e-10."""
    matrices = like_gradients(shape)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    s = s / s.norm(dim=1, keepdim=True)
    wanted = u @ torch.diag_embed(after_all(s)) @ v
    torch.testing.assert_close(optim.orthogonalize(matrices, torch.float64), wanted, rtol=0, atol=1e-10)


def after_all(s: torch.Tensor) -> torch.Tensor:
    for a, b, c in optim.COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return s


def test_singular_values_from_a_thousandth_to_one_come_near_one():
    s = torch.logspace(-3, 0, 20_000, dtype=torch.float64)
    furthest = (after_all(s) - 1).abs().max()
    assert furthest < 0.125
    assert after_all(torch.tensor(9e-4)) < 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(16, 16), (16, 64), (64, 16)])
def test_a_gradient_of_few_directions_does_not_explode(shape, dtype):
    """Its largest singular value is the whole norm: rounded to half precision it may lie above what is allowed for."""
    generator = torch.Generator().manual_seed(3)
    for rank in (1, 2, 3):
        left, right = (torch.randn(50, size, rank, generator=generator) for size in shape)
        steps = optim.orthogonalize(left @ right.mT, dtype)
        assert torch.linalg.matrix_norm(steps, 2).max() < 1.3
        assert (torch.linalg.svdvals(steps)[:, :1] > 0.8).all()


def test_a_gradient_of_zeros_moves_nothing():
    assert optim.orthogonalize(torch.zeros(2, 3, 5)).eq(0).all()


def matrices_of(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(12, 12), (12, 32), (12, 12), (32, 12)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def train(optimizer: torch.optim.Optimizer, matrices: list[torch.nn.Parameter], updates: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(updates):
        for p in matrices:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in matrices]


def test_momentum_decay_and_size_of_a_step_by_hand():
    """Nesterov's momentum, decoupled decay and 0.2 √(longer side), written out in fp64; 1e-10."""
    lr, decay, momentum = 0.1, 0.3, 0.9
    ours = matrices_of(torch.float64)
    wanted = [p.detach().clone() for p in ours]
    means = [torch.zeros_like(p) for p in wanted]
    got = train(optim.Muon(ours, lr, decay, momentum, torch.float64), ours)
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        for i, weight in enumerate(wanted):
            grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            means[i] = momentum * means[i] + (1 - momentum) * grad
            direction = optim.orthogonalize(((1 - momentum) * grad + momentum * means[i])[None], torch.float64)[0]
            wanted[i] = (1 - lr * decay) * weight - lr * 0.2 * math.sqrt(max(weight.shape)) * direction
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10)


def test_a_matrix_without_a_gradient_stays():
    first, second = (torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    first.grad = torch.randn(3, 4)
    optim.Muon([first, second], 0.1, 0.5, 0.95, torch.float32).step()
    assert second.eq(1).all() and not first.eq(1).any()
