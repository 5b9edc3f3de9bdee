"""Room 04: the loop does what the formula says, loses nothing, and can be stopped and continued."""

import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers import checkpoint, launch, paths, tokenizer, tokens, train
from helpers import model as models
from helpers.tokens import IGNORE, Windows

TOK = tokenizer.build({"浇水": 3, "今天": 2}, "今天浇水很热。")
CPU = torch.device("cpu")


class Numbers:
    """A stand-in token stream that counts: after each id comes the next one."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.size), dtype=np.int64) % 7 + 5


def tiny(seed: int = 0, dtype=torch.float32, **changes):
    shape = dict(n_ctx=8, n_embd=16, n_layer=2, n_head=2) | changes
    return models.build(models.config("gpt2", TOK, **shape), seed).to(dtype)


DEFAULTS = dict(
    epochs=2, batch_size=4, gradient_accumulation=2, optimizer="adamw", lr=1e-2, warmup_steps=2, schedule="cosine",
    final_lr_fraction=0.1, weight_decay=0.1, max_grad_norm=1.0, precision="fp32", device=CPU, seed=0, log_step=1,
    eval_step=0, sample_step=0, checkpoint_step=0, chars_per_token={"train": 1.5, "val": 1.5},
)  # fmt: skip


def fit(folder, model=None, **changes):
    folder.mkdir(exist_ok=True)
    windows = Windows(Numbers(200), 8, 8, 3), Windows(Numbers(50), 8, 4, 3, once=True)
    return train.fit(model or tiny(), *windows, folder, TOK, **(DEFAULTS | changes))


def rows(folder, event: str) -> list[dict]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row for row in lines if row["event"] == event]


def no_scaler():
    return torch.amp.GradScaler("cpu", enabled=False)


# ---------------------------------------------------------------- pieces


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_rate_warms_up_and_decays_to_its_end(schedule):
    """One article began its schedule at 1.1 x lr, another stepped it once an epoch: constant all along."""
    rates = [train.learning_rate(step, 100, 2.0, 10, schedule, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert max(rates) == 2.0
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    end = train.learning_rate(100, 100, 2.0, 10, schedule, 0.1)
    assert end == pytest.approx(2.0 if schedule == "constant" else 0.2)
    assert rates[-1] >= end


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule"):
        train.learning_rate(5, 10, 1.0, 0, "stairs", 0.0)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_one_group_and_only_matrices_decay(name):
    model = tiny()
    groups = [group for optimizer in train.make_optimizers(model, name, 0.1, 0.5) for group in optimizer.param_groups]
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    for group in groups:
        for p in group["params"]:
            assert (group["weight_decay"] > 0) == (p.ndim == 2)


def uneven_batch():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(5, len(TOK), (6, 8), generator=generator)
    labels = torch.randint(5, len(TOK), (6, 8), generator=generator)
    labels[1, 2:] = IGNORE
    labels[4, 5:] = IGNORE
    return inputs, labels


@pytest.mark.parametrize("sizes", [[6], [1, 5], [2, 2, 2], [1] * 6])
def test_accumulation_equals_the_big_batch(sizes):
    """Also with uneven labels in the micro-batches: fp64, 1e-12, against the mean over the whole batch."""
    model = tiny(dtype=torch.float64)
    inputs, labels = uneven_batch()
    logits = model(input_ids=inputs).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE).backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    batches = list(zip(inputs.split(sizes), labels.split(sizes), strict=True))

    n_labels = int((labels != IGNORE).sum())
    train.accumulate(train.Loss(model), batches, n_labels, "fp32", CPU, no_scaler())
    for p, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_the_loss_in_chunks_is_the_loss(monkeypatch, rows):
    """Value, right guesses and all gradients against torch's cross-entropy over whole logits: fp64, 1e-12."""
    monkeypatch.setattr(train, "CHUNK", rows * len(TOK))
    model = tiny(dtype=torch.float64)
    inputs, labels = uneven_batch()
    logits = model(input_ids=inputs).logits.flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE, reduction="sum")
    wanted.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss, correct = train.Loss(model)(inputs, labels)
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    assert correct == (logits.argmax(-1) == labels.flatten()).sum()
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-12, atol=1e-14)


