"""What a user brings goes through the notebooks: a word list in its own order, a model_config.json."""

import json
import os
import subprocess
import sys
from itertools import islice

import pytest
from transformers import AutoModelForCausalLM

from helpers import paths
from helpers.corpus import built_in
from helpers.manifest import open_room
from helpers.vocab.tokenizer import load_tokenizer

# a list that covers little of the text, with a word that no segmenter finds, and one that the text does not have
WORDS = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "绿萝", "浇水", "怎么浇水", "喜欢", "饕餮盛宴"]
NAMES = "sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]"
CONFIG = '{"n_ctx": 64, "n_positions": 64, "n_embd": 48, "n_head": 3, "n_layer": 1,  # small\n "vocab_size": 50005}'


@pytest.mark.outside
def test_a_word_list_and_a_config_are_trained_on_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    texts = [document.text for document in islice(built_in.draw_documents(seed=2), 200)]
    (tmp_path / "train.json").write_text(json.dumps(texts, ensure_ascii=False), "utf-8")
    (tmp_path / "vocab_user.txt").write_bytes("\r\n".join(WORDS).encode("gb18030"))
    (tmp_path / "model_config.json").write_text(CONFIG, "utf-8")
    command = [sys.executable, "-m", "helpers.run", "--run", "r", "--preset", "micro", "--corpus", "train.json",
               "--preset", "model_config.json", "-p", "special_tokens", NAMES, "-p", "vocab_file", "vocab_user.txt",
               "corpus", "vocab", "tokenize", "train"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(paths.repo_root())}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    tok, facts = load_tokenizer(paths.room("r", "vocab")), open_room("r", "vocab")["result"]
    assert tok.convert_ids_to_tokens(list(range(len(WORDS)))) == WORDS
    assert (facts["kind"], facts["words"]) == ("words", len(WORDS) - 5) and facts["coverage"] < 0.85
    config = AutoModelForCausalLM.from_pretrained(paths.room("r", "train") / "final_model").config
    assert (config.n_embd, config.n_head, config.n_layer, config.n_positions) == (48, 3, 1, 64)
    assert config.vocab_size == len(tok)
