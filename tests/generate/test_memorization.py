"""Every stretch that stands in the training text, against a search with `in`; diversity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.generate.memorization import Index, Stretch, distinct_share

# few characters, so that much repeats; of one to four bytes, some of which share their first bytes
LETTERS = st.sampled_from("aé一丁七𠮷𠮸\n\x00\ud800")
TEXTS = st.lists(st.text(LETTERS, max_size=12), max_size=6)


def naive(texts: list[str], text: str) -> list[int]:
    """How far from each place on the text stands in one of the texts."""
    return [
        max((n for n in range(len(text) - i + 1) if any(text[i : i + n] in each for each in texts)), default=0)
        for i in range(len(text))
    ]


@hypothesis_settings(max_examples=400)
@given(texts=TEXTS, text=st.text(LETTERS, max_size=16), n=st.integers(1, 5))
def test_it_finds_what_a_plain_search_finds(texts, text, n):
    copied = Index(texts).copied(text, n)
    lengths = naive(texts, text)
    assert copied.longest == max(lengths, default=0)
    grams = [text[i : i + n] for i in range(len(text) - n + 1)]
    assert copied.ngrams == len(grams)
    assert copied.known == sum(any(gram in each for each in texts) for gram in grams)
    assert copied.share == (copied.known / len(grams) if grams else 0)

    expected = []
    for i, length in enumerate(lengths):
        before = i > 0 and any(text[i - 1 : i + length] in each for each in texts)  # could begin earlier: not maximal
        if length >= n and not before:
            stretch = text[i : i + length]
            times = sum(each.startswith(stretch, at) for each in texts for at in range(len(each)))
            document = next(number for number, each in enumerate(texts) if stretch in each)
            expected.append(Stretch(i, i + length, document, times))
    assert copied.stretches == tuple(expected)


@hypothesis_settings(max_examples=50)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300))
def test_long_stretches_are_found_whole(head, start, length):
    """Longer than the first look: the look widens until the match ends."""
    chance = np.random.default_rng(0)
    letters = [chr(point) for point in range(0x4E00, 0x9FA0) if chr(point) not in "好别的"]
    source = "".join(chance.choice(letters, size=600, replace=False))  # each once: also one letter is found once
    stretch = source[start : start + length]
    text = "好" * head + stretch + "！"
    copied = Index(["别的", source]).copied(text, n=length)
    assert copied.longest == len(stretch)
    assert [(s.start, s.end, s.document, s.times) for s in copied.stretches if len(s) == length] == [
        (head, head + length, 1, 1)
    ]
    assert copied.known == 1 and len(copied.stretches[0]) == length


@pytest.mark.parametrize(("limit", "held"), [(0, 1), (6, 1), (17, 1), (18, 2)])
def test_texts_are_held_whole_up_to_the_limit(limit, held):
    """They have 5 and 11 bytes, and a border each."""
    index, texts = Index(["a𠮷", "春眠é不"], limit), ["a𠮷", "春眠é不"]
    assert index.documents == held and index.whole == (held == 2)
    assert all(index.copied(text).longest == len(text) for text in texts[:held])


def test_memory_is_bounded_by_the_limit_and_that_is_said():
    """The texts after the one that crosses the limit are not even read."""

    def endless():
        while True:
            yield "春眠不觉晓"  # 15 bytes and a border

    index = Index(endless(), limit=100)
    assert (index.documents, index.characters, index.whole) == (6, 30, False)


def test_the_share_of_different_pieces_counts_all_texts_together():
    assert distinct_share(["一二一二", "一二"], 2) == 2 / 4 and distinct_share(["一", ""], 2) == 1
