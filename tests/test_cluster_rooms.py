"""Rooms 02 and 03 made on a Dask cluster have the bytes of those that one process makes. Room 01 is in tests/corpus."""

import json

import pytest

from helpers import parallel, paths
from helpers.corpus.shards import read_texts
from helpers.tokens import shards
from helpers.vocab import words
from helpers.vocab.tokenizer import build_words

TEXT = "{name}第{n}篇，绿萝看土，干透了再浇。龟背竹喜欢散射光，冬天少浇水，每{n}天转一次盆。"


def make_corpus(run):
    """Write documents that differ, as room 01 leaves them."""
    paths.room(run, "corpus").mkdir(parents=True)
    for name in ("train-00000", "train-00001", "val-00000"):
        rows = [{"text": TEXT.format(name=name, n=n), "source": name} for n in range(300)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (paths.room(run, "corpus") / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def make_rooms(run, cluster=""):
    """Do what notebooks 02 and 03 do; return the bytes of all files."""
    make_corpus(run)
    segmenter = words.SEGMENTERS["rjieba"]
    with parallel.executor(1, cluster) as pool:
        counts = words.count_words(read_texts(run, "train"), pool, segmenter=segmenter)
        held_out = words.segment_texts(list(read_texts(run, "val")), pool, segmenter=segmenter)
    room = paths.room(run, "vocab")
    build_words(words.choose_words(counts, vocab_size=300), words.count_characters(counts)).save_pretrained(room)
    shards.write_shards(run, 4, workers=1, cluster=cluster)
    files = [file for stage in ("vocab", "tokenize") for file in sorted(paths.room(run, stage).rglob("*"))]
    return held_out, {file.relative_to(paths.run_dir(run)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.slow
def test_rooms_made_on_a_cluster_equal_those_made_by_a_process(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("rjieba")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    # small tasks, so that each room has some dozens of them
    monkeypatch.setattr(words, "_CHUNK_CHARACTERS", 1000)
    monkeypatch.setattr(shards, "_PART_BYTES", 5000)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        together = make_rooms("together", cluster.scheduler_address)
    alone = make_rooms("alone")
    assert together == alone and len(alone[1]) >= 10
