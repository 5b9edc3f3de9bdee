"""The GPT: its sizes, where it begins, who sees whom, and that a cache changes nothing."""

import math

import pytest
import torch
from families import CONFIGS, TOKENS, V, lively, small_model

from helpers.chat.start import grow_vocabulary
from helpers.model.config import ARCHITECTURES
from helpers.model.gpt import texts_apart
from helpers.train.loss import Loss

# ---- where it begins ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_writes_into_the_stream_starts_smaller(architecture):
    """Standard deviations: 0.02, and 0.02/√(2 layers) for what is added to the stream, to 5 %; biases 0, norms 1."""
    for name, p in small_model(architecture, n_embd=128, n_layer=8).named_parameters():
        if p.ndim < 2:
            assert set(p.tolist()) == {0.0 if name.endswith("bias") else 1.0}
        else:
            wanted = 0.02 / math.sqrt(2 * 8) if "o_proj" in name or "down_proj" in name else 0.02
            assert p.std().item() == pytest.approx(wanted, rel=0.12 if "mlp.gate.w" in name else 0.05), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_seed_gives_the_same_weights(architecture):
    one, two, other = (small_model(architecture, seed) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embed_tokens.weight, other.embed_tokens.weight)


def test_a_router_with_one_choice_learns_from_the_text():
    """Weights scaled to a sum of 1 (as Mixtral's are) would be 1 for a single expert: a gradient of 0."""
    norms = {}
    for scaled in (False, True):
        model = small_model("moe", aux_loss_coef=0.0, normalize_experts=scaled)
        Loss(model)(TOKENS, TOKENS.roll(-1, 1)).objective.backward()
        norms[scaled] = [layer.mlp.gate.weight.grad.norm().item() for layer in model.layers]
    assert min(norms[False]) > 1e-4 * TOKENS.numel() > 100 * max(norms[True])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_acts_in_training_only_on_the_embeddings_and_both_halves_of_every_block(architecture):
    plain, dropping = small_model(architecture), small_model(architecture, dropout=0.3)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    with torch.no_grad():
        truth = plain.eval()(TOKENS)
        assert torch.equal(dropping.eval()(TOKENS), truth) and torch.equal(plain.train()(TOKENS), truth)
        seen = []
        for part in dropping.modules():
            if isinstance(part, torch.nn.Dropout):
                part.register_forward_hook(lambda part, args, out: seen.append(float((out == 0).float().mean())))
        first, second = (dropping.train()(TOKENS) for _ in range(2))
    assert len(seen) == 2 * (1 + 2 * 2) and all(share == pytest.approx(0.3, abs=0.06) for share in seen)
    assert not torch.allclose(first, truth, atol=1e-3) and not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_grows_by_rows_and_keeps_those_it_has(tied):
    model = small_model("llama", tied=tied).eval()
    before = model(TOKENS)
    grow_vocabulary(model, V + 3)
    assert model.config.vocab_size == V + 3 and (model.lm_head.weight is model.embed_tokens.weight) == tied
    torch.testing.assert_close(model(TOKENS)[..., :V], before)
    assert model(torch.tensor([[V + 2]])).shape == (1, 1, V + 3)


# ---- who sees whom ----


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_side_by_side_in_a_row_are_as_alone(name):
    net, ids = lively(name), TOKENS[:2]
    positions = torch.tensor([[*range(5), *range(11)], [*range(12), *range(4)]])
    together = net(ids, positions=positions, visible=texts_apart(positions))
    for row, at in ((0, 5), (1, 12)):
        alone = torch.cat([net(ids[row : row + 1, :at]), net(ids[row : row + 1, at:])], 1)
        torch.testing.assert_close(together[row : row + 1], alone)


def test_nothing_is_seen_behind_it_or_before_its_window():
    net, ids = lively("mistral, a window"), torch.randint(V, (1, 30))
    logits = net(ids)
    changed = ids.clone()
    changed[0, 10] = (ids[0, 10] + 1) % V
    differs = (net(changed) != logits).any(-1)[0].nonzero()[:, 0].tolist()
    assert differs == list(range(10, 10 + 2 * 8 + 1))  # two blocks, each sees nine places: eight back and itself
