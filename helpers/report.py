"""One HTML page about a run, which needs no network: its figures, what the model wrote, the executed notebooks.

Reads manifests, samples and executed notebooks; knows nothing of how they were made.
"""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader, Template
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from helpers import paths
from helpers.files import write_text
from helpers.manifest import RoomError, read_manifest, unfinished

# stage -> the figures of its manifest's result that the summary shows: (name, label, format). A stage that is not here,
# such as a side door, shows its first numbers under their own names
FIGURES = {
    "corpus": [("documents", "documents", ",.0f"), ("characters", "characters", ",.0f")],
    "vocab": [("vocab_size", "tokens in the vocabulary", ",.0f"), ("coverage", "of new text covered", ".1%")],
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
}
NUMBERS = 4  # of a stage without figures of its own
SAMPLES = 12  # generated texts on the page

# code is folded, progress bars are left out; a drawing keeps its words for those who do not see it
_NOTEBOOK = """
{%- extends 'basic/index.html.j2' -%}
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
table { border-collapse: collapse; display: block; overflow-x: auto; } tr { border-bottom: 1px solid #ddd; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; vertical-align: top; } .when, summary { color: #777; }
.text { white-space: pre-wrap; border-left: 3px solid #7a9; padding-left: .8rem; margin: 1rem 0; }
.notebook { border-top: 4px solid #7a9; margin-top: 4rem; }
details.code > summary { font: .8rem monospace; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; }
details.code { margin: .4rem 0; } .highlight { background: #f6f6f4; padding: .2rem .8rem; overflow-x: auto; }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ run }}</title>
<style>
{{ style | safe }}
{{ highlighting | safe }}
</style></head>
<body><h1>Run “{{ run }}”</h1>
{% if verdict %}<p><b>{{ verdict }}</b></p>{% endif %}
{% if losses %}<h2>Left out of the corpus</h2>
<ul>{% for sentence in losses %}<li>{{ sentence }}</li>{% endfor %}</ul>{% endif %}
{% if curve %}<img alt="{{ curve['text/plain'] }}" src="data:image/png;base64,{{ curve['image/png'] }}">{% endif %}
<table><tr><th>stage</th><th>time</th><th>result</th></tr>
{% for part in parts %}<tr><td><a href="#{{ part.name }}">{{ part.name }}</a></td>
<td class="when">{{ "{:,.0f}".format(part.seconds) }} s</td><td>{{ part.figures }}</td></tr>
{% endfor %}</table>
{% if samples %}<h2>What the model writes</h2><p>The beginning in bold was given.</p>
{% for prompt, rest in samples %}<div class="text"><b>{{ prompt }}</b>{{ rest }}</div>{% endfor %}{% endif %}
{% for part in parts %}<section class='notebook' id='{{ part.name }}'>{{ part.body | safe }}</section>{% endfor %}
</body></html>
"""


def result_of(run: str, stage: str) -> dict[str, Any]:
    """Return the result in a stage's manifest; an empty one if it has written no manifest."""
    try:
        return read_manifest(run, stage)["result"]
    except RoomError:
        return {}


def one_line(run: str, stage: str) -> str:
    """Return a stage's figures in one line, `documents 20,000 · …`; an empty one if it has written no manifest."""
    result = result_of(run, stage)
    numbers = [name for name, value in result.items() if type(value) in (int, float)][:NUMBERS]
    figures = FIGURES.get(stage) or [(name, name.replace("_", " "), ",.4g") for name in numbers]
    known = [(result[name], label, form) for name, label, form in figures if result.get(name) is not None]
    return " · ".join(f"{label} {format(value, form)}" for value, label, form in known)


def verdict(run: str) -> str:
    """Return in sentences how good a run's model is and what to do next; none before it is trained."""
    found, counted = result_of(run, "train"), result_of(run, "tokenize")
    bits, floor = (found.get(f"{name}_bits_per_char") for name in ("val", "floor"))
    counting = min(counted.get(f"{name}_bits_per_char", 0) for name in ("unigram", "bigram", "trigram"))
    if not (bits and counting):
        return ""
    words = f"The model needs {bits:.2f} bits per character of text that it has not seen"
    words += f" (no model can need fewer than {floor:.2f}); " if floor else "; "
    words += f"one that only counts which tokens follow which needs {counting:.2f}. "
    if bits < counting:
        return f"{words}So it has learned more than counting can: try it with make serve RUN={run}"
    return f"{words}So it has learned too little: give it more text, or more time, as with -p epochs 10 or -p lr 5e-3"


def first_samples(run: str) -> list[tuple[str, str]]:
    """Return (prompt, what follows) of the first texts that the run's model wrote (text/samples.jsonl), if any."""
    file = paths.room(run, "generate") / "samples.jsonl"
    lines = file.read_text("utf-8").split("\n")[:SAMPLES] if file.is_file() else []
    found = [{"prompt": "", **json.loads(line)} for line in lines if line]
    return [(sample["prompt"], sample["text"].removeprefix(sample["prompt"]).strip()) for sample in found]


@cache
def _exporter() -> HTMLExporter:
    loaders = [DictLoader({"report.html.j2": _NOTEBOOK})]
    return HTMLExporter(extra_loaders=loaders, template_file="report.html.j2", exclude_anchor_links=True,
                        exclude_input_prompt=True, exclude_output_prompt=True)  # fmt: skip


def notebook_body(notebook: nbformat.NotebookNode, stage: str, folder: Path) -> str:
    """Return the HTML of a stage's executed notebook, for a page in a folder: its links to the course lead there."""
    notebook.metadata.pop("widgets", None)  # a widget works only as long as its kernel runs
    body, _ = _exporter().from_notebook_node(notebook)
    homes = paths.notebook(stage).parent, paths.chinese(paths.notebook(stage)).parent  # of English and Chinese copies
    body = re.sub(r"<iframe\b.*?</iframe>", "", body, flags=re.DOTALL)  # its server was shut down with the notebook

    def from_the_page(link: re.Match[str]) -> str:
        place = next((home / link[1] for home in homes if (home / link[1]).exists()), homes[0])
        return f'href="{Path(os.path.relpath(place, folder)).as_posix()}'

    return re.sub(r'href="(?!\w+:|#)([^"#]+)', from_the_page, body)


def write_report(run: str) -> Path:
    """Write runs/<run>/report.html from what the run has so far; return its path."""
    parts: list[dict[str, Any]] = []
    curve = None  # of the loss: the picture that notebook 04 shows when its training has ended
    for stage in paths.NOTEBOOKS:
        try:
            notebook = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        except (OSError, ValueError):  # it did not run, or was killed while its copy was written
            continue
        if stage == "train":
            shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
            curve = next((data for data in shown if data.get("text/plain", "").startswith("bits per char")), None)
        seconds = notebook.metadata.get("papermill", {}).get("duration") or 0
        figures = " · ".join(filter(None, (unfinished(run, stage), one_line(run, stage))))
        part = {"name": paths.notebook(stage).stem, "seconds": seconds, "figures": figures}
        parts.append(part | {"body": notebook_body(notebook, stage, paths.run_dir(run))})
    page = Template(_PAGE, autoescape=True).render(
        run=run, verdict=verdict(run), losses=result_of(run, "corpus").get("losses"), curve=curve, parts=parts,
        samples=first_samples(run), style=STYLE,
        highlighting=HtmlFormatter(style="friendly").get_style_defs(".highlight"),
    )  # fmt: skip
    path = paths.run_dir(run) / "report.html"
    write_text(path, page)
    return path
