"""The filters against transformers' own, bit for bit; the choice against the distribution it draws from."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from helpers import sampling

# few different values, so that there are ties; some tokens removed already; and ordinary floats
VALUES = st.one_of(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 1.0, 3.0]), st.floats(-30, 30, width=32))


@st.composite
def logits(draw, max_rows: int = 4) -> torch.Tensor:
    rows, vocab_size = draw(st.integers(1, max_rows)), draw(st.integers(2, 24))
    values = draw(st.lists(st.lists(VALUES, min_size=vocab_size, max_size=vocab_size), min_size=rows, max_size=rows))
    tensor = torch.tensor(values, dtype=torch.float32)
    tensor[:, draw(st.integers(0, vocab_size - 1))] = 0.5  # at least one token is possible
    return tensor


def rows_of(data, tensor: torch.Tensor, values) -> list:
    return data.draw(st.lists(values, min_size=len(tensor), max_size=len(tensor)))


def same(filter, hf, tensor: torch.Tensor, per_row: list, ids: torch.Tensor | None = None) -> None:
    """A filter with one number, and with a number a row, gives the bits of transformers' processor."""
    arguments = () if ids is None else (ids,)
    expected = [
        hf(value)(ids if ids is None else ids[i : i + 1], tensor[i : i + 1].clone()) for i, value in enumerate(per_row)
    ]
    before = tensor.clone()
    assert torch.equal(filter(tensor, *arguments, torch.tensor(per_row, dtype=torch.float64)), torch.cat(expected))
    alone = hf(per_row[0])(ids, tensor.clone())
    assert torch.equal(filter(tensor, *arguments, per_row[0]), alone)
    assert torch.equal(tensor, before)  # pure: the argument is left as it was


@settings(max_examples=300, deadline=None)
@given(st.data(), logits())
def test_top_k_masks_like_transformers(data, tensor):
    same(sampling.top_k, TopKLogitsWarper, tensor, rows_of(data, tensor, st.integers(1, 30)))


@settings(max_examples=300, deadline=None)
@given(st.data(), logits())
def test_top_p_masks_like_transformers(data, tensor):
    """A top_p above 0 works at all (it once crashed on a name never imported), and masks exactly as the library."""
    same(sampling.top_p, TopPLogitsWarper, tensor, rows_of(data, tensor, st.floats(0, 0.999)))


@settings(max_examples=300, deadline=None)
@given(st.data(), logits())
def test_temperature_divides_like_transformers(data, tensor):
    same(sampling.temperature, TemperatureLogitsWarper, tensor, rows_of(data, tensor, st.floats(0.05, 5)))


@settings(max_examples=300, deadline=None)
@given(st.data(), logits())
def test_repetition_penalty_is_that_of_transformers(data, tensor):
    width = data.draw(st.integers(1, 6))
    token = st.integers(0, tensor.shape[1] - 1)
    ids = torch.tensor(rows_of(data, tensor, st.lists(token, min_size=width, max_size=width)))
    penalties = rows_of(data, tensor, st.floats(0.25, 4))
    same(sampling.repetition_penalty, RepetitionPenaltyLogitsProcessor, tensor, penalties, ids)


@settings(max_examples=100, deadline=None)
@given(logits())
def test_off_changes_nothing(tensor):
    ids = torch.zeros((len(tensor), 1), dtype=torch.long)
    off = torch.ones(len(tensor))
    for value in (1, off):
        assert torch.equal(sampling.temperature(tensor, value), tensor)
        assert torch.equal(sampling.top_p(tensor, value), tensor)
        assert torch.equal(sampling.repetition_penalty(tensor, ids, value), tensor)
    for value in (0, off * 0):
        assert torch.equal(sampling.top_k(tensor, value), tensor)
    assert sampling.filtered(tensor, ids) is tensor


