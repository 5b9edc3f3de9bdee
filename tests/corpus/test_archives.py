"""Packed files and archives, read in place: members, names, damage, limits. Makes its own files."""

import gzip
import io
import json
import os
import random
import tarfile
import tracemalloc
import zipfile

import pytest
from corpora import SENTENCE, everything, make_tar, names, zst

from helpers.corpus import archives, encodings, formats
from helpers.corpus.encodings import BadFile
from helpers.corpus.find import find_inputs
from helpers.corpus.inputs import NoDocuments
from helpers.corpus.records import ReadOptions
from helpers.corpus.report import FileReport


@pytest.mark.parametrize("pack", [gzip.compress, zst])
@pytest.mark.parametrize("block", [7, 2**20])
def test_packed_files(tmp_path, monkeypatch, pack, block):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)
    text = "".join(f"第{n}句，{SENTENCE}\n" for n in range(300))
    suffix = ".gz" if pack is gzip.compress else ".zst"
    half = len(text) // 2
    parts = [text[:half].encode("gb18030"), text[half:].encode("gb18030")]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(map(pack, parts)))  # two members, as `cat a.gz b.gz` writes
    documents, report = everything(path, document="line")
    assert documents == text.splitlines()
    assert report.encoding == "gb18030"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(BadFile, match=r"cut off: unpacking stops after [\d,]+ bytes"):
        everything(path)
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" * 20 + whole[len(whole) // 2 + 20 :])
    with pytest.raises(BadFile):
        everything(path)
    path.write_bytes(b"")
    assert everything(path)[0] == []


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_a_bomb_is_stopped(tmp_path, monkeypatch, pack):
    monkeypatch.setattr(archives, "SMALL", 2**22)
    suffix = ".gz" if pack is gzip.compress else ".zst"
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(b"\n" * 2**25))
    tracemalloc.start()
    with pytest.raises(BadFile, match="more than 200 times its size.*bomb"):
        everything(tmp_path / f"a.txt{suffix}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24 if suffix == ".gz" else peak < 2**26


def test_a_zst_with_the_largest_window(tmp_path):
    """As `zstd --long=31` writes it: one block as it is, behind a header that asks for a window of 2 GB."""
    pytest.importorskip("zstandard")
    text = SENTENCE.encode()
    window, last_block = bytes([21 << 3]), (len(text) << 3 | 1).to_bytes(3, "little")
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00" + window + last_block + text)
    assert everything(tmp_path / "a.txt.zst")[0] == [SENTENCE]


def test_jsonl_and_csv_packed(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(zst('{"text": "一"}\n'.encode()))
    (tmp_path / "b.CSV.GZ").write_bytes(gzip.compress("text\n二\n".encode("gb18030")))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress('["三"]'.encode()))
    (tmp_path / "d.ndjson.gz").write_bytes(gzip.compress('{"text": "四"}\n'.encode()))
    assert everything(tmp_path)[0] == ["一", "二", "三", "四"]


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
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in MEMBERS:
                archive.writestr(name, data)
            for name, _ in links:
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, "/etc/hostname")
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
    assert everything(path)[0] == ["一", "二", "三", "四"]
    report = FileReport("")
    backwards = [list(formats.read(item, ReadOptions(), report)) for item in reversed(inputs)]
    assert backwards == [["四"], ["三"], ["一", "二"]]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]  # nothing was unpacked


def test_names_in_a_zip_of_a_chinese_windows(tmp_path):
    """Such names are GBK bytes without a mark; what `zipfile` makes of them is ┬╠┬▄."""
    wanted = ["绿萝的书.txt", "土干了再浇水.txt", "plain.txt"]
    raw = [name.encode("gbk") for name in wanted]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number, name in enumerate(raw):
            archive.writestr(str(number) * len(name), "一")
    data = (tmp_path / "a.zip").read_bytes()
    for number, name in enumerate(raw):
        assert data.count(str(number).encode() * len(name)) == 2
        data = data.replace(str(number).encode() * len(name), name)
    (tmp_path / "a.zip").write_bytes(data)
    assert names(tmp_path / "a.zip") == [f"a.zip/{name}" for name in wanted]
    assert everything(tmp_path / "a.zip")[0] == ["一"] * 3


