"""What users of the book bring goes through the notebooks: a word list, pieces of ids, a model_config.json."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import paths
from helpers.corpus import built_in
from helpers.manifest import open_room
from helpers.tokens.windows import TokenStream
from helpers.vocab.tokenizer import decode, encode, load_tokenizer

SPECIAL = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"]
TEXTS = [document.text for document in islice(built_in.draw_documents(seed=2), 200)]
COMMON = [character for character, _ in Counter("".join(TEXTS)).most_common(120) if character != "\n"]
# a list that covers a part of the text, with a word that no segmenter finds, and one that the text does not have
LIST = [*SPECIAL, "绿萝", "浇水", "怎么浇水", "喜欢", "饕餮盛宴", *COMMON]
NAMES = "sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]"
CONFIG = '{"n_ctx": 64, "n_positions": 64, "n_embd": 48, "n_head": 3, "n_layer": 1,  # small\n "vocab_size": 50005}'


def course(folder, *arguments):
    """Run `python -m helpers.run …` in a folder, at micro scale; return what the command said."""
    environment = os.environ | {"RUNS_DIR": str(folder / "runs"), "PYTHONPATH": str(paths.repo_root())}
    command = [sys.executable, "-m", "helpers.run", "--run", "r", "--preset", "micro", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def looked_up(text):
    """Return the ids of a text as the book makes them: what is not in the list is [UNK], a line end [SEP]."""
    ids = [LIST.index("[MASK]")]
    while text:
        word = next((word for word in sorted(LIST, key=len, reverse=True) if text.startswith(word)), text[0])
        ids.append(LIST.index("[SEP]" if word == "\n" else word if word in LIST else "[UNK]"))
        text = text[len(word) :]
    return [*ids, LIST.index("[CLS]")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "train.json").write_text(json.dumps(TEXTS, ensure_ascii=False), "utf-8")
    (tmp_path / "vocab_user.txt").write_bytes("\r\n".join(LIST).encode("gb18030"))
    (tmp_path / "tokenized").mkdir()
    for i in range(11):
        ids = [str(each) for text in TEXTS[i::11] for each in looked_up(text)]
        (tmp_path / "tokenized" / f"tokenized_train_{i}.txt").write_text(" ".join(ids) + " ", "utf-8")
    (tmp_path / "model_config.json").write_text(CONFIG, "utf-8")
    return tmp_path


@pytest.mark.outside
def test_a_word_list_pieces_and_a_config_are_trained_on_as_they_are(folder):
    given = ["--corpus", "train.json", "--preset", "model_config.json", "-p", "special_tokens", NAMES,
             "-p", "vocab_file", "vocab_user.txt"]  # fmt: skip
    said = course(folder, "-p", "token_files", "tokenized", *given)
    assert "vocab_size 50005 is not used" in said
    # 1. the words are those of the list, though they cover little: no rule was asked
    vocab, tok = open_room("r", "vocab"), load_tokenizer(paths.room("r", "vocab"))
    assert (paths.room("r", "vocab") / "vocab_user.txt").read_text("utf-8").splitlines() == LIST
    assert tok.convert_ids_to_tokens(list(range(len(LIST)))) == LIST
    assert (vocab["result"]["kind"], vocab["result"]["words"]) == ("words", len(LIST) - 5)
    assert vocab["result"]["coverage"] < 0.85 and str(folder / "vocab_user.txt") in vocab["inputs"]
    assert all(decode(tok, encode(tok, text)) == text for text in [*TEXTS, "饕餮盛宴，𠮷 [CLS]"])
    # 2. the ids are those of the pieces
    found = []
    for split in ("train", "val"):
        stream = TokenStream("r", split, "uint16")
        found += [ids.tolist() for ids in np.split(stream.read(0, len(stream)), stream.documents[1:])]
    assert sorted(found) == sorted(map(looked_up, TEXTS))
    # 3. the model is that of the config, it was trained, it writes and it is served
    model = AutoModelForCausalLM.from_pretrained(paths.room("r", "train") / "final_model")
    assert (model.config.n_embd, model.config.n_head, model.config.n_layer, model.config.n_positions) == (48, 3, 1, 64)
    assert (model.config.attn_pdrop, model.config.vocab_size) == (0.1, len(tok))
    assert open_room("r", "train")["result"]["steps"] > 5
    assert open_room("r", "serve")["result"]["latency_ms_p50"] > 0
    again = AutoTokenizer.from_pretrained(paths.room("r", "train") / "final_model")
    assert again("绿萝")["input_ids"] == [LIST.index("[MASK]"), LIST.index("绿萝")]
    # 4. nothing runs twice; another list, other pieces are seen
    stages = ["corpus", "vocab", "tokenize"]
    assert course(folder, *stages, "-p", "token_files", "tokenized", *given).count("skipped") == 3
    piece = folder / "tokenized" / "tokenized_train_3.txt"
    piece.write_text(piece.read_text("utf-8") + " ".join(map(str, looked_up("绿萝喜欢。"))), "utf-8")
    assert course(folder, *stages, "-p", "token_files", "tokenized", *given).count("skipped") == 2
    (folder / "vocab_user.txt").write_text("\n".join([*LIST, "龘龘"]), "utf-8")
    assert course(folder, *stages[:2], *given).count("skipped") == 1
    assert load_tokenizer(paths.room("r", "vocab")).convert_tokens_to_ids("龘龘") == len(LIST)
