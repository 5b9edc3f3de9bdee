"""Cleaning: what each rule takes out, what it must leave alone, and that cleaning twice changes nothing more."""

import random
import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import cleaning

SENTENCE = "绿萝喜欢散射光，土干了再浇水。"
PROSE = "".join(f"第{n}天，{SENTENCE}\n" for n in range(60))
CHINESE = st.text(
    st.sampled_from("绿萝喜欢散射光，。！？“”《》—…、；：的一是不了人在有我他这個們國𠮷㐂ABCxyz0123.,!?+=%"),
    max_size=60,
)
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
EVERY_RULE = ", ".join(f"+{name}" for name in cleaning.OPTIONAL_RULES if "traditional" not in name)
MARKUP = "&amp; &lt; &#60; <p> </p> <b> </b> <br/> <!-- --> </div> <script> </script> <input> </input> <title> </title>"
DIRT = [*"<>/&;#abp绿 \t\u3000\n\r\u200b\u200d\ufeff\ufffd\ue000\u0301\u0338\xa0\u2028😀-!=\"'", *MARKUP.split()]
DIRTY = st.lists(st.sampled_from([*DIRT, "<div class='x'>", "<td nowrap", "<!doctype html>"]), max_size=30).map("".join)


# ---------------------------------------------------------------- cleaning


@pytest.mark.parametrize(
    ("dirt", "clean", "rule"),
    [
        ("绿\ufeff萝", "绿萝", "BOM in the text"),
        ("绿\u200b萝\u2060", "绿萝", "zero-width"),
        ("绿\u200d萝", "绿萝", "joiners"),
        ("绿\x00萝\x07", "绿萝", "control characters"),
        ("\x1b[31m红\x1b[0m", "红", "terminal colours"),
        ("绿\ue001萝", "绿萝", "private-use characters"),
        ("绿\ufffd萝", "绿萝", "U+FFFD"),
        ("一\u2028二\x85三\r四\r\n五", "一\n二\n三\n四\n五", "line ends"),
        ("<p>一</p><p>二</p>", "一\n二", "HTML tags"),
        ('<a href="/x">链接</a>', "链接", "HTML tags"),
        ("一<hr noshade>二<td nowrap width=9>三</td>", "一\n二\n三", "HTML tags"),
        ('<iframe src="/x" frameborder=0 allowfullscreen></iframe>绿萝', "绿萝", "HTML tags"),
        ('<label for=x>名</label><INPUT name="x" disabled /><button>好</button><s>旧</s>', "名好旧", "HTML tags"),
        (
            '<!DOCTYPE html><html><head><title>绿萝</title><link rel="x"></head><main>浇水</main></html>',
            "绿萝\n\n浇水",
            "HTML tags",
        ),
        ("绿萝&nbsp;&amp;&#32;吊兰", "绿萝 & 吊兰", "HTML entities"),
        ("<!-- 广告 -->绿萝", "绿萝", "HTML comments and scripts"),
        ("<script>if (a<b) {}</script>绿萝", "绿萝", "HTML comments and scripts"),
        ("e\u0301", "é", "NFC"),
        ("\u3000\u3000绿萝\n    吊兰", "绿萝\n吊兰", "indentation"),
        ("绿萝  \n吊兰\u3000", "绿萝\n吊兰", "trailing spaces"),
        ("绿萝    吊兰", "绿萝 吊兰", "repeated spaces"),
        ("绿萝\n\n\n\n\n吊兰", "绿萝\n\n吊兰", "blank lines"),
    ],
)
def test_a_rule_cleans_and_counts(dirt, clean, rule):
    counts = Counter()
    assert cleaning.clean(dirt, counts) == clean
    assert counts[rule] >= 1


@pytest.mark.parametrize(
    "text",
    [
        "若a<b>c且x<y，则A & B。",
        "若a<b and c>d，x<s>t，则<p nowraps>和<a href>。",
        "cat <input> | grep <title>，见 <main>",
        "p < 0.05 且 n > 3",
        "模板用 <think> 和 <tool_call>，还有 <|im_start|>",
        "git clone <path>",
        "?a=1&copy=2&lt=3",
        "AT&T; R&D",
        "第一回　灵根育孕源流出　心性修持大道生",
        "👨\u200d👩\u200d👧 ♥\ufe0f 1\ufe0f\u20e3",
        "می\u200cخواهم",
        "def f(x):\n    if x:\n        return 1",
        "一\n\n二",
        "□缺字□",
    ],
)
def test_text_that_only_looks_like_dirt_stays(text):
    """The book's cleaning threw away what it did not expect; here a character goes only if a rule names it."""
    counts = Counter()
    assert cleaning.clean(text, counts) == text
    assert not counts


@given(st.one_of(ANY, DIRTY))
def test_cleaning_twice_changes_nothing_more(text):
    once = cleaning.clean(text)
    counts = Counter()
    assert cleaning.clean(once, counts) == once
    assert not counts


