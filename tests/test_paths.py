"""Rooms have one name each, and a manifest notices what no longer fits."""

import json

import nbformat
import pytest

from helpers import paths
from helpers.files import sha256, write_text
from helpers.manifest import MANIFEST, RoomError, current_parameters, notebook_parameters, open_room, write_manifest


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    return "poems"


def finish(run, stage, files, inputs=()):
    """Write a room with these files and its manifest, as a notebook does."""
    room = paths.room(run, stage)
    room.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (room / name).write_text(text, "utf-8")
    return write_manifest(
        run, stage, parameters={"run": run}, inputs=inputs, outputs=[room / name for name in files], result={"n": 1}
    )


def test_the_house_has_its_notebooks_and_helpers_side_by_side():
    assert (paths.repo_root() / "helpers" / "paths.py").is_file()
    assert [paths.notebook(stage).name for stage in ("corpus", "serve")] == ["01_corpus.ipynb", "06_serve.ipynb"]


def test_runs_stay_in_the_repository_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNS_DIR", raising=False)
    assert paths.room("a", "tokenize") == paths.repo_root() / "runs" / "a" / "tokens"
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    assert paths.room("a", "train") == tmp_path / "a" / "model"


@pytest.mark.parametrize("name", ["songci", "西游记", "a-b_c.2"])
def test_a_run_may_have_a_plain_name(name):
    assert paths.run_dir(name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "/tmp"])
def test_a_run_name_never_leaves_the_runs_folder(name):
    with pytest.raises(ValueError, match="cannot name a run"):
        paths.run_dir(name)


def test_a_manifest_says_what_was_read_written_and_found(run, tmp_path):
    outside = tmp_path / "raw 语料.txt"
    outside.write_text("明月几时有", "utf-8")
    finish(run, "corpus", {"train-00000.jsonl": "一\n"}, inputs=[outside])
    manifest = open_room(run, "corpus")
    assert manifest["stage"] == "corpus" and manifest["result"] == {"n": 1} and manifest["parameters"] == {"run": run}
    assert manifest["outputs"] == {"corpus/train-00000.jsonl": sha256(paths.room(run, "corpus") / "train-00000.jsonl")}
    assert manifest["inputs"] == {outside.as_posix(): sha256(outside)}
    assert "python" in manifest["versions"]


def test_a_room_that_is_not_there_names_the_notebook_to_run(run):
    with pytest.raises(RoomError, match="run notebook 02_vocab again"):
        open_room(run, "vocab")


def test_a_missing_or_changed_file_is_noticed(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    file = paths.room(run, "corpus") / "train-00000.jsonl"
    file.write_text("二\n", "utf-8")
    with pytest.raises(RoomError, match="is not the file that 01_corpus wrote"):
        open_room(run, "corpus")
    file.unlink()
    with pytest.raises(RoomError, match="is missing"):
        open_room(run, "corpus")


def test_a_torn_manifest_is_no_traceback(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    (paths.room(run, "corpus") / MANIFEST).write_text('{"stage": ', "utf-8")
    with pytest.raises(RoomError, match="not readable JSON"):
        open_room(run, "corpus")


def test_a_tokenizer_of_another_corpus_is_refused(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    finish(run, "vocab", {"vocab_user.txt": "一\n"}, inputs=[paths.room(run, "corpus") / "train-00000.jsonl"])
    open_room(run, "vocab")
    finish(run, "corpus", {"train-00000.jsonl": "另一\n"})
    with pytest.raises(RoomError, match="made from another corpus/ .*run notebook 02_vocab again"):
        open_room(run, "vocab")


def test_a_room_made_again_with_the_same_bytes_still_fits(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    finish(run, "vocab", {"vocab_user.txt": "一\n"}, inputs=[paths.room(run, "corpus") / "train-00000.jsonl"])
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    assert open_room(run, "vocab")["result"] == {"n": 1}


def test_a_text_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "a.txt"
    write_text(file, "一\r\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "二\ud800")
    assert file.read_bytes() == "一\r\n".encode()


def notebook_with(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "repo_root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir(exist_ok=True)
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells]
    )
    nbformat.write(book, paths.notebook("train"))


def test_the_parameters_of_a_notebook_are_its_tagged_cell(tmp_path, monkeypatch):
    notebook_with(
        [
            ("import os", []),
            ('run: str = "sample"\nlr: float = 1e-4  # peak\nwords = ["一", -1]\nn: int | None = None', ["parameters"]),
        ],
        tmp_path,
        monkeypatch,
    )
    assert notebook_parameters("train") == {"run": "sample", "lr": 1e-4, "words": ["一", -1], "n": None}
    assert current_parameters("train", {"run": "x", "lr": 1.0, "words": [], "n": 3, "other": 0}) == {
        "run": "x",
        "lr": 1.0,
        "words": [],
        "n": 3,
    }


@pytest.mark.parametrize("tags", [[[]], [["parameters"], ["parameters"]]])
def test_a_notebook_has_exactly_one_cell_of_parameters(tags, tmp_path, monkeypatch):
    notebook_with([("lr: float = 1.0", each) for each in tags], tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="exactly one cell tagged 'parameters'"):
        notebook_parameters("train")


def test_a_manifest_keeps_chinese_readable(run):
    finish(run, "corpus", {"一.txt": "一\n"})
    text = (paths.room(run, "corpus") / MANIFEST).read_text("utf-8")
    assert "corpus/一.txt" in text and json.loads(text)["stage"] == "corpus"
