"""Reading the finished corpus: in order, one document at a time; and as one JSON list, by one command."""

import json

import pytest
from corpora import PROSE, build

from helpers.corpus import split
from helpers.corpus.__main__ import export_json
from helpers.corpus.build import build_corpus
from helpers.corpus.shards import read_texts, shard_documents, shard_paths
from helpers.manifest import write_manifest


@pytest.fixture
def corpus(raw, monkeypatch):
    monkeypatch.setattr(split, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE + "龙行龘龘，𠮷。\n", "utf-8")
    (raw / "b.txt").write_text("别的", "utf-8")
    report = build(raw, document="line", val_fraction=0.2)
    write_manifest("test", "corpus", parameters={}, inputs=[], outputs=report.outputs, result={})


def test_documents_come_in_order_with_their_source(corpus):
    assert len(shard_paths("test", "train")) == 2
    documents = [document for shard in shard_paths("test", "train") for document in shard_documents(shard)]
    assert [document["text"] for document in documents] == list(read_texts("test", "train"))
    for document in documents:
        assert document["source"] == ("b.txt" if document["text"] == "别的" else "a.txt")


@pytest.mark.parametrize("side", ["train", "val"])
def test_the_json_list_is_the_documents_and_can_be_read_again(corpus, side, tmp_path, capsys):
    file = tmp_path / "new folder" / "list.json"
    assert export_json(["--run", "test", "--json", str(file), "--split", side]) == 0
    texts = list(read_texts("test", side))
    assert json.loads(file.read_text("utf-8")) == texts and texts
    assert f"{len(texts):,} documents in" in capsys.readouterr().out
    assert build_corpus("again", str(file), workers=1).documents == len(texts)


def test_a_run_without_a_corpus_and_a_changed_one_are_refused(corpus, tmp_path, capsys):
    assert export_json(["--run", "nobody", "--json", str(tmp_path / "a.json")]) == 2
    assert "01_corpus" in capsys.readouterr().err
    shard = shard_paths("test", "train")[0]
    shard.write_text(shard.read_text("utf-8") + "\n", "utf-8")
    assert export_json(["--run", "test", "--json", str(tmp_path / "a.json")]) == 2
    assert "is not the file that 01_corpus wrote" in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()
