"""Lines that repeat across a corpus: advertisements and page numbers are found wherever they stand, no other line."""

import json
from collections import Counter

import pytest
from corpora import SENTENCE, all_texts, build
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import cleaning, dedup, partition

AD = "更多好书请访问 www.example.com"
# lines, and what those that may be dirt are counted as
MARKED = {AD: AD, "第 7 页": "第 0 页", "第 8 页": "第 0 页", "- 9 -": "- 0 -", "更多 http://a.cn": "更多 http://a.cn"}
LINES = ["归去来兮！", "谢谢", "好的", "第一章", "", "2", "……", SENTENCE, *MARKED]


def find(*parts):
    """Return the keys of the lines that repeat in parts, each a list of documents."""
    characters = sum(len(text) for texts in parts for text in texts)
    return frozenset().union(*dedup.find_repeated(list(map(dedup.count_places, parts)), characters))


def strip_repeats(texts):
    counts, examples = Counter(), {}
    repeated = find(texts)
    return [cleaning.without_lines(text, repeated, counts, examples) for text in texts], counts, examples


def test_advertisements_and_page_rulers_go_when_they_repeat():
    ads = [AD, "最新章节 http://a.org/1.html 抢先看", "第 {} 页", "------ Page {} ------", "- {} -", "＝"]
    texts = [f"第{n}篇，{SENTENCE}\n" + "\n".join(ad.format(n) for ad in ads) + f"\n{SENTENCE}" for n in range(4)]
    cleaned, counts, examples = strip_repeats(texts)
    assert cleaned == [f"第{n}篇，{SENTENCE}\n＝\n{SENTENCE}" for n in range(4)]
    assert counts == {"repeated lines": 4 * 5}
    assert examples["repeated lines"][0] == (AD, "")


@pytest.mark.parametrize(
    "line",
    "归去来兮！ 好的 谢谢！ 旁白： 第一章 第3章 …… *** 2 （一） |-----|-----| --- 翻到第3页，看叶子。 1/2 ======"
    " ------ 见https://example.org/abs/23.1 [题](https://a.cn) <https://b.cn> logger.info(下) url:'http://c.cn'".split(),
)
def test_refrains_formulas_headings_and_separators_may_repeat(line):
    texts = [f"{SENTENCE}{n}\n{line}\n{SENTENCE}" for n in range(30)]
    assert strip_repeats(texts)[0] == texts
    assert not cleaning.candidates(line)


def test_in_a_large_corpus_more_places_are_needed(monkeypatch):
    texts = [f"{SENTENCE * 8}{n}\n{AD if n % 25 == 0 else ''}" for n in range(100)]  # 4 places in 12,000 characters
    for sparse, found in ((30_000_000, 1), (2500, 1), (2000, 0)):
        monkeypatch.setattr(dedup, "SPARSE", sparse)
        assert len(find(texts)) == found


documents = st.lists(st.lists(st.sampled_from(LINES), max_size=6).map("\n".join), max_size=8)


@given(documents)
def test_no_other_line_is_changed(texts):
    """An independent count, line by line; all that is no candidate, and all that is rare, stays as it was."""
    places: dict = {}  # (line, the rest of its document) -> places; of several documents with this rest, the most
    alone = Counter()
    for text in texts:
        lines = text.split("\n")
        rest = "\n".join(line for line in lines if line not in MARKED).strip()
        for shape, count in Counter(MARKED[line] for line in lines if line in MARKED).items():
            alone[shape] += 0 if rest else count
            places[shape, rest] = max(places.get((shape, rest), 0), count if rest else 0)
    for (shape, _), count in places.items():
        alone[shape] += count
    dirt = {shape for shape, count in alone.items() if count >= dedup.REPEATS}
    cleaned, counts, _ = strip_repeats(texts)
    kept = [[line for line in text.split("\n") if MARKED.get(line) not in dirt] for text in texts]
    assert [text.strip("\n") for text in cleaned] == ["\n".join(lines).strip("\n") for lines in kept]
    assert counts["repeated lines"] == sum(MARKED.get(line) in dirt for text in texts for line in text.split("\n"))


@given(documents, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_parts_change_nothing(texts, chance, parts):
    shuffled = chance.sample(texts, len(texts))
    assert find(texts) == find(*(shuffled[start::parts] for start in range(parts)))


# ---- in a corpus ----


def advertised(n):
    """Return a document with a refrain and a formula, and every hundredth time with an advertisement, and without."""
    lines = [f"第{n}篇", SENTENCE, "归去来兮！", "谢谢", SENTENCE]
    kept = "\n".join(lines)
    if n % 100 == 0:
        lines.insert(n // 100 % 6, AD)
    if n % 1000 == 0:
        lines.append(f"我的主页 http://home.example.cn/{'abcd'[n // 1000]}")  # each stands there once
        kept += "\n" + lines[-1]
    return "\n".join(lines), kept


def test_an_advertisement_in_every_hundredth_document_is_found(raw, monkeypatch):
    """A count that starts anew with each batch sees it once or twice."""
    monkeypatch.setattr(partition, "BATCH", 5000)  # 100 documents
    monkeypatch.setattr(partition, "TASK_BYTES", 60_000)
    texts = [advertised(n)[0] for n in range(4000)]
    (raw / "a.jsonl").write_text("\n".join(map(json.dumps, texts[::2])), "utf-8")
    (raw / "b.txt").write_text("\n\n".join(texts[1::2]), "utf-8")
    report = build(raw, document="block")
    assert all_texts() == sorted(advertised(n)[1] for n in range(4000))
    assert report.rules["repeated lines"] == 40
    assert report.examples["repeated lines"] == [(AD, "")] * cleaning.EXAMPLES
    assert report.documents == 4000 == sum(file.documents for file in report.files)
    assert build(raw, document="block", rules="-repeated lines").rules["repeated lines"] == 0
