"""metrics.jsonl: read while it grows, after a crash, after a resume; as arrays, in words."""

import json
import math

import pytest
from displays import rows_of
from hypothesis import given
from hypothesis import strategies as st

from helpers.show import metrics_file as log
from helpers.show import notebook as show


def write_rows(path, rows, more=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + more)
    return path


@given(st.lists(st.integers(1, 60), max_size=20))
def test_a_file_that_grows_in_any_pieces_is_read_once(tmp_path_factory, sizes):
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    rows = [{"event": "sample", "step": i, "text": "绿萝\n浇水" * i} for i in range(5)]
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    tail, new = log.Tail(path), []
    assert tail.read() == []  # the file is not there yet
    with open(path, "wb", buffering=0) as file:
        for size in [*sizes, len(whole)]:
            piece, whole = whole[:size], whole[size:]
            file.write(piece)
            new += tail.read()
    assert new == tail.rows == rows == show.read_metrics(path)


def test_steps_taken_again_replace_the_older_ones(tmp_path):
    rows = [{"event": "start", "step": 0}, *({"event": "step", "step": i, "run": 1} for i in (2, 4, 6))]
    rows += [{"event": "end", "step": 6}, {"event": "resume", "step": 4}, {"event": "start", "step": 4}]
    rows += [{"event": "step", "step": 6, "run": 2}]
    read = show.read_metrics(write_rows(tmp_path / "metrics.jsonl", rows, '{"event": "st'))
    assert [(row["step"], row["run"]) for row in read if row["event"] == "step"] == [(2, 1), (4, 1), (6, 2)]
    assert log.last(read, "end") == {}


def test_a_file_begun_anew_is_read_anew_and_one_that_vanishes_is_remembered(tmp_path):
    path = write_rows(tmp_path / "metrics.jsonl", rows_of(2))
    tail = log.Tail(path)
    tail.read()
    write_rows(path, rows_of(1))
    assert tail.read() == tail.rows == rows_of(1)
    path.rename(tmp_path / "previous.jsonl")
    assert tail.read() == [] and tail.rows == rows_of(1)
    write_rows(path, rows_of(3))
    assert tail.read() == tail.rows == rows_of(3)


@pytest.mark.parametrize("line", ["[1]", "3", "null", '"end"', "\\x00\\x00", '{"event": "step", "st', "\\xff{}"])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    raw = line.encode("latin-1").decode("unicode_escape").encode("latin-1")
    path.write_bytes(b'{"event": "step", "step": 1}\n' + raw + b'\n{"event": "step", "step": 2}\n')
    assert [row["step"] for row in show.read_metrics(path)] == [1, 2]
    path.write_bytes(b"")
    assert show.read_metrics(path) == []


def test_a_file_that_is_not_there_is_named_with_the_notebook_that_writes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="04_train"):
        show.read_metrics(tmp_path / "metrics.jsonl")


# ---- as arrays ----


def test_a_long_run_is_averaged_not_sampled():
    rows = [{"event": "step", "step": i, "bits_per_char": float(i % 2)} for i in range(10_000)]
    steps, values, *_ = log.averaged(rows, "step", "bits_per_char", points=100)
    assert len(steps) == len(values) == 100
    assert values == pytest.approx(0.5)


def test_a_nan_is_a_gap_and_hides_no_number():
    rows = [{"event": "step", "step": i, "grad_norm": math.nan if i == 3 else 1.0 + (i == 5)} for i in range(1, 9)]
    steps, values, *_ = log.averaged(rows, "step", "grad_norm")
    assert list(steps) == list(range(1, 9)) and math.isnan(values[2])
    _, values, low, high = log.averaged(rows, "step", "grad_norm", points=4)
    assert list(values) == [1.0, 1.0, 1.5, 1.0]
    assert list(low) == [1.0] * 4 and list(high) == [1.0, 1.0, 2.0, 1.0], "the step that stood out is still seen"
    assert log.last_value([*rows, {"event": "step", "step": 9, "grad_norm": None}], "step", "grad_norm") == 1.0


# ---- in words ----


def test_what_goes_wrong_is_said_in_words():
    rows = [
        {"event": "resume", "step": 0, "complaints": ["step-00000060: model.safetensors has another checksum"]},
        {"event": "skipped", "step": 3, "reason": "loss or gradient is not finite", "in_a_row": 1},
        {"event": "skipped", "step": 4, "reason": "loss or gradient is not finite", "in_a_row": 2},
        {"event": "out_of_memory", "step": 5, "micro_batch": 4},
        {"event": "checkpoint_failed", "step": 6, "reason": "[Errno 28] No space left on device"},
    ]
    assert log.troubles(rows) == [
        "2 updates skipped, no weight changed, last at step 4 (loss or gradient is not finite)",
        "out of memory at step 5: a micro-batch now has 4 windows",
        "checkpoint not saved, at step 6 ([Errno 28] No space left on device); training goes on",
        "resumed at step 0: step-00000060: model.safetensors has another checksum",
    ]
    rows += [{"event": "checkpoint", "step": 8, "path": "step-8"}, {"event": "step", "step": 9, "skipped": 5}]
    words = log.troubles(rows)
    assert words[0].startswith("5 updates skipped")  # three of them before a resume: their rows are gone
    assert words[2].endswith("saved again at step 8")
    assert log.troubles(rows_of(50)) == []


def test_the_line_of_facts_has_speed_memory_and_a_total_that_changes():
    rows = [
        {"event": "start", "step": 0, "total_steps": None},
        {"event": "step", "step": 5, "total_steps": 900, "tokens_per_second": 51234.5, "mfu": 0.413, "memory": 7.4e8,
         "seconds_left": 61.0},
    ]  # fmt: skip
    words = "step 5 of 900 · 51,234 tokens/s (41 % of the machine's peak) · 740 MB · 1 min 01 s left"
    assert log.progress_in_words(rows, 77) == words
    changed = [*rows, {"event": "step", "step": 6, "total_steps": 850}]
    assert log.progress_in_words(changed, 77) == "step 6 of 850"
    assert log.progress_in_words(rows[:1]) == "step 0"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"step": 9, "reason": "finished", "seconds": 4.0}, "finished at step 9 of 20 · 4 s"),  # a time budget
        ({"step": 9, "reason": "stopped"}, "stopped at step 9 of 20"),
        ({"step": 9, "reason": "gradient not finite"}, "ended (gradient not finite) at step 9 of 20"),
        (None, "broke off at step 8 of 20"),
    ],
)
def test_how_a_run_ended_is_said(end, words):
    rows = [{"event": "step", "step": 8, "total_steps": 20}]
    assert log.end_in_words(rows + ([{"event": "end", **end}] if end else [])) == words
