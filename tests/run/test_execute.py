"""Each notebook runs in a kernel of this Python, is watched while it does, and tells in words how it failed."""

import json
import sys
import time

import nbformat
import pytest
from house import write_cell

from helpers import files, paths
from helpers.paths import executed_copy
from helpers.progress import Note
from helpers.run import execute
from helpers.run.__main__ import main


def executed(stage):
    return nbformat.read(executed_copy("r", stage), as_version=4)


@pytest.mark.slow
def test_a_kernel_is_of_this_very_interpreter_and_logs_nothing_to_the_terminal(house, capfd, tmp_path, monkeypatch):
    """On a busy machine its sockets may close before its last message. And braces in a path are no parameters."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs{x}"))
    closing = "import atexit, os\n_ = atexit.register(os.write, sys.__stderr__.fileno(), b'closed')"
    other = {"name": "some-other", "display_name": "x", "language": "python"}
    write_cell("generate", f"import sys; print(sys.executable)\n{closing}", kernelspec=other)
    assert main(["generate", "--run", "r"]) == 0
    assert executed("generate").cells[-1].outputs[0].text.strip() == sys.executable
    assert not capfd.readouterr().err


@pytest.mark.slow
def test_a_failing_cell_is_reported_in_three_lines(house, capsys):
    assert main(["train", "generate", "--run", "r"]) == 1
    out, err = capsys.readouterr()
    assert "failed after" in out and "05_generate" not in out
    assert "04_train.ipynb, cell [3]: x = 1" in err and "ZeroDivisionError: division by zero" in err
    assert str(executed_copy("r", "train")) in err and "Traceback" not in err and len(err.splitlines()) == 3
    assert any(output.output_type == "error" for output in executed("train").cells[-1].outputs)


@pytest.mark.slow
def test_a_kernel_that_dies_or_does_not_start_says_why(house, tmp_path, monkeypatch, capsys):
    assert main(["serve", "--run", "r"]) == 1
    assert "the kernel died" in capsys.readouterr().err
    (tmp_path / "ipykernel_launcher.py").write_text("import a_module_that_is_missing", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["generate", "--run", "r"]) == 1
    told = capsys.readouterr().err
    assert "the kernel died: ModuleNotFoundError: No module named 'a_module_that_is_missing'" in told
    assert len(told.splitlines()) == 3


def test_two_commands_never_work_on_one_run(house, capsys, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with files.occupied(paths.run_dir("r")):
        assert main(["corpus", "--run", "r"]) == 2
    assert "another program, or another notebook, is at work in" in capsys.readouterr().err
    assert not paths.run_dir("r").exists()


def test_lessons_are_left_out_of_a_run_of_ones_own_text(house, monkeypatch):
    taught = []
    monkeypatch.setattr(execute, "execute", lambda *given: taught.append(given[-1]))
    (house / "own.txt").write_text("绿萝\n", "utf-8")
    for more in ([], ["--corpus", str(house / "own.txt")], ["--corpus", str(house / "own.txt"), "--lessons"]):
        assert main(["corpus", "--run", "r", *more]) == 0
    assert taught == [True, False, True]


# ---- what it is doing ----


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (Note("training", 312, 772, "updates", 0, 63.0), "312/772 [01:03<01:32, 4.95updates/s]"),
        (Note("training", 312, 772, "updates", 300, 60.0), "312/772 [01:00<38:20, 5.00s/updates]"),  # since resumed
        (Note("fetching", 12_345_678, None, "B", 0, 6.0), "12.3MB [00:06, 2.06MB/s]"),
    ],
)
def test_rate_and_time_left_are_those_since_the_work_began(note, words):
    assert execute.meter(note, 0).endswith(words)
    assert ("█" in execute.meter(note, 80)) == bool(note.total)


@pytest.mark.parametrize("one_line", [True, False])
def test_each_new_note_is_shown_once(tmp_path, capsys, monkeypatch, one_line):
    for name in ("TERMINAL_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(execute, name, 0.01)
    monkeypatch.setenv("COLUMNS", "60")
    reads, read = [], execute.progress.read_note
    monkeypatch.setattr(execute.progress, "read_note", lambda file: reads.append(file) or read(file))
    file = tmp_path / "p"

    def until_it_has_looked_again():
        before = len(reads)
        while len(reads) < before + 3:
            time.sleep(0.01)

    with execute.watching(file, "04_train  ", one_line):
        file.write_text(json.dumps(Note("training", 1, 4, "updates", 0, 1.0)), "utf-8")
        until_it_has_looked_again()
        file.write_text("[", "utf-8")  # nothing
        until_it_has_looked_again()
    out = capsys.readouterr().out
    assert out.count("training") == 1 and "1.00/4.00" in out and not file.exists()
    if one_line:
        assert out.startswith("04_train  \r\x1b[K04_train  training") and out.endswith(execute.CLEAR)
        assert len(out.split(execute.CLEAR)[1]) <= 59  # never wrapped


# ---- fresh outputs ----


@pytest.mark.slow
def test_refresh_writes_clean_outputs_in_place(house, monkeypatch):
    monkeypatch.delenv("RUNS_DIR")
    shown = f"\nfrom IPython.display import display\ndisplay({{'{execute.WIDGET_VIEW}': {{}}}}, raw=True)"
    write_cell("corpus", more=shown, widgets={})
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    before = [(cell.id, dict(cell.metadata)) for cell in book.cells]
    assert main(["refresh", "corpus"]) == 0
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    assert [(cell.id, dict(cell.metadata)) for cell in book.cells] == before
    assert [cell.execution_count for cell in book.cells[1:]] == [1, 2]
    assert [output.output_type for output in book.cells[2].outputs] == ["stream"]
    assert "language_info" not in book.metadata and not (house / "runs").exists()
    monkeypatch.delenv("RUNS_DIR")


@pytest.mark.slow
def test_refresh_leaves_a_failing_notebook_as_it_was(house, capsys):
    before = paths.notebook("train").read_bytes()
    assert main(["refresh", "04"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err and paths.notebook("train").read_bytes() == before
