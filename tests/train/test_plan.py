"""Room 04 before it trains: what a run will do and cost, and what looks wrong."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import CPU, TOK, settings, tiny

from helpers import paths
from helpers.files import write_text
from helpers.manifest import open_room
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import save_model
from helpers.train import plan, rules
from helpers.vocab.tokenizer import build_bytes, load_tokenizer


def test_a_warm_up_longer_than_the_run_is_refused(run):
    with pytest.raises(ValueError, match="warmup_steps"):
        plan.plan_run(settings(run, warmup_steps=1000))


def test_a_forecast_measures_before_it_promises(run):
    found = plan.forecast(settings(run))
    assert found["steps"] == plan.plan_run(settings(run))["total_steps"]
    assert 0 < found["seconds"] < 60 and found["memory"] > 2**16
    budget = plan.forecast(settings(run, max_minutes=1.0))
    assert budget["seconds"] == 60 and budget["steps"] > found["steps"]
    assert budget["epochs"] > 2 and budget["tokens"] > found["tokens"]


def test_what_is_rarely_meant_is_said_before(run, monkeypatch):
    concerns = " ".join(plan.forecast(settings(run))["concerns"])
    assert "never occur in the training text" in concerns  # 400 tokens, a text of five words
    assert "updates: the model will hardly learn" in concerns
    monkeypatch.setattr(plan, "FEW_TOKENS", 401)  # as if these were bytes
    manifest = open_room(run, "tokenize")
    manifest["result"] |= {"n_ctx": 64, "stride": 64, "packing": "documents"}
    write_text(paths.room(run, "tokenize") / "manifest.json", json.dumps(manifest))
    concerns = " ".join(plan.forecast(settings(run))["concerns"])
    assert "never occur" not in concerns and "no document is longer" in concerns


def test_a_budget_too_short_for_one_update_is_refused(run):
    with pytest.raises(ValueError, match="nothing would be learnt"):
        plan.forecast(settings(run, max_minutes=1e-7))


def test_an_update_holds_no_more_than_the_text_has(run, monkeypatch):
    asked = []

    class Pace:
        def of(self, windows):
            asked.append(windows)
            return 0.01 * windows

    monkeypatch.setattr(plan, "measure_update", lambda *_, **__: Pace())
    windows = open_room(run, "tokenize")["result"]["windows"]
    plan.forecast(settings(run, batch_size=windows, gradient_accumulation=8, warmup_steps=0))
    plan.forecast(settings(run, batch_size=4, gradient_accumulation=2))
    assert asked == [windows, 8]


def test_a_pretrained_model_must_read_its_own_ids(run, tmp_path):
    """Given to 04 alone, without 02 and 03: the table has rows enough, and each stands for another token."""
    save_model(tmp_path, GPT(make_config("gpt2", 2000, n_ctx=64, n_embd=16, n_layer=1, n_head=2)))
    build_bytes().save_pretrained(tmp_path)
    given = settings(run, pretrained_model=str(tmp_path))
    for check in (plan.plan_run, rules.decide):
        with pytest.raises(ValueError, match="the vocabulary of run 't' is not that of .*Run notebook 02 with"):
            check(given)
    load_tokenizer(paths.room(run, "vocab")).save_pretrained(tmp_path)  # of the same vocabulary: trained further
    assert plan.plan_run(given)["total_steps"] > 0


def test_free_memory_is_asked_before_a_model_takes_some(run, monkeypatch):
    order = []
    for module, name in ((plan.machine, "memory_free"), (plan, "model_from_settings"), (plan, "measure_update")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _real=real, _name=name, **k: order.append(_name) or _real(*a, **k))
    plan.forecast(settings(run))
    assert order == ["memory_free", "model_from_settings", "measure_update"]


# ---- a measured update ----


@pytest.fixture
def train(run):
    windows, _ = plan.load_windows(run, open_room(run, "tokenize")["result"], TOK.pad_token_id)
    return windows


@pytest.fixture
def seen(monkeypatch):
    """The windows of each batch that is loaded."""
    indices, load = [], plan.load_batch
    monkeypatch.setattr(plan, "load_batch", lambda *args: indices.append(args[1]) or load(*args))
    return indices


def measure(train, batch_size, probe, device=CPU, **changes):
    return plan.measure_update(tiny(), train, settings("t", **changes), batch_size, "fp32", device, probe)


@pytest.mark.parametrize(("probe", "counts"), [(0.0, [1, 1, 1]), (1e9, [1, 1, 1, 4, 4, 4])])
def test_as_many_windows_as_the_time_allows_and_always_thrice(seen, train, probe, counts):
    """The first update of a size finds memory and compiles its products: only those after it count."""
    pace = measure(train, 4, probe)
    assert [len(indices) for indices in seen] == counts
    assert pace.per_window > 0 and pace.optimizer > 0
    assert pace.of(10) == pytest.approx(10 * pace.per_window + pace.optimizer)


def test_where_memory_runs_out_fewer_windows_are_measured(monkeypatch, train):
    load = plan.load_batch

    def measured_with_memory_for(most):
        seen = []

        def small_memory(windows, indices, device):
            if len(indices) > most:
                raise MemoryError("DefaultCPUAllocator: can't allocate memory")
            seen.append(len(indices))
            return load(windows, indices, device)

        monkeypatch.setattr(plan, "load_batch", small_memory)
        assert measure(train, 4, 1e9).per_window > 0
        return seen

    assert measured_with_memory_for(2) == [1, 1, 1, 2, 2, 2]
    assert measured_with_memory_for(1) == [1, 1, 1]
    with pytest.raises(MemoryError):
        measured_with_memory_for(0)


def test_of_the_updates_after_the_first_the_faster_counts(monkeypatch, train):
    """By a clock that is read at the start, after backward and at the end of each update."""
    seconds = [(100.0, 10.0), (2.0, 7.0), (5.0, 1.0)]  # the first one finds memory; then something comes between
    clock = iter([each for forward, step in seconds for each in (0.0, forward, forward + step)])
    monkeypatch.setattr(plan, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert measure(train, 4, 0.0) == (2.0, 1.0)


def test_the_windows_are_of_about_the_mean_length(seen, train):
    train.lengths = np.random.default_rng(0).integers(1, train.n_ctx, len(train), endpoint=True)
    measure(train, 3, 1e9)
    assert train.lengths[seen[-1]].mean() == pytest.approx(train.lengths.mean(), abs=1)


def test_each_of_several_processes_is_measured_with_its_share_of_the_cores(monkeypatch, train):
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(plan, "cores", lambda: 6)
    load = plan.load_batch
    monkeypatch.setattr(plan, "load_batch", lambda *args: seen.append(torch.get_num_threads()) or load(*args))
    measure(train, 1, 0.0, devices=3)
    assert set(seen) == {2} and torch.get_num_threads() == before
