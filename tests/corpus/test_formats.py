"""Files of every kind to raw documents: formats, packed files, archives, slices, limits. Makes its own files."""

import csv
import gzip
import io
import json
import os
import pickle
import random
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import archives, encodings, formats
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.formats import ReadOptions
from helpers.corpus.inputs import Input, NoDocuments
from helpers.corpus.report import FileReport

SENTENCE = "绿萝喜欢散射光，土干了再浇水。"


def everything(path: Path, **how) -> tuple[list[str], FileReport]:
    """Read all inputs of a file or folder; return the documents and one report."""
    report = FileReport(path.name)
    inputs, _ = find_inputs(str(path))
    return [text for item in inputs for text in formats.read(item, ReadOptions(**how), report)], report


def names(source) -> list[str]:
    return [item.source for item in find_inputs(str(source))[0]]


# ---------------------------------------------------------------- documents of a .txt


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


# ---------------------------------------------------------------- slices


@given(
    ROWS,
    ENDS,
    st.sampled_from(formats.MODES),
    st.sampled_from(["utf-8", "utf-8-sig", "gb18030", "utf-16", "utf-16-be", "cp950", "jsonl"]),
    st.integers(1, 80),
    st.integers(1, 6),
)
@settings(max_examples=400, deadline=None)
def test_slices_give_the_same_documents_in_order(tmp_path_factory, rows, end, mode, codec, size, cell):
    """Line ends in UTF-16 are two bytes, that must not be looked for in the middle of a character: 上 is 4E 0A."""
    path = tmp_path_factory.getbasetemp() / "slices.txt"
    text = end.join([*rows, "一上，的" * 5, *rows])
    text = "\ufeff" + text if codec == "utf-16-be" else text
    data = text.encode("utf-8" if codec == "jsonl" else codec, "replace")
    if codec == "jsonl":
        path = path.with_suffix(".jsonl")
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows + rows).encode()
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "CELL", cell * 16)
        patch.setattr(formats, "HOLD", 30)
        patch.setattr(encodings, "BLOCK_BYTES", 48)
        (item,), how = find_inputs(str(path))[0], ReadOptions(mode)
        whole, parts = FileReport("whole"), FileReport("parts")
        expected = list(formats.read(item, how, whole))
        pieces = formats.slices(item, how, size)
        assert [text for piece in pieces for text in formats.read(piece, how, parts)] == expected
    assert [piece.stop for piece in pieces][:-1] == [piece.start for piece in pieces][1:]
    assert (parts.rules, parts.mode, parts.encoding) == (whole.rules, whole.mode, whole.encoding)
    assert sum(piece.size for piece in pieces) == len(data)


@pytest.mark.parametrize("mode", ["block", "line", "file"])
@pytest.mark.parametrize("codec", ["utf-8", "gb18030", "utf-16"])
def test_a_large_file_is_really_cut(tmp_path, monkeypatch, mode, codec):
    monkeypatch.setattr(formats, "CELL", 1000)
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
    for item in find_inputs(str(tmp_path))[0]:
        assert [piece.source for piece in formats.slices(item, ReadOptions("line"), 10)] == [item.source]
    (tmp_path / "d.txt").write_bytes(b"\x00\x01" * 100)
    with pytest.raises(BadFile, match="binary"):
        formats.slices(find_inputs(str(tmp_path / "d.txt"))[0][0], ReadOptions(), 10)


# ---------------------------------------------------------------- JSON


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


def test_json_lists_one_after_the_other(tmp_path):
    (tmp_path / "a.json").write_text('["一", "二"]\n["三"][]', "utf-8")
    documents, report = everything(tmp_path / "a.json")
    assert documents == ["一", "二", "三"]
    assert "3, one after the other" in report.notes[0]


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


# ---------------------------------------------------------------- tables and templates


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


def test_a_very_large_field(tmp_path):
    (tmp_path / "a.csv").write_text(f"text\n{'字' * 200_000}\n", "utf-8")
    assert everything(tmp_path / "a.csv")[0] == ["字" * 200_000]


