"""Which document a record becomes: its key, a template, a conversation."""

import json

import pytest
from corpora import everything, read_text

from helpers.corpus.conversations import Conversation
from helpers.corpus.records import ReadOptions


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


def test_templates_over_json(tmp_path):
    rows = [{"t": "题", "p": ["一", "二"]}, {"p": []}, {"t": float("nan"), "p": None}, {"x": "无"}, "只是文字"]
    rows += [{"t": {"a": 1}}, {"t": float("nan"), "p": "三"}]
    documents, report = read_text(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)), text_key="《{t}》\n{p}")
    assert documents == ["《题》\n一\n二", "只是文字", "《》\n三"]
    assert report.dropped == {"empty": 2, "unreadable": 2}
    assert "nothing under 't, p'" in report.notes[0] and "a object" in report.notes[0]


@pytest.mark.parametrize("text_key", ["{a.__class__}", "{a[0]}", "{}", "{a!r}", "{a:>9}", "{a", "a}"])
def test_templates_name_columns_and_nothing_else(text_key):
    with pytest.raises(ValueError, match="text_key"):
        ReadOptions(text_key=text_key)