def test_a_batch_without_labels_has_loss_and_gradient_0():
    model = tiny()
    inputs, labels = uneven_batch()
    loss, correct = train.Loss(model)(inputs, torch.full_like(labels, IGNORE))
    loss.backward()
    assert loss == correct == 0
    assert all((p.grad == 0).all() for p in model.parameters())


def test_masked_positions_have_no_gradient():
    """labels = input_ids taught one tutorial's model to predict padding: loss 2.25 at 19 % accuracy."""
    model = tiny()
    inputs, labels = uneven_batch()
    labels[:, 3:] = IGNORE
    grads = []
    for filler in (3, 5):
        inputs[:, 3:] = filler
        model.zero_grad()
        loss, _ = train.Loss(model)(inputs, labels)
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    wte, wpe = dict(model.named_parameters())["transformer.wte.weight"], model.transformer.wpe.weight
    assert (wpe.grad[3:] == 0).all()
    for p, one, two in zip(model.parameters(), *grads, strict=True):
        if p is not wte:
            assert torch.equal(one, two)


def test_a_large_loss_scale_changes_nothing():
    """The book clipped while gradients were still scaled: with scale 65536 its step shrank to about 0.0014 of lr."""
    weights = []
    for scaler in (no_scaler(), torch.amp.GradScaler("cpu", init_scale=65536.0)):
        model = tiny()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.5)]
        inputs, labels = uneven_batch()
        n_labels = int((labels != IGNORE).sum())
        train.accumulate(train.Loss(model), [(inputs, labels)], n_labels, "fp32", CPU, scaler)
        norm = train.update(optimizers, list(model.parameters()), 0.1, scaler)
        assert norm > 0.1  # so that clipping happens
        weights.append([p.detach().clone() for p in model.parameters()])
    for one, two in zip(*weights, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_clipping_is_torchs_on_the_accumulated_gradient():
    """Clipping at every micro-batch bends the direction of the sum; here it happens once an update."""
    model, reference = tiny(), tiny()
    inputs, labels = uneven_batch()
    n_labels = int((labels != IGNORE).sum())
    loss, _ = train.Loss(reference)(inputs, labels)
    (loss / n_labels).backward()
    wanted = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    train.accumulate(
        train.Loss(model), list(zip(inputs.split(2), labels.split(2), strict=True)), n_labels, "fp32", CPU, no_scaler()
    )
    norm = train.update([torch.optim.SGD(model.parameters(), lr=1.0)], list(model.parameters()), 0.05, no_scaler())
    assert norm == pytest.approx(wanted, rel=1e-5)
    for one, two in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


def test_a_gradient_that_is_not_finite_changes_no_weight():
    model = tiny()
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, math.nan)
    assert math.isnan(train.update([torch.optim.AdamW(model.parameters())], list(model.parameters()), 1.0, no_scaler()))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("world", "n"), [(1, 9), (2, 9), (4, 9), (4, 2)])
def test_processes_share_an_update_without_loss_or_overlap(world, n):
    parts = [train.share(np.arange(n), 2, rank, world) for rank in range(world)]
    assert sorted(int(i) for part in parts for batch in part for i in batch) == list(range(n))
    assert all(part for part in parts)


def test_evaluation_scores_each_token_once_without_dropout():
    model = tiny(dropout=0.5).train()
    windows = Windows(Numbers(50), 8, 4, 3, once=True)
    found = train.evaluate(train.Loss(model), windows, 3, "fp32", CPU)
    assert found["tokens"] == 49
    assert train.evaluate(train.Loss(model), windows, 5, "fp32", CPU) == pytest.approx(found, rel=1e-5)
    assert model.training


