"""Room 04: the loop does what the formula says, counts what it does, and goes on where it was."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import CPU, FIRST, PAD, TOK, Numbers, fit, make_trainer, rows, tiny
from safetensors.torch import load_file

from helpers.model.huggingface import load_model
from helpers.tokens.windows import IGNORE, Windows, epoch_order
from helpers.train import checkpoint, milestones, trainer
from helpers.train.loss import Loss


class OneBatch:
    """Windows that are six random rows, two of them with fewer labels."""

    n_ctx, packed = 8, False

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randint(FIRST, len(TOK), (6, 8), generator=generator)
        self.labels = torch.randint(FIRST, len(TOK), (6, 8), generator=generator)
        self.labels[1, 2:] = IGNORE
        self.labels[4, 5:] = IGNORE
        self.lengths = (self.labels != IGNORE).sum(1).numpy()

    def __len__(self) -> int:
        return len(self.inputs)

    def count_labels(self, indices) -> int:
        return int(self.lengths[indices].sum())

    def batch(self, indices):
        return self.inputs[list(indices)], self.labels[list(indices)]


# ---- one step ----


@pytest.mark.parametrize(("batch_size", "accumulation"), [(6, 1), (5, 2), (2, 3), (1, 6)])
def test_accumulation_equals_the_big_batch(tmp_path, batch_size, accumulation):
    """Also with uneven labels in the micro-batches: fp64, 1e-12, against the mean over the whole batch."""
    windows, model = OneBatch(), tiny(dtype=torch.float64)
    inputs, labels = windows.inputs, windows.labels
    logits = model(inputs)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE).backward()
    wanted = [p.grad.clone() for p in model.parameters()]

    one = make_trainer(
        tmp_path, model, train=windows, batch_size=batch_size, gradient_accumulation=accumulation, max_grad_norm=0.0
    )
    update = one.step()
    for p, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-12, atol=1e-14)
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    assert sorted(update.windows) == list(range(6))
    losses = each.sum(1).detach()
    torch.testing.assert_close(update.window_losses, losses[update.windows], rtol=1e-12, atol=1e-12)
    assert update.loss == pytest.approx(float(losses.sum()), rel=1e-12)
    assert update.labels == (labels != IGNORE).sum()
    assert update.correct == int((logits.argmax(-1) == labels).sum())


def test_memory_that_runs_out_in_the_optimizer_is_not_tried_again(tmp_path, monkeypatch):
    """Some weights may have moved by then: a second try would move them twice."""
    one = make_trainer(tmp_path)

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer.optim, "step", full)
    with pytest.raises(torch.OutOfMemoryError):
        one.step_in_memory()
    assert one.session.micro_batch == 4


def test_evaluation_scores_each_token_once_without_dropout():
    model = tiny(dropout=0.5).train()
    windows = Windows(Numbers(50), 8, 4, PAD, once=True)
    scores = milestones.evaluate(Loss(model), windows, 3, "fp32", CPU)
    assert scores["tokens"] == 49
    assert milestones.evaluate(Loss(model), windows, 5, "fp32", CPU) == pytest.approx(scores, rel=1e-5)
    assert model.training


# ---- the run ----


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_learns_to_count(tmp_path, optimizer):
    figures = fit(tmp_path / "m", size=1600, epochs=3, lr=3e-2, optimizer=optimizer)
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
    assert all(0 < row["update_ratio"] < 1 and row["memory"] > 2**20 for row in rows(folder, "step"))
    assert rows(folder, "end")[0]["reason"] == "finished" and rows(folder, "sample")
    assert list(folder.glob("tensorboard/events*"))


@pytest.mark.parametrize(("keep", "wanted"), [(3, [2, 3, 4]), (1, [4]), (9, [1, 2, 3, 4]), (0, [])])
def test_of_the_epochs_models_the_newest_stay(tmp_path, keep, wanted):
    fit(tmp_path, epochs=4, keep=keep)
    assert sorted(path.name for path in tmp_path.glob("epoch-*")) == [f"epoch-{number}" for number in wanted]


def test_an_epochs_row_is_the_mean_over_its_labels(tmp_path):
    """A mean of the updates' means would count the last, small update as much as the others."""
    fit(tmp_path / "m", gradient_accumulation=1)
    steps, epochs = rows(tmp_path / "m", "step"), rows(tmp_path / "m", "epoch")
    lengths = Windows(Numbers(200), 8, 8, PAD).lengths
    assert [row["epoch"] for row in epochs] == [1, 2]
    for number, epoch in enumerate(epochs):
        labels = [lengths[part].sum() for part in np.split(epoch_order(lengths, 0, number), range(4, 25, 4))]
        for name in ("loss", "accuracy"):
            of_updates = [row[name] for row in steps[7 * number : 7 * number + 7]]
            assert epoch[name] == pytest.approx(np.average(of_updates, weights=labels), rel=1e-9)
    assert epochs[1]["loss"] < epochs[0]["loss"] and epochs[1]["seconds"] > 0


