"""The filters against transformers' own, bit for bit; the choice against the distribution it draws from."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
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
    rows, vocab_size = ROWS, draw(st.integers(2, 12))
    values = draw(st.lists(st.lists(VALUES, min_size=vocab_size, max_size=vocab_size), min_size=rows, max_size=rows))
    tensor = torch.tensor(values, dtype=torch.float32)
    tensor[:, draw(st.integers(0, vocab_size - 1))] = 0.5  # at least one token is possible
    return tensor


def rows_of(data, tensor: torch.Tensor, values) -> list:
    return data.draw(st.lists(values, min_size=len(tensor), max_size=len(tensor)))


def noise_for(tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_exponential(tuple(tensor.shape)))


def ids_of(data, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Draw ids (B, width) of the vocabulary; with few different ones they repeat."""
    token = st.integers(0, min(tensor.shape[1], data.draw(st.sampled_from([2, 3, 12]))) - 1)
    ids = rows_of(data, tensor, st.lists(token, min_size=width, max_size=width))
    return torch.tensor(ids, dtype=torch.long).reshape(len(tensor), width)


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


@thousand
@given(st.data(), logits())
def test_top_k_masks_like_transformers(data, tensor):
    same(sampling.top_k, TopKLogitsWarper, tensor, rows_of(data, tensor, st.integers(1, 30)))


@thousand
@given(st.data(), logits())
def test_logit_bias_adds_like_transformers(data, tensor):
    each = st.dictionaries(st.integers(0, tensor.shape[1] - 1), st.floats(-100, 100, width=32), min_size=1)
    biases = rows_of(data, tensor, each)
    ids = torch.zeros(1, 3, dtype=torch.long)
    added = torch.zeros_like(tensor)
    for row, bias in zip(added, biases, strict=True):
        row[list(bias)] = torch.tensor(list(bias.values()))
    expected = [
        SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])(ids, tensor[i : i + 1].clone())
        for i, bias in enumerate(biases)
    ]
    assert torch.equal(sampling.logit_bias(tensor, added), torch.cat(expected))


@thousand
@given(st.data(), logits())
def test_top_p_masks_like_transformers(data, tensor):
    """A top_p above 0 works at all (it once crashed on a name never imported), and masks exactly as the library."""
    same(sampling.top_p, TopPLogitsWarper, tensor, rows_of(data, tensor, st.floats(0, 0.999)))


@thousand
@given(st.data(), logits())
def test_temperature_divides_like_transformers(data, tensor):
    same(sampling.temperature, TemperatureLogitsWarper, tensor, rows_of(data, tensor, st.floats(0.05, 5)))


@thousand
@given(st.data(), logits())
def test_repetition_penalty_is_that_of_transformers(data, tensor):
    ids = ids_of(data, tensor, data.draw(st.integers(1, 6)))
    penalties = rows_of(data, tensor, st.floats(0.25, 4))
    same(sampling.repetition_penalty, RepetitionPenaltyLogitsProcessor, tensor, penalties, ids)


@thousand
@given(st.data(), logits())
def test_min_p_masks_like_transformers(data, tensor):
    same(sampling.min_p, MinPLogitsWarper, tensor, rows_of(data, tensor, st.floats(0, 1)))


@thousand
@given(st.data(), logits())
def test_typical_masks_like_transformers(data, tensor):
    same(sampling.typical_p, TypicalLogitsWarper, tensor, rows_of(data, tensor, st.floats(0.001, 0.999)))


@thousand
@given(st.data(), logits())
def test_no_repeat_ngram_masks_like_transformers(data, tensor):
    ids = ids_of(data, tensor, data.draw(st.integers(0, 12)))
    same(sampling.no_repeat_ngram, NoRepeatNGramLogitsProcessor, tensor, rows_of(data, tensor, st.integers(1, 4)), ids)


@settings(max_examples=50)
@given(st.data(), logits())
def test_no_repeat_ngram_does_not_see_padding(data, tensor):
    """A row padded on the left is masked as without its padding, by transformers, which knows none."""
    rows = rows_of(data, tensor, st.lists(st.integers(0, 1), max_size=7))
    lengths = rows_of(data, tensor, st.integers(0, 4))
    padded = [[-1] * (7 - len(row)) + row for row in rows]
    after = sampling.no_repeat_ngram(tensor, torch.tensor(padded), torch.tensor(lengths))
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        alone = tensor[i : i + 1]
        expected = NoRepeatNGramLogitsProcessor(n)(torch.tensor([row], dtype=torch.long), alone) if n else alone
        assert torch.equal(after[i : i + 1], expected)


