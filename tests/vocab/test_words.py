"""words: segmentation without loss, counts that do not depend on the workers, the word list, agreement."""

import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import pytest
import thulac
from hypothesis import given
from hypothesis import strategies as st
from thulac.base import Dat
from thulac.character import CBModel
from thulac.manage.Preprocesser import Preprocesser

from helpers import parallel
from helpers.vocab import words
from helpers.vocab.segment_cache import SegmentCache
from helpers.vocab.words import _thulac_model, choose_words, count_words, segment

# a stand-in for thulac: cuts without loss, loads nothing, and travels to worker processes
WORDS = re.compile("绿萝|叶子|发黄|浇水|[A-Za-z]+|[0-9]+|.", re.DOTALL)
stand_in = WORDS.findall
TEXTS = ["绿萝的叶子发黄怎么办？\n少浇水。", "绿萝怎么浇水？\n少浇水。", "Pothos 和 pothos，25度\n\n少浇水。"]


@pytest.fixture
def model(monkeypatch):
    """What thulac does to a text, in small: greets on loading, swallows repeated blanks, breaks on a long text."""

    class Model:
        def __init__(self, seg_only):
            print("Model loaded succeed")
            self.busy = False

        def cutline(self, text):
            assert len(text) < 50_000
            assert not self.busy, "two threads inside thulac at once"
            self.busy = True
            time.sleep(0)
            self.busy = False
            return iter(stand_in(re.sub(r"([ \u3000])[ \u3000]+", r"\1", text)))

    monkeypatch.setattr(words.thulac, "thulac", Model)
    _thulac_model.cache_clear()
    yield Model
    _thulac_model.cache_clear()


def test_segment_is_silent_and_keeps_every_space(model, capsys):
    text = "  绿萝\u3000\u3000叶子\t\n\n 发黄  "
    assert segment(text) == [*"  ", "绿萝", *"\u3000\u3000", "叶子", *"\t\n\n ", "发黄", *"  "]
    assert capsys.readouterr() == ("", "")


def test_segment_loses_nothing(model):
    @given(st.text(st.sampled_from("绿萝叶子 \u3000\n\t\r\x00\x1c\u2028a1，。😀\u0301[<"), max_size=40))
    def check(text):
        assert "".join(segment(text)) == text

    check()
    check.hypothesis.inner_test("绿萝" * 60_000)  # longer than thulac can hold


def test_a_sentence_that_fails_is_an_error_and_not_one_long_word(model, monkeypatch):
    def fail(self, text):
        raise IndexError("inside thulac")

    monkeypatch.setattr(model, "cutline", fail)
    with parallel.executor(1) as pool, pytest.raises(IndexError, match="inside thulac"):
        count_words(TEXTS, pool)
    monkeypatch.setattr(model, "cutline", lambda self, text: [text[:-1]])
    with pytest.raises(RuntimeError, match="浇水"):
        segment("浇水")


def test_threads_load_one_model_and_enter_it_one_at_a_time(model):
    loaded, original = [], model.__init__

    def slow(self, seg_only):
        loaded.append(threading.get_ident())
        time.sleep(0.05)
        original(self, seg_only)

    model.__init__ = slow
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(segment, ["绿萝 叶子"] * 200)) == [["绿萝", " ", "叶子"]] * 200
    assert len(loaded) == 1


REAL = {  # as people cut them; thulac 0.2.2 as published cuts through each word in the first column
    "什么": "什么 时候 了解 这个 目的",
    "国家": "我 的 国家 和 大家 的 价格 一般",
    "罗马": "罗马 连续 下雨 ， 阿姨 怎么 不 来",
    "否定": "未来 的 原则 是 否定 的 也许",
    "大家": "请教 大家 ， 他 来 了 吗 ？",
}


def test_the_real_thulac_finds_words_that_as_published_it_never_can():
    """Its list of punctuation marks holds 50 Chinese characters; the marks in it still are words of their own."""
    _thulac_model.cache_clear()
    assert {word: segment(sentence.replace(" ", "")) for word, sentence in REAL.items()} == {
        word: sentence.split() for word, sentence in REAL.items()
    }
    published = Preprocesser()
    assert published.isOther(ord("么")) and published.isOther(ord("，"))
    words._mend(published.otherSet)
    assert not published.isOther(ord("么")) and published.isOther(ord("，")) and published.isOther(ord("%"))
    _thulac_model.cache_clear()


