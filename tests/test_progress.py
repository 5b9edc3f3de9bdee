"""How far a piece of work is: noted for the runner, counted from where it began, and never in the way."""

import json

import pytest

from helpers import progress
from helpers.progress import Bar, Note, tell


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "p"))
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    monkeypatch.setattr(progress, "_begun", {})
    return tmp_path / "p"


def test_the_newest_note_counts_from_where_the_work_began(file, monkeypatch):
    clock = iter([10.0, 14.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    tell("training", 300, 772, "updates")  # a resumed run
    tell("training", 312, 772, "updates")
    assert progress.read_note(file) == Note("training", 312, 772, "updates", 300, 4.0)


def test_notes_are_rare_but_the_last_one_is_written(file, monkeypatch):
    monkeypatch.setattr(progress, "_PAUSE", 60.0)
    for i in range(1, 6):
        tell("reading", i, 5, "shards")
        if i == 4:
            assert progress.read_note(file) is None or progress.read_note(file).done == 1
    assert progress.read_note(file).done == 5


def test_without_a_file_and_with_a_full_disk_nothing_happens(file, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(file / "no" / "folder"))
    tell("reading", 1, 2, "shards")
    monkeypatch.delenv(progress.VARIABLE)
    tell("reading", 2, 2, "shards")
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3"])
def test_what_is_no_note_is_none(file, text):
    file.write_text(text, "utf-8")
    assert progress.read_note(file) is None


def test_a_bar_notes_what_it_counts_and_one_without_a_label_nothing(file, capfd, monkeypatch):
    monkeypatch.setenv("HEADLESS", "1")
    with Bar("", 3, "shards") as bar:
        bar.update()
    assert not file.exists()
    with Bar("fetching", 30, "B", scaled=True) as bar:
        bar.update(5)
    assert json.loads(file.read_text("utf-8"))[:4] == ["fetching", 5, 30, "B"]
    assert capfd.readouterr() == ("", "")
