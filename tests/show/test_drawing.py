"""The drawings of notebooks/images: files that read on any page, shown by a cell's output."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from helpers import paths
from helpers.show import drawing
from helpers.show import notebook as show

SVG = "{http://www.w3.org/2000/svg}"
ROOT = paths.repo_root()
FILES = sorted((ROOT / "notebooks" / "images").glob("*.svg"))
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def luminance(colour: str) -> float:
    """Return how light a colour #rrggbb is, from 0 to 1 (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_there_are_drawings_and_nothing_else():
    assert len(FILES) >= 12
    assert FILES == sorted((ROOT / "notebooks" / "images").iterdir())


@each
def test_a_drawing_says_in_words_what_it_shows(file):
    root = ElementTree.parse(file).getroot()
    title, desc = (root.findtext(f"{SVG}{tag}") or "" for tag in ("title", "desc"))
    assert len(title) > 10 and len(desc) > 60


@each
def test_a_drawing_stands_in_presentation_attributes_alone(file):
    """GitHub and JupyterLab strip styles and scripts, and what lies elsewhere would be missing in an executed copy."""
    text = file.read_text("utf-8")
    for element in ElementTree.fromstring(text).iter():
        assert element.tag.removeprefix(SVG) not in ("style", "script", "image", "use", "foreignObject", "a", "marker")
        assert not {name for name in element.attrib if name in ("style", "class", "id") or name.endswith("href")}
    assert "url(" not in text and re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]


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


@each
def test_a_drawing_is_used(file):
    notebooks = "".join(path.read_text("utf-8") for path in (ROOT / "notebooks").rglob("*.ipynb"))
    shown = f'show.drawing(\\"{file.stem}\\")' in notebooks
    assert shown or f"notebooks/images/{file.name}" in (ROOT / "README.md").read_text("utf-8")


def test_a_cell_carries_the_drawing(shown):
    show.drawing(FILES[0].stem)
    data = shown[0]["data"]
    assert data["image/svg+xml"] == FILES[0].read_text("utf-8")
    root = ElementTree.parse(FILES[0]).getroot()
    assert data["text/plain"].startswith("[drawing] " + root.findtext(f"{SVG}title"))
    assert data["text/plain"].endswith(".") and "\n" not in data["text/plain"]


def test_a_name_without_a_drawing_is_told_those_near_it(shown):
    with pytest.raises(ValueError, match="no drawing 'kv-cash' .* kv-cache"):
        show.drawing("kv-cash")
    with pytest.raises(ValueError, match="is it one of .*valley"):
        drawing.drawing("###")
    assert not shown
