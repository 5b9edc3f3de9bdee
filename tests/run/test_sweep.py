"""Sweeps: shared rooms, a GPU for each run, runs that fail or are behind, a killed sweep that goes on."""

import contextlib
import csv
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import psutil
import pytest
from faults import FULL

from helpers import paths
from helpers.manifest import read_manifest
from helpers.run import sweep
from helpers.run.__main__ import main
from helpers.run.parameters import Refused

# a stand-in for notebook 04 that "trains" at once: the better its rate, the fewer bits; `patience` as in the real one
PARAMETERS = """# parameters
run: str = "sample"  # name of the run
lr: float = 1.0e-3
n_embd: int = 8
rungs: list = []
"""
TRAIN = """
import json, os
from helpers import paths
from helpers.manifest import open_room, write_manifest
from helpers.train.milestones import Progress, early_stop
open_room(run, "vocab")
assert lr != 9, "the rate is far too high"
folder = paths.room(run, "train"); folder.mkdir(parents=True, exist_ok=True)
with open(folder / "metrics.jsonl", "w") as log:
    for step in (1, 2, 3, 4):
        bits = 10 / step - lr - n_embd / 1000
        print(json.dumps({"event": "step", "step": step, "total_steps": 4, "bits_per_char": bits}), file=log)
        print(json.dumps({"event": "validation", "step": step, "bits_per_char": bits}), file=log)
        end = early_stop(Progress(step=step), 4, bits, 0, rungs)
        if end:
            break
    print(json.dumps({"event": "end", "reason": end or "finished"}), file=log)
(folder / "weights").write_text(f"{lr} {n_embd}")
_ = write_manifest(run, "train", parameters={"run": run, "lr": lr, "n_embd": n_embd, "rungs": rungs},
    inputs=[paths.room(run, "vocab") / "vocab_user.txt"], outputs=[folder / "weights"],
    result={"val_bits_per_char": bits, "steps": step, "total_steps": 4, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "speeds": os.environ.get("CHINESE_GPT_SPEEDS")})
"""


@pytest.fixture
def sweep_house(house):
    book = nbformat.read(paths.notebook("train"), as_version=4)
    book.cells[1].source, book.cells[2].source = PARAMETERS, TRAIN.strip()
    nbformat.write(book, paths.notebook("train"))
    tokenize = nbformat.read(paths.notebook("tokenize"), as_version=4)
    tokenize.cells[2].source = (
        "from helpers.manifest import write_manifest\n"
        '_ = write_manifest(run, "tokenize", parameters={"run": run}, inputs=[], outputs=[], result={})'
    )
    nbformat.write(tokenize, paths.notebook("tokenize"))
    return house