@thousand
@given(st.data(), logits())
def test_bans_mask_like_transformers(data, tensor):
    """By either of its processors: one mask for all rows, or a mask a row."""
    size = tensor.shape[1]
    bans = rows_of(data, tensor, st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    masks = torch.stack([torch.tensor([token in tokens for token in range(size)]) for tokens in bans])
    after, ids = sampling.ban(tensor, masks), torch.zeros((1, 1), dtype=torch.long)
    for i, tokens in enumerate(bans):
        alone = tensor[i : i + 1]
        assert torch.equal(after[i : i + 1], SuppressTokensLogitsProcessor(tokens)(ids, alone))
        assert torch.equal(after[i : i + 1], NoBadWordsLogitsProcessor([[token] for token in tokens])(ids, alone))
    assert torch.equal(sampling.ban(tensor, masks[0]), SuppressTokensLogitsProcessor(bans[0])(ids, tensor))


@thousand
@given(st.data(), logits())
def test_presence_and_frequency_penalties_are_the_published_formula(data, tensor):
    """mu[j] - c[j] × frequency - float(c[j] > 0) × presence, number by number."""
    written = ids_of(data, tensor, data.draw(st.integers(0, 8)))
    padding = torch.full((len(tensor), 2), -1)
    presences, frequencies = (rows_of(data, tensor, st.integers(-16, 16)) for _ in range(2))
    presence, frequency = torch.tensor(presences) / 8, torch.tensor(frequencies) / 8
    after = sampling.presence_and_frequency(tensor, torch.cat([padding, written], dim=1), presence, frequency)
    for i, ids in enumerate(written.tolist()):
        for j, mu in enumerate(tensor[i].tolist()):
            count = ids.count(j)
            expected = mu - count * frequency[i].item() - float(count > 0) * presence[i].item()
            assert after[i, j].item() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=50)
@given(logits())
def test_off_changes_nothing(tensor):
    ids = torch.zeros((len(tensor), 1), dtype=torch.long)
    off = torch.ones(len(tensor))
    for value in (1, off):
        assert torch.equal(sampling.temperature(tensor, value), tensor)
        assert torch.equal(sampling.top_p(tensor, value), tensor)
        assert torch.equal(sampling.repetition_penalty(tensor, ids, value), tensor)
        assert torch.equal(sampling.typical_p(tensor, value), tensor)
    for value in (0, off * 0):
        assert torch.equal(sampling.top_k(tensor, value), tensor)
        assert torch.equal(sampling.min_p(tensor, value), tensor)
        assert torch.equal(sampling.no_repeat_ngram(tensor, ids, value), tensor)
        assert torch.equal(sampling.presence_and_frequency(tensor, ids, value, value), tensor)
    assert torch.equal(sampling.ban(tensor, torch.zeros(tensor.shape[1], dtype=torch.bool)), tensor)
    assert sampling.filtered(tensor, ids) is tensor


@settings(max_examples=50)
@given(st.data(), logits())
def test_temperature_zero_is_greedy(data, tensor):
    noise = noise_for(tensor, seed=data.draw(st.integers(0, 99)))
    assert torch.equal(sampling.choose(sampling.temperature(tensor, 0), noise), tensor.argmax(-1))


@pytest.mark.parametrize("t", [5e-324, 1e-30, 1e-7])
def test_a_temperature_near_zero_does_not_overflow(t):
    tensor = torch.tensor([[50.0, 80.0, -math.inf, 79.0]])
    assert sampling.choose(sampling.temperature(tensor, t), noise_for(tensor)).tolist() == [1]


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


EVERY = dict(
    repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, no_repeat_ngram=2,
    temperature=0.7, top_k=30, top_p=0.95, min_p=0.02, typical_p=0.9,
)  # fmt: skip
IN_ORDER = "repetition_penalty presence_penalty no_repeat_ngram temperature top_k top_p min_p typical_p".split()


def test_filters_come_in_the_order_of_transformers():
    torch.manual_seed(0)
    tensor, ids = torch.randn(2, 50) * 4, torch.randint(0, 50, (2, 7))
    allowed = torch.rand(2, 50) < 0.9
    expected = [tensor.masked_fill(~allowed, -torch.inf)]
    for processor in (
        RepetitionPenaltyLogitsProcessor(1.3),
        NoRepeatNGramLogitsProcessor(2),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(30),
        TopPLogitsWarper(0.95),
        MinPLogitsWarper(0.02),
        TypicalLogitsWarper(0.9),
    ):
        expected.append(processor(ids, expected[-1]))
    active = {name: value for name, value in EVERY.items() if name not in ("presence_penalty", "frequency_penalty")}
    steps = list(sampling.steps(tensor, ids, allowed=allowed, **active))
    assert [name for name, _ in steps] == ["constraint", *(name for name in IN_ORDER if name != "presence_penalty")]
    for (_, after), wanted in zip(steps, expected, strict=True):
        assert torch.equal(after, wanted)
    assert torch.equal(sampling.filtered(tensor, ids, allowed=allowed, **active), expected[-1])


