"""paths: each stage and side door has one notebook, one room and one executed copy; a run's name stays a name."""

import pytest

from helpers import paths


def test_runs_stay_in_the_repository_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNS_DIR", raising=False)
    assert paths.room("a", "tokenize") == paths.repo_root() / "runs" / "a" / "tokens"
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    assert paths.room("a", "train") == tmp_path / "a" / "model"
    assert paths.room("a", "tournament") == tmp_path / "a" / "tournament"
    assert paths.executed_copy("a", "tournament") == tmp_path / "a" / "notebooks" / "tournament.ipynb"


@pytest.mark.parametrize("name", ["songci", "西游记", "a-b_c.2"])
def test_a_run_may_have_a_plain_name(name):
    assert paths.run_dir(name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "/tmp", 2024])
def test_a_run_name_never_leaves_the_runs_folder_and_is_a_text(name):
    with pytest.raises(ValueError, match="cannot name a run" if name != 2024 else "for papermill -r run 2024"):
        paths.run_dir(name)


def test_no_two_notebooks_share_a_room_or_a_copy():
    rooms = [room for _, room in paths.NOTEBOOKS.values()]
    copies = [paths.notebook(stage).name for stage in paths.NOTEBOOKS]
    assert len(set(rooms)) == len(set(copies)) == len(paths.NOTEBOOKS) == len(paths.STAGES) + len(paths.SIDE_DOORS)


def test_shards_come_in_order_and_by_split(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    room = paths.room("a", "corpus")
    room.mkdir(parents=True)
    for name in ("train-00010.jsonl", "train-00002.jsonl", "val-00000.jsonl", "train.json", "train-00000.npy"):
        (room / name).touch()
    names = [file.name for file in paths.shards("a", "corpus", "train", ".jsonl")]
    assert names == ["train-00002.jsonl", "train-00010.jsonl"]
