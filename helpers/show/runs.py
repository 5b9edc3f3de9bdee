"""Compare training runs, finished or under way: their loss in one figure, their figures and parameters in a table.

All it reads of a run is its metrics.jsonl, and the parameters.json beside it if there is one.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from helpers.show.curves import SHORT, draw_levels, finish_bits
from helpers.show.figures import BLUE, RUST, THOUSANDS, VIOLET, canvas, new_display, show_figure
from helpers.show.metrics_file import Metrics, Tail, finite, last, locate, rows_of, step_of
from helpers.show.remote_run import PATIENCE, attach
from helpers.show.series import AXES, averaged, axis_positions, last_value
from helpers.show.text import render_table, show_html
from helpers.train.settings import names_that_affect
from helpers.wording import duration

# a hue and a marker per run; the hues differ in lightness too, for colour-blind readers
LOOKS = tuple(zip((BLUE, RUST, "#b8860b", VIOLET, "#3d9dc3", "#55585e", "#c9588f"), "os^Dv*X", strict=True))
LONGEST = 32  # characters of a name in the figure: a longer one would leave no space for the curves
_HIDDEN = names_that_affect("watching")  # parameters that change nothing of what is learned, nor its speed


def parameters_of(metrics: Metrics) -> dict:
    """Return the parameters beside a run's metrics, without those that do not change what it learns; or none."""
    if not isinstance(metrics, str | Path):
        return {}
    try:
        parameters = json.loads((locate(metrics).parent / "parameters.json").read_text("utf-8"))
    except (OSError, ValueError):  # a metrics file that was copied alone
        return {}
    if not isinstance(parameters, dict):
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
    steps = [row for row in rows if row.get("event") == "step"]
    known = {name: [row[name] for row in steps if finite(row.get(name))] for name in ("tokens_per_second", "grad_norm")}
    seconds = next((row[key] for row in reversed(steps) for key in ("train_seconds", "seconds")
                    if finite(row.get(key))), None)  # fmt: skip
    done = max(map(step_of, rows), default=0)
    return [
        f"{done:,.0f}",
        "–" if seconds is None else duration(seconds),
        *(f"{row['bits_per_char']:.3f}" if finite(row.get("bits_per_char")) else "–" for row in (step, validation)),
        *(f"{median(known[name]):{kind}}" if known[name] else "–"
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
    log_x: bool = False,
) -> Figure:
    """Return several runs' loss in one figure: validation bold, training thin; `x` is step, train_seconds or tokens."""
    fig, ax = canvas(4.0)
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
    ax.set_xlabel(AXES[x])
    if log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(THOUSANDS if x == "step" else SHORT)
    finish_bits(ax, ends)
    return fig


HEADER = ["run", "steps", "time", "training bits/char", "validation bits/char", "tokens/s", "gradient norm"]


def compare(
    runs: Mapping[str, Metrics],
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    x: str = "step",
    log_x: bool = False,
) -> None:
    """Show several runs in one figure and a table: `compare({"a": "runs/a", "b": "runs/b/model/metrics.jsonl"})`.

    `x` is step, train_seconds (time in updates, without validation and saving) or tokens; `log_x` puts it on a log
    axis. `floor` and `baselines` are in bits per character. Speed and gradient norm are medians over the run. If a
    parameters.json lies beside the metrics, the last column says in which parameters the runs differ.
    A run whose rows lack what `x` needs is only in the table.
    """
    rows = {name: rows_of(metrics) for name, metrics in runs.items()}
    differ = differences([parameters_of(metrics) for metrics in runs.values()])
    words, html, plain = render_comparison(rows, differ)
    show_figure(compare_figure(rows, floor, baselines, x, log_x), words)
    show_html(html, plain)


def render_comparison(rows: Mapping[str, Sequence[Mapping]], differ: Sequence[str]) -> tuple[str, str, str]:
    """Return the words for the figure, and the table as HTML and as plain text."""
    names = [
        name if name == drawn else f"{drawn}: {name}"
        for name, drawn in zip(rows, names_in_figure(list(rows)), strict=True)
    ]
    lines = [[name, *facts(each)] for name, each in zip(names, rows.values(), strict=True)]
    header = list(HEADER)
    if any(differ):
        lines = [[*line, words] for line, words in zip(lines, differ, strict=True)]
        header.append("differs in")
    words = ", ".join(f"{line[0]} {line[4]}" for line in lines) or "no run"
    return (f"validation bits per character: {words}", *render_table(lines, header))


async def follow(
    runs: Mapping[str, str | Path],
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    x: str = "step",
    log_x: bool = False,
    interval: float = 5.0,
    patience: float = PATIENCE,
) -> None:
    """Compare runs that are under way, until all have ended: `await follow({"a": "runs/a", …})`.

    As `compare`, with a new picture every `interval` seconds if there are new rows. Stopping the cell ends the
    watching, never a run. A run that writes nothing for `patience` seconds counts as dead.
    """
    attached = {name: attach(run, patience) for name, run in runs.items()}
    tails = {name: Tail(run.metrics_path) for name, run in attached.items()}
    picture, table = new_display(), new_display()
    going = True
    while going:
        going = any([run.running for run in attached.values()])  # every run is asked, and before its file is read
        new = [tail.read() for tail in tails.values()]
        try:
            if any(new) or not going:
                rows: dict[str, Sequence[Mapping]] = {name: tail.rows for name, tail in tails.items()}
                words, html, plain = render_comparison(rows, differences([parameters_of(run) for run in runs.values()]))
                show_figure(compare_figure(rows, floor, baselines, x, log_x), words, picture)
                table.update({"text/html": html, "text/plain": plain}, raw=True)
            if going:
                await asyncio.sleep(interval)
        except (asyncio.CancelledError, KeyboardInterrupt):
            return
