"""A sweep (grid search): a run for each combination of values, trials of an Optuna study.

Several processes may work at one study, on any machines that share the folder, and the same command goes on after one
was killed. Knows no model: a trial is our notebooks, judged by what notebook 04 finds.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from helpers import paths
from helpers.files import fingerprint, write_text
from helpers.manifest import MANIFEST, notebook_parameters, read_manifest, unfinished
from helpers.run.execute import StageFailed, run_stages
from helpers.run.parameters import Refused, Values, load_yaml, plan_parameters
from helpers.wording import install

_STAGES = ["corpus", "vocab", "tokenize", "train"]  # of each run
MOST_COMBINATIONS = 10_000


def run_sweep(asked: argparse.Namespace) -> int:
    """Check all values, make the rooms that runs share, run trials until none is left; return the exit code."""

    def plan(run: str, combination: dict[str, Any]) -> Values:
        return plan_parameters(_STAGES, run, asked.corpus, asked.presets, asked.settings, combination)

    name, grid = asked.run, read_sweep_file(asked.file)
    base = plan(name, {})
    for parameter, values in grid.items():
        for value in values:
            plan(name, {parameter: value})
    swept = next(i for i, stage in enumerate(_STAGES) if notebook_parameters(stage).keys() & grid.keys())
    shared, own = _STAGES[:swept], _STAGES[swept:]
    with FileLock(_lock_file(name)):  # the first process makes the shared rooms, others find them made
        study = open_study(name)
        if shared:
            run_stages(name, {stage: base[stage] for stage in shared}, force=False, lessons=False)
        rooms = [read_manifest(name, stage)["outputs"] for stage in shared]
        line_up(study, grid, question=fingerprint(grid, base, rooms))
    failed = 0
    for trial in take_trials(study, grid):
        run = trial.user_attrs["run"]
        print(f"{run:14}{_in_words(trial.params)}", flush=True)
        try:
            for stage in shared:
                share_room(name, run, stage)
            planned = plan(run, trial.params)
            run_stages(run, {stage: planned[stage] for stage in own}, force=False, lessons=False)
            tell_result(study, trial, run)
        except StageFailed as error:
            print(error, flush=True)
            _tell(study, trial, "FAIL")
            failed += 1
    print_result(study)
    return 1 if failed else 0


def read_sweep_file(file: Path) -> dict[str, list]:
    """Return {parameter: values} of a YAML file; raises Refused for one that is no such thing, or too large."""
    grid = load_yaml(file)
    pairs = grid.items() if isinstance(grid, dict) else ()
    lists = [isinstance(name, str) and isinstance(values, list) and len(values) > 0 for name, values in pairs]
    if not lists or not all(lists) or any(len(set(map(str, values))) < len(values) for _, values in pairs):
        raise Refused(f"{file.name}: expected lines like `lr: [1.0e-3, 1.0e-2]`, with each value once")
    if (total := math.prod(map(len, grid.values()))) > MOST_COMBINATIONS:
        raise Refused(f"{file.name} has {total:,} combinations: leave values out, to at most {MOST_COMBINATIONS:,}")
    return grid


def share_room(owner: str, run: str, stage: str) -> None:
    """Give a run the room that the owner's stage has written, and its executed notebook.

    Files are replaced, never edited, so hard links are safe; where the file system has none, files are copied.
    """
    target, copy = paths.room(run, stage), paths.executed_copy(run, stage)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(paths.room(owner, stage), target, copy_function=_link, ignore=shutil.ignore_patterns(MANIFEST))
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(paths.executed_copy(owner, stage), copy)
    manifest = read_manifest(owner, stage)
    manifest["parameters"]["run"] = run
    write_text(target / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# ---- the study ----


def open_study(name: str) -> Any:
    """Return the study in runs/NAME/sweep.journal, a new one if there is none; raises Refused without Optuna."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    except ImportError:
        raise Refused(f"a sweep needs Optuna: {install('sweep')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = paths.run_dir(name) / "sweep.journal"
    file.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(file), JournalFileOpenLock(str(file))))
    return optuna.create_study(study_name=name, storage=storage, load_if_exists=True)


def line_up(study: Any, grid: dict[str, list], question: str) -> None:
    """Put in line each combination that has no trial, or only one that failed.

    Raises Refused if the study began with another question, a fingerprint.
    """
    if study.user_attrs.get("question", question) != question:
        raise Refused(
            f"the sweep '{study.study_name}' began with other values, parameters or texts: choose a new --run"
        )
    study.set_user_attr("question", question)
    known = {trial.user_attrs["run"] for trial in study.get_trials() if trial.state.name != "FAIL"}
    for i, values in enumerate(itertools.product(*grid.values()), 1):
        if (run := f"{study.study_name}-{i}") not in known:
            combination = dict(zip(grid, values, strict=True))
            study.enqueue_trial(combination, user_attrs={"run": run, "values": combination})


def take_trials(study: Any, grid: dict[str, list]) -> Iterator[Any]:
    """Yield the trials at which no other process works, each locked until the next one is asked for."""
    from optuna.distributions import CategoricalDistribution

    while True:
        with FileLock(_lock_file(study.study_name)):
            for dead in [trial for trial in study.get_trials() if trial.state.name == "RUNNING"]:
                with contextlib.suppress(Timeout), FileLock(_lock_file(dead.user_attrs["run"]), timeout=0):
                    # its process was killed: the run goes on from its last checkpoint
                    _tell(study, dead.number, "FAIL")
                    study.enqueue_trial(dead.user_attrs["values"], user_attrs=dead.user_attrs)
            if not any(trial.state.name == "WAITING" for trial in study.get_trials()):
                return
            trial = study.ask({name: CategoricalDistribution(values) for name, values in grid.items()})
            lock = FileLock(_lock_file(trial.user_attrs["run"]))
            lock.acquire()
        try:
            yield trial
        finally:
            lock.release()


def tell_result(study: Any, trial: Any, run: str) -> None:
    """Tell the study what a run has found; one that a file STOP has ended is taken again another time."""
    result = read_manifest(run, "train")["result"]
    trial.set_user_attr("chosen", result.get("chosen", {}))  # by rules
    if unfinished(run, "train"):
        _tell(study, trial, "FAIL")
    else:
        study.tell(trial, result["val_bits_per_char"])


def print_result(study: Any) -> None:
    """Print the runs, the best first, how much each parameter mattered, and how to see more."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    judged = [trial for trial in study.get_trials() if trial.value is not None]
    for trial in sorted(judged, key=lambda trial: trial.value):
        print(f"{trial.user_attrs['run']:14}{trial.value:.4f} bits per character   {_in_words(trial.params)}")
    if len({trial.value for trial in judged}) > 2:
        evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)  # what parts the better half from all
        for name, share in get_param_importances(study, evaluator=evaluator).items():
            print(f"{name:14}importance {share:.0%}")
    file = paths.run_dir(study.study_name) / "sweep.journal"
    print(f"{'study':14}{file}; to look at it: optuna-dashboard {file}", flush=True)


def _tell(study: Any, trial: Any, state: str) -> None:
    from optuna.trial import TrialState

    study.tell(trial, state=TrialState[state])


def _lock_file(run: str) -> Path:
    """Return the lock of a study or of a trial: the system releases it when its process ends, however it ends."""
    return paths.runs_dir() / f".{run}.sweep.lock"


def _in_words(combination: dict[str, Any]) -> str:
    return " · ".join(f"{name} {value}" for name, value in combination.items())
