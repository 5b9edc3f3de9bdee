"""What several tests of room 01 share: texts, files of many kinds, and the corpus built from them."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from helpers.corpus import formats
from helpers.corpus.build import build_corpus
from helpers.corpus.find import find_inputs
from helpers.corpus.report import FileReport, Report
from helpers.corpus.settings import CorpusSettings
from helpers.corpus.shards import read_texts, shard_documents, shard_paths

SENTENCE = "绿萝喜欢散射光，土干了再浇水。"
PROSE = "".join(f"第{n}天，{SENTENCE}\n" for n in range(60))
TRADITIONAL = "".join(f"第{n}天，綠蘿喜歡散射光，這個國家的人說：「土乾了再澆水！」\n" for n in range(60))
# for property tests: lines of a text, some of them blank, and what may end them
LINES = st.lists(st.text(st.sampled_from("绿萝一二三，。A \u3000\t"), max_size=12), max_size=40)
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r", "\u2028"])


def everything(path: Path, **options) -> tuple[list[str], FileReport]:
    """Read all inputs of a file or folder; return the documents and one report."""
    report = FileReport(path.name)
    inputs, _ = find_inputs(str(path))
    return [text for item in inputs for text in formats.read_documents(item, CorpusSettings(**options), report)], report


def read_text(folder: Path, name: str, text: str, **options) -> tuple[list[str], FileReport]:
    """Write one file, and read it."""
    (folder / name).write_text(text, "utf-8", newline="")
    return everything(folder / name, **options)


def names(source) -> list[str]:
    return [item.name for item in find_inputs(str(source))[0]]


def zst(data: bytes) -> bytes:
    return pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)


def make_tar(path: Path, members: list, mode: str) -> None:
    with tarfile.open(path, mode, encoding="utf-8") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data not in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = data, "/etc/hostname"
                archive.addfile(info)


def build(source: Path, **settings) -> Report:
    return build_corpus("test", str(source), **{"workers": 1, "min_length": 1, **settings})


def all_texts(run="test") -> list[str]:
    """Return the texts of both splits, sorted: which side a document falls on does not matter here."""
    return sorted([*read_texts(run, "train"), *read_texts(run, "val")])


def jsonl(path, documents, seed=0):
    """Write a file of distinct documents, some of them with dirt, every 50th a copy."""
    with open(path, "w", encoding="utf-8") as file:
        for n in range(documents):
            text = (
                f"第{seed}卷第{n if n % 50 else 1}篇，"
                + SENTENCE * (n % 7 + 1)
                + ("<br/>见&amp;" if n % 9 == 0 else "")
            )
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def all_conversations(run="test") -> dict[str, list[tuple[str, list | None]]]:
    """Return {side of the split: [(text, messages)]}, in the order of the shards."""
    return {
        side: [
            (each["text"], each.get("messages")) for shard in shard_paths(run, side) for each in shard_documents(shard)
        ]
        for side in ("train", "val")
    }


def bytes_of(report) -> dict:
    return {file.name: file.read_bytes() for file in report.outputs}
