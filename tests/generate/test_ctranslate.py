"""The fast path against our own generation: the same greedy texts, the same probabilities, honest refusals."""

import json
import math

import pytest
import torch
from models import TOK, tiny

from helpers.generate import ctranslate, generate
from helpers.generate.batch import banned, prompt_ids
from helpers.generate.constraints import Constraint
from helpers.generate.settings import Settings
from helpers.manifest import RoomError
from helpers.train import checkpoint
from helpers.vocab import tokenizer

N_CTX = 16
PROMPTS = ("今天", "", "浇水，很热。" * 5)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def trained(request, tmp_path_factory):
    """A folder final_model, and its exports."""
    pytest.importorskip("ctranslate2")
    net = tiny(architecture=request.param, n_ctx=N_CTX, n_embd=32).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint.export_model(folder / "final_model", net, TOK)
    for quantization in ctranslate.QUANTIZATIONS:
        ctranslate.export(folder / "final_model", folder / quantization, quantization)
    return folder


@pytest.mark.parametrize("new", [1, N_CTX - 1, 3 * N_CTX])
def test_greedy_texts_are_those_of_generate(trained, new):
    """Within the window, at its end, and beyond it; several at once."""
    net, tok = generate.load(trained / "final_model")
    engine = ctranslate.Fast(trained / "float32", threads=1)
    settings = Settings(max_new_tokens=new, temperature=0)
    for prompt in PROMPTS:
        expected = generate.generate(net, tok, prompt, settings)[0]
        assert engine.generate(prompt, settings, samples=2) == [expected, expected]


def test_logits_are_those_of_the_model(trained):
    net, tok = generate.load(trained / "final_model")
    ids = prompt_ids(tok, "今天浇水很热")
    engine = ctranslate.Fast(trained / "float32", threads=1)
    with torch.inference_mode():
        assert torch.allclose(engine.logits(ids), net(torch.tensor([ids])).logits[0], atol=1e-4)


def test_the_cost_of_float32_is_nothing_and_that_of_int8_is_measured(trained):
    net, tok = generate.load(trained / "final_model")
    texts = ["今天浇水很热。", "热水浇很", "天今"]
    same = ctranslate.quality(net, tok, ctranslate.Fast(trained / "float32", threads=1), texts, new=8)
    assert same.fast_bits_per_token == pytest.approx(same.bits_per_token, abs=1e-4)
    assert (same.same_likeliest, same.same_greedy) == (1, 1)
    # the definition, on one text: bits of every token after the start, special tokens apart
    ids = prompt_ids(tok, texts[0])
    with torch.inference_mode():
        logits = net(torch.tensor([ids])).logits[0, :-1].masked_fill(banned(net, tok), -torch.inf)
    nats = -sum(logits.log_softmax(-1)[i, token].item() for i, token in enumerate(ids[1:]))
    engine = ctranslate.Fast(trained / "int8", threads=1)
    cost = ctranslate.quality(net, tok, engine, texts[:1], new=8)
    assert cost.bits_per_character == pytest.approx(nats / math.log(2) / len(texts[0]), rel=1e-4)
    assert cost.bits_per_token == pytest.approx(nats / math.log(2) / (len(ids) - 1), rel=1e-4)
    assert cost.fast_bits_per_token != cost.bits_per_token
    assert cost.fast_bits_per_token == pytest.approx(cost.bits_per_token, rel=0.1)
    with pytest.raises(ValueError, match="no text"):
        ctranslate.quality(net, tok, engine, [""])


def test_torch_keeps_its_threads(trained):
    """CTranslate2 takes its number of threads from the thread that makes an engine: torch's would go with it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ctranslate.Fast(trained / "int8", threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_int8_is_smaller_and_draws_within_top_k(trained):
    small, whole = (sum(file.stat().st_size for file in (trained / q).glob("model.bin")) for q in ("int8", "float32"))
    assert small < whole / 2
    engine = ctranslate.Fast(trained / "int8", threads=1)
    drawn = engine.generate("今天", Settings(max_new_tokens=1, temperature=5.0, top_k=3), samples=40)
    special = set(TOK.all_special_ids) - {TOK.eos_token_id}
    tokens = {tuple(sample.tokens) for sample in drawn}
    assert 1 < len(tokens) <= 3
    everything = engine.generate("今天", Settings(max_new_tokens=12, temperature=50.0), samples=40)
    assert not special & {token for sample in everything for token in sample.tokens}
    assert len({sample.text for sample in everything}) > 30


def test_what_it_does_not_know_is_refused_in_words(trained, tmp_path):
    engine = ctranslate.Fast(trained / "int8", threads=1)
    for settings, name in (
        (Settings(constraint=Constraint(forbidden=("热",))), "constraint"),
        (Settings(min_p=0.1, stop=("。",), seed=1), "min_p, stop, seed"),
    ):
        with pytest.raises(ValueError, match=f"does not know {name}"):
            engine.generate("", settings)
    with pytest.raises(ValueError, match="choose int8 or float32"):
        ctranslate.export(trained / "final_model", tmp_path / "x", "int3")
    with pytest.raises(ValueError, match="not an exported model"):
        ctranslate.export(trained / "final_model", trained)
    with pytest.raises(RoomError, match="no config.json"):
        ctranslate.export(tmp_path, tmp_path / "x")
    with pytest.raises(RoomError, match="is no export"):
        ctranslate.Fast(trained / "final_model")


def test_a_mixture_of_experts_is_refused_in_words_and_nothing_is_left(tmp_path):
    pytest.importorskip("ctranslate2")
    checkpoint.export_model(tmp_path / "final_model", tiny(architecture="moe"), TOK)
    with pytest.raises(ValueError, match="no models of the kind 'qwen3_moe'"):
        ctranslate.export(tmp_path / "final_model", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["final_model"]


def test_an_older_export_is_replaced(trained):
    out = ctranslate.export(trained / "final_model", trained / "again", "float32")
    before = (out / "model.bin").stat().st_size
    assert ctranslate.export(trained / "final_model", out, "int8") == out
    assert (out / "model.bin").stat().st_size < before / 2
    config = json.loads((out / "source_config.json").read_text("utf-8"))
    assert config["vocab_size"] == len(tokenizer.load_tokenizer(out))


def test_without_the_library_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[fast\]"):
        ctranslate.export(tmp_path, tmp_path / "x")
