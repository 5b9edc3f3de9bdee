"""The filters against transformers' own, bit for bit; the choice against the distribution it draws from."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from helpers.generate import sampling

# few different values, so that there are ties; some tokens removed already; and ordinary floats
VALUES = st.one_of(st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 1.0, 3.0]), st.floats(-30, 30, width=32))
ROWS = 8  # of them 125 examples make 1,000 cases
thousand = settings(max_examples=125)


@st.composite
def logits(draw) -> torch.Tensor:
    vocab_size = draw(st.integers(2, 12))
    row = st.lists(VALUES, min_size=vocab_size, max_size=vocab_size)
    tensor = torch.tensor(draw(st.lists(row, min_size=ROWS, max_size=ROWS)), dtype=torch.float32)
    tensor[:, draw(st.integers(0, vocab_size - 1))] = 0.5  # at least one token is possible
    return tensor


def a_row_each(data, values) -> list:
    return data.draw(st.lists(values, min_size=ROWS, max_size=ROWS))


def noise_for(tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_exponential(tuple(tensor.shape)))


def ids_of(data, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Draw ids (B, width) of the vocabulary; with few different ones they repeat."""
    token = st.integers(0, min(tensor.shape[1], data.draw(st.sampled_from([2, 3, 12]))) - 1)
    ids = a_row_each(data, st.lists(token, min_size=width, max_size=width))
    return torch.tensor(ids, dtype=torch.long).reshape(ROWS, width)


@pytest.mark.parametrize(
    ("filter", "theirs", "values", "most_ids"),
    [
        (sampling.top_k, TopKLogitsWarper, st.integers(1, 30), None),
        (sampling.top_p, TopPLogitsWarper, st.floats(0, 0.999), None),
        (sampling.temperature, TemperatureLogitsWarper, st.floats(0.05, 5), None),
        (sampling.min_p, MinPLogitsWarper, st.floats(0, 1), None),
        (sampling.typical_p, TypicalLogitsWarper, st.floats(0.001, 0.999), None),
        (sampling.repetition_penalty, RepetitionPenaltyLogitsProcessor, st.floats(0.25, 4), 6),
        (sampling.no_repeat_ngram, NoRepeatNGramLogitsProcessor, st.integers(1, 4), 12),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@thousand
@given(st.data(), logits())
def test_a_filter_gives_the_bits_of_transformers(filter, theirs, values, most_ids, data, tensor):
    """With one number, and with a number per row; and the argument is left as it was."""
    settings, before = a_row_each(data, values), tensor.clone()
    ids = ids_of(data, tensor, data.draw(st.integers(0, most_ids))) if most_ids else torch.empty(ROWS, 0).long()
    given = (ids,) if most_ids else ()
    rows = [theirs(value)(ids[i : i + 1], tensor[i : i + 1].clone()) for i, value in enumerate(settings)]
    assert torch.equal(filter(tensor, *given, torch.tensor(settings, dtype=torch.float64)), torch.cat(rows))
    assert torch.equal(filter(tensor, *given, settings[0]), theirs(settings[0])(ids, tensor.clone()))
    assert torch.equal(tensor, before)


@settings(max_examples=50)
@given(st.data(), logits())
def test_no_repeat_ngram_does_not_see_padding(data, tensor):
    """A row padded on the left is masked as without its padding, by transformers, which knows none."""
    rows = a_row_each(data, st.lists(st.integers(0, 1), max_size=7))
    lengths = a_row_each(data, st.integers(0, 4))
    padded = [[-1] * (7 - len(row)) + row for row in rows]
    after = sampling.no_repeat_ngram(tensor, torch.tensor(padded), torch.tensor(lengths))
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        alone = tensor[i : i + 1]
        expected = NoRepeatNGramLogitsProcessor(n)(torch.tensor([row], dtype=torch.long), alone) if n else alone
        assert torch.equal(after[i : i + 1], expected)


@thousand
@given(st.data(), logits())
def test_presence_and_frequency_penalties_are_the_published_formula(data, tensor):
    """mu[j] - c[j] × frequency - float(c[j] > 0) × presence, number by number; what is no token counts for nothing."""
    written = ids_of(data, tensor, data.draw(st.integers(0, 8)))
    presence, frequency = (torch.tensor(a_row_each(data, st.integers(-16, 16))) / 8 for _ in range(2))
    padded = torch.cat([torch.tensor([[-1, 99]]).expand(ROWS, 2), written], dim=1)
    after = sampling.presence_and_frequency(tensor, padded, presence, frequency)
    for i, ids in enumerate(written.tolist()):
        counts = [ids.count(j) for j in range(tensor.shape[1])]
        expected = [
            mu - c * frequency[i].item() - float(c > 0) * presence[i].item()
            for mu, c in zip(tensor[i].tolist(), counts, strict=True)
        ]
        assert after[i].tolist() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=50)
@given(logits())
def test_off_changes_nothing(tensor):
    ids = torch.zeros((ROWS, 1), dtype=torch.long)
    for one, zero in ((1, 0), (torch.ones(ROWS), torch.zeros(ROWS))):
        for after in (
            sampling.temperature(tensor, one),
            sampling.top_p(tensor, one),
            sampling.typical_p(tensor, one),
            sampling.repetition_penalty(tensor, ids, one),
            sampling.top_k(tensor, zero),
            sampling.min_p(tensor, zero),
            sampling.no_repeat_ngram(tensor, ids, zero),
            sampling.presence_and_frequency(tensor, ids, zero, zero),
        ):
            assert torch.equal(after, tensor)
    assert sampling.apply_filters(tensor, ids) is tensor


@settings(max_examples=50)
@given(st.integers(0, 99), logits())
def test_temperature_zero_is_greedy(seed, tensor):
    assert torch.equal(sampling.choose(sampling.temperature(tensor, 0), noise_for(tensor, seed)), tensor.argmax(-1))


def test_settings_at_their_limits():
    """A temperature near 0 does not overflow, a top_k beyond the vocabulary keeps all, top_p = 0 is greedy."""
    tensor = torch.tensor([[50.0, 80.0, -math.inf, 79.0]])
    for t in (5e-324, 1e-30, 1e-7):
        assert sampling.choose(sampling.temperature(tensor, t), noise_for(tensor)).tolist() == [1]
    assert torch.equal(sampling.top_k(tensor, 10**30), tensor)
    assert sampling.top_p(tensor, 0).isfinite().tolist() == [[False, True, False, False]]


EVERY = dict(
    repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, no_repeat_ngram=2,
    temperature=0.7, top_k=30, top_p=0.95, min_p=0.02, typical_p=0.9,
)  # fmt: skip
# as in transformers
IN_ORDER = "repetition_penalty presence_penalty no_repeat_ngram temperature top_k top_p min_p typical_p".split()


def test_no_repeat_ngram_reads_the_whole_text():
    ids, written, seen = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[2]]), torch.tensor([[-1, -1, -1, 0]])
    after = sampling.apply_filters(torch.ones(1, 4), ids, written, seen, no_repeat_ngram=2)
    assert after.tolist() == [[1, -math.inf, 1, 1]]


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="top_z"):
        sampling.apply_filters(torch.zeros(1, 3), torch.zeros((1, 1), dtype=torch.long), top_k=1, top_z=2)


