"""Which document a record becomes: its key, a template, a conversation; and that no character is lost silently."""

import csv
import io
import json

import pytest
from corpora import all_texts, build, everything, read_text
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.corpus.conversations import Conversation
from helpers.corpus.settings import CorpusSettings

# ---- what came in = what is in the corpus + what the report names ----

TEXTS = st.text(st.sampled_from("绿萝，。\",;\t\n|\\' A1{}"), min_size=1, max_size=12).filter(str.strip)
BESIDE = st.text(st.sampled_from("题目,\"\n'"), max_size=5)


def table_of(rows, mark):
    file = io.StringIO()
    csv.writer(file, delimiter=mark).writerows([rows[0], *(row.values() for row in rows)])
    return file.getvalue()


def turns(row, who, what, names):
    pair = zip(names, (row["text"], row["text"] + "答"), strict=True)
    said = [{who: name, what: text} for name, text in pair]
    said[1]["reasoning_content"] = row["问的是，一个"]
    return said


def lines_of(rows):
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


RECORDS = {  # form -> (file, what Python's own writers make of the rows)
    "list": ("a.json", json.dumps),
    "objects": ("a.json", lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows)),
    "objects in a .jsonl": ("a.jsonl", lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows)),
    "one list": ("a.json", lambda rows: json.dumps({"data": rows})),
    "lines": ("a.jsonl", lines_of),
    "csv": ("a.csv", lambda rows: table_of(rows, ",")),
    "csv ;": ("a.csv", lambda rows: table_of(rows, ";")),
    "tsv": ("a.tsv", lambda rows: table_of(rows, "\t")),
    "parquet": ("a.parquet", None),
    "pairs": (
        "a.csv",
        lambda rows: table_of([{"问题": r["text"], "回答": r["问的是，一个"] + "答"} for r in rows], ","),
    ),
    "alpaca": (
        "a.jsonl",
        lambda rows: lines_of({"instruction": r["text"], "output": r["问的是，一个"] + "答"} for r in rows),
    ),
    "messages": (
        "a.jsonl",
        lambda rows: lines_of({"messages": turns(r, "role", "content", ("user", "assistant"))} for r in rows),
    ),
    "sharegpt": (
        "a.json",
        lambda rows: json.dumps([{"conversations": turns(r, "from", "value", ("human", "gpt"))} for r in rows]),
    ),
}


@given(
    st.lists(st.tuples(TEXTS, BESIDE), min_size=1, max_size=6),
    st.sampled_from(sorted(RECORDS)),
    st.sampled_from(["utf-8", "gb18030", "utf-16"]),
)
@settings(max_examples=500)
def test_each_character_of_a_record_is_in_its_document_or_named(tmp_path_factory, drawn, form, codec):
    name, write = RECORDS[form]
    path = tmp_path_factory.getbasetemp() / name
    rows = [{"问的是，一个": beside, "text": text} for text, beside in drawn]
    if write is None:
        pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    else:
        path.write_text(write(rows), codec, newline="")
    documents, report = everything(path)
    texts, beside = [row["text"] for row in rows], sum(len(row["问的是，一个"]) for row in rows)
    lost, roles = {"field '问的是，一个' is not used": beside}, 0
    if form in ("alpaca", "pairs"):
        texts, lost = [f"{row['text']}\n{row['问的是，一个']}答" for row in rows], {}
    elif form in ("messages", "sharegpt"):
        texts, lost = [f"{text}\n{text}答" for text in texts], {"field 'reasoning_content' is not used": beside}
        roles = len(rows) * len("userassistant" if form == "messages" else "humangpt")
    assert documents == texts
    assert report.lost == {reason: n for reason, n in lost.items() if n}
    joints = sum(isinstance(document, Conversation) for document in documents)
    assert report.counts["form"] == roles - joints
    assert report.counts["read"] == sum(map(len, texts)) + sum(lost.values()) + roles - joints
    # a few characters of GB18030 may be UTF-8 as well, which is told
    notes = [note for note in report.notes if not note.startswith("changes its encoding")]
    assert not report.dropped and not notes or notes == ["read as conversations"] or form == "one list"


@given(st.lists(TEXTS, min_size=3, max_size=8, unique=True), st.sampled_from(["line", "block", "file", "auto"]))
@settings(max_examples=60)
def test_what_was_read_is_in_the_corpus_or_its_report(tmp_path_factory, texts, mode):
    """Of a .txt and a .jsonl together, through cleaning, filters and duplicates."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("balance")
        patch.setenv("RUNS_DIR", str(folder / "runs"))
        (folder / "a.txt").write_text("甲甲\n\n" + "\n\n".join(texts), "utf-8", newline="")
        rows = [{"text": text, "title": "题"} for text in [*texts, texts[0], "乙乙", "<p>丙丙</p>\u200b"]]
        (folder / "b.jsonl").write_text(lines_of(rows) + "\n{torn", "utf-8")
        report = build(folder / "*.*", document=mode, min_length=2, max_length=10)
        kept = all_texts()
    for file in report.files:
        balance = file.balance()
        assert balance.pop("read") == sum(balance.values()) > 0
    assert report.files[0].balance()["read"] == len("甲甲\n\n" + "\n\n".join(texts))
    assert report.files[1].balance()["read"] == sum(len(row["text"]) + 1 for row in rows) + len("{torn")
    assert report.lost["field 'title' is not used"] == len(rows) and report.lost["unreadable"] == len("{torn")
    assert report.documents == len(kept) == len({*kept}) and {"乙乙", "丙丙"} <= {*kept}


# ---- the document ----


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_conversation_beside_a_text_that_is_null(tmp_path, kind):
    talk = [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]
    rows = [{"text": None, "messages": talk}, {"text": "文", "messages": talk}]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    else:
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    documents, report = everything(path)
    assert [(str(text), isinstance(text, Conversation)) for text in documents] == [("问\n答", True), ("文", False)]
    assert not report.dropped
    assert report.lost == {"field 'messages' is not used": len("user问assistant答")}
    assert [n for told, n in report.counts.items() if "text_key='conversations'" in told] == [1]


def test_templates_over_json(tmp_path):
    rows = [{"t": "题", "p": ["一", "二"]}, {"p": []}, {"t": float("nan"), "p": None}, {"x": "无"}, "只是文字"]
    rows += [{"t": {"a": 1}}, {"t": float("nan"), "p": "三"}]
    documents, report = read_text(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)), text_key="《{t}》\n{p}")
    assert documents == ["《题》\n一\n二", "只是文字", "《》\n三"]
    assert report.dropped == {"empty": 2, "unreadable": 2} and report.lost["unreadable"] == 1
    assert "nothing under 't, p'" in report.notes[0] and "no text but {'a': 1} under 't'" in report.notes[0]


@pytest.mark.parametrize("text_key", ["{a.__class__}", "{a[0]}", "{}", "{a!r}", "{a:>9}", "{a", "a}"])
def test_templates_name_columns_and_nothing_else(text_key):
    with pytest.raises(ValueError, match="text_key"):
        CorpusSettings(text_key=text_key)
