"""JupyterLab as its readers have it: training is stopped, interrupted, left and found again; sliders are moved.

Slow machines get time: a wait fails only after minutes. Every scene leaves screenshots, see `lab.SCREENSHOTS`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import CHROMIUM, QUIET, Reader, notebook_with, running

from helpers import paths

pytestmark = [pytest.mark.outside, pytest.mark.timeout(600)]
api = pytest.importorskip("playwright.sync_api", reason="JupyterLab is tested with playwright: pip install playwright")
if CHROMIUM is None:
    pytest.skip("JupyterLab is tested in Chromium, and none is installed", allow_module_level=True)

TINY = {"n_embd": 32, "n_layer": 2, "n_head": 2, "batch_size": 8, "gradient_accumulation": 1, "log_step": 5}
LONG = {**TINY, "epochs": 400, "eval_step": 50, "sample_step": 200, "checkpoint_step": 50, "warmup_steps": 4}
TRAINING = "await show.watch(training"
PANEL = "show.sampling_panel("


# stands for a machine on which a token takes its time: somebody must be able to press Cancel
SLOW = """
import time
from helpers.generate import generate
quick = generate.stream_chunks
def slow(*arguments, **options):
    for chunk in quick(*arguments, **options):
        time.sleep(0.15)
        yield chunk
generate.stream_chunks = slow
"""
CONTRAST = Path(__file__).with_name("contrast.js").read_text("utf-8")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Rooms 01 to 05 of a micro run, and JupyterLab on a folder with two notebooks; return its address."""
    folder = tmp_path_factory.mktemp("lab")
    environment = os.environ | {"RUNS_DIR": str(folder / "runs"), "PYTHONPATH": str(paths.repo_root())}
    command = [sys.executable, "-m", "helpers.run", "corpus", "vocab", "tokenize", "train", "--run", "sample"]
    subprocess.run([*command, "--preset", "micro"], env=environment, check=True, capture_output=True)
    (folder / "notebooks").mkdir()
    notebook_with("generate", folder / "notebooks", {"samples": 2, "max_new_tokens": 10, "questions": 8}, SLOW)
    notebook_with("train", folder / "notebooks", {**LONG, "run": "lab"})
    (folder / "runs" / "lab").mkdir()
    for room in ("corpus", "vocab", "tokens"):
        (folder / "runs" / "lab" / room).symlink_to(folder / "runs" / "sample" / room)
    with pytest.MonkeyPatch.context() as patch, running(folder / "notebooks", folder / "runs") as address:
        patch.setenv("RUNS_DIR", str(folder / "runs"))
        yield address


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield launched
        launched.close()


@pytest.fixture
def read(course, browser):
    """Return a function that opens a notebook in a new tab; afterwards, no page may have failed."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    readers = []

    def opened(stage, busy=False):
        readers.append(Reader(context.new_page(), course, stage, busy))
        return readers[-1]

    yield opened
    for reader in readers:
        assert not reader.errors
    context.close()


def rows(event):
    """Return the numbers of the updates at which the run's file of metrics has such a row, in order."""
    file = paths.room("lab", "train") / "metrics.jsonl"
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return [row["step"] for row in map(json.loads, lines) if row.get("event") == event]


def stopped_at(reader):
    """Return the update at which the dashboard says that the run was stopped."""
    found = re.search(r"stopped at step ([\d,]+) of [\d,]+", reader.output(TRAINING))
    assert found, reader.output(TRAINING)
    return int(found[1].replace(",", ""))


def under_way(reader, seconds=60):
    """Wait until the run has made some more updates, and a picture of them is there."""
    before = len(rows("step"))
    reader.wait(lambda: len(rows("step")) > before + 10, seconds, "training goes on")


def test_training_is_stopped_interrupted_restarted_and_left_and_always_goes_on(read):
    reader = read("train")
    stop = reader.page.locator(".jupyter-button", has_text="Stop")

    # 1. the Stop button: everything after the cell runs, too
    reader.menu("Run", "Run All Cells")
    reader.see(stop, 240)
    under_way(reader)
    reader.picture("1-training")
    stop.click()
    reader.until_idle(120)
    first = stopped_at(reader)
    assert not reader.failures() and not stop.count()
    reader.picture("2-stopped")

    # 2. the cell once more, then the kernel's own square
    reader.run_cell(TRAINING)
    reader.see(stop)
    under_way(reader)
    reader.interrupt()
    reader.until_idle(60)
    second = stopped_at(reader)
    assert second > first and rows("resume")[-1] == first and not reader.failures()

    # 3. the kernel is restarted in mid-training: it goes on from the last checkpoint
    reader.run_cell(TRAINING)
    reader.see(stop)
    under_way(reader)
    reader.menu("Kernel", "Restart Kernel and Run All Cells")
    reader.agree()
    reader.wait(lambda: len(rows("resume")) == 3, 240, "the run goes on in a new kernel")
    under_way(reader)
    assert rows("resume")[:2] == [first, second] and rows("resume")[2] >= second
    reader.picture("3-restarted")

    # 4. the tab is closed: training goes on, and a new tab can end it and see it again
    reader.page.close()
    before = rows("step")[-1]
    again = read("train", busy=True)
    again.wait(lambda: rows("step")[-1] > before + 50, 60, "training goes on without a tab")
    again.interrupt()
    again.until_idle(120)
    again.run_cell(TRAINING)
    again.see(again.page.locator(".jupyter-button", has_text="Stop")).click()
    again.until_idle(60)
    assert stopped_at(again) > before and not again.failures()
    again.picture("4-found-again")


def test_the_panel_writes_cancels_and_follows_its_sliders_also_in_the_dark(read):
    reader = read("generate")
    reader.menu("Run", "Run All Cells")
    panel = reader.page.locator(".jp-CodeCell").filter(has_text=PANEL).locator(".widget-vbox").first
    reader.see(panel, 240)
    reader.until_idle(240)
    assert not reader.failures()
    bars = panel.locator(".widget-html").filter(has_text="%").first

    # 1. a slider by keyboard: the bars follow
    before = bars.inner_text()
    handle = panel.locator(".widget-inline-hbox").filter(has_text="temperature").locator(".noUi-handle")
    reader.see(handle).focus()
    reader.page.keyboard.press("End")  # the highest temperature: hardly a text ends soon
    reader.wait(lambda: bars.inner_text() != before, 20, "the bars follow the slider")

    # 2. another beginning by hand, and Generate: the text grows
    panel.locator("textarea").fill("绿萝")
    panel.get_by_role("button", name="Generate").click()
    # the bars are drawn with ▌, too
    writing = panel.locator(".widget-html").filter(has_text="▌", has_not_text="before the filters").all_inner_texts
    reader.wait(writing, 20, "a text begins")
    short = writing()[0]
    reader.wait(lambda: writing() and len(writing()[0]) > len(short) + 2, 20, "the text grows")
    assert writing()[0].strip().startswith("绿萝")
    reader.picture("1-writing")

    # 3. Cancel, in the middle
    panel.get_by_role("button", name="Cancel").click()
    reader.wait(lambda: panel.get_by_text("cancelled:").count(), 20, "it is cancelled")
    assert not writing()
    reader.picture("2-cancelled")

    # 4. in light and dark, every word of ours can be read (WCAG 2.2: a contrast of 4.5 or more)
    assert reader.page.evaluate(CONTRAST) == []
    reader.menu("Settings", "Theme")
    reader.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^JupyterLab Dark$")).click()
    reader.page.wait_for_timeout(1500)
    reader.picture("3-dark")
    assert reader.page.evaluate(CONTRAST) == []
