"""JupyterLab on copies of the notebooks, and a reader before it in a real Chromium: clicks, keys, and what is seen."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

from helpers import paths

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# pictures of each run of the suite, to be looked at
SCREENSHOTS = Path(os.environ.get("SCREENSHOTS") or paths.repo_root() / "screenshots")
# a closed network refuses what a browser asks of its maker at every start
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def notebook_with(stage: str, folder: Path, parameters: Mapping[str, Any]) -> None:
    """Write a copy of a notebook without outputs, with other values in its parameters cell, as a reader types them."""
    book = nbformat.read(paths.notebook(stage), as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if "parameters" in cell.metadata.get("tags", []):
            for name, value in parameters.items():
                line = rf"^({name}: \w+ = ).*?(  #.*)$"
                cell.source, found = re.subn(line, lambda m, v=value: f"{m[1]}{v!r}{m[2]}", cell.source, flags=re.M)
                assert found == 1, f"{stage} has no parameter {name}"
    nbformat.write(book, folder / f"{stage}.ipynb")


@contextmanager
def running(folder: Path, runs: Path, patience: float = 60) -> Iterator[str]:
    """Start JupyterLab on a folder, with all settings its own; yield its address with {} for a path."""
    token = secrets.token_hex(16)
    environment = {name: value for name, value in os.environ.items() if name not in ("HEADLESS", "TQDM_DISABLE")}
    for kind in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"):
        environment[kind] = str(folder / ".jupyter" / kind.lower())
    environment |= {"RUNS_DIR": str(runs), "PYTHONPATH": str(paths.repo_root())}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
        f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    log = folder / "lab.log"
    with open(log, "w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + patience
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/lab", log.read_text("utf-8"))):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text("utf-8")[-3000:]
            time.sleep(0.1)
        yield f"http://127.0.0.1:{found[1]}/lab/tree/{{}}?token={token}&reset"
    finally:
        process.terminate()  # it ends its kernels, too
        process.wait(timeout=30)


class Reader:
    """Somebody before one notebook. Cells are named by a piece of their source."""

    def __init__(self, page, address: str, stage: str):
        self.page, self.stage = page, stage
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address.format(f"{stage}.ipynb"))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        self.until_idle(60)

    def menu(self, *names: str) -> None:
        """Choose an entry of a menu, by its words."""
        bar, *entries = names
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{bar}$")).click()
        for entry in entries:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}")).last.click()

    def run_all(self) -> None:
        """Run > Run All Cells."""
        self.menu("Run", "Run All Cells")

    def status(self) -> str:
        """Return what the kernel's indicator says: idle, busy, …"""
        return self.page.locator(".jp-Notebook-ExecutionIndicator").get_attribute("data-status") or ""

    def until_idle(self, seconds: float) -> None:
        """Wait until nothing runs and nothing waits to be run."""
        idle = "() => document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle' && ![..."
        idle += "document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'))"
        self.page.wait_for_function(idle, timeout=1000 * seconds)

    def cell(self, words: str):
        """Return the one code cell whose source holds these words."""
        cells = self.page.locator(".jp-CodeCell").filter(has=self.page.locator(".jp-InputArea", has_text=words))
        return cells.first

    def see(self, locator, seconds: float = 20):
        """Scroll until something is on the screen, and return it."""
        locator.wait_for(state="attached", timeout=1000 * seconds)
        locator.scroll_into_view_if_needed(timeout=1000 * seconds)
        return locator

    def run_cell(self, words: str) -> None:
        """Click into a cell and press Shift-Enter."""
        self.see(self.cell(words)).locator(".jp-InputArea .cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def wait(self, what: Callable[[], bool], seconds: float, words: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"{words}: not within {seconds} s"
            self.page.wait_for_timeout(100)

    def output(self, words: str) -> str:
        """Return what stands below a cell, as a reader sees it."""
        return self.cell(words).locator(".jp-OutputArea").first.inner_text()

    def tracebacks(self) -> list[str]:
        """Return the errors that stand in the notebook."""
        return self.page.locator("[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").all_inner_texts()  # noqa: E501

    def picture(self, name: str) -> None:
        """Keep a screenshot."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{self.stage}-{name}.png")
