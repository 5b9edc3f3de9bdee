"""The report of a run: one page that fetches nothing, with its figures, its samples and its notebooks."""

import base64
import json
import re
from pathlib import Path

import nbformat
import pytest
from house import write_cell
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers import paths, report
from helpers.manifest import RoomError
from helpers.run import execute
from helpers.run.__main__ import main


@pytest.mark.slow
def test_the_report_is_one_page_that_fetches_nothing(house):
    samples = paths.room("r", "generate") / "samples.jsonl"
    samples.parent.mkdir(parents=True)
    samples.write_text(json.dumps({"text": "床前<b>明月光"}, ensure_ascii=False) + "\n", "utf-8")
    shown = "HTML('<b>月</b>'), IFrame('http://127.0.0.1:5005', 9, 9), Image(bytes(range(9)), format='png')"
    write_cell("vocab", more=f"\nfrom IPython.display import HTML, IFrame, Image, display\ndisplay({shown})")
    assert main(["corpus", "vocab", "--run", "r"]) == 0
    page = (paths.run_dir("r") / "report.html").read_text("utf-8")
    assert not re.search(r"""<(script|iframe|link|object)\b|<[^>]*\s(src|srcset|data)=["']?(?!["']?data:)""", page)
    assert "床前&lt;b&gt;明月光" in page and "<b>月</b>" in page and "data:image/png;base64" in page
    assert "characters 12,345" in page and page.count("<details") == 8 and "vocab 一步" in page


def test_a_drawing_is_in_the_page_with_its_words():
    """An executed copy lies elsewhere than notebooks/images: the drawing must be a part of the page."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><title>缓存</title></svg>'
    shown = new_output("display_data", data={"image/svg+xml": svg, "text/plain": '[drawing] the "cache"'})
    page = report.notebook_body(new_notebook(cells=[new_code_cell("1", outputs=[shown])]), "train", paths.run_dir("r"))
    (picture,) = re.findall(r"<img [^>]*>", page)
    (data,) = re.findall('src="data:image/svg[+]xml;base64,([^"]*)"', picture)
    assert base64.b64decode(data).decode() == svg
    assert 'alt="[drawing] the &#34;cache&#34;"' in picture or "alt='[drawing] the \"cache\"'" in picture


def test_what_is_left_out_stands_before_the_notebooks_in_the_report_and_last_in_the_terminal(
    house, capsys, monkeypatch
):
    lost = [f"{n}.txt <is not read>" for n in range(9)]
    monkeypatch.setattr(report, "read_manifest", lambda run, stage: {"result": {"losses": lost}, "written": "2026"})
    monkeypatch.setattr(execute, "finished_unchanged", lambda *_: True)
    execute.run_stages("r", {"corpus": {}}, force=False)
    told = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(None, 2)[2] for line in told[:5]] == lost[:5] and "notebooks/01_corpus.ipynb" in told[5]
    page = (paths.run_dir("r") / "report.html").read_text("utf-8")
    assert page.count("<li>") == 9 and page.index("<li>0.txt &lt;is not read&gt;") < page.index("The notebooks as")


COUNTED = {"unigram_bits_per_char": 6.0, "bigram_bits_per_char": 2.4, "trigram_bits_per_char": 1.21}


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        ({"val_bits_per_char": 0.653, "floor_bits_per_char": 0.62},
         "needs 0.65 .*no model can need fewer than 0.62.* counts .*needs 1.21. .*learned more.*make serve RUN=r$"),
        ({"val_bits_per_char": 2.0}, "needs 2.00 bits per character of text that it has not seen; one .*too little"),
        ({}, "^$"),
    ],
)  # fmt: skip
def test_the_first_sentence_is_a_verdict_that_says_what_to_do_next(monkeypatch, trained, words):
    monkeypatch.setattr(report, "result_of", lambda run, stage: {"train": trained, "tokenize": COUNTED}[stage])
    assert re.search(words, report.verdict("r"))


def trained_run(monkeypatch):
    picture = {"image/png": "QUJD", "text/plain": "bits per character: training 0.65"}
    book = new_notebook(cells=[new_code_cell("1", outputs=[new_output("display_data", data=picture)])])
    paths.executed_copy("r", "train").parent.mkdir(parents=True)
    nbformat.write(book, paths.executed_copy("r", "train"))
    monkeypatch.setattr(report, "read_manifest", lambda run, stage: {"written": "2026-11-28", "result": {"steps": 9}})


def test_the_loss_of_the_training_stands_above_the_table(house, monkeypatch):
    trained_run(monkeypatch)
    page = report.write_report("r").read_text("utf-8")
    assert page.index('<img alt="bits per character: training 0.65" src="data:image/png;base64,QUJD">') < page.index(
        "<table>"
    )


def test_a_published_run_is_a_page_of_texts_as_they_came_and_its_curve(house, monkeypatch, tmp_path):
    trained_run(monkeypatch)
    samples = paths.room("r", "generate") / "samples.jsonl"
    samples.parent.mkdir(parents=True)
    rows = [{"prompt": "床前", "text": "床前*明月*光\n疑是"}, {"prompt": "床前", "text": "床前二"}, {"text": "举头"}]
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    page = report.publish("r", tmp_path).read_text("utf-8")
    assert (tmp_path / "r.png").read_bytes() == b"ABC" and "](r.png)" in page and "2026-11-28" in page
    texts = [line for line in page.splitlines() if line.startswith("> ")]
    assert texts == ["> **床前** \\*明月\\*光\\", "> 疑是", "> 举头", "> **床前** 二"]
    manifest = {"written": "2026-11-28", "parameters": {"prompt": "床前"}}
    monkeypatch.setattr(report, "read_manifest", lambda run, stage: manifest)
    assert "举头" not in report.publish("r", tmp_path).read_text("utf-8")  # a line of the corpus, as the others are
    paths.executed_copy("r", "train").unlink()
    with pytest.raises(RoomError, match="no copy of its notebooks"):
        report.publish("r", tmp_path)


@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_each_link_of_a_page_leads_to_a_file(stage, tmp_path):
    """The page lies elsewhere than the notebook, so a link that is meant from there needs another way."""
    for file in filter(Path.is_file, (paths.notebook(stage), paths.chinese(paths.notebook(stage)))):
        page = report.notebook_body(nbformat.read(file, as_version=4), stage, tmp_path)
        links = [link for link in re.findall('href="([^"#]+)', page) if not re.match(r"\w+:", link)]
        assert links and all((tmp_path / link).exists() for link in links)


@pytest.mark.parametrize(
    ("stage", "result", "line"),
    [
        ("train", {"steps": 900, "val_bits_per_char": 0.5}, "steps 900 · validation, bits per character 0.500"),
        ("new_door", {"best": "a", "facts_seen": 0.98765, "steps": 1200}, "facts seen 0.9877 · steps 1,200"),
    ],
)
def test_a_stage_shows_the_figures_that_it_has(monkeypatch, stage, result, line):
    """A side door needs no line here: its first numbers are shown."""
    monkeypatch.setattr(report, "read_manifest", lambda run, stage: {"result": result})
    assert report.one_line("r", stage) == line
