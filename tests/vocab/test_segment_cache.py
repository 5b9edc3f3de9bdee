"""segment_cache: what was segmented is found again, in any process; a damaged file costs time, never a result."""

import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.vocab.segment_cache import SegmentCache, cut_line, pack_lengths

CUT = {f"绿萝第{i}天浇水": pack_lengths(["绿萝", f"第{i}天", "浇水"]) for i in range(2000)}


@pytest.fixture
def cache(tmp_path):
    made = SegmentCache(tmp_path / "runs" / "cuts.sqlite")
    made.keep(CUT)
    return made


@given(st.lists(st.text(min_size=1)))
def test_packed_lengths_give_the_pieces_back(pieces):
    assert cut_line("".join(pieces), pack_lengths(pieces)) == pieces


def test_a_piece_too_long_to_pack_is_an_error():
    assert len(pack_lengths(["x" * 65_535])) == 2
    with pytest.raises(OverflowError):
        pack_lengths(["x" * 65_536])


def test_what_was_kept_is_found_and_nothing_else(cache):
    assert SegmentCache(cache.path).find([*CUT, "没见过", ""]) == CUT
    cache.keep({"没见过": pack_lengths(["没", "见过"])})
    assert SegmentCache(cache.path).find(["没见过"]) == {"没见过": pack_lengths(["没", "见过"])}
    assert cache.find([]) == {}


def test_the_file_holds_hashes_of_lines_and_no_text(cache):
    cache.keep({"\ud800": pack_lengths(["\ud800"])})  # half a surrogate pair is a line
    assert cache.find(["\ud800"]) and "绿萝".encode() not in cache.path.read_bytes()


def damaged(data: bytes) -> list[bytes]:
    middle = len(data) // 2
    return [b"", b"no database at all " * 99, data[:middle], data[:50], data[:100] + bytes(4096) + data[4196:],
            data[:middle] + b"\xff" * 5000 + data[middle + 5000 :]]  # fmt: skip


@pytest.mark.parametrize("kind", range(6))
def test_a_damaged_file_never_gives_a_wrong_result_and_is_told(cache, kind, capsys):
    cache.path.write_bytes(damaged(cache.path.read_bytes())[kind])
    known = cache.find(CUT)
    assert known.items() <= CUT.items() and len(known) < len(CUT)
    cache.keep(CUT)
    assert cache.usable == (kind == 0) == ("damaged, delete it" not in capsys.readouterr().err)  # an empty file is none
    cache.path.unlink()
    again = SegmentCache(cache.path)
    again.keep(CUT)
    assert again.find(CUT) == CUT


def test_lengths_that_do_not_fit_their_line_are_not_believed(cache):
    with sqlite3.connect(cache.path) as file:
        file.execute("UPDATE cuts SET lengths = ?", (pack_lengths(["绿萝"]) + b"\x01",))
    assert cache.find(CUT) == {}


def test_a_place_that_cannot_be_written_costs_no_result(tmp_path, capsys):
    (tmp_path / "file").write_text("where a folder should be")
    cache = SegmentCache(tmp_path / "file" / "cuts.sqlite")
    cache.keep(CUT)
    assert cache.find(CUT) == {}
    assert capsys.readouterr().err.count("cannot be used") == 1


WRITER = """if True:
    import sys
    from helpers.vocab.segment_cache import SegmentCache
    cache = SegmentCache(sys.argv[1])
    for i in range(40):
        cache.keep({f"{sys.argv[2]} {i} {j}": b"\\1\\0" for j in range(50)})
"""


def test_several_processes_write_at_the_same_time(tmp_path):
    path = tmp_path / "cuts.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name], cwd=paths.repo_root()) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM cuts").fetchone() == (2 * 40 * 50,)
