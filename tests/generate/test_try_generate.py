"""The run that comes with the course is the model that its notebooks make, and its rooms are those of any run."""

import json
import math
import re
from itertools import islice

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers import paths
from helpers.corpus.shards import read_texts
from helpers.generate import generate
from helpers.generate.batch import prompt_ids
from helpers.generate.dialogue import answer_batch, as_messages
from helpers.generate.explain import read_logits
from helpers.generate.generate import TRY, TRY_FOLDER
from helpers.generate.settings import Settings
from helpers.manifest import open_room, read_manifest

GREEDY = Settings(max_new_tokens=60, temperature=0.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield {name: generate.load(TRY, name) for name in ("base", "chat")}


@pytest.mark.slow
def test_it_writes_the_texts_that_were_written_before_its_weights_had_8_bits(models):
    """Where two tokens are about as likely, the rounding decides: of 40 texts 32 were the same, of 40 answers 37."""
    texts = json.loads((TRY_FOLDER / "texts.json").read_text("utf-8"))
    beginnings, questions = ([first for first, _ in texts[name]] for name in ("base", "chat"))
    written = generate.generate_batch(*models["base"], beginnings, GREEDY)
    answers = answer_batch(*models["chat"], [as_messages(question) for question in questions], GREEDY)
    assert sum(each.text == first + rest for (first, rest), each in zip(texts["base"], written, strict=True)) >= 28
    assert sum(each.text == answer for (_, answer), each in zip(texts["chat"], answers, strict=True)) >= 34


@pytest.mark.slow
def test_it_is_the_model_of_notebook_04_and_as_good(models):
    printed = re.search(r"validation (0\.\d+) bits per character", paths.notebook("train").read_text("utf-8"))
    bits = open_room(TRY, "train")["result"]["val_bits_per_char"]
    assert printed and printed[1] == f"{bits:.3f}"
    (model, tok), texts = models["base"], list(islice(read_texts(TRY, "val"), 300))
    written = [[*prompt_ids(tok, text), tok.eos_token_id] for text in texts]
    nats = sum(
        float(cross_entropy(logits, torch.tensor(ids)[places], reduction="sum"))
        for ids in written
        for places, logits in read_logits(model, ids, 1)
    )
    found = nats / math.log(2) / len("".join(texts))
    assert found == pytest.approx(bits, rel=0.05)  # these are 300 of the documents, and the weights are rounded


@pytest.mark.slow
def test_its_rooms_are_made_once_and_open_like_any_other(models):
    for stage in ("corpus", "train", "chat"):
        assert open_room(TRY, stage)["ended"] == "finished"
    weights = paths.room(TRY, "chat") / "final_model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert generate.latest_model(TRY) == "chat" and weights.stat().st_mtime_ns == before
    assert read_manifest(TRY, "train")["result"]["steps"] > 0
