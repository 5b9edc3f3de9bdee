"""CSV, TSV and Parquet to rows and documents, in the dialects that programs write. Makes its own files."""

import gzip

import pytest
from corpora import SENTENCE, everything, read_text

from helpers.corpus import tables
from helpers.corpus.encodings import BadFile

PLAIN = "its quotation marks are part of the text"
MYSQL, SPACES = 'its quotation marks are written \\"', "spaces follow its separators"
SEVERAL, LONGER, SHORTER = "a row may be several rows", "a row has more than 2", "a row has fewer than"


@pytest.mark.parametrize(
    ("table", "documents", "told"),
    [
        # byte order marks, names
        ("\ufeff\ufefftext,n\n甲,1\n\ufefftext,n\n乙,2\n", ["甲", "乙"], "row 3: the header once more"),
        (",text\n0,甲\n1,乙\n", ["甲", "乙"], ""),
        ('text,"备\n注"\n一,无\n', ["一"], ""),
        # quotation marks
        ('id,text\n"1","甲\\"乙,丙\\"丁\\\\"\n"2","戊\\n"\n', ['甲"乙,丙"丁\\', "戊\\n"], MYSQL),
        ('text\n"甲\\"乙,丙\\"丁"\n', ['甲"乙,丙"丁'], MYSQL),
        ('id,text,n\n1,C:\\new,"甲,乙"\n', ["C:\\new"], ""),
        ('id, text, n\n1, "甲,乙", 3\n2, 丙, 4\n', ["甲,乙", "丙"], SPACES),
        ('text,n\n"甲"乙,1\n丙,2\n', ['"甲"乙', "丙"], PLAIN),
        ('n,text\n"1","甲,乙"\n"2","丙"丁\n"3","戊"\n', ["甲,乙", "戊"], "row 3: text follows a quotation mark"),
        ('text,n\n"甲,\n乙",1\n', ["甲,\n乙"], ""),
        # rows that do not fit their header
        ("id,text\n1,甲, 乙,丙\n2,丁\n", ["甲, 乙,丙", "丁"], LONGER),
        ("id;text\n1;甲;;乙\n2;丁;;\n", ["甲;;乙", "丁"], LONGER),
        ("id\ttext\n1\t甲\t乙\n2\t丁\t\t\n", ["甲\t乙", "丁"], LONGER),
        ("id,text,n\n1,甲,乙,3\n2,丙,4\n", ["丙"], "row 2: fields: 4, columns: 3. Does one hold ','"),
        ('id,text\n1,"甲",乙\n2,丙\n', ["丙"], "row 2: fields: 3, columns: 2"),
        ("id,text,n\n1,甲\n2,乙,3\n3\n", ["甲", "乙"], SHORTER),
        ("id,text,n\n1,甲\n2,乙,3\n3\n", ["甲", "乙"], "row 4: fields: 1, columns: 3. Does one hold a line end"),
        ("text,n\n四,4, ,\n\n五,5\n", ["四", "五"], ""),
        # no column, no end
        ("标题,正文\n一,二\n", "no column 'text'; the columns are 标题, 正文", ""),
        ('text\n一\n"二\n三\n四\n', "row 3, line 3, and none closes it", ""),
        ('text,"备\n注"\n一,无\n二,无,多\n"三,无\n', "row 4, line 5, and none closes it", ""),
        ('text,"备\n一\n', "row 1, line 1, and none closes it", ""),
        ('id,text\n1,"甲\n乙"\n2,"丙', "row 3, line 4, and none closes it", ""),
    ],
)
def test_a_csv_is_read_whole_or_it_is_told_what_was_not(tmp_path, table, documents, told):
    kind = "a.tsv" if "\t" in table else "a.csv"
    if isinstance(documents, str):
        with pytest.raises(BadFile, match=documents):
            read_text(tmp_path, kind, table)
        return
    found, report = read_text(tmp_path, kind, table)
    notes = "; ".join([*report.notes, *(key for key in report.counts if " " in key)])
    assert (found, told in notes) == (documents, True)
    assert bool(notes) == bool(told)


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
        documents, report = read_text(tmp_path, "a.tsv", "\n".join([header, *(start + row + end for row in rows)]))
        assert (documents, report.notes) == (rows, [PLAIN])


def test_rows_of_a_tsv_that_may_be_several_are_said(tmp_path):
    table = 'text\tn\n"他说，\t1\n好的"\t2\n"一\n\t"\t3\n"二\n三"\t4\n'
    documents, report = read_text(tmp_path, "a.tsv", table)
    assert documents == ["他说，\t1\n好的", "一\n\t", "二\n三"]
    assert [n for key, n in report.counts.items() if key.startswith(SEVERAL)] == [1]


def test_a_field_that_takes_all_that_follows_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    with pytest.raises(BadFile, match="row 3, line 3, and none closes it"):
        read_text(tmp_path, "a.csv", 'text\n一\n"二\n' + f"{SENTENCE}\n" * 200)


def test_two_columns_of_one_name_are_two_columns(tmp_path):
    documents, report = read_text(tmp_path, "a.csv", "text,text,text\n甲,乙乙,丙\n")
    assert documents == ["甲"]
    assert report.lost == {"field 'text (2)' is not used": 2, "field 'text (3)' is not used": 1}
    assert read_text(tmp_path, "a.csv", "text,text\n甲,乙\n", text_key="{text}{text (2)}")[0] == ["甲乙"]


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
    with pytest.raises(BadFile, match="no column 'text'; the columns are title, lines, n"):
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

    image = pa.array([b"\xff"] * 4, getattr(pa, kind)())
    table = pa.table({"text": pa.array(["一".encode(), b"", b"\xff", None], image.type), "image": image})
    parquet.write_table(table, tmp_path / "a.parquet")
    documents, report = everything(tmp_path / "a.parquet")
    assert documents == ["一", ""]
    assert "no text but bytes, which are not read: image" in report.notes
    assert "row 3: no text but b'\\xff' under 'text'; row 4: nothing under 'text'" in report.notes
    assert everything(tmp_path / "a.parquet", text_key="{text}")[0] == ["一"]