def test_the_real_thulac_is_loaded_in_four_bytes_a_number_and_these_are_its_own():
    models = Path(thulac.__file__).parent / "models"
    trie, weights = models / "cws_dat.bin", models / "cws_model.bin"
    with words._compact():
        ours, our_model = Dat.Dat(str(trie)), CBModel.CBModel(str(weights))
    theirs, their_model = Dat.Dat(str(trie)), CBModel.CBModel(str(weights))
    with pytest.raises(ValueError, match="install thulac again"):
        words._unpack("<2i", bytes(7))
    assert isinstance(theirs.dat, tuple) and tuple(ours.dat) == theirs.dat and ours.dat.nbytes == trie.stat().st_size
    assert tuple(our_model.ll_weights) == their_model.ll_weights and our_model.f_size == their_model.f_size
    assert tuple(our_model.fl_weights) == their_model.fl_weights and our_model.fl_weights.itemsize == 4


@pytest.mark.parametrize("workers, block", [(1, 1), (1, 100), (1, 4_000_000), (2, 4_000_000)])
def test_counts_are_those_of_a_plain_loop_for_any_workers_and_blocks(monkeypatch, tmp_path, workers, block):
    monkeypatch.setattr(words, "_BLOCK_CHARACTERS", block)
    texts = TEXTS * 3 + [f"第{i}天，绿萝浇水{i % 7}次。" for i in range(3000 if block > 100 else 9)]  # several chunks
    expected = Counter(word for text in texts for word in stand_in(text))
    with parallel.executor(workers) as pool:
        for cache in (None, SegmentCache(tmp_path / "cuts.sqlite")):
            assert count_words(texts, pool, segmenter=stand_in, cache=cache) == expected


def test_each_distinct_line_is_segmented_once_and_never_again_with_a_cache(tmp_path):
    seen = []

    def segmenter(line):
        seen.append(line)
        return stand_in(line)

    how = {"segmenter": segmenter, "cache": SegmentCache(tmp_path / "cuts.sqlite")}
    with parallel.executor(1) as pool:
        counts = count_words(["少浇水。\n"] * 500 + TEXTS, pool, **how)
        assert len(seen) == len(set(seen)) == 6 and counts["浇水"] == 504
        assert count_words(TEXTS[::-1], pool, **how) == count_words(TEXTS, pool, "", stand_in)
        assert words.segment_texts(TEXTS * 9, pool, **how) == [stand_in(text) for text in TEXTS] * 9
        count_words([*TEXTS, "新的一行\n少浇水。"], pool, **how)
    assert seen[6:] == ["新的一行\n"]


def test_too_many_different_words_cost_the_rarest(monkeypatch):
    monkeypatch.setattr(words, "_MOST_WORDS", 50)
    monkeypatch.setattr(words, "_BLOCK_CHARACTERS", 100)
    texts = [f"浇水{i}次浇水\n叶子{i}" for i in range(400)]
    with parallel.executor(1) as pool:
        counts = count_words(texts, pool, segmenter=stand_in)
    assert counts["浇水"] == 800 and counts["叶子"] == counts["次"] == 400
    assert len(counts) < 100


def test_rjieba_finds_words():
    assert words.segment_rjieba("我们  怎么浇水\n") == ["我们", " ", " ", "怎么", "浇水", "\n"]
    assert "".join(words.segment_rjieba("a" * 100_000)) == "a" * 100_000


def test_segmenters_go_by_name_travel_to_processes_and_keep_their_cuts_apart():
    both = {name: words.get_segmenter(name) for name in ("thulac", "rjieba")}
    assert both["thulac"][0] is segment
    assert all(getattr(words, cut.__qualname__) is cut for cut, _ in both.values())  # a process finds it by its name
    assert both["thulac"][1].path.name == f"thulac-{metadata.version('thulac')}-mended.sqlite"
    assert both["thulac"][1].path != both["rjieba"][1].path
    with pytest.raises(ValueError, match="choose thulac or rjieba"):
        words.get_segmenter("jieba")


