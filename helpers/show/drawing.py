"""The drawings of notebooks/images as outputs of cells: an executed copy of a notebook carries them wherever it lies.

A picture that markdown links to would be missing in such a copy; a cell's output is a part of it.
"""

import difflib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from IPython.display import display

from helpers import paths

_SVG = "{http://www.w3.org/2000/svg}"


def drawings() -> dict[str, Path]:
    """Return the drawings by name."""
    return {file.stem: file for file in sorted((paths.repo_root() / "notebooks" / "images").glob("*.svg"))}


def described(svg: str) -> str:
    """Return what a drawing says in words: its <title> and its <desc>."""
    root = ElementTree.fromstring(svg)
    words = [" ".join((root.findtext(f"{_SVG}{tag}") or "").split()) for tag in ("title", "desc")]
    return "[drawing] " + ". ".join(word.rstrip(".") for word in words if word) + "."


def show_svg(svg: str, plain: str) -> None:
    """Display a picture as SVG, or `plain` where pictures are not drawn."""
    display({"image/svg+xml": svg, "text/plain": plain}, raw=True)


def drawing(name: str) -> None:
    """Show a drawing of notebooks/images by its name, `drawing("kv-cache")`; its plain text says what it shows.

    Raises ValueError for a name that has no drawing, with the names that are near it.
    """
    known = drawings()
    if name not in known:
        near = difflib.get_close_matches(name, known, 3, 0.4) or list(known)
        raise ValueError(f"there is no drawing '{name}' in notebooks/images: is it one of {', '.join(near)}?")
    svg = known[name].read_text("utf-8")
    show_svg(svg, described(svg))