# ---------------------------------------------------------------- the loop


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_learns_to_count(tmp_path, optimizer):
    figures = fit(tmp_path / "m", epochs=25, lr=3e-2, optimizer=optimizer)
    steps = rows(tmp_path / "m", "step")
    assert steps[0]["loss"] == pytest.approx(math.log(len(TOK)), abs=0.3)
    assert figures["val_loss"] < 0.5 < 2.5 < steps[0]["loss"]
    assert figures["accuracy"] > 0.9
    assert figures["val_bits_per_char"] == pytest.approx(figures["val_loss"] / math.log(2) / 1.5)


def test_steps_checkpoints_and_rows_are_exact(tmp_path):
    """25 windows, 8 an update: 4 updates an epoch, the last one smaller; one checkpoint an epoch, not one a shard."""
    folder = tmp_path / "m"
    figures = fit(folder, epochs=3)
    assert figures["steps"] == figures["total_steps"] == 12
    assert [row["step"] for row in rows(folder, "step")] == list(range(1, 13))
    assert [row["step"] for row in rows(folder, "checkpoint")] == [4, 8, 12]
    assert sorted(path.name for path in folder.glob("epoch-*")) == ["epoch-1", "epoch-2", "epoch-3"]
    assert rows(folder, "end")[0]["reason"] == "finished"
    assert rows(folder, "sample")
    assert list(folder.glob("tensorboard/events*"))


def test_the_final_model_is_the_trained_one(tmp_path):
    model = tiny()
    fit(tmp_path / "m", model)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m" / "final_model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def stop_at(monkeypatch, step: int, folder):
    """Put STOP beside the run when update `step` begins."""
    real = train.learning_rate

    def rate(at, *rest):
        if at == step - 1:
            (folder / "STOP").touch()
        return real(at, *rest)

    monkeypatch.setattr(train, "learning_rate", rate)


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"optimizer": "muon"}], ids=["fp32", "bf16", "muon"])
@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch, changes, step):
    """Stopped inside an epoch, at its edge and after it, with dropout on: the end equals that of an unbroken run."""
    whole = tiny(dropout=0.1)
    fit(tmp_path / "whole", whole, **changes)
    folder = tmp_path / "parts"
    with monkeypatch.context() as patch:
        stop_at(patch, step, folder)
        stopped = fit(folder, tiny(dropout=0.1), **changes)
    assert stopped["steps"] == step
    assert rows(folder, "end")[-1]["reason"] == "stopped"
    (folder / "STOP").unlink()
    parts = tiny(seed=5, dropout=0.1)
    assert fit(folder, parts, **changes)["steps"] == 8
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    first = fit(tmp_path / "m")
    again = fit(tmp_path / "m")
    assert again["steps"] == first["steps"]
    assert again["seconds"] >= first["seconds"] - 0.5 and again["tokens_per_second"] == first["tokens_per_second"]
    assert again["val_loss"] == pytest.approx(first["val_loss"], rel=1e-6)


def test_another_runs_checkpoint_is_refused(tmp_path):
    fit(tmp_path / "m", identity="one")
    with pytest.raises(checkpoint.BadCheckpoint, match="other data or parameters"):
        fit(tmp_path / "m", identity="two")


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    real, calls = checkpoint.save, []

    def full_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", full_once)
    assert fit(tmp_path / "m")["steps"] == 8
    assert len(rows(tmp_path / "m", "checkpoint_failed")) == len(rows(tmp_path / "m", "checkpoint")) == 1
    assert "not saved" in capsys.readouterr().err


def test_a_run_that_only_fails_ends_with_an_error(tmp_path):
    """One article skipped failing batches in silence and reported loss 0."""
    model = tiny()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    with pytest.raises(RuntimeError, match="not finite"):
        fit(tmp_path / "m", model, epochs=5)


