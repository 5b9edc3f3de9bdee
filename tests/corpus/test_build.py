"""Raw text to documents in shards: reading, dropping, splitting, at any size, and what is said of it all."""

import http.server
import json
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.corpus import built_in, partition, split
from helpers.corpus.build import NOTES, build_corpus
from helpers.corpus.find import input_files
from helpers.corpus.inputs import NoDocuments
from helpers.corpus.report import Report
from helpers.corpus.shards import read_texts, shard_paths, write_json_list
from helpers.corpus.split import _threshold, side
from helpers.manifest import MANIFEST, RoomError

SENTENCE = "绿萝喜欢散射光，土干了再浇水。"
PROSE = "".join(f"第{n}天，{SENTENCE}\n" for n in range(60))


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


def build(source: Path, **settings) -> Report:
    return build_corpus("test", str(source), **{"workers": 1, "min_length": 1, **settings})


def all_texts(run="test") -> list[str]:
    """Return the texts of both splits, sorted: which side a document falls on does not matter here."""
    return sorted([*read_texts(run, "train"), *read_texts(run, "val")])


# ---------------------------------------------------------------- what is a document


@pytest.mark.parametrize(
    ("mode", "text", "documents"),
    [
        ("auto", "问一\n答一\n\n问二\n答二\n", ["问一\n答一", "问二\n答二"]),
        ("auto", "一行\n\u3000 \n二行", ["一行", "二行"]),
        ("block", "一\n\n\n\n二\n三", ["一", "二\n三"]),
        ("line", "一\n\n二\n三", ["一", "三", "二"]),
    ],
)
def test_documents_of_a_txt(raw, mode, text, documents):
    """The book made every line a document, so paragraphs were torn apart."""
    (raw / "a.txt").write_text(text, "utf-8")
    build(raw, document=mode)
    assert all_texts() == documents


def test_a_file_can_be_a_document(raw):
    (raw / "a.txt").write_text("\n一\n\n二\n", "utf-8")
    (raw / "b.txt").write_text("三\n", "utf-8")
    build(raw, document="file")
    assert all_texts() == ["一\n\n二", "三"]


def test_a_novel_without_blank_lines_becomes_many_documents(raw):
    novel = "".join(f"第{n}回\u3000{SENTENCE}{SENTENCE}\n" for n in range(2000))
    (raw / "novel.txt").write_bytes(novel.encode("gb18030"))
    report = build(raw / "novel.txt", max_length=1000)
    assert report.files[0].mode == "file"
    assert report.val_documents >= 1
    assert report.documents > 60
    assert sorted("\n".join(all_texts()).split("\n")) == sorted(novel.strip().split("\n"))
    assert "cut into" in report.warnings()[0]


def test_folders_are_read_recursively_sorted_and_in_any_case(raw):
    """The book read its files unsorted, in the order the disk gave them."""
    inner = raw / "子目录 空格"
    inner.mkdir()
    (inner / "大写.TXT").write_text("二", "utf-8")
    (raw / "z.JSON").write_text('["三"]', "utf-8")
    (raw / "a.jsonl").write_text('{"text": "一"}\n', "utf-8")
    (raw / "scan.pdf").write_text("x", "utf-8")
    report = build(raw)
    assert [file.source for file in report.files] == ["a.jsonl", "z.JSON", "子目录 空格/大写.TXT"]
    assert all_texts() == sorted("一二三")
    assert report.left_out == {".pdf": 1}
    assert input_files(str(raw)) == [raw / "a.jsonl", raw / "z.JSON", inner / "大写.TXT"]


def test_half_characters_are_dropped_and_reported(raw):
    (raw / "a.jsonl").write_text('{"text": "坏\\ud800字"}\n{"text": "好\\ud83d\\ude00"}\n"三"\n', "utf-8")
    report = build(raw)
    assert all_texts() == ["三", "好😀"]
    assert report.dropped == {"with half characters": 1}
    assert "lone surrogate" in report.warnings()[0]


