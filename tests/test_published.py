"""Who has worked in the notebooks is told why tests of them fail."""

import subprocess
import sys

from published import changed_notebooks

from helpers import paths


def git(folder, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True)


def test_only_notebooks_that_differ_from_the_last_commit_are_named(tmp_path):
    assert changed_notebooks(tmp_path) == []  # no repository: a download without git
    (tmp_path / "notebooks").mkdir()
    for name in ("notebooks/05_generate.ipynb", "notebooks/06_serve.ipynb", "README.md"):
        (tmp_path / name).write_text("{}", "utf-8")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a")
    assert changed_notebooks(tmp_path) == []
    for name in ("notebooks/05_generate.ipynb", "README.md"):
        (tmp_path / name).write_text('{"widgets": 1}', "utf-8")
    assert changed_notebooks(tmp_path) == ["notebooks/05_generate.ipynb"]


def test_a_failing_test_says_how_to_keep_the_work(tmp_path):
    """pytest itself, with our conftest, in a repository whose notebook was saved in JupyterLab."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "notebooks" / "05_generate.ipynb").write_text("{}", "utf-8")
    for name in ("conftest.py", "published.py"):
        (tmp_path / "tests" / name).write_bytes((paths.repo_root() / "tests" / name).read_bytes())
    (tmp_path / "tests" / "test_a.py").write_text("def test_a():\n    assert False\n", "utf-8")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    assert (
        "your work in the notebooks" not in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    )
    (tmp_path / "notebooks" / "05_generate.ipynb").write_text('{"widgets": 1}', "utf-8")
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "notebooks/05_generate.ipynb changed since the last commit" in said
    assert "cp -r notebooks mine; git checkout notebooks" in said
