"""The curves of a training run: learning rate, loss, small panels; any curves, any matrices.

Of a run it reads the rows of metrics.jsonl alone. What a row lacks is not drawn; a NaN is a gap.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from helpers.show import metrics_file as log
from helpers.show.figures import BLUE, GREEN, GREY, INK, PLAIN, RUST, THOUSANDS, VIOLET, canvas, mosaic, show_figure
from helpers.show.metrics_file import Field

TICKS = [0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20]  # of the axis of bits per character
CURVES = (("step", "training", BLUE), ("validation", "validation", RUST))  # event, name, colour
_SHORT = FuncFormatter(lambda value, _: short(value))


def short(value: float) -> str:
    """Return a number in few characters: 0.00012, 3.4k, 12M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:  # 999.6 has four digits when it is rounded
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones and in their order, at least `gap` apart, none above `high`."""
    order = np.argsort(wanted, kind="stable")
    gaps = gap * np.arange(len(order))
    pushed_up = np.maximum.accumulate(np.clip(np.array(wanted)[order], low, high) - gaps) + gaps
    ceilings = high - gaps[::-1]
    pushed_down = np.minimum.accumulate((np.minimum(pushed_up, ceilings) - gaps)[::-1])[::-1] + gaps
    return pushed_down[np.argsort(order)].tolist()


def draw_levels(ax: Axes, floor: float | None, baselines: Mapping[str, float]) -> list[tuple[float, str, str]]:
    """Draw the floor and the baselines as horizontal lines; return their (value, name, colour)."""
    levels = [(value, name, GREY, "--") for name, value in baselines.items() if value]
    if floor:
        levels.append((floor, "floor", GREEN, "-"))
    for value, _, colour, dash in levels:
        ax.axhline(value, color=colour, linewidth=1.2, linestyle=dash, zorder=2)
    return [(value, f"{name} {value:.2f}", colour) for value, name, colour, _ in levels]


def finish_bits(ax: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Make the axis of bits logarithmic and name the lines at their right end: (value, name, colour)."""
    ax.set_ylabel("bits per character")
    ends = [end for end in ends if end[0] > 0]
    if not ends:
        ax.set_yticks([])
        return
    ax.set_yscale("log")  # the last tenth of a bit above the floor must be visible beside the first bits of the fall
    below, above = ax.get_ylim()
    few = sum(below <= tick <= above for tick in TICKS) < 3
    ax.yaxis.set_major_locator(MaxNLocator(5) if few else FixedLocator(TICKS))
    ax.yaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_minor_locator(NullLocator())
    name_ends(ax, ends)


