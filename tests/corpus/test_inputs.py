"""Which kinds of files are read, by their names; and inputs travel to other processes."""

import pickle

import pytest

from helpers.corpus.find import find_inputs
from helpers.corpus.inputs import EXTENSIONS, Input, is_ignored, kind_of
from helpers.corpus.records import ReadOptions


def test_an_input_travels_to_another_process(tmp_path):
    (tmp_path / "a.txt").write_text("一", "utf-8")
    (item,), _ = find_inputs(str(tmp_path))
    assert pickle.loads(pickle.dumps((item, ReadOptions()))) == (item, ReadOptions())
    assert isinstance(item, Input)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("书.TXT", (".txt", "")),
        ("a.jsonl.gz", (".jsonl", ".gz")),
        ("a.b.CSV.ZST", (".csv", ".zst")),
        ("a.NDJSON", (".jsonl", "")),
        ("a.jsonlines.gz", (".jsonl", ".gz")),
        ("a.tar.gz", (".tar.gz", "")),
        ("a.TGZ", (".tgz", "")),
        ("a.pdf.gz", (".pdf.gz", "")),
        ("a.pdf", (".pdf", "")),
        ("none", ("", "")),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind
    assert name.lower().endswith(EXTENSIONS) == (kind[0] not in (".pdf", ".pdf.gz", ""))


@pytest.mark.parametrize(
    ("name", "ignored"), [(".a.txt", True), ("~$a.txt", True), ("desktop.ini", True), ("a.txt", False)]
)
def test_what_programs_leave_behind_is_ignored(name, ignored):
    assert is_ignored(name) == ignored
