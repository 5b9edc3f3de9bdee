"""A row for each family: what the library computes is what ours computes, in scores and gradients, both ways."""

import io
import json
import pickle
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from families import CONFIGS, N_CTX, V, library_model
from transformers import AutoModelForCausalLM

from helpers.model import huggingface
from helpers.model.config import ARCHITECTURES, make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import FAMILIES, config_from, library_config, load_model, save_model
from helpers.vocab import tokenizer

IDS = torch.randint(V, (3, 30), generator=torch.Generator().manual_seed(0))


def gradients(net, ids) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the logits and every gradient, by the names of the net's own weights."""
    net.zero_grad()
    logits = net(ids)
    logits = getattr(logits, "logits", logits).float()
    logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).mean().backward()
    return logits.detach(), {name: p.grad for name, p in net.named_parameters()}


def by_name(net, gradients):
    """Return gradients of the library's model by the names of its files: there each expert has its own matrices."""
    named = {}
    for name, grad in gradients.items():
        for number, each in enumerate(grad) if ".experts." in name else ():
            parts = zip(("gate", "up"), each.chunk(2), strict=True) if "gate_up" in name else [("down", each)]
            stem = name.rpartition(".")[0]
            named |= {f"{stem}.{number}.{part}_proj.weight": half for part, half in parts}
        if ".experts." not in name:
            named[name] = grad
    return named


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_and_gradients_are_the_librarys(name, tmp_path):
    """In fp64, read from the library's folder."""
    theirs = library_model(name, torch.float64)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert ours.lm_head.weight.dtype == torch.float64 and not ours.training
    assert ours.config.sizes()["parameters"] == sum(p.numel() for p in ours.parameters())
    (logits, found), (expected, wanted) = gradients(ours, IDS), gradients(theirs, IDS)
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=1e-5)  # some of the library's is in fp32
    found, wanted = huggingface.to_library(ours.config, found), by_name(theirs, wanted)
    assert found.keys() == wanted.keys()
    largest = max(float(grad.abs().max()) for grad in wanted.values())
    for each in found:
        torch.testing.assert_close(found[each], wanted[each], atol=1e-5 * largest, rtol=1e-4, msg=each)


