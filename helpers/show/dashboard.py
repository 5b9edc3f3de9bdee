"""Watch a run while it trains: the live figure, the facts in a line, the last sample, and a Stop button.

Knows nothing of models or of the training loop: all it reads is the run's metrics.jsonl, all it does to the run is
to ask it to stop.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

import ipywidgets as widgets
from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure

from helpers.show.figures import canvas, describe_loss, draw_loss, draw_schedule, loss_curve, series, show_figure
from helpers.show.text import card

REDRAW = 2.0  # seconds between two pictures, at least
SHARE = 0.05  # of one core at most goes into pictures: the cores that draw are those that train
SAY = 20.0  # seconds between two lines where nobody watches


class Training(Protocol):
    """What the dashboard asks of a run in a worker thread."""

    metrics_path: Path
    total_steps: int

    @property
    def running(self) -> bool: ...
    def stop(self) -> None: ...
    def wait(self, timeout: float | None = None) -> object: ...


class Tail:
    """The rows of a metrics.jsonl that is still being written; `read` costs only what is new."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.rows: list[dict] = []
        self._offset = 0

    def read(self) -> list[dict]:
        """Add what was written since the last call to `rows` and return it; a half-written last line waits."""
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:  # the file was begun anew
                    self._offset, self.rows = 0, []
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:  # the run has not written its first line yet
            return []
        self._offset += len(whole) + len(newline)
        new = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut short by a crash, before the run was resumed
                continue
            new.append(row)
            if row.get("event") in ("resume", "start") and "step" in row:  # what came after it is computed again
                self.rows = [old for old in self.rows if old.get("step", 0) <= row["step"] and old["event"] != "end"]
            self.rows.append(row)
        return new


def read_metrics(path: str | Path) -> list[dict]:
    """Return the rows of a metrics.jsonl; where a run was resumed, the steps it took again replace the older ones."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there: notebook 04_train writes it")
    tail = Tail(path)
    tail.read()
    return tail.rows


def last(rows: Sequence[Mapping], event: str) -> Mapping:
    """Return the last row of an event, or an empty one."""
    return next((row for row in reversed(rows) if row.get("event") == event), {})


def duration(seconds: float) -> str:
    """Return a time in words: 42 s, 3 min 05 s, 2 h 10 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def progress(rows: Sequence[Mapping], total_steps: int) -> str:
    """Return the state of a run in one line."""
    step, validation = last(rows, "step"), last(rows, "validation")
    parts = [f"step {step.get('step', 0):,} of {total_steps:,}"]
    if step.get("bits_per_char") is not None:
        parts.append(f"training {step['bits_per_char']:.3f} bits/char")
    if validation.get("bits_per_char") is not None:
        parts.append(f"validation {validation['bits_per_char']:.3f} bits/char")
    if step.get("tokens_per_second"):
        parts.append(f"{step['tokens_per_second']:,.0f} tokens/s")
    if step.get("seconds_left") is not None:
        parts.append(f"{duration(step['seconds_left'])} left")
    return " · ".join(parts)


def summary(rows: Sequence[Mapping], total_steps: int, floor: float | None) -> str:
    """Return how a run ended, in one line."""
    end, step, validation = last(rows, "end"), last(rows, "step"), last(rows, "validation")
    done = end.get("step", step.get("step", 0))
    parts = [f"{'finished' if done >= total_steps else 'stopped'} at step {done:,} of {total_steps:,}"]
    if end.get("seconds") is not None:
        parts.append(duration(end["seconds"]))
    if validation.get("bits_per_char") is not None:
        bits = validation["bits_per_char"]
        above = f", {100 * (bits / floor - 1):.0f} % above the floor" if floor else ""
        parts.append(f"validation {bits:.3f} bits/char{above}")
    return " · ".join(parts)


def dashboard_figure(
    rows: Sequence[Mapping], total_steps: int, floor: float | None, baselines: Mapping[str, float]
) -> Figure:
    """Return the loss above the learning rate."""
    fig, (above, below) = canvas(4.3, nrows=2, sharex=True, height_ratios=[5, 1])
    draw_loss(above, [{"total_steps": total_steps}, *rows], floor, baselines)
    draw_schedule(below, *series(rows, "step", "lr"))
    below.set(xlabel="step", ylabel="lr")
    return fig


def bar(rows: Sequence[Mapping], total_steps: int) -> str:
    """Return the line of `progress` with a bar under it, as HTML."""
    share = 100 * min(1, last(rows, "step").get("step", 0) / max(total_steps, 1))
    return (
        f'<div style="line-height:1.5">{escape(progress(rows, total_steps))}</div>'
        '<div style="height:4px;border-radius:2px;background:rgba(128,128,128,.25);overflow:hidden">'
        f'<div style="height:4px;width:{share:.1f}%;background:rgba(66,133,244,.8)"></div></div>'
    )


