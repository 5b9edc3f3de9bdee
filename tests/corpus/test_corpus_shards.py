"""Reading the finished corpus: in order, one document at a time; and as one JSON list."""

import json

import pytest
from corpora import PROSE, build

from helpers.corpus import split
from helpers.corpus.build import build_corpus
from helpers.corpus.shards import read_texts, shard_documents, shard_paths, write_json_list
from helpers.manifest import RoomError


def test_a_room_that_is_not_there_names_the_notebook():
    with pytest.raises(RoomError, match="01_corpus"):
        shard_paths("nobody", "train")


def test_the_json_list_can_be_read_again(raw):
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    texts = list(read_texts("test", "train"))
    path = raw.parent / "out" / "train.json"
    assert write_json_list("test", "train", path) == len(texts) > 40
    assert json.loads(path.read_text("utf-8")) == texts
    again = build_corpus("again", str(path), workers=1)
    assert again.documents == len(texts)


def test_documents_come_in_order_with_their_source(raw, monkeypatch):
    monkeypatch.setattr(split, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE, "utf-8")
    (raw / "b.txt").write_text("别的", "utf-8")
    build(raw, document="line")
    assert len(shard_paths("test", "train")) == 3
    documents = [document for shard in shard_paths("test", "train") for document in shard_documents(shard)]
    assert [document["text"] for document in documents] == list(read_texts("test", "train"))
    assert {(document["source"], document["text"] == "别的") for document in documents} <= {
        ("a.txt", False),
        ("b.txt", True),
    }
