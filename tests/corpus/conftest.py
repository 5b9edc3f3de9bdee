"""Fixtures of room 01: a folder for raw files, and a runs folder for each test that builds a corpus."""

import pytest


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """An empty folder for the files of a corpus, which is then built in a runs folder of its own."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder
