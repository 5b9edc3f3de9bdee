"""shards: nothing is lost or torn between documents and shards, whoever writes them."""

import json

import numpy as np
import pytest

from helpers import files, paths
from helpers.tokens import shards
from helpers.tokens.shards import dtype_for, write_shards
from helpers.tokens.windows import TokenStream
from helpers.vocab import tokenizer


def test_every_document_comes_back_from_the_shards(run, texts, write):
    stream, loaded = write(5), tokenizer.load_tokenizer(paths.room(run, "vocab"))
    ends = [*stream.documents[1:], len(stream)]
    for text, start, end in zip(texts[:190], stream.documents, ends, strict=True):
        ids = stream.read(int(start), int(end)).tolist()
        assert (ids[0], ids[-1]) == (loaded.bos_token_id, loaded.eos_token_id)
        assert tokenizer.decode(loaded, ids[1:-1]) == text


@pytest.mark.parametrize("num_pieces", [1, 2, 7, 500])
def test_the_stream_does_not_depend_on_the_number_of_shards(write, num_pieces):
    whole = write(8)
    ids, documents = whole.read(0, len(whole)), whole.documents
    cut = write(num_pieces)
    assert len(cut.shards) == min(num_pieces, 190)  # and none of the eight
    np.testing.assert_array_equal(cut.read(0, len(cut)), ids)
    np.testing.assert_array_equal(cut.documents, documents)


def test_workers_write_the_same_bytes(run, monkeypatch):
    monkeypatch.setattr(shards, "_PART_BYTES", 1000)  # so that there is work for both of them
    started, executor = [], shards.parallel.executor
    monkeypatch.setattr(shards.parallel, "executor", lambda n: started.append(n) or executor(n))
    written, left = [], paths.room(run, "tokenize") / "parts" / "train-000000.npy"
    for workers in (1, 2):
        left.parent.mkdir(parents=True)  # by a run that was killed
        left.write_bytes(b"torn")
        write_shards(run, 3, workers)
        written.append({file.name: file.read_bytes() for file in paths.room(run, "tokenize").iterdir()})
    assert written[0] == written[1] and len(written[0]) == 8  # shards and offsets, nothing else is left
    assert started == [1, 2]


def test_a_small_corpus_starts_no_process(run, monkeypatch):
    started, executor = [], shards.parallel.executor
    monkeypatch.setattr(shards.parallel, "executor", lambda n: started.append(n) or executor(1))
    write_shards(run, 3, workers=8)
    assert started == [1]


def test_another_tokenizer_in_the_same_folder_is_read(run, texts, write):
    """As when 02 and 03 are run again and the kernel of 03 has stayed."""
    write(2)
    other = tokenizer.build_bytes()
    other.save_pretrained(paths.room(run, "vocab"))
    stream = write(2)
    assert stream.read(0, 4).tolist() == [other.bos_token_id, *tokenizer.encode(other, texts[0])[:3]]


def test_what_is_refused_leaves_the_shards_that_are_there(run, write, monkeypatch):
    write(2)
    room = paths.room(run, "tokenize")
    before = {file.name: file.read_bytes() for file in room.iterdir()}
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with pytest.raises(ValueError, match="workers is -1"):
        write_shards(run, 3, workers=-1)
    with files.occupied(room), pytest.raises(files.Occupied, match="another notebook"):
        write_shards(run, 3)
    assert {file.name: file.read_bytes() for file in room.iterdir()} == before


@pytest.mark.parametrize("part_bytes", [1, 700, 2**22])
@pytest.mark.parametrize("num_pieces", [2, 5])
def test_shards_are_balanced_by_tokens(run, texts, monkeypatch, num_pieces, part_bytes):
    """By bytes, a shard of English would hold thrice the tokens of one of Chinese."""
    corpus = paths.room(run, "corpus")
    english = [{"text": "Water it once a week, " * 3 + str(i), "source": "a/long/name" * (i % 5)} for i in range(60)]
    with open(corpus / "train-00001.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in english)
    monkeypatch.setattr(shards, "_PART_BYTES", part_bytes)  # where the work is cut changes nothing
    facts = write_shards(run, num_pieces, workers=1)["train"]
    stream = TokenStream(run, "train", "uint16")
    sizes = [len(shard) for shard in stream.shards]
    longest = np.diff(stream.documents, append=len(stream)).max()
    assert len(sizes) == num_pieces and max(sizes) - min(sizes) <= longest
    assert [fact["tokens"] for fact in facts] == sizes
    texts = [*texts[:190], *(document["text"] for document in english)]
    at = 0
    for fact in facts:  # each shard's facts are those of its own documents
        assert fact["characters"] == sum(map(len, texts[at : at + fact["documents"]]))
        at += fact["documents"]
    assert at == len(texts)


def test_a_document_longer_than_a_shard_is_not_torn(run):
    (paths.room(run, "corpus") / "train-00000.jsonl").write_text(json.dumps({"text": "浇水" * 9000}) + "\n", "utf-8")
    facts = write_shards(run, 8, workers=1)["train"]
    stream = TokenStream(run, "train", "uint16")
    assert facts[0]["documents"] == 1 and facts[0]["tokens"] == 9002
    assert [len(shard) for shard in stream.shards] == [fact["tokens"] for fact in facts]
    assert len(stream.documents) == 71 and stream.read(0, 1)[0] == stream.read(9002, 9003)[0]


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_dtype_holds_every_id(size, dtype):
    assert dtype_for(size) == dtype
