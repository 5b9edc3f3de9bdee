"""Mojibake is said where it is, mended where no byte was lost, and never seen in decent text."""

from collections import Counter

import pytest
from corpora import PROSE, TRADITIONAL
from hypothesis import given
from hypothesis import strategies as st

from helpers.corpus import mojibake

SENTENCE = "绿萝喜欢散射光，土干了再浇水。他们说这是一个好办法，你觉得呢？\n" * 5


def suspicions(text: str) -> str:
    return "; ".join(mojibake.notes_on(Counter(mojibake.count_signs(text)), Counter()))


def reversible(text: str, wrong: str, right: str) -> str:
    """Return what an earlier program made of a text, of which no byte was lost."""
    data = text.encode(right)
    if wrong == "cp1252":
        return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in data)
    return data.decode(wrong)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("latin-1", "gb18030"), ("cp1252", "gb18030"), ("latin-1", "utf-8"), ("cp1252", "utf-8"), ("latin-1", "cp950")],
)
def test_western_mojibake_is_said_and_mended(wrong, right):
    text = TRADITIONAL if right == "cp950" else SENTENCE
    broken = reversible(text, wrong, right)
    assert "Latin-1" in suspicions(broken)
    assert "repair=True" in suspicions(broken)
    assert mojibake.repair(broken) == text


@given(st.text(st.sampled_from("绿萝喜欢散射光土干浇水的一是在，。"), min_size=6, max_size=40))
def test_utf8_read_as_gb18030_is_mended_where_no_byte_was_lost(text):
    try:
        broken = text.encode().decode("gb18030")
    except UnicodeDecodeError:
        return  # a byte would have been lost
    assert mojibake.repair(broken * 2) == text * 2


def test_mojibake_that_lost_bytes_is_said_and_left_alone():
    broken = (PROSE.encode()).decode("gbk", "replace")
    assert "UTF-8 read as GBK" in suspicions(broken)
    assert mojibake.repair("\n".join(row for row in broken.split("\n") if "\ufffd" in row)) is None


@pytest.mark.parametrize("text", [
    PROSE, TRADITIONAL, "你在吗?我在这里等你,你什么时候来呢?他们都已经走了!\n" * 9, "为什么?\n因为！" * 9, "",
    "Où est le café ? À côté de l'hôtel.\n" * 20, "What? Why? 好?\n",
])  # fmt: skip
def test_decent_text_is_not_mended(text):
    assert mojibake.repair(text) is None
    assert "mojibake" not in suspicions(text)


def test_the_signs_of_several_texts_add_up():
    texts = [PROSE, reversible(SENTENCE, "latin-1", "gb18030"), "???\n？好\n", PROSE.encode().decode("gbk", "replace")]
    signs = sum((Counter(mojibake.count_signs(text)) for text in texts), Counter())
    assert (signs["characters"], signs["repairable"]) == (sum(map(len, texts)), 1)
    assert (signs["?"], signs["？"]) == (3, 1) and signs["misread"] and signs["latin"]
    assert "2 U+FFFD" in "; ".join(mojibake.notes_on(signs, Counter({"U+FFFD": 2})))
