"""A room given to another run: it belongs there, takes no space, and neither run can spoil the other's."""

import json
import os

import nbformat
import pytest
from nbformat.v4 import new_notebook

from helpers import paths
from helpers.files import write_text
from helpers.manifest import open_room, write_manifest
from helpers.run.share import adopt
from helpers.run.unchanged import remember


@pytest.fixture
def owner(house):
    folder = paths.room("a", "corpus")
    write_text(folder / "train-00000.jsonl", "明月\n")
    write_text(folder / "deep" / "metrics.jsonl", "{}\n")
    write_text(folder / "parameters.json", json.dumps({"run": "a", "lr": 0.1}))
    files = [folder / "train-00000.jsonl"]
    write_manifest("a", "corpus", parameters={"run": "a", "size": 3}, inputs=[], outputs=files, result={"documents": 1})
    paths.executed_copy("a", "corpus").parent.mkdir()
    nbformat.write(new_notebook(), paths.executed_copy("a", "corpus"))
    remember("a", "corpus")
    return folder


def test_the_room_belongs_to_the_other_run_too(owner):
    adopt("a", "b", "corpus")
    assert open_room("b", "corpus")["parameters"] == {"run": "b", "size": 3}
    assert open_room("a", "corpus")["parameters"] == {"run": "a", "size": 3}
    assert paths.executed_copy("b", "corpus").is_file()
    # a training that is started from this file must not go to the owner's room
    given = [json.loads((paths.room(run, "corpus") / "parameters.json").read_text("utf-8")) for run in "ab"]
    assert given == [{"run": "a", "lr": 0.1}, {"run": "b", "lr": 0.1}]


def test_files_are_links_but_for_those_that_grow(owner):
    adopt("a", "b", "corpus")
    other = paths.room("b", "corpus")
    assert os.path.samefile(owner / "train-00000.jsonl", other / "train-00000.jsonl")
    assert not os.path.samefile(owner / "deep" / "metrics.jsonl", other / "deep" / "metrics.jsonl")


def test_what_one_run_writes_anew_the_other_does_not_see(owner):
    adopt("a", "b", "corpus")
    write_text(paths.room("b", "corpus") / "train-00000.jsonl", "另\n")
    assert (owner / "train-00000.jsonl").read_text("utf-8") == "明月\n"
    open_room("a", "corpus")


def test_a_file_system_without_links_gets_copies(owner, monkeypatch):
    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    adopt("a", "b", "corpus")
    other = paths.room("b", "corpus") / "train-00000.jsonl"
    assert not os.path.samefile(owner / "train-00000.jsonl", other)
    open_room("b", "corpus")


def test_an_older_room_is_replaced(owner):
    write_text(paths.room("b", "corpus") / "train-00001.jsonl", "旧\n")
    adopt("a", "b", "corpus")
    assert not (paths.room("b", "corpus") / "train-00001.jsonl").exists()
