"""windows: every answer is in a window, padding is masked, a batch is narrow, an epoch visits each window once."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.manifest import RoomError
from helpers.tokens.windows import IGNORE, TokenStream, Windows, choose_n_ctx, choose_packing, encode_texts, epoch_order
from helpers.vocab import tokenizer


def test_texts_in_memory_are_the_stream_of_their_shards(run, texts, write):
    stream, loaded = write(3), tokenizer.load_tokenizer(paths.room(run, "vocab"))
    memory = encode_texts(loaded, texts[:190])
    np.testing.assert_array_equal(memory.read(0, len(memory)), stream.read(0, len(stream)))
    np.testing.assert_array_equal(memory.documents, stream.documents)


class Counting:
    """A stand-in stream of documents of these lengths, whose ids are their own positions."""

    def __init__(self, *lengths: int):
        self.documents, self.size = np.cumsum([0, *lengths[:-1]]), sum(lengths)

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.size), dtype=np.int64)


@given(st.integers(2, 400), st.integers(1, 20), st.integers(1, 500))
def test_windows_spread_over_a_text_stand_for_it(size, n_ctx, answers):
    every = Windows(Counting(size), n_ctx, max(1, n_ctx // 2), pad_id=-7, once=True)
    part = every.spread(answers)
    assert 1 <= len(part) <= len(every) and part.answers == part.count_labels(np.arange(len(part)))
    if answers >= size - 1:
        assert part.starts.tolist() == every.starts.tolist() and part.answers == every.answers == size - 1
    else:
        assert abs(part.answers - answers) <= 2 * n_ctx
        gaps = np.diff(part.starts, append=size)
        assert gaps.min() > 0 and gaps.max() <= 2 * size / len(part) + n_ctx


def test_a_run_without_shards_says_what_to_run(run):
    with pytest.raises(RoomError, match="run notebook 03_tokenize again, or: python -m helpers.run tokenize --run t"):
        TokenStream(run, "train", "uint16")


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_that_leaves_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match="stride"):
        Windows(Counting(50), 8, stride, 0)


@pytest.mark.parametrize("packing", ["stream", "documents"])
@given(st.lists(st.integers(2, 60), min_size=1, max_size=20), st.integers(1, 40), st.data())
def test_windows_hold_every_answer(packing, sizes, n_ctx, data):
    """No tail is dropped and no window is ragged. Over documents none holds two, and each is seen from its start."""
    stride = data.draw(st.integers(1, n_ctx))
    stream = Counting(*sizes)
    windows, once = (Windows(stream, n_ctx, stride, -7, packing, once) for once in (False, True))
    begins = stream.documents if packing == "documents" else np.zeros(1, int)
    answers, scored = Counter(), Counter()
    for i in range(len(windows)):
        inputs, labels = windows[i]
        real = labels != IGNORE
        assert inputs.shape == labels.shape == (n_ctx,) and real.sum() == windows.lengths[i] > 0
        np.testing.assert_array_equal(inputs[real] + 1, labels[real])
        assert (inputs[~real] == -7).all()
        assert len(set(np.searchsorted(begins, [*inputs[real], *labels[real]], side="right"))) == 1
        answers.update(labels[real].tolist())
        scored.update(once[i][1][once[i][1] != IGNORE].tolist())
    wanted = Counter(set(range(sum(sizes))) - set(begins.tolist()))  # a text's start is nobody's answer
    assert answers.keys() == wanted.keys() and scored == wanted and windows.answers == len(wanted)
    assert stride < n_ctx or answers == wanted
    assert set(begins.tolist()) <= set(windows.starts.tolist())
    part = once.first(2)
    assert part.answers == sum(int((part[i][1] != IGNORE).sum()) for i in range(min(2, len(once))))


def test_a_batch_is_as_wide_as_its_longest_window():
    windows = Windows(Counting(5, 20, 35), 32, 32, pad_id=-7, packing="documents")
    inputs, labels = windows.batch([0, 1])
    assert inputs.shape == labels.shape == (2, 24)  # 19 answers, in eights
    assert (labels[0, 4:] == IGNORE).all() and (labels[1, 19:] == IGNORE).all()
    assert windows.batch([2, 3])[0].shape == (2, 32)


@pytest.mark.parametrize(
    ("lengths", "n_ctx"),
    [
        (100 * [20], 64), (100 * [65], 64), (100 * [66], 128), (95 * [100] + 5 * [9000], 128),
        (94 * [100] + 6 * [9000], 128), (10 * [300_000], 128), (10 * [310_000], 256), (20_000 * [200], 256),
        (10 * [3_000_000], 1024), (10**6 * [50], 64), (10**5 * [300], 512),
    ],
)  # fmt: skip
def test_a_window_is_as_long_as_most_documents(lengths, n_ctx):
    """A window of n positions holds n + 1 tokens: the last one is only an answer."""
    assert choose_n_ctx(0, Counting(*lengths)) == n_ctx
    assert choose_n_ctx(100, Counting(*lengths)) == 100


def test_packing_suits_the_documents(write):
    stream = write(2)
    assert choose_packing("auto", stream, 64) == "documents"
    assert choose_packing("auto", stream, 4) == "stream"
    with pytest.raises(ValueError, match="packing"):
        choose_packing("tetris", stream, 4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=500), st.integers(0, 2**32), st.integers(0, 50))
def test_order_visits_each_window_once(lengths, seed, epoch):
    first = epoch_order(np.array(lengths), seed, epoch)
    assert sorted(first) == list(range(len(lengths)))
    np.testing.assert_array_equal(first, epoch_order(np.array(lengths), seed, epoch))
    assert len(lengths) < 50 or (first != epoch_order(np.array(lengths), seed, epoch + 1)).any()


@pytest.mark.parametrize("size", [1, 8, 16, 32])
def test_batches_hold_little_padding(size):
    lengths = np.random.default_rng(0).integers(10, 100, 10_000)
    ordered = lengths[epoch_order(lengths, 0, 0)]
    padded = sum(len(batch) * batch.max() for batch in np.split(ordered, range(size, len(ordered), size)))
    assert lengths.sum() > 0.95 * padded


def test_neighbouring_batches_differ_in_length():
    """Two of them make an update: its mean length varies as that of two batches drawn at random."""
    lengths = np.random.default_rng(0).integers(10, 100, 64_000)
    ordered = lengths[epoch_order(lengths, 0, 0)]
    means = ordered.reshape(-1, 64).mean(1)
    assert means.std() < 0.75 * lengths.std()  # 0.71 for two batches drawn at random; 1 if all had one length
