"""The model that a training begins with: a pretrained one that fits, and what its folder says of writing."""

import json

import pytest
import torch
from families import CONFIGS, N_CTX, library_model
from models import TOK

from helpers.train.initial import config_from_settings, load_pretrained, model_from_settings
from helpers.train.loss import Loss
from helpers.train.settings import TrainSettings
from helpers.vocab import tokenizer

SPECIALS = ("bos_token_id", "eos_token_id", "pad_token_id")


@pytest.mark.parametrize("name", CONFIGS)
def test_pretrained_weights_are_the_folders_and_the_special_ids_the_tokenizers(name, tmp_path):
    theirs = library_model(name, torch.bfloat16, len(TOK) + 2)  # rows to spare, as is common
    theirs.save_pretrained(tmp_path)
    model = load_pretrained(str(tmp_path), TOK, n_ctx=16)
    assert torch.equal(model.embed_tokens.weight, theirs.get_input_embeddings().weight.float())
    assert {name: model.generation[name] for name in SPECIALS} == {name: getattr(TOK, name) for name in SPECIALS}
    assert model.generation["suppress_tokens"][-2:] == [len(TOK), len(TOK) + 1]
    ids = torch.arange(16)[None]
    Loss(model)(ids, ids).objective.backward()
    assert all(p.grad is not None and p.dtype == torch.float32 for p in model.parameters())


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    library_model("gpt2", vocab_size=len(TOK)).save_pretrained(tmp_path)
    bigger = tokenizer.build_words({"浇水": 3, "今天": 2, "很热": 1}, "今天浇水很热。")
    for tok, n_ctx, word in ((TOK, N_CTX + 1, "run notebook 03"), (bigger, 16, "not its tokenizer")):
        with pytest.raises(ValueError, match=word):
            load_pretrained(str(tmp_path), tok, n_ctx)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    with pytest.raises(ValueError, match="'bert'"):
        load_pretrained(str(tmp_path), TOK, n_ctx=16)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/folder", "{here}"])
def test_a_model_that_is_not_there_is_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="pretrained_model: .*model"):
        load_pretrained(name.format(here=tmp_path), TOK, n_ctx=16)


def test_a_fresh_model_writes_text_and_its_end_and_is_sampled_as_texts_are():
    settings = TrainSettings(n_embd=16, n_layer=2, n_head=2)  # dropout -1: the rules measure before they decide on it
    assert config_from_settings(settings, TOK, 8).dropout == 0
    model = model_from_settings(settings, TOK, 8)
    assert model.generation["do_sample"] and model.generation["temperature"] == 0.8
    assert set(model.generation["suppress_tokens"]) == set(TOK.all_special_ids) - {TOK.eos_token_id}
