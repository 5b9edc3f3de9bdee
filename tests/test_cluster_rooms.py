"""Rooms 02 and 03 on a Dask cluster, started as the README says: the bytes of local processes, also if a machine dies.

Room 01 is in tests/corpus/test_partition.py. A machine here is a worker and the nanny that would start it again: both
are killed.
"""

import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from service import wait_until

from helpers import parallel, paths
from helpers.corpus.shards import read_texts
from helpers.tokens import shards
from helpers.vocab import words
from helpers.vocab.tokenizer import build_words

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DISTINCT = 3000  # documents
SENTENCES = "绿萝怎么浇水 看土 干透了再浇 龟背竹喜欢散射光 冬天少浇水 叶子发黄是水太多了 放在窗边 每周转一次盆".split()


# ---- a cluster ----


class Cluster:
    """A scheduler and two machines with a worker each, from the README's own commands."""

    def __init__(self, folder: Path):
        self.folder, self.machines = folder, []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        readme = (paths.repo_root() / "README.md").read_text("utf-8")
        scheduler, self.worker = (shlex.split(line) for line in re.findall(r"^(dask \w+.*?) +#", readme, re.M))
        assert scheduler == ["dask", "scheduler"] and "--nthreads" in self.worker
        port = self.address.rpartition(":")[2]
        self.scheduler = self.start([*scheduler, "--host", "127.0.0.1", "--port", port])

    def start(self, command: list[str]) -> subprocess.Popen:
        """Start a process group of its own; the workers find the stand-in of this test."""
        dask = str(Path(sys.executable).with_name("dask"))
        variables = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [dask, *command[1:], "--no-dashboard"],
                env=variables, cwd=paths.repo_root(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def add_machines(self, count: int) -> None:
        """Start machines, and wait until the scheduler knows them all."""
        from distributed import Client

        command = [self.address if word.startswith("tcp:") else word for word in self.worker]
        for _ in range(count):
            self.machines.append(self.start([*command, "--local-directory", str(self.folder)]))
        with Client(self.address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(len(self.machines), timeout=60)

    def kill(self, machine: subprocess.Popen) -> None:
        """Switch a machine off: its worker and its nanny."""
        os.killpg(machine.pid, signal.SIGKILL)
        machine.wait()
        self.machines.remove(machine)

    def close(self) -> None:
        """End all in order; what is left then is ended with force, and is an error."""
        groups = [*self.machines, self.scheduler]
        of_all = [psutil.Process(each.pid) for each in groups]
        processes = [*of_all, *(child for each in of_all for child in each.children(recursive=True))]
        for each in groups:  # the scheduler last: a worker that loses it while it ends takes eight seconds more
            each.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(20)
        _, left = psutil.wait_procs(processes, timeout=5)
        for process in left:
            process.kill()
        assert not left, left


@pytest.fixture(scope="module")
def cluster(own_runs_dir, tmp_path_factory):
    pytest.importorskip("distributed")
    cluster = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        cluster.add_machines(2)
        yield cluster
    finally:
        cluster.close()


# ---- two rooms ----


def make_corpus(run: str) -> None:
    """Write documents that differ, as room 01 leaves them."""
    draw, room = random.Random(0), paths.room(run, "corpus")
    room.mkdir(parents=True)
    for name in ("train-00000", "train-00001", "val-00000"):
        with open(room / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for number in range(DISTINCT // 3):
                text = f"{name}第{number}篇，" + "，".join(draw.choices(SENTENCES, k=5)) + "。"
                file.write(json.dumps({"text": text, "source": name}, ensure_ascii=False) + "\n")


def make_vocabulary(run: str, workers: int = 0, cluster: str = "") -> None:
    """Do what notebook 02 does: count the words, cut the held-out text, write the list and the tokenizer."""
    segmenter = words.SEGMENTERS["rjieba"]
    with parallel.executor(workers, cluster) as pool:
        counts = words.count_words(read_texts(run, "train"), pool, segmenter=segmenter)
        held_out = words.segment_texts(list(read_texts(run, "val")), pool, segmenter=segmenter)
    chosen = words.choose_words(counts, vocab_size=300)
    room = paths.room(run, "vocab")
    room.mkdir()
    words.write_words(room / "vocab_user.txt", chosen)
    build_words(chosen, words.count_characters(counts)).save_pretrained(room)
    (room / "held_out.json").write_text(json.dumps(held_out, ensure_ascii=False), "utf-8")


def bytes_of(run: str, stage: str) -> dict[str, bytes]:
    room = paths.room(run, stage)
    return {str(file.relative_to(room)): file.read_bytes() for file in room.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def small_tasks(own_runs_dir):
    """Make the tasks small, so that each room has some dozens of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_CHUNK_CHARACTERS", 3000)
        patch.setattr(shards, "_PART_BYTES", 10_000)
        yield


@pytest.fixture(scope="module")
def expected(small_tasks) -> dict[str, dict[str, bytes]]:
    """Return the bytes of both rooms, made by two local processes."""
    pytest.importorskip("rjieba")
    make_corpus("local")
    make_vocabulary("local", workers=2)
    shards.write_shards("local", 4, workers=2)
    made = {stage: bytes_of("local", stage) for stage in ("vocab", "tokenize")}
    assert len(made["vocab"]) >= 4 and len(made["tokenize"]) >= 10
    return made


def test_both_rooms_have_the_same_bytes_on_a_cluster(expected, cluster):
    make_corpus("cluster")
    make_vocabulary("cluster", cluster=cluster.address)
    shards.write_shards("cluster", 4, cluster=cluster.address)
    assert {stage: bytes_of("cluster", stage) for stage in expected} == expected


# ---- a machine dies ----


@dataclass(frozen=True)
class Witness:
    """Calls a function of a module, slowly, and leaves a file for each call: "begun", and "done" at its end."""

    module: str  # by name: where the tasks come from, this stands in for the function itself
    name: str
    folder: Path

    def __call__(self, *arguments):
        task = hashlib.sha256(repr(arguments[-1]).encode()).hexdigest()
        mark = self.folder / f"{os.getpid()}-{task}-{uuid4().hex}.begun"
        mark.touch()
        time.sleep(0.05)
        result = getattr(importlib.import_module(self.module), self.name)(*arguments)
        mark.rename(mark.with_suffix(".done"))
        return result

    def tasks(self, state: str, pids: set[int], others: bool = False) -> set[str]:
        """Return the tasks that some processes, or all others, have "begun" and not ended, or have "done"."""
        marks = [file.name.split("-") for file in self.folder.glob(f"*.{state}")]
        return {task for pid, task, _ in marks if (int(pid) in pids) != others}


class Killer(threading.Thread):
    """Switches a machine off that has done some tasks, while it has one under way."""

    def __init__(self, cluster: Cluster, witness: Witness):
        super().__init__(daemon=True)
        self.cluster, self.witness, self.machine = cluster, witness, cluster.machines[0]
        self.processes = psutil.Process(self.machine.pid).children(recursive=True)
        self.pids = {process.pid for process in self.processes}
        self.lost: set[str] = set()

    def run(self) -> None:
        while len(self.witness.tasks("done", self.pids)) < 3:
            time.sleep(0.005)
        while True:  # nothing changes while it is looked at
            os.killpg(self.machine.pid, signal.SIGSTOP)
            wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in self.processes))
            if lost := self.witness.tasks("begun", self.pids):
                break
            os.killpg(self.machine.pid, signal.SIGCONT)
            time.sleep(0.005)
        self.cluster.kill(self.machine)
        self.lost = lost


def make_while_a_machine_dies(cluster: Cluster, module, name: str, folder: Path, make) -> None:
    """Make a room while a machine is switched off; the other one must take over what that had under way."""
    cluster.add_machines(2 - len(cluster.machines))
    witness = Witness(module.__name__, name, folder)
    killer = Killer(cluster, witness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, witness)
        killer.start()
        make()
    killer.join(1)
    assert killer.lost, "the machine was never killed at work"
    assert killer.lost <= witness.tasks("done", killer.pids, others=True)
    assert len(witness.tasks("done", killer.pids)) < len(witness.tasks("done", set(), others=True)) / 2


def test_the_vocabulary_has_the_same_bytes_if_a_machine_dies(expected, cluster, tmp_path):
    make_corpus("vocab-again")

    def make():
        make_vocabulary("vocab-again", cluster=cluster.address)

    make_while_a_machine_dies(cluster, words, "_segment_chunk", tmp_path, make)
    assert bytes_of("vocab-again", "vocab") == expected["vocab"]


def test_the_token_shards_have_the_same_bytes_if_a_machine_dies(expected, cluster, tmp_path):
    make_corpus("tokens-again")
    shutil.copytree(paths.room("local", "vocab"), paths.room("tokens-again", "vocab"))

    def make():
        shards.write_shards("tokens-again", 4, cluster=cluster.address)

    make_while_a_machine_dies(cluster, shards, "encode_part", tmp_path, make)
    assert bytes_of("tokens-again", "tokenize") == expected["tokenize"]
