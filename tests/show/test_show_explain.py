"""A text explained: each character in the colour of its own probability, filters, copied stretches, attention."""

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from displays import HOSTILE, Page, stripped
from hypothesis import HealthCheck, given, settings

from helpers.generate import explain, memorization, surprisal
from helpers.show import notebook as show
from helpers.show.explain import ALPHAS


def step(text: str, p: float, *filters: explain.Filter, others=()) -> explain.Step:
    bits = -math.log2(p)
    return explain.Step(7, text, p, 3, bits, tuple(others), filters)


def took(name: str, removed: int, lost: float, chosen: float, *likeliest) -> explain.Filter:
    return explain.Filter(name, removed, lost, chosen, likeliest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE)
def test_any_text_can_be_seen_through(shown, one, two):
    shown.clear()
    work = took("top_k", 3, 0.25, 0.5, (one, 0.2), (two, 0.05))
    show.explained(
        [step(one, 0.5, work, others=[(two, 0.5)]), step("", 0.25, work), step(two, 0.001, work)], prompt=one
    )
    show.filters([step(one, 0.5, work), step(two, 0.5, work)])
    stretches = (memorization.Stretch(0, len(one), 7, 2),) if one else ()
    show.copied([memorization.Copied(one + two, len(one), stretches, 8, 0, 0)])
    show.attention([one, two], [[1.0, 0.0], [0.5, 0.5]], title=two)
    for output in shown[:3]:
        page = Page(output["data"]["text/html"])
        assert page.tags <= {"table", "thead", "tbody", "tr", "td", "th", "div", "blockquote", "span", "u", "sup", "br"}
        assert page.attributes <= {"style", "title"} and page.open == []
    assert all(output["data"]["text/plain"].strip() for output in shown)
    words = Page(shown[0]["data"]["text/html"]).words
    assert words.startswith(f"{one}▸{one}{two}" if one else two)
    assert set((one + two).replace("\r\n", "\n")) <= set(Page(shown[2]["data"]["text/html"]).words)
    ElementTree.fromstring(shown[3]["data"]["image/svg+xml"])


def test_each_token_has_the_colour_of_its_own_chance(shown):
    """A long word's surprise is not divided by its length; three bytes are one character."""
    steps = [step("好", 0.6), step("龟背竹", 0.001), step("", 0.5), step("", 0.5), step("🌱", 0.02)]
    show.explained(steps, prompt="问\n")
    html = shown[0]["data"]["text/html"]
    assert len(ALPHAS) == len(surprisal.LEVELS) + 1 and sorted(ALPHAS) == list(ALPHAS)
    grounds = re.findall(r'<span(?: style="background:rgba\([\d,]+,([\d.]+)\)[^"]*")? title="[^"]*">(.*?)</span>', html)
    assert grounds == [("", "好"), ("0.6", "龟背竹"), ("0.6", "🌱")]  # 0.5 × 0.5 × 0.02 = 0.005
    assert '<span style="opacity:.7">问<br></span>' in html
    first = stripped(shown[0]).splitlines()[:2]
    assert first == ["问", "▸好_龟背竹_^10.0_🌱_^7.6"], "surprises are underlined, with their bits"
    assert "less than 20 % is underlined, with its bits" in stripped(shown[0])
    lines = shown[0]["data"]["text/plain"].splitlines()
    assert lines[0].split() == ["text", "probability", "rank", "bits", "likeliest"] and len(lines) == 6
    assert lines[1].split()[:2] == ["好", "60.0"]


def test_a_character_that_is_not_completed_has_a_sign(shown):
    show.explained([step("好", 0.6), step("", 0.6), step("", 0.7)])
    assert stripped(shown[0]).splitlines()[0] == "好…"
    assert [line.split()[0] for line in shown[0]["data"]["text/plain"].splitlines()[2:]] == ["…", "…"]


def test_the_mouse_tells_what_the_filters_did(shown):
    work = (took("top_k", 2000, 0.123, 0.7, ("很", 0.05)), took("temperature", 0, 0.0, 0.8))
    show.explained([step("水", 0.6, *work, others=[("水", 0.6), ("", 0.2)])])
    (title,) = re.findall('title="([^"]*)"', shown[0]["data"]["text/html"])
    assert title.splitlines() == [
        "60.0 %, number 3 of the model's choices, 0.74 bits".replace("'", "&#x27;"),
        "likeliest: 水 60.0 %, ■ 20.0 %",
        "top_k: 70.0 %; took away 2,000 tokens with 12.3 %: 很 5.0 % …",
        "temperature: 80.0 %",
    ]


