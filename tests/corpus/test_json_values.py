"""JSON lists, JSON lines and values one after another; faults are named by their place. Makes its own files."""

import json
import re

import pytest
from corpora import everything
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings, json_values
from helpers.corpus.encodings import BadFile


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


@pytest.mark.parametrize("block", [5, 2**20])
def test_json_values_one_after_another(tmp_path, monkeypatch, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    rows = [{"text": "一"}, {"text": "二", "n": [1, 2]}, {"title": "无"}]
    for text in ("\n".join(json.dumps(row, indent=1) for row in rows), "".join(map(json.dumps, rows))):
        (tmp_path / "a.json").write_text(text, "utf-8")
        documents, report = everything(tmp_path / "a.json")
        assert documents == ["一", "二"]
        assert "one after another" in report.notes[0] and "item 3: no string" in report.notes[1]
    (tmp_path / "a.json").write_text('{"text":\n"一"}\n{"text" 坏}', "utf-8")
    with pytest.raises(BadFile, match=r"byte 24 \(line 3, column 9\) is not JSON"):
        everything(tmp_path / "a.json")


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


GBK = '["绿萝的叶子价格是€", '.encode("gb18030")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ('["绿萝🌱", 坏]'.encode(), "byte 15 (line 1, column 9)"),
        (GBK + "坏]".encode("gb18030"), "byte 23 (line 1, column 15)"),
        # what only other programs write: 0x80 for € in GBK, and an emoji as the two halves of UTF-16
        (GBK.replace("€".encode("gb18030"), b"\x80") + "坏]".encode("gb18030"), "line 1, column 15"),
        (b'["\xed\xa0\xbc\xed\xbc\xb1", ' + "坏]".encode(), "line 1, column 7"),
        # a file that changes its encoding
        (GBK + b"\n" + '"绿萝要浇水，也要晒太阳。" 坏]'.encode(), "line 2, column 16"),
    ],
)
@pytest.mark.parametrize("block", [7, 2**20])
def test_a_byte_is_named_only_where_bytes_can_be_counted(tmp_path, monkeypatch, data, where, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(BadFile, match=f"^{re.escape(where)} is not JSON"):
        everything(tmp_path / "a.json")


def test_a_json_value_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 16)
    monkeypatch.setattr(json_values, "LINE", 100)
    why = r"byte 0 .line 1, column 1.: one value of more than 100 characters; a list, or one line for each"
    for value in ("字" * 300, {"data": ["字"] * 100}):
        (tmp_path / "a.json").write_text(json.dumps(value), "utf-8")
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
    parser = json_values._Json(lambda: iter(pieces), encodings.Encoding("utf-8"))
    assert parser.next() == "["
    assert list(parser.items()) == values
    assert parser.next() == ""


def test_unicode_line_separators_inside_json_do_not_cut_a_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "一\u2028二"}\n{"text": "三"}\n', "utf-8")
    assert everything(tmp_path / "a.jsonl")[0] == ["一\u2028二", "三"]
