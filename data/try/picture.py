"""Make the picture of README.md: `python data/try/picture.py RUN`, of a run that was trained with samples.

First its training: the loss falls to the floor, and what the model writes gets better. Then the page of this folder in
a real Chromium: a question, an answer, a continuation in colours. Writes first-minute.gif and, standing still,
first-minute.png. Needs playwright and a Chromium.
"""

import io
import json
import math
import runpy
import shutil
import sys
import threading
from functools import partial
from html import escape
from http.server import ThreadingHTTPServer
from pathlib import Path
from statistics import fmean

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from helpers import paths
from helpers.manifest import read_manifest

WIDTH, HEIGHT, COLOURS, MOST_BYTES = 800, 480, 48, 2_000_000
IMAGES = paths.repo_root() / "notebooks" / "images"
STYLE = """body { margin: 0; background: #faf8f4; color: #1f2421; font: 20px/1.6 "Noto Serif CJK SC", serif; }
h1 { font: 600 20px "Noto Sans CJK SC", sans-serif; margin: 16px 24px 0; }
p { margin: 4px 24px; height: 130px; white-space: pre-wrap; overflow: hidden; } svg { margin: 0 24px; }
text { font: 15px "Noto Sans CJK SC", sans-serif; fill: #5c645f; }"""

Frame = tuple[Image.Image, int]  # with how long it stays, in ms


def training(page: Page, run: str, frames: int = 24) -> list[Frame]:
    """Return pictures of the training: bits per character over updates, the floor, the newest sample."""
    lines = (paths.room(run, "train") / "metrics.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    steps = [each for each in events if each["event"] == "step"]
    for number, each in enumerate(steps):  # single batches are easier or harder than the corpus
        each["mean"] = fmean(s["bits_per_char"] for s in steps[number // 2 if number < 16 else number - 8 : number + 1])
    samples = [each for each in events if each["event"] == "sample"]
    floor, last = read_manifest(run, "train")["result"]["floor_bits_per_char"], steps[-1]["step"]
    x = lambda step: 10 + 720 * step / last  # noqa: E731
    y = lambda bits: 20 + 220 * math.log(8 / bits) / math.log(8 / 0.5)  # noqa: E731
    pictures = []
    for number in range(1, frames + 1):
        now = steps[math.ceil(len(steps) * (number / frames) ** 1.5) - 1]  # the beginning is slower
        points = " ".join(f"{x(s['step']):.1f},{y(s['mean']):.1f}" for s in steps if s["step"] <= now["step"])
        text = next((s["text"] for s in reversed(samples) if s["step"] <= now["step"]), "")
        head = f"{now['seconds'] / 60:.1f} min · {now['mean']:.2f} bits per character"
        page.set_content(
            f"<style>{STYLE}</style><h1>{head}</h1><svg width=740 height=270>"
            f"<line x1=10 x2=730 y1={y(floor):.1f} y2={y(floor):.1f} stroke=#2b8a62 stroke-dasharray=6,4 />"
            f"<text x=420 y={y(floor) + 20:.0f}>极限 the floor: no model can beat {floor:.3f}</text>"
            f'<polyline points="{points}" fill=none stroke=#2f6db0 stroke-width=2.5 /></svg><p>{escape(text)}</p>'
        )
        pictures.append(picture(page, 160))
    return [*pictures[:-1], (pictures[-1][0], 2000)]


def conversation(page: Page, address: str) -> list[Frame]:
    """Return pictures of the page: it answers, and continues a text in colours."""
    pictures = []
    page.goto(address)
    expect(page.locator("#model")).not_to_be_empty()
    for question in ("绿萝能放太阳底下晒吗", "那冬天多久浇一次水？"):
        for end in range(0, len(question) + 1, 3):
            page.fill("#question", question[:end])
            pictures.append(picture(page, 120))
        page.fill("#question", question)
        page.keyboard.press("Enter")
        expect(page.locator("#turns")).not_to_have_attribute("aria-busy", "true")
        pictures.append(picture(page, 1500))
    page.click("nav [data-view=texts]")
    page.fill("[name=prompt]", "我家的君子兰叶子发黄")
    page.evaluate("byId('seed').value = 3")
    page.click("#go")
    expect(page.locator("#results > li.whole, #results > li.long")).to_have_count(5)
    page.evaluate("scrollTo(0, 240)")
    pictures.append(picture(page, 1500))
    page.locator("#results .p2, #results .p1").first.focus()
    return [*pictures, picture(page, 3500)]


def picture(page: Page, milliseconds: int) -> Frame:
    """Return what the page shows now."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB"), milliseconds


def main(run: str) -> None:
    """Write both files."""
    demo = runpy.run_path(str(Path(__file__).with_name("serve.py")))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(demo["Handler"], files=demo["demo_files"]()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        frames = training(page, run) + conversation(page, f"http://127.0.0.1:{server.server_address[1]}/")
        browser.close()
    pictures = [image.quantize(COLOURS, dither=Image.Dither.NONE) for image, _ in frames]
    file = IMAGES / "first-minute.gif"
    times = [milliseconds for _, milliseconds in frames]
    pictures[0].save(file, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    pictures[-1].save(file.with_suffix(".png"), optimize=True)
    assert file.stat().st_size <= MOST_BYTES, f"{file.stat().st_size:,} bytes are too many: fewer colours, or frames"


if __name__ == "__main__":
    main(*sys.argv[1:])