def write_grid(text):
    with open("s.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    return ["--sweep", "s.yaml", "--run", "s"]


def table():
    with open(paths.run_dir("s") / "sweep.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_rooms_are_shared_as_far_as_parameters_agree_and_all_is_skipped_the_second_time(sweep_house, capsys):
    command = write_grid("size: [40, 50]\nlr: [0.1, 0.2]")  # size is a parameter of 01 and of 02
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert Counter(line.split()[0] for line in lines if line[:2].isdigit()) == {
        "01_corpus": 2, "02_vocab": 2, "03_tokenize": 2, "04_train": 4,
    }  # fmt: skip
    assert [row["run"] for row in table()] == ["s-2", "s-4", "s-1", "s-3"]
    assert [row["lr"] for row in table()] == ["0.2", "0.2", "0.1", "0.1"]
    assert read_manifest("s-4", "vocab")["parameters"] == {"run": "s-4", "size": 50}
    for i in range(1, 5):
        assert main(["verify", "--run", f"s-{i}"]) == 0
        assert (paths.run_dir(f"s-{i}") / "report.html").is_file()
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.count("unchanged since it finished") == 10
    assert "lr            explains 100% of the variance: 0.2 2.292, 0.1 2.392" in out
    # one value more, before the others: two runs more, on the rooms that there are
    assert main(write_grid("size: [40, 50]\nlr: [0.3, 0.1, 0.2]")) == 0
    out = capsys.readouterr().out
    assert out.count("unchanged since it finished") == 10 and len(table()) == 6
    page = (paths.run_dir("s") / "sweep.html").read_text("utf-8")
    assert "s-5, 2.1920 bits per character (size 40 · lr 0.3)" in page and "<a href='../s-6/report.html'>" in page


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(sweep_house, capsys):
    assert main(write_grid("lr: [9.0, 0.1]")) == 1
    out = capsys.readouterr().out
    assert "04_train      s-1  failed after" in out and "the rate is far too high" in out
    assert [(row["run"], row["end"]) for row in table()] == [("s-2", "finished"), ("s-1", "not trained")]


@pytest.mark.slow
def test_halving_ends_what_is_behind_and_asks_the_same_when_it_is_asked_again(sweep_house, capsys):
    command = [*write_grid("lr: [0.2, 0.1, 0.3, 0.25]"), "--halving"]
    assert main(command) == 0
    ends = {row["run"]: (row["steps"], row["end"]) for row in table()}
    assert ends == {
        "s-1": ("4", "finished"),
        "s-2": ("1", "behind at 25%: 9.892 bits per character, not 9.792"),
        "s-3": ("4", "finished"),
        "s-4": ("4", "finished"),
    }
    assert read_manifest("s-4", "train")["parameters"]["rungs"] == [
        [0.25, pytest.approx(9.792)],
        [0.5, pytest.approx(4.792)],
    ]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out.count("unchanged since it finished") == 7


@pytest.mark.slow
def test_one_run_of_a_sweep_alone_on_rooms_that_were_made_before(sweep_house, capsys):
    """As a job array does it: the shared rooms, then each run as a task of its own, then the page."""
    command = write_grid("size: [40, 50]\nlr: [0.1, 0.2]")
    assert main(["corpus", "vocab", "tokenize", *command]) == 0
    assert main(["train", *command, "--only", "3"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line[:2].isdigit()]
    assert lines[-1] == ["04_train", "s-3"] and ["04_train", "s-1"] not in lines
    assert [(row["run"], row["end"]) for row in table()][:2] == [("s-3", "finished"), ("s-1", "not trained")]
    assert read_manifest("s-3", "train")["parameters"]["lr"] == 0.1
    assert main(["train", *command, "--only", "5"]) == 2
    assert "the runs are numbered 1, 2, 3, 4" in capsys.readouterr().err


@pytest.mark.slow
def test_each_gpu_gets_its_own_run(sweep_house, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert main(write_grid("lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]")) == 0
    assert {read_manifest(f"s-{i}", "train")["result"]["gpu"] for i in range(1, 7)} == {"5", "7"}
    shared = {read_manifest(f"s-{i}", "train")["result"]["speeds"] for i in range(1, 7)}
    assert shared == {str(paths.run_dir("s").resolve() / "speeds.json")}


def test_gpus_are_shared_out_in_groups_and_cores_evenly(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    assert sweep.places(0, 2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert sweep.places(1, 1) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    assert [place["CUDA_VISIBLE_DEVICES"] for place in sweep.places(7, 2)] == ["0,1", "2,3"] * 3 + ["0,1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(sweep, "cores", lambda: 8)
    assert sweep.places(4, 1) == [{"OMP_NUM_THREADS": "2"}] * 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert sweep.places(0, 1) == [{}]
    assert sweep.places(4, 1) == [{"OMP_NUM_THREADS": "2"}] * 4
    for none in (0, -1):
        with pytest.raises(Refused, match=f"-p devices {none}: a run needs 1 or more"):
            sweep.places(0, none)


@pytest.mark.slow
def test_the_gpus_are_counted_by_torch_where_nobody_has_named_them(monkeypatch):
    import torch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert sweep.visible_gpus() == [str(i) for i in range(torch.cuda.device_count())]


@pytest.mark.parametrize(
    ("grid", "more", "words"),
    [
        ("lr: [0.1]", ["-p", "sise", "3"], "did you mean 'size'"),
        ("learning: [0.1]", [], "--sweep learning: no notebook that is to run has it"),
        ("lr: [fast]", [], "--sweep lr: lr is 'fast', str"),
        ("lr: 0.1", [], "needs a list"),
    ],
)
def test_what_is_refused_leaves_no_trace(sweep_house, capsys, grid, more, words):
    assert main([*write_grid(grid), *more]) == 2
    assert words in capsys.readouterr().err
    assert not paths.runs_dir().exists()


def test_options_of_a_sweep_need_one(house, capsys):
    assert main(["--draws", "3"]) == 2
    assert "belong to --sweep" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--draws", "--only", "--jobs"])
def test_counts_below_one_are_refused(sweep_house, capsys, option):
    assert main([*write_grid("lr: [0.1, 0.2]"), option, "-1"]) == 2
    assert "numbers from 1 on" in capsys.readouterr().err


def kernels_of(folder):
    """Return the kernels that work for runs in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "ipykernel_launcher" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("RUNS_DIR") == str(folder):
                    found.append(process)
            except psutil.Error:
                pass
    return found


def run_in_terminal(command, cwd, environment):
    """Run a command in a terminal of its own; return what that shows."""
    import pty  # a thing of Unix

    reader, writer = pty.openpty()
    environment = environment | {"COLUMNS": "140"}
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=writer, stderr=writer)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # Linux tells the end of a terminal so
        while block := os.read(reader, 4096):
            shown += block
    assert process.wait() == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.slow
def test_a_killed_sweep_of_real_runs_ends_with_the_table_of_one_that_was_not_killed(tmp_path, monkeypatch):
    """The real notebooks at micro scale, two at a time; SIGKILL of the sweep alone, and its kernels end too.

    With FAULTS=full eight runs, killed twice; by default two runs, killed once. Then the scripts of examples/, and
    papermill's own command, on the same runs.
    """
    grid = "lr: [1.0e-3, 1.0e-2]\n" + ("n_embd: [16, 32]\nseed: [0, 1]\n" if FULL else "")
    (tmp_path / "s.yaml").write_text(grid, "utf-8")
    command = [sys.executable, "-m", "helpers.run", "--preset", "micro", "--sweep", "s.yaml", "--run", "s"]
    environment = os.environ | {"PYTHONPATH": str(paths.repo_root()), "CUDA_VISIBLE_DEVICES": ""}
    # 1. one that nobody kills, in a terminal
    runs, begin = tmp_path / "whole", time.monotonic()
    shown = run_in_terminal(command, tmp_path, environment | {"RUNS_DIR": str(runs)})
    seconds = time.monotonic() - begin
    table = (runs / "s" / "sweep.csv").read_text("utf-8")
    assert table.count("finished") == (8 if FULL else 2)
    assert re.search(r"02_vocab +s-1 +thulac: validation documents █", shown)
    monkeypatch.setenv("RUNS_DIR", str(runs))
    updates = read_manifest("s-1", "train")["result"]["total_steps"]
    assert re.search(rf"04_train +s-1 +training █*░* \d+ of {updates} updates", shown)
    lines = [line.split("\x1b[K")[-1] for line in shown.split("\n")]  # what is left of each in the end
    assert [line.split()[0] for line in lines[1:5]] == ["01_corpus", "02_vocab", "03_tokenize", "04_train"]
    # 2. one that is killed
    runs = tmp_path / "killed"
    environment |= {"RUNS_DIR": str(runs)}
    for _ in range(2 if FULL else 1):
        process = subprocess.Popen([*command, "--jobs", "2"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        time.sleep(random.uniform(0.1, 0.6) * seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 20
        while kernels_of(runs) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not kernels_of(runs)
    subprocess.run([*command, "--jobs", "2"], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert (runs / "s" / "sweep.csv").read_text("utf-8") == table
    monkeypatch.setenv("RUNS_DIR", str(runs))
    # 3. one run again, as a task of a job array
    shutil.rmtree(paths.room("s-2", "train"))
    environment |= {"SWEEP": str(tmp_path / "s.yaml"), "RUN": "s", "PRESET": "micro", "SLURM_ARRAY_TASK_ID": "2"}
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n', "utf-8")
    script = paths.repo_root() / "examples" / "slurm-array.sh"
    done = subprocess.run(["bash", script], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:2]] == [["04_train", "s-2"]]
    assert (runs / "s" / "sweep.csv").read_text("utf-8") == table
    # 4. notebook 05 by papermill's own command, from any folder
    notebook, copy = paths.notebook("generate"), tmp_path / "out.ipynb"
    small = {"run": "s-2", "samples": 2, "max_new_tokens": 5, "questions": 4}
    options = [word for name, value in small.items() for word in ("-p", name, str(value))]
    command = [Path(sys.executable).with_name("papermill"), notebook, copy, *options]
    subprocess.run(command, cwd=tmp_path, env=environment | {"HEADLESS": "1"}, check=True, capture_output=True)
    assert read_manifest("s-2", "generate")["parameters"]["max_new_tokens"] == 5


def test_two_machines_share_a_sweep(tmp_path):
    """The script of examples/, with a stand-in for ssh and for Python that note what they are asked."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f'PATH="{tmp_path}:$PATH"\n', "utf-8")
    for name, line in (("python", f'echo "$MACHINE $*" >> "{tmp_path}/asked"'), ("ssh", 'MACHINE=$1 bash -c "$2"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    script = paths.repo_root() / "examples" / "two-machines.sh"
    environment = os.environ | {"SSH": str(tmp_path / "ssh"), "MACHINE": "here"}
    arguments = ["lr.yaml", "songci", "song ci.txt", "3", "alice", "bob"]
    subprocess.run(["bash", script, *arguments], cwd=tmp_path, env=environment, check=True)
    asked = (tmp_path / "asked").read_text("utf-8").splitlines()
    same = "-m helpers.run --sweep lr.yaml --run songci --corpus song ci.txt"
    assert asked[0] == f"here {same} corpus vocab tokenize" and asked[-1] == f"here {same}"
    assert sorted(asked[1:-1]) == [
        f"alice {same} train --only 1", f"alice {same} train --only 3", f"bob {same} train --only 2",
    ]  # fmt: skip
