"""Text as HTML with a plain-text twin: whatever the text is, it is shown as text, and Chinese is aligned."""

import pytest
from displays import HOSTILE, Page, stripped
from hypothesis import HealthCheck, given, settings

from helpers.show import notebook as show
from helpers.show import text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE)
def test_any_text_is_shown_as_text(shown, one, two):
    shown.clear()
    show.table([[one, 1], [two, 2.5]], ["text", one])
    show.documents([one, two])
    show.pieces({one: [one, two], "tokenizer": [two]})
    show.probabilities([(one, 0.5, 0.9), (two, 0.1, 0)])
    show.samples([one + two, two], prompt=one)
    show.labels([one, two], [two, None])
    show.spikes([{"event": "spike", "step": 1, "windows": [{"index": two, "loss": 2.0, "text": one}]}])
    for output in shown:
        page = Page(output["data"]["text/html"])
        assert page.tags <= {"table", "thead", "tbody", "tr", "td", "th", "div", "blockquote", "span", "code", "br"}
        assert page.attributes <= {"style"}
        assert page.open == []
        assert output["data"]["text/plain"].strip()
    assert text.with_marks(one) in Page(shown[2]["data"]["text/html"]).words


def test_blanks_and_newlines_can_be_seen(shown):
    show.pieces({"cut": ["好", " ", "\u3000", "\n", "\t", "\u200b", "养"]})
    assert shown[0]["data"]["text/plain"] == "cut (7): 好|␣|␣|↵|⇥|‹200B›|养"


def test_table_aligns_chinese_in_plain_text(shown):
    show.table([["龙血树", 12345, True], ["a", 7, False]], ["word", "times", "seen"])
    lines = shown[0]["data"]["text/plain"].splitlines()
    assert lines == ["word     times  seen", "龙血树  12,345  True", "a            7  False"]
    assert [text.cell_text(number) for number in (0.123456, 123456.7)] == ["0.1235", "123,457"]
    with pytest.raises(ValueError, match="2 columns got a row of 1"):
        show.table([["a"]], ["one", "two"])


def test_documents_reads_no_more_than_it_shows(shown):
    def endless():
        yield "字" * 1000
        yield "二"
        raise AssertionError("read too far")

    show.documents(endless(), limit=2)
    assert shown[0]["data"]["text/plain"] == f"[1 · 1,000 characters]\n{'字' * 400} …\n\n[2 · 1 characters]\n二"


def test_what_is_no_number_is_a_dash_without_a_bar(shown):
    nan = float("nan")
    assert text.percent(nan) == "–" and text.bar_of_blocks(nan) == ""
    show.probabilities([("太阳", nan, nan), ("阴", 0.5, 0.25)])
    _, first, second = (line.split("\t") for line in stripped(shown[0]).splitlines())
    assert first == ["太阳", " –", " –"] and second == ["阴", "████████████ 50.0 %", "██████ 25.0 %"]


def test_the_prompt_is_dimmed_only_where_it_is(shown):
    show.samples(["问\n答"], prompt="问\n")
    html = shown[0]["data"]["text/html"]
    assert '<span style="opacity:.7">问<br></span>' in html and Page(html).words == "问\n▸答"
    assert shown[0]["data"]["text/plain"] == "问\n▸答"
    assert text.render_continuation("别的", "问") == "别的"
    assert "▸" not in text.render_continuation("问", "问"), "nothing was written yet"


def test_labels_need_one_label_an_input(shown):
    with pytest.raises(ValueError, match="2 inputs and 1 labels"):
        show.labels(["a", "b"], ["b"])
    show.labels(["我"] * 100, [None] * 100)
    assert shown[0]["data"]["text/plain"].count("我") == 100


def test_columns_are_those_of_a_terminal():
    """A combining mark takes no column, an emoji two: counted in characters, the second column would not line up."""
    lines = text.plain_table([["e\u0301", "|"], ["龙", "|"], ["🌱", "|"], ["ab", "|"]], [False, False])
    assert lines == ["e\u0301   |", "龙  |", "🌱  |", "ab  |"]


# ---- where styles are stripped, as on GitHub ----


def test_without_styles_pieces_are_apart(shown):
    show.pieces({"thulac": ["我", "喜欢", "花"], "bytes": ["<0xE7>", " "]})
    lines = stripped(shown[0]).splitlines()
    assert lines == ["thulac", "3 pieces\t我|喜欢|花", "bytes", "2 pieces\t<0xE7>|␣"]


def test_without_styles_bars_are_as_long_as_their_probabilities(shown):
    show.probabilities([("太阳", 0.5, 1.0), ("阴", 0.25, 0.0), ("雨", 0.0001, 0.0)])
    _, first, second, third = (line.split("\t") for line in stripped(shown[0]).splitlines())
    assert first == ["太阳", "██████ 50.0 %", "████████████ 100.0 %"]
    assert second == ["阴", "███ 25.0 %", " –"] and third == ["雨", " < 0.1 %", " –"]
    bars = [text.bar_of_blocks(share, 4) for share in (0, 1 / 32, 0.125, 0.99, 1, 7)]
    assert bars == ["", "▏", "▌", *["████"] * 3]


def test_without_styles_inputs_stand_above_their_labels(shown):
    show.labels(["<bos>", "花", "<pad>"], ["花", "<eos>", None])
    assert stripped(shown[0]).splitlines() == ["input\t<bos>\t花\t<pad>", "label\t花\t<eos>\t–"]


def test_without_styles_lines_and_texts_stay_apart(shown):
    show.documents(["问\n答", "二"])
    lines = stripped(shown[0]).splitlines()
    assert lines == ["1 · 3 characters", "问", "答", "2 · 1 characters", "二"]
    show.table([["上\n下", 1]], ["text", "times"])
    assert stripped(shown[1]).splitlines() == ["text\ttimes", "上", "下\t1"]
    assert text.lines_kept('<i title="a\nb">c\r\nd</i>') == '<i title="a\nb">c<br>d</i>'
