"""What the runner shows while a stage works: one line over and over in a terminal, a line a minute in a log."""

import json
import time

import pytest

from helpers.progress import Note
from helpers.run import watch


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (Note("training", 312, 772, "updates", 0, 63.0), "312 of 772 updates · 4.95 per second · 1 min 33 s left"),
        (Note("training", 312, 772, "updates", 300, 60.0), "312 of 772 updates · 5 s each · 38 min 20 s left"),
        (Note("fetching", 12_345_678, None, "B", 0, 6.0), "12.3 M B · 2.06 M per second"),
        (Note("training", 1, 772, "updates", 1, 0.0), "1 of 772 updates"),
        (Note("fetching", 8_000, None, "rows", 0, 6.5), "8000 rows · 1231 per second"),
        (Note("fetching", 999_600, None, "rows", 0, 1.0), "1000 k rows · 1000 k per second"),
        (Note("reading", 20_000, 40_000.0, "rows", 0, 2.0), "20 k of 40 k rows · 10 k per second · 2 s left"),
    ],
)
def test_rate_and_time_left_are_those_since_it_began(note, words):
    assert watch.meter(note, with_bar=False) == f"{note.label} {words}"


def test_the_bar_is_as_long_as_what_is_done():
    shown = watch.meter(Note("training", 312, 772, "updates", 0, 63.0), with_bar=True)
    assert shown.startswith("training " + "█" * 8 + "░" * 12 + " 312 of 772")
    assert "█" not in watch.meter(Note("fetching", 5, None, "B", 0, 1.0), with_bar=True)


@pytest.mark.parametrize("one_line", [True, False])
def test_each_new_note_is_shown_once(tmp_path, capsys, monkeypatch, one_line):
    for name in ("TERMINAL_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(watch, name, 0.01)
    monkeypatch.setenv("COLUMNS", "60")
    file = tmp_path / "p"
    with watch.Watch(file, "04_train  ", one_line):
        file.write_text(json.dumps(Note("training", 1, 4, "updates", 0, 1.0)), "utf-8")
        time.sleep(0.2)
        file.write_text("[", "utf-8")  # nothing
        time.sleep(0.05)
    out = capsys.readouterr().out
    assert out.count("training") == 1 and not file.exists()
    if one_line:
        assert out.startswith("04_train  \r\x1b[K04_train  training ") and out.endswith(watch.CLEAR)
        assert len(out.split(watch.CLEAR)[1]) == 59  # never wrapped
    else:
        assert out == "04_train  training 1 of 4 updates · 1 per second · 3 s left\n"
