"""The reduce step: duplicates and near duplicates, the split, shards of bounded size."""

import numpy as np
import pytest
from corpora import PROSE, all_texts, build
from hypothesis import given
from hypothesis import strategies as st

from helpers import paths
from helpers.corpus import split
from helpers.corpus.archives import NoDocuments
from helpers.corpus.partition import split_position
from helpers.corpus.shards import read_texts, shard_paths
from helpers.manifest import MANIFEST


def test_duplicates_and_short_documents_are_reported_in_documents_and_characters(raw):
    (raw / "a.txt").write_text("绿萝绿萝\n一\n吊兰吊兰\n绿萝绿萝  \n", "utf-8")
    (raw / "b.txt").write_text("吊兰吊兰\n", "utf-8")
    report = build(raw, document="line", min_length=2)
    assert all_texts() == sorted(["绿萝绿萝", "吊兰吊兰"])
    assert report.dropped == {"duplicate": 2, "too short": 1}
    assert report.lost == {"duplicate": 8, "too short": 1}
    assert [file.documents for file in report.files] == [2, 0]
    assert report.result()["dropped"] == 3
    assert report.result()["dropped_characters"] == 9


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "一\n二\n", "left, and .*document='line' or 'block'"),
        ("a.jsonl", '"一二"\n' * 1000 + "1\n", r"left \(999 duplicate, 1 unreadable\), and .*a smaller max_length"),
    ],
)
def test_one_document_cannot_be_split(raw, name, text, said):
    (raw / name).write_text(text, "utf-8")
    with pytest.raises(NoDocuments, match=f"only 1 document is {said}"):
        build(raw)


def test_a_document_stays_on_its_side_when_the_corpus_grows(raw):
    rows = [f"第{n}句" for n in range(400)]
    (raw / "a.txt").write_text("\n".join(rows[:300]), "utf-8")
    build(raw, document="line", val_fraction=0.1)
    before = set(read_texts("test", "val"))
    (raw / "0.txt").write_text("\n".join(rows[300:]), "utf-8")
    report = build(raw, document="line", val_fraction=0.1)
    after = set(read_texts("test", "val"))
    assert after & set(rows[:300]) == before
    assert 15 < report.val_documents < 75
    build(raw, document="line", val_fraction=0.1, seed=1)
    assert set(read_texts("test", "val")) != after


@given(st.sets(st.text("0123456789abcdef", min_size=4, max_size=8), min_size=2, max_size=30), st.floats(1e-6, 0.999))
def test_both_sides_have_a_document(keys, fraction):
    positions = np.array([split_position(key, 0) for key in keys])
    validation = positions < split.threshold(positions, fraction)
    assert validation.any() and not validation.all()


def test_shards_are_bounded_and_old_ones_go_away(raw, monkeypatch):
    monkeypatch.setattr(split, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    assert len(shard_paths("test", "train")) == 3
    train = list(read_texts("test", "train"))
    assert train == [row for row in PROSE.splitlines() if row in train]  # in order
    (paths.room("test", "corpus") / MANIFEST).write_text("{}")
    report = build(raw, document="line", max_documents=20)
    assert report.documents == 20
    assert report.dropped == {"over max_documents": 40}
    assert [path.name for path in shard_paths("test", "train")] == ["train-00000.jsonl"]
    assert not (paths.room("test", "corpus") / MANIFEST).exists()


def near(number, changes=0):
    text = "".join(chr(0x4E00 + (number * 997 + i * 31) % 5000) for i in range(120))
    return text[: 20 * changes] + f"{changes}改" * (changes > 0) + text[20 * changes :]


def test_near_duplicates_are_dropped(raw):
    groups = [[near(number, changes) for changes in range(4)] for number in range(60)]
    (raw / "a.txt").write_text("\n".join(text for group in zip(*groups, strict=True) for text in group), "utf-8")
    report = build(raw, document="line", near_duplicates=0.7)
    assert report.dropped == {"near duplicate": 180} and report.files[0].documents == 60
    assert all_texts() == sorted(group[0] for group in groups)
    report = build(raw, document="line", near_duplicates=0.7, max_documents=10)
    assert report.dropped == {"near duplicate": 30, "over max_documents": 200}
