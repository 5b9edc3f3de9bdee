"""Room 04 before it trains: what a run will do and cost, and what looks wrong."""

import json

import pytest
from models import settings

from helpers import paths
from helpers.files import write_text
from helpers.manifest import open_room
from helpers.train import plan, rules
from helpers.train.model import build_model, make_config
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import build_bytes, load_tokenizer


def test_a_warm_up_longer_than_the_run_is_refused(run):
    with pytest.raises(ValueError, match="warmup_steps"):
        plan.plan(settings(run, warmup_steps=1000))


def test_a_forecast_measures_before_it_promises(run):
    found = plan.forecast(settings(run))
    assert found["steps"] == plan.plan(settings(run))["total_steps"]
    assert 0 < found["seconds"] < 60 and found["memory"] > 2**16
    budget = plan.forecast(settings(run, max_minutes=1.0))
    assert budget["seconds"] == 60 and budget["steps"] > found["steps"]
    assert budget["epochs"] > 2 and budget["tokens"] > found["tokens"]


def test_what_is_rarely_meant_is_said_before(run):
    concerns = " ".join(plan.forecast(settings(run))["concerns"])
    assert "never occur in the training text" in concerns  # 400 tokens, a text of five words
    assert "updates: the model will hardly learn" in concerns


def test_a_vocabulary_of_bytes_is_never_too_large(run, monkeypatch):
    monkeypatch.setattr(plan, "FEW_TOKENS", 401)  # as if these were bytes
    assert "never occur" not in " ".join(plan.forecast(settings(run))["concerns"])


def test_a_context_that_no_document_fills_is_said(run):
    manifest = open_room(run, "tokenize")
    manifest["result"] |= {"n_ctx": 64, "stride": 64, "packing": "documents"}
    write_text(paths.room(run, "tokenize") / "manifest.json", json.dumps(manifest))
    assert "no document is longer" in " ".join(plan.forecast(settings(run))["concerns"])


def test_a_budget_too_short_for_one_update_is_refused(run):
    with pytest.raises(ValueError, match="nothing would be learnt"):
        plan.forecast(settings(run, max_minutes=1e-7))


def test_an_update_holds_no_more_than_the_text_has(run, monkeypatch):
    asked = []

    class Pace:
        def of(self, windows):
            asked.append(windows)
            return 0.01 * windows

    monkeypatch.setattr(plan.throughput, "measure", lambda *_, **__: Pace())
    windows = open_room(run, "tokenize")["result"]["windows"]
    plan.forecast(settings(run, batch_size=windows, gradient_accumulation=8, warmup_steps=0))
    plan.forecast(settings(run, batch_size=4, gradient_accumulation=2))
    assert asked == [windows, 8]


def test_a_pretrained_model_must_read_its_own_ids(run, tmp_path):
    """Given to 04 alone, without 02 and 03: the table has rows enough, and each stands for another token."""
    config = make_config("gpt2", build_bytes(), n_ctx=64, n_embd=16, n_layer=1, n_head=2)
    config.vocab_size = 2000
    build_model(config, 0).save_pretrained(tmp_path)
    build_bytes().save_pretrained(tmp_path)
    given = settings(run, pretrained_model=str(tmp_path))
    for check in (plan.plan, rules.decide):
        with pytest.raises(ValueError, match="the vocabulary of run 't' is not that of .*Run notebook 02 with"):
            check(given)
    load_tokenizer(paths.room(run, "vocab")).save_pretrained(
        tmp_path
    )  # a model of the same vocabulary: trained further
    assert plan.plan(given)["total_steps"] > 0


def test_a_shape_that_a_pretrained_model_ignores_is_said():
    assert plan._ignored(TrainSettings(pretrained_model="x")) == plan._ignored(TrainSettings(n_layer=3)) == []
    given = TrainSettings(pretrained_model="x", architecture="gpt2", n_layer=3, dropout=0.0)
    (said,) = plan._ignored(given)
    assert said.startswith("architecture, n_layer, dropout: given, but a pretrained model keeps its own")


def test_free_memory_is_asked_before_a_model_takes_some(run, monkeypatch):
    order = []
    for module, name in ((plan, "memory_free"), (plan, "model_from_settings"), (plan.throughput, "measure")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _real=real, _name=name, **k: order.append(_name) or _real(*a, **k))
    plan.forecast(settings(run))
    assert order == ["memory_free", "model_from_settings", "measure"]
