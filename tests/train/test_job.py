"""Room 04 with a run's rooms: one model beside another, a thread that can be stopped, a trial, several processes."""

import contextlib
import dataclasses
import json
import random
import shutil
import threading
from pathlib import Path

import pytest
import torch
from models import settings, weights
from transformers import AutoModelForCausalLM

from helpers import files, paths
from helpers.train import job, plan, trainer


def test_the_plan_is_what_the_run_does(run):
    given = settings(run)
    training = job.start_training(given)
    figures = training.wait()
    assert figures["steps"] == training.total_steps == plan.plan_run(given)["total_steps"]
    assert not training.running
    assert job.say_beforehand(given) == f"the training in model/ goes on after update {figures['steps']}"
    makes_way = f"the model of {figures['steps']} updates that is there now is kept in model-previous/"
    assert job.say_beforehand(settings(run, lr=0.5)) == f"a new training begins in model/; {makes_way}"


def test_a_pretrained_model_that_was_trained_anew_in_its_folder_is_begun_with_again(run, tmp_path):
    job.start_training(settings(run)).wait()
    base = tmp_path / "base"
    shutil.copytree(paths.room(run, "train") / "final_model", base)
    further = settings(run, pretrained_model=str(base), lr=1e-12)
    job.start_training(further).wait()
    trained = weights(run)
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    model.save_pretrained(base)
    job.start_training(further).wait()
    name = "transformer.wte.weight"
    torch.testing.assert_close(weights(run)[name], 2 * trained[name])


def test_a_stop_that_comes_while_processes_start_is_heeded(run, tmp_path):
    """Where `launch` has made the room ready, its processes do not: STOP lies there for them. An old one is removed."""
    job.prepare_room(settings(run))
    stop, file = paths.room(run, "train") / "STOP", tmp_path / "parameters.json"
    file.write_text(json.dumps(dataclasses.asdict(settings(run))), "utf-8")
    stop.touch()
    job._prepared(file, room_is_ready=True)
    assert stop.exists()
    job._prepared(file, room_is_ready=False)
    assert not stop.exists()


def test_a_run_goes_on_where_auto_means_another_precision(run, monkeypatch):
    """From a CPU to a card without bf16: there is no loss scale to restore."""
    updates = iter(range(100))
    monkeypatch.setattr(trainer.machine, "pick_precision", lambda *_: "fp32")
    job.prepare_room(settings(run))
    stopped = job.run_training(settings(run), stop=lambda: next(updates) == 3)
    assert 0 < stopped["steps"] < stopped["total_steps"]
    monkeypatch.setattr(trainer.machine, "pick_precision", lambda *_: "fp16")
    assert job.run_training(settings(run))["steps"] == stopped["total_steps"]


@pytest.mark.parametrize("wrong", [{"n_embd": 17}, {"device": "gpu"}], ids=str)
def test_what_cannot_be_trained_is_refused_before_the_model_that_is_there_makes_way(run, wrong):
    job.start_training(settings(run)).wait()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        job.start_training(settings(run, **{"lr": 0.1} | wrong))
    assert weights(run) and not (paths.run_dir(run) / "model-previous").exists()


@pytest.mark.parametrize("seed", range(30))
def test_no_model_is_ever_lost_whatever_is_trained_after_it(tmp_path, monkeypatch, seed, capsys):
    """Trainings of three settings, with and without `resume`, some killed between two renames, some failed before they
    had any weights: all that there are stay, those of the same settings go on, and what happens was said before."""
    chance, folder, made, rename = random.Random(seed), tmp_path / "model", set(), Path.rename

    def deadly(self, target):
        rename(self, target)
        if chance.random() < 0.3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", deadly)
    for number in range(12):
        identity, resume = chance.choice("abc"), chance.random() < 0.7
        own, aside, words = job.foresee(folder, identity, resume)
        trained = own is not None and (own / "model.safetensors").is_file()
        capsys.readouterr()  # what was said before it was killed
        with contextlib.suppress(KeyboardInterrupt):
            job.claim(folder, identity, resume)
            assert (words in capsys.readouterr().out) == bool(aside or own and own != folder)
            weights = folder / "model.safetensors"
            assert (weights.is_file() and weights.read_text("ascii")[0]) == (trained and identity)
            if not trained and chance.random() < 0.8:
                made.add(f"{identity}{number}")
                weights.write_text(f"{identity}{number}", "ascii")
        assert {file.read_text("ascii") for file in tmp_path.glob("*/model.safetensors")} == made