def render_sample(sample: Mapping) -> dict[str, str]:
    """Return a sample of the run as data for a raw display."""
    note = f"sample at step {sample['step']:,}"
    return {"text/html": card(escape(sample["text"]), note), "text/plain": f"[{note}]\n{sample['text']}"}


class Live:
    """What a front end shows of a running run. `close` leaves a line, a picture and a sample, and no widget."""

    def __init__(self, training: Training, floor: float | None, baselines: Mapping[str, float]):
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
        self.shown: Mapping = {}
        self.due = 0.0
        self.stale = False

    def stop(self) -> None:
        """Ask the run to save and end; it may take one more step and a validation until it has."""
        self.button.disabled, self.button.description = True, "Stopping"
        self.training.stop()

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Show new rows: the line at once, the picture when it is due."""
        if new or not self.line.value:
            self.line.value = bar(rows, self.training.total_steps)
        self.stale |= any(row.get("event") in ("step", "validation", "resume") for row in new)
        if self.stale and time.monotonic() >= self.due:
            self.draw(rows)

    def draw(self, rows: Sequence[Mapping]) -> None:
        """Draw the picture and the last sample."""
        began, first = time.thread_time(), self.picture is None
        fig = dashboard_figure(rows, self.training.total_steps, self.floor, self.baselines)
        self.picture = self.picture or display(display_id=True)
        show_figure(fig, describe_loss(rows, self.floor), self.picture)
        sample = last(rows, "sample")
        if sample and sample is not self.shown:
            self.sample = self.sample or display(display_id=True)
            self.sample.update(render_sample(sample), raw=True)
            self.shown = sample
        cost = 0 if first else time.thread_time() - began  # the first one also loads fonts
        self.due, self.stale = time.monotonic() + max(REDRAW, cost / SHARE), False

    def close(self, rows: Sequence[Mapping]) -> None:
        """Show all there is and put a line of text in the button's place."""
        if any(row.get("event") in ("step", "validation") for row in rows):
            self.draw(rows)
        line = summary(rows, self.training.total_steps, self.floor)
        self.top.update({"text/html": f"<div>{escape(line)}</div>", "text/plain": line}, raw=True)
        for widget in (self.row, self.button, self.line):
            widget.close()


class Lines:
    """What is left where nobody watches: lines while it runs, at the end a picture and a sample."""

    def __init__(self, training: Training, floor: float | None, baselines: Mapping[str, float]):
        self.training, self.floor, self.baselines = training, floor, baselines
        self.due = 0.0

    def stop(self) -> None:
        """Ask the run to save and end."""
        self.training.stop()

    def update(self, rows: Sequence[Mapping], new: Sequence[Mapping]) -> None:
        """Print a line if there is something to say."""
        events = {row.get("event") for row in new}
        if "validation" in events or ("step" in events and time.monotonic() >= self.due):
            print(progress(rows, self.training.total_steps), flush=True)
            self.due = time.monotonic() + SAY

    def close(self, rows: Sequence[Mapping]) -> None:
        """Print how it ended and leave the figure and the last sample."""
        print(summary(rows, self.training.total_steps, self.floor), flush=True)
        if any(row.get("event") in ("step", "validation") for row in rows):
            loss_curve(rows, self.floor, self.baselines)
        if sample := last(rows, "sample"):
            display(render_sample(sample), raw=True)


async def watch(
    training: Training,
    floor: float | None = None,
    baselines: Mapping[str, float] | None = None,
    interval: float = 0.2,
    live: bool | None = None,
) -> None:
    """Show a running training until it ends: `await watch(training)`.

    The cell must be asynchronous: a kernel that is busy in a plain loop never hears a button. The Stop button and the
    kernel's own stop ask the run to save and end, and the watching goes on until it has.
    `floor` and `baselines` are in bits per character, `interval` (seconds) is the pause between two looks at the file.
    `live` False prints lines instead; None means live unless the environment variable HEADLESS is set.
    Raises what the run raised.
    """
    live = not os.environ.get("HEADLESS") if live is None else live
    view = (Live if live else Lines)(training, floor, baselines or {})
    tail = Tail(training.metrics_path)
    stopped = False
    try:
        while True:
            running = training.running  # asked before the file is read: what a run writes last is not missed
            try:
                new = tail.read()
                view.update(tail.rows, new)
                if not running:
                    break
                await asyncio.sleep(interval)
            except (asyncio.CancelledError, KeyboardInterrupt):
                if stopped:  # asked twice: the run ends on its own, nobody waits for it
                    raise
                stopped = True
                view.stop()
    finally:
        view.close(tail.rows)
    training.wait()
