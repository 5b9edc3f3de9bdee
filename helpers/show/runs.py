"""Compare training runs: their loss in one figure, their figures and parameters in a table.

All it reads of a run is its metrics.jsonl, and the parameters.json beside it if there is one.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from helpers.show.curves import SHORT, draw_levels, finish_bits
from helpers.show.figures import BLUE, RUST, THOUSANDS, VIOLET, canvas, show_figure
from helpers.show.metrics_file import Metrics, finite, last, locate, rows_of, step_of
from helpers.show.series import AXES, averaged, axis_positions, last_value
from helpers.show.text import table
from helpers.train.settings import names_that_affect
from helpers.wording import duration

# a hue and a marker per run; the hues differ in lightness too, for colour-blind readers. One marker more than hues:
# so a pair comes again only after all others
HUES = (BLUE, RUST, "#b8860b", VIOLET, "#3d9dc3", "#55585e", "#c9588f")
LOOKS = tuple(islice(zip(cycle(HUES), cycle("os^Dv*XP"), strict=False), len(HUES) * 8))
LONGEST = 32  # characters of a name in the figure: a longer one would leave no space for the curves
_HIDDEN = names_that_affect("watching")  # they change nothing of what is learned, nor its speed


def parameters_of(metrics: Metrics) -> dict:
    """Return the parameters beside a run's metrics, without those that do not change what it learns; or none."""
    if not isinstance(metrics, str | Path):
        return {}
    try:
        parameters = json.loads((locate(metrics).parent / "parameters.json").read_text("utf-8"))
    except (OSError, ValueError):  # a metrics file that was copied alone
        return {}
    return {name: value for name, value in parameters.items() if name not in _HIDDEN}


def differences(many: Sequence[Mapping]) -> list[str]:
    """Return for each run, in words, the parameters in which the runs differ."""
    names = dict.fromkeys(name for each in many for name in each)
    differ = [name for name in names if len({json.dumps(each.get(name), sort_keys=True) for each in many if each}) > 1]
    return [", ".join(f"{name} {each[name]}" for name in differ if name in each) for each in many]


def facts(rows: Sequence[Mapping]) -> list[str]:
    """Return a run's cells under `HEADER`: steps, time, training and validation loss, speed, gradient norm."""
    step, validation = last(rows, "step"), last(rows, "validation")
    known = {name: [row[name] for row in rows if row.get("event") == "step" and finite(row.get(name))]
             for name in ("tokens_per_second", "grad_norm")}  # fmt: skip
    times = (row["train_seconds"] for row in reversed(rows) if finite(row.get("train_seconds")))  # of any event
    seconds = next(times, None)
    return [
        f"{max(map(step_of, rows), default=0):,.0f}",
        UNKNOWN if seconds is None else duration(seconds),
        *(f"{row['bits_per_char']:.3f}" if finite(row.get("bits_per_char")) else UNKNOWN for row in (step, validation)),
        *(f"{median(known[name]):{kind}}" if known[name] else UNKNOWN
          for name, kind in (("tokens_per_second", ",.0f"), ("grad_norm", ".3g"))),
    ]  # fmt: skip


def names_in_figure(names: Sequence[str]) -> list[str]:
    """Return the names of runs; if the figure's font lacks a letter of one, or one is too long, numbers instead."""
    drawable = all(name.isascii() and name.isprintable() and 0 < len(name) <= LONGEST for name in names)
    return list(names) if drawable else [f"run {i}" for i in range(1, len(names) + 1)]


def compare_figure(
    runs: Mapping[str, Sequence[Mapping]],
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    x: str = "step",
) -> Figure:
    """Return several runs' loss in one figure: validation bold, training thin; `x` is step or train_seconds."""
    fig, ax = canvas(4.0, xlabel=AXES[x])
    ends: list[tuple[float, str, str]] = []
    for name, rows, (colour, marker) in zip(names_in_figure(list(runs)), runs.values(), cycle(LOOKS), strict=False):
        axis = axis_positions(rows, x)
        if axis is None:
            continue
        for event, look in (("step", {"linewidth": 0.9, "alpha": 0.45}), ("validation", {"marker": marker})):
            steps, bits, *_ = averaged(rows, event, "bits_per_char")
            keep = np.isfinite(bits)
            (line,) = ax.plot(np.interp(steps[keep], *axis), bits[keep], color=colour, zorder=3, markersize=4.5)
            line.set(**look)
        if end := last_value(rows, "validation", "bits_per_char") or last_value(rows, "step", "bits_per_char"):
            ends.append((end, f"{name} {end:.2f}", colour))
    ends += draw_levels(ax, floor, baselines or {})
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(THOUSANDS if x == "step" else SHORT)
    finish_bits(ax, ends)
    return fig


UNKNOWN = "–"  # in a cell for which the rows have no figure
HEADER = ["run", "steps", "time", "training bits/char", "validation bits/char", "tokens/s", "gradient norm"]


def compare(
    runs: Mapping[str, Metrics],
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    x: str = "step",
) -> None:
    """Show several runs in one figure and a table: `compare({"a": "runs/a", "b": "runs/b/model/metrics.jsonl"})`.

    `x` is step or train_seconds (time in updates, without validation and saving). `floor` and `baselines` are in bits
    per character. Speed and gradient norm are medians over the run. If a parameters.json lies beside the metrics, the
    last column says in which parameters the runs differ. A run whose rows lack what `x` needs is only in the table. A
    column whose figure is known of no run is left out.
    """
    rows = {name: rows_of(metrics) for name, metrics in runs.items()}
    # 1. the table
    drawn = names_in_figure(list(rows))
    names = [name if name == short else f"{short}: {name}" for name, short in zip(rows, drawn, strict=True)]
    lines = [[name, *facts(each)] for name, each in zip(names, rows.values(), strict=True)]
    header, differ = HEADER, differences([parameters_of(metrics) for metrics in runs.values()])
    if any(differ):
        lines = [[*line, words] for line, words in zip(lines, differ, strict=True)]
        header = [*HEADER, "differs in"]
    # 2. the figure above it
    words = ", ".join(f"{line[0]} {line[4]}" for line in lines) or "no run"
    show_figure(compare_figure(rows, floor, baselines, x), f"validation bits per character: {words}")
    shown = [i for i in range(len(header)) if i == 0 or not lines or any(line[i] != UNKNOWN for line in lines)]
    table([[line[i] for i in shown] for line in lines], [header[i] for i in shown])
