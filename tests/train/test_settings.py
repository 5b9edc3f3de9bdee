"""Room 04: the settings are the notebook's parameters: the same names, the same defaults, numbers in their ranges."""

import json
from dataclasses import asdict

import pytest

from helpers.manifest import notebook_parameters
from helpers.train.settings import TrainSettings


def test_they_are_all_that_can_be_set_of_the_notebook():
    parameters = notebook_parameters("train")
    assert asdict(TrainSettings()) == parameters
    assert TrainSettings.from_parameters(parameters) == TrainSettings()
    assert all(type(value) is type(parameters[name]) for name, value in asdict(TrainSettings()).items())


def test_they_survive_json():
    settings = TrainSettings(lr=3e-4, optimizer="adamw", resume=False)
    assert TrainSettings.from_parameters(json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.parametrize(
    "wrong",
    [{"max_minutes": -1.0}]
    + [{name: -1} for name in ("n_embd", "epochs", "batch_size", "gradient_accumulation", "lr")]
    + [{name: 0} for name in ("devices", "log_step", "n_experts")]
    + [{name: -1} for name in ("warmup_steps", "eval_step", "n_kv_head", "seed", "weight_decay", "max_grad_norm")]
    + [{name: 1.0} for name in ("momentum", "beta2", "dropout")]
    + [{"final_lr_fraction": -0.5}, {"final_lr_fraction": 1.5}, {"dropout": -0.5}]
    + [{name: value} for name in ("lr", "max_minutes", "max_grad_norm") for value in (float("nan"), float("inf"))]
    + [{"schedule": "cosin"}, {"optimizer": "adam"}, {"architecture": "lama"}, {"precision": "bf17"}]
    # of another type, as JSON or a cell of one's own may have it
    + [{"lr": "3e-3"}, {"epochs": 1.5}, {"batch_size": 8.0}, {"resume": "False"}, {"seed": True}],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainSettings(**wrong)


def test_a_whole_number_is_a_number_and_a_close_word_is_named():
    assert TrainSettings(lr=1, max_minutes=3).max_minutes == 3
    with pytest.raises(ValueError, match="schedule is 'cosin'; did you mean 'cosine'"):
        TrainSettings(schedule="cosin")
    with pytest.raises(ValueError, match="lr is '3e-3': give a number, like 0.0"):
        TrainSettings(lr="3e-3")


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="no parameter 'learning_rates'"):
        TrainSettings.from_parameters({"learning_rates": 1.0})
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        TrainSettings.from_parameters({"batchsize": 1})


def test_a_run_is_resumed_where_only_speed_or_watching_differ():
    """Another device or rhythm of the log is the same run; another rate or seed, or larger updates, are not."""
    same = TrainSettings(run="b", log_step=1, device="cuda", resume=False, compile=True, patience=2)
    assert same.identity() == TrainSettings().identity()
    decided = dict(batch_size=8, gradient_accumulation=2)
    assert TrainSettings(**decided, devices=2).identity() != TrainSettings(**decided).identity()
    alone = TrainSettings(batch_size=8, gradient_accumulation=4)  # as many windows, in four passes
    assert TrainSettings(**decided, devices=2).identity() == alone.identity()
    for changed in ({"lr": 1.0}, {"seed": 1}, {"n_layer": 9}, {"precision": "fp32"}, {"epochs": 3}):
        assert TrainSettings(**changed).identity() != TrainSettings().identity()