FIELDS = st.text(st.sampled_from("绿萝，。\",;\t\n|' A1"), max_size=12)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=8), st.sampled_from(["utf-8", "gb18030", "utf-16"]))
@settings(deadline=None)
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


# ---------------------------------------------------------------- packed


def zst(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize("pack", [gzip.compress, zst])
@pytest.mark.parametrize("block", [7, 2**20])
def test_packed_files(tmp_path, monkeypatch, pack, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    text = "".join(f"第{n}句，{SENTENCE}\n" for n in range(300))
    suffix = ".gz" if pack is gzip.compress else ".zst"
    half = len(text) // 2
    parts = [text[:half].encode("gb18030"), text[half:].encode("gb18030")]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(map(pack, parts)))  # two members, as `cat a.gz b.gz` writes
    documents, report = everything(path, document="line")
    assert documents == text.splitlines()
    assert report.encoding == "gb18030"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(BadFile, match=r"cut off: unpacking stops after [\d,]+ bytes"):
        everything(path)
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 20 + whole[len(whole) // 2 + 20 :])
    with pytest.raises(BadFile):
        everything(path)
    path.write_bytes(b"")
    assert everything(path)[0] == []


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_a_bomb_is_stopped(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(archives, "SMALL", 2**22)
    suffix = ".gz" if pack is gzip.compress else ".zst"
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(b"\n" * 2**25))
    tracemalloc.start()
    with pytest.raises(BadFile, match="more than 200 times its size.*bomb"):
        everything(tmp_path / f"a.txt{suffix}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24 if suffix == ".gz" else peak < 2**26


def test_jsonl_and_csv_packed(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(zst('{"text": "一"}\n'.encode()))
    (tmp_path / "b.CSV.GZ").write_bytes(gzip.compress("text\n二\n".encode("gb18030")))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress('["三"]'.encode()))
    assert everything(tmp_path)[0] == ["一", "二", "三"]


# ---------------------------------------------------------------- archives


def make_tar(path: Path, members: list, mode: str) -> None:
    with tarfile.open(path, mode, encoding="utf-8") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data not in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = data, "/etc/hostname"
                archive.addfile(info)


MEMBERS = [
    ("b/一.txt", "一\n\n二".encode("gb18030")),
    ("a.jsonl.gz", gzip.compress('"三"\n'.encode())),
    ("../out.txt", b"x"),
    ("/abs.txt", b"x"),
    ("C:\\x.txt", b"x"),
    ("in.zip", b"PK"),
    ("photo.jpg", b"x"),
    ("__MACOSX/._a.txt", b"x"),
    ("c.csv", "text\n四\n".encode()),
]


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".TGZ"])
def test_archives_are_read_member_by_member(tmp_path, suffix):
    path = tmp_path / f"书{suffix}"
    links = [("link.txt", tarfile.SYMTYPE), ("hard.txt", tarfile.LNKTYPE), ("dev.txt", tarfile.CHRTYPE)]
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in MEMBERS:
                archive.writestr(name, data)
            for name, _ in links:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, "/etc/hostname")
    else:
        make_tar(path, MEMBERS + links, "w" if suffix == ".tar" else "w:gz")
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.source for item in inputs] == [f"书{suffix}/{name}" for name in ("b/一.txt", "a.jsonl.gz", "c.csv")]
    assert left_out == {
        "members with a path that leads out of their archive": 3,
        "archives inside an archive": 1,
        "links and devices in an archive": 3,
        ".jpg": 1,
    }
    assert everything(path)[0] == ["一", "二", "三", "四"]
    report = FileReport("")
    backwards = [list(formats.read(item, ReadOptions(), report)) for item in reversed(inputs)]
    assert backwards == [["四"], ["三"], ["一", "二"]]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]  # nothing was unpacked


