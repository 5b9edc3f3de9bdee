"""Room 04, before the first step: a model's size, its cost, its loss before it has learnt anything; others' weights."""

import io
import json
import math
import pickle
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, Qwen3MoeConfig

from helpers import paths
from helpers.train import checkpoint, loss
from helpers.train import model as model_module
from helpers.train.loss import Loss
from helpers.train.model import (
    ARCHITECTURES,
    build_model,
    config_from_settings,
    dropout,
    load_pretrained_model,
    make_config,
    model_sizes,
    training_memory,
)
from helpers.train.settings import TrainSettings
from helpers.vocab import tokenizer

TOK = tokenizer.build_words({"浇水": 3}, "今天浇水很热。")
FIRST = len(tokenizer.SPECIAL_TOKENS)  # the first id that is text
SPECIALS = ("bos_token_id", "eos_token_id", "pad_token_id")
SHAPE = dict(n_ctx=16, n_embd=32, n_layer=2, n_head=4)


def tiny(architecture: str, seed: int = 0, **changes):
    return build_model(make_config(architecture, TOK, **(SHAPE | changes)), seed)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_real_model(architecture):
    cfg = make_config(architecture, TOK, **SHAPE)
    assert model_sizes(cfg)["parameters"] == sum(p.numel() for p in build_model(cfg, seed=0).parameters())
    assert cfg.vocab_size == len(TOK) and all(getattr(cfg, name) == getattr(TOK, name) for name in SPECIALS)