# ---------------------------------------------------------------- nothing usable


def test_errors_say_what_was_looked_for_and_where(raw):
    with pytest.raises(NoDocuments, match=r"nowhere does not exist: give 'sample', a file or a folder"):
        build(raw / "nowhere")
    with pytest.raises(NoDocuments, match=r"no file of the kinds \.txt, \.json, \.jsonl.*no file at all"):
        build(raw)
    (raw / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(NoDocuments, match=r"1 \.pdf"):
        build(raw)
    with pytest.raises(NoDocuments, match=r"a\.pdf is not one of"):
        build(raw / "a.pdf")
    (raw / "a.txt").write_bytes(b"\xff\xfe\xfd" * 5 + b"\x00")
    (raw / "b.txt").write_bytes(b"\xef\xbb\xbf")
    (raw / "c.txt").write_text("\n\r\n \u3000\t\n", "utf-8", newline="")
    (raw / "d.txt").write_text("短\n", "utf-8")
    with pytest.raises(NoDocuments) as error:
        build(raw, min_length=5)
    message = str(error.value)
    assert "no usable document in 4 file(s)" in message
    assert "b.txt: no text in it" in message
    assert "d.txt: 1 too short" in message
    assert not paths.room("test", "corpus").joinpath("parts").exists()


def test_one_document_cannot_be_split(raw):
    (raw / "a.txt").write_text("一\n二\n", "utf-8")
    with pytest.raises(NoDocuments, match="document='line'"):
        build(raw)
    assert build(raw, document="line").documents == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"document": "page"},
        {"val_fraction": 0},
        {"min_length": 9, "max_length": 5},
        {"near_duplicates": 2.0},
        {"near_keep": "last"},
        {"min_chinese": 30.0},
        {"rules": "-HTML"},
    ],
)
def test_senseless_settings_are_refused(raw, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        build(raw, **settings)


def test_a_full_disk_is_not_a_bad_file(raw, monkeypatch):
    """A bare except once turned a failed sentence into nothing; only what concerns one file is forgiven."""

    def full(*_):
        raise OSError(28, "No space left on device")

    (raw / "a.txt").write_text("一\n二", "utf-8")
    monkeypatch.setattr(partition.Writer, "write", full)
    with pytest.raises(OSError, match="No space left"):
        build(raw, document="line")
    assert not list(paths.room("test", "corpus").rglob("*.lines"))


# ---------------------------------------------------------------- duplicates, lengths, split, shards


def test_duplicates_and_short_documents_are_reported_in_documents_and_characters(raw):
    (raw / "a.txt").write_text("绿萝绿萝\n一\n吊兰吊兰\n绿萝绿萝  \n", "utf-8")
    (raw / "b.txt").write_text("吊兰吊兰\n", "utf-8")
    report = build(raw, document="line", min_length=2)
    assert all_texts() == sorted(["绿萝绿萝", "吊兰吊兰"])
    assert report.dropped == {"duplicate": 2, "too short": 1}
    assert report.lost == {"duplicate": 8, "too short": 1}
    assert [file.documents for file in report.files] == [2, 0]
    assert report.result()["dropped"] == 3
    assert report.result()["dropped_characters"] == 9


def test_the_default_length_keeps_nearly_everything(raw):
    """The book's min_length of 128 silently dropped a third of the characters."""
    (raw / "a.txt").write_text(PROSE + "好的\n", "utf-8")
    report = build_corpus("test", str(raw), document="line", workers=1)
    assert report.documents == 61
    assert report.characters == len(PROSE.replace("\n", "")) + 2


def test_a_document_stays_on_its_side_when_the_corpus_grows(raw):
    rows = [f"第{n}句" for n in range(400)]
    (raw / "a.txt").write_text("\n".join(rows[:300]), "utf-8")
    build(raw, document="line", val_fraction=0.1)
    before = set(read_texts("test", "val"))
    (raw / "0.txt").write_text("\n".join(rows[300:]), "utf-8")
    report = build(raw, document="line", val_fraction=0.1)
    after = set(read_texts("test", "val"))
    assert after & set(rows[:300]) == before
    assert 15 < report.val_documents < 75
    build(raw, document="line", val_fraction=0.1, seed=1)
    assert set(read_texts("test", "val")) != after


@given(st.sets(st.text("0123456789abcdef", min_size=4, max_size=8), min_size=2, max_size=30), st.floats(1e-6, 0.999))
def test_both_sides_have_a_document(keys, fraction):
    places = [side(key, 0) for key in keys]
    below = _threshold(places, fraction)
    sides = [place < below for place in places]
    assert any(sides) and not all(sides)


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


def test_shards_are_bounded_and_old_ones_go_away(raw, monkeypatch):
    monkeypatch.setattr(split, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    assert len(shard_paths("test", "train")) == 3
    train = list(read_texts("test", "train"))
    assert train == [row for row in PROSE.splitlines() if row in train]  # in order
    (paths.room("test", "corpus") / MANIFEST).write_text("{}")
    report = build(raw, document="line", max_documents=20)
    assert report.documents == 20
    assert report.dropped == {"over max_documents": 40}
    assert [path.name for path in shard_paths("test", "train")] == ["train-00000.jsonl"]
    assert not (paths.room("test", "corpus") / MANIFEST).exists()


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


def test_report_is_written_and_readable(raw):
    (raw / "a.txt").write_text("<p>一</p>\n<p>二</p>\n", "utf-8")
    report = build(raw, document="line")
    written = json.loads((paths.room("test", "corpus") / "report.json").read_text("utf-8"))
    assert written["rules"] == dict(report.rules) == {"HTML tags": 4}
    assert written["files"][0]["rules"] == {"HTML tags": 4}
    assert report.rows()[0][:4] == ("a.txt", "utf-8", 2, 2)


def test_a_room_that_is_not_there_names_the_notebook():
    with pytest.raises(RoomError, match="01_corpus"):
        shard_paths("nobody", "train")


def test_the_json_list_can_be_read_again(raw):
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    texts = list(read_texts("test", "train"))
    path = write_json_list("test")
    assert json.loads(path.read_text("utf-8")) == texts
    again = build_corpus("again", str(path), workers=1)
    assert again.documents == len(texts)


# ---------------------------------------------------------------- large files, slices, workers, clusters


def jsonl(path, documents, seed=0):
    """Write a file of distinct documents, some of them with dirt, every 50th a copy."""
    with open(path, "w", encoding="utf-8") as file:
        for n in range(documents):
            text = (
                f"第{seed}卷第{n if n % 50 else 1}篇，"
                + SENTENCE * (n % 7 + 1)
                + ("<br/>见&amp;" if n % 9 == 0 else "")
            )
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def bytes_of(report) -> dict:
    return {file.name: file.read_bytes() for file in report.outputs}


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
    assert [file.source for file in report.files] == ["a.jsonl", "b.txt"]
    assert report.dropped == whole.dropped and report.dropped["duplicate"] > 40


def test_bad_lines_of_a_file_in_many_slices_do_not_flood_its_notes(raw, monkeypatch):
    with open(raw / "a.jsonl", "w", encoding="utf-8") as file:
        for n in range(900):
            file.write(json.dumps({"text": f"第{n}篇，{SENTENCE}"}) + "\n" + ("{torn\n" if n % 15 == 0 else ""))
    monkeypatch.setattr(partition, "TASK_BYTES", 3000)
    report = build(raw)
    assert report.documents == 900 and report.dropped == {"unreadable": 60}
    assert len(report.files) == 1 and len(report.files[0].notes) == NOTES + 1
    assert "notes more" in report.files[0].notes[-1]


def test_documents_are_told_apart_in_buckets_too(raw, monkeypatch):
    jsonl(raw / "a.jsonl", 500)
    jsonl(raw / "b.jsonl", 700)
    expected = bytes_of(build(raw, max_documents=450))
    monkeypatch.setattr(split, "BUCKET", 60)
    monkeypatch.setattr(split, "REDUCE_BYTES", 3000)
    report = build(raw, max_documents=450)
    assert bytes_of(report) == expected
    # what the first 450 distinct documents hold a second time, and the rest, told by the plain way
    rows = [json.loads(line)["text"] for name in "ab" for line in open(raw / f"{name}.jsonl", encoding="utf-8")]
    first = set(list(dict.fromkeys(rows))[:450])
    copies = sum(text in first for text in rows) - 450
    assert report.dropped == {"duplicate": copies, "over max_documents": len(rows) - 450 - copies}


def test_many_small_files_travel_together(raw, monkeypatch):
    for n in range(300):
        (raw / f"{n:03}.txt").write_text(f"第{n}行，{SENTENCE}", "utf-8")
    monkeypatch.setattr(partition, "TASK_FILES", 100)
    done = []
    monkeypatch.setattr(partition, "read_task", lambda task, run=partition.read_task: done.append(task) or run(task))
    report = build(raw)
    assert len(done) == 3 and report.documents == 300 and len(report.files) == 300
    assert [text[: len(f"第{n}")] for n, text in ((0, "第0"), (9, "第9"))] == ["第0", "第9"]


def test_a_long_line_is_a_document_like_any_other(raw):
    (raw / "a.txt").write_text("".join(f"第{n}句，{SENTENCE}" for n in range(2000)), "utf-8")
    report = build(raw)
    assert report.documents > 15 and "cut into" in report.warnings()[0]


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
        partition.Writer,
        "finish",
        lambda part, facts, run=partition.Writer.finish: written.append(1) or run(part, facts),
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
        partition.Writer,
        "finish",
        lambda part, facts, run=partition.Writer.finish: seen.append(part.part.name + ".json") or run(part, facts),
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


# ---------------------------------------------------------------- sources that are no folder


def test_a_corpus_comes_from_the_net_once_and_is_then_at_hand(raw):
    jsonl(raw / "a.jsonl", 30)
    asked = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=raw)

        def log_message(self, *_):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_port}/a.jsonl"
        fetched = build_corpus("test", source, workers=1)
        server.shutdown()
    files = input_files(source)  # nobody serves it any more
    assert [file.read_bytes() for file in files] == [(raw / "a.jsonl").read_bytes()]
    assert paths.runs_dir() in files[0].parents and "/a.jsonl" in asked
    assert bytes_of(build_corpus("again", source, workers=1)).keys() == bytes_of(fetched).keys()
    assert list(read_texts("again", "train")) == list(read_texts("test", "train"))


