"""metrics.jsonl: read while it grows, after a crash, after a resume, by file, folder and name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.show import metrics_file
from helpers.show import notebook as show


@given(st.lists(st.integers(1, 60), max_size=20))
def test_a_file_that_grows_in_any_pieces_is_read_once(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    rows = [{"event": "sample", "step": i, "text": "绿萝\n浇水" * i} for i in range(5)]
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    tail, new = metrics_file.Tail(path), []
    assert tail.read() == []  # the file is not there yet
    with open(path, "wb", buffering=0) as file:
        for size in [*sizes, len(whole)]:
            piece, whole = whole[:size], whole[size:]
            file.write(piece)
            new += tail.read()
    assert new == tail.rows == rows == show.read_metrics(path)


def test_steps_taken_again_replace_the_older_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"event": "start", "total_steps": 9, "step": 0},
        *({"event": "step", "step": i, "run": 1} for i in (2, 4, 6)),
    ]
    rows += [
        {"event": "end", "step": 6},
        {"event": "resume", "step": 4},
        {"event": "start", "total_steps": 9, "step": 4},
    ]
    rows += [{"event": "step", "step": 6, "run": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st')
    read = show.read_metrics(path)
    assert [(row["step"], row["run"]) for row in read if row["event"] == "step"] == [(2, 1), (4, 1), (6, 2)]
    assert metrics_file.last(read, "end") == {}


def test_a_file_begun_anew_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n{"event": "step", "step": 2}\n')
    tail = metrics_file.Tail(path)
    tail.read()
    path.write_text('{"event": "step", "step": 1}\n')
    assert tail.read() == tail.rows == [{"event": "step", "step": 1}]


def test_missing_metrics_name_the_notebook(tmp_path):
    with pytest.raises(FileNotFoundError, match="04_train"):
        show.read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("line", ["[1]", "3", "null", '"end"', "\\x00\\x00", '{"event": "step", "st', "\\xff{}"])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    raw = line.encode("latin-1").decode("unicode_escape").encode("latin-1")
    path.write_bytes(b'{"event": "step", "step": 1}\n' + raw + b'\n{"event": "step", "step": 2}\n')
    assert [row["step"] for row in show.read_metrics(path)] == [1, 2]
    path.write_bytes(b"")
    assert show.read_metrics(path) == []


def test_a_file_that_vanishes_and_comes_back_longer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "step", "step": 1}\n')
    tail = metrics_file.Tail(path)
    tail.read()
    path.rename(tmp_path / "previous.jsonl")
    assert tail.read() == [] and len(tail.rows) == 1  # what was read stays
    rows = [{"event": "step", "step": step, "run": 2} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tail.read() == tail.rows == rows


def test_a_run_is_found_by_file_folder_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    file = tmp_path / "mine" / "model" / "metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"event": "step", "step": 5}\n')
    for run in (file, str(file), file.parent, tmp_path / "mine", "mine"):
        assert metrics_file.locate(run) == file
        assert show.read_metrics(run) == [{"event": "step", "step": 5}]
    assert metrics_file.locate("not_yet") == tmp_path / "not_yet" / "model" / "metrics.jsonl"
    with pytest.raises(FileNotFoundError, match="no folder and no metrics.jsonl"):
        show.attach("runs/of/nobody")
