"""The state of a run in words: its progress, its troubles, its end."""

import pytest
from displays import rows_of

from helpers.show import status


def test_what_goes_wrong_is_said_in_words():
    rows = [
        {"event": "resume", "step": 0, "complaints": ["step-00000060: model.safetensors has another checksum"]},
        {"event": "skipped", "step": 3, "reason": "loss or gradient is not finite", "in_a_row": 1},
        {"event": "skipped", "step": 4, "reason": "loss or gradient is not finite", "in_a_row": 2},
        {"event": "out_of_memory", "step": 5, "micro_batch": 4},
        {"event": "checkpoint_failed", "step": 6, "reason": "[Errno 28] No space left on device"},
    ]
    words = status.troubles(rows)
    assert words == [
        "2 updates skipped, no weight changed, last at step 4 (loss or gradient is not finite)",
        "out of memory at step 5: a micro-batch now has 4 windows",
        "checkpoint not saved, at step 6 ([Errno 28] No space left on device); training goes on",
        "resumed at step 0: step-00000060: model.safetensors has another checksum",
    ]
    rows += [{"event": "checkpoint", "step": 8, "path": "step-8"}, {"event": "step", "step": 9, "skipped": 5}]
    words = status.troubles(rows)
    assert words[0].startswith("5 updates skipped")  # three of them before a resume: their rows are gone
    assert words[2].endswith("saved again at step 8")
    assert status.troubles(rows_of(50)) == []


def test_the_line_of_facts_has_speed_memory_and_a_total_that_changes():
    rows = [
        {"event": "start", "step": 0, "total_steps": None},
        {"event": "step", "step": 5, "total_steps": 900, "tokens_per_second": 51234.5, "mfu": 0.413, "memory": 7.4e8,
         "seconds_left": 61.0},
    ]  # fmt: skip
    words = "step 5 of 900 · 51,234 tokens/s (41 % of the machine's peak) · 740 MB · 1 min 01 s left"
    assert status.progress(rows, 77) == words
    assert status.progress([*rows, {"event": "step", "step": 6, "total_steps": 850}], 77) == "step 6 of 850"
    assert status.progress(rows[:1]) == "step 0"


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
    assert status.summary(rows + ([{"event": "end", **end}] if end else [])) == words