@pytest.mark.parametrize("name", CONFIGS)
def test_in_bf16_ours_is_as_near_to_the_truth_as_the_library(name, tmp_path):
    """The truth: the same rounded weights, computed in fp64."""
    theirs = library_model(name, torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours, exact = load_model(tmp_path), load_model(tmp_path, torch.float64)
    assert ours.lm_head.weight.dtype == torch.bfloat16
    with torch.no_grad():
        truth = exact(IDS)
        error = [float((out.double() - truth).norm() / truth.norm()) for out in (ours(IDS), theirs(IDS).logits)]
    assert 0 < error[0] < 1.3 * error[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_of_ours_is_one_of_the_librarys(name, tmp_path):
    """The same greedy text from our model, `generate` and a pipeline of an untouched AutoModelForCausalLM."""
    library_model(name).save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    ours.generation = {"eos_token_id": 89, "pad_token_id": 0, "suppress_tokens": [5]}
    save_model(tmp_path / "ours", ours)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert again.config.model_type in FAMILIES and again.generation_config.suppress_tokens == [5]
    assert (
        load_model(tmp_path / "ours").generation | {"suppress_tokens": [5]} == load_model(tmp_path / "ours").generation
    )
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, ours(IDS), atol=1e-4, rtol=1e-4)
        ids, options = IDS[:1, :4], dict(max_new_tokens=12, do_sample=False)
        written = again.generate(ids, attention_mask=torch.ones_like(ids), **options)
        for _ in range(written.shape[1] - 4):
            ids = torch.cat([ids, ours(ids)[:, -1].index_fill(1, torch.tensor([5]), -torch.inf).argmax(-1)[:, None]], 1)
    assert torch.equal(written, ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_config_that_is_written_is_the_config_that_is_read(architecture):
    """A tokenizer beside it makes a pipeline: generate/test_generate.py."""
    config = make_config(architecture, V, n_ctx=16, n_embd=32, n_layer=2, n_head=4, n_kv_head=2)
    assert config_from(library_config(config)) == config


@pytest.mark.parametrize(("name", "changes", "words"), [
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rotary positions"),
    ("llama", {"hidden_act": "relu"}, "hidden_act: 'relu'"), ("qwen2", {"use_sliding_window": True}, "use_sliding"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"), ("llama", {"model_type": "bloom"}, "'bloom'"),
])  # fmt: skip
def test_what_this_model_does_not_have_is_refused_by_its_name(name, changes, words):
    config = type(CONFIGS[name]).from_dict(CONFIGS[name].to_dict() | changes)
    if "model_type" in changes:
        config.model_type = changes["model_type"]
    with pytest.raises(ValueError, match=words):
        config_from(config)


def test_notebook_02_takes_the_tokenizers_of_all_families():
    assert tokenizer.PRETRAINED_KINDS == tuple(FAMILIES)


# ---- files ----


@pytest.fixture
def pickled(tmp_path):
    """Return a folder as many Chinese GPT-2s of the Hub are, and its weights: tied ones twice, masks as weights."""
    net = library_model("gpt2")
    net.config.save_pretrained(tmp_path)
    state = net.state_dict()
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, tmp_path / "pytorch_model.bin")
    return tmp_path, net, state


def assert_is(found: GPT, net) -> None:
    with torch.no_grad():
        torch.testing.assert_close(found(IDS), net(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", ["zip", "oldest", "in parts", "safetensors in parts"])
def test_weights_in_any_form_are_the_models(pickled, form):
    folder, net, state = pickled
    if form == "oldest":
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    elif form == "in parts":
        (folder / "pytorch_model.bin").unlink()
        names = list(state)
        for number, part in ((1, names[:9]), (2, names[9:])):
            torch.save({name: state[name] for name in part}, folder / f"pytorch_model-0000{number}-of-00002.bin")
    elif form == "safetensors in parts":
        net.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
    assert_is(load_model(folder), net)


class Payload:
    """What a malicious pickle holds: when it is opened, it makes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kind", ["plain pickle", "among tensors", "oldest form"])
def test_a_hostile_file_is_refused_and_never_runs(pickled, kind, name):
    folder, mark = pickled[0], pickled[0] / "it ran"
    file = folder / name
    if kind == "plain pickle":
        file.write_bytes(pickle.dumps(Payload(mark)))
    else:
        held = {"lm_head.weight": torch.zeros(3), "state": Payload(mark)}
        torch.save(held, file, _use_new_zipfile_serialization=kind == "among tensors")
    with pytest.raises(ValueError, match="might run a program" if name.endswith("bin") else "could not be read"):
        load_model(folder)
    assert not mark.exists()
    data = file.read_bytes()
    pickle.loads(data) if kind == "plain pickle" else torch.load(io.BytesIO(data), weights_only=False)
    assert mark.exists(), "the payload is a real one"


def wrapped(prefix):
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "_orig_mod.module.", "module._orig_mod.model."])
def test_names_that_a_program_has_put_in_front_of_all_weights_go(name, prefix, tmp_path):
    net = library_model(name)
    net.config.save_pretrained(tmp_path)
    torch.save(wrapped(prefix)(net.state_dict()), tmp_path / "pytorch_model.bin")
    assert_is(load_model(tmp_path), net)


EXTRA = {"v_head.summary.weight": torch.ones(1, 32), "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
BIAS = {"transformer.h.0.attn.rel_bias": torch.ones(3)}
NARROW = {"transformer.ln_f.weight": torch.ones(16)}


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda state: state | EXTRA, ""),
        (lambda state: {n.removeprefix("transformer."): state[n] for n in state if n != "lm_head.weight"}, ""),
        (lambda state: state | BIAS, r"1 tensors have no place .* transformer\.h\.0\.attn\.rel_bias"),
        (wrapped("student."), r"tensors are missing, .*; tensors of other names .* transformer\.student\."),
        (lambda state: {name: state[name] for name in state if ".h.1.mlp." not in name}, "4 tensors are missing"),
        (lambda state: state | NARROW, r"by config.json transformer.ln_f.weight has the shape \(32,\), .*\(16,\)"),
    ],
)
def test_each_weight_is_in_the_file_and_each_tensor_of_the_file_is_explained(change, why, pickled):
    folder, net, state = pickled
    torch.save(change(state), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=why) if why else nullcontext():
        assert_is(load_model(folder), net)


@pytest.mark.parametrize(
    "content", [b"", b"not a model", "cut", [1, 2], {"a": 3}, {"state": {"b": torch.ones(2)}}], ids=str
)
def test_what_is_no_table_of_all_weights_is_refused(pickled, content):
    file = pickled[0] / "pytorch_model.bin"
    if isinstance(content, bytes | str):
        file.write_bytes(file.read_bytes()[:-5000] if content == "cut" else content)
    else:
        torch.save(content, file)
    with pytest.raises(ValueError, match="pytorch_model.bin|missing"):
        load_model(pickled[0])


def test_a_model_without_weights_says_which_files_it_looks_for(tmp_path):
    CONFIGS["llama"].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="neither model.safetensors nor pytorch_model.bin"):
        load_model(tmp_path)
    assert huggingface.read_config(tmp_path).n_ctx == N_CTX
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    with pytest.raises(ValueError, match="'bert'"):
        load_model(tmp_path)
