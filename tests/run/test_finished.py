"""Which stages need not run again?"""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from house import make_house, write_cell

from helpers import manifest, paths, report
from helpers.manifest import ENDINGS, MANIFEST, RoomError, open_room, read_manifest, unfinished, write_manifest
from helpers.paths import executed_copy
from helpers.run.__main__ import main
from helpers.run.execute import finished_unchanged, note_finished


def write_room(stage, name, text, inputs, **result):
    """Write a finished room of one file, and the executed copy of its notebook, as a run does."""
    file = paths.room("r", stage) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    write_manifest("r", stage, parameters={"run": "r"}, inputs=inputs, outputs=[file], result=result)
    executed_copy("r", stage).parent.mkdir(exist_ok=True)
    shutil.copyfile(paths.notebook(stage), executed_copy("r", stage))
    note_finished("r", stage)


@pytest.fixture
def finished(house):
    """Make a run of two rooms from a file outside."""
    source = Path("c.txt").resolve()
    source.write_text("明月几时有", "utf-8")
    write_room("corpus", "train-00000.jsonl", "明月\n", [source], documents=5)
    write_room("vocab", "vocab_user.txt", "花\n", [paths.room("r", "corpus") / "train-00000.jsonl"], vocab_size=9)


def test_a_torn_copy_of_a_notebook_runs_again_and_the_page_leaves_it_out(finished):
    """Papermill writes it in place: killed while it does, it leaves half a file, perhaps half a character."""
    for torn in (b'{"cells": [', '{"cells": ["词'.encode()[:-1]):
        executed_copy("r", "corpus").write_bytes(torn)
        assert not finished_unchanged("r", "corpus", {"run": "r"})
        page = report.write_report("r").read_text("utf-8")
        assert "id='02_vocab'" in page and "id='01_corpus'" not in page


@pytest.mark.parametrize(("how", "done"), [*ENDINGS.items(), ("killed", False)])
def test_how_a_training_ended_decides_what_each_later_step_does_with_it(finished, capsys, monkeypatch, how, done):
    """Killed, or its disk full, it has no manifest; what is stopped has a model, and whoever opens it is told once."""
    figures = {} if how == "killed" else {"ended": how}
    write_room("train", "model.safetensors", "花", [], **figures, steps=26, total_steps=516)
    if how == "killed":
        (paths.room("r", "train") / MANIFEST).unlink()
    said = "model/ is not finished (stopped at update 26 of 516): 04_train with the same parameters goes on from there"
    stopped = how == "stopped"
    # the same command goes on where it is not done; other parameters begin anew
    assert finished_unchanged("r", "train", {"run": "r"}) == done
    assert not finished_unchanged("r", "train", {"run": "r", "lr": 1.0})
    # generate, serve, chat and reward open the room
    monkeypatch.setattr(manifest, "_warn", cache(manifest._warn.__wrapped__))
    if how == "killed":
        with pytest.raises(RoomError, match="has not finished its model/ yet: run notebook 04_train, or: python -m"):
            open_room("r", "train")
    else:
        assert open_room("r", "train")["ended"] == open_room("r", "train")["ended"] == how
    assert capsys.readouterr().err == (f"{said}\n" if stopped else "")
    assert (said in report.write_report("r").read_text("utf-8")) == stopped


def test_a_side_door_needs_a_run_that_is_there(house, capsys):
    assert main(["tournament", "--run", "nobody"]) == main(["tournament", "--run", "../x"]) == 2
    error = capsys.readouterr().err
    assert "there is no run 'nobody'" in error and "'../x' cannot name a run" in error


INTERRUPTED = """
import os, runpy, signal, sys
class AtImport:
    def find_spec(self, name, *more):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, AtImport())
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("command", "library"), [("helpers.run", "papermill"), ("helpers.train", "torch")])
def test_ctrl_c_while_libraries_load_ends_a_command_without_a_traceback(command, library):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    call = [sys.executable, "-c", INTERRUPTED, command, library]
    ended = subprocess.run(call, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_a_full_disk_is_named_even_if_the_system_names_no_file(house, capsys, monkeypatch):
    """Papermill's own writing of the copy is not ours."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("papermill.execute_notebook", full)
    assert main(["corpus", "--run", "r"]) == 1
    assert f"No space left on device, in {paths.runs_dir()}; once that is mended" in capsys.readouterr().err


