"""Room 04: dropout where GPT-2 has it, in the models whose library knows it for attention weights only."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import TOK, tiny
from transformers import AutoModelForCausalLM

from helpers.train import dropout
from helpers.train.model import config_from_settings, load_pretrained
from helpers.train.settings import TrainSettings

INPUTS = torch.randint(len(TOK), (4, 8), generator=torch.Generator().manual_seed(0))


# ---- the masks ----


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.25, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p):
    torch.manual_seed(0)
    dropped = dropout.dropout(torch.ones(1000, 1001), p)
    share = float((dropped == 0).float().mean())
    assert share == pytest.approx(round(256 * p) / 256, abs=4 * (p * (1 - p) / 1e6) ** 0.5)
    assert float(dropped.mean()) == pytest.approx(1, abs=5 * (p / (1 - p) / 1e6) ** 0.5)
    assert len(dropped.unique()) == 2


@given(st.floats(1e-6, 0.999), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans())
def test_any_share_and_shape_gives_zeros_and_one_multiple(p, shape, half):
    dtype = torch.bfloat16 if half else torch.float32
    x = torch.full(shape, 2.0, dtype=dtype)
    found = dropout.dropout(x, p)
    kept = found[found != 0]
    assert found.shape == x.shape and found.dtype == dtype and bool((kept == kept.max()).all() if len(kept) else True)
    assert not len(kept) or float(kept.max()) > 2


def test_places_are_dropped_without_regard_to_each_other():
    """Eight of them share a random number: no two of its bytes may go together."""
    torch.manual_seed(0)
    gone = (dropout.dropout(torch.ones(100_000, 8), 0.5) == 0).double()
    together = torch.corrcoef(gone.T) - torch.eye(8, dtype=torch.float64)
    assert float(together.abs().max()) < 5 / 100_000**0.5


def test_the_gradient_passes_where_the_number_passed():
    torch.manual_seed(0)
    x = torch.randn(64, 64, requires_grad=True)
    found = dropout.dropout(x, 0.3)
    found.sum().backward()
    torch.testing.assert_close(x.grad, found.detach() / x.detach())


# ---- the models ----


@pytest.mark.parametrize("architecture", ["llama", "moe"])
def test_it_acts_in_training_only_and_leaves_the_weights_alone(architecture):
    plain, dropping = tiny(architecture=architecture), tiny(architecture=architecture, dropout=0.3)
    assert all(map(torch.equal, plain.state_dict().values(), dropping.state_dict().values()))
    assert list(plain.state_dict()) == list(dropping.state_dict())
    with torch.no_grad():
        truth = plain.eval()(INPUTS).logits
        assert torch.equal(dropping.eval()(INPUTS).logits, truth)
        first, second = (dropping.train()(INPUTS).logits for _ in range(2))
    assert not torch.allclose(first, truth, atol=1e-3) and not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "moe"])
def test_it_acts_on_the_embeddings_and_on_both_halves_of_every_block(monkeypatch, architecture):
    seen = []
    monkeypatch.setattr(dropout, "dropout", lambda x, p: seen.append((tuple(x.shape), p)) or x)
    tiny(architecture=architecture, dropout=0.3).train()(INPUTS)
    assert seen == [((4, 8, 16), 0.3)] * (1 + 2 * 2)


def test_the_mean_of_many_passes_through_a_linear_part_is_the_pass_without():
    """An independent reference: what is dropped before a linear map averages out, or the scale is wrong."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, 64), torch.randn(64, 8)
    mean = torch.stack([dropout.dropout(x, 0.25) @ weight for _ in range(20_000)]).mean(0)
    spread = float(((x.square() @ weight.square()) * (0.25 / 0.75) / 20_000).sqrt().max())
    assert torch.allclose(mean, x @ weight, atol=5 * spread)


def test_a_saved_model_loads_in_the_library_and_drops_again_when_it_is_trained_further(tmp_path):
    model = tiny(architecture="llama", dropout=0.3)
    model.save_pretrained(tmp_path)
    plain, further = AutoModelForCausalLM.from_pretrained(tmp_path), load_pretrained(str(tmp_path), TOK, 8)
    with torch.no_grad():
        assert torch.equal(plain.eval()(INPUTS).logits, model.eval()(INPUTS).logits)
        assert torch.equal(plain.train()(INPUTS).logits, plain.eval()(INPUTS).logits)  # the library does not know it
        assert not torch.equal(further.train()(INPUTS).logits, further.eval()(INPUTS).logits)


def test_a_copy_drops_as_its_model_does():
    model = tiny(architecture="llama", dropout=0.3).train()
    other = copy.deepcopy(model)
    results = []
    for each in (model, other):
        torch.manual_seed(0)
        results.append(each(INPUTS).logits.detach())
    assert torch.equal(*results)


def test_what_is_not_decided_yet_drops_nothing():
    """The rules measure a model's speed before they know how often it reads its text."""
    config = config_from_settings(TrainSettings(n_embd=16, n_layer=2, n_head=2), TOK, 8)
    assert config.resid_pdrop == config.embd_pdrop == 0


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1, -2.0, float("nan")])
def test_a_share_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="dropout is .*: give a fraction"):
        TrainSettings(dropout=value)
