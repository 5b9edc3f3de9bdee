"""What prose says holds: its figures come from a cell, a parameter or a report, its links lead somewhere.

`figures` says what a figure is and when it is true to a number.
"""

import ast
import re

import nbformat
import pytest
import yaml
from figures import (
    all_code_numbers,
    code_numbers,
    numbers,
    output_numbers,
    report_numbers,
    unfounded,
)
from nbformat.v4 import new_markdown_cell

from helpers import paths

ROOT = paths.repo_root()
REPORTS = sorted((ROOT / "benchmarks" / "reports").glob("*.json"))
RECORD = ROOT / "benchmarks" / "reports" / "2026-11.md"  # what was measured by hand
BENCHMARKS = ROOT / "benchmarks" / "README.md"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), BENCHMARKS]

# figures that no cell computes: {file, or "everywhere": {the figure as it is written: its source}}
CONSTANTS: dict[str, dict[str, str]] = {
    "everywhere": {
        "255": "the largest number of one byte: 2**8 - 1",
        "65,535": "the largest number of two bytes: 2**16 - 1",
        "429": "the HTTP status Too Many Requests, RFC 6585",
    },
    "02_vocab.ipynb": {
        "130 MB": "thulac's resident memory after its model is loaded: the docstring of helpers.vocab.words.segment",
    },
    "03_tokenize.ipynb": {"1,024": "the rule for windows: helpers.tokens.windows.choose_n_ctx, and its test"},
    "README.md": {
        "3.14": "the newest Python that hosted CI runs",
        "130 MB": "thulac's resident memory after its model is loaded: the docstring of helpers.vocab.words.segment",
        "127 million": "presets/book.yaml, counted by helpers.model.config.GPTConfig.sizes",
        "111 million": "presets/cpm.yaml, counted by the same",
        "27 million": "presets/minimind.yaml, and what is active in minimind-moe.yaml, counted by the same",
        "60 million": "presets/minimind3.yaml, counted by the same",
        "76 million": "presets/minimind-moe.yaml, counted by the same",
    },
    "docs/zh-64m.md": {
        "64 million": "presets/zh-64m.yaml, counted by helpers.model.config.GPTConfig.sizes",
        "406 million": "the same, operations of a token in training",
        "400 million": "1.2 GB at three bytes a character",
        "250 million": "these at 1.6 characters a token, as MiniMind's README has it for Chinese",
        "3090": "the name of a card",
        "4090": "the name of a card",
    },
    "docs/other-machines.md": {"3.14": "the newest Python that hosted CI runs"},
}


def read(stage):
    return nbformat.read(paths.notebook(stage), as_version=4)


def sources(book):
    """Return all numbers that a notebook's prose may quote.

    Those of its outputs and its code; those of the reports that it names, and those that the side doors print to which
    it links.
    """
    written = "\n".join(cell.source for cell in book.cells)
    found = output_numbers(book) | all_code_numbers(book)
    for report in REPORTS:
        if report.stem in written:
            found |= report_numbers(report)
    for door in paths.SIDE_DOORS:
        if f"{paths.notebook(door).name}" in written:
            found |= output_numbers(read(door))
    return found


def constants(name):
    """Return the figures that need no other source in a file."""
    return CONSTANTS["everywhere"] | CONSTANTS.get(name, {})


def unfounded_cells(book, name):
    """Return a line for each figure in a notebook's prose that comes from nowhere."""
    known, found = sources(book), []
    for cell in (cell for cell in book.cells if cell.cell_type == "markdown"):
        for figure in dict.fromkeys(unfounded(cell.source, known)):
            if figure.text not in constants(name):
                reports = [file.name for file in REPORTS if any(map(figure.is_true_to, report_numbers(file)))]
                telling = reports and (figure.step < 1 or figure.value > 1000)  # else it may be there by chance
                hint = f" (in {reports[0]}, which the notebook doesn't name)" if telling else ""
                found.append(f"{name} [{cell.id}]: {figure.text}{hint}")
    return found


@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_each_figure_in_a_notebook_is_one_that_it_prints_or_a_report_holds(stage):
    found = unfounded_cells(read(stage), paths.notebook(stage).name)
    assert not found, "print it, drop it, or give its source in CONSTANTS:\n" + "\n".join(found)