# ---- what need not run again ----


TWO = ["corpus", "vocab", "--run", "r", "--corpus", "c"]


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    """Run two stages on a folder of one file; return the folder of it all, and a copy of its state."""
    folder = tmp_path_factory.mktemp("two") / "state"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "一.txt").write_text("明月几时有", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RUNS_DIR", folder / "runs"), ("PYTHONPATH", Path(__file__).parents[2])):
            patch.setenv(name, str(value))
        for name in ("HEADLESS", "TQDM_DISABLE"):
            patch.setenv(name, "")
        patch.setattr(paths, "repo_root", lambda: folder / "house")
        patch.chdir(folder)
        make_house(folder / "house")
        assert main(TWO) == 0
        shutil.copytree(folder, folder.parent / "finished")
        yield folder, folder.parent / "finished"


@pytest.fixture
def skipped(two_stages, capsys):
    """A function that runs the two stages again, and returns for each whether it was skipped; both have finished."""
    folder, finished = two_stages
    for name in ("c", "house", "runs"):
        shutil.rmtree(folder / name)
        shutil.copytree(finished / name, folder / name)

    def run_again(*more):
        capsys.readouterr()
        assert main([*TWO, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["01_corpus", "02_vocab", "report"]
        return ["skipped" in line for line in lines[:2]]

    return run_again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "more", "wanted"),
    [
        (lambda: None, [], [True, True]),
        (lambda: None, ["--force"], [False, False]),
        (lambda: None, ["-p", "ratio", "0.25"], [False, True]),  # changes no file and no figure
        (lambda: None, ["-p", "deep", "true"], [False, False]),  # other figures of the same files
        (lambda: Path("c/一.txt").write_text("明月几时有?", "utf-8"), [], [False, False]),
        (lambda: Path("c/二.txt").write_text("把酒问青天", "utf-8"), [], [False, False]),
        (lambda: (paths.room("r", "vocab") / "vocab_user.txt").unlink(), [], [True, False]),
        (lambda: write_cell("vocab", more="\nx = 1"), [], [True, False]),
    ],
)
def test_a_stage_runs_again_only_if_something_has_changed(skipped, change, more, wanted):
    assert executed_copy("r", "corpus").is_file() and read_manifest("r", "corpus")["parameters"]["run"] == "r"
    change()
    assert skipped(*more) == wanted


TRAIN = """
from pathlib import Path
from helpers import paths
from helpers.manifest import write_manifest
folder = paths.room(run, "train"); folder.mkdir(parents=True, exist_ok=True)
ended = "stopped" if Path("STOP").exists() else "finished"
(folder / "weights").write_text(ended)
_ = write_manifest(run, "train", parameters=dict(run=run, epochs=epochs, lr=lr), inputs=[],
                   outputs=[folder / "weights"], result={"ended": ended, "steps": 3, "total_steps": 9})
"""


@pytest.mark.slow
def test_a_command_ends_with_a_stage_that_is_stopped_and_the_same_one_goes_on_with_it(house, capsys):
    write_cell("train", f"import os\nos.chdir({os.getcwd()!r})\n{TRAIN.strip()}")
    Path("STOP").touch()
    assert main(["train", "generate", "--run", "r"]) == 130
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["04_train", "mind", "report"]
    assert "model/ is not finished (stopped at update 3 of 9)" in out
    assert main(["generate", "--run", "r"]) == 0  # asked for by its name, it takes what is there
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["mind", "05_generate", "report"]
    Path("STOP").unlink()
    assert main(["train", "generate", "--run", "r"]) == 0
    assert "skipped" not in (out := capsys.readouterr().out) and "mind" not in out and not unfinished("r", "train")


@pytest.mark.slow
def test_a_side_door_runs_on_the_rooms_of_a_run_and_is_skipped_like_a_stage(skipped, capsys):
    for words in ("3.25", "skipped"):
        assert main(["tournament", "--run", "r"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["tournament", "report"] and words in lines[0]
    page = (paths.run_dir("r") / "report.html").read_text("utf-8")
    assert '<a href="#tournament">' in page and "id='tournament'" in page
    assert skipped() == [True, True]
