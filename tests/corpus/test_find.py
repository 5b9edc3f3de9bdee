"""What there is to read: files, folders, globs; and what the runner must know of a source before it is read."""

import os
from pathlib import Path

import pytest
from corpora import names

from helpers.corpus.archives import NoDocuments
from helpers.corpus.find import find_inputs, resolve_source, same_files

ALL = ["B.TXT", "a.txt", "deep/e.csv", "deep/er/d.txt.gz", "子目录 空格/c.jsonl"]


@pytest.fixture
def library(tmp_path):
    for name in (*ALL, "x.mobi", "none"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for name in (".DS_Store", ".hidden.txt", "~$lock.txt", "deep/Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_bytes(b"")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    return tmp_path


def test_folders_are_read_recursively_sorted_and_in_any_case(library):
    """The book read its files unsorted, in the order the disk gave them."""
    inputs, left_out = find_inputs(str(library))
    assert [item.name for item in inputs] == ALL
    back = "links to folders that are read already, or that hold this one"
    assert left_out == {".mobi": 1, "(none)": 1, "links that lead nowhere": 1, back: 1}


def test_a_folder_that_a_link_leads_to_is_read_once(library, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "o.txt").write_bytes(b"")
    for link, target in {"y": other, "z": other, "hidden": library / ".git", "up": library.parent}.items():
        (library / link).symlink_to(target, target_is_directory=True)
    (other / "round").symlink_to(library, target_is_directory=True)
    inputs, left_out = find_inputs(str(library))
    assert [item.name for item in inputs] == sorted([*ALL, "hidden/x.txt", "y/o.txt"])
    assert left_out["links to folders that are read already, or that hold this one"] == 4


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt"]),
        ("*.[tT][xX][tT]", ["B.TXT", "a.txt"]),
        ("**/*.gz", ["deep/er/d.txt.gz"]),
        ("**/*", ALL),
        ("deep/*", ["e.csv"]),
        ("d*/**/d*", ["deep/er/d.txt.gz"]),
        ("?.txt", ["a.txt"]),
    ],
)
def test_globs(library, pattern, found):
    inputs, _ = find_inputs(pattern, library)
    assert [item.name for item in inputs] == found
    assert all(item.path.is_file() for item in inputs)


def test_errors_say_what_was_looked_for_and_where(library, tmp_path):
    with pytest.raises(NoDocuments, match="nowhere does not exist: give a file or a folder"):
        find_inputs(str(tmp_path / "nowhere"))
    with pytest.raises(NoDocuments, match=r"x\.mobi is not one of \.txt, \.json, \.jsonl"):
        find_inputs(str(tmp_path / "x.mobi"))
    with pytest.raises(NoDocuments, match=r"no file is named like .*\*\.epub"):
        find_inputs(str(tmp_path / "*.epub"))
    with pytest.raises(NoDocuments, match=r"1 \.mobi"):
        find_inputs(str(tmp_path / "*.mobi"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoDocuments, match=r"no file of the kinds \.txt, \.json, \.jsonl.*no file at all"):
        find_inputs(str(tmp_path / "empty"))


def test_a_name_with_brackets_is_a_name(tmp_path):
    (tmp_path / "[完结]书.txt").write_text("一", "utf-8")
    assert names(tmp_path / "[完结]书.txt") == ["[完结]书.txt"]


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_name_is_not_the_folder_one_is_in(library, monkeypatch, nothing):
    """As `--corpus "$TEXT"` gives it where TEXT is not set."""
    monkeypatch.chdir(library)
    for find in (resolve_source, find_inputs):
        with pytest.raises(NoDocuments, match="the name of the corpus is empty"):
            find(nothing)


def test_a_folder_that_may_not_be_opened_is_said(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("一", "utf-8")
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def guarded(path):
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.name for item in inputs] == ["a.txt"]
    assert left_out == {"folders that may not be opened": 1}


def test_a_source_is_resolved_before_a_kernel_works_in_another_folder(library, monkeypatch):
    monkeypatch.chdir(library)
    assert resolve_source("deep") == str(library / "deep")
    assert resolve_source("deep/*.csv") == str(library / "deep/*.csv")  # a pattern: what it finds is looked up later
    for source in ("sample", "song-ci", "hf:owner/name", "modelscope:owner/name", "https://example.org/a.txt"):
        assert resolve_source(source) == source
    with pytest.raises(NoDocuments, match=r"song-cj does not exist; did you mean 'song-ci'\?"):
        resolve_source("song-cj")


def test_a_file_that_was_put_into_a_folder_since_then_is_a_change(library):
    known = {item.path for item in find_inputs(str(library))[0]}
    assert same_files(str(library), known) and same_files(str(library / "**/*"), known)
    (library / "new.txt").write_bytes(b"")
    assert not same_files(str(library), known) and same_files(str(library / "deep"), known)
    assert not same_files(str(library / "gone"), known)
    assert same_files("sample", set()) and same_files("https://example.org/a.txt", set())
