"""The map step: parts in any order, by any workers, stopped and resumed, give the same bytes."""

import json
import subprocess
import sys
import tracemalloc

import pytest
from corpora import SENTENCE, all_texts, build, bytes_of, jsonl

from helpers import paths
from helpers.corpus import partition, split


def test_half_characters_are_dropped_and_reported(raw):
    (raw / "a.jsonl").write_text('{"text": "坏\\ud800字"}\n{"text": "好\\ud83d\\ude00"}\n"三"\n', "utf-8")
    report = build(raw)
    assert all_texts() == ["三", "好😀"]
    assert report.dropped == {"with half characters": 1}
    assert "lone surrogate" in report.rows()[0][-1]


def test_a_full_disk_is_not_a_bad_file(raw, monkeypatch):
    """A bare except once turned a failed sentence into nothing; only what concerns one file is forgiven."""

    def full(*_):
        raise OSError(28, "No space left on device")

    (raw / "a.txt").write_text("一\n二", "utf-8")
    monkeypatch.setattr(partition.PartWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        build(raw, document="line")
    assert not list(paths.room("test", "corpus").rglob("*.lines"))


def test_the_bytes_do_not_depend_on_the_workers(raw, monkeypatch):
    monkeypatch.setattr(partition, "TASK_FILES", 1)  # a task a file
    for n in range(4):
        (raw / f"{n}.txt").write_text("\n".join(f"第{n}篇第{i % 7}句" for i in range(9)), "utf-8")
    written = {}
    for workers in (1, 2):
        report = build(raw, document="line", workers=workers)
        written[workers] = {file.name: file.read_bytes() for file in report.outputs}
    assert written[1] == written[2]
    assert report.documents == 28


def test_memory_is_bounded_by_a_batch_not_by_the_corpus(raw, monkeypatch):
    """The book held the whole corpus in memory, several times over."""
    monkeypatch.setattr(partition, "BATCH", 100_000)
    monkeypatch.setattr(split, "REDUCE_BYTES", 500_000)
    with open(raw / "big.txt", "w", encoding="utf-8") as file:
        for n in range(6000):
            file.write(f"{n} {SENTENCE * 40}\n")
    size = (raw / "big.txt").stat().st_size
    tracemalloc.start()
    report = build(raw, document="line")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.documents == 6000
    assert peak < 0.75 * size


def test_a_large_file_is_cut_into_slices_that_change_nothing(raw, monkeypatch):
    jsonl(raw / "a.jsonl", 3000)
    (raw / "b.txt").write_text("\n\n".join(f"第{n}段{SENTENCE}\n第二行" for n in range(2000)), "utf-8")
    whole = build(raw)
    expected = bytes_of(whole)
    monkeypatch.setattr(partition, "TASK_BYTES", 40_000)
    done = []
    monkeypatch.setattr(partition, "read_task", lambda task, run=partition.read_task: done.append(task) or run(task))
    report = build(raw)
    assert len(done) > 8
    assert bytes_of(report) == expected
    assert report.rules["HTML tags"] == whole.rules["HTML tags"] > 300
    assert [file.name for file in report.files] == ["a.jsonl", "b.txt"]
    assert report.dropped == whole.dropped and report.dropped["duplicate"] > 40


def test_many_small_files_travel_together(raw, monkeypatch):
    for n in range(300):
        (raw / f"{n:03}.txt").write_text(f"第{n}行，{SENTENCE}", "utf-8")
    monkeypatch.setattr(partition, "TASK_FILES", 100)
    done = []
    monkeypatch.setattr(partition, "read_task", lambda task, run=partition.read_task: done.append(task) or run(task))
    report = build(raw)
    assert len(done) == 3 and report.documents == 300 and len(report.files) == 300
    assert [text[: len(f"第{n}")] for n, text in ((0, "第0"), (9, "第9"))] == ["第0", "第9"]


CHILD = """
import os, signal, sys
from helpers.corpus import partition
from helpers.corpus.build import build_corpus
if __name__ == "__main__":
    partition.TASK_BYTES = 20_000
    done, real = [], partition.read_task
    def read(task):
        if len(done) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(task)
        return real(task)
    partition.read_task = read
    build_corpus("test", sys.argv[1], workers=1)
"""


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on_at_the_shard(raw, monkeypatch):
    """A stage that starts again from nothing loses a night on a large corpus."""
    jsonl(raw / "a.jsonl", 1500)
    monkeypatch.setattr(partition, "TASK_BYTES", 20_000)
    expected = bytes_of(build(raw, min_length=2))
    killed = subprocess.run([sys.executable, "-c", CHILD, str(raw)], cwd=paths.repo_root(), capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    left = paths.room("test", "corpus") / "parts"
    assert len(list(left.glob("*.json"))) == 3
    assert not (paths.room("test", "corpus") / "report.json").exists()
    torn = next(left.glob("*.lines"))  # as after a power cut: the name is there, the bytes are not
    torn.write_bytes(torn.read_bytes()[:100])
    written = []
    monkeypatch.setattr(
        partition.PartWriter,
        "finish",
        lambda part, facts, run=partition.PartWriter.finish: written.append(1) or run(part, facts),
    )
    report = build(raw, min_length=2)
    tasks = (raw / "a.jsonl").stat().st_size // 20_000
    assert tasks - 3 <= len(written) <= tasks + 1 - 2  # two of the three were used again
    assert bytes_of(report) == expected
    assert not left.exists()


@pytest.mark.parametrize("change", ["file", "settings"])
def test_parts_of_another_file_or_setting_are_not_used_again(raw, monkeypatch, change):
    for n in range(3):
        jsonl(raw / f"{n}.jsonl", 40, seed=n)
    monkeypatch.setattr(partition, "TASK_FILES", 1)
    monkeypatch.setattr(split, "reduce", lambda *_: 1 / 0)  # stopped after its parts are finished
    with pytest.raises(ZeroDivisionError):
        build(raw)
    monkeypatch.undo()
    monkeypatch.setenv("RUNS_DIR", str(raw.parent / "runs"))
    monkeypatch.setattr(partition, "TASK_FILES", 1)
    before = {file.name for file in (paths.room("test", "corpus") / "parts").glob("*.json")}
    settings = {}
    if change == "file":
        (raw / "1.jsonl").write_text('{"text": "新的一篇，别的都旧。"}\n', "utf-8")
    else:
        settings = {"rules": "-HTML tags"}
    seen = []
    monkeypatch.setattr(
        partition.PartWriter,
        "finish",
        lambda part, facts, run=partition.PartWriter.finish: seen.append(part.part.name + ".json") or run(part, facts),
    )
    report = build(raw, **settings)
    assert len(before) == 3 and not before & set(seen)
    assert len(seen) == (1 if change == "file" else 3)
    assert ("新的一篇，别的都旧。" in all_texts()) == (change == "file")
    assert report.rules["HTML tags"] == (0 if settings else 2 * 5)


CLUSTER = """
import json, os, signal, sys, threading, time
from distributed import LocalCluster
from helpers import paths
from helpers.corpus import partition
from helpers.corpus.build import build_corpus
if __name__ == "__main__":
    partition.TASK_BYTES = 30_000
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        victim = next(iter(cluster.workers.values())).pid
        room = paths.room("cluster", "corpus") / "parts"
        def kill():
            while len(list(room.glob("*.json"))) < 4:
                time.sleep(0.002)
            os.kill(victim, signal.SIGKILL)
            done.append(len(list(room.glob("*.json"))))
        done = []
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        report = build_corpus("cluster", sys.argv[1], cluster=cluster.scheduler_address)
        killer.join()
    print(json.dumps({"done": done[0], "documents": report.documents}))
"""


@pytest.mark.slow
def test_a_cluster_writes_the_same_bytes_also_when_it_loses_a_worker(raw, monkeypatch):
    pytest.importorskip("distributed")
    for n in range(3):
        jsonl(raw / f"{n}.jsonl", 2500, seed=n)
    monkeypatch.setattr(partition, "TASK_BYTES", 30_000)
    expected = build(raw, min_length=2)
    command = [sys.executable, "-c", CLUSTER, str(raw)]
    done = subprocess.run(command, cwd=paths.repo_root(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["documents"] == expected.documents
    tasks = sum(file.stat().st_size for file in raw.iterdir()) // 30_000
    assert 4 <= told["done"] < tasks * 0.8  # it was killed half-way
    for name, data in bytes_of(expected).items():
        assert (paths.room("cluster", "corpus") / name).read_bytes() == data, name
