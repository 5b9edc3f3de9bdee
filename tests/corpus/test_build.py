"""Raw text to documents in shards: all of room 01 in one call, from any source, and what is said of it all."""

import functools
import json
import zipfile

import pytest
from corpora import SENTENCE, all_texts, build, jsonl

from helpers import files, paths
from helpers.corpus import archives, built_in, download
from helpers.corpus.build import build_corpus
from helpers.corpus.shards import read_texts


def test_a_corpus_comes_from_the_net(raw, monkeypatch):
    jsonl(raw / "a.jsonl", 30)
    asked, address = [], "https://example.org/a.jsonl"
    monkeypatch.setattr(download, "fetch", lambda *wanted: asked.append(wanted) or raw / "a.jsonl")
    assert build_corpus("test", address, workers=1).inputs == [raw / "a.jsonl"]
    assert asked == [(address, paths.runs_dir() / "fetched")]


def test_rules_and_filters_are_parameters(raw):
    rows = [
        "<b>绿萝</b>喜欢散射光，电话13812345678。",
        "English only, nothing else.",
        "哈" * 60,
        "$$$ ### 100% 200%",
    ]
    (raw / "a.txt").write_text("\n".join([*rows, SENTENCE]), "utf-8")
    report = build(
        raw, document="line", rules="+personal data, -HTML tags", min_chinese=0.3, max_symbols=0.6, max_repetition=0.5
    )
    assert all_texts() == sorted(["<b>绿萝</b>喜欢散射光，电话[电话]。", SENTENCE])
    assert report.dropped == {"too little Chinese": 2, "too repetitive": 1}
    assert report.rules == {"personal data": 1}
    written = json.loads((paths.room("test", "corpus") / "report.json").read_text("utf-8"))
    assert written["examples"]["personal data"] == [["喜欢散射光，电话13812345678。", "喜欢散射光，电话[电话]。"]]


def test_the_built_in_corpus_is_clean_distinct_and_has_a_floor():
    report = build_corpus("test", "sample", max_documents=400, workers=1)
    assert report.documents == 400
    assert not report.dropped and not report.rules
    read = [path.name for path in report.inputs]
    assert read == ["grammar.yaml", "plain_questions.csv", "plants.csv"]  # for the manifest
    assert "inputs" not in json.loads((paths.room("test", "corpus") / "report.json").read_text("utf-8"))
    expected = {document.text: document.bits for document in built_in.draw_documents(400, seed=0)}
    assert all_texts() == sorted(expected)
    validation = list(read_texts("test", "val"))
    bits = sum(expected[text] for text in validation) / sum(map(len, validation))
    assert report.floor_bits_per_char == pytest.approx(bits, abs=1e-6)
    assert 0.1 < bits < 6


def test_what_means_nothing_for_the_built_in_corpus_is_said():
    assert build_corpus("test", "sample", max_documents=40, workers=1).files[0].notes == []
    report = build_corpus("test", "sample", max_documents=40, workers=1, min_length=128, rules="-NFC")
    assert report.files[0].notes == ["written clean, so rules, min_length change nothing"]


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"rules": "+no such rule"}])
def test_what_is_refused_leaves_the_corpus_that_is_there(raw, wrong):
    (raw / "a.txt").write_text("一\n\n二\n\n三", "utf-8")
    report = build(raw)
    before = [file.read_bytes() for file in report.outputs]
    with pytest.raises(ValueError):
        build_corpus("test", str(raw), **wrong)
    assert [file.read_bytes() for file in report.outputs] == before


def test_two_programs_never_build_one_corpus(raw, monkeypatch):
    """JupyterLab beside `make run`: the second would clear the room under the first one's hands."""
    (raw / "a.txt").write_text("一\n\n二\n\n三", "utf-8")
    report = build(raw)
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with files.occupied(paths.room("test", "corpus")), pytest.raises(files.Occupied, match="another notebook"):
        build(raw)
    assert all(file.exists() for file in report.outputs)


def test_an_archive_that_may_not_be_opened_is_one_bad_file(raw, monkeypatch):
    (raw / "a.txt").write_text("一\n\n二\n\n三", "utf-8")
    with zipfile.ZipFile(raw / "b.zip", "w") as archive:
        archive.writestr("c.txt", "四")
    monkeypatch.setattr(archives, "open_archive", functools.lru_cache(forbidden))  # root may read what chmod forbids
    report = build(raw)
    assert all_texts() == ["一", "三", "二"] and "NOT USED" in dict((row[0], row[-1]) for row in report.rows())["b.zip"]


def forbidden(*_, **__):
    raise PermissionError(13, "Permission denied", "b.zip")


@pytest.mark.parametrize("document", ["auto", "line"])
def test_mojibake_with_a_line_end_inside_a_character_is_mended(raw, document):
    """光 is E5 85 89: read as Latin-1, it has U+0085 in it, which ends a line."""
    text = "先看光线充足的公园全景\n其余光照不足的先不养\n"
    (raw / "a.txt").write_text("一行\n\n" + text.encode("utf-8").decode("latin-1") + "\n好的\n", "utf-8")
    build(raw, repair=True, document=document)
    assert set(text.split()) <= set("\n".join(all_texts()).split("\n"))