def test_a_pattern_and_an_archive_are_sources_too(raw):
    for n in range(3):
        (raw / f"{n}.txt").write_text(f"第{n}篇，{SENTENCE}\n\n{n}{SENTENCE}", "utf-8")
    with zipfile.ZipFile(raw / "books.zip", "w") as archive:
        archive.write(raw / "1.txt", "甲/1.txt")
    report = build(raw / "[01].txt")
    assert [file.source for file in report.files] == ["0.txt", "1.txt"] and report.documents == 4
    report = build(raw / "books.zip")
    assert [file.source for file in report.files] == ["books.zip/甲/1.txt"] and report.documents == 2
    assert input_files(str(raw / "books.zip")) == [raw / "books.zip"]


# ---------------------------------------------------------------- rules, filters, near duplicates


def test_rules_and_filters_are_parameters(raw):
    rows = [
        "<b>绿萝</b>喜欢散射光，电话13812345678。",
        "English only, nothing else here.",
        "哈" * 60,
        "$$$ ### 100% 200%",
    ]
    (raw / "a.txt").write_text("\n".join([*rows, SENTENCE]), "utf-8")
    report = build(
        raw, document="line", rules="+personal data, -HTML tags", min_chinese=0.3, max_symbols=0.6, max_repetition=0.5
    )
    assert all_texts() == sorted(["<b>绿萝</b>喜欢散射光，电话[电话]。", SENTENCE])
    assert report.dropped == {"too little Chinese": 2, "too repetitive": 1}
    assert report.rules == {"personal data": 1}
    assert report.rule_rows() == [("personal data", 1, "喜欢散射光，电话13812345678。", "喜欢散射光，电话[电话]。")]
    written = json.loads((paths.room("test", "corpus") / "report.json").read_text("utf-8"))
    assert written["examples"]["personal data"][0][1] == "喜欢散射光，电话[电话]。"