def test_a_row_does_not_depend_on_the_others():
    """Every filter, each row with its own settings: the same bits in a batch of 12 as alone; so is the choice."""
    torch.manual_seed(0)
    rows = 12
    tensor, ids = torch.randn(rows, 60) * 3, torch.randint(-1, 6, (rows, 9)).sort().values  # padded on the left
    allowed, noise = torch.rand(rows, 60) < 0.8, noise_for(tensor)
    settings = {name: value * torch.linspace(0.5, 1, rows, dtype=torch.float64) for name, value in EVERY.items()}
    settings["top_k"], settings["no_repeat_ngram"] = torch.arange(rows) * 3, torch.arange(rows) % 4
    together = list(sampling.steps(tensor, ids, ids[:, 4:], allowed=allowed, **settings))
    chosen = sampling.choose(tensor, noise).tolist()
    assert [name for name, _ in together] == ["constraint", *IN_ORDER]
    for i in range(rows):
        one = slice(i, i + 1)
        own = {name: values[one] for name, values in settings.items()}
        alone = list(sampling.steps(tensor[one], ids[one], ids[one, 4:], allowed=allowed[one], **own))
        for (_, after), (name, expected) in zip(together, alone, strict=True):
            assert torch.equal(after[one], expected), name
        assert sampling.choose(tensor[one], noise[one]).item() == chosen[i]


def test_a_constraint_wins_over_no_repeat_ngram():
    """The only token that a constraint leaves stood there before: it is written again, other rows are not touched."""
    tensor, ids = torch.zeros(2, 4), torch.tensor([[1, 2], [1, 2]])
    allowed = torch.tensor([[False, True, False, False], [True, True, False, False]])
    after = sampling.apply_filters(tensor, ids, allowed=allowed, no_repeat_ngram=1)
    assert after.isfinite().tolist() == [[False, True, False, False], [True, False, False, False]]


def test_choice_follows_the_distribution():
    """100,000 draws: a worse chi-square has a probability of more than 0.1 %; what is removed never comes."""
    torch.manual_seed(0)
    tensor = torch.randn(1, 60) * 1.5
    active = dict(repetition_penalty=1.3, temperature=1.2, top_k=50, top_p=0.97, min_p=0.005)
    tensor = sampling.apply_filters(tensor, torch.arange(0, 60, 7)[None], **active)
    many = tensor.expand(100_000, -1)
    chosen = sampling.choose(many, noise_for(many))
    expected, counts = tensor[0].double().softmax(-1) * len(many), torch.bincount(chosen, minlength=60)
    kept = expected > 0
    assert 20 < kept.sum() < 60 and expected[kept].min() > 5
    assert counts[~kept].sum() == 0
    chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert torch.special.gammaincc((kept.sum() - 1) / 2, chi_square / 2) > 0.001


def test_broken_logits_are_refused():
    for broken in ([[math.nan] * 2], [[-math.inf] * 2], [[1.0, math.nan]], [[1.0, 2.0], [-math.inf] * 2]):
        with pytest.raises(ValueError, match="NaN"):
            sampling.choose(torch.tensor(broken), noise_for(torch.tensor(broken)))
        with pytest.raises(ValueError, match="NaN"):
            sampling.choose_likeliest(torch.tensor(broken))
    assert sampling.choose_likeliest(torch.tensor([[1.0, -math.inf, 1.0], [0.0, 2.0, 2.0]])).tolist() == [0, 1]
