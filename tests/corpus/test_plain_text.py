"""Plain text to lines and documents, whatever its pieces."""

import re
from collections import Counter

import pytest
from corpora import LINE_ENDS, LINES, SENTENCE, all_texts, build, read_text
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings, plain_text
from helpers.corpus.settings import MODES


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
        # marks of other trainers
        ("auto", "甲\n\n乙\n<|endoftext|>\n丙<|endoftext|>丁\n", ["甲\n\n乙", "丙", "丁"]),
        ("auto", "甲\n</s>\n乙\n</s>", ["甲", "乙"]),
        ("block", "<s>\n甲\n\n[SEP]\n\n乙\n丙", ["甲", "乙\n丙"]),
        ("line", "甲\n[SEP]\n乙<|endoftext|>丙\n", ["甲", "乙", "丙"]),
        ("auto", "甲 [SEP] 乙</s>\n<s>丙</s>\n[SEP]丁\n", ["甲 [SEP] 乙</s>\n<s>丙</s>\n[SEP]丁"]),
        ("auto", "<|im_start|>甲\n\n<|im_end|>\n", ["<|im_start|>甲", "<|im_end|>"]),
    ],
)
def test_documents_of_a_txt(tmp_path, mode, text, documents):
    """The book made every line a document, so paragraphs were torn apart."""
    assert read_text(tmp_path, "a.txt", text, document=mode)[0] == documents


@pytest.mark.parametrize("size", range(1, 9))
def test_marks_are_found_whatever_the_pieces(size):
    text = "甲\n</s>\n乙<|endoftext|>丙\n\n</s>\n"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for mode, counts in (("line", Counter()), ("block", Counter()), ("file", Counter())):
        assert list(plain_text.split_documents(pieces, mode, counts)) == ["甲", "乙", "丙"]
        assert sorted(counts.values()) == [1, 2]
    assert plain_text.find_mode(pieces) == "file"


def test_marks_are_told(raw):
    (raw / "a.txt").write_text("甲甲\n<|endoftext|>\n乙乙<|im_end|>", "utf-8")
    report = build(raw)
    told = "; ".join(report.losses())
    assert "<|endoftext|> is taken as the end of a document" in told and "<|im_end|> is learned as text" in told


@pytest.mark.parametrize("marked", [True, False])
def test_marks_at_the_ends_of_most_documents_are_cut_and_of_few_told(raw, marked):
    texts = ["甲甲</s>\n乙 </s>", "[CLS]丙 </s> 丙</s>", *([] if marked else ["丁丁", "戊戊"])]
    (raw / "a.txt").write_text("\n\n".join(texts), "utf-8")
    report = build(raw)
    assert all_texts() == sorted(["甲甲\n乙", "丙 </s> 丙"] if marked else texts)
    assert report.rules["marks of other trainers"] == 4 * marked
    assert f"</s> is learned as text: where it parts documents, {plain_text.ADVICE}" in "; ".join(report.losses())
    balance = report.files[0].balance()
    assert balance.pop("read") == sum(balance.values()) and balance["cleaned"] == 18 * marked


def naive(text: str, mode: str) -> list[str]:
    """Return the documents of a text held in memory, line by line; none of them is long."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").split("\n")
    filled = [row for row in rows if row.strip()]
    if mode == "line":
        return filled
    inner = "\n".join(row if row.strip() else "" for row in rows).strip("\n")
    if mode == "file" or mode == "auto" and "\n\n" not in inner:
        first, last = (rows.index(filled[0]), len(rows) - rows[::-1].index(filled[-1])) if filled else (0, 0)
        return ["\n".join(rows[first:last])] if filled else []
    return [block for block in re.split("\n\n+", inner) if block]


@given(LINES, LINE_ENDS, st.sampled_from(MODES), st.integers(1, 9))
@settings(max_examples=300)
def test_documents_do_not_depend_on_the_pieces(rows, end, mode, size):
    text = end.join(rows)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    counts = Counter()
    even = list(plain_text.with_line_ends(pieces, counts))
    found = plain_text.find_mode(even) if mode == "auto" else mode
    assert list(plain_text.split_documents(even, found)) == naive(text, mode)
    assert counts["line ends"] == (0 if end == "\n" else text.count(end))


def test_long_lines_and_documents_are_cut_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "LONGEST_DOCUMENT", 100)
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 64)
    for mode in MODES:
        documents, _ = read_text(tmp_path, "a.txt", "字" * 4000, document=mode)
        assert "".join(documents) == "字" * 4000 and max(map(len, documents)) <= 200
    rows = [f"第{n}句，{SENTENCE}" for n in range(50)]
    documents, report = read_text(tmp_path, "a.txt", "\n".join(rows))
    assert "\n".join(documents).split("\n") == rows  # cut at line ends
    assert report.mode == "file" and max(map(len, documents)) < 130
