"""Room 04: the settings are the notebook's parameters: the same names, the same defaults, numbers in their ranges."""

import json
from dataclasses import FrozenInstanceError, asdict

import pytest

from helpers.manifest import notebook_parameters
from helpers.train.settings import TrainSettings, names_that_affect


def test_they_are_the_notebooks_parameters_with_its_defaults_in_its_order():
    parameters = notebook_parameters("train")
    assert list(asdict(TrainSettings()).items()) == list(parameters.items())
    assert TrainSettings.from_parameters(parameters) == TrainSettings()
    assert [type(value) for value in parameters.values()] == [type(v) for v in asdict(TrainSettings()).values()]


def test_they_survive_json():
    settings = TrainSettings(lr=3e-4, optimizer="adamw", resume=False)
    assert TrainSettings.from_parameters(json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.parametrize(
    "wrong",
    [{"max_minutes": -1.0}, {"parallel": "magic"}, {"rungs": [[0.5]]}, {"rungs": [0.5, 3.2]}, {"rungs": [[1.0, 3.0]]}]
    + [{name: -1} for name in ("n_embd", "epochs", "batch_size", "gradient_accumulation", "lr")]
    + [{name: 0} for name in ("devices", "log_step")],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainSettings(**wrong)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="no parameter 'learning_rates'"):
        TrainSettings.from_parameters({"learning_rates": 1.0})
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        TrainSettings.from_parameters({"batchsize": 1})


def test_they_do_not_change():
    with pytest.raises(FrozenInstanceError):
        TrainSettings().lr = 1.0


def test_a_run_is_resumed_where_only_speed_or_watching_differ():
    """Another device, number of processes or rhythm of the log is the same run; another rate or seed is not."""
    same = TrainSettings(
        run="b", log_step=1, devices=2, device="cuda", parallel="fsdp", resume=False, compile=True, patience=2
    )
    assert same.identity() == TrainSettings().identity()
    for changed in ({"lr": 1.0}, {"seed": 1}, {"n_layer": 9}, {"precision": "fp32"}, {"epochs": 3}):
        assert TrainSettings(**changed).identity() != TrainSettings().identity()
    kinds = [names_that_affect(what) for what in ("result", "speed", "watching", "end")]
    assert sum(map(len, kinds)) == len(set.union(*kinds)) == len(asdict(TrainSettings()))
    assert {"run", "resume", "log_step"} <= names_that_affect("watching")