@given(st.lists(st.text("字", max_size=30)), st.floats(0.01, 1))
def test_a_sample_is_spread_evenly_over_the_corpus(texts, share):
    texts = [f"{i}{text}" for i, text in enumerate(texts)]
    taken = list(words.sample_texts(texts, share))
    assert sorted(set(taken), key=texts.index) == taken
    longest = max(map(len, texts), default=0)
    for end in range(len(texts) + 1):  # at every place so far
        so_far = sum(len(text) for text in texts[:end] if text in taken)
        assert abs(so_far - share * sum(map(len, texts[:end]))) <= longest
    assert list(words.sample_texts(texts, 1.0)) == texts


def test_words_are_the_commonest_and_ties_follow_the_code_points():
    counts = {"乙": 2, "甲": 2, "绿萝": 9, "\n": 50, "a b": 50, "很长" * 7: 50, "一": 1}
    assert list(choose_words(counts, 10).items()) == [("绿萝", 9), ("乙", 2), ("甲", 2), ("一", 1)]
    assert list(choose_words(dict(reversed(counts.items())), 2)) == ["绿萝", "乙"]
    assert list(choose_words(counts, 10, min_count=2)) == ["绿萝", "乙", "甲"]
    assert "很长" * 7 in choose_words(counts, 10, max_word_length=14)


@pytest.mark.parametrize("bad", [{"vocab_size": -1}, {"min_count": 0}, {"max_word_length": 0}])
def test_sizes_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="=".join(map(str, *bad.items()))):
        choose_words({"绿萝": 1}, **{"vocab_size": 5, **bad})


def test_characters_are_weighted_by_their_words_and_coverage_counts_running_words_and_no_spaces():
    assert words.count_characters({"绿萝": 3, "绿": 2, "\n": 1}) == {"绿": 5, "萝": 3, "\n": 1}
    assert words.coverage({"绿萝": 3, "浇水": 1, "\n": 100, " ": 7}, ["绿萝"]) == 0.75
    assert words.coverage({"\n": 5}, ["绿萝"]) == 1.0


@given(st.sets(st.integers(1, 29)), st.sets(st.integers(1, 29)))
def test_boundary_f1_is_the_harmonic_mean_of_precision_and_recall(ours, theirs):
    pieces = [["x" * (end - start) for start, end in pairwise([0, *sorted(cuts), 30])] for cuts in (ours, theirs)]
    precision = len(ours & theirs) / len(ours) if ours else 1
    recall = len(ours & theirs) / len(theirs) if theirs else 1
    expected = 2 * precision * recall / (precision + recall) if precision + recall else 0
    assert words.boundary_f1(pieces[:1], pieces[1:]) == pytest.approx(expected)
    with pytest.raises(ValueError, match="different texts"):
        words.boundary_f1(pieces[:1], [["浇水"]])


def test_differences_are_the_shortest_stretches_cut_differently():
    ours = [["归来", "也", "，", "一", "片"], ["甲", "乙丙"], [], ["同"]]
    theirs = [["归", "来", "也", "，", "一片"], ["甲乙", "丙"], [], ["同"]]
    assert words.count_differences(ours, theirs) == {
        (("归来",), ("归", "来")): 1,
        (("一", "片"), ("一片",)): 1,
        (("甲", "乙丙"), ("甲乙", "丙")): 1,
    }


@pytest.mark.parametrize("characters, taken", [(3, ["ab", "cd"]), (100, ["ab", "cd", "ef"]), (0, [])])
def test_take_stops_at_a_whole_document(characters, taken):
    assert words.take_texts(iter(["ab", "cd", "ef"]), characters) == taken


def test_the_word_file_has_one_word_a_line(tmp_path):
    words.write_words(tmp_path / "vocab_user.txt", ["<pad>", "绿萝", "，", "a\x00b"])
    assert (tmp_path / "vocab_user.txt").read_bytes() == "<pad>\n绿萝\n，\na\x00b\n".encode()
    for word in ("绿\n萝", "a b", "", "\u2028"):
        with pytest.raises(ValueError, match="word 2"):
            words.write_words(tmp_path / "bad.txt", ["绿萝", word])
