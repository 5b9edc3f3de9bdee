"""One HTML page about a run, which needs no network: its figures, what the model wrote, the executed notebooks.

python -m helpers.report publish RUN …    a page and a picture for each run, for docs/gallery: what others may see of it

Reads manifests, samples and executed notebooks; knows nothing of how they were made.
"""

import argparse
import base64
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader, Template
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from helpers import paths
from helpers.files import log_rows, write_text
from helpers.manifest import RoomError, read_manifest, unfinished
from helpers.wording import duration, say

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
SAMPLES, PUBLISHED = 12, 10  # generated texts on the page, and on the one for others

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


def _manifest_of(run: str, stage: str) -> dict[str, Any]:
    try:
        return read_manifest(run, stage)
    except RoomError:
        return {}


def result_of(run: str, stage: str) -> dict[str, Any]:
    """Return the result in a stage's manifest; an empty one if it has written no manifest."""
    return _manifest_of(run, stage).get("result", {})


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file, none if it is not there."""
    return list(log_rows(file.read_bytes().split(b"\n"))) if file.is_file() else []


def one_line(run: str, stage: str) -> str:
    """Return a stage's figures in one line, `documents 20,000 · …`; an empty one if it has written no manifest."""
    result = result_of(run, stage)
    numbers = [name for name, value in result.items() if type(value) in (int, float)][:NUMBERS]
    figures = FIGURES.get(stage) or [(name, name.replace("_", " "), ",.4g") for name in numbers]
    known = [(result[name], label, form) for name, label, form in figures if result.get(name) is not None]
    return " · ".join(f"{say(label)} {format(value, form)}" for value, label, form in known)


def verdict(run: str) -> str:
    """Return in sentences how good a run's model is and what to do next; none before it is trained."""
    found, counted = result_of(run, "train"), result_of(run, "tokenize")
    bits, floor = (found.get(f"{name}_bits_per_char") for name in ("val", "floor"))
    counting = min(counted.get(f"{name}_bits_per_char", 0) for name in ("unigram", "bigram", "trigram"))
    if not (bits and counting):
        return ""
    words = say("The model needs {:.2f} bits per character of text that it has not seen", bits)
    words += say(" (no model can need fewer than {:.2f})", floor) if floor else ""
    words += say("; one that only counts which tokens follow which needs {:.2f}. ", counting)
    if bits < counting:
        return words + say("So it has learned more than counting can: try it with make serve RUN={}", run)
    return words + say("So it has learned too little: give it more text, or more time, as with -p epochs 10")


def first_samples(run: str, prompt: str = "") -> list[tuple[str, str]]:
    """Return (prompt, what follows) of texts that the model wrote, of each or one prompt: all firsts, all seconds …"""
    found = [{"prompt": "", **row} for row in _rows(paths.room(run, "generate") / "samples.jsonl")]
    found = [row for row in found if prompt in ("", row["prompt"])]
    turns = [sum(earlier["prompt"] == row["prompt"] for earlier in found[:i]) for i, row in enumerate(found)]
    found = [row for _, row in sorted(zip(turns, found, strict=True), key=lambda pair: pair[0])][:SAMPLES]
    return [(sample["prompt"], sample["text"].removeprefix(sample["prompt"]).strip()) for sample in found]


def _template(name: str, html: bool) -> Template:
    return Template(Path(__file__).with_name(name).read_text("utf-8"), autoescape=html)


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


def cost(run: str, seconds: float) -> str:
    """Return in a line when a run's newest room was written, what it ran on, and how long all its notebooks took."""
    manifests = [each for stage in paths.STAGES if (each := _manifest_of(run, stage))]
    start = next(iter(_rows(paths.room(run, "train") / "metrics.jsonl")), {})
    facts = [max(each["written"] for each in manifests)[:10]] if manifests else []
    facts += [f"{start['device']} · {start['precision']}"] if start else []
    return " · ".join([*facts, say("{} in all", duration(seconds))])


def oddities(run: str) -> list[str]:
    """Return in sentences what the owner of a run should know: what was left out, what was feared, what was skipped."""
    trained = result_of(run, "train")
    skipped = say("{} updates skipped, no weight changed", trained["skipped"]) if trained.get("skipped") else ""
    left = result_of(run, "corpus").get("losses", []) + trained.get("concerns", []) + [skipped]
    return list(filter(None, [*left, *(unfinished(run, stage) for stage in paths.NOTEBOOKS)]))


def collected(run: str) -> dict[str, Any]:
    """Return what is said of a run: its parts (an executed notebook each), curve, samples and sentences."""
    parts: list[dict[str, Any]] = []
    curve, seconds = None, 0.0  # of the loss: the picture that notebook 04 shows when its training has ended
    for stage in paths.NOTEBOOKS:
        try:
            notebook = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        except (OSError, ValueError):  # it did not run, or was killed while its copy was written
            continue
        if stage == "train":
            shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
            curve = next((data for data in shown if data.get("text/plain", "").startswith("bits per char")), None)
        took = notebook.metadata.get("papermill", {}).get("duration") or 0
        seconds += took
        part = {"stage": stage, "notebook": notebook, "name": paths.notebook(stage).stem, "time": duration(took)}
        parts.append(part | {"figures": one_line(run, stage)})
    return {
        "run": run, "parts": parts, "curve": curve, "samples": first_samples(run), "odd": oddities(run), "say": say,
        "verdict": verdict(run), "cost": cost(run, seconds), "language": paths.language(),
    }  # fmt: skip


def write_report(run: str) -> Path:
    """Write runs/<run>/report.html from what the run has so far; return its path."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("friendly", "github-dark"))
    found = collected(run)
    for part in found["parts"]:
        part["body"] = notebook_body(part["notebook"], part["stage"], paths.run_dir(run))
    page = _template("report.html.j2", True).render(found, light=light, dark=dark)
    write_text(paths.run_dir(run) / "report.html", page)
    return paths.run_dir(run) / "report.html"


def publish(run: str, folder: Path) -> Path:
    """Write a run's page into a folder, RUN.md and RUN.png; return the page's path. RoomError before it is trained.

    Its texts are those of the run's own `prompt`, as other beginnings are lines of the corpus, unless it has none.
    """
    read_manifest(run, "train")
    prompt = _manifest_of(run, "generate").get("parameters", {}).get("prompt", "")
    found = collected(run)
    if not found["curve"]:
        raise RoomError(say("run '{}' was not run by helpers.run: there is no copy of its notebooks", run))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run}.png").write_bytes(base64.b64decode(found["curve"]["image/png"]))
    texts = [[_markdown(part) for part in sample] for sample in first_samples(run, prompt)[:PUBLISHED]]
    write_text(folder / f"{run}.md", _template("report.md.j2", False).render(found | {"samples": texts}) + "\n")
    return folder / f"{run}.md"


def _markdown(text: str) -> str:
    """Return a text in which Markdown finds nothing of its own; its lines stay lines of a quotation."""
    return re.sub(r"([\\`*_<>#\[\]|~])", r"\\\1", text.strip()).replace("\n", "\\\n> ")


def main() -> int:
    """Read the command line, publish the runs, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m helpers.report", description=__doc__)
    parser.add_argument("do", choices=["publish"])
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--folder", type=Path, default=paths.repo_root() / "docs" / "gallery", help="of the pages")
    asked = parser.parse_args()
    try:
        for run in asked.runs:
            print(publish(run, asked.folder))
    except (RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
