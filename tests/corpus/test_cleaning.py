"""Cleaning: what each rule takes out, what it must leave alone, and that cleaning twice changes nothing more."""

import random
import re
import unicodedata
from collections import Counter

import pytest
from corpora import PROSE, SENTENCE
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import cleaning

CHINESE = st.text("绿萝喜欢散射光，。！？“”《》—…、；：的一是不了人在有我他這個們國𠮷㐂ABCxyz0123.,!?+=%", min_size=1)
HAN = "".join(map(chr, range(0x4E00, 0x5600)))
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
EVERY_RULE = ", ".join(f"+{name}" for name in cleaning.OPTIONAL_RULES if "traditional" not in name)
MARKUP = "&amp; &lt; &#60; <p> </p> <b> </b> <br/> <!-- --> </div> <script> </script> <input> </input> <title> </title>"
CHARACTERS = {"\ufeff": "BOM in the text", "\u200b": "zero-width", "\u200d": "joiners", "\x07": "control characters"}
CHARACTERS |= {"\ue001": "private-use characters", "\ufffd": "U+FFFD"}
DIRT = [*"<>/&;#abp绿 \t\u3000\n\r\u200b\u200d\ufeff\ufffd\ue000\u0301\u0338\xa0\u2028😀-!=\"'", *MARKUP.split()]
DIRTY = st.lists(st.sampled_from([*DIRT, "<div class='x'>", "<td nowrap", "<!doctype html>"]), max_size=30).map("".join)


# ---------------------------------------------------------------- cleaning


@pytest.mark.parametrize(
    ("dirt", "clean", "rule"),
    [
        *((f"绿{dirt}萝", "绿萝", rule) for dirt, rule in CHARACTERS.items()),
        ("\x1b[31m红\x1b[0m", "红", "terminal colours"),
        ("一\u2028二\x85三\r四\r\n五", "一\n二\n三\n四\n五", "line ends"),
        ("<p>一</p><p>二</p><hr noshade><td nowrap width=9>三</td>", "一\n二\n三", "HTML tags"),
        ("您好。<br>少浇水。<br/>再见<hr>", "您好。\n少浇水。\n再见", "HTML tags"),
        ("绿萝<br>\n吊兰<br>\n文竹", "绿萝\n吊兰\n文竹", "HTML tags"),
        ("<div id=a>看：</div>\n```html\n<p>好</p>\n```", "看：\n```html\n<p>好</p>\n```", "HTML tags"),
        ('<iframe src="/x" width=0 allowfullscreen></iframe><a href="/x">绿萝</a>', "绿萝", "HTML tags"),
        ('<label for=x>名</label><INPUT name="x" disabled /><button>好</button><s>旧</s>', "名好旧", "HTML tags"),
        ("<!DOCTYPE html><html><title>绿萝</title><link rel='x'><main>浇水</main></html>", "绿萝\n\n浇水", "HTML tags"),
        ("绿萝&nbsp;&amp;&#32;吊兰", "绿萝 & 吊兰", "HTML entities"),
        ("<!-- 广告 -->绿萝", "绿萝", "HTML comments and scripts"),
        ("<script>if (a<b) {}</script>绿萝", "绿萝", "HTML comments and scripts"),
        ("e\u0301", "é", "NFC"),
        ("第一回\n\u3000\u3000绿萝。\n\u3000\u3000“吊兰！”", "第一回\n绿萝。\n“吊兰！”", "indentation"),
        ("    绿萝\n    吊兰", "绿萝\n吊兰", "indentation"),
        ("绿萝 \n吊兰\u3000  \n文竹\t", "绿萝\n吊兰\n文竹", "trailing spaces"),
        ("绿萝\n\n\n\n\n吊兰", "绿萝\n\n吊兰", "blank lines"),
    ],
)
def test_a_rule_cleans_and_counts(dirt, clean, rule):
    counts = Counter()
    assert cleaning.clean(dirt, counts) == clean
    assert counts[rule] >= 1


def equal_lines(count, length, characters=HAN):
    """Return lines of one length that are no cut prose, as verses or posts of which only the beginning was kept."""
    choice = random.Random(length)
    return ["".join(choice.choices(characters, k=length)) for _ in range(count)]