def test_speed_and_time_left_are_what_a_clock_says(tmp_path, monkeypatch):
    """A clock that stands still but for a quarter of a second in each forward pass: two of them are an update."""
    now = [100.0]
    for module in ("trainer", "milestones"):
        monkeypatch.setattr(f"helpers.train.{module}.time", SimpleNamespace(perf_counter=lambda: now[0]))
    loop = make_trainer(tmp_path / "m", log_step=2)
    forward = loop.loss_of

    def slow(*batch):
        now[0] += 0.25
        return forward(*batch)

    loop.loss_of = slow
    loop.run()
    lengths = Windows(Numbers(200), 8, 8, PAD).lengths
    parts = [part for epoch in range(2) for part in np.split(epoch_order(lengths, 0, epoch), range(8, 25, 8))]
    labels = [int(lengths[part].sum()) for part in parts]  # of each update; an epoch's last one has a single window
    seconds = [0.25 * -(-len(part) // 4) for part in parts]
    for row in rows(tmp_path / "m", "step"):
        done = row["step"]
        speed = sum(labels[done - 2 : done]) / sum(seconds[done - 2 : done])
        assert row["tokens_per_second"] == pytest.approx(speed)
        assert row["mfu"] == pytest.approx(speed * loop.pace.flops_per_token / loop.pace.peak_flops)
        assert row["train_seconds"] == pytest.approx(sum(seconds[:done]))
        assert row["seconds_left"] == pytest.approx((8 - done) * sum(seconds[:done]) / done)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_are_computed_in_the_precision_that_was_asked_for_and_backward_outside_of_it(
    tmp_path, precision, dtype
):
    """Weights and their gradients stay fp32; the backward pass repeats the casts of the forward pass by itself."""
    products, within, backward = set(), [], []
    loop = make_trainer(tmp_path / "m", precision=precision)

    def product(module, inputs, output):
        if module.training:  # samples are written in fp32, in the other mode
            products.add(output.dtype)

    for name, module in loop.model.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(product)
    for parameter in loop.parameters:
        parameter.register_post_accumulate_grad_hook(lambda _: backward.append(torch.is_autocast_enabled("cpu")))
    forward = loop.loss_of
    loop.loss_of = lambda *batch: (within.append(torch.is_autocast_enabled("cpu")), forward(*batch))[1]
    loop.run()
    assert products == {dtype} and set(within) == {precision == "bf16"} and set(backward) == {False}
    assert {parameter.dtype for parameter in loop.parameters} == {torch.float32}
    assert rows(tmp_path / "m", "start")[0]["precision"] == precision


def stop_at(step: int):
    """Return a function that asks for the end after update `step`."""
    asked = iter(range(1, 10**6))
    return lambda: next(asked) >= step


def test_the_best_checkpoint_becomes_the_final_model_when_it_gets_worse(tmp_path):
    """A rate far too high at the end of a run: the weights of its best validation are the ones that count."""
    folder = tmp_path / "m"
    fit(folder, size=800, epochs=2, lr=3e-2)  # 26 updates
    figures = fit(folder, size=800, epochs=6, lr=20.0, warmup_steps=60)
    losses = {row["step"]: row["loss"] for row in rows(folder, "validation")}
    lowest = min(losses, key=losses.get)
    assert lowest < 78 and losses[78] > 2 * losses[lowest]
    best = folder / "checkpoints" / f"step-{lowest:08d}"
    assert checkpoint.verify_checkpoint(best)["val_loss"] == losses[lowest] == figures["val_loss"]
    final = load_model(folder / "final_model").state_dict()
    saved = load_file(best / "model.safetensors")
    assert all(torch.equal(final[name], tensor) for name, tensor in saved.items())
    assert [row["of_step"] for row in rows(folder, "best")] == [lowest]


def test_weights_that_are_broken_in_the_end_give_way_to_the_best(tmp_path):
    """The last validation is not a number: no comparison with it may be taken for a better loss."""
    one = make_trainer(tmp_path, size=800, epochs=2, eval_step=5)
    wanted = one.run()
    best = {name: p.clone() for name, p in one.model.state_dict().items()}
    with torch.no_grad():
        one.parameters[0].fill_(math.nan)
    one.milestones.log = SimpleNamespace(write=lambda *_, **__: None)  # the run has closed its own
    scores = one.milestones.return_to_best(one.milestones.score())
    assert scores["loss"] == pytest.approx(wanted["val_loss"])
    assert all(torch.equal(p, best[name]) for name, p in one.model.state_dict().items())


def test_patience_ends_a_run_that_gets_no_better_and_more_patience_goes_on_bit_for_bit(tmp_path):
    """A rate at which it cannot learn: three validations in a row are no better than the one before them."""
    bad = dict(size=800, epochs=6, lr=20.0, warmup_steps=0, eval_step=5, final_lr_fraction=1.0)
    whole, parts = tiny(), tiny()
    fit(tmp_path / "whole", whole, **bad)
    folder = tmp_path / "parts"
    figures = fit(folder, parts, patience=3, **bad)
    losses = {row["step"]: row["loss"] for row in rows(folder, "validation")}
    steps, best = list(losses), min(losses, key=losses.get)
    assert figures["steps"] == steps[-1] < figures["total_steps"] == 78
    assert steps.index(best) == len(steps) - 4 and figures["val_loss"] == losses[best]
    assert rows(folder, "end")[-1]["reason"] == "no better for 3 validations"
    assert fit(folder, tiny(), patience=3, **bad)["steps"] == steps[-1]  # again: there is nothing left to do
    assert fit(folder, parts, **bad)["steps"] == 78
    assert {row["step"]: row["loss"] for row in rows(folder, "validation")} == {
        row["step"]: row["loss"] for row in rows(tmp_path / "whole", "validation")
    }
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


@pytest.mark.parametrize(
    ("where", "way"), [("epoch", "file"), ("best", "file"), ("best", "signal"), ("after", "signal")]
)
def test_a_stop_changes_nothing_of_when_a_run_ends_or_of_what_is_best(tmp_path, where, way):
    """Stopped at an epoch's end, at its best validation and between two of them; it goes on as if never stopped."""
    options = dict(size=800, epochs=6, lr=0.3, warmup_steps=0, eval_step=5, final_lr_fraction=1.0, patience=3)
    whole, parts, folder = tiny(), tiny(), tmp_path / "parts"
    wanted = fit(tmp_path / "whole", whole, **options)
    judged = {row["step"]: row["loss"] for row in rows(tmp_path / "whole", "validation")}
    best = list(judged)[-4]  # three validations that were no better ended it
    assert wanted["val_loss"] == judged[best] and wanted["steps"] < wanted["total_steps"] and best > 13
    step = {"epoch": best // 13 * 13, "best": best, "after": best + 3}[where]
    asked = iter(range(1, 10**6))

    def touch_before() -> bool:
        if next(asked) == step - 1:  # the update after this one sees it
            (folder / "STOP").touch()
        return False

    assert fit(folder, parts, **options, stop=stop_at(step) if way == "signal" else touch_before)["steps"] == step
    (folder / "STOP").unlink(missing_ok=True)
    figures = fit(folder, parts, **options)
    assert figures["steps"] == wanted["steps"] and figures["val_loss"] == wanted["val_loss"]
    again = {row["step"]: row["loss"] for row in rows(folder, "validation")}
    assert judged.items() <= again.items() and set(again) - set(judged) <= {step}
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_time_budget_ends_when_the_time_does(tmp_path, monkeypatch, optimizer):
    """By a clock that each forward pass moves on: the rate has come down by then, and a run that is continued keeps to
    the same clock."""
    now, folder = [0.0], tmp_path / "m"
    for module in ("trainer", "milestones"):
        monkeypatch.setattr(f"helpers.train.{module}.time", SimpleNamespace(perf_counter=lambda: now[0]))
    real = Loss.forward

    def slow(self, *batch):
        now[0] += 0.05
        return real(self, *batch)

    monkeypatch.setattr(Loss, "forward", slow)
    options = dict(max_minutes=3 / 60, schedule="linear", final_lr_fraction=0.0, warmup_steps=10, optimizer=optimizer)
    fit(folder, **options, stop=stop_at(4))
    figures = fit(folder, **options)
    assert figures["seconds"] == pytest.approx(3, abs=0.3)
    rates = [row["lr"] for row in rows(folder, "step")]
    assert figures["steps"] > 15 and rates[-1] < 0.2 * max(rates) and max(rates) > 0.5e-2
    assert rows(folder, "end")[-1]["reason"] == "finished"
    assert not list(folder.glob("epoch-*"))  # there may be hundreds


def break_weights(patch, after: int) -> None:
    """Let the optimizers make weights NaN in update number `after`."""
    real, calls = trainer.optim.step, []

    def step(optimizers, scaler, finite):
        real(optimizers, scaler, finite)
        calls.append(finite)
        if len(calls) == after:
            with torch.no_grad():
                optimizers[0].param_groups[0]["params"][0].fill_(math.nan)

    patch.setattr(trainer.optim, "step", step)


def test_a_model_that_broke_takes_no_sound_checkpoints_place(tmp_path, monkeypatch):
    """Its weights become NaN after update 11: what is kept is from before, and the run can go on from there."""
    for same in (dict(checkpoint_step=2, sample_step=1), dict(checkpoint_step=0, eval_step=4, sample_step=5)):
        folder = tmp_path / str(same["checkpoint_step"])
        with monkeypatch.context() as patch:
            break_weights(patch, after=11)
            with pytest.raises(milestones.Diverged, match="not finite"):
                fit(folder, epochs=9, **same)
        kept = sorted((folder / "checkpoints").iterdir())
        assert kept and not list(folder.glob("epoch-[3-9]"))
        assert fit(folder, epochs=9, **same)["skipped"] == 0


def test_a_model_that_breaks_in_its_last_updates_is_no_final_model(tmp_path, monkeypatch):
    break_weights(monkeypatch, after=7)
    with pytest.raises(milestones.Diverged, match="a weight is NaN"):
        fit(tmp_path / "m", checkpoint_step=2, epochs=1, size=520)
    assert not (tmp_path / "m" / "final_model").exists()
    (end,) = rows(tmp_path / "m", "end")
    assert end["reason"] == "weights not finite" and end["step"] > 7
    assert rows(tmp_path / "m", "checkpoint_failed")[0]["reason"] == "a weight is NaN or infinite"


@pytest.mark.parametrize(
    ("way", "ended"),
    [
        (dict(), "finished"),
        (dict(max_minutes=1 / 600), "finished"),
        (dict(epochs=30, lr=1e-9, patience=2, eval_step=2, warmup_steps=0), "no better"),
        ("STOP", "stopped"),
    ],
    ids=str,
)
def test_however_a_run_ends_it_says_how_and_shows_a_row_and_what_it_writes(tmp_path, way, ended):
    """A file STOP lies there from its first update on: before any row is due, any sample and any validation."""
    if way == "STOP":
        (tmp_path / "STOP").touch()
    figures = fit(tmp_path, log_step=100, **({} if way == "STOP" else way))
    assert figures["ended"] == ended and (figures["steps"] == figures["total_steps"]) == (ended == "finished")
    for event in ("step", "sample"):
        assert [row["step"] for row in rows(tmp_path, event)][-1:] == [figures["steps"]] or ended == "no better"
    assert rows(tmp_path, "sample") and (tmp_path / "final_model" / "config.json").is_file()


def test_a_spike_names_the_windows_it_came_from(tmp_path, monkeypatch):
    """One window of the last epochs is made hard: ids that never follow each other."""
    real = Windows.__getitem__
    calls = []

    def odd(self, index):
        inputs, labels = real(self, index)
        calls.append(index)
        if index == 113 and len(calls) > 600:
            labels = np.where(labels == IGNORE, IGNORE, 200)
        return inputs, labels

    monkeypatch.setattr(Windows, "__getitem__", odd)
    fit(tmp_path / "m", size=1600, epochs=5, lr=2e-2, gradient_accumulation=1, schedule="constant")
    spikes = rows(tmp_path / "m", "spike")
    assert spikes and spikes[0]["windows"][0]["index"] == 113
    assert spikes[0]["loss"] > spikes[0]["usual"] and spikes[0]["windows"][0]["text"]


@pytest.mark.slow
def test_fp16_finds_its_scale_and_learns(tmp_path):
    """A scale that is too large at first only costs skipped updates; the row says how many, and the scale."""
    figures = fit(tmp_path / "m", size=1600, epochs=3, lr=3e-2, precision="fp16")
    assert figures["val_loss"] < 0.7
    assert rows(tmp_path / "m", "step")[-1]["scale"] > 0


def test_a_mixture_of_experts_logs_their_load(tmp_path):
    model = tiny(architecture="moe", n_experts=4, experts_per_token=1)
    fit(tmp_path / "m", model)
    load = rows(tmp_path / "m", "step")[-1]["expert_load"]
    assert len(load) == 2 and all(sum(layer) == pytest.approx(1, abs=1e-3) and len(layer) == 4 for layer in load)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"precision": "fp16"}, {"compile": True}], ids=str)
def test_it_learns_to_count_on_a_gpu(tmp_path, changes):
    options = dict(size=1600, epochs=3, lr=3e-2, optimizer="muon", device="cuda:0") | changes
    assert fit(tmp_path / "m", **options)["val_loss"] < 0.7
