"""What is found out about a text afterwards is what the generator had, and what the plainest loop computes; scores."""

import json
import math

import pytest
import torch
from families import as_library
from models import N_CTX, PLANTS, plants_model

from helpers.generate import explain, generate, sampling
from helpers.generate.batch import banned, prompt_ids, window_start
from helpers.generate.settings import Settings
from helpers.vocab import tokenizer

EVERY = Settings(
    max_new_tokens=3 * N_CTX, temperature=0.9, top_k=60, top_p=0.95, min_p=0.002, typical_p=0.98, seed=5, logprobs=4,
    repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, no_repeat_ngram=3,
)  # fmt: skip


@torch.inference_mode()
def test_it_sees_what_the_plainest_loop_sees(net, tok):
    """Every figure of every filter, against one full forward pass a token and one filter at a time."""
    prompt = "龟背竹喜欢"
    sample = generate.generate(net, tok, prompt, EVERY)[0]
    steps = explain.explain_text(net, tok, prompt, sample.tokens, EVERY)
    ids = prompt_ids(tok, prompt)
    written = []
    names = ["repetition_penalty", "presence_penalty", "no_repeat_ngram", "temperature", "top_k", "top_p", "min_p",
             "typical_p"]  # fmt: skip
    for token, step in zip(sample.tokens, steps, strict=True):
        window = ids[window_start(len(ids), N_CTX) :]
        own, whole, seen = torch.tensor([written], dtype=torch.long), torch.tensor([ids]), torch.tensor([window])
        logits = net(seen)[:, -1]
        logits = logits.masked_fill(banned(net, tok), -torch.inf)
        p = logits.softmax(-1)[0]
        assert step.probability == pytest.approx(float(p[token]), abs=1e-4)
        assert step.rank == 1 + int((p > p[token]).sum())
        assert step.bits == pytest.approx(-math.log2(p[token]), abs=1e-3)
        after = [
            sampling.repetition_penalty(logits, seen, 1.2),
            lambda x, own=own: sampling.presence_and_frequency(x, own, 0.3, 0.2),
            lambda x, whole=whole: sampling.no_repeat_ngram(x, whole, 3),
            lambda x: sampling.temperature(x, 0.9),
            lambda x: sampling.top_k(x, 60),
            lambda x: sampling.top_p(x, 0.95),
            lambda x: sampling.min_p(x, 0.002),
            lambda x: sampling.typical_p(x, 0.98),
        ]
        assert [filter.name for filter in step.filters] == names
        for filter, do in zip(step.filters, after, strict=True):
            new = do(logits) if callable(do) else do
            gone = logits.isfinite() & ~new.isfinite()
            assert filter.removed == int(gone.sum())
            assert filter.lost == pytest.approx(float(logits.softmax(-1)[gone].sum()), abs=1e-4)
            assert filter.chosen == pytest.approx(float(new.softmax(-1)[0, token]), abs=1e-4)
            assert len(filter.likeliest) == min(5, filter.removed)
            logits = new
        assert step.drawn_with == step.filters[-1].chosen > 0
        ids.append(token)
        written.append(token)
    assert sum(filter.removed > 0 for step in steps for filter in step.filters) > len(steps)


def test_without_filters_the_bytes_of_a_character_become_one(small, tok):
    tokens = [*tokenizer.encode(tok, "龟背竹🌱水"), tok.eos_token_id]
    steps = explain.explain_text(small, tok, "水", tokens)
    assert [step.text for step in steps] == ["龟背竹", "", "", "", "🌱", "水", ""]
    assert all(step.filters == () and step.drawn_with == step.probability for step in steps)
    assert explain.explain_text(small, tok, "水", []) == []


def test_a_token_that_another_filter_would_have_removed_has_no_chance_after_it(small, tok):
    """What would greedy decoding have said of a sampled text?"""
    greedy, wild = Settings(max_new_tokens=6, temperature=0.0), Settings(max_new_tokens=6, temperature=50.0, seed=1)
    tokens = [token for each in (greedy, wild) for token in generate.generate(small, tok, "水", each)[0].tokens]
    steps = explain.explain_text(small, tok, "水", tokens, greedy)
    for step in steps:
        (filter,) = step.filters
        assert filter.name == "temperature" and filter.chosen == step.drawn_with == float(step.rank == 1)
    assert {step.drawn_with for step in steps} == {0.0, 1.0}


@pytest.mark.parametrize(("temperature", "name"), [(1.0, "top_p"), (2.0, "top_p"), (0.0, "temperature")])
def test_what_makes_a_text_greedy_is_named(small, tok, temperature, name):
    settings = Settings(max_new_tokens=4, temperature=temperature, top_p=0)
    tokens = generate.generate(small, tok, "水", settings)[0].tokens
    for step in explain.explain_text(small, tok, "水", tokens, settings):
        assert [filter.name for filter in step.filters] == [name] and step.drawn_with == 1


def test_json_says_the_same(small, tok):
    steps = explain.explain_text(small, tok, "水", tokenizer.encode(tok, "浇水🌱"), Settings(top_k=3))
    read = json.loads(explain.to_json(steps), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [row["probability"] for row in read] == [step.probability for step in steps]
    assert read[0]["filters"][0]["name"] == "top_k" and read[0]["alternatives"][0] == [*steps[0].alternatives[0]]
    assert read[0]["drawn_with"] == steps[0].drawn_with


def test_tokens_that_no_text_has_are_refused_in_words(small, tok):
    for token in (tok.pad_token_id, len(tok), -1, 10**6):
        with pytest.raises(ValueError, match="never written"):
            explain.explain_text(small, tok, "", [token])


def test_a_model_in_training_mode_is_refused(tok):
    net = plants_model("llama", tok).train()
    ids = tokenizer.encode(tok, "水")
    for do in (
        lambda: explain.explain_text(net, tok, "", ids),
        lambda: explain.attentions(net, tok, "水"),
    ):
        with pytest.raises(ValueError, match=r"model\.eval\(\)"):
            do()


# ---- attention ----


@torch.inference_mode()
def test_attention_is_that_of_the_library(net, tok):
    """softmax(q k / √(head size)) under the causal mask: as the library tells it."""
    names, weights = explain.attentions(net, tok, "绿萝怎么浇水")
    ids = torch.tensor([prompt_ids(tok, "绿萝怎么浇水")])
    assert names == ["<bos>", "绿萝", "怎么", "浇水"]
    expected = as_library(net)(ids, output_attentions=True).attentions  # L × (1, H, T, T)
    torch.testing.assert_close(weights, torch.cat(expected))
    assert weights.shape == (2, 4, 4, 4)


def test_attention_leaves_the_model_as_it_was(net, tok):
    before = net(torch.tensor([[1, 9]]))
    names, weights = explain.attentions(net, tok, PLANTS)
    assert torch.equal(net(torch.tensor([[1, 9]])), before)
    size = len(prompt_ids(tok, PLANTS))
    size -= window_start(size, N_CTX)  # what the model sees of a text beyond its context
    assert len(names) == size <= N_CTX and weights.shape[-2:] == (size, size)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert not weights.triu(1).any()