# text without dirt, but with the shape of it: all rules leave it
KEPT = [
    "看：\n\n```html\n<p>你好</p>\n<br/>&nbsp;\n```\n\n> ```\n> <b>好</b>\n> ```",
    "用 `<br>` 换行，`<p>一</p>` 分段，`` <!-- `注` --> `` 是注释，`&nbsp;` 是。",
    "看例子：\n\n    <ul>\n        <li>一</li>\n    </ul>\n\n就这样。",
    'f(\n    <div className="a">\n        <p>好</p>\n    </div>\n);\n<template>\n  <div>{{ 名 }}</div>\n</template>',
    "def f(x):\n    if x:\n        return 1\n\n\ndef 浇(水):\n    打印(水)",
    "int *p = &sum;\nf(&copy;, &reg;);\nvector<int> v;  // 组\ncat <input> | grep <title>，见 <main>\ngit clone <path>",
    *"用<br>换行，用<p>分段。 段落放在<p>和</p>之间。 标签很多。<p>表示段落。<br>表示换行".split("。 "),
    *"<p>是开始标签，</p>是结束标签 结束标签是</p> 脚本在<script>和</script>之间，样式在<style>里</style>".split(),
    "有：\n<br>：换行\n<hr>：画线\n- <p>\n- <table>",
    "若a<b>c且x<y，则A & B。p < 0.05 且 n > 3\n若a<b and c>d，x<s>t，则<p nowraps>和<a href>。",
    "模板用 <think> 和 </tool_call>，还有 <|im_start|>\n?a=1&copy=2&lt=3 AT&T; R&D",
    "\\begin{align}\n  a &= b  \\\\\n  c &  < d\n\\end{align}\n若 $a<b$ 且 $c>d$，则 \\emph{好}。",
    "配置:\n  名称: 一\n  列表:\n    - 甲\n说明: |\n  绿萝喜光。\n  土干再浇。",
    "# 题\n\n第一行  \n第二行\n\n-----\n\n- 一\n  - 二\n\n题\n=====\n\n* * *\n\n[链接](https://a.cn)",
    "| 名称   | 光照 |\n| ------ | ---- |\n| 绿萝   | 散射 |",
    "名称    光照    浇水\n绿萝    散射    见干\n名称\t\t光照\t浇水\n编号,名称\n1,,30",
    "^ /\\_/\\\n( o.o )\n > ^ <\n根\n├── 甲\n│   ├── 一\n│   └── 二\n└── 乙",
    "\u3000我\n\u3000\u3000走\n\u3000\u3000\u3000在路上\n我是一片云\n\u3000\u3000浮在空中",
    "床前明月光，\u3000\u3000疑是地上霜。\n第一回　灵根育孕源流出　心性修持大道生",
    "1\n00:00:01,000 --> 00:00:02,500\n你好\n\n2\n00:00:03,000 --> 00:00:04,000\n再见\n[00:15.00]田园将芜",
    "2024-05-01 12:30:01 小花\n在吗\n？\n2024-05-01 12:30:05 老王\n在",
    "清单：\n- 浇水\n    土干再浇。\n- 光照\n    散射光。",
    "- 旧的\n+ 新的\n  没变的",
    "👨\u200d👩\u200d👧 ♥\ufe0f 1\ufe0f\u20e3 می\u200cخواهم □缺字□ ⽐⼀",
    PROSE.strip(),
    "没有写完：\n```html\n<div>\n    <p>你好</p>",
    "~~~yaml\n配置:\n  名称: 一 \n\n\n\n\n  值: 二\n~~~",
]
ALONE = [
    *"<br> 换行用<br> <br/> <p></p> &nbsp; <!--注释--> <script>alert(1)</script> <img/>".split(),
    "<?xml version='1.0'?>\n<书 id='1'>\n<body>\n<p>绿萝。</p>\n</body>\n</书>",
    "<TEI n='1'><body><p>绿萝。</p>\n<p>吊兰</p></body></TEI>",
]
EQUAL = [
    equal_lines(100, 23),
    equal_lines(2000, 20),
    equal_lines(40, 33, "春花秋月何时了往事知多少"),
    [" ".join(line) for line in equal_lines(30, 20)],
    [f"{line[:5]}，{line[5:10]}，{line[10:15]}，{line[15:]}" for line in equal_lines(100, 20)],
    [f"杭州市西湖区文三路{n}号某某大厦{n % 9}层{n % 7}{n % 5}室张先生收件" for n in range(100, 130)],
    [f"见 https://example.org/abs/{n:04}.{n * 7919 % 10000:04} 第三章以及附录" for n in range(30)],
    ["问：叶子发黄怎么办？", "答：先断水，放到通风的地方，等土干透了再浇，平时不要总是浇水。"] * 8,
    [f"    value_{n:02} = compute_the_next_value(previous, {n:02})" for n in range(12)],
    [f"{n:03} 无敌的开始与结束第{n:03}名 作者某人 人气{n * 37 % 997:03}" for n in range(30)],
    [f"{a}花间一壶酒，独酌无相亲；举杯邀明月，对影成三人。" for a in "一二三四五六七八"],
    ["名称　　　光照　　　浇水　　　施肥　　　温度　　　湿度　　　备注"] * 12,
]


@pytest.mark.parametrize("text", [*KEPT, *map("\n".join, EQUAL), *ALONE])
def test_what_only_looks_like_dirt_stays(text):
    counts = Counter()
    assert cleaning.clean(text, counts) == text
    assert all(rule.endswith(" left") for rule in counts)


@given(st.lists(st.sampled_from(KEPT) | CHINESE, max_size=5).map("\n好\n".join))  # a </p> before a <p> is a page's
def test_decent_text_comes_back_unchanged(text):
    assert cleaning.clean(text) == unicodedata.normalize("NFC", text)


