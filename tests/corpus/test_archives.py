"""Packed files and archives: kinds, members, names, damage, limits. Makes its own files."""

import gzip
import io
import json
import os
import pickle
import random
import tarfile
import tracemalloc
import zipfile

import pytest
from corpora import SENTENCE, everything, make_tar, names, zst

from helpers.corpus import archives, encodings, formats
from helpers.corpus.archives import EXTENSIONS, NoDocuments, kind_of
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.report import FileReport
from helpers.corpus.settings import CorpusSettings


def read(item):
    return list(formats.read_documents(item, CorpusSettings(), FileReport("")))


def zipped(path, *members):
    # of a damaged one of the first kind, the library says OSError
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2 if "bzip2" in path.name else zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)


def pack(path, data):
    """Write data as what the file's name says: packed, in an archive, or as it is."""
    if path.suffix == ".zip":
        zipped(path, ("a.txt", data), ("绿萝.txt", data))
    elif path.suffix in (".tgz", ".tar"):
        make_tar(path, [("a.txt", data), ("b.txt", data)], "w:gz" if path.suffix == ".tgz" else "w")
    else:
        path.write_bytes({".gz": gzip.compress, ".zst": zst}.get(path.suffix, bytes)(data))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("书.TXT", (".txt", "")),
        ("a.jsonl.gz", (".jsonl", ".gz")),
        ("a.b.CSV.ZST", (".csv", ".zst")),
        ("a.jsonlines.gz", (".jsonl", ".gz")),
        ("a.tar.gz", (".tar.gz", "")),
        ("a.TGZ", (".tgz", "")),
        ("a.mobi.gz", (".mobi.gz", "")),
        ("none", ("", "")),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind
    assert name.lower().endswith(EXTENSIONS) == (kind[0] not in (".mobi.gz", ""))


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zst, ".zst")])
@pytest.mark.parametrize("block", [7, 2**20])
def test_packed_files(tmp_path, monkeypatch, pack, suffix, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    text = "".join(f"第{n}句，{SENTENCE}\n" for n in range(300))
    half = len(text) // 2
    path = tmp_path / f"a.txt{suffix}"
    # two members, as `cat a.gz b.gz` writes
    whole = pack(text[:half].encode("gb18030")) + pack(text[half:].encode("gb18030"))
    path.write_bytes(whole)
    documents, report = everything(path, document="line")
    assert documents == text.splitlines() and report.encoding == "gb18030"
    path.write_bytes(whole[:-40])
    with pytest.raises(BadFile, match=r"cut off: unpacking stops after [\d,]+ bytes"):
        everything(path)
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 20 + whole[len(whole) // 2 + 20 :])
    with pytest.raises(BadFile):
        everything(path)
    path.write_bytes(b"")
    assert everything(path)[0] == []
    path.write_bytes(text.encode())
    with pytest.raises(BadFile, match="not packed with gzip.*take .gz away" if suffix == ".gz" else "damaged"):
        everything(path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.zip", "a.tgz"])
def test_a_bomb_is_stopped(tmp_path, monkeypatch, name):
    monkeypatch.setattr(archives, "SMALL_BYTES", 2**16)
    pack(tmp_path / name, b"\n" * 2**25)
    item = find_inputs(str(tmp_path / name))[0][0]
    tracemalloc.start()
    with pytest.raises(BadFile, match="more than 200 times its size.*bomb"):
        read(item)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26 if name.endswith("zst") else peak < 2**24


MEMBERS = [
    ("b/一.txt", "一\n\n二".encode("gb18030")),
    ("a.jsonl.gz", gzip.compress('"三"\n'.encode())),
    ("../out.txt", b"x"),
    ("/abs.txt", b"x"),
    ("C:\\x.txt", b"x"),
    ("in.zip", b"PK"),
    ("photo.jpg", b"x"),
    ("__MACOSX/._a.txt", b"x"),
    ("c.csv", "text\n四\n".encode()),
]


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".TGZ"])
def test_archives_are_read_member_by_member(tmp_path, suffix):
    path = tmp_path / f"书{suffix}"
    links = [("link.txt", tarfile.SYMTYPE), ("hard.txt", tarfile.LNKTYPE), ("dev.txt", tarfile.CHRTYPE)]
    if suffix == ".zip":
        infos = [zipfile.ZipInfo(name) for name, _ in links]
        for info in infos:
            info.create_system, info.external_attr = 3, 0o120777 << 16
        zipped(path, *MEMBERS, *((info, "/etc/hostname") for info in infos))
    else:
        make_tar(path, MEMBERS + links, "w" if suffix == ".tar" else "w:gz")
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.name for item in inputs] == [f"书{suffix}/{name}" for name in ("b/一.txt", "a.jsonl.gz", "c.csv")]
    assert left_out == {
        "members with a path that leads out of their archive": 3,
        "archives inside an archive": 1,
        "links and devices in an archive": 3,
        ".jpg": 1,
    }
    assert pickle.loads(pickle.dumps(inputs)) == inputs
    assert [read(item) for item in reversed(inputs)] == [["四"], ["三"], ["一", "二"]]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]  # nothing was unpacked beside it


