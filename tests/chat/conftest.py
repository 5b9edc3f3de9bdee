"""What the tests of deeper/chat share."""

import pytest
from chats import make_chat_run


@pytest.fixture
def chat_run(tmp_path, monkeypatch):
    """Make a run whose base model is ready to be taught to answer."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    return make_chat_run()
