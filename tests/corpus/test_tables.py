"""CSV, TSV and Parquet to rows and documents; rows that a mark in the text has broken. Makes its own files."""

import csv
import gzip

import pytest
from corpora import SENTENCE, everything
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import tables
from helpers.corpus.encodings import BadFile


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
    (tmp_path / "a.csv").write_text("text,n\n一,1\n二\n三,3,好,的\n四,4, ,\n\n五\n", "utf-8")
    documents, report = everything(tmp_path / "a.csv")
    assert documents == ["一", "二", "四", "五"]
    assert report.notes == [
        "2 row(s) have fewer than 2 columns; the first is row 3",
        "row 4: 4 fields for 2 columns: does one hold ',', but is not in quotes?",
    ]
    assert report.dropped == {"unreadable": 1} and report.lost["unreadable"] == len("三,3,好,的")


@pytest.mark.parametrize(("mark", "suffix"), [(",", ".csv"), (";", ".csv"), ("\t", ".tsv")])
def test_a_text_in_the_last_column_may_hold_the_mark_that_separates_columns(tmp_path, mark, suffix):
    path = tmp_path / f"a{suffix}"
    text = f"你好{mark} 世界{mark}{mark}再见"
    path.write_text(f"label{mark}text\n1{mark}好\n2{mark}{text}\n3{mark}好的{mark}{mark}\n", "utf-8")
    documents, report = everything(path)
    assert documents == ["好", text, "好的"]
    assert "1 row(s) have more than 2 columns" in report.notes[0] and "the first is row 3" in report.notes[0]
    assert everything(path, text_key="{text}")[0] == ["好", "好的"]  # in a template, any field may be the longer one
    assert everything(path, text_key="label")[0] == ["1", "3"]
    path.write_text(f"text\n{text}\n", "utf-8")
    assert everything(path)[0] == [text]


def test_a_quotation_mark_that_is_never_closed_swallows_nothing_silently(tmp_path):
    (tmp_path / "a.csv").write_text('text\n一\n"二\n三\n四\n', "utf-8")
    with pytest.raises(BadFile, match="row 3, line 3, and none closes it"):
        everything(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "rows",
    [
        ['"他说的', "绿萝浇水", "中间的文档", '"她说的', "最后"],
        ['"他说的', "绿萝浇水"],
        ['"绿萝"是植物', "一"],
        ["一", '""', '"二'],
    ],
)
def test_quotation_marks_of_the_text_in_a_tsv(tmp_path, rows):
    """Two of them at the starts of fields took all rows between them into one document."""
    for header, end in (("text\tn", "\t1"), ("n\ttext", ""), ("text", ""), ('"n"\t"text"', "")):
        start = "1\t" if header.startswith(("n", '"')) else ""
        (tmp_path / "a.tsv").write_text("\n".join([header, *(start + row + end for row in rows)]), "utf-8")
        documents, report = everything(tmp_path / "a.tsv")
        assert documents == rows
        assert report.notes == ["its quotation marks are part of the text: they do not enclose whole fields"]


def test_rows_of_a_tsv_that_may_be_several_are_said(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tn\n"他说，\t1\n好的"\t2\n"一\n\t"\t3\n"二\n三"\t4\n', "utf-8")
    documents, report = everything(tmp_path / "a.tsv")
    assert documents == ["他说，\t1\n好的", "一\n\t", "二\n三"]
    assert len(report.notes) == 1 and "1 row(s) may be several rows each" in report.notes[0]


def test_a_field_that_takes_all_that_follows_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    (tmp_path / "a.csv").write_text('text\n一\n"二\n' + f"{SENTENCE}\n" * 200, "utf-8")
    with pytest.raises(BadFile, match="row 3, which starts in line 3.*does a quotation mark open"):
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


FIELDS = st.text(st.sampled_from("绿萝，。\",;\t\n|' A1"), max_size=12)


@given(
    st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=8),
    st.sampled_from(["utf-8", "gb18030", "utf-16"]),
    st.sampled_from([",", "\t"]),
)
def test_any_table_comes_back(tmp_path_factory, rows, codec, mark):
    path = tmp_path_factory.getbasetemp() / ("table.tsv" if mark == "\t" else "table.csv")
    with open(path, "w", encoding=codec, newline="") as file:
        csv.writer(file, delimiter=mark).writerows([("问的是，一个", "text"), *rows])
    assert everything(path)[0] == [text for _, text in rows]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"title": ["一", None, ""], "lines": [["二", "三"], ["四"], []], "n": [1, 2, None]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert everything(tmp_path / "a.parquet", text_key="title")[0] == ["一", ""]
    numbers = pa.table({"title": ["一", "", "二"], "n": [1.5, float("nan"), float("nan")]})
    parquet.write_table(numbers, tmp_path / "n.parquet")
    assert everything(tmp_path / "n.parquet", text_key="{title}{n}")[0] == ["一1.5", "二"]
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


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_bytes_in_a_parquet(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"text": pa.array(["一".encode(), b"", b"\xff", None], getattr(pa, kind)())})
    parquet.write_table(table, tmp_path / "a.parquet")
    documents, report = everything(tmp_path / "a.parquet")
    assert documents == ["一", ""]
    assert "row 3: bytes, not a string under 'text'; row 4: no string" in report.notes[0]
    assert everything(tmp_path / "a.parquet", text_key="{text}")[0] == ["一"]