def test_of_a_mixture_only_the_chosen_experts_are_active():
    dense, mixture = (model_sizes(make_config(kind, TOK, **SHAPE)) for kind in ("llama", "moe"))
    assert dense["active_parameters"] == dense["parameters"] < mixture["active_parameters"] < mixture["parameters"]
    router, norms = 2 * 4 * 32, 2 * 2 * 8  # in two layers: four experts' rows, and the norms of queries and keys
    assert mixture["active_parameters"] == dense["parameters"] + router + norms
    both = model_sizes(make_config("moe", TOK, **SHAPE, experts_per_token=2))
    expert = 2 * 3 * 32 * 64  # two layers, three matrices
    assert both["parameters"] == mixture["parameters"]
    assert both["active_parameters"] - mixture["active_parameters"] == expert


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_agree_with_torchs_own_counter(architecture):
    """Against torch.utils.flop_counter, which counts attention over the whole square: we halve it. To 3 %."""
    cfg = make_config(architecture, TOK, **SHAPE)
    cfg._attn_implementation = "eager"
    model = build_model(cfg, seed=0)
    with FlopCounterMode(display=False) as counter:
        ids = torch.arange(64).view(4, 16) % 7 + FIRST  # 64 tokens: the loss pads no chunk
        Loss(model)(ids, ids).objective.backward()
    square = 6 * cfg.num_hidden_layers * 16 * cfg.hidden_size  # the half that the causal mask throws away
    vectors = sum(p.numel() for p in model.parameters() if p.ndim < 2)
    ours = (model_sizes(cfg)["flops_per_token"] + square - 6 * vectors) * ids.numel()
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_a_shorter_window_and_an_untied_table_cost_less():
    cfg = make_config("llama", TOK, **SHAPE)
    full = model_sizes(cfg)["flops_per_token"]
    assert full - model_sizes(cfg, n_ctx=8)["flops_per_token"] == 6 * 2 * 8 * 32
    cfg.tie_word_embeddings = False  # the first table is only looked up, the second multiplies
    assert model_sizes(cfg)["flops_per_token"] == full
    assert model_sizes(cfg)["parameters"] > model_sizes(make_config("llama", TOK, **SHAPE))["parameters"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_first_loss_is_ln_vocab_size(architecture):
    ids = torch.randint(FIRST, len(TOK), (8, 16), generator=torch.Generator().manual_seed(0))
    scores = Loss(tiny(architecture, seed=1))(ids, ids.roll(-1, 1))
    assert scores.loss.sum().item() / ids.numel() == pytest.approx(math.log(len(TOK)), abs=0.1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_writes_into_the_residual_stream_starts_smaller(architecture):
    """Standard deviations: 0.02, and 0.02/√(2 layers) for the residual projections, to 5 %; biases are 0, norms 1."""
    model = tiny(architecture, n_embd=128, n_layer=8)
    residual = {n for n, _ in model.named_parameters() if "c_proj.w" in n or "o_proj" in n or "down_proj" in n}
    assert len(residual) == 2 * 8
    for name, p in model.named_parameters():
        if p.ndim < 2:
            assert set(p.tolist()) == {0.0 if name.endswith("bias") else 1.0}
        else:
            wanted = 0.02 / math.sqrt(2 * 8) if name in residual else 0.02
            assert p.std().item() == pytest.approx(wanted, rel=0.12 if "mlp.gate.w" in name else 0.05), name


def test_a_router_with_one_choice_learns_from_the_text():
    """Weights scaled to a sum of 1 (as Mixtral's are) would be 1 for a single expert: a gradient of 0."""
    ids = torch.randint(FIRST, len(TOK), (4, 16), generator=torch.Generator().manual_seed(0))
    norms = {}
    for scaled in (False, True):
        cfg = make_config("moe", TOK, **SHAPE, aux_loss_coef=0.0)
        cfg.norm_topk_prob = scaled
        model = build_model(cfg, seed=0)
        Loss(model)(ids, ids).objective.backward()
        norms[scaled] = [layer.mlp.gate.weight.grad.norm().item() for layer in model.model.layers]
    assert min(norms[False]) > 1e-4 * ids.numel() > 100 * max(norms[True])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_exported_folder_is_a_plain_one_and_keeps_its_tokenizer(architecture, tmp_path):
    """AutoTokenizer replaces the tokenizer by another where a config's model_type is one that it knows better."""
    model = tiny(architecture, n_kv_head=2).eval()
    checkpoint.export_model(tmp_path / "final_model", model, TOK)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "final_model").eval()
    tok = AutoTokenizer.from_pretrained(tmp_path / "final_model")
    for text in ("今天浇水很热。", "<eos> é<0x41>  a .", ""):
        assert tok(text)["input_ids"] == [TOK.bos_token_id, *tokenizer.encode(TOK, text)]
        assert tok.decode(tok(text)["input_ids"], skip_special_tokens=True) == text
    assert [getattr(tok, name) for name in SPECIALS] == [getattr(TOK, name) for name in SPECIALS]
    ids = torch.tensor([[TOK.bos_token_id, 6, 7, 8]])
    with torch.no_grad():  # the mixture's experts are multiplied in another order there
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)
    assert again.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > 4
    assert "auto_map" not in (tmp_path / "final_model/config.json").read_text("utf-8")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone(architecture):
    before = torch.random.get_rng_state()
    one, two, other = (tiny(architecture, seed) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.get_input_embeddings().weight, other.get_input_embeddings().weight)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("architecture", "changes", "word"), [
    ("gpt2", dict(n_embd=30), "heads"), ("llama", dict(n_kv_head=3), "key/value"), ("rnn", {}, "unknown"),
    ("moe", dict(experts_per_token=5), "n_experts, which is 4"), ("llama", dict(n_embd=36), "rotary"),
])  # fmt: skip
def test_shapes_that_make_no_sense_are_refused(architecture, changes, word):
    with pytest.raises(ValueError, match=word):
        make_config(architecture, TOK, **(SHAPE | changes))


def test_grouped_query_attention_is_smaller():
    full = model_sizes(make_config("llama", TOK, **SHAPE))["parameters"]
    grouped = model_sizes(make_config("llama", TOK, **SHAPE, n_kv_head=2))["parameters"]
    assert full - grouped == 2 * 2 * 32 * 16  # two layers, key and value, 32 wide, 16 fewer outputs