def test_advertisements_are_found_by_repetition_across_files(raw):
    for n in range(4):
        (raw / f"{n}.txt").write_text(f"第{n}篇\n{SENTENCE}\n更多请访问 www.example.com\n归去来兮！\n", "utf-8")
    report = build(raw)
    assert all_texts() == sorted(f"第{n}篇\n{SENTENCE}\n归去来兮！" for n in range(4))
    assert report.rules["repeated lines"] == 4
    assert build(raw, rules="-repeated lines").rules["repeated lines"] == 0


def near(number, changes=0):
    text = "".join(chr(0x4E00 + (number * 997 + i * 31) % 5000) for i in range(120))
    return text[: 20 * changes] + f"{changes}改" * (changes > 0) + text[20 * changes :]


def test_near_duplicates_are_dropped_or_kept_on_one_side(raw):
    groups = [[near(number, changes) for changes in range(4)] for number in range(60)]
    (raw / "a.txt").write_text("\n".join(text for group in zip(*groups, strict=True) for text in group), "utf-8")

    def sides():
        validation = set(read_texts("test", "val"))
        return [[text in validation for text in group] for group in groups]

    assert build(raw, document="line", val_fraction=0.3).documents == 240
    assert any(len(set(group)) == 2 for group in sides())  # the leak
    report = build(raw, document="line", val_fraction=0.3, near_duplicates=0.7, near_keep="all")
    assert report.documents == 240 and not report.dropped
    assert all(len(set(group)) == 1 for group in sides())
    assert 0.1 < report.val_documents / 240 < 0.5
    report = build(raw, document="line", val_fraction=0.3, near_duplicates=0.7)
    assert report.dropped == {"near duplicate": 180} and report.files[0].documents == 60
    assert all_texts() == sorted(group[0] for group in groups)
    assert build(raw, document="line", near_duplicates=0.7, max_documents=10).dropped == {
        "near duplicate": 30, "over max_documents": 200,
    }  # fmt: skip


def test_one_cluster_of_near_duplicates_cannot_be_split(raw):
    (raw / "a.txt").write_text(near(1) + "\n" + near(1, 1), "utf-8")
    assert build(raw, document="line").documents == 2
    with pytest.raises(NoDocuments, match="only 1 document"):
        build(raw, document="line", near_duplicates=0.7, near_keep="all")


# ---------------------------------------------------------------- the built-in corpus


def test_the_built_in_corpus_is_clean_distinct_and_has_a_floor():
    report = build_corpus("test", "sample", max_documents=400, workers=1)
    assert report.documents == 400
    assert not report.dropped and not report.rules
    expected = {document.text: document.bits for document in built_in.documents(400, seed=0)}
    assert all_texts() == sorted(expected)
    validation = list(read_texts("test", "val"))
    bits = sum(expected[text] for text in validation) / sum(map(len, validation))
    assert report.floor_bits_per_char == pytest.approx(bits, abs=1e-6)
    assert 0.1 < bits < 6
