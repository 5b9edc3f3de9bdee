"""What other machines lack, taken away here: modules of Unix, signals in an event loop, a console that knows Chinese.

None of this replaces a run on macOS or Windows; it keeps what would fail there at once from coming back.
"""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from service import make_run

from helpers import paths
from helpers.device import memory_peak
from helpers.serve.server import main as serve

UNIX_ONLY = ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "readline")


def python(code, **environment):
    variables = os.environ | {"PYTHONPATH": str(paths.repo_root())} | environment
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, timeout=120)


@pytest.mark.slow
def test_every_module_loads_without_the_modules_of_unix():
    """Those of the standard library and of others are loaded before: they know their machine."""
    names = [
        ".".join(("helpers", *file.relative_to(paths.repo_root() / "helpers").with_suffix("").parts))
        for file in sorted((paths.repo_root() / "helpers").rglob("*.py"))
        if file.stem not in ("__init__", "__main__")
    ]
    code = f"""
import sys, importlib
import aiohttp.web, asyncio, ipywidgets, jupyter_client, multiprocessing.forkserver, nbclient, nbconvert, papermill
import peft, psutil, thulac, torch.utils.tensorboard, torch.distributed.run, transformers
for name in {UNIX_ONLY}:
    sys.modules[name] = None  # to import it is an ImportError now
for name in {names}:
    importlib.import_module(name)
print("all loaded")
"""
    done = python(code)
    assert done.stdout.decode().strip() == "all loaded", done.stderr.decode()


def test_the_peak_of_memory_on_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(peak_wset=12345))
    assert memory_peak(torch.device("cpu")) == 12345


@pytest.mark.parametrize("encoding", ["cp936", "cp1252", "ascii"])
def test_a_console_that_lacks_a_character_gets_a_question_mark(encoding):
    """A refusal quotes what was typed; on such a console that once would have been a UnicodeEncodeError."""
    code = "import sys; from helpers.run.__main__ import main; sys.exit(main(['训练🌱']))"
    done = python(code, PYTHONIOENCODING=encoding)
    assert done.returncode == 2 and b"nothing was run: no stage is called '" in done.stderr
    assert "训练?".encode("cp936") in done.stderr if encoding == "cp936" else b"'???'" in done.stderr


@pytest.mark.slow
def test_the_server_stops_by_signals_without_those_of_the_event_loop(tmp_path, monkeypatch):
    """On Windows a loop has no add_signal_handler."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    make_run()
    code = """
import asyncio, sys
def missing(*_): raise NotImplementedError
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = missing
from helpers.serve.server import main
sys.exit(main(["--run", "tiny", "--port", "0"]))
"""
    variables = os.environ | {"PYTHONPATH": str(paths.repo_root())}
    process = subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert "answers at http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_several_processes_are_refused_where_they_cannot_share_a_port(tmp_path, monkeypatch, capsys):
    import multiprocessing

    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    make_run()
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert serve(["--run", "tiny", "--processes", "2"]) == 1
    assert "cannot share a port on Windows" in capsys.readouterr().err