def name_ends(ax: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Name lines right of the axes at the height where they end: (value, name, colour); names do not overlap."""
    scale = ax.yaxis.get_transform()
    low, high = scale.transform(np.array(ax.get_ylim()))
    wanted = [float((scale.transform(np.array([value]))[0] - low) / (high - low)) for value, _, _ in ends]
    height = 72 * ax.figure.bbox.height / ax.figure.dpi * ax.get_position().height  # in points
    positions = spread_out(wanted, 12 / height, 0.0, 1.0)
    for at, (_, text, colour) in zip(positions, ends, strict=True):
        ax.annotate(text, (1, at), (6, 0), xycoords="axes fraction", textcoords="offset points", color=colour,
                    fontsize=8.5, va="center", annotation_clip=False, parse_math=False)  # fmt: skip


def draw_loss(ax: Axes, rows: Sequence[Mapping], floor: float | None, baselines: Mapping[str, float]) -> None:
    """Draw training and validation loss in bits per character, with spikes and resumes marked at the bottom."""
    ends: list[tuple[float, str, str]] = []
    for event, name, colour in CURVES:
        steps, values, low, high = log.averaged(rows, event, "bits_per_char")
        marker = "o" if event == "validation" or len(steps) == 1 else ""
        ax.plot(steps, values, color=colour, zorder=3, marker=marker, markersize=3.5)
        if event == "step":
            ax.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        if (end := log.last_value(rows, event, "bits_per_char")) is not None:
            ends.append((end, f"{name} {end:.2f}", colour))
    for event, sign, name, colour in (("spike", "^", "spike", VIOLET), ("resume", "|", "resumed", GREY)):
        at = [log.step_of(row) for row in rows if row.get("event") == event]
        if at:
            ax.plot(at, [0.02] * len(at), sign, transform=ax.get_xaxis_transform(), color=colour, markersize=6,
                    label=name, zorder=4)  # fmt: skip
            ax.legend(loc="upper right", frameon=False, fontsize=8.5, handletextpad=0)
    ends += draw_levels(ax, floor, baselines)
    end_of_steps(ax, rows)
    finish_bits(ax, ends)


def end_of_steps(ax: Axes, rows: Sequence[Mapping]) -> None:
    """Set an axis of steps from 0 to the last planned step; early in a run, to four times the steps done."""
    done = max(map(log.step_of, rows), default=0)
    ax.set_xlim(0, max(done, min(log.planned_steps(rows), 4 * done), 1))
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.xaxis.set_major_formatter(THOUSANDS)


def describe_loss(rows: Sequence[Mapping], floor: float | None) -> str:
    """Return in words what the loss curves show at their right end."""
    ends = {name: log.last_value(rows, event, "bits_per_char") for event, name, _ in CURVES} | {"floor": floor or None}
    words = [f"{name} {end:.2f}" for name, end in ends.items() if end is not None]
    return f"bits per character: {', '.join(words) or 'nothing measured yet'}"


def busiest(row: Mapping) -> float | None:
    """Return the load of a mixture's busiest expert, in all layers; 1 is what each would get if all got the same."""
    try:
        load = np.array(row.get("expert_load"), dtype=float)
    except (TypeError, ValueError):  # not numbers, or layers of different length
        return None
    return float(load.max() * load.shape[1]) if load.ndim == 2 and load.size else None


# ---- a run: its learning rate and its loss, and small panels under it ----


def draw_schedule(ax: Axes, steps: ArrayLike, lrs: ArrayLike) -> None:
    """Draw the learning rate, with its peak as the only number on the axis."""
    ax.plot(steps, lrs, color=GREEN)
    ax.fill_between(steps, lrs, color=GREEN, alpha=0.08, linewidth=0)
    peak = np.nanmax(lrs, initial=0)
    ax.set_ylim(0, 1.12 * peak or 1)
    ax.set_yticks([0, peak], ["0", f"{peak:.2g}"])
    ax.xaxis.set_major_formatter(THOUSANDS)


POINTS = 120  # of a line in a panel
FEW = 30  # where single steps say little
# title, field of a step row, factor, on a log axis?
PANELS: tuple[tuple[str, Field, float, bool], ...] = (
    ("learning rate", "lr", 1, False),
    ("gradient norm", "grad_norm", 1, True),
    ("tokens / s", "tokens_per_second", 1, False),
    ("update / weight", "update_ratio", 1, True),
    ("memory, GB", "memory", 1e-9, False),
    ("% of peak rate", "mfu", 100, False),
    ("busiest expert", busiest, 1, False),
    ("fp16 scale", "scale", 1, True),
)
LIVE = 3  # panels while the run goes on, the first that have data: a picture to be read at a glance


def draw_panel(
    ax: Axes, rows: Sequence[Mapping], title: str, field: Field, factor: float, log_axis: bool, points: int = POINTS
) -> None:
    """Draw one field over the steps, in `points` parts at most, with its last value in the title."""
    steps, *lines = log.averaged(rows, "step", field, points)
    values, low, high = (factor * line for line in lines)
    known = values[np.isfinite(values)]
    if field == "lr":
        draw_schedule(ax, steps, values)
    else:
        ax.plot(steps, values, color=INK, linewidth=1.1, marker="." if len(known) == 1 else None)
        ax.fill_between(steps, low, high, color=INK, alpha=0.18, linewidth=0)
        if log_axis and len(known) and 0 < 5 * known.min() < known.max():
            ax.set_yscale("log")
            wide = known.max() > 50 * known.min()
            ax.yaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 3), numticks=4))
            ax.yaxis.set_minor_formatter(NullFormatter())
        elif len(known):
            bottom, top = min(0, 1.15 * np.nanmin(low)), max(0, 1.15 * np.nanmax(high))
            ax.set_ylim(bottom, top if top > bottom else 1)
            ax.yaxis.set_major_locator(MaxNLocator(3))
        ax.yaxis.set_major_formatter(_SHORT)
    now = log.last_value(rows, "step", field)
    ax.set_title(title if now is None else f"{title}  {short(factor * now)}", fontsize=8.5, color=INK, loc="left")
    ax.tick_params(labelsize=7.5)
    end_of_steps(ax, rows)
    ax.xaxis.set_major_locator(MaxNLocator(2, integer=True))  # there is little space


