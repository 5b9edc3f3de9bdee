"""model_config: GPT-2's own config gives the model that it describes, and what cannot be kept is refused by name."""

import json

import pytest
from transformers import GPT2Config

from helpers.manifest import notebook_parameters
from helpers.run.__main__ import main
from helpers.run.model_config import read_model_config, say_vocab_size
from helpers.run.parameters import Refused, plan, read_preset
from helpers.train.model import build_model, make_config
from helpers.vocab import tokenizer

BOOK = {
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 64, "n_embd": 128, "n_head": 2, "n_layer": 1,
    "n_positions": 64, "vocab_size": 50005,
}  # fmt: skip
# as it stands in the book: with comments, and a number that no JSON has
PRINTED = """{
  "initializer_range": 0.02,  # spread of the first weights
  "layer_norm_epsilon": 1e - 05,
  "n_ctx": 64, "n_embd": 128, "n_head": 2,
  "n_layer": 1,   # blocks
  "n_positions": 64,
  "vocab_size": 50005,
}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model_config.json"


WANTED = {
    "tokenize": {"n_ctx": 64},
    "train": {"architecture": "gpt2", "n_embd": 128, "n_layer": 1, "n_head": 2, "dropout": 0.1},
}


@pytest.mark.parametrize("text", [json.dumps(BOOK), PRINTED, "\ufeff" + json.dumps(BOOK, indent=1)])
def test_the_books_file_is_read(file, text):
    file.write_text(text, "utf-8")
    assert read_model_config(file) == read_preset("model_config.json") == WANTED
    for stage, section in WANTED.items():
        assert section.keys() <= notebook_parameters(stage).keys()


def test_what_looks_like_a_comment_in_a_string_is_none(file):
    text = json.dumps(BOOK | {"_name_or_path": 'http://example.org/gpt2#"new"'}, indent=1)
    file.write_text(text.replace("\n}", ",  # the end\n}"), "utf-8")
    assert read_model_config(file) == WANTED


def test_one_of_two_lengths_is_enough(file):
    file.write_text(json.dumps(BOOK | {"n_positions": None}), "utf-8")
    assert read_model_config(file) == WANTED


def test_a_name_that_stands_twice_is_refused(file):
    file.write_text(json.dumps(BOOK).replace("{", '{"n_layer": 3, ', 1), "utf-8")
    with pytest.raises(ValueError, match="'n_layer' stands twice"):
        read_model_config(file)


def test_the_model_is_the_one_that_the_file_describes(file):
    """Whatever the library writes about a GPT-2 is read, and the model made of it has the same weights and dropout."""
    tok = tokenizer.build_bytes()
    ids = {f"{name}_token_id": getattr(tok, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    original = GPT2Config(vocab_size=len(tok), n_positions=32, n_embd=24, n_layer=3, n_head=4, **ids)
    file.write_text(original.to_json_string(use_diff=False), "utf-8")
    sections = read_model_config(file)
    config = make_config(tokenizer=tok, n_ctx=sections["tokenize"]["n_ctx"], **sections["train"])
    ours, theirs = config.to_dict(), original.to_dict()
    different = {name for name in theirs if ours.get(name) != theirs[name]}
    assert different <= {"activation_function"}  # the same function under another name
    a, b = (dict(build_model(each, seed=0).named_parameters()) for each in (config, original))
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"activation_function": "relu"},
            "activation_function is 'relu', which cannot be kept: here it is always 'gelu_n",
        ),
        ({"activation": "gelu"}, "activation is 'gelu'"),
        ({"initializer_range": 0.01}, "initializer_range is 0.01"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
        ({"model_type": "llama"}, "--preset minimind"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"n_inner": 100}, "n_inner is 100"),
        ({"n_positions": 32}, "n_ctx is 64 and n_positions 32"),
        ({"resid_pdrop": 0.2}, "resid_pdrop 0.2, embd_pdrop 0.1"),
        (dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 7), "resid_pdrop is 7: expected a number"),
        ({"n_layer": "12"}, "n_layer is '12'"),
        ({"n_head": None}, "n_head is missing"),
        (dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"]), "_pdrop is None: expected a number"),
        ({"attn_pdrop": [0.1]}, "attn_pdrop is \\[0.1\\]: expected a number"),
        ({"rope_theta": 1e6}, "rope_theta cannot be kept"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(file, changes, words, capsys):
    file.write_text(json.dumps(BOOK | changes), "utf-8")
    with pytest.raises(ValueError, match=words):
        read_model_config(file)
    assert main(["--preset", "model_config.json"]) == 2
    assert words[:12] in capsys.readouterr().err and not (file.parent / "runs").exists()


def test_a_file_without_sense_and_one_that_is_not_there_are_refused(file):
    for text in ("{n_layer: 12}", "[1, 2]", ""):
        file.write_text(text, "utf-8")
        with pytest.raises(Refused, match=r"model_config\.json"):
            read_preset("model_config.json")
    with pytest.raises(Refused, match="no preset 'other.json'"):
        read_preset("other.json")


def test_what_becomes_of_vocab_size_is_said(file):
    file.write_text(PRINTED, "utf-8")
    assert "vocab_size 50005 is not used" in say_vocab_size(file) and "vocab_file" in say_vocab_size(file)
    file.write_text(json.dumps({"n_layer": 1}), "utf-8")
    assert say_vocab_size(file) == ""


def test_it_goes_on_top_of_a_preset(file):
    """The book's training with a model of one's own: the later preset over the earlier, and -p over both."""
    file.write_text(PRINTED, "utf-8")
    values = plan(["tokenize", "train"], "r", None, ["book", "model_config.json"], [("n_layer", "2")])
    assert (values["tokenize"]["n_ctx"], values["train"]["n_embd"], values["train"]["n_layer"]) == (64, 128, 2)
    assert (values["train"]["lr"], values["train"]["warmup_steps"]) == (1.5e-4, 2000)
