"""A sweep file, its combinations, and the numbers that they keep."""

import re

import pytest

from helpers import paths
from helpers.run import grid
from helpers.run.parameters import Refused

LRS = {"lr": [0.1, 0.2], "n_embd": [8, 16, 32]}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sweep.yaml"


def test_a_sweep_file_is_names_with_lists(file):
    file.write_text("lr: [1.0e-3, 1e-2]\nkind: [words, characters]\nrungs: [[], [[0.5, 3.2]]]", "utf-8")
    assert grid.read_grid(file) == {"lr": [0.001, "1e-2"], "kind": ["words", "characters"], "rungs": [[], [[0.5, 3.2]]]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr: 1.0e-3", "lr needs a list of values, like `lr: [0.001]`"),
        ("lr: []", "lr needs a list"),
        ("lr: [1, 1]", "lr has a value twice"),
        ("run: [a, b]", "numbered"),
        ("on: [1, 2]", "True is no parameter; YAML reads on"),
        ("since: [2020-01-01, 2020-01-01]", "since has a value twice"),
        ("- lr", "expected lines like"),
        ("", "expected lines like"),
        ("lr: [", "not readable YAML"),
        ("lr: [1]\nlr: [2]", "'lr' stands twice"),
    ],
)
def test_what_is_no_sweep_is_refused(file, text, words):
    file.write_text(text, "utf-8")
    with pytest.raises(Refused, match=re.escape(words)):
        grid.read_grid(file)


def test_a_file_that_is_not_there_is_refused(file):
    with pytest.raises(Refused, match="cannot be read"):
        grid.read_grid(file)


def test_every_combination_in_the_files_order():
    found = grid.combinations(LRS)
    assert found == [{"lr": lr, "n_embd": n} for lr in (0.1, 0.2) for n in (8, 16, 32)]
    assert grid.in_words(found[1]) == "lr 0.1 · n_embd 16"


def test_draws_are_different_ones_and_more_draws_keep_the_first():
    every = grid.combinations(LRS)
    assert [grid.combinations(LRS, n) for n in range(1, 6)] == [grid.combinations(LRS, 6)[:n] for n in range(1, 6)]
    assert sorted(map(str, grid.combinations(LRS, 99))) == sorted(map(str, every)) != list(map(str, every))


def test_too_many_runs_are_refused():
    many = {name: list(range(40)) for name in "abc"}
    with pytest.raises(Refused, match="64,000 runs.*--draws"):
        grid.combinations(many)
    assert len(grid.combinations(many, 10)) == 10
    with pytest.raises(Refused, match="a million at most"):
        grid.combinations({name: list(range(40)) for name in "abcd"}, 10)


def test_a_combination_keeps_its_number_when_the_file_changes(house):
    assert grid.number("s", grid.combinations({"lr": [1, 2]})) == {1: {"lr": 1}, 2: {"lr": 2}}
    assert grid.number("s", grid.combinations({"lr": [3, 2]})) == {3: {"lr": 3}, 2: {"lr": 2}}
    assert grid.known_members("s") == {1: {"lr": 1}, 2: {"lr": 2}, 3: {"lr": 3}}


def test_a_run_of_somebody_else_is_not_taken(house):
    paths.run_dir("s-2").mkdir(parents=True)
    with pytest.raises(Refused, match="a run 's-2' that this sweep did not make"):
        grid.number("s", grid.combinations({"lr": [1, 2]}))
    assert grid.known_members("s") == {}


def test_a_sweep_goes_as_far_as_its_parameters(house):
    stages = list(paths.STAGES)
    assert stages[grid.last_stage({"size": [1]})] == stages[grid.last_stage({"lr": [1.0]})] == "train"
    assert stages[grid.last_stage({"run": [1]})] == "serve"  # a name that every notebook has