def docs_sources():
    """Return all numbers that README.md and docs/ may quote: reports, outputs, parameters, presets."""
    found = set().union(numbers(RECORD.read_text("utf-8")), *map(report_numbers, REPORTS))
    for book in map(read, paths.NOTEBOOKS):
        (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
        found |= output_numbers(book) | code_numbers(parameters.source)
    for preset in (ROOT / "presets").glob("*.yaml"):
        found |= numbers(str(yaml.safe_load(preset.read_text("utf-8"))))
    return found


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_figure_in_the_docs_is_one_of_a_report_or_of_a_notebook(path):
    name, known, found = path.relative_to(ROOT).as_posix(), docs_sources(), []
    for number, line in enumerate(to_be_founded(path).splitlines(), 1):
        wrong = [figure.text for figure in unfounded(line, known)]
        found += [f"{name}:{number}: {text}" for text in wrong if text not in constants(name)]
    assert not found, "measure it, drop it, or give its source in CONSTANTS:\n" + "\n".join(found)


def to_be_founded(path):
    """Return a page with empty lines for fenced code and for sections that say when and where they were measured."""
    text = path.read_text("utf-8")
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    dated = [each for each in sections if re.search(r"^Measured on \d{4}-\d\d-\d\d on \S", each, re.MULTILINE)]
    for part in dated + re.findall(r"```.*?```", text, re.DOTALL):
        text = text.replace(part, "\n" * part.count("\n"))
    return text


# ---- links and quotations ----


def markdown_of(path):
    if path.suffix == ".md":
        return {path.name: path.read_text("utf-8")}
    book = nbformat.read(path, as_version=4)
    return {f"{path.name} [{cell.id}]": cell.source for cell in book.cells if cell.cell_type == "markdown"}


def test_the_answers_that_the_readme_quotes_are_those_of_notebook_05():
    (block,) = re.findall(r"This is what it answers .*?```\n(.*?)```", DOCS[0].read_text("utf-8"), re.DOTALL)
    shown = [
        "".join(output.get("data", {}).get("text/plain", "")) for cell in read("generate").cells
        if cell.cell_type == "code" for output in cell.outputs
    ]  # fmt: skip
    pairs = [pair.strip().split("\n") for pair in block.split("\n\n")]
    assert len(pairs) == 3
    for question, answer in pairs:
        assert any(question in line and answer in line for text in shown for line in text.splitlines()), question


PAGES = [paths.notebook(stage) for stage in paths.NOTEBOOKS] + sorted(ROOT.glob("*.md")) + DOCS[1:]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_term_that_is_linked_stands_in_the_list_of_terms(path):
    terms = set(re.findall(r'<a id="([^"]+)"></a>', (ROOT / "TERMS.md").read_text("utf-8")))
    for where, text in markdown_of(path).items():
        linked = set(re.findall(r"\]\((?:\.\./)*TERMS\.md#([^)\s]+)\)", text))
        assert linked <= terms, f"{where} links to {linked - terms}, which TERMS.md lacks"


# ---- what isn't compared is asserted ----


def ignored(book):
    return [cell for cell in book.cells if "nbval-ignore-output" in cell.metadata.get("tags", [])]


def asserts(cell):
    """Return whether a code cell asserts something that isn't a constant."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    found = (node for node in ast.walk(compile(cell.source, "cell", "exec", flags=flags)) if type(node) is ast.Assert)
    return any(not isinstance(node.test, ast.Constant) for node in found)


def only_shows(cell):
    """Return whether a code cell is nothing but calls of `show`: a picture, with nothing computed."""

    def is_show(line):
        call = getattr(line, "value", None)
        call = call.value if isinstance(call, ast.Await) else call
        return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("show.")

    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return all(map(is_show, compile(cell.source, "cell", "exec", flags=flags).body))


def unasserted(book):
    """Return the ids of cells whose output isn't compared, and whose claim isn't asserted either.

    Such a cell holds an assert, or it only shows what the code cell before it asserts.
    """
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    pairs = zip([None, *code], code, strict=False)
    return [
        cell.id
        for before, cell in pairs
        if cell in ignored(book) and not asserts(cell) and not (only_shows(cell) and before and asserts(before))
    ]


@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_a_cell_whose_output_is_not_compared_asserts_its_claim(stage):
    book = read(stage)
    assert not unasserted(book), f"no assert, there or (before a cell that only shows) above: {unasserted(book)}"
    tags = {tag for cell in book.cells for tag in cell.metadata.get("tags", []) if tag.startswith(("nbval", "raises"))}
    assert tags <= {"nbval-ignore-output"}, "a cell that nbval skips, or that may fail, isn't tested at all"


def test_few_outputs_are_not_compared():
    counts = {paths.notebook(stage).name: len(ignored(read(stage))) for stage in paths.STAGES}
    assert sum(counts.values()) <= 35, counts


# ---- what a figure is ----


@pytest.mark.parametrize(("figure", "number", "true"), [
    ("91 %", "0.9125", True), ("0.58", "0.576", True), ("about 21,000", "20,973", True), ("about 300", "324", True),
    ("91 %", "0.9049", False), ("91 %", "91 texts", False), ("0.58", "0.5739", False), ("21,000", "20,973", False),
])  # fmt: skip
def test_a_figure_is_true_to_what_rounds_to_it(figure, number, true):
    assert (not unfounded(figure, numbers(number))) == true


def test_a_figure_that_somebody_made_up_is_caught():
    book = read("train")
    before = unfounded_cells(book, "x")
    made_up = new_markdown_cell("Most of it, 93.2718 %, takes 48,713 tokens per second, as everybody knows.")
    book.cells.insert(5, made_up)
    assert [line for line in unfounded_cells(book, "x") if line not in before] == [
        f"x [{made_up.id}]: 93.2718 %", f"x [{made_up.id}]: 48,713",
    ]  # fmt: skip
