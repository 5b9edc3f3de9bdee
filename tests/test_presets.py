"""Every preset trains: its own schedule, accumulation, packing, architecture and precision, at a scale of seconds."""

import json
import math
from collections import Counter
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    pipeline,
)

from helpers import parallel, paths
from helpers.corpus import built_in
from helpers.corpus.build import build_corpus
from helpers.corpus.shards import read_texts
from helpers.generate import generate
from helpers.generate.settings import Settings
from helpers.manifest import notebook_parameters, write_manifest
from helpers.run.parameters import read_preset
from helpers.tokens.shards import dtype_for, write_shards
from helpers.tokens.windows import IGNORE, TokenStream
from helpers.train import job, plan
from helpers.train.settings import TrainSettings
from helpers.vocab import tokenizer
from helpers.vocab.words import choose_words, count_characters, count_words

PRESETS = sorted(file.stem for file in (paths.repo_root() / "presets").glob("*.yaml"))
FRESH = [name for name in PRESETS if name != "poems"]
N_CTX = 32
# what makes a run small; all else is the preset's
MICRO = dict(n_embd=32, n_layer=2, n_head=2, epochs=3, batch_size=4, lr=4e-3, warmup_steps=3, log_step=1, eval_step=0)
MICRO |= dict(sample_step=0, checkpoint_step=0, device="cpu", compile=False)


def test_all_the_source_systems_are_there():
    assert {"book", "cpm", "minimind", "minimind-moe", "poems", "gpu", "micro"} <= set(PRESETS)


@pytest.mark.parametrize(
    "preset, wanted",
    [
        ("book", dict(lr=1.5e-4, warmup_steps=2000, epochs=5, batch_size=8, n_layer=12, n_embd=768, n_ctx=1024,
                      stride=768, vocab_size=50_000, schedule="linear", final_lr_fraction=0.0, min_length=128,
                      num_pieces=100, special_tokens="sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]")),
        ("cpm", dict(lr=1e-5, eps=1e-9, warmup_steps=4000, gradient_accumulation=6, epochs=40, batch_size=16, n_ctx=200,
                     seed=1234, max_grad_norm=1.0, schedule="linear", packing="documents")),
        ("minimind", dict(architecture="llama", lr=5e-4, gradient_accumulation=8, epochs=1, batch_size=32, n_ctx=512,
                          n_embd=512, n_layer=8, schedule="cosine", final_lr_fraction=0.1, warmup_steps=0,
                          precision="bf16", text_key="text")),
        ("minimind-moe", dict(architecture="moe", n_experts=4, experts_per_token=1, aux_loss_coef=5e-4, lr=5e-4)),
        ("poems", dict(lr=2e-5, schedule="cosine", final_lr_fraction=0.0, epochs=1, batch_size=16, n_ctx=512,
                       document="line", packing="documents")),
    ],
)  # fmt: skip
def test_values_are_those_of_the_sources(preset, wanted):
    given = {name: value for section in read_preset(preset).values() for name, value in section.items()}
    assert {name: given.get(name) for name in wanted} == wanted


def test_the_two_minimind_presets_differ_in_the_experts_alone():
    dense, mixture = read_preset("minimind"), read_preset("minimind-moe")
    changed = {name for name, value in mixture["train"].items() if dense["train"].get(name) != value}
    assert changed == {"architecture", "n_experts", "experts_per_token", "aux_loss_coef"}
    assert dense | {"train": 0} == mixture | {"train": 0}


def test_the_poems_take_tokenizer_and_weights_from_one_model():
    poems = read_preset("poems")
    assert poems["vocab"]["pretrained_model"] == poems["train"]["pretrained_model"] != ""


# ---------------------------------------------------------------- from corpus to model


def texts(document: str) -> list[str]:
    """Return lines of verse for the poems, else documents of some hundred characters."""
    found = [item.text for item in islice(built_in.draw_documents(seed=3), 300)]
    if document == "line":
        return [text.replace("\n", "")[:40] for text in found[:120]]
    return ["\n".join(found[at : at + 3]) for at in range(0, 120, 3)]


def write_corpus(folder, settings: dict) -> None:
    """Write the texts as the preset expects them: a .txt, a poem a line, or JSONL."""
    found = texts(settings.get("document", "auto"))
    if "text_key" in settings:
        rows = (json.dumps({settings["text_key"]: text}, ensure_ascii=False) for text in found)
        (folder / "text.jsonl").write_text("\n".join(rows), "utf-8")
    else:
        blank = "\n" if settings.get("document") == "line" else "\n\n"
        (folder / "text.txt").write_text(blank.join(found), "utf-8")


def in_pairs(text: str) -> list[str]:
    return [text[at : at + 2] for at in range(0, len(text), 2)]  # thulac's part: it would take longer than all else


