"""Do all files of a run still fit together? Whatever is changed, replaced or gone is found and named."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_notebook

from helpers import paths, report
from helpers.manifest import MANIFEST, write_manifest
from helpers.paths import executed_copy
from helpers.run.__main__ import main
from helpers.run.unchanged import finished_unchanged, remember


def write_room(stage, name, text, inputs, **result):
    """Write a finished room of one file, and the executed copy of its notebook, as a run does."""
    file = paths.room("r", stage) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    write_manifest("r", stage, parameters={"run": "r"}, inputs=inputs, outputs=[file], result=result)
    executed_copy("r", stage).parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(), executed_copy("r", stage))
    remember("r", stage)


@pytest.fixture
def finished(house, capsys):
    """Make a run of two rooms from a file outside."""
    source = Path("c.txt").resolve()
    source.write_text("明月几时有", "utf-8")
    write_room("corpus", "train-00000.jsonl", "明月\n", [source], documents=5)
    write_room("vocab", "vocab_user.txt", "花\n", [paths.room("r", "corpus") / "train-00000.jsonl"], vocab_size=9)

    def verdict():
        code = main(["verify", "--run", "r"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 7 and (code == 0) == (lines[-1] == "all belong together")
        return {line[:2]: line for line in lines[:6] if line[14:16] == "NO"}

    return verdict


def test_a_run_that_nobody_touched_belongs_together(finished):
    assert finished() == {}


def test_a_flipped_byte_is_found_in_the_room_and_in_the_one_made_from_it(finished):
    shard = paths.room("r", "corpus") / "train-00000.jsonl"
    data = bytearray(shard.read_bytes())
    data[1] ^= 1
    shard.write_bytes(data)
    off = finished()
    assert set(off) == {"01", "02"}
    assert "corpus/train-00000.jsonl has changed since 01_corpus wrote it" in off["01"]
    assert "python -m helpers.run corpus --run r" in off["01"]
    assert "since 02_vocab read it: run notebook 02_vocab again" in off["02"]


def test_a_replaced_tokenizer_and_a_missing_file_are_found(finished):
    words = paths.room("r", "vocab") / "vocab_user.txt"
    words.write_text("另\n", "utf-8")
    assert "vocab/vocab_user.txt has changed since 02_vocab wrote it" in finished()["02"]
    words.unlink()
    assert set(off := finished()) == {"02"} and "vocab/vocab_user.txt is missing" in off["02"]


def test_a_changed_source_file_is_found(finished):
    Path("c.txt").write_text("明月几时有？", "utf-8")
    assert set(off := finished()) == {"01"} and "c.txt has changed since 01_corpus read it" in off["01"]


def test_a_room_made_again_leaves_the_next_one_behind(finished):
    write_room("corpus", "train-00000.jsonl", "明\n", [Path("c.txt").resolve()], documents=5)
    assert set(off := finished()) == {"02"} and "since 02_vocab read it" in off["02"]


def test_other_figures_of_the_same_files_are_a_change_too(finished):
    write_room("corpus", "train-00000.jsonl", "明月\n", [Path("c.txt").resolve()], documents=7)
    assert set(off := finished()) == {"02"} and "has found other figures since (documents 5 -> 7)" in off["02"]


def test_a_torn_manifest_and_a_room_that_went_are_found(finished):
    manifest = paths.room("r", "corpus") / MANIFEST
    text = manifest.read_text("utf-8")
    manifest.write_text(text[: len(text) // 2], "utf-8")
    assert "not readable JSON" in finished()["01"]
    manifest.unlink()
    assert "not made yet" in finished()["01"]


def test_a_torn_copy_of_a_notebook_is_found_and_the_page_leaves_it_out(finished):
    """Papermill writes it in place: killed while it does, it leaves half a file, perhaps half a character."""
    copy = executed_copy("r", "corpus")
    for torn in (b'{"cells": [', '{"cells": ["词'.encode()[:-1]):
        copy.write_bytes(torn)
        assert "01_corpus.ipynb is torn: run notebook 01_corpus again" in finished()["01"]
        assert not finished_unchanged("r", "corpus", {"run": "r"})
        page = report.write_report("r").read_text("utf-8")
        assert "id='02_vocab'" in page and "id='01_corpus'" not in page


def test_a_run_that_is_not_there_cannot_be_verified(house, capsys):
    assert main(["verify", "--run", "nobody"]) == 2
    assert "there is no run 'nobody'" in capsys.readouterr().err
    assert main(["verify", "--run", "../x"]) == 2
    assert "'../x' cannot name a run" in capsys.readouterr().err
