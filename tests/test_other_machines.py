"""What other machines lack, taken away here: modules of Unix, folders that open, a console that knows Chinese.

None of this replaces a run on macOS or Windows; it keeps what would fail there at once from coming back.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import torch

from helpers import paths
from helpers.device import memory_peak
from helpers.files import write_folder, write_text

UNIX_ONLY = ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "readline")
ALL_LOADED = """
import importlib, sys
import aiohttp.web, asyncio, ipywidgets, jupyter_client, multiprocessing.forkserver, nbclient, nbconvert, papermill
import psutil, thulac, torch.utils.tensorboard, torch.distributed.run, transformers  # they know their machine
sys.modules.update(dict.fromkeys({unix}))  # to import one of these is an ImportError now
for name in {names}:
    importlib.import_module(name)
"""


def python(code, **environment):
    variables = os.environ | {"PYTHONPATH": str(paths.repo_root())} | environment
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True)


@pytest.mark.slow
def test_every_module_loads_without_the_modules_of_unix():
    files = [file.relative_to(paths.repo_root()) for file in (paths.repo_root() / "helpers").rglob("*.py")]
    names = [".".join(file.with_suffix("").parts) for file in files if not file.stem.startswith("__")]
    done = python(ALL_LOADED.format(unix=UNIX_ONLY, names=sorted(names)))
    assert done.returncode == 0, done.stderr.decode()


def test_the_peak_of_memory_on_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(peak_wset=12345))
    assert memory_peak(torch.device("cpu")) == 12345


def test_a_folder_is_written_atomically_on_windows(tmp_path, monkeypatch):
    """There, a folder cannot be opened, and a file that is open for reading cannot be flushed."""
    writable, opens, fsync = set(), os.open, os.fsync

    def open_as_on_windows(path, flags, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        descriptor = opens(path, flags, *more, **options)
        (writable.add if flags & (os.O_RDWR | os.O_WRONLY) else writable.discard)(descriptor)
        return descriptor

    def fsync_as_on_windows(descriptor):
        if descriptor not in writable:
            raise OSError(9, "Bad file descriptor")
        fsync(descriptor)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", open_as_on_windows)
    for text in ("one", "two"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync_as_on_windows)
            write_folder(tmp_path / "new", lambda part, text=text: (part / "file.txt").write_text(text, "utf-8"))
        assert (tmp_path / "new" / "file.txt").read_text("utf-8") == text
    write_text(tmp_path / "new" / "other.txt", "three")
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["file.txt", "other.txt"]


@pytest.mark.parametrize("encoding", ["cp936", "cp1252"])
def test_a_console_that_lacks_a_character_gets_a_question_mark(encoding):
    done = python(
        "import sys; from helpers.run.__main__ import main; sys.exit(main(['训练🌱']))", PYTHONIOENCODING=encoding
    )
    assert done.returncode == 2 and ("训练?" if encoding == "cp936" else "'???'").encode(encoding) in done.stderr


@pytest.mark.slow
def test_a_corpus_on_a_read_only_disk_is_made_in_the_c_locale(tmp_path):
    """Where no locale is set, Python reads and writes UTF-8 by itself; what we start must, too."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "我的文章.txt").write_text(
        "\n\n".join(f"第{n}盆绿萝两天浇一次水。" for n in range(60)), "utf-8"
    )
    (tmp_path / "disk").chmod(0o555)  # root may write all the same: that nothing is written is looked at, below
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    variables |= {"LC_ALL": "C", "PYTHONPATH": str(paths.repo_root()), "RUNS_DIR": str(tmp_path / "runs")}
    words = ["corpus", "--run", "x", "--preset", "micro", "--corpus", str(tmp_path / "disk")]
    done = subprocess.run([sys.executable, "-m", "helpers.run", *words], env=variables, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert "绿萝" in (tmp_path / "runs" / "x" / "corpus" / "train-00000.jsonl").read_text("utf-8")
    assert os.listdir(tmp_path / "disk") == ["我的文章.txt"]


def test_no_two_files_differ_only_in_capitals():
    """On macOS and Windows they would be one."""
    listed = subprocess.run(["git", "-C", str(paths.repo_root()), "ls-files"], capture_output=True, encoding="utf-8")
    names = Counter(name.lower() for name in listed.stdout.splitlines())
    assert len(names) > 200 and not [name for name, count in names.items() if count > 1 or ":" in name]


def typed(command, folder, cwd):
    """Type a command where the libraries are and the course is not; its `python` is that environment's."""
    venv.create(folder / "fresh", with_pip=False)
    (site,) = (folder / "fresh").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"), "utf-8")  # the .pth files there are not read
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JUPYTER", "VIRTUAL"))}
    clean |= {"PATH": f"{folder / 'fresh' / 'bin'}:{clean['PATH']}", "UV_PROJECT_ENVIRONMENT": str(folder / "fresh")}
    return subprocess.run(["sh", "-c", command], cwd=cwd, env=clean, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("address", "said"), [(paths.repo_root().as_uri(), ""), ("", "helpers: on your own machine")])
def test_a_notebook_opened_alone_sets_itself_up_or_says_what_to_do(tmp_path, address, said):
    """Its first two code cells; the first is the same in all notebooks, with one address."""
    books = [nbformat.read(paths.notebook(stage), as_version=4) for stage in paths.NOTEBOOKS]
    code = [[cell for cell in book.cells if cell.cell_type == "code"][:2] for book in books]
    assert len({cells[0].source for cells in code}) == 1
    code[0][0].source = re.sub('^COURSE = ".*"$', f'COURSE = "{address}"', code[0][0].source, flags=re.MULTILINE)
    nbformat.write(nbformat.v4.new_notebook(cells=code[0]), tmp_path / "alone.ipynb")
    run = "python -m ipykernel install --sys-prefix && python -m nbconvert --to notebook --execute alone.ipynb"
    done = typed(run, tmp_path, tmp_path)
    assert said in done.stderr and (done.returncode == 0) == (tmp_path / "course").exists() == (said == ""), done.stderr


@pytest.mark.outside
@pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed")
def test_uv_finds_each_pinned_version_and_runs_the_course(tmp_path):
    install = 'uv pip install -e ".[text]" -c constraints.txt --dry-run --python "$UV_PROJECT_ENVIRONMENT"'
    run = f"{install} && uv run --no-sync python -m helpers.run parameters train"
    done = typed(run, tmp_path, paths.repo_root())
    assert done.returncode == 0 and "n_embd" in done.stdout, done.stderr
