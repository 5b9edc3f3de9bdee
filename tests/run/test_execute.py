"""Each notebook runs in a kernel of this Python; a failing cell and a dead kernel are told in words."""

import sys

import nbformat
import pytest

from helpers import files, paths
from helpers.paths import executed_copy
from helpers.run.__main__ import main


def executed(stage):
    return nbformat.read(executed_copy("r", stage), as_version=4)


def write_cell(stage, source, kernel="python3"):
    """Put one cell into a notebook, after its parameters."""
    book = nbformat.read(paths.notebook(stage), as_version=4)
    book.metadata["kernelspec"] = {"name": kernel, "display_name": "x", "language": "python"}
    book.cells[2].source = source
    nbformat.write(book, paths.notebook(stage))


@pytest.mark.slow
def test_a_kernel_is_of_this_very_interpreter(house):
    write_cell("generate", "import sys; print(sys.executable)", "some-other")
    assert main(["generate", "--run", "r"]) == 0
    assert executed("generate").cells[-1].outputs[0].text.strip() == sys.executable


@pytest.mark.slow
def test_a_failing_cell_is_reported_in_four_lines(house, capsys):
    assert main(["train", "generate", "--run", "r"]) == 1
    out, err = capsys.readouterr()
    assert "failed after" in out and "05_generate" not in out
    assert "04_train.ipynb, cell [3]: x = 1" in err and "ZeroDivisionError: division by zero" in err
    assert str(executed_copy("r", "train")) in err and "Traceback" not in err and len(err.splitlines()) == 3
    assert any(output.output_type == "error" for output in executed("train").cells[-1].outputs)


@pytest.mark.slow
def test_a_kernel_that_dies_is_reported_too(house, capsys):
    assert main(["serve", "--run", "r"]) == 1
    assert "the kernel died" in capsys.readouterr().err


def test_two_commands_never_work_on_one_run(house, capsys, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with files.occupied(paths.run_dir("r")):
        assert main(["corpus", "--run", "r"]) == 2
    assert "another program, or another notebook, is at work in" in capsys.readouterr().err
    assert not paths.run_dir("r").exists()


@pytest.mark.slow
def test_braces_in_a_path_are_no_parameters(house, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs{x}"))
    write_cell("generate", "print(1)")
    assert main(["generate", "--run", "r"]) == 0
    assert executed("generate").cells[-1].outputs[0].text.strip() == "1"


@pytest.mark.slow
def test_a_kernel_that_does_not_start_says_why(house, tmp_path, monkeypatch, capsys):
    (tmp_path / "ipykernel_launcher.py").write_text("import a_module_that_is_missing", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["generate", "--run", "r"]) == 1
    told = capsys.readouterr().err
    assert "the kernel died: ModuleNotFoundError: No module named 'a_module_that_is_missing'" in told
    assert len(told.splitlines()) == 3


@pytest.mark.slow
def test_what_a_kernel_logs_as_it_closes_is_not_in_the_terminal(house, capfd):
    """On a busy machine ipykernel's own sockets may close before its last message."""
    write_cell("generate", "import atexit, os, sys\n_ = atexit.register(os.write, sys.__stderr__.fileno(), b'closed')")
    assert main(["generate", "--run", "r"]) == 0
    assert not capfd.readouterr().err
