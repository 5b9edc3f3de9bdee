"""The load of a mixture of experts: which share of the tokens the router sends to each expert, now and over the steps.

Loads are counted in fair shares: 1 is what each expert would get if all got the same.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.show.figures import GREY, INK, RUST, THOUSANDS, VIOLET, mosaic, show_figure
from helpers.show.metrics_file import Metrics, planned_steps, rows_of, step_of
from helpers.show.series import part_starts


def shares(row: Mapping) -> np.ndarray:
    """Return a row's load of the experts in fair shares, (layers, experts); empty if it has none."""
    try:
        load = np.array(row.get("expert_load"), dtype=float)
    except (TypeError, ValueError):  # not numbers, or layers of different length
        return np.empty((0, 0))
    return load * load.shape[1] if load.ndim == 2 and load.size else np.empty((0, 0))


def busiest(row: Mapping) -> float | None:
    """Return the load of the busiest expert of all layers, in fair shares."""
    load = shares(row)
    return float(load.max()) if load.size else None


def expert_figure(rows: Sequence[Mapping]) -> Figure:
    """Return the experts' load in two pictures: its last state (layer × expert), and its course; some row has it."""
    # 1. all loads of the last row's shape, and empty axes
    loaded = [(step_of(row), load) for row in rows if (load := shares(row)).size]
    layers, experts = shape = loaded[-1][1].shape
    loaded = [(step, load) for step, load in loaded if load.shape == shape]
    fig, axes = mosaic(min(1.3 + 0.3 * max(layers, 4), 4.5), "LR", width_ratios=[2, 3])
    left, right = axes["L"], axes["R"]
    for ax in (left, right):
        ax.grid(visible=False)
    left.set(xlabel="expert", ylabel="layer")
    left.set_title("share of the tokens, at last", fontsize=9, loc="left")
    right.set(xlabel="step", ylabel="fair shares")
    right.set_title("busiest and idlest expert of each layer (darker: deeper)", fontsize=9, loc="left")
    # 2. the last state: white is a fair share, orange too much, violet too little; colour-blind readers see it too
    now = loaded[-1][1]
    left.imshow(now, cmap="PuOr_r", vmin=0, vmax=2, aspect="auto")
    left.set_xticks(range(experts) if experts <= 16 else [0, experts - 1])
    left.set_yticks(range(layers) if layers <= 16 else [0, layers - 1])
    if layers <= 16 and experts <= 8:
        for layer, expert in np.ndindex(now.shape):
            pale = 0.4 < now[layer, expert] < 1.6
            left.annotate(f"{100 * now[layer, expert] / experts:.0f} %", (expert, layer), ha="center", va="center",
                          fontsize=8, color=INK if pale else "white")  # fmt: skip
    # 3. the course: means of at most 300 parts
    at = part_starts(len(loaded), 300)
    steps = np.array([step for step, _ in loaded])[at]
    course = np.add.reduceat(np.stack([load for _, load in loaded]), at) / np.diff([*at, len(loaded)])[:, None, None]
    for layer in range(layers):
        shade = 0.35 + 0.65 * (layer + 1) / layers  # deeper layers are darker
        right.plot(steps, course[:, layer].max(1), color=RUST, alpha=shade, linewidth=1.2)
        right.plot(steps, course[:, layer].min(1), color=VIOLET, alpha=shade, linewidth=1.2)
    right.axhline(1, color=GREY, linewidth=1, linestyle="--")
    right.set_ylim(0, max(2.0, 1.1 * np.nanmax(course)))
    right.set_xlim(0, max(planned_steps(rows), steps[-1], 1))
    right.xaxis.set_major_formatter(THOUSANDS)
    right.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return fig


def expert_load(metrics: Metrics) -> None:
    """Show how the router of a mixture of experts distributes the tokens, now and over the steps.

    1 is a fair share (all experts get as many tokens); an expert at 0 is dead, one far above 1 does all the work.
    """
    rows = rows_of(metrics)
    now = next((load for row in reversed(rows) if (load := shares(row)).size), None)
    if now is None:
        print("no load of experts in these rows: the model is no mixture of experts")
        return
    layers, experts = now.shape
    words = f"load of {experts} experts in {layers} layers, fair share 1: {now.min():.2f} … {now.max():.2f}"
    show_figure(expert_figure(rows), words)
