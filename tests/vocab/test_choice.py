"""Room 02: what "auto" and 0 become, for the built-in corpus and for any other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.vocab.choice import ENOUGH, choose_kind, choose_sizes, kind_of_word_file
from helpers.vocab.tokenizer import TOKEN_KINDS


def test_words_where_the_list_covers_new_text_else_characters():
    """Figures of benchmarks/reports: prose is covered to nine tenths, verse to three quarters."""
    assert [choose_kind("auto", share, 1_800_000) for share in (1.0, 0.89, ENOUGH, 0.77, 0.0)] == [
        "words", "words", "words", "characters", "characters",
    ]  # fmt: skip
    assert [choose_kind("auto", 0.5, characters) for characters in (9_767, 300_046, 718_916)] == [
        "words", "words", "characters",
    ]  # fmt: skip
    assert [choose_kind(kind, 0.0, 1) for kind in TOKEN_KINDS] == list(TOKEN_KINDS)
    with pytest.raises(ValueError, match="morphemes"):
        choose_kind("morphemes", 0.5, 1)


@pytest.mark.parametrize("characters", [20_000, 1_600_000])
def test_the_built_in_corpus_has_the_same_numbers_whatever_part_of_it_is_taken(characters):
    assert choose_sizes(0, 0, characters, built_in=True) == (8000, 1)


@given(st.integers(0, 50_000), st.integers(0, 9), st.integers(1, 10**10), st.booleans())
def test_what_is_given_stays_and_nothing_is_left_open(size, fewest, characters, built_in):
    found = choose_sizes(size, fewest, characters, built_in)
    assert all(found) and found[0] in (size or found[0],) and found[1] in (fewest or found[1],)


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_a_larger_corpus_never_gets_a_smaller_vocabulary_nor_keeps_rarer_characters(characters, times):
    small, large = (choose_sizes(0, 0, size, False) for size in (characters, characters * times))
    assert small[0] <= large[0] and small[1] <= large[1]


@pytest.mark.parametrize(
    ("given", "words"), [(("bpe", ""), "kind is 'bpe'"), (("words", "some/model"), "pretrained_model are both given")]
)
def test_a_list_beside_another_vocabulary_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        kind_of_word_file(*given)
    assert kind_of_word_file("auto", "") == kind_of_word_file("words", "") == "words"