def test_names_in_a_zip_of_a_chinese_windows(tmp_path):
    """Such names are GBK bytes without a mark; what `zipfile` makes of them is ┬╠┬▄."""
    wanted = ["绿萝的书.txt", "土干了再浇水.txt", "plain.txt"]
    raw = [name.encode("gbk") for name in wanted]
    zipped(tmp_path / "a.zip", *((str(number) * len(name), "一") for number, name in enumerate(raw)))
    data = (tmp_path / "a.zip").read_bytes()
    for number, name in enumerate(raw):
        data = data.replace(str(number).encode() * len(name), name)
    (tmp_path / "a.zip").write_bytes(data)
    assert names(tmp_path / "a.zip") == [f"a.zip/{name}" for name in wanted]
    assert everything(tmp_path / "a.zip")[0] == ["一"] * 3


def test_a_name_that_zipfile_took_from_another_field_stays():
    """From Python 3.12 on, that of the Unicode Path field, which is UTF-8 and has no mark."""
    info = zipfile.ZipInfo("小说.txt")
    assert archives._zip_member(info)[0] == "小说.txt"


def test_names_in_a_tar_may_be_gbk(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="gbk") as archive:
        info = tarfile.TarInfo("绿萝的书.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO("一".encode()))
    assert names(tmp_path / "a.tar") == ["a.tar/绿萝的书.txt"]


def test_members_with_half_a_character_in_their_name_or_encrypted_are_left_out(tmp_path):
    """The first fits GBK as far as it goes, but is no text in it."""
    zipped(tmp_path / "a.zip", ("a.txt", "一"), ("caf@", "二"), ("b.txt", "三"))
    data = bytearray((tmp_path / "a.zip").read_bytes().replace(b"caf@", "café".encode("cp437")))
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(data))
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.member for item in inputs] == ["a.txt"] and left_out == {"(none)": 1, "encrypted members": 1}


@pytest.mark.parametrize("name", ["a.zip", "bzip2.zip", "a.tar", "a.tgz", "a.txt.gz", "a.json", "a.csv"])
def test_damaged_bytes_make_a_bad_file_and_nothing_worse(tmp_path, name):
    path, text = tmp_path / name, "".join(f"第{n}句，{SENTENCE}\n" for n in range(100))
    rows = {"a.json": json.dumps([SENTENCE] * 50, ensure_ascii=False), "a.csv": f"text\n{SENTENCE}\n" * 50}
    pack(path, rows.get(name, text).encode())
    data, dice, bad = path.read_bytes(), random.Random(0), 0
    for number in range(60):
        broken = bytearray(data)
        for _ in range(dice.choice([1, 3, 9])):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        path.write_bytes(broken[: dice.choice([len(broken), dice.randrange(len(broken))])])
        os.utime(path, (number, number))
        try:
            bad += bool(everything(path)[1].notes)
        except (BadFile, NoDocuments):
            bad += 1
    assert bad > 20
