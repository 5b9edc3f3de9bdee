"""Room 03: nothing is lost or torn between documents, shards, windows and batches."""

import json
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.tokens import shards
from helpers.tokens.shards import _documents, dtype_for, write_shards
from helpers.tokens.windows import IGNORE, TokenStream, Windows, choose_packing, encode_texts, epoch_order
from helpers.vocab import tokenizer

TEXTS = [f"第{i}天浇水。\n今天{'很' * (i % 7)}热" for i in range(200)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a corpus of two shards and a small tokenizer."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    corpus = paths.room("t", "corpus")
    corpus.mkdir(parents=True)
    for name, texts in (("train-00000", TEXTS[:120]), ("train-00001", TEXTS[120:190]), ("val-00000", TEXTS[190:])):
        lines = (json.dumps({"text": text, "source": "t"}, ensure_ascii=False) + "\n" for text in texts)
        (corpus / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    tokenizer.build({"浇水": 9, "今天": 5}, set("".join(TEXTS))).save_pretrained(paths.room("t", "vocab"))
    return "t"


def write(run: str, num_pieces: int) -> TokenStream:
    write_shards(run, num_pieces, workers=1)
    return TokenStream(run, "train", "uint16")


def test_every_document_comes_back_from_the_shards(run):
    """The book joined ids without a blank, so that a shard was one number; here each document is found again."""
    stream, tok = write(run, 5), tokenizer.load(paths.room(run, "vocab"))
    ends = [*stream.documents[1:], len(stream)]
    for text, start, end in zip(TEXTS[:190], stream.documents, ends, strict=True):
        ids = stream.read(int(start), int(end)).tolist()
        assert (ids[0], ids[-1]) == (tok.bos_token_id, tok.eos_token_id)
        assert tokenizer.decode(tok, ids[1:-1]) == text


@pytest.mark.parametrize("num_pieces", [1, 2, 7, 500])
def test_the_stream_does_not_depend_on_the_number_of_shards(run, num_pieces):
    whole = write(run, 1)
    ids, documents = whole.read(0, len(whole)), whole.documents
    cut = write(run, num_pieces)
    assert len(cut.shards) == min(num_pieces, 190)
    np.testing.assert_array_equal(cut.read(0, len(cut)), ids)
    np.testing.assert_array_equal(cut.documents, documents)


def test_workers_write_the_same_bytes(run, monkeypatch):
    monkeypatch.setattr(shards, "_PART_BYTES", 1000)  # so that there is work for both of them
    started, executor = [], shards.parallel.executor
    monkeypatch.setattr(shards.parallel, "executor", lambda n, cluster: started.append(n) or executor(n, cluster))
    written = []
    for workers in (1, 2):
        write_shards(run, 3, workers)
        written.append({file.name: file.read_bytes() for file in paths.room(run, "tokenize").iterdir()})
    assert written[0] == written[1] and len(written[0]) == 8
    assert started == [1, 2]


def test_a_small_corpus_starts_no_process_and_a_cluster_is_passed_on(run, monkeypatch):
    started, executor = [], shards.parallel.executor
    monkeypatch.setattr(shards.parallel, "executor", lambda *given: started.append(given) or executor(1))
    write_shards(run, 3, workers=8, cluster="tcp://there:8786")
    assert started == [(1, "tcp://there:8786")]


def test_old_shards_are_removed(run):
    write(run, 7)
    assert len(write(run, 2).shards) == 2


@pytest.mark.parametrize("part_bytes", [1, 700, 2**22])
@pytest.mark.parametrize("num_pieces", [2, 5])
def test_shards_are_balanced_by_tokens(run, monkeypatch, num_pieces, part_bytes):
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
    texts = [*TEXTS[:190], *(document["text"] for document in english)]
    assert sum(fact["characters"] for fact in facts) == sum(map(len, texts))
    assert sum(fact["documents"] for fact in facts) == len(texts)
    at = 0
    for fact in facts:  # each shard's facts are those of its own documents
        assert fact["characters"] == sum(map(len, texts[at : at + fact["documents"]]))
        at += fact["documents"]


def test_a_document_longer_than_a_shard_is_not_torn(run):
    (paths.room(run, "corpus") / "train-00000.jsonl").write_text(json.dumps({"text": "浇水" * 9000}) + "\n", "utf-8")
    facts = write_shards(run, 8, workers=1)["train"]
    stream = TokenStream(run, "train", "uint16")
    assert facts[0]["documents"] == 1 and facts[0]["tokens"] == 9002
    assert [len(shard) for shard in stream.shards] == [fact["tokens"] for fact in facts]
    assert len(stream.documents) == 71 and stream.read(0, 1)[0] == stream.read(9002, 9003)[0]


def test_nothing_is_left_of_the_work_but_shards(run):
    write_shards(run, 3, workers=1)
    assert {file.suffix for file in paths.room(run, "tokenize").iterdir()} == {".bin", ".npy"}


SLOWLY = """
import time
from helpers.tokens import shards
shards._PART_BYTES, quick = 1000, shards._documents
shards._documents = lambda *given: (time.sleep(0.1), quick(*given))[1]
shards.write_shards("t", 3, workers=1)
"""


@pytest.mark.parametrize("changed", [False, True])
def test_a_killed_run_goes_on_with_its_finished_parts(run, monkeypatch, changed):
    """Kill −9 between two parts: the rest is encoded, the bytes are those of a whole run; of another text, all anew."""
    folder = paths.room(run, "tokenize")
    process = subprocess.Popen([sys.executable, "-c", SLOWLY])
    deadline = time.monotonic() + 60
    while len(list(folder.glob("parts/*/*.npy"))) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    if changed:
        shard = paths.shards(run, "corpus", "train", ".jsonl")[0]
        shard.write_bytes(shard.read_bytes().replace("很".encode(), "真".encode()))
    encoded, documents = [], _documents
    monkeypatch.setattr(shards, "_PART_BYTES", 1000)
    monkeypatch.setattr(shards, "_documents", lambda *given: encoded.extend(given[1]) or documents(*given))
    written = []
    for _ in range(2):
        write_shards(run, 3, workers=1)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1] and not (folder / "parts").exists()
    first = len(encoded) - len(TEXTS)  # the second time all were encoded
    assert first == len(TEXTS) if changed else 0 < first <= len(TEXTS) - 3


def test_texts_in_memory_are_the_stream_of_their_shards(run):
    stream, tok = write(run, 3), tokenizer.load(paths.room(run, "vocab"))
    memory = encode_texts(tok, TEXTS[:190])
    np.testing.assert_array_equal(memory.read(0, len(memory)), stream.read(0, len(stream)))
    np.testing.assert_array_equal(memory.documents, stream.documents)


def test_dtype_holds_every_id():
    assert dtype_for(65536) == "uint16"
    assert dtype_for(65537) == "uint32"


class Counting:
    """A stand-in stream whose ids are their own positions."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.size), dtype=np.int64)


@given(st.integers(2, 200), st.integers(1, 40), st.data())
def test_windows_hold_every_answer(size, n_ctx, data):
    """No tail is dropped and no window is ragged (the book announced 5 steps, ran 0, and saved the model)."""
    stride = data.draw(st.integers(1, n_ctx))
    answers, scored = Counter(), Counter()
    windows = Windows(Counting(size), n_ctx, stride, pad_id=-7)
    once = Windows(Counting(size), n_ctx, stride, pad_id=-7, once=True)
    for i in range(len(windows)):
        inputs, labels = windows[i]
        assert inputs.shape == labels.shape == (n_ctx,)
        real = labels != IGNORE
        assert real.any()
        np.testing.assert_array_equal(inputs[real] + 1, labels[real])
        assert (inputs[~real] == -7).all()
        answers.update(labels[real].tolist())
        scored.update(once[i][1][once[i][1] != IGNORE].tolist())
    assert set(answers) == set(range(1, size))
    assert scored == Counter(range(1, size))
    if stride == n_ctx:
        assert answers == Counter(range(1, size))
    part = once.first(2)
    assert len(part) == min(2, len(once))
    assert part.answers == sum(int((part[i][1] != IGNORE).sum()) for i in range(len(part)))


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_that_leaves_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match="stride"):
        Windows(Counting(50), 8, stride, 0)


@given(st.lists(st.integers(2, 60), min_size=1, max_size=20), st.integers(1, 40), st.data())
def test_windows_over_documents_hold_every_answer_of_one_document(sizes, n_ctx, data):
    """A window never holds two documents, each document is seen from its start, and no answer is lost."""
    stride = data.draw(st.integers(1, n_ctx))
    stream = Counting(sum(sizes))
    stream.documents = np.cumsum([0, *sizes[:-1]])
    windows = Windows(stream, n_ctx, stride, pad_id=-7, packing="documents")
    once = Windows(stream, n_ctx, stride, pad_id=-7, packing="documents", once=True)
    answers, scored = set(), Counter()
    for i in range(len(windows)):
        inputs, labels = windows[i]
        real = labels != IGNORE
        assert real.sum() == windows.lengths[i] > 0
        document = np.searchsorted(stream.documents, inputs[real], side="right")
        assert len({*document, *np.searchsorted(stream.documents, labels[real], side="right")}) == 1
        answers.update(labels[real].tolist())
        scored.update(once[i][1][once[i][1] != IGNORE].tolist())
    wanted = set(range(sum(sizes))) - set(stream.documents.tolist())  # a document's start is nobody's answer
    assert answers == wanted
    assert scored == Counter(wanted)
    assert windows.answers == len(wanted)
    assert set(stream.documents.tolist()) <= set(windows.starts.tolist())


def test_a_batch_is_as_wide_as_its_longest_window():
    stream = Counting(60)
    stream.documents = np.array([0, 5, 25])
    windows = Windows(stream, 32, 32, pad_id=-7, packing="documents")
    inputs, labels = windows.batch([0, 1])
    assert inputs.shape == labels.shape == (2, 24)  # 19 answers, in eights
    assert (labels[0, 4:] == IGNORE).all() and (labels[1, 19:] == IGNORE).all()
    assert windows.batch([2, 3])[0].shape == (2, 32)


def test_packing_suits_the_documents(run):
    stream = write(run, 2)
    assert choose_packing("auto", stream, 64) == "documents"
    assert choose_packing("auto", stream, 4) == "stream"
    with pytest.raises(ValueError, match="packing"):
        choose_packing("tetris", stream, 4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=500), st.integers(0, 2**32), st.integers(0, 50))
def test_order_visits_each_window_once(lengths, seed, epoch):
    first = epoch_order(np.array(lengths), seed, epoch)
    assert sorted(first) == list(range(len(lengths)))
    np.testing.assert_array_equal(first, epoch_order(np.array(lengths), seed, epoch))


def test_epochs_have_different_orders():
    lengths = np.full(100, 7)
    assert (epoch_order(lengths, 0, 0) != epoch_order(lengths, 0, 1)).any()


def test_batches_hold_little_padding():
    lengths = np.random.default_rng(0).integers(10, 100, 10_000)
    ordered = lengths[epoch_order(lengths, 0, 0)]
    padded = sum(len(batch) * batch.max() for batch in np.split(ordered, range(32, len(ordered), 32)))
    assert lengths.sum() > 0.95 * padded