# ---------------------------------------------------------------- with a run's rooms


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose corpus, vocabulary and tokens are ready."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    corpus = paths.room("t", "corpus")
    corpus.mkdir(parents=True)
    for split, size in (("train", 40), ("val", 4)):
        lines = (json.dumps({"text": "今天浇水，很热。" * 2}, ensure_ascii=False) + "\n" for _ in range(size))
        (corpus / f"{split}-00000.jsonl").write_text("".join(lines), "utf-8")
    TOK.save_pretrained(paths.room("t", "vocab"))
    shards = tokens.write_shards("t", 2, workers=1)
    n_tokens = sum(shard["tokens"] for shard in shards["train"])
    result = dict(n_ctx=8, stride=8, dtype="uint16", windows=int(tokens.count_windows(n_tokens, 8, 8)))
    result |= dict(chars_per_token=1.0, val_chars_per_token=1.0, tokens=n_tokens, packing="stream")
    outputs = paths.room("t", "tokenize").glob("*.bin")
    paths.write_manifest("t", "tokenize", parameters={}, inputs=[], outputs=outputs, result=result)
    return "t"


def parameters(run: str, **changes) -> dict:
    fixed = {name: value for name, value in DEFAULTS.items() if name not in ("device", "chars_per_token")}
    shape = dict(architecture="gpt2", n_embd=16, n_layer=2, n_head=2, dropout=0.0)
    return dict(run=run, device="cpu", devices=1, resume=True) | fixed | shape | changes


def weights(run: str) -> dict:
    return dict(AutoModelForCausalLM.from_pretrained(paths.room(run, "train") / "final_model").named_parameters())


def test_the_plan_is_what_the_run_does(run):
    given = parameters(run)
    training = train.start(given)
    figures = training.wait()
    assert figures["steps"] == training.total_steps == train.plan(given)["total_steps"]
    assert not training.running


def test_a_warm_up_longer_than_the_run_is_refused(run):
    with pytest.raises(ValueError, match="warmup_steps"):
        train.plan(parameters(run, warmup_steps=1000))


def test_another_model_is_put_aside_not_destroyed(run):
    train.start(parameters(run)).wait()
    before = weights(run)
    train.start(parameters(run, lr=5e-3)).wait()
    previous = AutoModelForCausalLM.from_pretrained(paths.run_dir(run) / "model-previous" / "final_model")
    assert all(torch.equal(p, before[name]) for name, p in previous.named_parameters())
    assert any(not torch.equal(p, before[name]) for name, p in weights(run).items())


def test_an_error_in_the_thread_reaches_whoever_waits(run):
    with pytest.raises(ValueError, match="optimizer"):
        train.start(parameters(run, optimizer="magic")).wait()


def test_stop_ends_the_run_and_a_second_start_finishes_it(run):
    given = parameters(run, epochs=60)
    training = train.start(given)
    while not rows_so_far(training):
        pass
    training.stop()
    training.stop()
    stopped = training.wait()
    assert 0 < stopped["steps"] < stopped["total_steps"]
    assert train.start(given).wait()["steps"] == stopped["total_steps"]


def rows_so_far(training) -> bool:
    return training.metrics_path.is_file() and '"event": "step"' in training.metrics_path.read_text("utf-8")


def test_two_processes_equal_one_with_the_doubled_batch(run):
    """Through torchrun's own launcher, gloo on the CPU: parameters within 1e-6 after the whole run.

    A LLaMA-like model: GPT-2's key biases have gradient 0, and AdamW blows up the rounding noise in them.
    """
    same = dict(gradient_accumulation=1, architecture="llama")
    train.start(parameters(run, batch_size=4, **same)).wait()
    alone = weights(run)
    training = launch.start(parameters(run, batch_size=2, devices=2, **same))
    assert training.wait()["steps"] == training.total_steps
    for name, p in weights(run).items():
        torch.testing.assert_close(p, alone[name], rtol=1e-5, atol=1e-6)


def test_a_failing_process_is_an_error_here(run):
    with pytest.raises(RuntimeError, match="training processes failed"):
        launch.start(parameters(run, devices=2, optimizer="magic")).wait()