@given(st.one_of(ANY, DIRTY, st.text("一，。12345678９Ａ:,@a.+-\n", max_size=60)), st.sampled_from(["", EVERY_RULE]))
def test_sparing_rules_changes_nothing(text, rules):
    """Texts skip the rules that start with no character they have: none of those may have had work there."""
    plan = cleaning._plan(cleaning.choose_rules(rules))
    needed = plan.needed(text)
    assert not [rule[0] for number, rule in enumerate(plan.rules) if number not in needed and rule[1].search(text)]


@given(st.lists(CHINESE, max_size=5).map("\n".join))
def test_clean_chinese_comes_back_unchanged(text):
    assert cleaning.clean(text) == re.sub("\n\n\n+", "\n\n", unicodedata.normalize("NFC", text).strip("\n"))


def test_hostile_text_takes_no_time():
    for part in ("<!--", "<script>", "<p ", "&", "<a b=", "<td nowrap ", "<input>", "<!doctype "):
        cleaning.clean(part * 20_000)
    cleaning.clean(" " * 50_000 + "x")
    cleaning.clean("<p" + " nowrap" * 20_000)


@given(st.text("绿萝。\n ！a.", max_size=300), st.integers(1, 50))
def test_cutting_loses_nothing(text, max_length):
    parts = cleaning.cut(text, max_length)
    assert "".join(parts) == text
    assert all(0 < len(part) <= max_length for part in parts) or parts == [""]


def test_cuts_are_at_line_ends_then_sentence_ends():
    assert all(part.endswith("\n") for part in cleaning.cut(PROSE, 200))
    assert all(part.endswith("。") for part in cleaning.cut(PROSE.replace("\n", ""), 200))
    assert min(map(len, cleaning.cut("字" * 2010, 2000))) > 900  # not 2000 and a crumb


# ---------------------------------------------------------------- rules on and off


def clean(text, rules="", counts=None, examples=None):
    return cleaning.clean(text, counts, cleaning.choose_rules(rules), examples)


def test_every_rule_can_be_switched_off_and_then_leaves_its_dirt():
    assert clean("<p>绿萝</p>", "-HTML tags") == "<p>绿萝</p>"
    assert clean("绿\u200b萝<br>", "-zero-width,-HTML tags") == "绿\u200b萝<br>"
    assert clean("e\u0301", "-NFC") == "e\u0301"
    everything_off = ",".join(f"-{name}" for name in cleaning.DEFAULT_RULES)
    dirt = "\u3000\u3000<b>绿\ufeff萝</b>&amp;  e\u0301\xa0\x00 \n\n\n\n吊兰"
    assert clean(dirt, everything_off) == dirt


def test_a_rule_that_does_not_exist_is_refused_with_the_closest_one():
    with pytest.raises(ValueError, match="did you mean 'HTML tags'"):
        cleaning.choose_rules("-HTML tag")
    with pytest.raises(ValueError, match=r"is not \+ or -"):
        cleaning.choose_rules("personal data")
    with pytest.raises(ValueError, match="undo each other"):
        cleaning.choose_rules("+traditional to simplified, +simplified to traditional")
    assert cleaning.choose_rules("") == cleaning.choose_rules(" , ") == set(cleaning.DEFAULT_RULES)


@pytest.mark.parametrize(
    ("rule", "dirt", "clean_text", "places"),
    [
        ("full width", "ＡＢＣ１２３，（ｏｋ）！", "ABC123，（ok）！", 2),
        ("full width", "＆ａｍｐ；", "＆amp；", 1),
        ("half-width punctuation", "好,真的吗?是的!", "好，真的吗？是的！", 3),
        ("half-width punctuation", "见图1:2, a,b 和3.14; x!", "见图1:2, a,b 和3.14; x!", 0),
        ("personal data", "电话13812345678，或138-1234-5678、+86 13812345678。", "电话[电话]，或[电话]、[电话]。", 3),
        ("personal data", "身份证11010519491231002X。", "身份证[身份证]。", 1),
        ("personal data", "邮箱zhang.san@mail.example.com，", "邮箱[邮箱]，", 1),
        # a wrong check character, a 13th month, an order number, a date and time, a version
        ("personal data", "110105194912310021 440105199013310029 2013812345678901 v1.13812345678", None, 0),
        ("personal data", "a@b 和 @某人 x@y.1", None, 0),
    ],
)  # fmt: skip
def test_optional_rules(rule, dirt, clean_text, places):
    counts = Counter()
    assert clean(dirt) == dirt  # off unless asked for
    assert clean(dirt, f"+{rule}", counts) == (clean_text or dirt)
    assert counts[rule] == places
    assert clean(clean_text or dirt, f"+{rule}") == (clean_text or dirt)


def test_traditional_and_simplified():
    pytest.importorskip("opencc")
    counts, examples = Counter(), {}
    assert clean("為什麼頭髮乾燥？", "+traditional to simplified", counts, examples) == "为什么头发干燥？"
    assert counts["traditional to simplified"] >= 5 and examples["traditional to simplified"][0][0].startswith("為")
    assert clean("头发", "+simplified to traditional") == "頭髮"
    assert clean("&#28858;", "+traditional to simplified") == "为"