MEMORY = """
import torch
from types import SimpleNamespace
from helpers.train import optim
from helpers.train.loss import Loss
from helpers.train.model import build_model, make_config, training_memory
from helpers.train.settings import TrainSettings

def two_updates(cfg, batch_size):
    model = build_model(cfg, 0)
    optimizers = optim.make_optimizers(model, TrainSettings(optimizer="adamw", lr=1e-3))
    for _ in range(2):
        ids = torch.randint(5, cfg.vocab_size, (batch_size, cfg.max_position_embeddings))
        with torch.autocast("cpu", torch.bfloat16):
            objective = Loss(model)(ids, ids).objective
        objective.backward()
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        optim.clip_gradient(optimizers, list(model.parameters()), 1.0, scaler)
        optim.step(optimizers, scaler, finite=True)
        model.zero_grad()

def peak():  # not ru_maxrss: on Linux a new program inherits the peak of the one that started it
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

class Tok(SimpleNamespace):
    def __len__(self):
        return 4000

tok = Tok(bos_token_id=2, eos_token_id=1, pad_token_id=3)
two_updates(make_config("gpt2", tok, n_ctx=8, n_embd=16, n_layer=1, n_head=4), 1)  # what any run takes
before = peak()
cfg = make_config("gpt2", tok, n_ctx=256, n_embd=256, n_layer=3, n_head=4)
two_updates(cfg, 8)
print(training_memory(cfg, 8) / (peak() - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of one program")
def test_the_memory_estimate_is_near_what_is_taken():
    """Within 30 % of the growth of a fresh process's peak."""
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=paths.repo_root(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.7 < float(done.stdout) < 1.3


def test_the_memory_estimate_knows_what_it_depends_on():
    assert (loss.LOGIT_ROWS, loss.CACHED) == (512, 2**20)  # the estimate counts on them
    for architecture in ARCHITECTURES:
        cfg = make_config(architecture, TOK, **SHAPE)
        usual = training_memory(cfg, 8)
        assert training_memory(cfg, 8, optimizer="muon") <= usual < training_memory(cfg, 16)
        assert training_memory(cfg, 64) < training_memory(cfg, 64, precision="fp32")
        assert training_memory(cfg, 64, n_ctx=4) < training_memory(cfg, 64)


def test_the_memory_estimate_of_a_gpu_is_near_what_an_h200_took():
    """GPT-2's 124 million in bf16 with Muon: 23.4 GiB with 64 windows of 1,024 tokens, within 15 %."""
    cfg = make_config("gpt2", TOK, n_ctx=1024, n_embd=768, n_layer=12, n_head=12)
    cfg.vocab_size = 50_000
    found = training_memory(cfg, 64, optimizer="muon", device="cuda") / 2**30
    assert found == pytest.approx(23.4, rel=0.15)


# ---- weights of others ----


SMALL = dict(vocab_size=len(TOK), bos_token_id=0, eos_token_id=0, pad_token_id=0)
WIDE = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
THEIRS = {
    "gpt2": GPT2Config(n_positions=16, n_embd=32, n_layer=2, n_head=4, **SMALL),
    "llama": LlamaConfig(max_position_embeddings=16, **WIDE, **SMALL),
    "qwen3_moe": Qwen3MoeConfig(
        max_position_embeddings=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, **WIDE, **SMALL
    ),
}


@pytest.mark.parametrize("kind", THEIRS)
def test_pretrained_weights_are_the_folders_and_the_special_ids_the_tokenizers(kind, tmp_path):
    theirs = AutoModelForCausalLM.from_config(THEIRS[kind]).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    model = load_pretrained_model(str(tmp_path), TOK, n_ctx=16)
    for (name, ours), p in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, p.float()), name
    for name in SPECIALS:
        assert getattr(model.config, name) == getattr(model.generation_config, name) == getattr(TOK, name)
    ids = torch.arange(16)[None]
    Loss(model)(ids, ids).objective.backward()
    assert model_sizes(model.config)["parameters"] == sum(p.numel() for p in model.parameters())
    assert training_memory(model.config, 2) > 0


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    GPT2LMHeadModel(THEIRS["gpt2"]).save_pretrained(tmp_path)
    bigger, smaller = (tokenizer.build_words(words, "今天浇水很热。") for words in ({"浇水": 3, "今天": 2}, {}))
    for tok, n_ctx, word in ((TOK, 17, "run notebook 03"), (bigger, 16, "not its tokenizer")):
        with pytest.raises(ValueError, match=word):
            load_pretrained_model(str(tmp_path), tok, n_ctx)
    # a table with rows to spare is common, and does no harm
    assert load_pretrained_model(str(tmp_path), smaller, n_ctx=8).config.vocab_size == len(TOK)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    with pytest.raises(ValueError, match="'bert'"):
        load_pretrained_model(str(tmp_path), TOK, n_ctx=16)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/folder", "{here}"])