def train_preset(preset: str, tmp_path, pretrained: str = "", **changes) -> tuple[dict, dict, list[dict]]:
    """Take a preset from text to a trained model; return its parameters, what was planned, and its metrics."""
    sections = read_preset(preset)
    part = sections.get("corpus", {})
    write_corpus(tmp_path, part)
    names = ("document", "text_key", "min_length", "max_length")
    report = build_corpus("t", str(tmp_path), val_fraction=0.1, workers=1, **{n: part[n] for n in names if n in part})
    assert report.documents > 30

    if pretrained:
        tok = tokenizer.load_pretrained(pretrained)
    else:
        with parallel.executor(1) as pool:
            counts = count_words(read_texts("t", "train"), pool, segmenter=in_pairs)
        names = (notebook_parameters("vocab") | sections["vocab"])["special_tokens"]
        special = tokenizer.parse_special_tokens(names)
        tok = tokenizer.build_words(choose_words(counts, 100), count_characters(counts), special)
    tok.save_pretrained(paths.room("t", "vocab"))

    part = sections["tokenize"]
    stride = N_CTX * part["stride"] // part["n_ctx"]
    shards = write_shards("t", 2, workers=1)
    cut = dict(n_ctx=N_CTX, stride=stride, packing=part.get("packing", "auto"), dtype=dtype_for(len(tok)))
    windows = plan.load_windows("t", cut, tok.pad_token_id)[0]
    length = {split: sum(shard["tokens"] for shard in shards[split]) for split in shards}
    per = {split: sum(shard["characters"] for shard in shards[split]) / length[split] for split in shards}
    result = cut | dict(tokens=length["train"], windows=len(windows))
    result |= dict(chars_per_token=per["train"], val_chars_per_token=per["val"])
    outputs = paths.room("t", "tokenize").glob("*.bin")
    write_manifest("t", "tokenize", parameters={}, inputs=[], outputs=outputs, result=result)

    small = MICRO | {"pretrained_model": pretrained} | changes
    if sections["train"].get("n_kv_head"):
        small["n_kv_head"] = 1
    given = notebook_parameters("train") | sections["train"] | small | {"run": "t"}
    settings = TrainSettings.from_parameters(given)
    planned = plan.plan(settings)
    job.prepare(settings)
    job.run_job(settings)
    lines = (paths.room("t", "train") / "metrics.jsonl").read_text("utf-8").splitlines()
    return given, planned | result, [json.loads(line) for line in lines]


def rate(given: dict, step: int, total: int) -> float:
    """The learning rate of update `step`, 0 the first, written down a second time, from the notebook's words."""
    peak, warm, end = given["lr"], given["warmup_steps"], given["final_lr_fraction"]
    if step < warm:
        return peak * (step + 1) / warm
    after = (step - warm) / (total - warm)
    falls = {
        "linear": 1 - after,
        "cosine": (1 + math.cos(math.pi * after)) / 2,
        "wsd": min(1.0, (total - step) / round(total / 5)),
    }
    return peak * (end + (1 - end) * falls[given["schedule"]])


def check_run(given: dict, planned: dict, rows: list[dict]) -> list[dict]:
    """Check steps, accumulation and rates to the last digit, and that it learns; return the rows of the steps."""
    start = next(row for row in rows if row["event"] == "start")
    steps = [row for row in rows if row["event"] == "step"]
    per_update = given["batch_size"] * given["gradient_accumulation"]
    total = math.ceil(planned["windows"] / per_update) * given["epochs"]
    assert planned["total_steps"] == total == len(steps) > 10
    assert [row["step"] for row in steps] == list(range(1, total + 1))
    assert start["windows_per_update"] == planned["windows_per_update"] == per_update
    assert [row["lr"] for row in steps] == pytest.approx([rate(given, i, total) for i in range(total)], rel=1e-12)
    assert given["precision"] in (start["precision"], "auto")
    assert sum(row["loss"] for row in steps[-3:]) / 3 < steps[0]["loss"] - 0.3  # nats a token
    validation = [row for row in rows if row["event"] == "validation"]
    assert 0 < validation[-1]["loss"] < steps[0]["loss"]
    assert not [row for row in rows if row["event"] in ("skipped", "checkpoint_failed", "out_of_memory")]
    return steps