def test_a_name_that_zipfile_took_from_another_field_stays(tmp_path, monkeypatch):
    """From Python 3.12 on, that of the Unicode Path field, which is UTF-8 and has no mark."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "一")
    real = archives._open_zip

    def as_in_python_3_12(path, changed):
        archive, infos = real(path, changed)
        for info in infos.values():
            info.filename = "小说.txt"
        return archive, infos

    monkeypatch.setattr(archives, "_open_zip", as_in_python_3_12)
    assert names(tmp_path / "a.zip") == ["a.zip/小说.txt"]


def test_names_in_a_tar_may_be_gbk(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="gbk") as archive:
        info = tarfile.TarInfo("绿萝的书.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO("一".encode()))
    assert names(tmp_path / "a.tar") == ["a.tar/绿萝的书.txt"]


def test_a_name_with_half_a_character_at_its_end(tmp_path):
    """It fits GBK as far as it goes, but is no text in it."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "一")
        archive.writestr("caf@", "二")
    data = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace(b"caf@", "café".encode("cp437")))
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.member for item in inputs] == ["a.txt"]
    assert left_out == {"(none)": 1}


def test_encrypted_members_are_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "一")
        archive.writestr("b.txt", "二")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(data))
    inputs, left_out = find_inputs(str(tmp_path))
    assert [item.member for item in inputs] == ["a.txt"]
    assert left_out == {"encrypted members": 1}


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz"])
def test_a_broken_archive_is_one_bad_file(tmp_path, suffix):
    make_tar(tmp_path / "a.tar", [(f"{n}.txt", os.urandom(3000)) for n in range(9)], "w")
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").unlink()
    data = {".zip": b"PK\x03\x04" + data, ".tar": data[:9000], ".tar.gz": gzip.compress(data)[:9000]}[suffix]
    (tmp_path / f"a{suffix}").write_bytes(data)
    (tmp_path / "b.txt").write_text("一", "utf-8")
    inputs, _ = find_inputs(str(tmp_path))
    assert [(item.name, item.member) for item in inputs] == [(f"a{suffix}", ""), ("b.txt", "")]
    with pytest.raises(BadFile):
        list(formats.read(inputs[0], ReadOptions(), FileReport("")))


def test_a_damaged_member_is_one_bad_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", SENTENCE * 9)
        archive.writestr("b.txt", "二")
    data = (tmp_path / "a.zip").read_bytes().replace("绿萝喜欢".encode(), "吊兰喜欢".encode(), 1)
    (tmp_path / "a.zip").write_bytes(data)
    first, second = find_inputs(str(tmp_path))[0]
    with pytest.raises(BadFile, match="damaged"):
        list(formats.read(first, ReadOptions(), FileReport("")))
    assert list(formats.read(second, ReadOptions(), FileReport(""))) == ["二"]


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "a.txt.gz", "a.json", "a.csv", "a.parquet"])
def test_damaged_bytes_make_a_bad_file_and_nothing_worse(tmp_path, name):
    text = "".join(f"第{n}句，{SENTENCE}\n" for n in range(100)).encode()
    path = tmp_path / name
    if name == "a.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", text)
            archive.writestr("绿萝.txt", text)
    elif name == "a.tgz":
        make_tar(path, [("a.txt", text), ("b.txt", text)], "w:gz")
    elif name == "a.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table({"text": [SENTENCE] * 50}), path)
    else:
        rows = json.dumps([SENTENCE] * 50, ensure_ascii=False) if name == "a.json" else f"text\n{SENTENCE}\n" * 50
        path.write_bytes(gzip.compress(text) if name == "a.txt.gz" else rows.encode())
    data, dice, bad = path.read_bytes(), random.Random(0), 0
    for number in range(60):
        broken = bytearray(data)
        for _ in range(dice.choice([1, 3, 9])):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        path.write_bytes(broken[: dice.choice([len(broken), dice.randrange(len(broken))])])
        os.utime(path, (number, number))
        try:
            everything(path)
        except (BadFile, NoDocuments):
            bad += 1
    assert bad > 20


def test_limits_of_archives(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 2**16)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"\n" * 2**24)
    make_tar(tmp_path / "b.tgz", [("a.txt", b"\n" * 2**24)], "w:gz")
    for item in find_inputs(str(tmp_path))[0]:
        with pytest.raises(BadFile, match="bomb"):
            list(formats.read(item, ReadOptions(), FileReport("")))
