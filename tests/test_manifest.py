"""manifest: it says what a room was made from, and notices what no longer fits; the parameters of a notebook."""

from contextlib import nullcontext
from dataclasses import asdict

import nbformat
import pytest

from helpers import paths
from helpers.files import sha256
from helpers.manifest import (
    MANIFEST,
    RoomError,
    current_parameters,
    notebook_parameters,
    open_room,
    read_parameters,
    write_manifest,
)
from helpers.train.settings import TrainSettings


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    return "poems"


def finish(run, stage, text="一\n", inputs=()):
    """Write a room with one file and its manifest, as a notebook does; return the file."""
    file = paths.room(run, stage) / "一.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    write_manifest(run, stage, parameters={"run": run}, inputs=inputs, outputs=[file], result={"n": 1})
    return file


def test_a_manifest_says_what_was_read_written_and_found_in_readable_chinese(run, tmp_path):
    outside = tmp_path / "raw 语料.txt"
    outside.write_text("明月几时有", "utf-8")
    file = finish(run, "corpus", inputs=[outside])
    manifest = open_room(run, "corpus")
    assert manifest["stage"] == "corpus" and manifest["result"] == {"n": 1} and manifest["parameters"] == {"run": run}
    assert manifest["outputs"] == {"corpus/一.txt": sha256(file)} and "python" in manifest["versions"]
    assert manifest["inputs"] == {outside.as_posix(): sha256(outside)}
    assert "corpus/一.txt" in (file.parent / MANIFEST).read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "stage", "words"),
    [
        ("poems", "vocab", "has no vocab/ yet: run notebook 02_vocab, or: python -m helpers.run vocab --run poems"),
        ("peoms", "train", "did you mean 'poems'? (for a new one: python -m helpers.run --run peoms, or the "),
        ("x", "corpus", "there is: Sanguo, poems (for a new one: "),
        ("x", "chat", "or the notebooks up to 04_train, then deeper/chat)"),
    ],
)
def test_a_room_that_is_not_there_names_what_there_is_and_what_to_run(run, name, stage, words):
    finish("poems", "corpus")
    finish("Sanguo", "corpus")
    with pytest.raises(RoomError) as caught:
        open_room(name, stage)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_text("二\n", "utf-8"), "is not the file that 01_corpus wrote"),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: (file.parent / MANIFEST).write_text('{"stage": ', "utf-8"), "is no manifest"),
        (lambda file: (file.parent / MANIFEST).write_text("[]", "utf-8"), "is no manifest"),
    ],
)
def test_what_is_missing_changed_or_torn_is_noticed(run, damage, words):
    damage(finish(run, "corpus"))
    with pytest.raises(RoomError, match=words):
        open_room(run, "corpus")


@pytest.mark.parametrize(("stage", "mends"), [("vocab", "02_vocab again"), ("tournament", "deeper/tournament again")])
def test_a_room_made_from_another_state_of_an_earlier_one_is_refused(run, stage, mends):
    finish(run, stage, inputs=[finish(run, "corpus")])
    finish(run, "corpus")  # the same bytes
    assert open_room(run, stage)["outputs"].keys() == {f"{paths.NOTEBOOKS[stage][1]}/一.txt"}
    finish(run, "corpus", "另一\n")
    with pytest.raises(RoomError, match=f"made from another corpus/ .*run notebook {mends}"):
        open_room(run, stage)


# ---- the parameters of a notebook ----


@pytest.fixture
def notebook_with(tmp_path, monkeypatch):
    """Return a function that writes notebook 04 with cells, given as (source, tags)."""
    (tmp_path / "helpers").symlink_to(paths.repo_root() / "helpers")
    monkeypatch.setattr(paths, "repo_root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir()

    def write(*cells):
        made = [nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=made), paths.notebook("train"))

    return write


def test_the_parameters_of_a_notebook_are_its_tagged_cell_and_then_its_dataclass(notebook_with):
    source = 'run: str = "sample"\nlr: float = 1e-4  # peak\nwords = ["一", -1]\nn: int | None = None'
    notebook_with(("import os", []), (source, ["parameters"]))
    first = {"run": "sample", "lr": 1e-4, "words": ["一", -1], "n": None}
    assert list(notebook_parameters("train").items())[:4] == list(first.items())
    assert notebook_parameters("train") == asdict(TrainSettings()) | first
    assert read_parameters("train")["lr"] == (1e-4, "peak", True)
    assert read_parameters("train")["eps"] == (1e-8, "AdamW: added to the root of that mean", False)


def test_the_current_ones_are_what_the_kernel_holds_and_else_the_defaults(notebook_with):
    notebook_with(('run: str = "sample"\nlr: float = 1e-4', ["parameters"]))
    now = current_parameters("train", {"run": "x", "lr": 1.0, "eps": 1e-6, "other": 0})
    assert now == asdict(TrainSettings()) | {"run": "x", "lr": 1.0, "eps": 1e-6}


@pytest.mark.parametrize(
    "cells, said",
    [
        (['run: str = "a"\nlr: float = 1.0', "# Parameters\nbatchsize = 3"], "'batchsize'; did you mean 'batch_size'"),
        (['run: str = "a"\nlearning_rate: float = 1.0'], "'learning_rate': here it is lr"),
        (['run: str = "a"\nlearning_rate = 1.0', 'run: str = "a"\nlr = 1.0'], ""),  # it has been mended
        (["import os\nfolder = 1", 'run: str = "a"\nlr: float = 1.0', "# Parameters\neps = 1e-3", "x = 1"], ""),
    ],
)
def test_a_name_that_the_notebook_does_not_have_is_refused(cells, said, notebook_with):
    """As papermill sets it, or as somebody types it: papermill alone would only log a line."""
    notebook_with(('run: str = "sample"\nlr: float = 1e-4', ["parameters"]))
    with pytest.raises(ValueError, match=f"04_train.ipynb has no parameter {said}") if said else nullcontext():
        current_parameters("train", {"In": ["", *cells]})


@pytest.mark.parametrize("line", ["run, lr = 1, 2", "lr: float", "import os", "print(1)"])
def test_a_parameter_is_a_name_and_a_literal(line, notebook_with):
    notebook_with((f'run: str = "a"\n{line}', ["parameters"]))
    with pytest.raises(ValueError, match=r"04_train.ipynb, parameters, line 2, .*: write `name: type = value`"):
        notebook_parameters("train")


@pytest.mark.parametrize("tags", [[[]], [["parameters"], ["parameters"]]])
def test_a_notebook_has_exactly_one_cell_of_parameters(tags, notebook_with):
    notebook_with(*(("lr: float = 1.0", each) for each in tags))
    with pytest.raises(ValueError, match="exactly one cell tagged 'parameters'"):
        notebook_parameters("train")