def test_names_in_a_zip_of_a_chinese_windows(tmp_path):
    """Such names are GBK bytes without a mark; what `zipfile` makes of them is ┬╠┬▄."""
    wanted = ["绿萝的书.txt", "土干了再浇水.txt", "plain.txt"]
    raw = [name.encode("gbk") for name in wanted]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number, name in enumerate(raw):
            archive.writestr(str(number) * len(name), "一")
    data = (tmp_path / "a.zip").read_bytes()
    for number, name in enumerate(raw):
        assert data.count(str(number).encode() * len(name)) == 2
        data = data.replace(str(number).encode() * len(name), name)
    (tmp_path / "a.zip").write_bytes(data)
    assert names(tmp_path / "a.zip") == [f"a.zip/{name}" for name in wanted]
    assert everything(tmp_path / "a.zip")[0] == ["一"] * 3


def test_names_in_a_tar_may_be_gbk(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="gbk") as archive:
        info = tarfile.TarInfo("绿萝的书.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO("一".encode()))
    assert names(tmp_path / "a.tar") == ["a.tar/绿萝的书.txt"]


def test_a_folder_that_may_not_be_opened_is_said(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("一", "utf-8")
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def guarded(path):
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.source for item in inputs] == ["a.txt"]
    assert left_out == {"folders that may not be opened": 1}


def test_encrypted_members_are_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "一")
        archive.writestr("b.txt", "二")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(data))
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.member for item in inputs] == ["a.txt"]
    assert left_out == {"encrypted members": 1}


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_a_broken_archive_is_one_bad_file(tmp_path, suffix):
    make_tar(tmp_path / "a.tar", [(f"{n}.txt", os.urandom(3000)) for n in range(9)], "w")
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").unlink()
    data = {".zip": b"PK\x03\x04" + data, ".tar": data[:9000], ".tar.gz": gzip.compress(data)[:9000]}[suffix]
    (tmp_path / f"a{suffix}").write_bytes(data)
    (tmp_path / "b.txt").write_text("一", "utf-8")
    inputs, _ = find_inputs(str(tmp_path))
    assert [(item.source, item.member) for item in inputs] == [(f"a{suffix}", ""), ("b.txt", "")]
    with pytest.raises(BadFile):
        list(formats.read(inputs[0], ReadOptions(), FileReport("")))


def test_a_damaged_member_is_one_bad_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", SENTENCE * 9)
        archive.writestr("b.txt", "二")
    data = (tmp_path / "a.zip").read_bytes().replace("绿萝喜欢".encode(), "吊兰喜欢".encode(), 1)
    (tmp_path / "a.zip").write_bytes(data)
    first, second = find_inputs(str(tmp_path))[0]
    with pytest.raises(BadFile, match="damaged"):
        list(formats.read(first, ReadOptions(), FileReport("")))
    assert list(formats.read(second, ReadOptions(), FileReport(""))) == ["二"]


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "a.txt.gz", "a.json", "a.csv", "a.parquet"])
def test_damaged_bytes_make_a_bad_file_and_nothing_worse(tmp_path, name):
    text = "".join(f"第{n}句，{SENTENCE}\n" for n in range(100)).encode()
    path = tmp_path / name
    if name == "a.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", text)
            archive.writestr("绿萝.txt", text)
    elif name == "a.tgz":
        make_tar(path, [("a.txt", text), ("b.txt", text)], "w:gz")
    elif name == "a.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table({"text": [SENTENCE] * 50}), path)
    else:
        rows = json.dumps([SENTENCE] * 50, ensure_ascii=False) if name == "a.json" else f"text\n{SENTENCE}\n" * 50
        path.write_bytes(gzip.compress(text) if name == "a.txt.gz" else rows.encode())
    data, dice, bad = path.read_bytes(), random.Random(0), 0
    for number in range(60):
        broken = bytearray(data)
        for _ in range(dice.choice([1, 3, 9])):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        path.write_bytes(broken[: dice.choice([len(broken), dice.randrange(len(broken))])])
        os.utime(path, (number, number))
        try:
            everything(path)
        except (BadFile, NoDocuments):
            bad += 1
    assert bad > 20


