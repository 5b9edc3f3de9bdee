"""Room 04 with a run's rooms: plans, forecasts, one model beside another, a thread that can be stopped."""

import json

import pytest
import torch
from models import parameters, weights
from transformers import AutoModelForCausalLM

from helpers import paths
from helpers.files import write_text
from helpers.manifest import open_room
from helpers.train import job, plan
from helpers.vocab import tokenizer

# ---------------------------------------------------------------- with a run's rooms


def test_the_plan_is_what_the_run_does(run):
    given = parameters(run)
    training = job.start(given)
    figures = training.wait()
    assert figures["steps"] == training.total_steps == plan.plan(given)["total_steps"]
    assert not training.running


def test_a_warm_up_longer_than_the_run_is_refused(run):
    with pytest.raises(ValueError, match="warmup_steps"):
        plan.plan(parameters(run, warmup_steps=1000))


def test_another_model_is_put_aside_not_destroyed(run):
    job.start(parameters(run)).wait()
    before = weights(run)
    job.start(parameters(run, lr=5e-3)).wait()
    previous = AutoModelForCausalLM.from_pretrained(paths.run_dir(run) / "model-previous" / "final_model")
    assert all(torch.equal(p, before[name]) for name, p in previous.named_parameters())
    assert any(not torch.equal(p, before[name]) for name, p in weights(run).items())


def test_an_error_in_the_thread_reaches_whoever_waits(run):
    with pytest.raises(ValueError, match="optimizer"):
        job.start(parameters(run, optimizer="magic")).wait()


def test_stop_ends_the_run_and_a_second_start_finishes_it(run):
    given = parameters(run, epochs=60)
    training = job.start(given)
    while not rows_so_far(training):
        pass
    training.stop()
    training.stop()
    stopped = training.wait()
    assert 0 < stopped["steps"] < stopped["total_steps"]
    assert job.start(given).wait()["steps"] == stopped["total_steps"]


def rows_so_far(training) -> bool:
    return training.metrics_path.is_file() and '"event": "step"' in training.metrics_path.read_text("utf-8")


def test_a_forecast_measures_before_it_promises(run):
    found = plan.forecast(parameters(run))
    assert found["steps"] == plan.plan(parameters(run))["total_steps"]
    assert 0 < found["seconds"] < 60 and found["memory"] > 2**16
    budget = plan.forecast(parameters(run, max_minutes=1.0))
    assert budget["seconds"] == 60 and budget["steps"] > found["steps"]
    assert budget["epochs"] > 2 and budget["tokens"] > found["tokens"]


def test_what_is_rarely_meant_is_said_before(run):
    concerns = " ".join(plan.forecast(parameters(run))["concerns"])
    assert "never occur in the training text" in concerns  # 400 tokens, a text of five words
    assert "updates: the model will hardly learn" in concerns


def test_a_context_that_no_document_fills_is_said(run):
    manifest = open_room(run, "tokenize")
    manifest["result"] |= {"n_ctx": 64, "stride": 64, "packing": "documents"}
    write_text(paths.room(run, "tokenize") / "manifest.json", json.dumps(manifest))
    assert "no document is longer" in " ".join(plan.forecast(parameters(run))["concerns"])


def test_a_budget_too_short_for_one_update_is_refused(run):
    with pytest.raises(ValueError, match="nothing would be learnt"):
        plan.forecast(parameters(run, max_minutes=1e-7))


@pytest.mark.parametrize("wrong", [{"max_minutes": -1.0}, {"devices": 0}, {"parallel": "magic"}, {"epochs": 0}])
def test_a_plan_that_makes_no_sense_is_refused(run, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        plan.plan(parameters(run, **wrong))


def test_a_trial_leaves_the_runs_model_alone(run, tmp_path):
    job.start(parameters(run)).wait()
    before = weights(run)
    found = job.trial(parameters(run, lr=5e-3), 1.0, tmp_path / "elsewhere")
    assert found["steps"] > 5 and found["seconds"] < 3 and (tmp_path / "elsewhere" / "metrics.jsonl").is_file()
    assert all(torch.equal(p, before[name]) for name, p in weights(run).items())


def test_the_librarys_generate_writes_no_padding_even_if_the_model_would(run, capsys):
    job.start(parameters(run)).wait()
    model = AutoModelForCausalLM.from_pretrained(paths.room(run, "train") / "final_model").eval()
    tok = tokenizer.load(paths.room(run, "vocab"))
    special = set(tok.all_special_ids) - {tok.eos_token_id}
    with torch.no_grad():
        model.get_input_embeddings().weight[sorted(special)] *= 1000.0  # tied to the output: they win, or lose, it all
    start = torch.full((20, 1), tok.bos_token_id)
    torch.manual_seed(0)
    with torch.no_grad():
        assert set(model(start).logits[:, -1].argmax(-1).tolist()) <= special
    written = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, max_new_tokens=5)
    ended = (written == tok.eos_token_id).cumsum(1).bool()  # `generate` fills up behind the end
    assert not set(written[:, 1:][~ended[:, 1:]].tolist()) & special