def test_of_several_models_with_the_same_settings_the_longest_trained_goes_on(tmp_path):
    for name, step in (("previous", 30), ("previous-2", 900), ("previous-3", 30)):
        (tmp_path / f"model-{name}" / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        (tmp_path / f"model-{name}" / "identity.txt").write_text("a", "utf-8")
    job.claim(tmp_path / "model", "a", resume=False)  # one that failed at once
    own, aside, words = job.foresee(tmp_path / "model", "a", resume=True)
    assert (own.name, aside) == ("model-previous-2", None) and "goes on after update 900" in words


def test_a_file_that_asks_for_other_processes_than_were_started_is_refused(run, tmp_path, monkeypatch):
    file = tmp_path / "parameters.json"
    file.write_text(json.dumps(dataclasses.asdict(settings(run, devices=2))), "utf-8")
    with pytest.raises(ValueError, match="devices is 2, but 1 process.* were started"):
        job._prepared(file, room_is_ready=False)


def rows_so_far(training) -> bool:
    return training.metrics_path.is_file() and '"event": "step"' in training.metrics_path.read_text("utf-8")


def test_two_runs_never_train_in_one_folder(run, monkeypatch):
    """Another one has it: nothing is moved or written (test_files: it is killed, and the folder is free at once)."""
    job.start_training(settings(run)).wait()
    folder = paths.room(run, "train")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with job.keep_for_training(folder):
        with pytest.raises(RuntimeError, match="another program, or another notebook, is at work in .*model.*STOP"):
            job.start_training(settings(run, lr=5e-3))
        with pytest.raises(RuntimeError, match="another program"):
            job.run_training(settings(run))
        assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert job.start_training(settings(run, lr=5e-3)).wait()["steps"] > 0


def test_a_second_start_in_the_same_process_waits_for_the_first_to_end(run):
    training = job.start_training(settings(run, epochs=60))
    while not rows_so_far(training):
        pass
    threading.Timer(0.5, training.stop).start()
    again = job.start_training(settings(run, epochs=60))
    assert not training.running
    again.stop()
    assert again.wait()["steps"] > training.wait()["steps"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected an object of notebook 04's parameters"),
        ('{"epoch": 1}', "did you mean 'epochs'"),
        ('{"run": "nobody"}', "no run 'nobody'"),
        (None, "No such file"),
        ({"schedule": "cosin"}, "schedule"),
        ({"n_head": 3}, "cannot be divided among 3 heads"),
        ({"n_embd": "128"}, "parameters.json"),
        ({"device": "gpu"}, "device 'gpu' is unknown"),
        ({}, "another program"),
    ],
)
def test_a_command_that_cannot_run_says_why_in_a_line(run, tmp_path, monkeypatch, given, words):
    monkeypatch.setattr(job, "StopSignals", lambda: None)  # no handlers in this process
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    monkeypatch.setattr("sys.argv", ["train", str(tmp_path / "parameters.json")])
    text = json.dumps(dataclasses.asdict(settings(run)) | given) if isinstance(given, dict) else given
    if text is not None:
        (tmp_path / "parameters.json").write_text(text, "utf-8")
    with contextlib.ExitStack() as stack:
        if given == {}:  # all is well, but for the other one
            stack.enter_context(job.keep_for_training(paths.room(run, "train")))
        with pytest.raises(SystemExit, match=words):
            job.train_from_shell()
