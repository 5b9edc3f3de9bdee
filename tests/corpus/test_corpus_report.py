"""What is said of a corpus: per file, per rule, and where nothing is usable."""

import json
import re

import pytest
from corpora import SENTENCE, build

from helpers import paths
from helpers.corpus import partition
from helpers.corpus.archives import NoDocuments
from helpers.corpus.build import build_corpus
from helpers.corpus.report import NOTES


def test_losses_are_told_in_sentences_the_worst_first(raw):
    rows = [{"text": f"第{n}篇", "title": "题" * 9, "id": "1"} for n in range(9)]
    (raw / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0]])) + "\n{torn", "utf-8")
    (raw / "b.csv").write_text("正文\n一\n", "utf-8")
    (raw / "c.md").write_text("# 一", "utf-8")
    (raw / "d.csv").write_text("n,text\n1,甲,乙\n2,丙\n", "utf-8")
    report = build(raw)
    assert [
        re.sub(r"(: no column|line 11: not JSON|, and what|: all that).*", "…", told) for told in report.losses()
    ] == [
        "b.csv is not used…",
        "not read: 1 .md",
        "field 'title' is not used: 90 characters, in a.jsonl",
        "field 'id' is not used: 10 characters, in a.jsonl",
        "1 document(s) left out, unreadable: 5 characters, in a.jsonl",
        "1 document(s) left out, duplicate: 3 characters, in a.jsonl",
        "field 'n' is not used: 2 characters, in d.csv",
        "a.jsonl: …",
        "d.csv: a row has more than 2 columns…",
    ]
    assert report.result()["losses"] == report.losses()
    (raw / "e").mkdir()
    (raw / "e" / "a.txt").write_text("一一\n\n二二", "utf-8")
    assert build(raw / "e").losses() == [] and "losses" not in build_corpus("test", max_documents=300).result()


def test_bad_lines_of_a_file_in_many_slices_do_not_flood_its_notes(raw, monkeypatch):
    with open(raw / "a.jsonl", "w", encoding="utf-8") as file:
        for n in range(900):
            file.write(json.dumps({"text": f"第{n}篇，{SENTENCE}"}) + "\n" + ("{torn\n" if n % 15 == 0 else ""))
    monkeypatch.setattr(partition, "TASK_BYTES", 3000)
    report = build(raw)
    assert report.documents == 900 and report.dropped == {"unreadable": 60}
    assert len(report.files) == 1 and len(report.files[0].notes) == NOTES + 1
    assert "notes more" in report.files[0].notes[-1]


def test_a_corpus_without_a_document_says_what_became_of_each_file(raw):
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
