"""Files of every kind to raw documents: txt, slices, JSON, tables, templates. Makes its own files."""

import csv
import gzip
import json
import pickle
import random
import tracemalloc
from collections import Counter

import pytest
from corpora import SENTENCE, everything, make_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import archives, encodings, formats
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.formats import ReadOptions
from helpers.corpus.report import FileReport


@pytest.mark.parametrize(
    ("mode", "text", "documents"),
    [
        ("auto", "问一\n答一\n\n问二\n答二\n", ["问一\n答一", "问二\n答二"]),
        ("auto", "一行\n\u3000 \n二行", ["一行", "二行"]),
        ("auto", "\n\n\u3000一\n二\n\n", ["\u3000一\n二"]),
        ("block", "一\n\n\n\n二\n三", ["一", "二\n三"]),
        ("line", "一\n\n二\r\n三\r四\u2028五", ["一", "二", "三", "四", "五"]),
        ("file", "\n一\n\n二\n", ["一\n\n二"]),
        ("file", "\r\n", []),
    ],
)
def test_documents_of_a_txt(tmp_path, mode, text, documents):
    """The book made every line a document, so paragraphs were torn apart."""
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert everything(tmp_path / "a.txt", document=mode)[0] == documents


def naive(text: str, mode: str) -> list[str]:
    """Return the documents of a text held in memory, line by line; none of them is long."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").split("\n")
    if mode == "auto":
        filled = [bool(row.strip()) for row in rows]
        first, last = (filled.index(True), len(rows) - filled[::-1].index(True)) if any(filled) else (0, 0)
        mode = "file" if all(filled[first:last]) else "block"
    if mode == "line":
        return [row for row in rows if row.strip()]
    documents = [[]]
    for row in rows:
        if row.strip() or (mode == "file" and documents[-1]):
            documents[-1].append(row)
        elif documents[-1]:
            documents.append([])
    if mode == "file":
        while documents[-1] and not documents[-1][-1].strip():
            documents[-1].pop()
    return ["\n".join(document) for document in documents if document]


ROWS = st.lists(st.text(st.sampled_from("绿萝一二三，。A \u3000\t"), max_size=12), max_size=40)
ENDS = st.sampled_from(["\n", "\r\n", "\r", "\u2028"])


@given(ROWS, ENDS, st.sampled_from(formats.MODES), st.integers(1, 9))
@settings(max_examples=300)
def test_documents_do_not_depend_on_the_pieces(rows, end, mode, size):
    text = end.join(rows)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    counts = Counter()
    even = list(formats.even(pieces, counts))
    found = ("block" if formats.has_blocks(even) else "file") if mode == "auto" else mode
    assert list(formats.split_documents(even, found)) == naive(text, mode)
    assert counts["line ends"] == (0 if end == "\n" else text.count(end))


def test_a_line_without_end_is_cut_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "HOLD", 100)
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 64)
    (tmp_path / "a.txt").write_text("字" * 40_000, "utf-8")
    for mode in formats.MODES:
        documents, _ = everything(tmp_path / "a.txt", document=mode)
        assert "".join(documents) == "字" * 40_000
        assert max(map(len, documents)) <= 200


def test_a_very_long_document_is_cut_at_a_line_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "HOLD", 100)
    rows = [f"第{n}句，{SENTENCE}" for n in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(rows), "utf-8")
    documents, report = everything(tmp_path / "a.txt")
    assert "\n".join(documents).split("\n") == rows
    assert report.mode == "file"
    assert max(map(len, documents)) < 130


@given(
    ROWS,
    ENDS,
    st.sampled_from(formats.MODES),
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
        patch.setattr(formats, "HOLD", 30)
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


def test_json_lists_of_strings_and_objects(tmp_path):
    items = ["一", {"text": "二"}, {"text": ["三", "四"]}, "", None, 5, ["六"], {"title": "七"}]
    (tmp_path / "a.json").write_text(json.dumps(items), "utf-8-sig")
    documents, report = everything(tmp_path / "a.json")
    assert documents == ["一", "二", "三\n四", ""]
    assert report.dropped == {"unreadable": 4}
    assert "item 5: a null, not a text" in report.notes[0]
    assert "title" in report.notes[1]


def test_bad_jsonl_lines_are_counted_and_the_rest_is_used(tmp_path):
    rows = ['{"ask": "一"}', "", '{"ask": "截断', '"二"', '{"text": "三"}', "[" * 100_000, '{"ask": "四"}', "{", "NaN"]
    (tmp_path / "a.jsonl").write_bytes("\r\n".join(rows).encode())
    documents, report = everything(tmp_path / "a.jsonl", text_key="ask")
    assert documents == ["一", "二", "四"]
    assert report.dropped["unreadable"] == 5
    assert "line 3: not JSON" in report.notes[0]
    assert "and 2 more" in report.notes[0]


def test_json_that_is_really_json_lines(tmp_path):
    (tmp_path / "a.json").write_text('{"text": "一"}\n{"text": "二"}\n', "utf-8")
    documents, report = everything(tmp_path / "a.json")
    assert documents == ["一", "二"]
    assert "JSON lines" in report.notes[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('["绿萝", 坏]', r"byte 11 \(line 1, column 8\) is not JSON"),
        ('["一",\n "二"\n "三"]', r"byte 16 \(line 3, column 2\) is not JSON: Expecting ',' delimiter"),
        ('["一", "二', r"byte 8 \(line 1, column 7\) is not JSON: Unterminated string"),
        ('["一"] x', r"byte 8 .* is not JSON: Extra data"),
        ('{"text": "一"}', "list is expected.*one object"),
        ("", "byte 0"),
        ("[" * 100_000, "too deep"),
        ("[" + "1" * 5000 + "]", "digits"),
    ],
)
@pytest.mark.parametrize("block", [5, 2**20])
def test_json_that_cannot_be_used(tmp_path, monkeypatch, text, why, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(BadFile, match=why):
        everything(tmp_path / "a.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=6), st.integers(1, 30), st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=300)
def test_json_in_pieces_is_the_same_json(values, size, indent, ascii_):
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    parser = formats._Json(lambda: iter(pieces), encodings.Encoding("utf-8"))
    assert parser.next() == "["
    assert list(parser.items()) == values
    assert parser.next() == ""


def test_unicode_line_separators_inside_json_do_not_cut_a_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "一\u2028二"}\n{"text": "三"}\n', "utf-8")
    assert everything(tmp_path / "a.jsonl")[0] == ["一\u2028二", "三"]


def test_medical_dialogues_in_a_gb18030_csv_with_quoted_newlines(tmp_path):
    """As such files come: Windows line ends, quoted line ends and commas, doubled quotation marks, GBK bytes."""
    rows = [
        {"department": "内科", "title": "头晕", "ask": "我头晕，\r\n怎么办？", "answer": '医生说："多休息，少熬夜。"'},
        {"department": "外科", "title": "", "ask": "", "answer": ""},
        {"department": "儿科", "title": "发烧", "ask": "孩子发烧38.5度", "answer": "多喝水，𠮷。"},
    ]
    with open(tmp_path / "a.CSV", "w", encoding="gb18030", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    documents, report = everything(tmp_path / "a.CSV", text_key="{title}\\n{ask}\\n{answer}")
    assert documents == [
        '头晕\n我头晕，\n怎么办？\n医生说："多休息，少熬夜。"',
        "发烧\n孩子发烧38.5度\n多喝水，𠮷。",
    ]
    assert report.dropped == {"empty": 1}
    assert (report.encoding, report.mode) == ("gb18030", "csv")


@pytest.mark.parametrize(("mark", "suffix"), [(",", ".csv"), (";", ".csv"), ("\t", ".csv"), ("\t", ".tsv")])
def test_delimiters(tmp_path, mark, suffix):
    (tmp_path / f"a{suffix}").write_text(f"\ufeffid{mark}text\n1{mark}一，二；三\n2{mark}四\n", "utf-8")
    assert everything(tmp_path / f"a{suffix}")[0] == ["一，二；三", "四"]


def test_a_missing_column_is_refused_with_the_columns_there(tmp_path):
    (tmp_path / "a.csv").write_text("标题,正文\n一,二\n", "utf-8")
    with pytest.raises(BadFile, match="no column 'text'.*标题, 正文.*text_key"):
        everything(tmp_path / "a.csv")
    assert everything(tmp_path / "a.csv", text_key="正文")[0] == ["二"]


def test_rows_of_another_length_are_said(tmp_path):
    (tmp_path / "a.csv").write_text("text,n\n一,1\n二\n三,3,3\n\n", "utf-8")
    documents, report = everything(tmp_path / "a.csv")
    assert documents == ["一", "二", "三"]
    assert report.notes == ["2 row(s) do not have 2 columns; the first is row 3"]


def test_a_quotation_mark_that_is_never_closed_swallows_nothing_silently(tmp_path):
    (tmp_path / "a.csv").write_text('text\n一\n"二\n三\n四\n', "utf-8")
    with pytest.raises(BadFile, match="row 3, line 3, and none closes it"):
        everything(tmp_path / "a.csv")


def test_a_field_that_takes_all_that_follows_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "FIELD", 1000)
    (tmp_path / "a.csv").write_text('text\n一\n"二\n' + f"{SENTENCE}\n" * 200, "utf-8")
    with pytest.raises(BadFile, match="row 3, which starts in line 3.*does a quotation mark open"):
        everything(tmp_path / "a.csv")


def test_a_table_that_is_none(tmp_path, monkeypatch):
    """A whole book in one line, saved as .csv: its file is left out, and the others are read."""
    monkeypatch.setattr(formats, "FIELD", 1000)
    (tmp_path / "a.csv").write_text(SENTENCE * 200, "utf-8")
    with pytest.raises(BadFile, match="row 1, which starts in line 1: field larger than field limit"):
        everything(tmp_path / "a.csv")


def test_a_header_in_quotation_marks_may_have_several_lines(tmp_path):
    (tmp_path / "a.csv").write_text('n,"text",注\n1,一,\n', "utf-8")
    assert everything(tmp_path / "a.csv")[0] == ["一"]
    (tmp_path / "a.csv").write_text('text,"备\n注"\n一,无\n二,无,多\n"三,无\n', "utf-8")
    with pytest.raises(BadFile, match="row 4, line 5, and none closes it"):
        everything(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text('text,"备\n注"\n一,无\n', "utf-8")
    assert everything(tmp_path / "a.csv")[0] == ["一"]
    (tmp_path / "a.csv").write_text('text,"备\n一\n', "utf-8")
    with pytest.raises(BadFile, match="opens in the first row, and none closes it"):
        everything(tmp_path / "a.csv")


def test_a_very_large_field(tmp_path):
    (tmp_path / "a.csv").write_text(f"text\n{'字' * 200_000}\n", "utf-8")
    assert everything(tmp_path / "a.csv")[0] == ["字" * 200_000]


FIELDS = st.text(st.sampled_from("绿萝，。\",;\t\n|' A1"), max_size=12)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=8), st.sampled_from(["utf-8", "gb18030", "utf-16"]))
def test_any_table_comes_back(tmp_path_factory, rows, codec):
    path = tmp_path_factory.getbasetemp() / "table.csv"
    with open(path, "w", encoding=codec, newline="") as file:
        csv.writer(file).writerows([("问的是，一个", "text"), *rows])
    assert everything(path)[0] == [text for _, text in rows]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"title": ["一", None, ""], "lines": [["二", "三"], ["四"], []], "n": [1, 2, None]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert everything(tmp_path / "a.parquet", text_key="title")[0] == ["一", ""]
    documents, report = everything(tmp_path / "a.parquet", text_key="{title}：{lines}（{n}）")
    assert documents == ["一：二\n三（1）", "：四（2）"]
    assert report.dropped == {"empty": 1}
    with pytest.raises(BadFile, match="no column 'text'; there: title, lines, n"):
        everything(tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(data))
    assert everything(tmp_path / "b.parquet.gz", text_key="title")[0] == ["一", ""]
    (tmp_path / "c.parquet").write_bytes(data[:-30])
    with pytest.raises(BadFile, match=r"this \.parquet cannot be read"):
        everything(tmp_path / "c.parquet")


def test_templates_over_json(tmp_path):
    rows = [{"t": "题", "p": ["一", "二"]}, {"p": []}, {"t": " ", "p": None}, {"x": "无"}, "只是文字", {"t": {"a": 1}}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    documents, report = everything(tmp_path / "a.jsonl", text_key="《{t}》\n{p}")
    assert documents == ["《题》\n一\n二", "只是文字"]
    assert report.dropped == {"empty": 2, "unreadable": 2}
    assert "nothing under 't, p'" in report.notes[0]
    assert "an object" in report.notes[0] or "a object" in report.notes[0]


@pytest.mark.parametrize("text_key", ["{a.__class__}", "{a[0]}", "{}", "{a!r}", "{a:>9}", "{a", "a}"])
def test_templates_name_columns_and_nothing_else(text_key):
    with pytest.raises(ValueError, match="text_key"):
        ReadOptions(text_key=text_key)


def test_a_mode_that_does_not_exist():
    with pytest.raises(ValueError, match="give one of auto, block, line, file"):
        ReadOptions("page")


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


@pytest.mark.parametrize("name", ["big.txt", "big.json", "big.jsonl", "big.csv", "big.jsonl.gz", "big.tgz"])
def test_memory_is_bounded_by_a_block_not_by_the_file(tmp_path, monkeypatch, name):
    """The book held the whole corpus in memory, several times over."""
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 2**15)
    random.seed(0)
    rows = [f"{random.random()} {SENTENCE * 30}" for _ in range(6000)]
    dump = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = {"txt": "\n".join(rows), "json": f"[{','.join(dump)}]", "csv": "\n".join(["text", *dump])}
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