def test_filters_are_summed_up_over_the_text(shown):
    show.filters([
        step("绿", 0.5, took("top_k", 10, 0.2, 0.6, ("很", 0.1)), took("top_p", 0, 0.0, 0.6)),
        step("萝", 0.25, took("top_k", 20, 0.4, 0.35, ("大", 0.3)), took("top_p", 0, 0.0, 0.35)),
    ])  # fmt: skip
    lines = [re.split(r"\s{2,}", line) for line in shown[0]["data"]["text/plain"].splitlines()[1:]]
    assert lines == [["top_k", "15", "30.0 %", "+10.0", "绿▸ 大 30.0 %"], ["top_p", "0", "–", "+0.0"]]
    show.filters([])
    show.filters([step("绿", 0.5)])


def test_copied_stretches_are_marked_whole_and_neighbours_apart(shown):
    stretches = tuple(memorization.Stretch(*each) for each in ((1, 4, 5, 2), (3, 8, 12345, 1), (8, 10, 0, 3)))
    show.copied([memorization.Copied("零一二三四五六七八九十", 5, stretches, 2, 10, 4)])
    data = shown[0]["data"]
    known = "[longest stretch 5 characters · 40.0 % of its 2-grams known]"
    assert data["text/plain"] == f"{known}\n零【一二】【三四五六七】【八九】十"
    hues = re.findall(r"background:rgba\((\d+),", data["text/html"].split("known</div>")[1])
    assert len(hues) == 3 and hues[0] != hues[1] != hues[2]
    assert 'title="5 characters, 1 times, first in document 12,345">三四五六七<' in data["text/html"]
    assert stripped(shown[0]) == data["text/plain"].replace("[", "").replace("]", "")
    show.copied([])
    show.copied([memorization.Copied("", 0, (), 8, 0, 0)])


def test_attention_shows_the_last_tokens_and_where_each_looks(shown):
    size = 50
    weights = [[1.0 if j == max(0, i - 1) else 0.0 for j in range(size)] for i in range(size)]
    names = [f"词{i}" for i in range(size)]
    show.attention(names, weights, "layer 0, head 1")
    lines = shown[0]["data"]["text/plain"].splitlines()
    assert lines[0] == "layer 0, head 1 (the last 30 of 50 tokens)" and len(lines) == 31
    assert lines[1] == "词20 → 词19 100.0 %" and lines[-1] == "词49 → 词48 100.0 %"
    svg = shown[0]["data"]["image/svg+xml"]
    assert svg.count("<rect") == 1 + 30 * 31 / 2 and len(svg) < 100_000
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', svg).group(1)) <= 900
    show.attention(["长" * 40, "二"], [[1.0, 0.0], [0.5, 0.5]], "a long title " * 20)
    svg = shown[1]["data"]["image/svg+xml"]
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', svg).group(1)) <= 900 and "…<" in svg
    with pytest.raises(ValueError, match="2 tokens and 1 rows"):
        show.attention(["一", "二"], [[1.0]])


def test_attention_prints_the_weights_that_matter_and_darkens_with_them(shown):
    show.attention(["我", "喜欢", "花"], [[1.0, 0, 0], [0.24, 0.76, 0], [0.05, 0.35, 0.6]], "head 0")
    data = shown[0]["data"]
    root = ElementTree.fromstring(data["image/svg+xml"])
    words = [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word.isdigit()] == ["100", "24", "76", "35", "60"]
    cells = [item.get("fill") for item in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    red = [int(fill[1:3], 16) for fill in cells]  # the less red, the bluer and darker
    assert len(cells) == 6 and red[0] < red[2] < red[5] < red[4] < red[1] < red[3]
    assert data["text/plain"].splitlines() == [
        "head 0", "我 → 我 100.0 %", "喜欢 → 喜欢 76.0 %, 我 24.0 %", "花 → 花 60.0 %, 喜欢 35.0 %",
    ]  # fmt: skip
