"""Files of every kind to raw documents, whole and in slices. Makes its own files."""

import gzip
import json
import pickle
import random
import tracemalloc

import pytest
from corpora import LINE_ENDS, LINES, SENTENCE, everything, make_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import archives, encodings, formats, plain_text, records
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.records import ReadOptions
from helpers.corpus.report import FileReport


@given(
    LINES,
    LINE_ENDS,
    st.sampled_from(records.MODES),
    st.sampled_from(["utf-8", "utf-8-sig", "gb18030", "utf-16", "utf-16-be", "cp950", "jsonl"]),
    st.integers(1, 80),
)
@settings(max_examples=400)
def test_slices_give_the_same_documents_in_order(tmp_path_factory, rows, end, mode, codec, size):
    """A file that is one document is cut at other line ends, but stays the same text."""
    path = tmp_path_factory.getbasetemp() / "slices.txt"
    text = end.join([*rows, "一上，的" * 5, *rows])
    text = "\ufeff" + text if codec == "utf-16-be" else text
    data = text.encode("utf-8" if codec == "jsonl" else codec, "replace")
    if codec == "jsonl":
        path = path.with_suffix(".jsonl")
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows + rows).encode()
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_text, "HOLD", 30)
        patch.setattr(encodings, "BLOCK_BYTES", 48)
        (item,), options = find_inputs(str(path))[0], ReadOptions(mode)
        whole, parts = FileReport("whole"), FileReport("parts")
        expected = list(formats.read(item, options, whole))
        pieces = formats.slices(item, options, size)
        found = [text for piece in pieces for text in formats.read(piece, options, parts)]
    if whole.mode == "file":
        found, expected = ("".join("".join(texts).split()) for texts in (found, expected))
    assert found == expected
    assert [piece.stop for piece in pieces][:-1] == [piece.start for piece in pieces][1:]
    assert (parts.rules, parts.mode, parts.encoding) == (whole.rules, whole.mode, whole.encoding)
    assert sum(piece.size for piece in pieces) == len(data)


@pytest.mark.parametrize("mode", ["block", "line", "file"])
@pytest.mark.parametrize("codec", ["utf-8", "gb18030"])
def test_a_large_file_is_really_cut(tmp_path, mode, codec):
    text = "".join(f"第{n}句，{SENTENCE}\n" + "\n" * (n % 3 == 0) for n in range(1000))
    (tmp_path / "a.txt").write_bytes(text.encode(codec))
    (item,), _ = find_inputs(str(tmp_path))
    pieces = formats.slices(item, ReadOptions(mode), 5000)
    assert item.size / 7000 < len(pieces) <= item.size / 5000 + 1
    assert pieces == pickle.loads(pickle.dumps(pieces))
    assert all(piece.encoding and piece.mode == mode for piece in pieces)
    assert formats.slices(item, ReadOptions(mode), item.size) == [item]


def test_what_cannot_be_cut_stays_whole(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "一\n" * 100, "utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("一\n".encode() * 100, mtime=0))
    (tmp_path / "c.txt").write_bytes((SENTENCE + "\n").encode() * 9 + (SENTENCE + "\n").encode("gb18030") * 9)
    (tmp_path / "e.txt").write_bytes((SENTENCE + "\n").encode("utf-16") * 9)
    for item in find_inputs(str(tmp_path))[0]:
        assert [piece.name for piece in formats.slices(item, ReadOptions("line"), 10)] == [item.name]
    (tmp_path / "d.txt").write_bytes(b"\x00\x01" * 100)
    with pytest.raises(BadFile, match="binary"):
        formats.slices(find_inputs(str(tmp_path / "d.txt"))[0][0], ReadOptions(), 10)


def test_byte_order_marks_inside_a_file(tmp_path):
    """As `cat a.jsonl b.jsonl` leaves them, and programs that write one before the one that is there."""
    (tmp_path / "a.jsonl").write_text('\ufeff{"text": "一"}\n\ufeff{"text": "二"}\n\ufeff\n', "utf-8")
    (tmp_path / "b.json").write_text('\ufeff\ufeff["三"]', "utf-8")
    (tmp_path / "c.csv").write_text('\ufeff\ufeff"text",n\n四,1\n', "utf-8")
    documents, report = everything(tmp_path)
    assert documents == ["一", "二", "三", "四"]
    assert not report.dropped


def test_mojibake_is_mended_on_request(tmp_path):
    text = (SENTENCE + "\n") * 9
    (tmp_path / "a.txt").write_text(text.encode("gb18030").decode("latin-1"), "utf-8", newline="")
    (tmp_path / "b.txt").write_text(SENTENCE, "utf-8")
    documents, report = everything(tmp_path, repair=True)
    assert documents == [text.rstrip(), SENTENCE]
    assert report.rules["mojibake repaired"] == 1
    documents, report = everything(tmp_path)
    assert "Ö" not in documents[1] and SENTENCE not in documents[0]
    assert "mojibake repaired" not in report.rules


def test_the_report_says_what_was_found(tmp_path):
    (tmp_path / "a.txt").write_bytes((SENTENCE + "\n").encode() * 3 + (SENTENCE + "\n").encode("gb18030") * 3)
    documents, report = everything(tmp_path, document="line")
    assert documents == [SENTENCE] * 6
    assert report.encoding == "utf-8 + gb18030"
    assert "from byte 138 (line 4)" in report.notes[0]


@pytest.mark.parametrize("name", ["big.txt", "big.json", "big.jsonl", "big.csv", "big.tsv", "big.jsonl.gz", "big.tgz"])
def test_memory_is_bounded_by_a_block_not_by_the_file(tmp_path, monkeypatch, name):
    """The book held the whole corpus in memory, several times over."""
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 2**15)
    random.seed(0)
    rows = [f"{random.random()} {SENTENCE * 30}" for _ in range(6000)]
    dump = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = {"txt": "\n".join(rows), "json": f"[{','.join(dump)}]", "csv": "\n".join(["text", *dump])}
    text["tsv"] = "\n".join(["text\tn", *(f'"绿萝"{row}\t1' for row in rows)])
    data = text.get(name.split(".")[1], "\n".join(dump)).encode()
    path = tmp_path / name
    if name.endswith(".tgz"):
        make_tar(path, [("a.jsonl", data)], "w:gz")
    else:
        path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    size, expected = len(data), len(rows)
    del rows, dump, text, data
    archives._open_tar_gz.cache_clear()
    (item,), _ = find_inputs(str(path))
    tracemalloc.start()
    count = sum(1 for _ in formats.read(item, ReadOptions("line"), FileReport("")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == expected
    assert peak < size / 3
