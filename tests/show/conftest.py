"""Fixtures of the tests of show: what is displayed, the dashboards that are made, a run of another process."""

import subprocess
import sys

import pytest
from displays import until
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from helpers.show import dashboard


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Everything displayed, as a list of {data, metadata, transient, update}."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("HEADLESS", raising=False)
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    publisher = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    yield publisher.outputs
    InteractiveShell.clear_instance()


@pytest.fixture
def views(monkeypatch):
    """The live dashboards that `watch` makes."""
    made = []

    class Kept(dashboard.Live):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(dashboard, "Live", Kept)
    return made


# a run of another process: it writes rows until a file STOP lies beside them
ELSEWHERE = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with open(folder / "metrics.jsonl", "w") as file:
    def write(**row):
        print(json.dumps(row), file=file, flush=True)
    write(event="start", step=0, total_steps=100_000)
    for step in range(1, 100_000):
        write(event="step", step=step, bits_per_char=1 + 9 / step, lr=0.001)
        time.sleep(0.005)
        if (folder / "STOP").exists():
            break
    write(event="end", step=step, reason="stopped", seconds=1.0)
"""


@pytest.fixture
def elsewhere(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ELSEWHERE, str(tmp_path)])
    until(lambda: (tmp_path / "metrics.jsonl").exists())
    yield process
    process.kill()
    process.wait()
