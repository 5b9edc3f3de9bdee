"""What the tests of show share: fragments of HTML, hostile text, rows of a run, and a run that trains nothing."""

import asyncio
import base64
import json
import math
import threading
import time
from html.parser import HTMLParser

from hypothesis import strategies as st


def png_of(output: dict) -> bytes:
    """Return the picture of an output, which is one."""
    data = base64.b64decode(output["data"]["image/png"])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return data


def until(condition, seconds: float = 10) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


class Page(HTMLParser):
    """Collects tags, attribute names and text of a fragment."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = set(), set(), "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "br":
            self.words += "\n"
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words += data


class Stripped(HTMLParser):
    """What a reader sees of a fragment where styles and titles are stripped, as on GitHub.

    Cells and blocks are apart, <u>underlined</u> text stands in _ _, and <sup>superscripts</sup> follow a ^.
    """

    SIGNS = {"td": "\t", "th": "\t", "tr": "\n", "div": "\n", "blockquote": "\n", "table": "\n"}

    def __init__(self, html: str):
        super().__init__()
        self.words = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.words += {"br": "\n", "u": "_", "sup": "^"}.get(tag, "")

    def handle_endtag(self, tag):
        self.words += {"u": "_"}.get(tag, self.SIGNS.get(tag, ""))

    def handle_data(self, data):
        self.words += data


def stripped(html: str) -> str:
    """Return the text of a fragment of HTML as it is read where styles are stripped; lines without edges."""
    return "\n".join(line.strip() for line in Stripped(html).words.split("\n") if line.strip())


HOSTILE = st.text(max_size=12) | st.sampled_from(
    ["<script>alert(1)</script>", "<b", "&amp;", "]]>", '" onload="x', "'"]
)


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
    """A run that writes rows until it is asked to stop or has taken all its steps."""

    def __init__(self, folder, total_steps: int, fails: bool = False):
        self.metrics_path, self.total_steps, self.fails = folder / "metrics.jsonl", total_steps, fails
        self.stops, self.error = 0, None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.stops += 1

    def wait(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)
        if self.error:
            raise self.error

    def _work(self) -> None:
        step = 0
        with open(self.metrics_path, "w", encoding="utf-8") as file:
            for row in rows_of(self.total_steps, self.total_steps):
                step = row.get("step", 0)
                file.write(json.dumps(row) + "\n")
                file.flush()
                if self.stops:
                    break
                time.sleep(0.002)
            if self.fails:
                self.error = RuntimeError("the gradient is not finite")
                return
            file.write(json.dumps({"event": "sample", "step": step, "text": "叶子<黄>"}) + "\n")
            reason = "stopped" if self.stops else "finished"
            file.write(json.dumps({"event": "end", "step": step, "reason": reason, "seconds": 65.0}) + "\n")


async def steps_written(training: FakeTraining, steps: int = 20) -> None:
    """Wait until a run has written some steps."""
    while not training.metrics_path.exists() or len(training.metrics_path.read_bytes().splitlines()) < steps:
        await asyncio.sleep(0.01)


def final(shown) -> dict:
    """Return what is left on the page: display id -> data, updates applied."""
    page = {}
    for i, output in enumerate(shown):
        page[(output["transient"] or {}).get("display_id", i)] = output["data"]
    return page


def check_left_behind(shown, words: str) -> None:
    left = [data for data in final(shown).values() if data]
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in left)
    assert [next(iter(data)) for data in left] == ["text/html", "image/png", "text/html"]
    assert words in left[0]["text/plain"]
    assert "叶子&lt;黄&gt;" in left[2]["text/html"]
