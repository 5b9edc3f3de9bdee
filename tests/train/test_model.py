"""Room 04, before the first step: a model's size, its cost, its loss before it has learnt anything; others' weights."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, Qwen3MoeConfig

from helpers import paths
from helpers.train import checkpoint, loss
from helpers.train.loss import Loss
from helpers.train.model import (
    ARCHITECTURES,
    build_model,
    load_pretrained,
    make_config,
    model_sizes,
    training_memory,
)
from helpers.vocab import tokenizer

TOK = tokenizer.build_words({"浇水": 3}, "今天浇水很热。")
FIRST = len(tokenizer.SPECIAL_TOKENS)  # the first id that is text
SHAPE = dict(n_ctx=16, n_embd=32, n_layer=2, n_head=4)


def tiny(architecture: str, seed: int = 0, **changes):
    return build_model(make_config(architecture, TOK, **(SHAPE | changes)), seed)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_real_model(architecture):
    cfg = make_config(architecture, TOK, **SHAPE)
    model = build_model(cfg, seed=0)
    sizes = model_sizes(cfg)
    assert sizes["parameters"] == sum(p.numel() for p in model.parameters())
    assert cfg.vocab_size == len(TOK)
    assert (cfg.bos_token_id, cfg.eos_token_id, cfg.pad_token_id) == (
        TOK.bos_token_id,
        TOK.eos_token_id,
        TOK.pad_token_id,
    )


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
def test_all_work_in_double_precision(architecture):
    ids = torch.randint(FIRST, len(TOK), (2, 16))
    model = tiny(architecture).double()
    Loss(model)(ids, ids).objective.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_exported_folder_is_a_plain_one_and_keeps_its_tokenizer(architecture, tmp_path):
    """AutoTokenizer replaces the tokenizer by another where a config's model_type is one that it knows better."""
    model = tiny(architecture, n_kv_head=2).eval()
    checkpoint.export(tmp_path / "final_model", model, TOK)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "final_model").eval()
    tok = AutoTokenizer.from_pretrained(tmp_path / "final_model")
    for text in ("今天浇水很热。", "<eos> é<0x41>  a .", ""):
        assert tok(text)["input_ids"] == [TOK.bos_token_id, *tokenizer.encode(TOK, text)]
        assert tok.decode(tok(text)["input_ids"], skip_special_tokens=True) == text
    specials = ("bos_token_id", "eos_token_id", "pad_token_id")
    assert [getattr(tok, name) for name in specials] == [getattr(TOK, name) for name in specials]
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


def test_shapes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="heads"):
        make_config("gpt2", TOK, n_ctx=16, n_embd=30, n_layer=1, n_head=4)
    with pytest.raises(ValueError, match="key/value"):
        make_config("llama", TOK, **SHAPE, n_kv_head=3)
    with pytest.raises(ValueError, match="unknown"):
        make_config("rnn", TOK, **SHAPE)
    with pytest.raises(ValueError, match="n_experts, which is 4"):
        make_config("moe", TOK, **SHAPE, experts_per_token=5)


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

def two_updates(cfg, batch_size):
    model = build_model(cfg, 0)
    optimizers = optim.make_optimizers(model, "adamw", 1e-3, 0.1)
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
    assert (loss.ROWS, loss.CACHED) == (512, 2**20)  # the estimate counts on them
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
    model = load_pretrained(str(tmp_path), TOK, n_ctx=16)
    for (name, ours), p in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, p.float()), name
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(model.config, name) == getattr(model.generation_config, name) == getattr(TOK, name)
    ids = torch.arange(16)[None]
    Loss(model)(ids, ids).objective.backward()
    assert model_sizes(model.config)["parameters"] == sum(p.numel() for p in model.parameters())
    assert training_memory(model.config, 2) > 0


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    GPT2LMHeadModel(THEIRS["gpt2"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="n_ctx is 17, but .* has 16 positions: run notebook 03"):
        load_pretrained(str(tmp_path), TOK, n_ctx=17)
    bigger = tokenizer.build_words({"浇水": 3, "今天": 2}, "今天浇水很热。")
    with pytest.raises(ValueError, match="this is not its tokenizer. Run notebook 02 with"):
        load_pretrained(str(tmp_path), bigger, n_ctx=16)
    smaller = tokenizer.build_words({}, "今天浇水很热。")  # a table with rows to spare is common, and does no harm
    assert load_pretrained(str(tmp_path), smaller, n_ctx=8).config.vocab_size == len(TOK)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    with pytest.raises(ValueError, match="of the kind 'bert'"):
        load_pretrained(str(tmp_path), TOK, n_ctx=16)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/folder", "{here}"])
def test_a_model_that_is_not_there_is_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="pretrained_model: .*(model.safetensors|holds no model config)"):
        load_pretrained(name.format(here=tmp_path), TOK, n_ctx=16)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_that_is_written_out_has_the_loss_and_the_gradient_of_the_fused_one(architecture, packed):
    torch.manual_seed(0)
    ids = torch.randint(FIRST, len(TOK), (3, 13))
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(3, -1) if packed else None
    found = {}
    for attention in ("eager", "sdpa"):
        model = tiny(architecture, n_kv_head=0 if architecture == "gpt2" else 2).double()
        model.set_attn_implementation(attention)
        assert model.config._attn_implementation == attention
        scores = Loss(model)(ids[:, :-1], ids[:, 1:], positions)
        scores.objective.backward()
        found[attention] = [scores.loss, *(p.grad for p in model.parameters())]
    for eager, fused in zip(*found.values(), strict=True):
        torch.testing.assert_close(eager, fused, atol=1e-5, rtol=1e-4)  # the library takes its softmax in fp32
