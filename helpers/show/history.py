"""A training run in texts: the samples it wrote over time, and the training text behind a loss spike. All HTML."""

from collections.abc import Mapping, Sequence
from html import escape

from helpers.show.figures import thinned
from helpers.show.metrics_file import Metrics, finite, last, rows_of, step_of
from helpers.show.text import card, render_table, shortened, show_html


def samples_over_time(metrics: Metrics, limit: int = 6, characters: int = 300) -> None:
    """Show what a run wrote as it learned: at most `limit` samples from the first to the last, each with its loss."""
    rows = rows_of(metrics)
    samples = [row for row in rows if row.get("event") == "sample"]
    html, plain = [], []
    for at in thinned(len(samples), limit):  # most is learned early
        row = samples[at]
        before = [other for other in rows if other.get("event") in ("step", "validation")
                  and step_of(other) <= step_of(row) and finite(other.get("bits_per_char"))]  # fmt: skip
        note = f"step {step_of(row):,.0f}"
        if measured := last(before, "validation") or last(before, "step"):
            note += f" · {measured['bits_per_char']:.2f} bits/char"
        text = shortened(str(row.get("text", "")), characters)
        html.append(card(escape(text), note))
        plain.append(f"[{note}]\n{text}")
    show_html("\n".join(html) or "<div>no sample yet</div>", "\n\n".join(plain) or "no sample yet")


def render_spikes(rows: Sequence[Mapping], limit: int = 5, characters: int = 300) -> tuple[str, str]:
    """Return the last loss spikes and their windows of text as (HTML, plain text); empty if there are none."""
    spikes = [row for row in rows if row.get("event") == "spike"][-limit:]
    if not spikes:
        return "", ""
    lines = [[f"{step_of(row):,.0f}", two_decimals(row.get("loss")), two_decimals(row.get("usual"))] for row in spikes]
    table, flat = render_table(lines, ["step", "loss (nats a token)", "usually"])
    html, plain = [table], [flat]
    for row in spikes:
        for window in row.get("windows") or []:
            loss = two_decimals(window.get("loss"))
            note = f"step {step_of(row):,.0f} · window {window.get('index', '?')} · loss {loss}"
            text = shortened(str(window.get("text", "")), characters)
            html.append(card(escape(text), escape(note)))
            plain.append(f"[{note}]\n{text}")
    return "\n".join(html), "\n".join(plain)


def two_decimals(value: object) -> str:
    """Return a number with two decimals, or a dash if there is none."""
    return f"{value:.2f}" if finite(value) else "–"


def spikes(metrics: Metrics, limit: int = 5, characters: int = 300) -> None:
    """Show the last `limit` loss spikes of a run and the windows of text that they came from, the worst first."""
    html, plain = render_spikes(rows_of(metrics), limit, characters)
    show_html(html or "<div>no spike</div>", plain or "no spike")
