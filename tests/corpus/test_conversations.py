"""Conversations in all forms: they keep who said what on their way into the shards, and what is none is refused."""

import copy
import json
from collections import Counter
from functools import reduce

import pytest
from corpora import all_conversations, build, everything, read_text
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus import cleaning, conversations, mojibake
from helpers.corpus.build import build_corpus
from helpers.corpus.conversations import (
    ASSISTANT,
    SYSTEM,
    USER,
    Conversation,
    NotAConversation,
    changed,
    read_messages,
)
from helpers.corpus.encodings import BadFile


def talk(*contents, system=None):
    turns = [{"role": (USER, ASSISTANT)[i % 2], "content": content} for i, content in enumerate(contents)]
    return ([{"role": SYSTEM, "content": system}] if system is not None else []) + turns


def masked(content, **says):
    return [{"role": ASSISTANT, "content": content, **says}]


# ---- the forms ----


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": talk("问", "答", system="线")}, talk("问", "答", system="线")),
        ({"messages": talk("问", "答", system=" ")}, talk("问", "答")),
        (
            {"messages": [{"role": None, "from": "user", "content": None, "value": "问"}, *talk("问", "答")[1:]]},
            talk("问", "答"),
        ),
        ({"conversation": talk("问", "答", "再问")}, talk("问", "答")),
        ({"conversations": [{"from": "human", "value": "问"}, {"from": "GPT", "value": "答"}]}, talk("问", "答")),
        ({"conversations": talk("问", "答"), "system": "线"}, talk("问", "答", system="线")),
        ({"messages": talk("问", "答", system="里"), "system": "外"}, talk("问", "答", system="里")),
        (
            {"messages": talk([{"type": "text", "text": "上"}, {"type": "text", "text": "下"}], "答")},
            talk("上\n下", "答"),
        ),
        ({"instruction": "翻译", "input": "水", "output": "water"}, talk("翻译\n水", "water")),
        ({"instruction": "问", "input": float("nan"), "output": "答", "history": None}, talk("问", "答")),
        (
            {"instruction": "三", "input": "", "output": "3", "history": [["一", "1"], ["二", "2"]], "system": "线"},
            talk("一", "1", "二", "2", "三", "3", system="线"),
        ),
        ({"prompt": "问", "response": "答", "history": []}, talk("问", "答")),
        ({"question": "1+1?", "answer": 2}, talk("1+1?", "2")),
        ({"id": 7, "prompt": "问", "completion": "答"}, talk("问", "答")),
        ({"query": "问", "response": "答"}, talk("问", "答")),
        ({"title": "题", "ask": "问", "answer": "答"}, talk("问", "答")),
        ({"question": "问", "context": "文", "answer": "答"}, talk("问\n文", "答")),  # SQuAD
        ({"instruction": "问", "context": "", "response": "答", "category": "类"}, talk("问", "答")),  # Dolly
        ({"kind": "类", "input": "问", "target": "答"}, talk("问", "答")),  # Firefly
        ({"messages": json.dumps(talk("问", "答"))}, talk("问", "答")),  # as in a table
        ({"messages": str(talk("问", "答"))}, talk("问", "答")),  # of pandas
        (
            {"messages": [*talk("问", "答"), {**talk("一")[0], "loss": False}, *masked("二", weight=0)]},
            talk("问", "答"),
        ),
        ({"messages": [{**talk("问")[0], "loss": False}, *masked("答", weight=1)]}, talk("问", "答")),
        ({"问题": "问", "回答": "答"}, talk("问", "答")),
        ({"问": "问", "答": "答"}, talk("问", "答")),
        ({"text": "问"}, None),
        ({"question": "问"}, None),
        ({"messages": "问"}, None),
        ({"messages": "[坏"}, None),
        ({}, None),
    ],
)
def test_forms(record, expected):
    before = copy.deepcopy(record)
    assert read_messages(record, Counter()) == expected
    assert str(record) == str(before)  # nothing is taken out of it


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"messages": []}, "no question with an answer"),
        ({"messages": [*talk("问"), *masked("答", loss=False)]}, "no question with .* not to be learned"),
        ({"messages": talk("问")}, "no question with an answer"),
        ({"messages": [{"role": "user", "content": "一"}] * 2}, "turn 2 is of the user, where the assistant should"),
        ({"messages": talk("问", "答")[1:]}, "turn 1 is of the assistant, where the user should"),
        ({"messages": talk("问", "答") + talk(system="线")}, "turn 3 is a system line"),
        ({"messages": talk("问", " \n", "问", "答", system="线")}, "turn 3, of the assistant, says nothing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "turn 1 is of 'tool'; known are system, developer, user"),
        ({"messages": [{"content": "x"}]}, "turn 1 says neither under 'role' nor under 'from' who speaks"),
        ({"messages": ["问", "答"]}, "turn 1 says neither"),
        ({"messages": talk([{"type": "image_url"}], "答")}, "turn 1, of the user, holds something besides text"),
        ({"question": "问", "answer": None}, "turn 2, of the assistant, says nothing"),
        ({"instruction": "", "input": " ", "output": "答"}, "turn 1, of the user, says nothing"),
        ({"prompt": "问", "response": "答", "history": "一"}, "'history' is not a list of pairs"),
        ({"prompt": "问", "response": "答", "history": [["一"]]}, "'history' is not a list of pairs"),
    ],
)
def test_what_looks_like_a_conversation_and_is_none(record, why):
    with pytest.raises(NotAConversation, match=why):
        read_messages(record, Counter())


