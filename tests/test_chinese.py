"""The Chinese notebooks: each text belongs to the English that is there now, and code differs only in words."""

import ast
import json
import os
import re
from pathlib import Path

import make as make_zh
import pytest

from helpers import files, paths, wording

NOTEBOOKS = paths.repo_root() / "notebooks"
ENGLISH = [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("deeper/*.ipynb"))]
ROOT = paths.repo_root()
PAGES = {ROOT / "README.md": ROOT / "README.zh.md"}
PAGES |= {page: page.parent / "zh" / page.name for page in sorted((ROOT / "docs").glob("*.md"))}
CODE = 'x = 1  # one\n# ---- check ----\nprint(f"Right: all {n}" if n == "x y" else "x y")\n'
LINK = "See [token](../TERMS.md#token) and [03](03_tokenize.ipynb)."
CELLS = [
    {"id": "aaaaaaaa", "cell_type": "markdown", "source": [LINK]},
    {"id": "bbbbbbbb", "cell_type": "code", "source": CODE, "outputs": [1]},
]
MARKS = [f"<!-- {cell['id']} {make_zh.fingerprint(''.join(cell['source']))[:8]} -->" for cell in CELLS]
CHINESE = [
    f"{MARKS[0]}\n\n见[词元](../TERMS.md#token)和[第 03 章](03_tokenize.ipynb)。\n",
    f'{MARKS[1]}\n\n- 一\n- "Right: all {{n}}" → "对：{{n}}"\n- "x y" → "甲"\n',
]


@pytest.mark.parametrize("english", ENGLISH, ids=lambda file: file.stem)
def test_a_chinese_notebook_is_the_english_one_in_chinese(english):
    """`make zh` writes them; it says which cells to translate anew."""
    file, notebook = paths.chinese(english).with_suffix(".md"), json.loads(english.read_text("utf-8"))
    catalogue = make_zh.read_catalogue(file)
    assert make_zh.problems(notebook["cells"], catalogue) == []
    written = json.loads(file.with_suffix(".ipynb").read_text("utf-8"))
    assert written == make_zh.translated(notebook, catalogue, english), "run `make zh`"
    other = [
        cell["id"] for cell, chinese in zip(notebook["cells"], written["cells"], strict=True)
        if "nbval-ignore-output" not in cell["metadata"].get("tags", []) and numbers(cell) != numbers(chinese)
    ]  # fmt: skip
    assert not other, f"other numbers than the English: python -m helpers.run refresh {english.stem} --language zh"


def numbers(cell):
    """Return the numbers that a cell prints, sorted: words may stand in another order."""
    outputs = cell.get("outputs", [])
    texts = ["".join(each.get("text", each.get("data", {}).get("text/plain", ""))) for each in outputs]
    return sorted(re.findall(r"\d[\d,.]*\d|\d", "\n".join(texts)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_in_chinese_has_the_commands_headings_and_links_of_the_english(page):
    """Its link to the English says of which English it is the Chinese."""
    english, text = page.read_text("utf-8"), PAGES[page].read_text("utf-8")
    ways = [os.path.relpath(b, a.parent) for a, b in ((page, PAGES[page]), (PAGES[page], page))]
    assert f"]({ways[0]})" in english[:900] and f"]({ways[1]})" in text[:200]
    (stamp,) = re.findall(r"<!-- english: (\w{8}) -->", text)
    assert commands(text) == commands(english)
    assert re.findall("^#+ ", text, re.MULTILINE) == re.findall("^#+ ", english, re.MULTILINE)
    assert links(text) == links(english)
    assert stamp == files.fingerprint(english)[:8], (
        "the English has changed since: translate what is new, then its stamp"
    )


def commands(text):
    """Return the lines of a page's code blocks, without comments."""
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r" *(^|  )#.*", "", line) for block in blocks for line in block.splitlines()]


def links(text):
    """Return the names of the files, and the addresses, to which a page links; the same name in both languages."""
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return {each if "://" in each else Path(each).name.replace(".zh.md", ".md") for each in targets}


def test_texts_and_comments_are_replaced_and_links_lead_where_they_did(tmp_path):
    (tmp_path / "catalogue.md").write_text("\n".join(CHINESE), "utf-8")
    catalogue = make_zh.read_catalogue(tmp_path / "catalogue.md")
    assert make_zh.problems(CELLS, catalogue) == []
    text, code = make_zh.translated({"cells": CELLS}, catalogue, NOTEBOOKS / "01_corpus.ipynb")["cells"]
    assert text["source"] == ["见[词元](../../TERMS.md#token)和[第 03 章](03_tokenize.ipynb)。"]
    assert code["source"] == ["x = 1  # 一\n", "# ---- check ----\n", 'print(f"对：{n}" if n == "x y" else "甲")\n']
    assert code["outputs"] == [1]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('- "Right: all {n}" → "对：{n}"\n', "", 'says in English: - "Right: all {n}" → ""'),
        ("对：{n}", "对：{m}", "has other places {}"),
        ('"Right', '"Wright', 'has no string "Wright: all {n}"'),
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


def test_a_run_in_chinese_takes_the_chinese_notebooks(monkeypatch):
    assert paths.language() == "en" and paths.in_language(paths.notebook("corpus")) == NOTEBOOKS / "01_corpus.ipynb"
    monkeypatch.setenv("COURSE_LANGUAGE", "zh")
    assert paths.in_language(paths.notebook("corpus")) == NOTEBOOKS / "zh" / "01_corpus.ipynb"
    assert paths.in_language(NOTEBOOKS / "not_there.ipynb") == NOTEBOOKS / "not_there.ipynb"


def test_what_helpers_say_to_readers_is_there_in_chinese_with_the_same_places():
    """Each message of the table is said somewhere, and each that helpers say by name is in the table."""
    sources = [file.read_text("utf-8") for file in (paths.repo_root() / "helpers").rglob("*.py")]
    for file in ENGLISH:
        cells = json.loads(file.read_text("utf-8"))["cells"]
        sources += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    calls = [node.args[0] for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say"]
    said = {each.value for each in calls if isinstance(each, ast.Constant)}
    for template in (ROOT / "helpers").glob("*.j2"):
        said |= set(re.findall(r'\bsay\("([^"]+)"', template.read_text("utf-8")))
    table = wording.chinese_messages()
    assert said <= table.keys() <= strings | said
    assert not [each for each, words in table.items() if places(each) != places(words)]


def places(message):
    return sorted(re.findall(r"{[^}]*}", message))


def test_a_chinese_reader_is_spoken_to_in_chinese(monkeypatch):
    monkeypatch.setenv("COURSE_LANGUAGE", "zh")
    assert wording.run_again("corpus", "r") == "请重新运行笔记本 01_corpus，或者：python -m helpers.run corpus --run r"
    assert wording.say("not in the table") == "not in the table"
