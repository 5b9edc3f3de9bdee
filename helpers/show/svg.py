"""Drawings as SVG: boxes, words, arrows on a panel of their own, in one palette; and those of notebooks/images.

A drawing carries its own light background, so that it reads on a light and on a dark page. Everything stands in
presentation attributes: a page that strips styles, as GitHub does, leaves them alone. Arrowheads are polygons, because
the ids of markers would collide where several drawings lie in one page.
"""

import math
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from html import escape

from IPython.display import display

from helpers import paths
from helpers.wording import did_you_mean

# lines and words; the hues differ in lightness too, for colour-blind readers
INK, GREY = "#2b2f36", "#646a75"
BLUE, GOLD = "#2563a8", "#96690a"
# fills
PAPER, EDGE = "#fbfaf7", "#d9d4c8"
PALE_BLUE, PALE_GOLD = "#d9e7f6", "#f7eac4"
SANS = "Helvetica, Arial, PingFang SC, Microsoft YaHei, Noto Sans CJK SC, sans-serif"

Point = tuple[float, float]


def width_of(words: str, size: float) -> float:
    """Return roughly how wide a line is drawn, in pixels; a Chinese character is as wide as the font's size."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in words)
    return size * (wide + 0.58 * (len(words) - wide))


def shortened(words: str, size: float, width: float) -> str:
    """Return a line of words that is at most so wide, with … for what is cut off."""
    if width_of(words, size) <= width:
        return words
    while words and width_of(words + "…", size) > width:
        words = words[:-1]
    return words + "…"


def between(dark: str, light: str, share: float) -> str:
    """Return the colour that lies `share` of the way from `light` to `dark`, each as #rrggbb."""
    pairs = [(int(dark[i : i + 2], 16), int(light[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(b + share * (a - b)):02x}" for a, b in pairs)


def escaped(words: str) -> str:
    """Return words as XML text; a control character, which XML cannot hold or would change, becomes �."""
    bad = lambda sign: unicodedata.category(sign) in ("Cc", "Cs") or sign in "\ufffe\uffff"  # noqa: E731
    return escape("".join("\ufffd" if bad(sign) else sign for sign in words))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """A drawing in the making: each method adds a shape, `svg` returns the whole.

    `title` and `desc` say in words what is drawn, for those who cannot see it and where no picture is drawn. All
    lengths are in CSS pixels, y points down; `size` is that of the font.
    """

    def __init__(self, width: float, height: float, title: str, desc: str):
        self.width, self.height, self.title, self.desc = width, height, title, desc
        self.parts: list[str] = []

    def add(self, tag: str, words: str | None = None, **attributes: object) -> None:
        """Add an element; an underscore in an attribute's name stands for a hyphen, an attribute None is left out."""
        pairs = []
        for name, value in attributes.items():
            if value is not None:
                text = _number(value) if isinstance(value, int | float) else str(value)
                pairs.append(f' {name.rstrip("_").replace("_", "-")}="{escaped(text)}"')
        body = "/>" if words is None else f">{escaped(words)}</{tag}>"
        self.parts.append(f"<{tag}{''.join(pairs)}{body}")

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str = PALE_BLUE, line: str | None = None, r: float = 6,
        dash: str | None = None,
    ) -> None:  # fmt: skip
        """Add a rectangle with rounded corners."""
        self.add("rect", x=x, y=y, width=w, height=h, rx=r or None, fill=fill, stroke=line,
                 stroke_width=1.3 if line else None, stroke_dasharray=dash)  # fmt: skip

    def text(
        self, x: float, y: float, words: str, size: float = 14, colour: str = INK, anchor: str = "middle",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Add a line of words whose middle is at the height y; `anchor` says what x is: start, middle, end."""
        self.add("text", words, x=x, y=y + 0.35 * size, font_size=size, fill=colour, text_anchor=anchor,
                 font_weight="bold" if bold else None)  # fmt: skip

    def path(self, points: Sequence[Point], colour: str = GREY, width: float = 1.6) -> None:
        """Add a line through points."""
        d = "M" + " L".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self.add("path", d=d, fill="none", stroke=colour, stroke_width=width, stroke_linecap="round",
                 stroke_linejoin="round")  # fmt: skip

    def arrow(self, *points: Point, colour: str = GREY, width: float = 1.6, head: float = 8) -> None:
        """Add a line through points that ends in an arrowhead at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        length = math.hypot(x1 - x0, y1 - y0) or 1
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        neck = (x1 - 0.8 * head * dx, y1 - 0.8 * head * dy)
        self.path([*points[:-1], neck], colour, width)
        back, aside = (x1 - head * dx, y1 - head * dy), (head / 2 * dy, -head / 2 * dx)
        corners = [(x1, y1), *((back[0] + sign * aside[0], back[1] + sign * aside[1]) for sign in (1, -1))]
        self.add("polygon", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in corners), fill=colour)

    def circle(self, x: float, y: float, radius: float, fill: str, line: str | None, width: float = 1.3) -> None:
        """Add a circle."""
        self.add("circle", cx=x, cy=y, r=radius, fill=fill, stroke=line, stroke_width=width if line else None)

    def svg(self) -> str:
        """Return the drawing on its panel."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        view = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} font-family="{SANS}" role="img">'
        words = [f"<title>{escaped(self.title)}</title>", f"<desc>{escaped(self.desc)}</desc>"]
        panel = f'<rect x="0.5" y="0.5" width="{_number(self.width - 1)}" height="{_number(self.height - 1)}" rx="10"'
        panel += f' fill="{PAPER}" stroke="{EDGE}"/>'
        return "\n".join([head, *words, panel, *self.parts, "</svg>"]) + "\n"

    def show(self, lines: Sequence[str]) -> None:
        """Display the drawing, or lines of text where pictures are not drawn."""
        show_svg(self.svg(), "\n".join(lines))


# ---- on the page ----


def show_svg(svg: str, plain: str) -> None:
    """Display a picture as SVG, or `plain` where pictures are not drawn."""
    display({"image/svg+xml": svg, "text/plain": plain}, raw=True)


def described(svg: str) -> str:
    """Return what a drawing says in words: its <title> and its <desc>."""
    root = ElementTree.fromstring(svg)
    words = [" ".join((root.findtext(f"{{*}}{tag}") or "").split()) for tag in ("title", "desc")]
    return "[drawing] " + ". ".join(word.rstrip(".") for word in words if word) + "."


def drawing(name: str) -> None:
    """Show a drawing of notebooks/images by its name, `drawing("kv-cache")`; its plain text says what it shows.

    It is a part of the output, because an executed copy of the notebook, wherever it lies, has no images beside it.
    Raises ValueError for a name that has no drawing.
    """
    drawings = {file.stem: file for file in sorted((paths.repo_root() / "notebooks" / "images").glob("*.svg"))}
    if name not in drawings:
        raise ValueError(f"there is no drawing '{name}' in notebooks/images{did_you_mean(name, drawings)}")
    svg = drawings[name].read_text("utf-8")
    show_svg(svg, described(svg))
