"""Muon against a decomposition, against torch's own, and one matrix at a time."""

import math

import pytest
import torch
from torch import nn

from helpers.train import muon
from helpers.train.muon import Muon, orthogonalize


def gradients(shape: tuple[int, int], number: int = 3, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Matrices as gradients are: a few strong directions and many weak ones, down to a hundredth."""
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(number, *shape, generator=generator, dtype=dtype), full_matrices=False)
    return u @ torch.diag_embed(torch.logspace(0, -2, min(shape), dtype=dtype).expand(number, -1)) @ v


@pytest.mark.parametrize("shape", [(16, 16), (16, 44), (44, 16), (1, 8), (8, 1)])
def test_only_the_singular_values_change_and_by_the_polynomial(shape):
    """The reference computes with the decomposition what the iteration computes with products: fp64, 1e-10."""
    matrices = gradients(shape)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    s = s / s.norm(dim=1, keepdim=True)
    wanted = u @ torch.diag_embed(after_all(s)) @ v
    torch.testing.assert_close(orthogonalize(matrices, torch.float64), wanted, rtol=0, atol=1e-10)


def after_all(s: torch.Tensor) -> torch.Tensor:
    for a, b, c in muon.COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return s


def test_singular_values_from_a_thousandth_to_one_come_near_one():
    s = torch.logspace(-3, 0, 20_000, dtype=torch.float64)
    furthest = (after_all(s) - 1).abs().max()
    assert furthest < 0.125
    assert after_all(torch.tensor(9e-4)) < 0.9


@pytest.mark.parametrize("shape", [(16, 16), (16, 44), (44, 16)])
def test_a_batch_is_its_matrices_one_by_one(shape):
    matrices = gradients(shape, dtype=torch.float32)
    together = orthogonalize(matrices)
    for matrix, one in zip(matrices, together, strict=True):
        torch.testing.assert_close(orthogonalize(matrix[None])[0], one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(16, 16), (16, 64), (64, 16)])
def test_a_gradient_of_few_directions_does_not_explode(shape, dtype):
    """Its largest singular value is the whole norm: rounded to half precision it may lie above what is allowed for."""
    generator = torch.Generator().manual_seed(3)
    for rank in (1, 2, 3):
        left, right = (torch.randn(50, size, rank, generator=generator) for size in shape)
        steps = orthogonalize(left @ right.mT, dtype)
        assert torch.linalg.matrix_norm(steps, 2).max() < 1.3
        assert (torch.linalg.svdvals(steps)[:, :1] > 0.8).all()


def test_a_gradient_of_zeros_moves_nothing():
    assert orthogonalize(torch.zeros(2, 3, 5)).eq(0).all()


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(12, 12), (12, 32), (12, 12), (32, 12)]
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def train(optimizer: torch.optim.Optimizer, matrices: list[nn.Parameter], updates: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(updates):
        for p in matrices:
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in matrices]


def test_with_torchs_coefficients_the_update_is_torchs(monkeypatch):
    """Both in bf16, which torch's always is: 8 bits, so that a step differs by up to 1/50 of its size."""
    monkeypatch.setattr(muon, "COEFFICIENTS", ((3.4445, -4.7750, 2.0315),) * 5)  # Jordan et al. 2024
    monkeypatch.setattr(muon, "HEADROOM", 1.0)  # these polynomials need none
    options = dict(lr=0.1, weight_decay=0.3)
    theirs, ours = parameters(), parameters()
    start = [p.detach().clone() for p in ours]
    wanted = train(torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **options), theirs)
    got = train(Muon(ours, dtype=torch.bfloat16, **options), ours)
    for before, one, other in zip(start, wanted, got, strict=True):
        assert (one - other).norm() < 0.02 * (one - before).norm()
    # in fp32 it is another rounding of the same
    ours = parameters()
    for before, one, other in zip(start, wanted, train(Muon(ours, **options), ours), strict=True):
        assert (one - other).norm() < 0.05 * (one - before).norm()


def test_momentum_decay_and_size_of_a_step_by_hand():
    """Nesterov's momentum, decoupled decay and 0.2 √(longer side), written out in fp64; 1e-10."""
    lr, decay, momentum = 0.1, 0.3, 0.9
    ours = parameters(torch.float64)
    wanted = [p.detach().clone() for p in ours]
    means = [torch.zeros_like(p) for p in wanted]
    got = train(Muon(ours, lr, decay, momentum, torch.float64), ours)
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        for i, weight in enumerate(wanted):
            grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            means[i] = momentum * means[i] + (1 - momentum) * grad
            direction = orthogonalize(((1 - momentum) * grad + momentum * means[i])[None], torch.float64)[0]
            wanted[i] = (1 - lr * decay) * weight - lr * 0.2 * math.sqrt(max(weight.shape)) * direction
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10)


def test_a_matrix_without_a_gradient_stays():
    first, second = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    first.grad = torch.randn(3, 4)
    Muon([first, second], 0.1, 0.5).step()
    assert second.eq(1).all() and not first.eq(1).any()


def test_anything_but_a_matrix_is_refused():
    with pytest.raises(ValueError, match=r"matrices only.*\(4,\).*AdamW"):
        Muon([nn.Parameter(torch.ones(4))], 0.1)
