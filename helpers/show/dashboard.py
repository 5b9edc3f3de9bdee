"""The dashboard of a training run: a live figure, a line of facts, the last sample, and a Stop button.

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

from helpers.show.curves import describe_loss, run_figure
from helpers.show.figures import new_display, show_figure
from helpers.show.history import spikes
from helpers.show.metrics_file import Tail, last, planned_steps, step_of
from helpers.show.remote_run import RemoteRun
from helpers.show.status import progress, summary, troubles
from helpers.show.text import element, render_noted
from helpers.wording import duration

if TYPE_CHECKING:  # it loads torch
    from helpers.train.job import Training

REDRAW = 2.0  # seconds between two pictures, at least
SHARE = 0.05  # of one core's time goes into pictures at most: the cores that draw are those that train
SAY = 20.0  # seconds between two lines in a headless run
QUIET = 60.0  # seconds without a row after which the line says so
DRAWN = ("step", "validation", "resume", "start", "spike")  # events that change the picture


def bar(rows: Sequence[Mapping], total_steps: int, quiet: float = 0.0) -> str:
    """Return the line of `progress` with a bar under it and the troubles, as HTML; `quiet`: seconds without a row."""
    share = 100 * min(1, step_of(last(rows, "step")) / max(planned_steps(rows, total_steps), 1))
    line = progress(rows, total_steps) + (f" · no new row for {duration(quiet)}" if quiet else "")
    done = element("div", f"height:4px;width:{share:.1f}%;background:rgba(66,133,244,.8)", "")
    whole = "height:4px;border-radius:2px;background:rgba(128,128,128,.25);overflow:hidden"
    return div(line) + element("div", whole, done) + "".join(div(f"⚠ {words}") for words in troubles(rows))


def div(words: str) -> str:
    """Return words as a line of HTML."""
    return element("div", "line-height:1.5", escape(words))


def render_sample(sample: Mapping) -> dict[str, str]:
    """Return a sample of the run by MIME type, for a raw display."""
    html, plain = render_noted(str(sample.get("text", "")), f"sample at step {step_of(sample):,.0f}")
    return {"text/html": html, "text/plain": plain}


def drawable(rows: Sequence[Mapping]) -> bool:
    """Return whether there is anything to draw yet."""
    return any(row.get("event") in ("step", "validation") for row in rows)


def outcome(training: "Training | RemoteRun", rows: Sequence[Mapping], floor: float | None) -> list[str]:
    """Return how a run ended; of a remote run without an end, also why it is no longer watched."""
    complaint = training.complaint if isinstance(training, RemoteRun) else ""
    goes_on = complaint and training.running
    line = progress(rows, training.total_steps) if goes_on else summary(rows, training.total_steps, floor)
    return [line, complaint] if complaint else [line]


class Live:
    """What a browser shows of a run. `close` leaves lines, a picture and a sample, but no widget."""

    def __init__(self, training: "Training | RemoteRun", floor: float | None, baselines: Mapping[str, float]):
        self.training, self.floor, self.baselines = training, floor, baselines
        self.button = widgets.Button(
            description="Stop", icon="stop", tooltip="save a checkpoint and end", layout={"width": "8em"}
        )
        self.button.on_click(lambda _: self.stop())
        self.line = widgets.HTML(layout={"flex": "1 1 auto", "margin": "0 0 0 1em"})
        self.row = widgets.HBox([self.button, self.line])
        self.top = display(self.row, display_id=True)
        self.picture: DisplayHandle | None = None
        self.sample: DisplayHandle | None = None
        self.shown: Mapping = {}  # the sample that is on the page
        self.due = 0.0  # when the next picture may be drawn
        self.heard = time.monotonic()  # when the last row came
        self.stale = False  # there are rows that the picture lacks
        self.refused = ""  # why the run cannot be asked to stop

    def stop(self) -> None:
        """Ask the run to save and end; first, it may take one more step and validate."""
        self.button.disabled, self.button.description = True, "Stopping"
        self.line.value, self.refused = self.line.value.removesuffix(self.refused), ""  # of an earlier click
        try:
            self.training.stop()
        except OSError as error:  # a remote run: its folder is gone, or may not be written to
            self.button.disabled, self.button.description = False, "Stop"
            self.refused = div(f"⚠ cannot ask the run to stop: {error}")
            self.line.value += self.refused

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Show new rows: the line at once, the picture when it is due."""
        now = time.monotonic()
        if new:
            self.heard = now
        quiet = now - self.heard if now - self.heard > QUIET else 0.0
        if new or quiet or not self.line.value:
            self.line.value = bar(rows, self.training.total_steps, quiet) + self.refused
        self.stale |= any(row.get("event") in DRAWN for row in new)
        if self.stale and now >= self.due and drawable(rows):
            self.draw(rows)

    def draw(self, rows: Sequence[Mapping], live: bool = True) -> None:
        """Draw the picture and the last sample, and set when the next picture is due."""
        began, first = time.thread_time(), self.picture is None
        fig = run_figure(rows, self.floor, self.baselines, live)
        self.picture = self.picture or new_display()
        show_figure(fig, describe_loss(rows, self.floor), self.picture)
        sample = last(rows, "sample")
        if sample and sample is not self.shown:
            self.sample = self.sample or new_display()
            self.sample.update(render_sample(sample), raw=True)
            self.shown = sample
        cost = 0 if first else time.thread_time() - began  # the first one also loads fonts
        self.due, self.stale = time.monotonic() + max(REDRAW, cost / SHARE), False

    def close(self, rows: Sequence[Mapping]) -> None:
        """Show everything, and replace the button by lines of text."""
        if drawable(rows):
            self.draw(rows, live=False)
        if last(rows, "spike"):
            spikes(rows, limit=2)
        lines = [*outcome(self.training, rows, self.floor), *troubles(rows)]
        html = "".join(f"<div>{'⚠ ' if i else ''}{escape(line)}</div>" for i, line in enumerate(lines))
        self.top.update({"text/html": html, "text/plain": "\n".join(lines)}, raw=True)
        for widget in (self.row, self.button, self.line):
            widget.close()


