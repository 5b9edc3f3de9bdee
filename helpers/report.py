"""One HTML page about a run, which needs no network: its figures, what the model wrote, the executed notebooks.

Reads manifests, samples and executed notebooks; knows nothing of how they were made.
"""

import contextlib
import html
import json
import re
from pathlib import Path

import nbformat
from jinja2 import DictLoader
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from helpers import paths
from helpers.files import write_text
from helpers.manifest import RoomError, read_manifest

# stage -> the figures of its manifest's result that the summary shows: (name, label, format)
FIGURES = {
    "corpus": [("documents", "documents", ",.0f"), ("characters", "characters", ",.0f")],
    "vocab": [("vocab_size", "tokens in the vocabulary", ",.0f"), ("agreement_f1", "F1 against thulac", ".3f")],
    "tokenize": [("tokens", "tokens", ",.0f"), ("chars_per_token", "characters per token", ".2f")],
    "train": [
        ("steps", "steps", ",.0f"),
        ("val_bits_per_char", "validation, bits per character", ".3f"),
        ("floor_bits_per_char", "the corpus's floor", ".3f"),
    ],
    "generate": [
        ("facts_seen", "facts right, seen", ".0%"),
        ("facts_held_out", "held out", ".0%"),
        ("plain_questions", "plain questions", ".0%"),
    ],
    "serve": [("latency_ms_p50", "ms per request (median)", ",.0f")],
    "tournament": [
        (f"{kind}_bits_per_char", f"{kind}, bits per character", ".2f")
        for kind in ("characters", "words", "bpe", "bytes")
    ],
    "recipes": [
        ("baseline_bits_per_char", "the plain recipe, bits per character", ".2f"),
        ("default_bits_per_char", "the default, bits per character", ".2f"),
    ],
    "chat": [
        ("val_bits_per_char", "answers, bits per character", ".3f"),
        ("floor_bits_per_char", "their floor", ".3f"),
        ("facts_seen", "facts right, seen", ".0%"),
        ("facts_held_out", "held out", ".0%"),
    ],
    "reward": [("facts_seen", "facts right, seen", ".1%"), ("facts_held_out", "held out", ".1%")],
}
SAMPLES = 12  # generated texts on the page

# code is folded, progress bars are left out; a drawing keeps its words for those who do not see it
NOTEBOOK = """
{%- extends 'basic/index.html.j2' -%}
{%- block in_prompt -%}{%- endblock in_prompt -%}
{%- block output_area_prompt -%}{%- endblock output_area_prompt -%}
{%- block input -%}
<details class="code"><summary>{{ cell.source.strip().split('\\n')[0] | e }}</summary>{{ super() }}</details>
{%- endblock input -%}
{%- block data_widget_view -%}{%- endblock data_widget_view -%}
{%- block data_svg -%}
<img alt="{{ output.data.get('text/plain', '') | escape_html }}"
     src="data:image/svg+xml;base64,{{ output.data['image/svg+xml'] | text_base64 }}">
{%- endblock data_svg -%}
"""
STYLE = """
body { max-width: 54rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.6; color: #222; background: #fff;
       font-family: system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif; }
h1, h2, h3 { line-height: 1.25; } img { max-width: 100%; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .3rem .9rem .3rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #ddd; } .when, summary { color: #777; }
nav { margin-bottom: 1.5rem; } nav a { margin-right: 1rem; }
.text { white-space: pre-wrap; border-left: 3px solid #7a9; padding-left: .8rem; margin: 1rem 0; }
.notebook { border-top: 4px solid #7a9; margin-top: 4rem; }
details.code > summary { font: .8rem monospace; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
details.code { margin: .4rem 0; } .highlight { background: #f6f6f4; padding: .2rem .8rem; overflow-x: auto; }
.jp-RenderedText pre, .output pre { background: none; }
"""


def one_line(run: str, stage: str) -> str:
    """Return a stage's figures in one line, `documents 20,000 · …`; an empty one if it has written no manifest."""
    try:
        result = read_manifest(run, stage)["result"]
    except RoomError:
        return ""
    shown = [(result.get(name), label, form) for name, label, form in FIGURES[stage]]
    return " · ".join(f"{label} {format(value, form)}" for value, label, form in shown if value is not None)


def summary(run: str, notebooks: dict[str, nbformat.NotebookNode]) -> str:
    """Return an HTML table with one row per stage: its time and its figures."""
    rows = []
    for stage, notebook in notebooks.items():
        name = paths.notebook(stage).stem
        seconds = notebook.metadata.get("papermill", {}).get("duration") or 0
        rows.append(
            f"<tr><td><a href='#{name}'>{name}</a></td><td class='when'>{seconds:,.0f} s</td>"
            f"<td>{html.escape(one_line(run, stage))}</td></tr>"
        )
    return "<table><tr><th>stage</th><th>time</th><th>result</th></tr>" + "\n".join(rows) + "</table>"


def samples(run: str) -> str:
    """Return HTML of the first texts that the run's model wrote (text/samples.jsonl); empty if there are none."""
    file = paths.room(run, "generate") / "samples.jsonl"
    if not file.is_file():
        return ""
    parts = []
    for line in file.read_text("utf-8").split("\n")[:SAMPLES]:
        if line:
            sample = json.loads(line)
            prompt, text = sample.get("prompt", ""), sample["text"]
            rest = text.removeprefix(prompt)
            parts.append(f"<div class='text'><b>{html.escape(prompt)}</b>{html.escape(rest.strip())}</div>")
    return "<h2>What the model writes</h2><p>The beginning in bold was given.</p>" + "".join(parts)


def exporter() -> HTMLExporter:
    """Return what makes a section of the page of an executed notebook."""
    return HTMLExporter(
        extra_loaders=[DictLoader({"report.html.j2": NOTEBOOK})], template_file="report.html.j2",
        exclude_anchor_links=True,
    )  # fmt: skip


def chapter(maker: HTMLExporter, stage: str, notebook: nbformat.NotebookNode) -> str:
    """Return an executed notebook as a section of the page."""
    notebook.metadata.pop("widgets", None)  # a widget works only as long as its kernel runs
    body, _ = maker.from_notebook_node(notebook)
    body = re.sub(r"<iframe\b.*?</iframe>", "", body, flags=re.DOTALL)  # its server was shut down with the notebook
    return f"<section class='notebook' id='{paths.notebook(stage).stem}'>{body}</section>"


def write(run: str) -> Path:
    """Write runs/<run>/report.html from what the run has so far; return its path."""
    maker = exporter()
    copies = {stage: paths.executed_copy(run, stage) for stage in paths.NOTEBOOKS}
    notebooks = {}
    for stage, copy in copies.items():
        with contextlib.suppress(OSError, ValueError):  # it did not run, or was killed while its copy was written
            notebooks[stage] = nbformat.read(copy, as_version=4)
    chapters = [chapter(maker, stage, notebook) for stage, notebook in notebooks.items()]
    names = [paths.notebook(stage).stem for stage in notebooks]
    links = " ".join(f"<a href='#{name}'>{name}</a>" for name in names)
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{run}</title><style>{STYLE}{HtmlFormatter(style="friendly").get_style_defs(".highlight")}</style></head>
<body><h1>Run “{run}”</h1><nav>{links}</nav>
{summary(run, notebooks)}
{samples(run)}
{"".join(chapters)}
</body></html>
"""
    path = paths.run_dir(run) / "report.html"
    write_text(path, page)
    return path