def test_examples_show_before_and_after_and_what_is_invisible():
    examples = {}
    for n in range(5):
        clean(f"第{n}盆绿\u200b萝<br/>浇水", examples=examples)
    assert len(examples["zero-width"]) == cleaning.EXAMPLES
    before, after = examples["zero-width"][0]
    assert "绿\\u200b萝" in before and "绿萝" in after
    assert examples["HTML tags"][0] == ("第0盆绿萝<br/>浇水", "第0盆绿萝\\n浇水")


# ---------------------------------------------------------------- hard wraps

_CLAUSES = (
    "那盆绿萝放在北窗台上已经有三年了 从来没有人认真管过它 可是它总是自己长得很好 藤蔓垂下来快要碰到地面 "
    "有一天来了一位客人 他问能不能剪一枝带走 主人马上拿来一把剪刀 从那以后家里常常少一枝 插在水里也能活 "
    "过不了多久就生出白色的根来 冬天屋里太干 叶尖慢慢变黄 邻居说要多喷水 其实换个地方就行"
).split()


def paragraph(seed, clauses):
    """Return prose without a period: clauses in a random order, full stops here and there."""
    choice = random.Random(seed)
    ends = ["，", "，", "，", "。"]
    text = "".join(choice.choice(_CLAUSES) + str(n) * (n % 2) + choice.choice(ends) for n in range(clauses))
    return text.rstrip("，。") + "。"


NOVEL = [paragraph(n, clauses) for n, clauses in enumerate((19, 14, 23, 1))]


def wrapped(paragraphs, width, indent):
    lines = []
    for paragraph in paragraphs:
        text = indent + paragraph
        lines += [text[at : at + width] for at in range(0, len(text), width)]
    return "\n".join(lines)


@given(st.integers(20, 40), st.permutations(NOVEL), st.sampled_from([" ", ""]))
def test_hard_wrapped_prose_becomes_paragraphs_again(width, paragraphs, trailing):
    text = wrapped(paragraphs, width, "\u3000\u3000").replace("\n", trailing + "\n")
    counts = Counter()
    once = cleaning.clean(text, counts)
    assert once == "\n".join(paragraphs)
    assert counts["hard wraps"] == text.count("\n") - 3
    assert cleaning.clean(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(
            ["明月几时有，把酒问青天。不知天上宫阙，今夕是何年。"] * 3
            + ["我欲乘风归去，又恐琼楼玉宇，高处不胜寒。"] * 9
        ),
        "\n".join(f"{a}床前明月光疑是地上霜{b}" for a in "春夏秋冬" for b in "甲乙丙丁"),  # verse without punctuation
        "\n".join(f"{a}渐黄昏清角吹寒都在空城杜郎俊赏算而今重到须惊，" for a in "春夏秋冬"),  # too few lines to tell
        "\n".join(
            f"{a}花间一壶酒，独酌无相亲；举杯邀明月，对影成三人。" for a in "一二三四五六七八"
        ),  # equal, but closed
        "\n".join(["问：叶子发黄怎么办？", "答：先断水，放到通风的地方，等土干透了再浇，平时不要总是浇水。"] * 8),
        "\n".join(f"    value_{n:02} = compute_the_next_value(previous, {n:02})" for n in range(12)),
        "\n".join(["名称　　　光照　　　浇水　　　施肥　　　温度　　　湿度　　　备注"] * 12),
        PROSE,
    ],
)
def test_verse_dialogue_code_and_tables_keep_their_lines(text):
    assert cleaning.unwrap(text) == (text, 0)


def test_headings_and_lists_start_a_new_line():
    first, second, third = (wrapped([paragraph(n, 20)], 30, "") for n in (5, 6, 7))
    text = "\n".join([first, "第二章 客人来了", second, "1. 先看土", "2. 再看叶", third])
    joined, places = cleaning.unwrap(text)
    assert places and all(f"\n{start}" in joined for start in ("第二章 客人来了", "1. 先看土", "2. 再看叶"))


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("text", "settings", "why"),
    [
        (SENTENCE, {"min_chinese": 0.8}, ""),
        ("This is English. 好", {"min_chinese": 0.5}, "too little Chinese"),
        ("这个 API 返回 JSON", {"min_chinese": 0.3}, ""),
        ("3.14159 26535 89793 元", {"max_symbols": 0.5}, "too many symbols"),
        ("★★★★☆ 好！", {"max_symbols": 0.5}, "too many symbols"),
        ("“好！”他说：“（真的）……走吧。”", {"max_symbols": 0.1}, ""),
        ("哈" * 100, {"max_repetition": 0.5}, "too repetitive"),
        ("点击这里领取红包，" * 9, {"max_repetition": 0.5}, "too repetitive"),
        ("归去来兮！田园将芜胡不归？既自以心为形役。归去来兮！请息交以绝游。", {"max_repetition": 0.1}, ""),
        ("哈哈", {"max_repetition": 0.0}, ""),
        ("1%", {}, ""),
    ],
)
def test_filters_say_why(text, settings, why):
    assert cleaning.unfit(text, **settings) == why
