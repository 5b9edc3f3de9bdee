"""The dashboard of a training run: a live figure, a line of facts, the last sample, a Stop button; and its texts.

It knows no model and no training loop: it reads the run's metrics.jsonl, and it can ask the run to stop. `Live` needs a
browser; `Lines` is for notebooks that run headless.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from helpers.show import metrics_file as log
from helpers.show.curves import describe_loss, run_figure
from helpers.show.figures import new_display, show_figure
from helpers.show.metrics_file import RunRows
from helpers.show.text import element, render_noted, render_table, show_all
from helpers.wording import say

if TYPE_CHECKING:  # it loads torch
    from helpers.train.job import Training

CHARACTERS = 300  # of a text that is shown
SAY = 20.0  # seconds between two lines in a headless run
DRAWN = ("step", "validation", "resume", "start", "spike")  # events that change the picture
SPIKE = (
    "A spike (尖峰) is an update whose loss lies far above the mean of the updates before it. It need not be a fault: "
    "a batch of short texts costs more per token, because first tokens are the hardest to predict. Read its texts "
    "above: broken ones are a fault; short ones are not, nor are several in one window."
)


# ---- what a run wrote ----


def spikes(metrics: RunRows) -> None:
    """Show a run's last two loss spikes and the windows of text that they came from; a line says what a spike is."""
    rows = [row for row in log.rows_of(metrics) if row.get("event") == "spike"][-2:]
    lines = [[f"{log.step_of(row):,.0f}", *(log.fixed(row.get(name)) for name in ("loss", "usual"))] for row in rows]
    rendered = [render_table(lines, ["step", "loss (nats per token)", "usually"])] if rows else []
    for row in rows:
        for window in row.get("windows") or []:
            loss = log.fixed(window.get("loss"))
            note = f"step {log.step_of(row):,.0f} · window {window.get('index', '?')} · loss {loss}"
            rendered.append(render_noted(str(window.get("text", "")), note, CHARACTERS))
    if rendered:
        rendered.append((element("div", "font-size:.85em;opacity:.8", escape(say(SPIKE))), say(SPIKE)))
    show_all(rendered, say("no spike"))


def render_sample(sample: Mapping) -> dict[str, str]:
    """Return a sample of the run by MIME type, for a raw display."""
    html, plain = render_noted(str(sample.get("text", "")), say("sample at step {:,.0f}", log.step_of(sample)))
    return {"text/html": html, "text/plain": plain}


# ---- the run watched ----


def progress_bar(rows: Sequence[Mapping], total_steps: int) -> str:
    """Return the state of a run as HTML: words, a bar, troubles."""
    share = 100 * min(1, log.step_of(log.last(rows, "step")) / max(log.planned_steps(rows, total_steps), 1))
    done = element("div", f"height:4px;width:{share:.1f}%;background:rgba(66,133,244,.8)", "")
    whole = "height:4px;border-radius:2px;background:rgba(128,128,128,.25);overflow:hidden"
    words = [log.progress_in_words(rows, total_steps), *(f"⚠ {trouble}" for trouble in log.troubles(rows))]
    lines = [element("div", "line-height:1.5", escape(each)) for each in words]
    return "".join([lines[0], element("div", whole, done), *lines[1:]])


def drawable(rows: Sequence[Mapping]) -> bool:
    """Return whether there is anything to draw yet."""
    return any(row.get("event") in ("step", "validation") for row in rows)


