"""What other machines lack, taken away here: modules of Unix, signals in an event loop, a console that knows Chinese.

None of this replaces a run on macOS or Windows; it keeps what would fail there at once from coming back.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from service import make_run

from helpers import paths
from helpers.device import memory_peak
from helpers.files import write_folder, write_text

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


def test_a_folder_is_written_atomically_on_windows(tmp_path, monkeypatch):
    """There, a folder cannot be opened, and a file that is open for reading cannot be flushed."""
    opened, flushed, opens, fsync = {}, [], os.open, os.fsync

    def open_as_on_windows(path, flags, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        descriptor = opens(path, flags, *more, **options)
        opened[descriptor] = flags
        return descriptor

    def fsync_as_on_windows(descriptor):
        if opened.get(descriptor, os.O_RDWR) & (os.O_RDWR | os.O_WRONLY) == 0:
            raise OSError(9, "Bad file descriptor")
        flushed.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", open_as_on_windows)
    monkeypatch.setattr(os, "fsync", fsync_as_on_windows)
    folder = tmp_path / "new" / "folder"
    for text in ("one", "two"):
        write_folder(folder, lambda part, text=text: (part / "file.txt").write_text(text, "utf-8"))
        assert (folder / "file.txt").read_text("utf-8") == text
    write_text(folder / "other.txt", "three")
    assert len(flushed) == 3 and sorted(file.name for file in folder.iterdir()) == ["file.txt", "other.txt"]


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


READ_ONLY = """
import os, sys
folder = os.environ["MUST_NOT_CHANGE"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {f"os.{name}" for name in "remove rename mkdir rmdir utime truncate chmod link symlink".split()}
def guard(event, arguments):
    if event == "open" or event in CHANGES:
        writes = event != "open" or arguments[2] & WRITES
        if writes and any(str(each).startswith(folder) for each in arguments if isinstance(each, str | os.PathLike)):
            raise PermissionError(f"[Errno 30] Read-only file system: {arguments}")
sys.addaudithook(guard)
"""


@pytest.mark.slow
def test_a_corpus_on_a_read_only_disk_is_read(tmp_path):
    """In every process, whoever writes below the folder gets the error of such a disk."""
    folder, site = tmp_path / "disk", tmp_path / "site"
    folder.mkdir(), site.mkdir()
    own_text = "\n\n".join(f"第{n}盆绿萝放在窗边，两天浇一次水，叶子很绿。" for n in range(60))
    (folder / "a.txt").write_text(own_text, "utf-8")
    (folder / "b.txt.gz").write_bytes(gzip.compress(own_text.replace("绿萝", "吊兰").encode("gb18030")))
    (folder / "c.jsonl").write_text(json.dumps({"text": own_text}, ensure_ascii=False), "utf-8")
    with zipfile.ZipFile(folder / "d.zip", "w") as archive:
        archive.writestr("e.txt", own_text.replace("绿萝", "文竹"))
    (site / "sitecustomize.py").write_text(READ_ONLY, "utf-8")
    here = os.pathsep.join([str(site), str(paths.repo_root())])
    variables = os.environ | {"PYTHONPATH": here, "MUST_NOT_CHANGE": str(folder), "RUNS_DIR": str(tmp_path / "runs")}
    refused = subprocess.run([sys.executable, "-c", f"open({str(folder / 'a.txt')!r}, 'r+')"], env=variables)
    assert refused.returncode == 1, "the guard is on watch"
    command = [
        sys.executable,
        "-m",
        "helpers.run",
        "corpus",
        "--run",
        "x",
        "--corpus",
        str(folder),
        "--preset",
        "micro",
    ]
    done = subprocess.run(command, env=variables, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "runs" / "x" / "corpus" / "manifest.json").read_text("utf-8"))
    assert found["result"]["documents"] > 150


@pytest.mark.slow
def test_the_corpus_is_made_in_the_c_locale(tmp_path):
    """Where no locale is set, Python 3.11 and newer read and write UTF-8 by itself; what we start must, too."""
    (tmp_path / "我的文章.txt").write_text("\n\n".join(f"第{n}盆绿萝两天浇一次水。" for n in range(60)), "utf-8")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    variables |= {"LC_ALL": "C", "PYTHONPATH": str(paths.repo_root()), "RUNS_DIR": str(tmp_path / "runs")}
    command = [
        sys.executable,
        "-m",
        "helpers.run",
        "corpus",
        "--run",
        "x",
        "--preset",
        "micro",
        "--corpus",
        "我的文章.txt",
    ]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "runs" / "x" / "corpus" / "train-00000.jsonl").read_text("utf-8")
    assert "绿萝" in written


def test_no_two_files_differ_only_in_capitals():
    """On macOS and Windows they would be one."""
    listed = subprocess.run(["git", "-C", str(paths.repo_root()), "ls-files"], capture_output=True, encoding="utf-8")
    names = Counter(name.lower() for name in listed.stdout.splitlines())
    assert len(names) > 300 and not [name for name, count in names.items() if count > 1]
    reserved = {"con", "prn", "aux", "nul"}
    assert not [name for name in names if {part.split(".")[0] for part in name.split("/")} & reserved or ":" in name]