def check_final_model(text: str) -> torch.nn.Module:
    """Check that the final folder is a plain one in which the tokenizer is still the run's; return the model.

    A text begins as the documents did in training: with the start, and with no end behind it. So plain transformers
    writes what we write.
    """
    folder = paths.room("t", "train") / "final_model"
    model, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ours = tokenizer.load_tokenizer(paths.room("t", "vocab"))
    assert tok(text)["input_ids"] == [ours.bos_token_id, *tokenizer.encode(ours, text)]
    assert len(tok) == model.config.vocab_size

    settings = Settings(max_new_tokens=12, temperature=0.0)
    write = pipeline("text-generation", model=str(folder), device="cpu")
    for prompt in ("怎么浇水？", "水"):
        expected = generate.generate(*generate.load(folder), prompt, settings)[0].text
        assert len(expected) > len(prompt)
        assert write(prompt, max_new_tokens=12, do_sample=False)[0]["generated_text"] == expected
        ids = model.generate(**tok(prompt, return_tensors="pt"), max_new_tokens=12, do_sample=False)[0]
        assert tok.decode(ids, skip_special_tokens=True) == expected
    return model


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder for the text, and a runs folder of this test's own."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "text").mkdir()
    return tmp_path / "text"


@pytest.mark.parametrize("preset", FRESH)
def test_a_preset_goes_from_text_to_a_model(preset, room):
    accumulation = read_preset(preset)["train"].get("gradient_accumulation", 1)
    given, planned, rows = train_preset(preset, room, epochs={6: 3, 8: 4}.get(accumulation, 1))
    steps = check_run(given, planned, rows)
    model = check_final_model("[CLS]<eos>  怎么浇水？\n")
    tok = tokenizer.load_tokenizer(paths.room("t", "vocab"))
    start, end = ("[MASK]", "[CLS]") if preset == "book" else ("<bos>", "<eos>")
    ids = (2, 1) if preset == "book" else (1, 2)
    assert (tok.bos_token, tok.eos_token, tok.bos_token_id, tok.eos_token_id) == (start, end, *ids)
    assert steps[0]["loss"] == pytest.approx(math.log(model.config.vocab_size), abs=0.1)
    assert model.config.model_type == {"moe": "qwen3_moe"}.get(given["architecture"], given["architecture"])
    if given["architecture"] == "moe":
        loads = steps[-1]["expert_load"]
        assert [len(layer) for layer in loads] == [4, 4]
        assert [sum(layer) for layer in loads] == pytest.approx([1, 1], abs=1e-6)
        assert model.config.router_aux_loss_coef == 5e-4 and model.config.num_experts_per_tok == 1
    if given["architecture"] != "gpt2":
        assert model.config.num_key_value_heads == (given["n_kv_head"] or given["n_head"])

    if given["dropout"] > 0:
        assert model.config.resid_pdrop == given["dropout"] == 0.1


def bert_checkpoint(folder) -> None:
    """A GPT-2 over a BERT vocabulary, as the poems notebook took it from the Hub: config, weights, vocab.txt."""
    letters = sorted({letter for text in texts("line") for letter in text if not letter.isspace()})
    words = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    cfg = GPT2Config(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(cfg).save_pretrained(folder)


def llama_checkpoint(folder) -> None:
    """A LLaMA-like model with its own byte-level BPE, input and output tables apart."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(texts("line"), trainer)
    names = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    shape = dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    cfg = LlamaConfig(vocab_size=backend.get_vocab_size(), max_position_embeddings=64, **shape)
    LlamaForCausalLM(cfg).save_pretrained(folder)


@pytest.mark.parametrize("checkpoint", [bert_checkpoint, llama_checkpoint])
def test_the_poems_go_on_from_pretrained_weights_in_their_own_vocabulary(checkpoint, room, tmp_path):
    folder = tmp_path / "pretrained"
    folder.mkdir()
    torch.manual_seed(0)
    checkpoint(folder)
    given, planned, rows = train_preset("poems", room, pretrained=str(folder), epochs=1)
    check_run(given, planned, rows)
    before, after = AutoModelForCausalLM.from_pretrained(folder), check_final_model("怎么浇水？[CLS]</s>")
    assert {n: p.shape for n, p in before.named_parameters()} == {n: p.shape for n, p in after.named_parameters()}
    moved = [(a - b).norm() / b.norm() for a, b in zip(after.parameters(), before.parameters(), strict=True) if b.any()]
    assert 0 < max(moved) and min(moved) < 0.9  # it went on from there: fresh weights would be √2 away

    tok = tokenizer.load_tokenizer(paths.room("t", "vocab"))
    ids = TokenStream("t", "train", planned["dtype"]).read(0, 10**9).tolist()
    if checkpoint is bert_checkpoint:
        assert (tok.pad_token_id, tok.unk_token_id, tok.bos_token_id, tok.eos_token_id) == (0, 100, 101, 102)
    counts = Counter(ids)
    assert counts[tok.bos_token_id] == counts[tok.eos_token_id] > 30 and ids[0] == tok.bos_token_id
    assert not counts[tok.pad_token_id] and counts[tok.unk_token_id] < 0.03 * len(ids)  # numbers, in this small list
    windows, _ = plan.load_windows("t", planned, tok.pad_token_id)
    inputs, labels = windows.batch(range(len(windows)))
    assert (labels != tok.pad_token_id).all() and (labels == IGNORE).any()  # padding has no label
