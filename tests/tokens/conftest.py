"""A run with documents and a tokenizer, ready for room 03."""

import json

import pytest

from helpers import paths
from helpers.tokens.shards import write_shards
from helpers.tokens.windows import TokenStream
from helpers.vocab import tokenizer


@pytest.fixture
def texts():
    """200 short documents; the last ten are for validation."""
    return [f"第{i}天浇水。\n今天{'很' * (i % 7)}热" for i in range(200)]


@pytest.fixture
def run(texts, tmp_path, monkeypatch):
    """A run with a corpus of two shards and a small tokenizer."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    corpus = paths.room("t", "corpus")
    corpus.mkdir(parents=True)
    for name, part in (("train-00000", texts[:120]), ("train-00001", texts[120:190]), ("val-00000", texts[190:])):
        lines = (json.dumps({"text": text, "source": "t"}, ensure_ascii=False) + "\n" for text in part)
        (corpus / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    tokenizer.build_words({"浇水": 9, "今天": 5}, set("".join(texts))).save_pretrained(paths.room("t", "vocab"))
    return "t"


@pytest.fixture
def write(run):
    """A function that writes the run's shards and returns the training stream."""

    def write(num_pieces: int) -> TokenStream:
        write_shards(run, num_pieces, workers=1)
        return TokenStream(run, "train", "uint16")

    return write
