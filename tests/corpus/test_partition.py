"""The map step: parts in any order, by any workers, give the same bytes."""

import os
import shutil
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
from corpora import SENTENCE, all_texts, build, bytes_of, jsonl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import paths
from helpers.corpus import partition


@pytest.fixture
def written(monkeypatch):
    """The parts that builds write."""
    parts, real = [], partition.write_part
    monkeypatch.setattr(partition, "write_part", lambda task, *rest: parts.append(task.part) or real(task, *rest))
    return parts


# file and archive names: in several encodings, alike, long, odd
NAMES = ["诗歌".encode("gbk"), "散文".encode("gbk"), b"\\xca\\xab", "诗\n歌".encode(), b"A", b"a", "诗".encode() * 60]
NAMES += ["é".encode(), "e\u0301".encode()]
FORMS = {"txt": b"%b\n", "zip": b"%b\n", "jsonl": b'{"text": "%b"}\n', "csv": b'"%b",1\n'}


def write_rows(path: str, rows: list[bytes]):
    """Write documents as the kind of file that a path names; in a zip the members have one name."""
    kind = path.rpartition(".")[2]
    parts = [b"text,n\n" * (kind == "csv"), *(FORMS[kind] % row for row in rows)]
    if kind != "zip":
        Path(path).write_bytes(b"".join(parts))
        return
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for member in (parts[:4], parts[4:], [bytes(range(256)) * 9]):
            archive.writestr("a.txt", b"".join(member))


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(FORMS))), min_size=1, max_size=5, unique=True),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 19)), max_size=3),
    st.sampled_from(["utf-8", "gb18030"]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_files_are_called_only_their_bad_lines_are_lost(raw, files, faults, codec):
    shutil.rmtree(raw)
    raw.mkdir()
    good, bad = set(), 0
    for number, (name, kind) in enumerate(files):
        texts = [f"第{number}卷第{n}天，绿萝喜欢散射光。" for n in range(20)]
        rows = [text.encode(codec) for text in texts]
        for row in (row for file, row in faults if file == number):
            rows[row], texts[row] = (b"\xff" + rows[row] if row % 2 else rows[row][:-1]), ""
        write_rows(os.path.join(raw, os.fsdecode(name) + f".{kind}"), rows)
        good, bad = good | set(filter(None, texts)), bad + texts.count("")
    report = build(raw, document="line")
    assert set(all_texts()) == good
    assert report.dropped == ({"undecodable": bad} if bad else {})
    inputs = sum(3 if kind == "zip" else 1 for _, kind in files)
    assert len(report.files) == inputs


def test_a_full_disk_is_not_a_bad_file(raw, monkeypatch):
    """A bare except once turned a failed sentence into nothing; only what concerns one file is forgiven."""

    def full(*_):
        raise OSError(28, "No space left on device")

    (raw / "a.txt").write_text("一\n二", "utf-8")
    monkeypatch.setattr(partition, "_shard_line", full)
    with pytest.raises(OSError, match="No space left"):
        build(raw, document="line")
    assert not list(paths.room("test", "corpus").rglob("*.*"))


def test_the_bytes_do_not_depend_on_the_workers(raw, monkeypatch):
    monkeypatch.setattr(partition, "TASK_FILES", 1)  # a task a file
    for n in range(4):
        (raw / f"{n}.txt").write_text("\n".join(f"第{n}篇第{i % 7}句" for i in range(9)), "utf-8")
    one, two = (bytes_of(build(raw, document="line", workers=n)) for n in (1, 2))
    assert one == two and len(all_texts()) == 28


def test_memory_is_bounded_by_a_batch_not_by_the_corpus(raw, monkeypatch):
    """The book held the whole corpus in memory, several times over."""
    monkeypatch.setattr(partition, "BATCH", 100_000)
    with open(raw / "big.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{n} {SENTENCE * 40}\n" for n in range(6000))
    tracemalloc.start()
    report = build(raw, document="line")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.documents == 6000
    assert peak < 0.75 * (raw / "big.txt").stat().st_size


def test_a_large_file_is_cut_into_slices_that_change_nothing(raw, monkeypatch, written):
    jsonl(raw / "a.jsonl", 3000)
    (raw / "b.txt").write_text("\n\n".join(f"第{n}段{SENTENCE}\n第二行" for n in range(2000)), "utf-8")
    whole = build(raw)
    expected = bytes_of(whole)
    monkeypatch.setattr(partition, "TASK_BYTES", 40_000)
    report = build(raw)
    assert len(written) > 8
    assert bytes_of(report) == expected
    assert report.rules["HTML tags"] == whole.rules["HTML tags"] > 300
    assert [file.name for file in report.files] == ["a.jsonl", "b.txt"]
    assert report.dropped == whole.dropped and report.dropped["duplicate"] > 40