class Lines:
    """What a headless notebook shows of a run: lines while it runs, at its end a picture and a sample."""

    def __init__(self, training: "Training | RemoteRun", floor: float | None, baselines: Mapping[str, float]):
        self.training, self.floor, self.baselines = training, floor, baselines
        self.due = self.warn = 0.0  # when the next line, and the next warning, may be printed
        self.pending: list[Mapping] = []  # troubles that were not yet printed

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.training.stop()

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Print a line if there is something to say."""
        self.pending += [row for row in new if row.get("event") != "step" and troubles([row])]
        if self.pending and time.monotonic() >= self.warn:  # not one line per skipped update
            print(*(f"  {words}" for words in troubles(self.pending)), sep="\n", flush=True)
            self.pending, self.warn = [], time.monotonic() + SAY
        events = {row.get("event") for row in new}
        if "validation" in events or ("step" in events and time.monotonic() >= self.due):
            print(progress(rows, self.training.total_steps), flush=True)
            self.due = time.monotonic() + SAY

    def close(self, rows: Sequence[Mapping]) -> None:
        """Print how the run ended, and show the figure and the last sample."""
        warnings = (f"  {words}" for words in troubles(self.pending))
        print(*warnings, *outcome(self.training, rows, self.floor), sep="\n", flush=True)
        if drawable(rows):
            show_figure(run_figure(rows, self.floor, self.baselines), describe_loss(rows, self.floor))
        if sample := last(rows, "sample"):
            display(render_sample(sample), raw=True)
        if last(rows, "spike"):
            spikes(rows, limit=2)


async def watch(
    training: "Training | RemoteRun",
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    interval: float = 0.2,
    live: bool | None = None,
) -> None:
    """Show a run until it ends: `await watch(training)`, or of another process: `await watch(attach("runs/x"))`.

    The cell must be asynchronous: a kernel that is busy in a plain loop never sees a click. The Stop button and the
    kernel's own stop ask the run to save and end, and the watching continues until it has ended. For a remote run only
    the button does so: the kernel's stop ends the watching, not the run.
    `floor` and `baselines` are in bits per character; `interval` is the time between two looks at the file, in seconds.
    `live` False prints lines instead; None means live unless the environment variable HEADLESS is set.
    Raises what the run raised.
    """
    live = not os.environ.get("HEADLESS") if live is None else live
    view: Live | Lines = (Live if live else Lines)(training, floor, baselines or {})
    tail = Tail(training.metrics_path)
    remote = isinstance(training, RemoteRun)
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
                if remote:  # the kernel's stop is not meant for another process
                    break
                if stopped:  # asked twice: do not wait until the run has ended
                    raise
                stopped = True
                view.stop()
    finally:
        view.close(tail.rows)
    training.wait()
