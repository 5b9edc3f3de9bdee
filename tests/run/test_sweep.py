"""Sweeps: rooms that runs share, runs that fail, several processes, one that is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from displays import until
from house import write_cell

from helpers import paths
from helpers.manifest import open_room, read_manifest
from helpers.run import sweep
from helpers.run.__main__ import main

# a stand-in for notebook 04: the better its rate, the fewer bits. It notes that it ran; with `waits` a low rate goes on
# only when there is a file: one that the test writes, or STOP
PARAMETERS = """# parameters
run: str = "sample"  # name of the run
lr: float = 1.0e-3
n_embd: int = 8
waits: str = ""
"""
TRAIN = """
import time
from pathlib import Path
from helpers import paths
from helpers.manifest import open_room, write_manifest
open_room(run, "vocab")
assert lr != 9, "the rate is far too high"
folder = paths.room(run, "train"); folder.mkdir(parents=True, exist_ok=True)
with open(paths.runs_dir() / "begun", "a") as file:
    print(run, file=file)
while waits and lr < 0.2 and not Path(waits).exists() and not (folder / "STOP").exists():
    time.sleep(0.05)
step, end = (1, "stopped") if (folder / "STOP").exists() else (4, "finished")
(folder / "STOP").unlink(missing_ok=True)
bits = 10 / step - lr - n_embd / 1000
(folder / "weights").write_text(f"{lr} {n_embd}")
_ = write_manifest(run, "train", parameters={"run": run, "lr": lr, "n_embd": n_embd, "waits": waits},
    inputs=[paths.room(run, "vocab") / "vocab_user.txt"], outputs=[folder / "weights"],
    result={"val_bits_per_char": bits, "steps": step, "total_steps": 4, "ended": end, "chosen": {"batch_size": 8}})
"""
TOKENIZE = """
from helpers.manifest import write_manifest
_ = write_manifest(run, "tokenize", parameters={"run": run}, inputs=[], outputs=[], result={})
"""


@pytest.fixture
def sweep_house(house):
    write_cell("train", TRAIN.strip(), parameters=PARAMETERS)
    write_cell("tokenize", TOKENIZE.strip())
    return house


def write_grid(text):
    Path("s.yaml").write_text(text, "utf-8")
    return ["sweep", "s.yaml", "--run", "s"]


def ends():
    """Return {run: how its trials have ended}, in order."""
    found = {}
    for trial in sweep.open_study("s").get_trials():
        found.setdefault(trial.user_attrs["run"], []).append(trial.state.name)
    return found


def begun():
    return (paths.runs_dir() / "begun").read_text("utf-8").split()


@pytest.mark.slow
def test_what_is_not_swept_is_made_once_and_the_same_command_runs_nothing_again(sweep_house, capsys):
    command = write_grid("lr: [0.2, 0.3]\nn_embd: [8, 16]")
    assert main(command) == 0
    out = capsys.readouterr().out
    assert [out.count(name) for name in ("01_corpus", "02_vocab", "03_tokenize", "04_train")] == [1, 1, 1, 4]
    assert [line.split()[0] for line in out.splitlines()[-7:]] == ["s-4", "s-3", "s-2", "s-1", "lr", "n_embd", "study"]
    assert "s-4           2.1840 bits per character   lr 0.3 · n_embd 16" in out and "importance 100%" in out
    assert ends() == {f"s-{i}": ["COMPLETE"] for i in range(1, 5)}
    shard = "corpus/train-00000.jsonl"
    assert os.path.samefile(paths.run_dir("s") / shard, paths.run_dir("s-4") / shard)
    assert read_manifest("s-4", "vocab")["parameters"] == {"run": "s-4", "size": 50}
    assert all(open_room(f"s-{i}", "train") for i in range(1, 5))
    assert main(command) == 0 and len(begun()) == 4
    # a run is an ordinary one: its rooms are found finished
    capsys.readouterr()
    assert main(["corpus", "vocab", "tokenize", "train", "--run", "s-4", "-p", "lr", "0.3", "-p", "n_embd", "16"]) == 0
    assert capsys.readouterr().out.count("skipped") == 4


@pytest.mark.slow
def test_a_room_that_depends_on_what_is_swept_is_made_for_each_run(sweep_house, capsys):
    assert main(write_grid("size: [40]")) == 0  # a parameter of 01 and of 02
    assert "01_corpus" in capsys.readouterr().out and not paths.room("s", "corpus").exists()
    assert read_manifest("s-1", "corpus")["parameters"]["size"] == 40


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_is_tried_again_by_the_next_command(sweep_house, capsys):
    command = write_grid("lr: [9.0, 0.3]")
    assert main(command) == 1
    assert "the rate is far too high" in capsys.readouterr().out
    assert ends() == {"s-1": ["FAIL"], "s-2": ["COMPLETE"]}
    assert main(command) == 1 and ends() == {"s-1": ["FAIL", "FAIL"], "s-2": ["COMPLETE"]}
    # a study is of one question
    for text, more in (("lr: [9.0, 0.3, 0.4]", []), ("lr: [9.0, 0.3]", ["-p", "n_embd", "9"])):
        assert main([*write_grid(text), *more]) == 2
        assert "choose a new --run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trial_that_the_user_stops_is_taken_again_and_goes_on(sweep_house, capsys):
    command = [*write_grid("lr: [0.1]"), "-p", "waits", str(Path("go").resolve())]

    def stop():
        until((paths.runs_dir() / "begun").exists, 600)
        (paths.room("s-1", "train") / "STOP").touch()

    threading.Thread(target=stop).start()
    assert main(command) == 0 and "model/ is not finished (stopped at update 1 of 4)" in capsys.readouterr().out
    Path("go").touch()
    assert main(command) == 0 and ends() == {"s-1": ["FAIL", "COMPLETE"]}


def kernels():
    """Return the kernels that work for runs in this test's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "ipykernel_launcher" in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RUNS_DIR") == str(paths.runs_dir()):
                    found.append(process)
    return found