def test_what_a_rule_leaves_is_counted():
    counts = Counter()
    for text in ("用<br>换行", "配置:\n  名称: 一", "\n".join(equal_lines(30, 33))):
        cleaning.clean(text, counts)
    assert counts == {"HTML tags left": 1, "indentation left": 1, "hard wraps left": 29}


@given(st.one_of(ANY, DIRTY, st.lists(st.sampled_from([*KEPT, *DIRT]), max_size=6).map("".join)))
def test_cleaning_twice_changes_nothing_more(text):
    once = cleaning.clean(text)
    assert cleaning.clean(once) == once


@given(st.one_of(ANY, DIRTY, st.text("一，。12345678９Ａ:,@a.+-\n", max_size=60)), st.sampled_from(["", EVERY_RULE]))
def test_sparing_rules_changes_nothing(text, rules):
    """Texts skip the rules that start with no character they have: none of those may have had work there."""
    rules, _, suspect = cleaning._plan(on := cleaning.choose_rules(rules))
    needed = cleaning._needed(on, frozenset(suspect.findall(text)))
    assert not [rule[0] for rule in rules if rule not in needed and rule[1].search(text)]


def test_hostile_text_takes_no_time():
    for part in "<!--|<script>|<p |&|<a b=|<td nowrap |<input>|<!doctype |``` a\n|`a|a<br>\n|<p a='".split("|"):
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
        ("repeated spaces", "绿萝    吊兰", "绿萝 吊兰", 1),
        ("Kangxi radicals", "⽐如说⼀个⾼的", "比如说一个高的", 3),
        ("full width", "ＡＢＣ１２３，（ｏｋ）！", "ABC123，（ok）！", 2),
        ("full width", "＆ａｍｐ；", "＆amp；", 1),
        ("half-width punctuation", "好,真的吗?是的!", "好，真的吗？是的！", 3),
        ("half-width punctuation", "见图1:2, a,b 和3.14; x!", "见图1:2, a,b 和3.14; x!", 0),
        ("personal data", "电话13812345678，或138-1234-5678、+86 13812345678。", "电话[电话]，或[电话]、[电话]。", 3),
        ("personal data", "身份证11010519491231002X，邮箱z.san@mail.example.com。", "身份证[身份证]，邮箱[邮箱]。", 2),
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
    counts, examples = Counter(), {}
    assert clean("為什麼頭髮乾燥？", "+traditional to simplified", counts, examples) == "为什么头发干燥？"
    assert counts["traditional to simplified"] >= 5 and examples["traditional to simplified"][0][0].startswith("為")
    assert clean("头发", "+simplified to traditional") == "頭髮"
    assert clean("&#28858;", "+traditional to simplified") == "为"


def test_examples_show_before_and_after_and_what_is_invisible():
    examples = {}
    for n in range(5):
        clean(f"第{n}盆绿\u200b萝。<br/>浇水", examples=examples)
    assert len(examples["zero-width"]) == cleaning.EXAMPLES
    before, after = examples["zero-width"][0]
    assert "绿\\u200b萝" in before and "绿萝" in after
    assert examples["HTML tags"][0] == ("第0盆绿萝。<br/>浇水", "第0盆绿萝。\\n浇水")


# ---------------------------------------------------------------- hard wraps

_CLAUSES = (
    "那盆绿萝放在北窗台上已经有三年了 从来没有人认真管过它 可是它总是自己长得很好 藤蔓垂下来快要碰到地面 "
    "他问能不能剪一枝带走 主人马上拿来一把剪刀 从那以后家里常常少一枝 插在水里也能活 邻居说要多喷水 其实换个地方就行"
).split()


def paragraph(seed, clauses):
    """Return prose without a period: clauses in a random order, full stops here and there."""
    choice = random.Random(seed)
    text = "".join(choice.choice(_CLAUSES) + str(n) * (n % 2) + choice.choice("，，，。") for n in range(clauses))
    return text.rstrip("，。") + "。"


NOVEL = [paragraph(n, clauses) for n, clauses in enumerate((19, 14, 23))]


@given(st.integers(20, 40), st.permutations(NOVEL), st.sampled_from(["", " "]), st.sampled_from(["", "\u3000\u3000"]))
def test_hard_wrapped_prose_becomes_paragraphs_again(width, paragraphs, trailing, indent):
    parts = list(zip(["第二章 客人来了", "1. 先看土", "- 再看叶"], paragraphs, strict=True))
    lines = [line for heading, text in parts for line in (heading, *re.findall(f".{{1,{width}}}", indent + text))]
    counts = Counter()
    once = cleaning.clean(f"{trailing}\n".join(lines), counts)
    assert {heading for heading, _ in parts} <= set(once.split("\n"))
    if indent:  # else a full line that ends a sentence is taken for the end of a paragraph
        assert once == "\n".join(map("\n".join, parts))
        assert counts["hard wraps"] == len(lines) - 6


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
