"""Reading the finished corpus: in order, one document at a time."""

import pytest
from corpora import PROSE, build

from helpers.corpus import split
from helpers.corpus.shards import read_texts, shard_documents, shard_paths


@pytest.fixture
def corpus(raw, monkeypatch):
    monkeypatch.setattr(split, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE + "龙行龘龘，𠮷。\n", "utf-8")
    (raw / "b.txt").write_text("别的", "utf-8")
    build(raw, document="line", val_fraction=0.2)


def test_documents_come_in_order_with_their_source(corpus):
    assert len(shard_paths("test", "train")) == 2
    documents = [document for shard in shard_paths("test", "train") for document in shard_documents(shard)]
    assert [document["text"] for document in documents] == list(read_texts("test", "train"))
    for document in documents:
        assert document["source"] == ("b.txt" if document["text"] == "别的" else "a.txt")
