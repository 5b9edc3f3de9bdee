"""Shapes as SVG text: any words are escaped, arrows end where they point; drawings read on any page."""

import re
import unicodedata
import xml.etree.ElementTree as ElementTree

import pytest
from displays import HOSTILE
from hypothesis import given

from helpers import paths
from helpers.show import notebook as show
from helpers.show import svg

SVG = "{http://www.w3.org/2000/svg}"
ROOT = paths.repo_root()
FILES = sorted((ROOT / "notebooks" / "images").glob("*.svg"))
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


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


@pytest.mark.parametrize(
    ("words", "width", "short"),
    [("绿萝怕冷", 40, "绿萝怕冷"), ("绿萝怕冷", 39, "绿萝怕…"), ("绿", 1, "…"), ("", 9, "")],
)
def test_words_that_are_too_wide_are_cut(words, width, short):
    assert svg.shortened(words, 10, width) == short
    assert svg.width_of("绿萝", 10) == 20 > svg.width_of("ab", 10)


@pytest.mark.parametrize(("share", "colour"), [(0, "#ffffff"), (1, "#000000"), (0.5, "#808080")])
def test_a_colour_between_two(share, colour):
    assert svg.between("#000000", "#ffffff", share) == colour


# ---- the drawings of notebooks/images ----


def luminance(colour: str) -> float:
    """Return how light a colour #rrggbb is, from 0 to 1 (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@each
def test_a_drawing_stands_in_presentation_attributes_alone_and_says_what_it_shows(file):
    """GitHub and JupyterLab strip styles and scripts, and what lies elsewhere would be missing in an executed copy."""
    text = file.read_text("utf-8")
    root = ElementTree.fromstring(text)
    for element in root.iter():
        assert element.tag.removeprefix(SVG) not in ("style", "script", "image", "use", "foreignObject", "a", "marker")
        assert not {name for name in element.attrib if name in ("style", "class", "id") or name.endswith("href")}
    assert "url(" not in text and re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
    assert len(root.findtext(f"{SVG}title")) > 10 and len(root.findtext(f"{SVG}desc")) > 60


@each
def test_a_drawing_reads_on_a_light_and_on_a_dark_page(file):
    """Its first shape is its own light background, all over; words are dark on it and large enough."""
    root = ElementTree.parse(file).getroot()
    width, height = (float(root.get(name)) for name in ("width", "height"))
    assert width <= 900 and root.get("viewBox") == f"0 0 {width:g} {height:g}"
    ground = root.find(f"{SVG}rect")
    assert float(ground.get("width")) >= width - 2 and float(ground.get("height")) >= height - 2
    assert luminance(ground.get("fill")) > 0.9
    for words in root.iter(f"{SVG}text"):
        assert float(words.get("font-size")) >= 12 and words.text.strip()
        assert (luminance(ground.get("fill")) + 0.05) / (luminance(words.get("fill")) + 0.05) > 4.5, words.text


def test_a_cell_carries_the_drawing(shown):
    show.drawing(FILES[0].stem)
    data = shown[0]["data"]
    assert data["image/svg+xml"] == FILES[0].read_text("utf-8")
    title = ElementTree.parse(FILES[0]).getroot().findtext(f"{SVG}title")
    assert data["text/plain"].startswith(f"[drawing] {title}")
    assert data["text/plain"].endswith(".") and "\n" not in data["text/plain"]
    with pytest.raises(ValueError, match="'kv-cash' .* 'kv-cache'"):
        show.drawing("kv-cash")
