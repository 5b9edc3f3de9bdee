"""Pictures computed from data: they show what the data say, as a picture and in words."""

import itertools
import random
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.corpus import built_in
from helpers.show import lattice
from helpers.show import notebook as show

SVG = "{http://www.w3.org/2000/svg}"
SCORES = {"绿": -7.0, "萝": -7.5, "怕": -6.0, "冷": -6.25, "绿萝": -5.0, "怕冷": -6.5, "别的": -1.0}


def words_of(svg: str) -> list[str]:
    return [item.text for item in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_lattice_shows_every_piece_that_fits_and_the_best_path(shown):
    show.lattice("绿萝怕冷", SCORES, ["绿萝", "怕冷"])
    data = shown[0]["data"]
    rows = [line.split() for line in data["text/plain"].splitlines()[1:-1]]
    assert {(row[2], float(row[3])) for row in rows} == set(SCORES.items()) - {("别的", -1.0)}
    assert [row[2] for row in rows if row[4:] == ["on", "the", "path"]] == ["绿萝", "怕冷"]
    assert data["text/plain"].splitlines()[-1] == "best path 绿萝 + 怕冷: -11.50"
    assert {"绿萝 -5.00", "怕冷 -6.50", "绿 -7.00"} <= set(words_of(data["image/svg+xml"]))


def test_arcs_of_one_level_do_not_cross():
    spans = [(i, j) for i in range(6) for j in range(i + 1, 7)]
    levels = lattice.stacked(spans)
    for (a, one), (b, other) in itertools.combinations(zip(spans, levels, strict=True), 2):
        assert one != other or a[1] <= b[0] or b[1] <= a[0]


@pytest.mark.parametrize(("text", "words"), [("绿萝" * 6, "12 characters"), ("", "0 characters")])
def test_what_is_no_lattice_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        show.lattice(text, SCORES, [])


@pytest.mark.parametrize("seed", range(5))
def test_a_path_through_the_grammar_adds_up_to_the_document(shown, seed):
    steps = built_in.explain_draw(random.Random(seed))
    show.grammar_path(steps)
    data, bits = shown[0]["data"], built_in.draw(random.Random(seed)).bits
    assert data["text/plain"].splitlines()[-1] == f"{len(steps)} choices, {bits:.2f} bits in all"
    words = words_of(data["image/svg+xml"])
    assert all(slot in words and f"{cost:.2f}" in words for slot, _, cost in steps)
    assert len(data["text/plain"].splitlines()) == len(steps) + 2
    assert float(ElementTree.fromstring(data["image/svg+xml"]).get("width")) <= 900


def test_odds_say_how_rare_so_many_bits_are(shown):
    assert [lattice.odds(bits) for bits in (0, -0.1, 1, 3, 6, 12.5, 40)] == [
        "", "", "1 in 2.0", "1 in 8.0", "1 in 64", "1 in 5,793", "1 in 2^40.0",
    ]  # fmt: skip
    show.grammar_path([("hello", "", 1.0)])
    assert "(nothing)" in shown[0]["data"]["text/plain"]
