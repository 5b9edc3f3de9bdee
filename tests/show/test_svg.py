"""Shapes as SVG text: any words are escaped, nothing depends on styles or ids, arrows end where they point."""

import re
import unicodedata
import xml.etree.ElementTree as ElementTree

import pytest
from displays import HOSTILE
from hypothesis import given

from helpers.show import svg

SVG = "{http://www.w3.org/2000/svg}"


@given(HOSTILE)
def test_any_words_are_words(words):
    picture = svg.Picture(100, 50, words, words)
    picture.text(50, 25, words, bold=True)
    picture.text(10, 10, "b")
    root = ElementTree.fromstring(picture.svg())
    seen = "".join("\ufffd" if unicodedata.category(sign) == "Cc" else sign for sign in words)
    assert (root.findtext(f"{SVG}title") or "") == seen
    assert [item.text or "" for item in root.iter(f"{SVG}text")] == [seen, "b"]
    assert not {name for item in root.iter() for name in item.attrib} & {"style", "class", "id"}


def test_an_arrow_ends_at_its_last_point():
    picture = svg.Picture(100, 100, "an arrow", "to the right")
    picture.arrow((10, 50), (90, 50), head=10)
    root = ElementTree.fromstring(picture.svg())
    tip, *corners = re.findall(r"([\d.]+),([\d.]+)", root.find(f"{SVG}polygon").get("points"))
    assert tip == ("90", "50") and sorted(corners) == [("80", "45"), ("80", "55")]
    assert root.find(f"{SVG}path").get("d") == "M10,50 L82,50"


def test_chinese_is_wider_than_english():
    assert svg.width_of("绿萝", 10) == 20 > svg.width_of("ab", 10)


@pytest.mark.parametrize(
    ("words", "width", "short"),
    [("绿萝怕冷", 40, "绿萝怕冷"), ("绿萝怕冷", 39, "绿萝怕…"), ("绿", 1, "…"), ("", 9, "")],
)
def test_words_that_are_too_wide_are_cut(words, width, short):
    assert svg.shortened(words, 10, width) == short


@pytest.mark.parametrize(("share", "colour"), [(0, "#ffffff"), (1, "#000000"), (0.5, "#808080")])
def test_a_colour_between_two(share, colour):
    assert svg.between("#000000", "#ffffff", share) == colour
