"""manifest: it says what a room was made from, and notices what no longer fits; the parameters of a notebook."""

import json

import nbformat
import pytest

from helpers import paths
from helpers.files import sha256
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
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    with pytest.raises(RoomError) as caught:
        open_room(run, "vocab")
    assert str(caught.value) == (
        "run 'poems' has no vocab/ yet: run notebook 02_vocab, or: python -m helpers.run vocab --run poems"
    )


def test_a_run_that_is_not_there_is_named_with_those_there_are(run, tmp_path):
    def said(name, stage):
        with pytest.raises(RoomError) as caught:
            open_room(name, stage)
        return str(caught.value)

    assert said("poems", "corpus") == (
        f"there is no run 'poems' in {tmp_path}. "
        "For a new one, run notebook 01_corpus, or: python -m helpers.run --run poems"
    )
    finish("poems", "corpus", {"train-00000.jsonl": "一\n"})
    finish("Sanguo", "corpus", {"train-00000.jsonl": "一\n"})
    (tmp_path / "fetched").mkdir()  # no run
    assert said("peoms", "train") == (
        f"there is no run 'peoms' in {tmp_path}; did you mean 'poems'? "
        "For a new one, run the notebooks from 01_corpus to 04_train, or: python -m helpers.run --run peoms"
    )
    assert said("x", "chat").endswith("to 04_train, or: python -m helpers.run --run x, then deeper/chat")
    assert said("x", "corpus").startswith(f"there is no run 'x' in {tmp_path}; there is: Sanguo, poems. For a new one")


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
    (paths.room(run, "corpus") / MANIFEST).write_text("[]", "utf-8")
    with pytest.raises(RoomError, match="is no manifest"):
        open_room(run, "corpus")


def test_a_tokenizer_of_another_corpus_is_refused(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    finish(run, "vocab", {"vocab_user.txt": "一\n"}, inputs=[paths.room(run, "corpus") / "train-00000.jsonl"])
    open_room(run, "vocab")
    finish(run, "corpus", {"train-00000.jsonl": "另一\n"})
    with pytest.raises(RoomError, match="made from another corpus/ .*run notebook 02_vocab again"):
        open_room(run, "vocab")


def test_a_side_door_is_a_room_that_names_its_notebook(run):
    finish(run, "vocab", {"vocab_user.txt": "一\n"})
    finish(run, "tournament", {"words.jsonl": "{}\n"}, inputs=[paths.room(run, "vocab") / "vocab_user.txt"])
    assert open_room(run, "tournament")["outputs"].keys() == {"tournament/words.jsonl"}
    finish(run, "vocab", {"vocab_user.txt": "另\n"})
    with pytest.raises(RoomError, match="run notebook deeper/tournament again, or: python -m helpers.run tournament"):
        open_room(run, "tournament")


def test_a_room_made_again_with_the_same_bytes_still_fits(run):
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    finish(run, "vocab", {"vocab_user.txt": "一\n"}, inputs=[paths.room(run, "corpus") / "train-00000.jsonl"])
    finish(run, "corpus", {"train-00000.jsonl": "一\n"})
    assert open_room(run, "vocab")["result"] == {"n": 1}


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


@pytest.mark.parametrize("line", ["run, lr = 1, 2", "lr: float", "import os", "print(1)"])
def test_a_parameter_is_a_name_and_a_literal(line, tmp_path, monkeypatch):
    notebook_with([(f'run: str = "a"\n{line}', ["parameters"])], tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"04_train.ipynb, parameters, line 2, .*: write `name: type = value`"):
        notebook_parameters("train")


@pytest.mark.parametrize("tags", [[[]], [["parameters"], ["parameters"]]])
def test_a_notebook_has_exactly_one_cell_of_parameters(tags, tmp_path, monkeypatch):
    notebook_with([("lr: float = 1.0", each) for each in tags], tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="exactly one cell tagged 'parameters'"):
        notebook_parameters("train")


def test_a_manifest_keeps_chinese_readable(run):
    finish(run, "corpus", {"一.txt": "一\n"})
    text = (paths.room(run, "corpus") / MANIFEST).read_text("utf-8")
    assert "corpus/一.txt" in text and json.loads(text)["stage"] == "corpus"
