"""What a user brings goes through the notebooks: a word list in its own order."""

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


@pytest.mark.outside
def test_a_word_list_is_trained_on_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    texts = [document.text for document in islice(built_in.draw_documents(seed=2), 200)]
    (tmp_path / "train.json").write_text(json.dumps(texts, ensure_ascii=False), "utf-8")
    (tmp_path / "vocab_user.txt").write_bytes("\r\n".join(WORDS).encode("gb18030"))
    command = [sys.executable, "-m", "helpers.run", "--run", "r", "--preset", "micro", "--corpus", "train.json",
               "-p", "special_tokens", NAMES, "-p", "vocab_file", "vocab_user.txt",
               "corpus", "vocab", "tokenize", "train"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(paths.repo_root())}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    tok, facts = load_tokenizer(paths.room("r", "vocab")), open_room("r", "vocab")["result"]
    assert tok.convert_ids_to_tokens(list(range(len(WORDS)))) == WORDS
    assert (facts["kind"], facts["words"]) == ("words", len(WORDS) - 5) and facts["coverage"] < 0.85
    config = AutoModelForCausalLM.from_pretrained(paths.room("r", "train") / "final_model").config
    assert config.vocab_size == len(tok)
