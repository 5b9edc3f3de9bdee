"""A training run in texts: the samples it wrote over time, and the training text behind a loss spike. All HTML."""

from html import escape

from helpers.show.figures import thinned
from helpers.show.metrics_file import Metrics, finite, last, rows_of, step_of
from helpers.show.text import element, render_noted, render_table, show_all, show_html

SPIKE = (
    "A spike (尖峰) is an update whose loss lies far above the mean of the updates before it. It need not be a fault: "
    "a batch of short texts costs more per token, because first tokens are the hardest to predict. Read its texts "
    "above: broken ones are a fault; short ones are not, nor are several in one window."
)


def samples_over_time(metrics: Metrics, limit: int = 6, characters: int = 300) -> None:
    """Show what a run wrote as it learned: at most `limit` samples from the first to the last, each with its loss."""
    rows = rows_of(metrics)
    samples = [row for row in rows if row.get("event") == "sample"]
    rendered = []
    for at in thinned(len(samples), limit):  # most is learned early
        row = samples[at]
        before = [other for other in rows if other.get("event") in ("step", "validation")
                  and step_of(other) <= step_of(row) and finite(other.get("bits_per_char"))]  # fmt: skip
        note = f"step {step_of(row):,.0f}"
        if measured := last(before, "validation") or last(before, "step"):
            note += f" · {measured['bits_per_char']:.2f} bits/char"
        rendered.append(render_noted(str(row.get("text", "")), note, characters))
    show_all(rendered, "no sample yet")


def spikes(metrics: Metrics, limit: int = 5, characters: int = 300) -> None:
    """Show the last `limit` loss spikes of a run and the windows of text that they came from, the worst first.

    A line under them says what a spike is.
    """
    rows = [row for row in rows_of(metrics) if row.get("event") == "spike"][-limit:]
    lines = [[f"{step_of(row):,.0f}", two_decimals(row.get("loss")), two_decimals(row.get("usual"))] for row in rows]
    rendered = [render_table(lines, ["step", "loss (nats per token)", "usually"])] if rows else []
    for row in rows:
        for window in row.get("windows") or []:
            loss = two_decimals(window.get("loss"))
            note = f"step {step_of(row):,.0f} · window {window.get('index', '?')} · loss {loss}"
            rendered.append(render_noted(str(window.get("text", "")), note, characters))
    if rendered:
        rendered.append((element("div", "font-size:.85em;opacity:.8", escape(SPIKE)), SPIKE))
    html, plain = ("\n".join(parts) for parts in zip(*rendered, strict=True)) if rendered else ("", "")
    show_html(html or "<div>no spike</div>", plain or "no spike")


def two_decimals(value: object) -> str:
    """Return a number with two decimals, or a dash if there is none."""
    return f"{value:.2f}" if finite(value) else "–"
