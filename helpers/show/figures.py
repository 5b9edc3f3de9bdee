"""Figures of text: lengths, Zipf's law, coverage; and the style of all figures.

Each is drawn on its own `Figure`, without pyplot: nothing stays open, no backend is chosen, any thread may draw.
"""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from IPython.display import DisplayHandle, display
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

INK, GREY, GRID = "#333333", "#8a8f98", "#e8e8ea"
BLUE, RUST, GREEN, VIOLET = "#2f6db0", "#c4502f", "#2b8a62", "#8e5aa8"
WIDTH = 720  # of a figure on the page, in CSS pixels; it is drawn at 1.5 times that, for sharp screens
_STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#b5b8be",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "font.family": "DejaVu Sans",
    **{f"{axis}tick.{key}": value for axis in "xy"
       for key, value in (("color", INK), ("labelsize", 8.5), ("major.size", 0), ("minor.size", 0))},
}  # fmt: skip
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.0f} %")
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def png(fig: Figure) -> bytes:
    """Return the figure as a PNG with 128 colours, a third of the size; the same figure gives the same bytes."""
    agg = FigureCanvasAgg(fig)
    agg.draw()
    buffer = io.BytesIO()
    image = Image.fromarray(np.asarray(agg.buffer_rgba())).convert("RGB")
    image.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(buffer, "png")
    return buffer.getvalue()


def show_figure(fig: Figure, words: str, handle: DisplayHandle | None = None) -> None:
    """Display a figure, or replace the one of `handle`; `words` say what it shows where pictures are not drawn."""
    data = {"image/png": base64.b64encode(png(fig)).decode(), "text/plain": words}
    size = {"width": WIDTH, "height": round(WIDTH * fig.get_figheight() / fig.get_figwidth())}
    show = handle.update if handle else display
    show(data, metadata={"image/png": size}, raw=True)


def new_display() -> DisplayHandle:
    """Return a new, empty place on the page."""
    handle = display(display_id=True)
    assert handle is not None  # `display` returns a handle if it is given an id
    return handle


def canvas(height: float, **settings: Any) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes in the style of the course; `height` in units of 100 pixels.

    settings: of the axes, as `Axes.set` takes them.
    """
    fig, axes = mosaic(height, "A")
    axes["A"].set(**settings)
    return fig, axes["A"]


def mosaic(height: float, layout: str, **ratios: Sequence[float]) -> tuple[Figure, dict[str, Axes]]:
    """Return an empty figure and its axes by name; `layout` has a letter per panel, a line per row, "." for nothing.

    ratios: width_ratios and height_ratios of the panels.
    """
    with matplotlib.rc_context(_STYLE):
        fig = Figure(figsize=(WIDTH / 100, height), dpi=150, layout="constrained")
        return fig, fig.subplot_mosaic(layout, gridspec_kw=ratios)


def length_histogram(lengths: Iterable[int]) -> None:
    """Show how many characters documents have, with their median; a long tail puts the lengths on a log axis."""
    sizes = np.asarray(list(lengths), dtype=float)
    fig, ax = canvas(3.0, xlabel="length of a document (characters)", ylabel="documents")
    if len(sizes):
        median = float(np.median(sizes))
        low, high = max(sizes.min(), 1), max(sizes.max(), 2)
        if high > 20 * max(median, 1):
            edges = np.unique(np.round(np.geomspace(low, high + 1, 33))) - 0.5
            ax.set_xscale("log")
        else:
            # lengths are whole numbers: bins of now two, now three of them would look like teeth
            step = max(1, math.ceil((high - low + 1) / 48))
            edges = np.arange(low, high + step + 1, step) - 0.5
        ax.hist(sizes, bins=edges.tolist(), color=BLUE, alpha=0.85, edgecolor="white", linewidth=0.5)
        ax.axvline(median, color=RUST, linewidth=1.2)
        ax.annotate(f"median {median:,.0f}", (median, 1), (5, -2), xycoords=("data", "axes fraction"),
                    textcoords="offset points", color=RUST, fontsize=8.5, va="top")  # fmt: skip
        ax.xaxis.set_major_formatter(THOUSANDS)
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(THOUSANDS)
    ax.grid(axis="x", visible=False)
    show_figure(fig, f"histogram of {len(sizes):,} document lengths")


def thinned(n: int, points: int = 300) -> np.ndarray:
    """Return at most `points` indices of 0 … n-1, evenly spaced on a log axis, first and last included."""
    return np.unique(np.round(np.geomspace(1, n, points)).astype(int)) - 1 if n else np.empty(0, dtype=int)


def zipf(counts: Mapping[str, int]) -> None:
    """Show frequency against rank on log axes, beside Zipf's law: frequency falls as 1 / rank."""
    frequencies = np.array(sorted(counts.values(), reverse=True), dtype=float)
    fig, ax = canvas(3.3, xlabel="rank", ylabel="times in the text", xscale="log", yscale="log")
    if len(frequencies):
        at = thinned(len(frequencies))
        law = frequencies[0] / (at + 1)
        ax.plot(at + 1, np.where(law >= 0.5, law, np.nan), "--", color=GREY, linewidth=1.2, label="Zipf: 1 / rank")
        ax.plot(at + 1, frequencies[at], color=BLUE, label="this text")
        ax.legend(loc="upper right", frameon=False, fontsize=8.5)
    ax.xaxis.set_major_formatter(THOUSANDS)
    ax.yaxis.set_major_formatter(THOUSANDS)
    show_figure(fig, f"frequency against rank of {len(frequencies):,} kinds")


def share_covered(counts: Mapping[str, int], vocab_size: int | None = None) -> None:
    """Show which share of the running text the most frequent words cover; `vocab_size` is marked."""
    frequencies = np.array(sorted(counts.values(), reverse=True), dtype=float)
    words = "words in the vocabulary, commonest first"
    fig, ax = canvas(3.3, xlabel=words, ylabel="share of the running text", xscale="log")
    if len(frequencies):
        share = np.cumsum(frequencies) / frequencies.sum()
        at = thinned(len(share))
        ax.plot(at + 1, share[at], color=BLUE)
        if vocab_size:
            size = min(vocab_size, len(share))
            covered = share[size - 1]
            ax.plot([size, size], [0, covered], color=RUST, linewidth=1, linestyle=":")
            ax.plot([size], [covered], "o", color=RUST, markersize=5)
            text = f"{size:,} words: {100 * covered:.1f} %"
            ax.annotate(text, (size, 0.06), (-6, 0), textcoords="offset points", color=RUST, fontsize=8.5, ha="right")
    ax.set_ylim(0, 1.03)
    ax.xaxis.set_major_formatter(THOUSANDS)
    ax.yaxis.set_major_formatter(PERCENT)
    show_figure(fig, f"share of the text covered by the commonest of {len(frequencies):,} words")