def test_a_model_that_is_not_there_is_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="pretrained_model: .*model"):
        load_pretrained_model(name.format(here=tmp_path), TOK, n_ctx=16)


@pytest.fixture
def pickled(tmp_path):
    """Return a folder as many Chinese GPT-2s of the Hub are, and its model: tied weights twice, masks as weights."""
    net = GPT2LMHeadModel(THEIRS["gpt2"])
    net.config.save_pretrained(tmp_path)
    state = net.state_dict()
    for layer in range(2):
        state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
        state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, tmp_path / "pytorch_model.bin")
    return tmp_path, net, state


@pytest.mark.parametrize("form", ["zip", "oldest", "in parts"])
def test_weights_in_a_pickle_are_the_models(pickled, form):
    folder, net, state = pickled
    if form == "oldest":
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    elif form == "in parts":
        (folder / "pytorch_model.bin").unlink()
        names = list(state)
        parts = {f"pytorch_model-0000{i}-of-00002.bin": part for i, part in ((1, names[:9]), (2, names[9:]))}
        for file, part in parts.items():
            torch.save({name: state[name] for name in part}, folder / file)
        index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), "utf-8")
    found = load_pretrained_model(str(folder), TOK, n_ctx=16)
    assert all(torch.equal(mine, other) for mine, other in zip(found.parameters(), net.parameters(), strict=True))


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
        load_pretrained_model(str(folder), TOK, n_ctx=16)
    assert not mark.exists()
    data = file.read_bytes()
    pickle.loads(data) if kind == "plain pickle" else torch.load(io.BytesIO(data), weights_only=False)
    assert mark.exists(), "the payload is a real one"


def wrapped(prefix):
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "_orig_mod.module.", "module._orig_mod.model."])
def test_names_that_a_program_has_put_in_front_of_all_weights_go(kind, prefix, tmp_path):
    net = AutoModelForCausalLM.from_config(THEIRS[kind])
    net.config.save_pretrained(tmp_path)
    torch.save(wrapped(prefix)(net.state_dict()), tmp_path / "pytorch_model.bin")
    found = load_pretrained_model(str(tmp_path), TOK, n_ctx=16)
    assert all(torch.equal(mine, other) for mine, other in zip(found.parameters(), net.parameters(), strict=True))