@pytest.mark.slow
def test_two_processes_share_the_runs_and_that_of_a_killed_one_is_taken_again(sweep_house):
    command = [*write_grid("lr: [0.1, 0.3, 0.4]"), "-p", "waits", str(Path("go").resolve())]
    code = "import sys; from pathlib import Path; from helpers import paths; from helpers.run.__main__ import main\n"
    code += f"paths.repo_root = lambda: Path({str(sweep_house)!r})\nsys.exit(main({command!r}))"
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    until((paths.runs_dir() / "begun").exists, 600)  # its run waits for the file
    assert main(command) == 0
    assert ends() == {"s-1": ["RUNNING"], "s-2": ["COMPLETE"], "s-3": ["COMPLETE"]}
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    until(lambda: not kernels(), 600)
    Path("go").touch()
    assert main(command) == 0
    assert ends() == {"s-1": ["FAIL", "COMPLETE"], "s-2": ["COMPLETE"], "s-3": ["COMPLETE"]}
    assert begun() == ["s-1", "s-2", "s-3", "s-1"]


@pytest.mark.parametrize(
    ("grid", "more", "words"),
    [
        ("lr: [0.1]", ["-p", "sise", "3"], "did you mean 'size'"),
        ("learning_rate: [0.1]", [], "here it is lr"),
        ("run: [a, b]", [], "--run"),
        ("lr: [fast]", [], "lr is 'fast', str"),
        *((text, [], "expected lines") for text in ("", "lr: 0.1", "lr: []", "lr: [1, 1]", "on: [1]", "- lr")),
        ("lr: [[1]]", [], "lr is [1], list"),
        ("lr: [", [], "not readable YAML"),
        ("lr: [1]\nlr: [2]", [], "'lr' stands twice"),
        ("\n".join(f"{name}: {list(range(40))}" for name in "abc"), [], "64,000 combinations"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_no_trace(sweep_house, capsys, grid, more, words):
    assert main([*write_grid(grid), *more]) == 2
    assert words in capsys.readouterr().err and not paths.runs_dir().exists()


@pytest.mark.slow
def test_the_real_notebooks_are_swept(tmp_path, monkeypatch):
    """At micro scale; then notebook 03 on its run, by papermill's own command from any folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(paths.repo_root()))
    monkeypatch.setenv("HEADLESS", "1")
    assert main([*write_grid("lr: [1.0e-3]"), "--preset", "micro"]) == 0
    (trial,) = sweep.open_study("s").get_trials()
    assert trial.value < 20  # bits per character
    command = [Path(sys.executable).with_name("papermill"), paths.notebook("tokenize"), "out.ipynb"]
    subprocess.run([*command, "-p", "run", "s-1", "-p", "num_pieces", "3"], check=True, capture_output=True)
    assert read_manifest("s-1", "tokenize")["parameters"]["num_pieces"] == 3
