"""Files of every kind to raw documents, whole and in slices; plain text, JSON, records. Makes its own files."""

import gzip
import json
import pickle
import random
import tracemalloc

import pytest
from corpora import LINE_ENDS, LINES, SENTENCE, make_tar, read_text
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings, formats, plain_text
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.report import FileReport
from helpers.corpus.settings import MODES, CorpusSettings

# ---- slices ----


@given(
    LINES,
    LINE_ENDS,
    st.sampled_from(MODES),
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
        patch.setattr(plain_text, "LONGEST_DOCUMENT", 30)
        patch.setattr(encodings, "BLOCK_BYTES", 48)
        (item,), options = find_inputs(str(path))[0], CorpusSettings(mode)
        whole, parts = FileReport("whole"), FileReport("parts")
        expected = list(formats.read_documents(item, options, whole))
        pieces = formats.slice_file(item, options, size)
        found = [text for piece in pieces for text in formats.read_documents(piece, options, parts)]
    if whole.mode == "file":
        found, expected = ("".join("".join(texts).split()) for texts in (found, expected))
    assert found == expected
    assert [piece.stop for piece in pieces][:-1] == [piece.start for piece in pieces][1:]
    assert (parts.rules, parts.mode, parts.encoding) == (whole.rules, whole.mode, whole.encoding)
    assert sum(piece.size for piece in pieces) == len(data)


@pytest.mark.parametrize("mode", ["block", "line", "file"])
def test_a_large_file_is_really_cut(tmp_path, mode):
    text = "".join(f"第{n}句，{SENTENCE}\n" + "\n" * (n % 3 == 0) for n in range(1000))
    (tmp_path / "a.txt").write_bytes(text.encode("gb18030"))
    (item,), _ = find_inputs(str(tmp_path))
    pieces = formats.slice_file(item, CorpusSettings(mode), 5000)
    assert item.size / 7000 < len(pieces) <= item.size / 5000 + 1
    assert pieces == pickle.loads(pickle.dumps(pieces))
    assert all(piece.encoding and piece.mode == mode for piece in pieces)
    assert formats.slice_file(item, CorpusSettings(mode), item.size) == [item]


def test_what_cannot_be_cut_stays_whole(tmp_path):
    (tmp_path / "a.csv").write_text("text\n" + "一\n" * 100, "utf-8")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("一\n".encode() * 100, mtime=0))
    (tmp_path / "c.txt").write_bytes((SENTENCE + "\n").encode() * 9 + (SENTENCE + "\n").encode("gb18030") * 9)
    (tmp_path / "e.txt").write_bytes((SENTENCE + "\n").encode("utf-16") * 9)
    for item in find_inputs(str(tmp_path))[0]:
        assert [piece.name for piece in formats.slice_file(item, CorpusSettings("line"), 10)] == [item.name]


