"""Plain text to lines and documents, whatever its pieces."""

from collections import Counter

import pytest
from corpora import LINE_ENDS, LINES, SENTENCE, everything
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings, plain_text, records


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


@given(LINES, LINE_ENDS, st.sampled_from(records.MODES), st.integers(1, 9))
@settings(max_examples=300)
def test_documents_do_not_depend_on_the_pieces(rows, end, mode, size):
    text = end.join(rows)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    counts = Counter()
    even = list(plain_text.even(pieces, counts))
    found = ("block" if plain_text.has_blocks(even) else "file") if mode == "auto" else mode
    assert list(plain_text.split_documents(even, found)) == naive(text, mode)
    assert counts["line ends"] == (0 if end == "\n" else text.count(end))


def test_a_line_without_end_is_cut_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "HOLD", 100)
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 64)
    (tmp_path / "a.txt").write_text("字" * 40_000, "utf-8")
    for mode in records.MODES:
        documents, _ = everything(tmp_path / "a.txt", document=mode)
        assert "".join(documents) == "字" * 40_000
        assert max(map(len, documents)) <= 200


def test_a_very_long_document_is_cut_at_a_line_end(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_text, "HOLD", 100)
    rows = [f"第{n}句，{SENTENCE}" for n in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(rows), "utf-8")
    documents, report = everything(tmp_path / "a.txt")
    assert "\n".join(documents).split("\n") == rows
    assert report.mode == "file"
    assert max(map(len, documents)) < 130