def run_figure(
    rows: Sequence[Mapping], floor: float | None, baselines: Mapping[str, float], live: bool = False
) -> Figure:
    """Return a run's loss with its panels under it: all that have data; while the run is live, the first three."""
    panels = [panel for panel in PANELS if log.last_value(rows, "step", panel[1]) is not None]
    if live:
        panels = panels[:LIVE]
    across = len(panels) if len(panels) <= 4 else -(-len(panels) // 2)
    lines = [range(at, at + across) for at in range(0, len(panels), across or 1)]
    names = ["".join(f"{i}" if i < len(panels) else "." for i in line) for line in lines]
    heights = [3.1, *[1.15] * len(lines)]
    fig, axes = mosaic(sum(heights), "\n".join(["L" * (across or 1), *names]), height_ratios=heights)
    draw_loss(axes["L"], rows, floor, baselines)
    axes["L"].set_xlabel("step")
    for i, panel in enumerate(panels):
        draw_panel(axes[f"{i}"], rows, *panel)
    return fig


# ---- curves of any numbers ----

_SHAPES = tuple(zip((BLUE, RUST, GREEN, VIOLET, INK), ("-", "--", "-.", ":", "-"), "os^Dv", strict=True))


def describe_curves(series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return in words where each curve begins, where it is lowest and where it ends."""
    words = []
    for name, points in series.items():
        known = [(x, y) for x, y in points if math.isfinite(y)]
        if not known:
            words.append(f"{name}: nothing measured")
            continue
        (x0, first), (x1, last), (x, least) = known[0], known[-1], min(known, key=lambda point: point[1])
        words.append(f"{name}: {first:.2f} at {x0:g}, lowest {least:.2f} at {x:g}, {last:.2f} at {x1:g}")
    return "; ".join(words)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], y: str = "bits per character", x: str = "updates"
) -> None:
    """Show curves by name, {"training": [(updates, bits), …], …}; `x` and `y` name the axes.

    Each curve has its own colour and dash, and its last value stands at its right end. A NaN is a gap. Raises
    ValueError for a name with other than English letters.
    """
    for name in (*series, x, y):
        if not (name.isascii() and name.isprintable()):
            raise ValueError(f"'{name}' cannot be written into a figure, whose font has only English letters")
    fig, ax = canvas(3.3, xlabel=x, ylabel=y)
    ends = []
    for (name, points), (colour, dash, marker) in zip(series.items(), cycle(_SHAPES), strict=False):
        places, values = (np.array([point[i] for point in points], dtype=float) for i in (0, 1))
        few = len(places) <= 40
        ax.plot(places, values, color=colour, linestyle=dash, marker=marker if few else "", markersize=4, zorder=3)
        known = values[np.isfinite(values)]
        if len(known):
            ends.append((float(known[-1]), f"{name} {known[-1]:.2f}", colour))
    ax.xaxis.set_major_formatter(_SHORT)
    ax.yaxis.set_major_formatter(PLAIN)
    name_ends(ax, ends)
    show_figure(fig, describe_curves(series))


def panels(rows: Sequence[Mapping], fields: Mapping[str, str]) -> None:
    """Show fields of rows over their "step", a small panel each, with its last value: {title: field}.

    A row may lack a field; titles are in English letters. Updates are averaged in parts, and the shade goes from the
    lowest of a part to its highest.
    """
    steps = [{"event": "step", "total_steps": len(rows), **row} for row in rows]
    names = "".join(chr(ord("A") + i) for i in range(len(fields)))
    fig, axes = mosaic(1.5, names)
    words = []
    for name, (title, field) in zip(names, fields.items(), strict=True):
        draw_panel(axes[name], steps, title, field, 1.0, log_axis=False, points=FEW)
        values = [row[field] for row in rows if field in row]
        words.append(f"{title}: {short(values[0])} to {short(values[-1])}" if values else f"{title}: nothing measured")
    show_figure(fig, "; ".join(words))


def maps(matrices: Mapping[str, ArrayLike], across: int = 4) -> None:
    """Show matrices of numbers from 0 to 1 by name, small and side by side; the darker, the larger."""
    letters = [*map(chr, range(ord("A"), ord("A") + len(matrices))), *"." * (-len(matrices) % across)]
    lines = ["".join(letters[at : at + across]) for at in range(0, len(letters), across)]
    fig, axes = mosaic(1.9 * len(lines), "\n".join(lines))
    for letter, (name, matrix) in zip(letters, matrices.items(), strict=False):
        axes[letter].imshow(np.asarray(matrix, dtype=float), cmap="Blues", vmin=0, vmax=1)
        axes[letter].set(xticks=[], yticks=[])
        axes[letter].set_title(name, fontsize=8.5, loc="left")
        axes[letter].grid(visible=False)
    show_figure(fig, f"{len(matrices)} maps: {', '.join(matrices)}")