EXTRA = {"v_head.summary.weight": torch.ones(1, 32), "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
BIAS = {"transformer.h.0.attn.rel_bias": torch.ones(3)}
NARROW = {"transformer.ln_f.weight": torch.ones(16)}


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda state: state | EXTRA, ""),
        (lambda state: state | BIAS, r"1 tensors have no place .* transformer\.h\.0\.attn\.rel_bias"),
        (wrapped("student."), r"tensors are missing, .*; tensors of other names .* student\."),
        (lambda state: {name: state[name] for name in state if ".h.1.mlp." not in name}, "4 tensors are missing"),
        (lambda state: state | NARROW, r"by config.json transformer.ln_f.weight has the shape \(32,\), .*\(16,\)"),
    ],
)
def test_each_weight_is_in_the_file_and_each_tensor_of_the_file_is_explained(change, why, pickled):
    folder, net, state = pickled
    torch.save(change(state), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=why) if why else nullcontext():
        found = load_pretrained_model(str(folder), TOK, n_ctx=16)
        assert all(torch.equal(mine, other) for mine, other in zip(found.parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize(
    "content", [b"", b"not a model", "cut", [1, 2], {"a": 3}, {"state": {"b": torch.ones(2)}}], ids=str
)
def test_what_is_no_table_of_all_weights_is_refused(pickled, content):
    """The library would make up what is missing, and say so on a screen full of names."""
    folder, _, _ = pickled
    file = folder / "pytorch_model.bin"
    if isinstance(content, bytes | str):
        file.write_bytes(file.read_bytes()[:-5000] if content == "cut" else content)
    else:
        torch.save(content, file)
    with pytest.raises(ValueError, match="pytorch_model.bin"):
        load_pretrained_model(str(folder), TOK, n_ctx=16)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_that_is_written_out_has_the_loss_and_the_gradient_of_the_fused_one(architecture, packed):
    ids = torch.randint(FIRST, len(TOK), (3, 13), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(3, -1) if packed else None
    found = {}
    for attention in ("eager", "sdpa"):
        model = tiny(architecture, n_kv_head=0 if architecture == "gpt2" else 2).double()
        model.set_attn_implementation(attention)
        scores = Loss(model)(ids[:, :-1], ids[:, 1:], positions)
        scores.objective.backward()
        found[attention] = [scores.loss, *(p.grad for p in model.parameters())]
    for eager, fused in zip(*found.values(), strict=True):
        torch.testing.assert_close(eager, fused, atol=1e-5, rtol=1e-4)  # the library takes its softmax in fp32


# ---- dropout ----


INPUTS = torch.randint(len(TOK), (4, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1000, 1001), p)
    assert float((dropped == 0).float().mean()) == pytest.approx(
        round(256 * p) / 256, abs=4 * (p * (1 - p) / 1e6) ** 0.5
    )
    assert float(dropped.mean()) == pytest.approx(1, abs=5 * (p / (1 - p) / 1e6) ** 0.5)
    # eight places share a random number: no two of its bytes may go together
    together = torch.corrcoef((dropped[:, :1000].reshape(-1, 8) == 0).double().T) - torch.eye(8)
    assert float(together.abs().max()) < 5 / 125_000**0.5


@given(st.floats(1e-6, 0.999), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans())
def test_any_share_and_shape_gives_zeros_and_one_multiple_and_the_gradient_passes_there(p, shape, half):
    x = torch.full(shape, 2.0, dtype=torch.bfloat16 if half else torch.float32, requires_grad=True)
    found = dropout(x, p)
    found.sum().backward()
    kept = found[found != 0]
    assert found.shape == x.shape and found.dtype == x.dtype and len(kept.unique()) <= 1 and (kept > 2).all()
    torch.testing.assert_close(x.grad * 2, found.detach())


@pytest.mark.parametrize("architecture", ["llama", "moe"])
def test_it_acts_in_training_only_on_the_embeddings_and_both_halves_of_every_block(architecture, monkeypatch):
    plain, dropping = tiny(architecture), tiny(architecture, dropout=0.3)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    with torch.no_grad():
        truth = plain.eval()(INPUTS).logits
        assert torch.equal(dropping.eval()(INPUTS).logits, truth)
        first, second = (dropping.train()(INPUTS).logits for _ in range(2))
    assert not torch.allclose(first, truth, atol=1e-3) and not torch.allclose(first, second, atol=1e-3)
    seen = []
    monkeypatch.setattr(model_module, "dropout", lambda x, p: seen.append((tuple(x.shape), p)) or x)
    dropping(INPUTS)
    assert seen == [((4, 8, 32), 0.3)] * (1 + 2 * 2)


def test_a_saved_model_loads_in_the_library_and_drops_again_when_it_is_trained_further(tmp_path):
    model = tiny("llama", dropout=0.3)
    model.save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    further = load_pretrained_model(str(tmp_path), TOK, 8)
    with torch.no_grad():
        truth = model.eval()(INPUTS).logits
        assert torch.equal(plain.train()(INPUTS).logits, truth)  # the library does not know it
        assert torch.equal(further.eval()(INPUTS).logits, truth)
        assert not torch.equal(further.train()(INPUTS).logits, truth)


def test_what_is_not_decided_yet_drops_nothing():
    """The rules measure a model's speed before they know how often it reads its text."""
    config = config_from_settings(TrainSettings(n_embd=16, n_layer=2, n_head=2), TOK, 8)
    assert config.resid_pdrop == config.embd_pdrop == 0
