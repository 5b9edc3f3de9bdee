"""The Chinese notebooks: each text belongs to the English that is there now, and nothing else differs but comments."""

import json

import make as make_zh
import pytest

from helpers import paths
from helpers.run import parameters, verify

NOTEBOOKS = paths.repo_root() / "notebooks"
ENGLISH = [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("deeper/*.ipynb"))]
TRANSLATED = [file for file in ENGLISH if paths.chinese(file).with_suffix(".md").is_file()]
CODE, LINK = "x = 1  # one\n# ---- check ----\n", "See [token](../TERMS.md#token) and [03](03_tokenize.ipynb)."
CELLS = [
    {"id": "aaaaaaaa", "cell_type": "markdown", "source": [LINK]},
    {"id": "bbbbbbbb", "cell_type": "code", "source": CODE, "outputs": [1]},
]
MARKS = [f"<!-- {cell['id']} {make_zh.fingerprint(''.join(cell['source']))[:8]} -->" for cell in CELLS]
CHINESE = [f"{MARKS[0]}\n\n见[词元](../TERMS.md#token)和[第 03 章](03_tokenize.ipynb)。\n", f"{MARKS[1]}\n\n- 一\n"]


@pytest.mark.parametrize("english", TRANSLATED, ids=lambda file: file.stem)
def test_a_chinese_notebook_is_the_english_one_in_chinese(english):
    """`make zh` writes them; it says which cells to translate anew."""
    file, notebook = paths.chinese(english).with_suffix(".md"), json.loads(english.read_text("utf-8"))
    catalogue = make_zh.read_catalogue(file)
    assert make_zh.problems(notebook["cells"], catalogue) == []
    written = json.loads(file.with_suffix(".ipynb").read_text("utf-8"))
    assert written == make_zh.translated(notebook, catalogue, english), "run `make zh`"


def test_which_chapters_are_still_to_be_written_in_chinese():
    missing = {file.stem for file in ENGLISH} - {file.stem for file in TRANSLATED}
    assert missing == {"05_generate", "06_serve", "chat", "reward", "tournament"}


def test_texts_and_comments_are_replaced_and_links_lead_where_they_did(tmp_path):
    (tmp_path / "catalogue.md").write_text("\n".join(CHINESE), "utf-8")
    catalogue = make_zh.read_catalogue(tmp_path / "catalogue.md")
    assert make_zh.problems(CELLS, catalogue) == []
    text, code = make_zh.translated({"cells": CELLS}, catalogue, NOTEBOOKS / "01_corpus.ipynb")["cells"]
    assert text["source"] == ["见[词元](../../TERMS.md#token)和[第 03 章](03_tokenize.ipynb)。"]
    assert code["source"] == ["x = 1  # 一\n", "# ---- check ----\n"] and code["outputs"] == [1]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (CHINESE[0], "", "is not translated"),
        (MARKS[0], "<!-- aaaaaaaa 00000000 -->", "has another English now"),
        ("- 一\n", "- 一\n- 二\n", "has 1 comments, and the list 2"),
        ("03_tokenize", "04_train", "has other links: ['03_tokenize.ipynb', '04_train.ipynb']"),
        ("[词元]", "[令牌]", "calls token 令牌, TERMS.md 词元"),
        ("bbbbbbbb", "cccccccc", "cccccccc is no cell"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, before, after, said):
    text = "\n".join(CHINESE)
    assert text.count(before) == 1
    (tmp_path / "catalogue.md").write_text(text.replace(before, after), "utf-8")
    found = make_zh.problems(CELLS, make_zh.read_catalogue(tmp_path / "catalogue.md"))
    assert any(said in line for line in found), found


def test_a_run_in_chinese_takes_the_chinese_notebooks_and_is_the_same_run(monkeypatch):
    """What a run has done in one language need not be done again in the other."""
    english = [verify._code_of(parameters.stage_notebook("corpus", lessons)) for lessons in (False, True)]
    monkeypatch.setenv("COURSE_LANGUAGE", "zh")
    assert "# 01 · 语料" in parameters.stage_notebook("corpus", True).cells[0].source
    assert [verify._code_of(parameters.stage_notebook("corpus", lessons)) for lessons in (False, True)] == english
    assert paths.in_language(paths.notebook("corpus")) == NOTEBOOKS / "zh" / "01_corpus.ipynb"
    assert paths.in_language(NOTEBOOKS / "not_there.ipynb") == NOTEBOOKS / "not_there.ipynb"
