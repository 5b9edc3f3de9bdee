"""files: a file or folder is written whole or not at all, and a fingerprint changes when the content does."""

import os
import subprocess
import sys
import time

import pytest

from helpers import files, paths
from helpers.files import (
    atomic_write,
    fingerprint,
    hash_files,
    known_sha256,
    sha256,
    stamp,
    tidy_folder,
    write_folder,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_text_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "a.txt"
    write_text(file, "一\r\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "二\ud800")
    assert file.read_bytes() == "一\r\n".encode()
    assert names(file.parent) == ["a.txt"]


def test_a_block_that_raises_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left.*a.bin"), atomic_write(file) as out:  # the system names no file
        out.write(b"new")
        raise OSError(28, "No space left on device")
    assert file.read_bytes() == b"old" and names(tmp_path) == ["a.bin"]
    with atomic_write(file), atomic_write(file) as out:  # two at once have names of their own, hidden beside the file
        out.write(b"new")
        assert (
            file.read_bytes() == b"old" and len([name for name in names(tmp_path) if name.startswith(".a.bin.")]) == 2
        )
    assert names(tmp_path) == ["a.bin"]


def test_a_folder_is_replaced_as_a_whole_and_who_may_read_it_is_the_umasks_decision(tmp_path):
    folder = tmp_path / "new" / "model"
    write_folder(folder, lambda part: (part / "a").write_text("1", "utf-8"))
    write_folder(folder, lambda part: (part / "b").touch(0o600))  # as safetensors does
    assert names(folder) == ["b"] and names(folder.parent) == ["model"]
    write_text(folder / "c", "")
    assert (folder / "b").stat().st_mode == (folder / "c").stat().st_mode


@pytest.mark.parametrize("step", ["write", "check"])
def test_a_folder_that_cannot_be_written_or_does_not_pass_is_as_before(tmp_path, step):
    folder = tmp_path / "model"
    write_folder(folder, lambda part: (part / "a").write_text("1", "utf-8"))

    def fail(part):
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        if step == "write":
            write_folder(folder, fail)
        else:
            write_folder(folder, lambda part: (part / "b").write_text("2", "utf-8"), check=fail)
    assert names(folder) == ["a"] and names(tmp_path) == ["model"]


KILLED = """
import os, sys
from pathlib import Path
from helpers import files
folder, where = Path(sys.argv[1]), sys.argv[2]
def die(*_): os.kill(os.getpid(), 9)
def write(part):
    (part / "b").write_text("2", "utf-8")
    if where == "write":
        die()
if where == "between":
    rename = Path.rename
    def renamed(self, target):
        if self.name.endswith(".part"):
            die()
        return rename(self, target)
    Path.rename = renamed
files.write_folder(folder, write)
"""


@pytest.mark.parametrize("where", ["write", "between"])
def test_a_killed_process_leaves_the_old_folder(tmp_path, where):
    folder = tmp_path / "model"
    write_folder(folder, lambda part: (part / "a").write_text("1", "utf-8"))
    command = [sys.executable, "-c", KILLED, folder, where]
    assert subprocess.run(command, cwd=paths.repo_root(), check=False).returncode == -9
    tidy_folder(folder)
    assert names(folder) == ["a"] and names(tmp_path) == ["model"]


KEEPER = """
import sys
from pathlib import Path
from helpers.files import occupied
with occupied(Path(sys.argv[1])):
    print("kept", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_kept_for_one_program_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    other = subprocess.Popen(
        [sys.executable, "-c", KEEPER, tmp_path / "room"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=paths.repo_root(),
    )  # fmt: skip
    assert other.stdout.readline().strip() == b"kept"
    with pytest.raises(files.Occupied, match="room: two would spoil each other's files. Say please"):
        with files.occupied(tmp_path / "room", "Say please"):
            pass
    other.kill()
    other.wait()
    with files.occupied(tmp_path / "room"):  # it died without a word, and the system has let go
        pass


def test_a_file_that_has_not_changed_is_read_once(tmp_path, monkeypatch):
    file, read = tmp_path / "a", []
    file.write_bytes(b"1")
    os.utime(file, ns=(0, time.time_ns() - 10**9))
    monkeypatch.setattr(files, "sha256", lambda path: read.append(path) or sha256(path))
    assert known_sha256(file) == known_sha256(file) == sha256(file) and len(read) == 1
    file.write_bytes(b"2")  # same size, changed just now: believed only when it has been left alone
    assert known_sha256(file) == known_sha256(file) == sha256(file) and len(read) == 3


def test_hashes_go_by_the_name_below_the_base(tmp_path):
    (tmp_path / "run").mkdir()
    inside, outside = tmp_path / "run" / "b", tmp_path / "a"
    for file in (inside, outside):
        file.write_bytes(b"1")
    hashes = hash_files([inside, outside], tmp_path / "run")
    assert hashes == {"b": sha256(inside), outside.as_posix(): sha256(outside)}


# ---- fingerprints ----


def test_equal_values_have_equal_fingerprints():
    assert fingerprint({"a": 1, "b": [2.0, "二"]}, None) == fingerprint({"b": [2.0, "二"], "a": 1}, None)
    assert len({fingerprint(*parts) for parts in ((1, 2), (2, 1), ([1, 2],), ("12",), ("\ud800",), (1e-3,))}) == 6
    assert fingerprint(paths.repo_root()) == fingerprint(paths.repo_root())


def test_a_stamp_changes_with_size_and_time(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1")
    first = stamp(file)
    assert first == stamp(file) and first[:2] == (str(file), 1)
    os.utime(file, ns=(0, 1))
    assert stamp(file) != first
