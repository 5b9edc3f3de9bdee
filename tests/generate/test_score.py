"""Room 05: bits per character of documents, against one plain forward pass and against what `explain` says."""

import math

import models
import pytest
import torch

from helpers.generate import explain
from helpers.generate.batch import prompt_ids
from helpers.generate.score import Score, score
from helpers.vocab.tokenizer import decode, encode


def by_hand(net, tok, text):
    """Return the bits of a text that fits into one window, its end included."""
    ids = [*prompt_ids(tok, text), tok.eos_token_id]
    with torch.inference_mode():
        log_p = net(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)  # (T, V)
    return -float(log_p.gather(1, torch.tensor(ids[1:])[:, None]).sum()) / math.log(2)


def test_a_short_text_is_scored_as_one_forward_pass_scores_it(net, tok):
    texts = ["绿萝怎么浇水？", "看土", ""]
    found = list(score(net, tok, texts))
    assert [each.characters for each in found] == [7, 2, 0]
    assert [each.tokens for each in found] == [len(encode(tok, text)) + 1 for text in texts]
    for text, each in zip(texts, found, strict=True):
        assert each.bits == pytest.approx(by_hand(net, tok, text), rel=1e-5)
    assert found[2].per_character == math.inf


def test_a_text_longer_than_the_context_has_the_bits_that_its_writer_had(small, tok):
    text = models.PLANTS * 4
    ids = encode(tok, text)
    assert len(ids) > 3 * models.N_CTX
    (found,) = score(small, tok, [text])
    steps = explain.explain(small, tok, "", [*ids, tok.eos_token_id])
    # the writer never writes special tokens, so its probabilities are a little larger
    assert found.bits == pytest.approx(sum(step.bits for step in steps), rel=0.02) and found.tokens == len(steps)
    assert decode(tok, ids) == text


def test_scores_add_up():
    whole = Score(6.0, 3, 4) + Score(2.0, 1, 4)
    assert whole == Score(8.0, 4, 8) and whole.per_character == 1


def test_a_model_in_training_mode_is_refused(tok):
    net = models.plants_model("gpt2", tok).train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        next(score(net, tok, ["看"]))