KEYS = [*conversations.LISTS, "question", "answer", "context", "instruction", "input", "output", "system", "history"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=6))
@settings(max_examples=300)
def test_any_record_is_a_conversation_or_none_or_refused(record):
    try:
        messages = read_messages(record, Counter())
    except NotAConversation as error:
        assert str(error)
        return
    if messages is not None:
        spoken = messages[messages[0]["role"] == SYSTEM :]
        assert len(spoken) >= 2 and [turn["role"] for turn in spoken] == [USER, ASSISTANT] * (len(spoken) // 2)
        assert all(isinstance(turn["content"], str) and turn["content"].strip() for turn in messages)


def test_what_is_no_turn_is_counted_field_by_field():
    answer = {"role": "assistant", "content": "答", "reasoning_content": "想一想", "weight": 1}
    tools = reduce(lambda inner, _: [inner], range(9000), {"name": "工具"})  # deeper than Python's stack
    record = {"messages": [*talk("问"), answer, *talk("再")], "tools": tools, "system": "线", "id": 7}
    spare = Counter()
    assert read_messages(record, spare) == talk("问", "答", system="线")
    assert spare == {
        "field 'reasoning_content' is not used": 3,
        "last question without an answer": 1,
        "field 'tools' is not used": 2,
    }
    spare.clear()
    read_messages({"messages": [*talk("问", "答", "一"), *masked("二二", loss=0), *talk("三", "四")]}, spare)
    unlearned = [n for reason, n in spare.items() if "not to be learned" in reason]
    assert (unlearned, spare["last question without an answer"]) == ([len("assistant二二user三assistant四")], 1)


# ---- the document ----


def test_a_conversation_that_is_too_long_loses_whole_exchanges_at_its_end():
    document = Conversation(talk("甲甲", "乙乙", "丙丙", "丁丁", system="线"))
    assert len(document) == 13
    for most, kept in ((13, 5), (12, 3), (7, 3), (6, 0), (0, 0)):
        shorter = document.shortened(most)
        assert shorter.messages == document.messages[:kept] and len(shorter) <= most


TURN = st.text(min_size=1, max_size=30) | st.text(
    st.sampled_from("一二。\n \t\u3000\u200b<br/>&lt;b>\ufeff"), min_size=1
)


@given(st.lists(st.tuples(TURN, TURN), min_size=1, max_size=4), st.none() | TURN)
@settings(max_examples=300)
def test_cleaning_keeps_the_turns_or_drops_whole_exchanges_and_never_mixes(exchanges, system):
    messages = talk(*(text for pair in exchanges for text in pair), system=system)
    document = changed(Conversation(messages), cleaning.clean)
    expected = [[cleaning.clean(text) for text in pair] for pair in exchanges]
    whole = next((i for i, pair in enumerate(expected) if not all(map(str.strip, pair))), len(expected))
    line = cleaning.clean(system or "")
    turns = talk(*(text for pair in expected[:whole] for text in pair), system=line if line.strip() else None)
    assert list(document.messages) == (turns if whole else [])
    assert document == "\n".join(turn["content"] for turn in document.messages)
    assert changed(document, cleaning.clean).messages == document.messages


LINES = st.text(st.sampled_from("你好绿萝的是在不了人，。怎么浇水？喜欢散射光\n\n"), min_size=1, max_size=20)


@given(st.lists(LINES.filter(str.strip), min_size=2, max_size=6), st.sampled_from(["utf-8", "gb18030"]), st.booleans())
@settings(max_examples=300)
def test_mending_mojibake_moves_no_border(contents, codec, as_gbk):
    contents = contents[: len(contents) // 2 * 2]
    wrong = [text.encode(codec).decode("gb18030" if as_gbk else "latin-1", "replace") for text in contents]
    document = Conversation(talk(*wrong))
    if (mended := mojibake.repair(document)) is None:
        return
    assert mended.count("\n") == document.count("\n")
    result = document.with_lines(mended)
    assert result == mended or len(result.messages) < len(document.messages)
    for before, after in zip(document.messages, result.messages, strict=False):
        assert before["content"].count("\n") == after["content"].count("\n") and before["role"] == after["role"]


# ---- files ----


def test_what_is_no_conversation_is_counted_with_its_place_and_reason(raw):
    rows = [{"messages": talk("问", "答")}, {"messages": talk("问")}, {"question": "问", "answer": ""}, {"title": "题"}]
    rows += [{"messages": [*talk("问"), *masked("答", weight=0), *talk("再问", "再答")]}, {"问": "问二", "答": "答二"}]
    (raw / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    report = build(raw)
    assert report.dropped == {"unreadable": 4}
    first, *notes = report.files[0].notes
    told = "; ".join(notes)
    assert first == "read as conversations" and "take turns" in told and "text_key" in told
    assert "line 2: no question with an answer" in told and "line 3: turn 2, of the assistant, says nothing" in told
    assert "line 4: nothing under 'text'" in told and "keys there: title" in told


def test_a_text_stays_a_text_unless_conversations_are_asked_for(tmp_path):
    rows = [{"text": "文", "question": "问", "answer": "答"}, {"text": "只有文"}, "字符串"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")

    def read(**options):
        return [(str(text), isinstance(text, Conversation)) for text in everything(path, **options)[0]]

    assert read() == [("文", False), ("只有文", False), ("字符串", False)]
    assert read(text_key="answer") == [("答", False), ("字符串", False)]
    assert read(text_key="{question}？") == [("问？", False), ("字符串", False)]
    for key in conversations.LISTS:
        assert read(text_key=key) == [("问\n答", True), ("字符串", False)]
    path.write_text(json.dumps({"conversation": "一段", "messages": talk("问", "答")}), "utf-8")
    assert read() == read(text_key="messages") == [("问\n答", True)]
    assert read(text_key="conversation") == [("一段", False)]


@pytest.mark.parametrize(
    ("table", "text_key", "expected"),
    [
        ("id;问;答\n1;多久浇水，要多少？;土干了再浇\n", "text", talk("多久浇水，要多少？", "土干了再浇")),
        ("note (a,b,c,d);question;answer\n1,2,3,4;问;答\n", "text", talk("问", "答")),
        ("text;question;answer\n文;问;答\n", "conversations", talk("问", "答")),
        ("text;question;answer\n文;问;答\n", "text", "文"),
        ("question,title\n问,题\n", "text", BadFile),
        ("question,answer\n问,答\n", "txt", BadFile),
    ],
)
def test_tables_of_questions_and_answers(tmp_path, table, text_key, expected):
    if expected is BadFile:
        with pytest.raises(BadFile, match=f"no column '{text_key}'"):
            read_text(tmp_path, "a.csv", table, text_key=text_key)
        return
    (document,), _ = read_text(tmp_path, "a.csv", table, text_key=text_key)
    assert (list(document.messages) if isinstance(document, Conversation) else document) == expected


# ---- the way into the corpus ----


def write(raw, *talks):
    (raw / "a.jsonl").write_text("\n".join(json.dumps({"messages": each}) for each in talks), "utf-8")


def messages_found():
    return sorted((each for side in all_conversations().values() for _, each in side), key=str)


def test_each_turn_is_cleaned_for_itself(raw):
    write(
        raw,
        talk("绿萝<b>怎么浇\n", "\n</b>土干了&nbsp;再浇。\u200b", "<!-- 还有", "-->？"),
        talk("第一问", "\ufeff\u200b", "第二问", "第二答"),
        talk("第三问", "第三答", "\u200b", "第四答", system="\u200b"),
    )
    report = build(raw)
    assert messages_found() == [
        talk("第三问", "第三答"),
        talk("绿萝<b>怎么浇", "土干了 再浇。", "<!-- 还有", "-->？"),
    ]
    assert report.dropped == {"empty": 1}


def test_lengths_judge_the_whole_text(raw):
    long = talk("问" * 9, "答" * 9, "再" * 30, "回" * 60, system="系统")
    write(raw, long, talk("长" * 50, "长" * 60), talk("短", "短"), talk("好吗？", "好的。"))
    report = build(raw, max_length=100, min_length=5)
    assert messages_found() == [talk("问" * 9, "答" * 9, system="系统"), talk("好吗？", "好的。")]
    assert report.dropped == {"with a first exchange too long": 1, "too short": 1}
    assert report.lost["with a first exchange too long"] == 111
    assert report.lost["end of a conversation"] == 90
    assert "1 conversation(s) lost their last exchanges: too long, or a blank turn" in report.files[0].notes


def test_repeated_lines_go_from_each_turn(raw):
    ad = "更多好书请访问 www.example.com"
    talks = [talk(f"第{n}问", f"第{n}答\n{ad}", f"<b>再{n}</b>", ad if n % 2 else "好的") for n in range(8)]
    write(raw, *talks, talk("干净", "的"), talk(ad, "只有广告"))
    (raw / "b.txt").write_text(f"文字\n{ad}", "utf-8")
    report = build(raw)
    expected = [talk(f"第{n}问", f"第{n}答", *([] if n % 2 else [f"再{n}", "好的"])) for n in range(8)]
    found = all_conversations()
    every = found["train"] + found["val"]
    assert sorted(str(messages) for _, messages in every) == sorted(map(str, [*expected, talk("干净", "的"), None]))
    assert ("文字", None) in every
    assert report.dropped == {"empty": 1}


def test_mojibake_is_mended_in_short_turns_too(raw):
    """Of so few characters nobody can say that they are mojibake; the turns around them tell."""
    said = talk("你好", "你好，绿萝喜欢散射光", "谢谢", "绿萝怎么浇水\n土干了再浇水")
    wrong = [{**turn, "content": turn["content"].encode().decode("gb18030")} for turn in said]
    assert mojibake.repair(wrong[2]["content"]) is None
    write(raw, wrong, talk("别的", "一段"))
    report = build(raw, repair=True)
    assert messages_found() == sorted([said, talk("别的", "一段")], key=str)
    assert report.rules == {"mojibake repaired": 1}


def test_the_documents_of_the_built_in_corpus_are_conversations():
    build_corpus("test", "sample", max_documents=300, workers=1)
    found = all_conversations()
    for text, messages in found["train"] + found["val"]:
        assert messages == talk(*text.split("\n")) and len(messages) in (2, 4)
