"""What the tests of show share: fragments of HTML, hostile text, rows of a run, and a run that trains nothing."""

import asyncio
import base64
import json
import math
import time
from html.parser import HTMLParser

from hypothesis import strategies as st

HOSTILE = st.text(max_size=12) | st.sampled_from(
    ["<script>alert(1)</script>", "<b", "&amp;", "]]>", '" onload="x', "'"]
)


def png_of(output: dict) -> bytes:
    """Return the picture of an output, which is one."""
    data = base64.b64decode(output["data"]["image/png"])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return data


def until(condition, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


class Page(HTMLParser):
    """The tags, attribute names and text of a fragment; `bare` is its text where styles are stripped, as on GitHub.

    There, cells and blocks are apart, <u>underlined</u> text stands in _ _, and <sup>superscripts</sup> follow a ^.
    """

    BEFORE = {"br": "\n", "u": "_", "sup": "^"}
    AFTER = {"u": "_", "td": "\t", "th": "\t", "tr": "\n", "div": "\n", "blockquote": "\n", "table": "\n"}

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.attributes, self.words, self.bare, self.open = set(), set(), "", "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.words += "\n" if tag == "br" else ""
        self.bare += self.BEFORE.get(tag, "")
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"
        self.bare += self.AFTER.get(tag, "")

    def handle_data(self, data):
        self.words += data
        self.bare += data


def stripped(output: dict) -> str:
    """Return the text of an output of HTML as it is read where styles are stripped; lines without edges."""
    return "\n".join(line.strip() for line in Page(output["data"]["text/html"]).bare.split("\n") if line.strip())


def rows_of(steps: int, total: int = 1000) -> list[dict]:
    rows = [{"event": "start", "total_steps": total}]
    for step in range(1, steps + 1):
        bits = 1 + 9 / step
        rows.append({"event": "step", "step": step, "bits_per_char": bits, "lr": 1e-3, "tokens_per_second": 5000.0,
                     "seconds_left": 100.0})  # fmt: skip
        if step % 10 == 0:
            rows.append({"event": "validation", "step": step, "bits_per_char": bits + 0.1})
    return rows


def full_rows(steps: int = 1000, layers: int = 2) -> list[dict]:
    """Rows with every field that a run may write."""
    rows = [{"event": "start", "step": 0, "total_steps": steps, "processes": 2}]
    for step in range(1, steps + 1):
        bits = 1.2 + 9 / step + 0.05 * math.sin(step)
        load = [[0.25 + 0.1 * math.sin(step / 50 + layer), 0.25, 0.25, 0.25 - 0.1 * math.sin(step / 50 + layer)]
                for layer in range(layers)]  # fmt: skip
        rows.append({
            "event": "step", "step": step, "total_steps": steps, "epoch": step / 500, "loss": bits, "accuracy": 0.3,
            "bits_per_char": bits, "lr": 1e-3 * (1 - step / steps), "grad_norm": 0.5 + 8 / step, "update_ratio": 1e-3,
            "tokens_per_second": 5e4, "mfu": 0.4, "memory": 2.1e9, "seconds": 0.12 * step, "train_seconds": 0.1 * step,
            "seconds_left": 0.1 * (steps - step), "skipped": 0, "scale": 65536.0, "expert_load": load,
        })  # fmt: skip
        if step % 100 == 0:
            rows.append({"event": "validation", "step": step, "bits_per_char": bits + 0.1})
    windows = [{"index": 7, "loss": 5.5, "text": "乱码<##>"}, {"index": 9, "loss": 3.0, "text": "第二"}]
    return [*rows, {"event": "spike", "step": steps, "loss": 4.0, "usual": 1.0, "windows": windows}]


class FakeTraining:
    """A run that writes a row whenever it is looked at, until it is asked to stop or has taken all its steps."""

    def __init__(self, folder, total_steps: int, fails: bool = False):
        self.metrics_path, self.total_steps, self.fails = folder / "metrics.jsonl", total_steps, fails
        self.coming, self.step, self.stops, self.ended = rows_of(total_steps, total_steps)[::-1], 0, 0, False

    @property
    def running(self) -> bool:
        if not self.ended and self.coming and not self.stops:
            self._write(self.coming.pop())
        elif not self.ended:
            self.ended = True
            if not self.fails:
                self._write({"event": "sample", "step": self.step, "text": "叶子<黄>"})
                reason = "stopped" if self.stops else "finished"
                self._write({"event": "end", "step": self.step, "reason": reason, "seconds": 65.0})
        return not self.ended

    def _write(self, row: dict) -> None:
        self.step = row.get("step", 0)
        with open(self.metrics_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def stop(self) -> None:
        self.stops += 1

    def wait(self) -> None:
        if self.fails:
            raise RuntimeError("the gradient is not finite")


async def steps_taken(training: FakeTraining, steps: int = 20) -> None:
    """Wait until a run has taken some steps."""
    while training.step < steps:
        await asyncio.sleep(0)


def final(shown) -> list[dict]:
    """Return what is left on the page, updates applied."""
    page = {}
    for i, output in enumerate(shown):
        page[(output["transient"] or {}).get("display_id", i)] = output["data"]
    return [data for data in page.values() if data]


def check_left_behind(shown, words: str) -> None:
    left = final(shown)
    assert [next(iter(data)) for data in left] == ["text/html", "image/png", "text/html"], "and no widget"
    assert words in left[0]["text/plain"]
    assert "叶子&lt;黄&gt;" in left[2]["text/html"]
