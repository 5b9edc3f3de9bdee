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


def notebook_with(stage: str, folder: Path, parameters: Mapping[str, Any], first: str = "") -> None:
    """Write a copy of a notebook without outputs, with other values in its parameters cell, as a reader types them.

    first: a cell of code that comes before all others.
    """
    book = nbformat.read(paths.notebook(stage), as_version=4)
    if first:
        book.cells.insert(0, nbformat.v4.new_code_cell(first))
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
    quiet = folder / ".jupyter" / "jupyterlab_settings_dir" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True, exist_ok=True)  # a question about news would lie over the notebook
    (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}', "utf-8")
    environment |= {"RUNS_DIR": str(runs), "PYTHONPATH": str(paths.repo_root())}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
        f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}",
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

    def __init__(self, page: Any, address: str, stage: str, busy: bool = False):
        """Open a notebook; `busy`: its kernel is at work, and says nothing to a new tab before it has ended."""
        self.page, self.stage = page, stage
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address.format(f"{stage}.ipynb"))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        self.steadily(lambda: self.status() == "unknown" if busy else self.status() == "idle", 90, "a kernel")

    def menu(self, *names: str) -> None:
        """Choose an entry of a menu, by how its words begin."""
        bar, *entries = names
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{bar}$")).click()
        for entry in entries:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{entry}")).last.click()

    def agree(self) -> None:
        """Press the button of a question that says yes."""
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()

    def interrupt(self) -> None:
        """Press the square in the toolbar."""
        self.page.locator("[data-command='notebook:interrupt-kernel']").first.click()

    def status(self) -> str:
        """Return what the kernel's indicator says: idle, busy, …"""
        return self.page.locator(".jp-Notebook-ExecutionIndicator").get_attribute("data-status") or ""

    def at_work(self) -> bool:
        """Return whether a cell runs or waits to be run."""
        prompts = "[...document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'))"
        return self.status() != "idle" or self.page.evaluate(prompts)

    def until_idle(self, seconds: float) -> None:
        """Wait until nothing runs and nothing waits to be run."""
        self.steadily(lambda: not self.at_work(), seconds, "the notebook comes to its end")

    def steadily(self, what: Callable[[], bool], seconds: float, words: str) -> None:
        """Wait until something has been so for a second: a status also flickers."""
        seen: list[bool] = []
        self.wait(lambda: seen.append(what()) or seen[-10:] == [True] * 10, seconds, words)

    def wait(self, what: Callable[[], object], seconds: float, words: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                self.picture("in-vain")
                raise AssertionError(f"in vain for {seconds:g} s: {words}; errors: {self.failures()}")
            self.page.wait_for_timeout(100)

    def cell(self, words: str) -> Any:
        """Return the first code cell whose source holds these words."""
        holds = self.page.locator(".jp-InputArea", has_text=words)
        return self.page.locator(".jp-CodeCell").filter(has=holds).first

    def see(self, locator: Any, seconds: float = 20) -> Any:
        """Scroll until something is on the screen, and return it."""
        self.wait(lambda: locator.count() or self.failures(), seconds, f"{locator} appears")
        assert not self.failures()
        locator.scroll_into_view_if_needed(timeout=10_000)
        return locator

    def run_cell(self, words: str) -> None:
        """Click into a cell and press Shift-Enter."""
        self.see(self.cell(words)).locator(".jp-InputArea .cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def output(self, words: str) -> str:
        """Return what stands below a cell."""
        return self.cell(words).locator(".jp-OutputArea").first.inner_text()

    def failures(self) -> list[str]:
        """Return the errors that stand in the notebook."""
        return self.page.locator("[data-mime-type='application/vnd.jupyter.error']").all_text_contents()

    def picture(self, name: str) -> None:
        """Keep a screenshot."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{self.stage}-{name}.png")