def test_limits_of_archives(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 2**16)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"\n" * 2**24)
    make_tar(tmp_path / "b.tgz", [("a.txt", b"\n" * 2**24)], "w:gz")
    for item in find_inputs(str(tmp_path))[0]:
        with pytest.raises(BadFile, match="bomb"):
            list(formats.read(item, ReadOptions(), FileReport("")))
    monkeypatch.setattr(archives, "MEMBERS", 2)
    make_tar(tmp_path / "c.tar", [(f"{n}.txt", b"x") for n in range(3)], "w")
    with pytest.raises(BadFile, match="more than 2 members"):
        list(formats.read(find_inputs(str(tmp_path / "c.tar"))[0][0], ReadOptions(), FileReport("")))


# ---------------------------------------------------------------- what there is to read


@pytest.fixture
def library(tmp_path):
    for name in ("a.txt", "B.TXT", "子目录 空格/c.jsonl", "deep/er/d.txt.gz", "deep/e.csv", "x.pdf", "none"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for name in (".DS_Store", ".hidden.txt", "~$lock.txt", "deep/Thumbs.db"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_bytes(b"")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    return tmp_path


def test_folders_are_read_recursively_sorted_and_in_any_case(library):
    """The book read its files unsorted, in the order the disk gave them."""
    inputs, left_out = find_inputs(str(library))
    assert [item.source for item in inputs] == [
        "B.TXT",
        "a.txt",
        "deep/e.csv",
        "deep/er/d.txt.gz",
        "子目录 空格/c.jsonl",
    ]
    assert left_out == {".pdf": 1, "(none)": 1}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt"]),
        ("*.[tT][xX][tT]", ["B.TXT", "a.txt"]),
        ("**/*.gz", ["deep/er/d.txt.gz"]),
        ("**/*", ["B.TXT", "a.txt", "deep/e.csv", "deep/er/d.txt.gz", "子目录 空格/c.jsonl"]),
        ("deep/*", ["e.csv"]),
        ("d*/**/d*", ["deep/er/d.txt.gz"]),
        ("?.txt", ["a.txt"]),
    ],
)
def test_globs(library, pattern, found):
    inputs, _ = find_inputs(pattern, library)
    assert [item.source for item in inputs] == found
    assert all(item.path.is_file() for item in inputs)


def test_errors_say_what_was_looked_for_and_where(library, tmp_path):
    with pytest.raises(NoDocuments, match="nowhere does not exist: give 'sample', a file or a folder"):
        find_inputs(str(tmp_path / "nowhere"))
    with pytest.raises(NoDocuments, match=r"x\.pdf is not one of \.txt, \.json, \.jsonl"):
        find_inputs(str(tmp_path / "x.pdf"))
    with pytest.raises(NoDocuments, match=r"no file is named like .*\*\.epub"):
        find_inputs(str(tmp_path / "*.epub"))
    with pytest.raises(NoDocuments, match=r"1 \.pdf"):
        find_inputs(str(tmp_path / "*.pdf"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoDocuments, match=r"no file of the kinds \.txt, \.json, \.jsonl.*no file at all"):
        find_inputs(str(tmp_path / "empty"))


def test_a_name_with_brackets_is_a_name(tmp_path):
    (tmp_path / "[完结]书.txt").write_text("一", "utf-8")
    assert names(tmp_path / "[完结]书.txt") == ["[完结]书.txt"]


def test_many_small_files_are_found_fast(tmp_path):
    for n in range(1000):
        (tmp_path / f"{n}.txt").write_bytes(b"")
    inputs, _ = find_inputs(str(tmp_path))
    assert len(inputs) == 1000
    assert [item.source for item in inputs] == sorted(f"{n}.txt" for n in range(1000))


# ---------------------------------------------------------------- all of it


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
    archives._tape.cache_clear()
    (item,), _ = find_inputs(str(path))
    tracemalloc.start()
    count = sum(1 for _ in formats.read(item, ReadOptions("line"), FileReport("")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == expected
    assert peak < size / 3


def test_an_input_travels_to_another_process(tmp_path):
    (tmp_path / "a.txt").write_text("一", "utf-8")
    (item,), _ = find_inputs(str(tmp_path))
    assert pickle.loads(pickle.dumps((item, ReadOptions()))) == (item, ReadOptions())
    assert isinstance(item, Input)
