"""What can be known of a GPU without one: where tensors are made, graph breaks, and what the benchmark says."""

import json

import pytest
import torch
from models import fit, make_trainer, plants_model, plants_tokenizer, tiny

from benchmarks import gpu
from benchmarks.generate_speed import our_writer
from helpers.generate.batch import DecodeBatch, Row
from helpers.generate.settings import Settings
from helpers.train.loss import Loss

FILTERS = {
    "greedy": dict(temperature=0.0),
    "filtered": dict(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, typical_p=0.95),
    "looking back": dict(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1, no_repeat_ngram=3),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


# ---- tensors are made where the model is: one whose place nobody names lands on "meta", which does not mix ----


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_an_update_makes_its_tensors_where_the_model_is(tmp_path, architecture, optimizer):
    trainer = make_trainer(tmp_path, tiny(architecture=architecture), optimizer=optimizer)
    with torch.device("meta"):
        assert trainer.step().loss > 0


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_a_token_makes_its_tensors_where_the_model_is(architecture, filters):
    tokenizer = plants_tokenizer()
    batch = DecodeBatch(plants_model(architecture, tokenizer), tokenizer)
    rows = [Row([1, 7 + n], Settings(seed=0, **filters), n) for n in range(3)]
    batch.add(rows)
    with torch.device("meta"):
        batch.step()
    assert all(row.new for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("architecture, dropout", [("gpt2", 0.0), ("llama", 0.0), ("llama", 0.1)])
def test_the_body_that_is_compiled_has_no_graph_break(architecture, dropout):
    body = Loss(tiny(architecture=architecture, dropout=dropout).train())._body
    found = torch._dynamo.explain(body)(torch.zeros(2, 8, dtype=torch.long))
    assert found.graph_break_count == 0, [str(each.reason) for each in found.break_reasons]


# ---- the benchmark ----


def test_without_a_gpu_the_benchmark_has_no_figures_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main()
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["aims"] == found["figures"] == {} and "no GPU" in printed.err


# ---- on a GPU ----


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "moe"])
def test_a_gpu_writes_the_cpus_text_past_the_first_size_of_its_cache(architecture):
    tokenizer = plants_tokenizer()
    models = [plants_model(architecture, tokenizer, n_ctx=128).to(device) for device in ("cpu", "cuda")]
    texts = [our_writer(model, tokenizer, [1, 7, 8], 3, 90, temperature=0.0)() for model in models]
    assert texts[0] == texts[1]


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_learns_what_the_cpu_learns_and_resumes_bit_for_bit(tmp_path):
    losses = {}
    for device in ("cpu", "cuda", "again"):
        trainer = make_trainer(tmp_path / device, tiny(architecture="llama"), device=device.replace("again", "cuda"))
        losses[device] = [trainer.step().loss for _ in range(4)]
    assert losses["cuda"] == losses["again"] == pytest.approx(losses["cpu"], rel=1e-3)
    whole, asked = fit(tmp_path / "whole", device="cuda"), iter(range(10**6))
    fit(tmp_path / "half", device="cuda", stop=lambda: next(asked) >= 3)
    assert fit(tmp_path / "half", device="cuda")["val_loss"] == whole["val_loss"]
