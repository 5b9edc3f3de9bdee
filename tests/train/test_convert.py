"""Room 04: weights kept in a pickle become safetensors, once, and nothing that such a file holds is ever run."""

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from helpers import paths
from helpers.train.convert import with_safetensors
from helpers.train.model import load_pretrained
from helpers.vocab import tokenizer

TOK = tokenizer.build_words({"浇水": 3}, "今天浇水很热。")
CONFIG = GPT2Config(
    vocab_size=len(TOK), n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, pad_token_id=0
)


class Payload:
    """What a malicious pickle holds: when it is opened, it makes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


@pytest.fixture
def theirs(tmp_path):
    """Return a folder as many Chinese GPT-2s of the Hub are, and its model: tied weights twice, masks as weights."""
    torch.manual_seed(0)
    folder, net = tmp_path / "theirs", GPT2LMHeadModel(CONFIG)
    CONFIG.save_pretrained(folder)
    state = net.state_dict()
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    assert state["lm_head.weight"].data_ptr() == state["transformer.wte.weight"].data_ptr()
    torch.save(state, folder / "pytorch_model.bin")
    return folder, net


def assert_same(folder, net):
    found = load_pretrained(str(folder), TOK, n_ctx=16)
    for (name, mine), other in zip(found.named_parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, other), name
    ids = torch.arange(9)[None]
    assert torch.equal(found.eval()(ids).logits, net.eval()(ids).logits)


def test_the_model_is_the_same_and_is_converted_once(theirs, capsys):
    folder, net = theirs
    assert_same(folder, net)
    assert "now safetensors" in capsys.readouterr().err
    (converted,) = filter(Path.is_dir, (paths.runs_dir() / ".converted").iterdir())
    before = (converted / "model.safetensors").stat().st_mtime_ns
    assert_same(folder, net)
    assert "now safetensors" not in capsys.readouterr().err
    assert (converted / "model.safetensors").stat().st_mtime_ns == before
    assert with_safetensors(str(folder)) == str(converted)


def test_the_processes_of_one_job_convert_it_once(theirs, capsys):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(with_safetensors, [str(theirs[0])] * 4))
    assert len(found) == 1 and capsys.readouterr().err.count("now safetensors") == 1
    assert_same(*found, theirs[1])


def test_other_weights_in_the_same_folder_are_converted_anew(theirs):
    folder, net = theirs
    assert_same(folder, net)
    with torch.no_grad():
        net.transformer.ln_f.weight.mul_(2)
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    os.utime(folder / "pytorch_model.bin", (1, 1))
    assert_same(folder, net)


def test_safetensors_are_taken_where_there_are_any(theirs):
    folder, net = theirs
    net.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"nobody reads this")
    assert with_safetensors(str(folder)) == str(folder)
    assert_same(folder, net)


def test_weights_in_parts_and_in_the_oldest_form(theirs):
    folder, net = theirs
    names = list(net.state_dict())
    parts = {"pytorch_model-00001-of-00002.bin": names[:9], "pytorch_model-00002-of-00002.bin": names[9:]}
    for file, part in parts.items():
        state = {name: net.state_dict()[name] for name in part}
        torch.save(state, folder / file, _use_new_zipfile_serialization=False)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), "utf-8")
    assert_same(folder, net)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ValueError, match="names pytorch_model-00002-of-00002.bin, which is not there"):
        with_safetensors(str(folder))


def hostile(kind, file, mark):
    """Write a file that makes another one when an ordinary unpickler opens it."""
    match kind:
        case "plain pickle":
            file.write_bytes(pickle.dumps(Payload(mark)))
        case "among tensors":
            torch.save({"lm_head.weight": torch.zeros(3), "state": Payload(mark)}, file)
        case "oldest form":
            torch.save({"state": Payload(mark)}, file, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("kind", ["plain pickle", "among tensors", "oldest form"])
def test_a_hostile_file_is_refused_and_never_runs(theirs, tmp_path, kind):
    folder, _ = theirs
    mark = tmp_path / "it ran"
    hostile(kind, folder / "pytorch_model.bin", mark)
    with pytest.raises(ValueError, match="more than weights and might run a program.*Nothing"):
        load_pretrained(str(folder), TOK, n_ctx=16)
    assert not mark.exists() and not list((paths.runs_dir() / ".converted").glob("*/*"))
    torch.load(folder / "pytorch_model.bin", weights_only=False) if kind != "plain pickle" else pickle.loads(
        (folder / "pytorch_model.bin").read_bytes()
    )
    assert mark.exists(), "the payload is a real one"


@pytest.mark.parametrize("content", [b"", b"not a model", [1, 2], {"a": 3}, {"state": {"b": torch.ones(2)}}])
def test_what_is_no_table_of_tensors_is_refused(theirs, content):
    folder, _ = theirs
    if isinstance(content, bytes):
        (folder / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin (is damaged|is no table of names and tensors)"):
        with_safetensors(str(folder))


def test_a_file_cut_short_is_refused_and_mended_by_a_whole_one(theirs):
    folder, net = theirs
    whole = shutil.copy(folder / "pytorch_model.bin", folder / "whole")
    (folder / "pytorch_model.bin").write_bytes(Path(whole).read_bytes()[:-5000])
    with pytest.raises(ValueError, match="pytorch_model.bin is damaged"):
        load_pretrained(str(folder), TOK, n_ctx=16)
    shutil.copy(whole, folder / "pytorch_model.bin")
    assert_same(folder, net)


def test_without_weights_the_name_is_returned(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert with_safetensors(str(tmp_path)) == str(tmp_path) and with_safetensors("nobody/no-model") == "nobody/no-model"