@settings(max_examples=100, deadline=None)
@given(st.data(), logits())
def test_temperature_zero_is_greedy(data, tensor):
    draws = torch.tensor(rows_of(data, tensor, st.floats(0, 1, exclude_max=True)), dtype=torch.float64)
    assert torch.equal(sampling.choose(sampling.temperature(tensor, 0), draws), tensor.argmax(-1))


@pytest.mark.parametrize("t", [5e-324, 1e-30, 1e-7])
def test_a_temperature_near_zero_does_not_overflow(t):
    tensor = torch.tensor([[50.0, 80.0, -math.inf, 79.0]])
    assert sampling.choose(sampling.temperature(tensor, t), torch.tensor([0.99])).tolist() == [1]


def test_top_k_beyond_any_vocabulary_keeps_all():
    tensor = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(sampling.top_k(tensor, 10**30), tensor)


def test_top_p_zero_is_greedy():
    tensor = torch.tensor([[0.1, 2.0, 1.0], [3.0, 0.0, -1.0]])
    assert sampling.top_p(tensor, 0).isfinite().tolist() == [[False, True, False], [True, False, False]]


def test_repetition_penalty_never_makes_a_repeat_more_likely():
    """Dividing a negative logit raises it: a penalty that always divides rewards the repeat."""
    tensor = torch.tensor([[-4.0, -1.0, 2.0, 0.0]])
    after = sampling.repetition_penalty(tensor, torch.tensor([[0, 1, 2, 3]]), 1.5)
    assert (after <= tensor).all() and after.tolist() == [[-6.0, -1.5, pytest.approx(4 / 3), 0.0]]


def test_repetition_penalty_ignores_padding_and_counts_a_token_once():
    tensor = torch.tensor([[1.0, 1.0, 1.0]])
    after = sampling.repetition_penalty(tensor, torch.tensor([[-1, -1, 1, 1, 99]]), 2.0)
    assert after.tolist() == [[1.0, 0.5, 1.0]]


def test_filters_come_in_the_order_of_transformers():
    torch.manual_seed(0)
    tensor, ids = torch.randn(2, 50) * 4, torch.randint(0, 50, (2, 7))
    expected = tensor.clone()
    for processor in (
        RepetitionPenaltyLogitsProcessor(1.3),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(20),
        TopPLogitsWarper(0.9),
    ):
        expected = processor(ids, expected)
    assert torch.equal(sampling.filtered(tensor, ids, t=0.7, k=20, p=0.9, penalty=1.3), expected)


def test_choice_follows_the_distribution():
    """40,000 draws: chi-square with 5 degrees of freedom stays below 20.5 (99.9 %); what is removed never comes."""
    tensor = sampling.top_k(torch.tensor([[2.0, -1.0, 0.5, 0.5, 1.5, -8.0, 0.0]]), 6)
    draws = torch.rand(40_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = sampling.choose(tensor.expand(len(draws), -1), draws)
    expected = tensor[0].softmax(-1) * len(draws)
    counts = torch.bincount(chosen, minlength=7)
    assert counts[5] == 0
    kept = expected > 0
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < 20.5


def test_choice_at_the_edges_of_the_draw():
    tensor = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    draws = torch.tensor([0.0, 0.5 - 1e-12, 0.5 + 1e-12, 1 - 2**-53], dtype=torch.float64)
    assert sampling.choose(tensor.expand(4, -1), draws).tolist() == [1, 1, 3, 3]


def test_choice_of_a_row_does_not_depend_on_the_others():
    torch.manual_seed(0)
    tensor, draws = torch.randn(16, 40), torch.rand(16, dtype=torch.float64)
    alone = [sampling.choose(tensor[i : i + 1], draws[i : i + 1]).item() for i in range(16)]
    assert sampling.choose(tensor, draws).tolist() == alone


def test_broken_logits_are_refused():
    for broken in (math.nan, -math.inf):
        with pytest.raises(ValueError, match="NaN"):
            sampling.choose(torch.full((1, 3), broken), torch.tensor([0.5]))