def test_presence_counts_only_what_the_row_wrote():
    tensor, ids, written = torch.zeros(1, 4), torch.tensor([[0, 1, 2]]), torch.tensor([[2]])
    assert sampling.filtered(tensor, ids, written, presence_penalty=1.0).tolist() == [[0, 0, -1, 0]]
    assert sampling.filtered(tensor, ids, written, frequency_penalty=torch.tensor([2.0])).tolist() == [[0, 0, -2, 0]]
    assert sampling.filtered(tensor, ids, presence_penalty=1.0).tolist() == [[-1, -1, -1, 0]]


def test_each_filter_that_looks_back_reads_its_own_ids():
    """The n-grams are of the whole text, the repetition penalty is for what the model sees."""
    ids, written, seen = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[2, 0]]), torch.tensor([[-1, -1, -1, 0]])
    active = dict(repetition_penalty=2.0, presence_penalty=1.0, no_repeat_ngram=2)
    after = sampling.filtered(torch.ones(1, 4), ids, written, seen, **active)
    assert after.tolist() == [[-0.5, -math.inf, 0, 1]]


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="no filter has the name top_z: see sampling.FILTERS"):
        sampling.filtered(torch.zeros(1, 3), torch.zeros((1, 1), dtype=torch.long), top_k=1, top_z=2)


def test_a_row_does_not_depend_on_the_others():
    """Every filter, each row with its own settings: the same bits in a batch of 12 as alone."""
    torch.manual_seed(0)
    rows = 12
    tensor, ids = torch.randn(rows, 60) * 3, torch.randint(-1, 6, (rows, 9)).sort().values  # padded on the left
    allowed = torch.rand(rows, 60) < 0.8
    settings = {name: value * torch.linspace(0.5, 1, rows, dtype=torch.float64) for name, value in EVERY.items()}
    settings["top_k"], settings["no_repeat_ngram"] = torch.arange(rows) * 3, torch.arange(rows) % 4
    together = list(sampling.steps(tensor, ids, ids[:, 4:], allowed=allowed, **settings))
    assert [name for name, _ in together] == ["constraint", *IN_ORDER]
    for i in range(rows):
        one = slice(i, i + 1)
        own = {name: values[one] for name, values in settings.items()}
        alone = list(sampling.steps(tensor[one], ids[one], ids[one, 4:], allowed=allowed[one], **own))
        for (_, after), (name, expected) in zip(together, alone, strict=True):
            assert torch.equal(after[one], expected), name


def test_a_constraint_wins_over_no_repeat_ngram():
    """The only token that a constraint leaves stood there before: it is written again, other rows are not touched."""
    tensor, ids = torch.zeros(2, 4), torch.tensor([[1, 2], [1, 2]])
    allowed = torch.tensor([[False, True, False, False], [True, True, False, False]])
    after = sampling.filtered(tensor, ids, allowed=allowed, no_repeat_ngram=1)
    assert after.isfinite().tolist() == [[False, True, False, False], [True, False, False, False]]


def test_choice_follows_the_distribution():
    """100,000 draws: a worse chi-square has a probability of more than 0.1 %; what is removed never comes."""
    torch.manual_seed(0)
    tensor = torch.randn(1, 60) * 1.5
    active = dict(repetition_penalty=1.3, temperature=1.2, top_k=50, top_p=0.97, min_p=0.005)
    tensor = sampling.filtered(tensor, torch.arange(0, 60, 7)[None], **active)
    many = tensor.expand(100_000, -1)
    chosen = sampling.choose(many, noise_for(many))
    expected, counts = tensor[0].double().softmax(-1) * len(many), torch.bincount(chosen, minlength=60)
    kept = expected > 0
    assert 20 < kept.sum() < 60 and expected[kept].min() > 5
    assert counts[~kept].sum() == 0
    chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert torch.special.gammaincc((kept.sum() - 1) / 2, chi_square / 2) > 0.001


@settings(max_examples=200)
@given(st.integers(0, 999), logits())
def test_the_first_to_arrive_is_chosen(seed, tensor):
    noise = noise_for(tensor, seed)
    assert torch.equal(sampling.choose(tensor, noise), (noise / tensor.double().softmax(-1)).argmin(-1))


