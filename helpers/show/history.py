"""What a run wrote and read on its way: its samples as they came, and the text behind a spike of the loss. All HTML."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from helpers.show.metrics_file import finite, last, rows_of, step_of
from helpers.show.text import card, render_table, show_html


def samples_over_time(metrics: str | Path | Sequence[Mapping], limit: int = 6, characters: int = 300) -> None:
    """Show what a run wrote as it learned: at most `limit` samples from the first to the last, each with its loss."""
    rows = rows_of(metrics)
    found = [row for row in rows if row.get("event") == "sample"]
    # evenly by the logarithm of their number: most is learned early
    at = np.unique(np.round(np.geomspace(1, len(found), limit)).astype(int)) - 1 if found else []
    html, plain = [], []
    for row in (found[i] for i in at):
        before = [other for other in rows if other.get("event") in ("step", "validation")
                  and step_of(other) <= step_of(row) and finite(other.get("bits_per_char"))]  # fmt: skip
        note = f"step {step_of(row):,.0f}"
        if known := last(before, "validation") or last(before, "step"):
            note += f" · {known['bits_per_char']:.2f} bits/char"
        text = shortened(str(row.get("text", "")), characters)
        html.append(card(escape(text), note))
        plain.append(f"[{note}]\n{text}")
    show_html("\n".join(html) or "<div>no sample yet</div>", "\n\n".join(plain) or "no sample yet")


def shortened(text: str, characters: int) -> str:
    """Return a text cut after so many characters, with a sign that it was."""
    return text if len(text) <= characters else text[:characters].rstrip() + " …"


def render_spikes(rows: Sequence[Mapping], limit: int = 5, characters: int = 300) -> tuple[str, str]:
    """Return the last spikes and the windows of text they came from as (HTML, plain text); empty if there is none."""
    found = [row for row in rows if row.get("event") == "spike"][-limit:]
    if not found:
        return "", ""
    number = lambda row, name: f"{row[name]:.2f}" if finite(row.get(name)) else "–"  # noqa: E731
    header = ["step", "loss (nats a token)", "usually"]
    lines = [[f"{step_of(row):,.0f}", number(row, "loss"), number(row, "usual")] for row in found]
    html, plain = ([part] for part in render_table(lines, header))
    for row in found:
        for window in row.get("windows") or []:
            note = f"step {step_of(row):,.0f} · window {window.get('index', '?')} · loss {number(window, 'loss')}"
            text = shortened(str(window.get("text", "")), characters)
            html.append(card(escape(text), escape(note)))
            plain.append(f"[{note}]\n{text}")
    return "\n".join(html), "\n".join(plain)


def spikes(metrics: str | Path | Sequence[Mapping], limit: int = 5, characters: int = 300) -> None:
    """Show the last `limit` spikes of a run's loss and the windows of text that they came from, the worst first."""
    html, plain = render_spikes(rows_of(metrics), limit, characters)
    show_html(html or "<div>no spike</div>", plain or "no spike")