class Live:
    """What a browser shows of a run. `close` leaves lines, a picture and a sample, but no widget."""

    redraw = 2.0  # seconds between two pictures, at least
    share = 0.05  # of one core's time goes into pictures at most: the cores that draw are those that train

    def __init__(self, training: "Training", floor: float | None, baselines: Mapping[str, float]):
        self.training, self.floor, self.baselines = training, floor, baselines
        self.button = widgets.Button(
            description=say("Stop"), icon="stop", tooltip=say("save a checkpoint and end"), layout={"width": "8em"}
        )
        self.button.on_click(lambda _: self.stop())
        self.line = widgets.HTML(layout={"flex": "1 1 auto", "margin": "0 0 0 1em"})
        self.row = widgets.HBox([self.button, self.line])
        self.top = display(self.row, display_id=True)
        self.picture: DisplayHandle | None = None
        self.sample: DisplayHandle | None = None
        self.shown: Mapping = {}  # the sample that is on the page
        self.due = 0.0  # when the next picture may be drawn
        self.stale = False  # there are rows that the picture lacks

    def stop(self) -> None:
        """Ask the run to save and end; first, it may take one more step and validate."""
        self.button.disabled, self.button.description = True, say("Stopping")
        self.training.stop()

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Show new rows: the line at once, the picture when it is due."""
        now = time.monotonic()
        if new or not self.line.value:
            self.line.value = progress_bar(rows, self.training.total_steps)
        self.stale |= any(row.get("event") in DRAWN for row in new)
        if self.stale and now >= self.due and drawable(rows):
            self.draw(rows)

    def draw(self, rows: Sequence[Mapping], live: bool = True) -> None:
        """Draw the picture and the last sample, and set when the next picture is due."""
        began, first = time.thread_time(), self.picture is None
        fig = run_figure(rows, self.floor, self.baselines, live)
        self.picture = self.picture or new_display()
        show_figure(fig, describe_loss(rows, self.floor), self.picture)
        sample = log.last(rows, "sample")
        if sample and sample is not self.shown:
            self.sample = self.sample or new_display()
            self.sample.update(render_sample(sample), raw=True)
            self.shown = sample
        cost = 0 if first else time.thread_time() - began  # the first one also loads fonts
        self.due, self.stale = time.monotonic() + max(self.redraw, cost / self.share), False

    def close(self, rows: Sequence[Mapping]) -> None:
        """Show everything, and replace the button by lines of text."""
        if drawable(rows):
            self.draw(rows, live=False)
        if log.last(rows, "spike"):
            spikes(rows)
        lines = [log.end_in_words(rows, self.training.total_steps, self.floor), *log.troubles(rows)]
        html = "".join(f"<div>{'⚠ ' if i else ''}{escape(line)}</div>" for i, line in enumerate(lines))
        self.top.update({"text/html": html, "text/plain": "\n".join(lines)}, raw=True)
        for widget in (self.row, self.button, self.line):
            widget.close()


class Lines:
    """What a headless notebook shows of a run: lines while it runs, at its end a picture and a sample."""

    def __init__(self, training: "Training", floor: float | None, baselines: Mapping[str, float]):
        self.training, self.floor, self.baselines = training, floor, baselines
        self.due = self.warn = 0.0  # when the next line, and the next warning, may be printed
        self.pending: list[Mapping] = []  # troubles that were not yet printed
        self.stop = training.stop

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Print a line if there is something to say."""
        self.pending += [row for row in new if row.get("event") != "step" and log.troubles([row])]
        if self.pending and time.monotonic() >= self.warn:  # not one line per skipped update
            print(*(f"  {words}" for words in log.troubles(self.pending)), sep="\n", flush=True)
            self.pending, self.warn = [], time.monotonic() + SAY
        events = {row.get("event") for row in new}
        if "validation" in events or ("step" in events and time.monotonic() >= self.due):
            print(log.progress_in_words(rows, self.training.total_steps), flush=True)
            self.due = time.monotonic() + SAY

    def close(self, rows: Sequence[Mapping]) -> None:
        """Print how the run ended, and show the figure and the last sample."""
        warnings = (f"  {words}" for words in log.troubles(self.pending))
        print(*warnings, log.end_in_words(rows, self.training.total_steps, self.floor), sep="\n", flush=True)
        if drawable(rows):
            show_figure(run_figure(rows, self.floor, self.baselines), describe_loss(rows, self.floor))
        if sample := log.last(rows, "sample"):
            display(render_sample(sample), raw=True)
        if log.last(rows, "spike"):
            spikes(rows)


async def watch(
    training: "Training",
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    interval: float = 0.2,
) -> None:
    """Show a run until it ends: `await watch(training)`; raises what the run raised.

    The cell must be asynchronous: a kernel that is busy in a plain loop never sees a click. The Stop button and the
    kernel's own stop ask the run to save and end, and the watching continues until it has ended.
    `floor` and `baselines` are in bits per character; `interval` is the time between two looks at the file, in seconds.
    Where the environment variable HEADLESS is set, lines are printed instead.
    """
    view: Live | Lines = (Lines if os.environ.get("HEADLESS") else Live)(training, floor, baselines or {})
    tail = log.Tail(training.metrics_path)
    stopped = False
    try:
        while True:
            running = training.running  # asked before the file is read, so that the last rows are not missed
            try:
                new = tail.read()
                view.update(tail.rows, new)
                if not running:
                    break
                await asyncio.sleep(interval)
            except (asyncio.CancelledError, KeyboardInterrupt):
                if stopped:  # asked twice: do not wait until the run has ended
                    raise
                stopped = True
                view.stop()
    finally:
        view.close(tail.rows)
    training.wait()
