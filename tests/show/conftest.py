"""Fixtures of the tests of show: what is displayed, the dashboards that are made."""

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from helpers.show import curves, dashboard


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
def drawn(monkeypatch):
    """The figures that `curves` draws, in place of the page."""
    figures = []
    monkeypatch.setattr(curves, "show_figure", lambda fig, words: figures.append(fig))
    return figures


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