def test_what_was_removed_never_arrives():
    tensor = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    noise = torch.tensor([[1e-300, 700.0, 1e-300, 800.0, 1e-300]], dtype=torch.float64)
    assert sampling.choose(tensor, noise).tolist() == [1]


def test_choice_of_a_row_does_not_depend_on_the_others():
    torch.manual_seed(0)
    tensor = torch.randn(16, 40)
    noise = noise_for(tensor)
    alone = [sampling.choose(tensor[i : i + 1], noise[i : i + 1]).item() for i in range(16)]
    assert sampling.choose(tensor, noise).tolist() == alone


def test_the_last_digits_of_logits_hardly_ever_matter():
    """They change with the rows of a batch and the number of threads. On a line, thousands of borders would move."""
    torch.manual_seed(0)
    tensor = torch.randn(1, 10_000).expand(1000, -1)
    shaken = tensor + 1e-3 * torch.randn(1, 10_000)
    noise, draws = noise_for(tensor), torch.rand(1000, dtype=torch.float64)
    lines = [torch.searchsorted(each[0].double().softmax(-1).cumsum(-1), draws) for each in (tensor, shaken)]
    races = [sampling.choose(each, noise) for each in (tensor, shaken)]
    by_line, by_race = (int((before != after).sum()) for before, after in (lines, races))
    assert by_race < by_line / 5, (by_race, by_line)


def test_broken_logits_are_refused():
    for broken in (math.nan, -math.inf):
        with pytest.raises(ValueError, match="NaN"):
            sampling.choose(torch.full((1, 3), broken), noise_for(torch.zeros(1, 3)))
        with pytest.raises(ValueError, match="NaN"):
            sampling.likeliest(torch.tensor([[1.0, 2.0], [broken, broken]]))
    with pytest.raises(ValueError, match="NaN"):
        sampling.likeliest(torch.tensor([[1.0, math.nan]]))
    assert sampling.likeliest(torch.tensor([[1.0, -math.inf, 1.0], [0.0, 2.0, 2.0]])).tolist() == [0, 1]


# ---- noise made on a GPU ----


def splitmix(state: int, count: int) -> list[int]:
    """SplitMix64 as its authors wrote it down: the first numbers from a state."""
    numbers = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        numbers.append(z ^ (z >> 31))
    return numbers


def test_noise_is_a_hash_of_key_draw_and_place():
    """The numbers of SplitMix64, whose first from 1234567 is known, started by one of its numbers."""
    assert splitmix(1234567, 1) == [6457827717110365317]
    keys, draws = torch.tensor([5, 2**63 - 1]), torch.tensor([0, 7])
    noise = sampling.exponential(keys, draws, 3)
    for row, (key, draw) in enumerate(zip(keys.tolist(), draws.tolist(), strict=True)):
        start = splitmix(key, draw + 1)[-1]
        wanted = [-math.log(((bits >> 12) + 0.5) * 2**-52) for bits in splitmix(start, 3)]
        assert noise[row].tolist() == pytest.approx(wanted, rel=1e-12)


def test_noise_is_exponential_and_rows_and_draws_do_not_depend_on_each_other():
    """Kolmogorov and Smirnov's distance at 0.1 %; correlations within four standard deviations."""
    n = 200_000
    noise = sampling.exponential(torch.tensor([0, 0, 1, 2**62]), torch.tensor([0, 1, 0, 0]), n)
    for row in noise:
        cumulated = 1 - (-row.sort().values).exp()
        at = torch.arange(1, n + 1, dtype=torch.float64) / n
        assert float((cumulated - at).abs().max()) < 1.95 / n**0.5
    shifted = torch.cat([noise, noise[:1].roll(1, 1)])  # and a number with its neighbour
    correlations = torch.corrcoef(shifted) - torch.eye(5, dtype=torch.float64)
    assert float(correlations.abs().max()) < 4 / n**0.5
    assert noise.unique().numel() == noise.numel() and float(noise.min()) > 0


def test_a_rows_noise_is_its_own():
    alone = sampling.exponential(torch.tensor([9]), torch.tensor([4]), 50)
    among = sampling.exponential(torch.tensor([1, 9, 9]), torch.tensor([4, 4, 5]), 50)
    assert torch.equal(among[1:2], alone) and not torch.equal(among[2:], alone)


def test_tokens_are_drawn_with_their_probabilities():
    """100,000 races between three tokens: frequencies within four standard deviations."""
    n, p = 100_000, torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    noise = sampling.exponential(torch.full((n,), 11), torch.arange(n), 3)
    counts = sampling.choose(p.log().expand(n, 3), noise).bincount(minlength=3)
    assert ((counts / n - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()
