"""What the runner shows while a stage works: one line over and over in a terminal, a line a minute in a log."""

import json
import os
import subprocess
import sys
import time

import pytest

from helpers import paths
from helpers.progress import Note
from helpers.run import watch


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (Note("training", 312, 772, "updates", 0, 63.0), "312 of 772 updates · 4.95 per second · 1 min 33 s left"),
        (Note("training", 312, 772, "updates", 300, 60.0), "312 of 772 updates · 5 s each · 38 min 20 s left"),
        (Note("fetching", 12_345_678, None, "B", 0, 6.0), "12.3 M B · 2.06 M per second"),
        (Note("training", 1, 772, "updates", 1, 0.0), "1 of 772 updates"),
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is a thing of Unix")
def test_a_terminal_shows_documents_tokens_and_updates(tmp_path):
    """The real command in a real terminal."""
    import pty

    reader, writer = pty.openpty()
    stages = ["corpus", "vocab", "tokenize", "train"]
    command = [sys.executable, "-m", "helpers.run", *stages, "--preset", "micro", "--run", "r", "-p", "epochs", "6"]
    environment = os.environ | {"RUNS_DIR": str(tmp_path), "PYTHONPATH": str(paths.repo_root()), "COLUMNS": "120"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    while True:
        try:
            block = os.read(reader, 4096)
        except OSError:  # Linux tells the end of a terminal so
            break
        if not block:
            break
        shown += block
    assert process.wait() == 0
    text = shown.decode()
    assert "02_vocab      thulac" in text and "04_train      training " in text
    assert "of 246 updates · " in text and " left" in text
    lines = [line.split("\x1b[K")[-1] for line in text.replace("\r\n", "\n").split("\n")]
    assert [line.split()[0] for line in lines if line] == ["01_corpus", "02_vocab", "03_tokenize", "04_train", "report"]