@pytest.mark.parametrize("name", ["big.txt", "big.jsonl", "big.csv", "big.tsv", "big.jsonl.gz", "big.tgz"])
def test_memory_is_bounded_by_a_block_not_by_the_file(tmp_path, monkeypatch, name):
    """The book held the whole corpus in memory, several times over."""
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 2**15)
    random.seed(0)
    rows = [f"{random.random()} {SENTENCE * 30}" for _ in range(6000)]
    dump = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = {"txt": "\n".join(rows), "csv": "\n".join(["text", *dump])}
    text["tsv"] = "\n".join(["text\tn", *(f'"绿萝"{row}\t1' for row in rows)])
    data = text.get(name.split(".")[1], "\n".join(dump)).encode()
    path = tmp_path / name
    if name.endswith(".tgz"):
        make_tar(path, [("a.jsonl", data)], "w:gz")
    else:
        path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    size, expected = len(data), len(rows)
    del rows, dump, text, data
    (item,), _ = find_inputs(str(path))
    tracemalloc.start()
    count = sum(1 for _ in formats.read_documents(item, CorpusSettings("line"), FileReport("")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == expected
    assert peak < size / 3


# ---- JSON ----


def test_bad_jsonl_lines_are_counted_and_the_rest_is_used(tmp_path):
    rows = ['{"ask": "一"}', "", '{"ask": "截断', '"二"', '{"text": "三"}', "[" * 100_000, '{"ask": "四\u2028"}']
    rows += ["{", "NaN"]
    documents, report = read_text(tmp_path, "a.jsonl", "\r\n".join(rows), text_key="ask")
    assert documents == ["一", "二", "四\u2028"]  # which is no end of a line of JSON
    assert report.dropped["unreadable"] == 5
    assert "line 3: not JSON" in report.notes[0] and "and 2 more" in report.notes[0]


B = "\ufeff"
ITEM, PRETTY = '{"text": "%s"}', '{\n "text": "%s",\n "n": [1, 2]\n}'


@pytest.mark.parametrize("block", [5, 2**20])
@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        ("a.json", ITEM % "一", ["一"]),
        (
            "a.json",
            '{"messages": [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]}',
            ["问\n答"],
        ),
        ("a.json", '"一"', ["一"]),
        ("a.json", '{"text": ["一", {"type": "text", "text": "二"}]}', ["一\n二"]),
        ("a.json", f'{{"n": "1", "data": [{ITEM % "一"}, {ITEM % "二"}]}}', ["一", "二"]),
        ("a.json", f'{{"train": [{ITEM % "一"}], "test": [{ITEM % "二"}]}}', "keys there: test, train"),
        ("a.json", '{"title": "题", "content": ["一", "二"]}', "keys there: content, title"),
        ("a.json", '{"text": {"0": "一"}}', "item 1: no text but {'0': '一'} under 'text'"),
        ("a.json", '[{"text": null}]', "item 1: nothing under 'text'"),
        (
            "a.json",
            '[null, 5, ["六"], {"title": "七"}]',
            "item 1: no text but None; item 2: no text but 5; item 3: no text but ['六']",
        ),
        ("a.json", '["一", {"text": "二"}, {"text": ["三", "四"]}, ""]', ["一", "二", "三\n四", ""]),
        ("a.json", f'{B}{B}["一", "二"]', ["一", "二"]),
        ("a.json", "\n".join(ITEM % x for x in "一二"), ["一", "二"]),
        ("a.json", "".join(ITEM % x for x in "一二"), ["一", "二"]),
        ("a.json", "\n".join(PRETTY % x for x in "一二"), ["一", "二"]),
        ("a.jsonl", "\n".join(PRETTY % x for x in "一二"), ["一", "二"]),
        ("a.jsonl", f"[\n{ITEM % '一'},\n{ITEM % '二'}\n]", ["一", "二"]),
        ("a.jsonl", f"{ITEM % '一'},\n{ITEM % '二'},\n", ["一", "二"]),
        ("a.jsonl", f"{B}{ITEM % '一'}\n{B}{ITEM % '二'}\n{B}\n", ["一", "二"]),
        ("a.jsonl", f"\x1e{ITEM % '一'}\n\x1e{ITEM % '二'}", ["一", "二"]),
        ("a.jsonl", '{"text": "一\\ud800"}', ["一\ufffd"]),
        ("a.jsonl", f"{ITEM % '一'}{ITEM % '二'}\n{ITEM % '三'}", ["一", "二", "三"]),
        ("a.jsonl", f"// 注\n{ITEM % '一'}", ["一"]),
        ("a.jsonl", f"{ITEM % '二'} // 注\n{ITEM % '一'}", ["一"]),
        ("a.json", '["一"]\n["二"]', "item 1: no text but ['一']; item 2"),
        ("a.jsonl", "", []),
        ("a.json", " \n", []),
    ],
)
def test_dialects_of_json(tmp_path, monkeypatch, block, name, text, documents):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    found, report = read_text(tmp_path, name, text)
    if isinstance(documents, str):
        assert found == [] and documents in "; ".join(report.notes)
    else:
        assert (found, report.dropped) == (documents, {"unreadable": 1} if "//" in text else {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('["绿萝", 坏]', "line 1, column 8 is not JSON"),
        ('["一",\n "二"\n "三"]', "line 3, column 2 is not JSON: Expecting ',' delimiter"),
        ('["一", "二', "line 1, column 7 is not JSON: Unterminated string"),
        ('{"text":\n"一"}\n{"text" 坏}', "line 3, column 9 is not JSON"),
        ('["一"] x', "line 1, column 7 is not JSON"),
        ("[" * 100_000, "too deep"),
        ("[" + "1" * 5000 + "]", "digits"),
    ],
)
@pytest.mark.parametrize("block", [5, 2**20])
def test_json_that_cannot_be_used(tmp_path, monkeypatch, text, why, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    with pytest.raises(BadFile, match=why):
        read_text(tmp_path, "a.json", text)
