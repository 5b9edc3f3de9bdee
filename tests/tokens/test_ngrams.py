"""ngrams: what models that only count reach, against plain dictionaries; and their probabilities add up to 1."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tokens import ngrams
from helpers.tokens.windows import Stream

BOS, EOS = 2, 1
ids_ = st.lists(st.integers(0, 5), min_size=2, max_size=60)


def stream(ids) -> Stream:
    return Stream([np.array(ids, np.uint16)], [np.zeros(1, np.int64)])


class Counted:
    """The same models by their definition, one token after the other."""

    def __init__(self, ids: list[int], vocab_size: int):
        self.vocab_size = vocab_size
        self.unigrams = Counter(i for i in ids if i != BOS)
        self.after = defaultdict(Counter)
        for width in (1, 2):
            for at in range(width, len(ids)):
                self.after[tuple(ids[at - width : at])][ids[at]] += 1

    def p(self, context: tuple, answer: int) -> float:
        if not context:
            return (self.unigrams[answer] + 1) / (self.unigrams.total() + self.vocab_size)
        behind = self.after[context]
        shorter = self.p(context[1:], answer)
        if not behind:
            return shorter
        return (behind[answer] + len(behind) * shorter) / (behind.total() + len(behind))


@given(ids_, ids_)
def test_each_answer_has_the_probability_of_a_plain_count(train, held):
    computed = ngrams.ngram_probabilities(stream(train), np.array(held), 6, BOS, EOS)
    model = Counted(train, 6)
    for width, name in enumerate(("unigram", "bigram", "trigram")):
        contexts = [tuple(held[max(0, at - width) : at]) for at in range(len(held))]
        expected = [model.p(contexts[at], held[at]) for at in range(1, len(held)) if held[at] != BOS]
        np.testing.assert_allclose(computed[name], expected, rtol=1e-12)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 4), st.integers(0, 4))
def test_probabilities_add_up_to_one(train, first, second):
    """After each context, seen or not: 4 and 5 never occur, so 5, which is bos and no answer, has what 4 has."""
    held = np.array([i for answer in range(5) for i in (first, second, answer)])
    for name, p in ngrams.ngram_probabilities(stream(train), held, 6, bos_id=5, eos_id=4).items():
        of_answers = p[1::3]
        assert of_answers.sum() + of_answers[4] == pytest.approx(1, abs=1e-12), name


@pytest.mark.parametrize("block, tokens", [(7, 5000), (1000, 5000), (1, 300)])
def test_counting_in_blocks_changes_nothing(monkeypatch, block, tokens):
    chance = np.random.default_rng(0)
    train, held = (chance.integers(0, 9, n) ** 2 // 9 for n in (tokens, 700))
    whole = ngrams.ngram_probabilities(stream(train), held, 9, BOS, EOS)
    monkeypatch.setattr(ngrams, "_BLOCK_TOKENS", block)
    cut = ngrams.ngram_probabilities(stream(train), held, 9, BOS, EOS)
    for name in whole:
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-12)


def test_of_a_very_long_text_a_part_is_counted(monkeypatch):
    chance = np.random.default_rng(0)
    train, held = (chance.integers(0, 9, n) for n in (2000, 500))
    expected = ngrams.baselines(stream(train[:800]), stream(held[:90]), 9, BOS, EOS)
    monkeypatch.setattr(ngrams, "TRAIN_TOKENS", 800)
    monkeypatch.setattr(ngrams, "VAL_TOKENS", 90)
    assert ngrams.baselines(stream(train), stream(held), 9, BOS, EOS) == expected


@given(*[st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=9), min_size=1, max_size=9)] * 2)
def test_one_token_for_start_and_end_is_an_answer_where_it_ends(train, held):
    """As GPT-2 has it: the single tokens get the probabilities that they have with a start of its own."""
    by_end = {}
    for end in (0, 1):
        streams = [[i for document in documents for i in (0, *document, end)] for documents in (train, held)]
        by_end[end] = ngrams.ngram_probabilities(stream(streams[0]), np.array(streams[1]), 6, 0, end)
    np.testing.assert_allclose(by_end[0]["unigram"], by_end[1]["unigram"], rtol=1e-12)
    assert len(by_end[0]["trigram"]) == len(by_end[1]["trigram"]) == sum(len(document) + 1 for document in held)


def test_a_vocabulary_too_large_to_number_is_refused():
    with pytest.raises(ValueError, match="64-bit"):
        ngrams.ngram_probabilities(stream([1, 2, 3]), np.array([1, 2, 3]), 2**21, BOS, EOS)


def test_ten_tokens_and_none_behind_them():
    losses = ngrams.baselines(stream([1]), stream([1, 3]), 5, BOS, EOS)
    assert losses == {
        "uniform": math.log(5),
        **dict.fromkeys(("unigram", "bigram", "trigram"), pytest.approx(math.log(6))),
    }
