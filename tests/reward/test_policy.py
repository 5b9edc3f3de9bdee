"""Log-probabilities of endings are those of a plain forward pass; KL is that of brute force. Gradients: test_trl.py."""

import math

import pytest
import torch
from chats import characters_tokenizer, tiny_model

from helpers.reward import policy

TOK = characters_tokenizer()
BRANCHES = [
    ([1, 20, 21, 22, 23], [[30, 31, 32], [30, 33], [2]]),
    ([1, 24], [[40, 41, 42, 43, 44, 45]]),
    ([1, 25, 26, 27, 28, 29, 30, 31], [[50], [51, 52]]),
]


def naive(model, opening, ending):
    ids = torch.tensor([[*opening, *ending]])
    return model(ids)[0, len(opening) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "moe"])
def test_one_pass_over_branches_equals_plain_passes(architecture):
    model = tiny_model(TOK, architecture).double().eval()
    scored = policy.score_endings(model, BRANCHES)
    alone = [naive(model, opening, ending) for opening, endings in BRANCHES for ending in endings]
    torch.testing.assert_close(scored.log_p, torch.cat(alone), rtol=0, atol=1e-12)
    lengths = [len(ending) for _, endings in BRANCHES for ending in endings]
    assert scored.ending.tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]
    wanted = torch.tensor([i for _, endings in BRANCHES for ending in endings for i in ending])
    assert torch.equal(scored.chosen, scored.log_p.gather(1, wanted[:, None])[:, 0])


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_padded_places_may_lie_beyond_the_window(architecture):
    """Each text fits into 128 positions; the longest opening with the longest ending would not."""
    model = tiny_model(TOK, architecture).double().eval()
    branches = [([1] + [20, 21, 22] * 33, [[30, 31]]), ([1, 24], [[40, 41, 42] * 20])]
    alone = [naive(model, opening, ending) for opening, endings in branches for ending in endings]
    torch.testing.assert_close(policy.score_endings(model, branches).log_p, torch.cat(alone), rtol=0, atol=1e-12)


def test_kl_and_entropy_of_a_row():
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    by_hand = 0.5 * math.log(2) + 0 + 0.25 * math.log(0.5)
    assert policy.kl(p.log(), q.log()).item() == pytest.approx(by_hand)
    assert policy.kl(p.log(), p.log()).item() == 0
    assert policy.entropy(p.log()).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
