"""The five older tutorials as their users run them: the preset, one's own text, the notebooks, real thulac.

Only sizes are shrunk: the model, the context, the word list, the epochs and what depends on them. Schedule, rate,
optimizer, packing, special tokens and sampling are the preset's own.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_presets import bert_checkpoint, write_corpus
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import paths
from helpers.manifest import open_room
from helpers.run.parameters import read_preset

SMALL = {
    "num_pieces": 2, "n_ctx": 64, "stride": 48, "workers": 1, "epochs": 1, "batch_size": 2, "gradient_accumulation": 2,
    "warmup_steps": 3, "log_step": 5, "max_new_tokens": 10, "samples": 2,
}  # fmt: skip
SHAPE = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 200}
MODELS = {"book": "gpt2", "cpm": "gpt2", "minimind": "llama", "minimind-moe": "qwen3_moe", "poems": "gpt2"}


def small(preset, pretrained):
    """Return the sizes that make a preset small."""
    sections = read_preset(preset)
    given = SMALL | SHAPE | {"n_kv_head": 1 if "n_kv_head" in sections["train"] else 0}
    given |= {"requests": 4, "clients": 2} if "serve" in stages(preset) else {}
    if sections["tokenize"]["stride"] == sections["tokenize"]["n_ctx"]:
        given["stride"] = given["n_ctx"]
    if preset == "poems":
        given = {name: value for name, value in given.items() if name not in SHAPE}
        given["pretrained_model"] = str(pretrained)
    return given


def stages(preset):
    """Return the stages to run; no preset sets anything of the last one, so that two of the models are enough."""
    return paths.STAGES if preset in ("book", "minimind-moe") else [*paths.STAGES][:-1]


def take_course(preset, folder):
    """Run the notebooks as a user does; return what the command said."""
    (folder / "我的 文章").mkdir(parents=True)
    write_corpus(folder / "我的 文章", read_preset(preset).get("corpus", {}))
    (folder / "pretrained").mkdir()
    if preset == "poems":
        bert_checkpoint(folder / "pretrained")
    options = [
        word for name, value in small(preset, folder / "pretrained").items() for word in ("-p", name, str(value))
    ]
    options = ["--preset", preset, "--run", "r", "--corpus", "我的 文章", *options]
    command = [sys.executable, "-m", "helpers.run", *stages(preset), *options]
    environment = os.environ | {"RUNS_DIR": str(folder), "PYTHONPATH": str(paths.repo_root()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")


@pytest.fixture(scope="module")
def courses(tmp_path_factory):
    """The runs of all presets, two at a time: {preset: (folder, future of what the command said)}."""
    folders = {preset: tmp_path_factory.mktemp(preset) for preset in MODELS}
    with ThreadPoolExecutor(2) as pool:
        yield {preset: (folder, pool.submit(take_course, preset, folder)) for preset, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("preset", MODELS)
def test_a_source_system_goes_from_text_to_a_service(preset, courses, monkeypatch):
    # 1. the notebooks ran through, and nothing was said on stderr
    folder, course = courses[preset]
    done = course.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    monkeypatch.setenv("RUNS_DIR", str(folder))
    sections, given = read_preset(preset), small(preset, folder / "pretrained")
    # 2. all that is no size is the preset's
    for stage, section in sections.items():
        used = open_room("r", stage)["parameters"]
        assert {name: used[name] for name in section.keys() - given.keys()} == {
            name: value for name, value in section.items() if name not in given
        }
    # 3. it trained, it writes, it serves
    trained = open_room("r", "train")["result"]
    assert trained["steps"] == trained["total_steps"] > 5 and trained["skipped"] == 0
    final = paths.room("r", "train") / "final_model"
    model, tok = AutoModelForCausalLM.from_pretrained(final), AutoTokenizer.from_pretrained(final)
    assert model.config.model_type == MODELS[preset]
    if preset == "book":
        assert (tok.bos_token, tok.eos_token, tok.pad_token, tok.unk_token) == ("[MASK]", "[CLS]", "[PAD]", "[UNK]")
    if preset == "poems":
        assert (tok.pad_token_id, tok.unk_token_id, tok.eos_token_id) == (0, 100, 102)
    written = (paths.room("r", "generate") / "samples.jsonl").read_text("utf-8").splitlines()
    assert len(written) >= 2
    assert all(json.loads(line)["text"].startswith(json.loads(line)["prompt"]) for line in written)
    if "serve" in stages(preset):
        assert open_room("r", "serve")["result"]["latency_ms_p50"] > 0
