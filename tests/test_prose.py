"""What prose says holds: its figures come from a cell, a parameter or a report, its links and drawings exist.

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
    figures,
    numbers,
    output_numbers,
    report_numbers,
    unfounded,
)
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers import paths

ROOT = paths.repo_root()
REPORTS = sorted((ROOT / "benchmarks" / "reports").glob("*.json"))
READMES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md"]

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
    "03_tokenize.ipynb": dict.fromkeys(
        ["256", "1,024", "20 million"], "the rule for windows: helpers.tokens.windows.choose_n_ctx, and its test"
    ),
    "README.md": {
        "3.14": "the newest Python that .github/workflows/tests.yml installs",
        "130 MB": "thulac's resident memory after its model is loaded: the docstring of helpers.vocab.words.segment",
        "127 million": "presets/book.yaml, counted by helpers.train.model.model_sizes",
        "111 million": "presets/cpm.yaml, counted by the same",
        "27 million": "presets/minimind.yaml, and what is active in minimind-moe.yaml, counted by the same",
        "76 million": "presets/minimind-moe.yaml, counted by the same",
    },
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


def readme_sources(path):
    """Return all numbers that a README may quote.

    Those of the reports and of the side doors' outputs; README.md also those of the six notebooks' outputs and
    parameters, and of the presets.
    """
    found = set().union(*map(report_numbers, REPORTS))
    stages = paths.NOTEBOOKS if path == READMES[0] else paths.SIDE_DOORS
    for book in map(read, stages):
        (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
        found |= output_numbers(book) | code_numbers(parameters.source)
    for preset in (ROOT / "presets").glob("*.yaml") if path == READMES[0] else ():
        found |= numbers(str(yaml.safe_load(preset.read_text("utf-8"))))
    return found


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_figure_in_a_readme_is_one_of_a_report_or_of_a_notebook(path):
    name, known, found = path.relative_to(ROOT).as_posix(), readme_sources(path), []
    for number, line in enumerate(to_be_founded(path).splitlines(), 1):
        wrong = [figure.text for figure in unfounded(line, known)]
        found += [f"{name}:{number}: {text}" for text in wrong if text not in constants(name)]
    also = "; or begin a line of its section 'Measured on 2026-11-22 on' and name the machine"
    also = also if path == READMES[1] else ""
    assert not found, f"measure it, drop it, or give its source in CONSTANTS{also}:\n" + "\n".join(found)


def to_be_founded(path):
    """Return a README with empty lines for fenced code; in benchmarks/ also for sections of a dated measurement."""
    text = path.read_text("utf-8")
    dated = dated_sections(text) if path == READMES[1] else []
    return without(dated + re.findall(r"```.*?```", text, re.DOTALL), text)


def without(parts, text):
    """Return a text with empty lines where these parts of it were, so that lines keep their numbers."""
    for part in parts:
        text = text.replace(part, "\n" * part.count("\n"))
    return text


def dated_sections(markdown):
    """Return the sections (## …) that say when and on what machine they were measured: no report was kept of those."""
    sections = re.split(r"^(?=## )", markdown, flags=re.MULTILINE)
    return [section for section in sections if re.search(r"^Measured on \d{4}-\d\d-\d\d on \S", section, re.MULTILINE)]


def figures_by_file():
    """Return {file: the figures of its prose, as they are written}."""
    found = {}
    for stage in paths.NOTEBOOKS:
        cells = [cell.source for cell in read(stage).cells if cell.cell_type == "markdown"]
        found[paths.notebook(stage).name] = {figure.text for cell in cells for figure in figures(cell)}
    for path in READMES:
        found[path.relative_to(ROOT).as_posix()] = {figure.text for figure in figures(to_be_founded(path))}
    return found | {"everywhere": set().union(*found.values())}


def test_each_constant_stands_in_the_prose_and_has_a_source():
    said = figures_by_file()
    for name, sourced in CONSTANTS.items():
        assert sourced.keys() <= said[name], f"{name} doesn't say {sourced.keys() - said[name]}"
        assert all(len(source) > 15 for source in sourced.values())
    assert sum(map(len, CONSTANTS.values())) <= 60, "a short list: let a cell print what it can"


# ---- links and drawings ----


def markdown_of(path):
    if path.suffix == ".md":
        return {path.name: path.read_text("utf-8")}
    book = nbformat.read(path, as_version=4)
    return {f"{path.name} [{cell.id}]": cell.source for cell in book.cells if cell.cell_type == "markdown"}


def test_the_answers_that_the_readme_quotes_are_those_of_notebook_05():
    (block,) = re.findall(r"This is what it answers .*?```\n(.*?)```", READMES[0].read_text("utf-8"), re.DOTALL)
    shown = [
        "".join(output.get("data", {}).get("text/plain", "")) for cell in read("generate").cells
        if cell.cell_type == "code" for output in cell.outputs
    ]  # fmt: skip
    pairs = [pair.strip().split("\n") for pair in block.split("\n\n")]
    assert len(pairs) == 3
    for question, answer in pairs:
        assert any(question in line and answer in line for text in shown for line in text.splitlines()), question


PAGES = [paths.notebook(stage) for stage in paths.NOTEBOOKS] + sorted(ROOT.glob("*.md")) + READMES[1:]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_term_that_is_linked_stands_in_the_list_of_terms(path):
    terms = set(re.findall(r'<a id="([^"]+)"></a>', (ROOT / "TERMS.md").read_text("utf-8")))
    for where, text in markdown_of(path).items():
        linked = set(re.findall(r"\]\((?:\.\./)*TERMS\.md#([^)\s]+)\)", text))
        assert linked <= terms, f"{where} links to {linked - terms}, which TERMS.md lacks"


def test_each_term_has_an_anchor_of_its_own():
    anchors = re.findall(r'<a id="([^"]+)"></a>', (ROOT / "TERMS.md").read_text("utf-8"))
    assert anchors and len(anchors) == len(set(anchors))
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", anchor) for anchor in anchors)


@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_each_drawing_that_is_shown_is_there(stage):
    for cell in read(stage).cells:
        names = re.findall(r"show\.drawing\(([^)]*)\)", cell.source if cell.cell_type == "code" else "")
        for name in map(ast.literal_eval, names):
            assert (ROOT / "notebooks" / "images" / f"{name}.svg").is_file(), f"[{cell.id}]: no drawing {name}"


# ---- what isn't compared is asserted ----


def ignored(book):
    return [cell for cell in book.cells if "nbval-ignore-output" in cell.metadata.get("tags", [])]


def asserts(cell):
    """Return whether a code cell asserts something that isn't a constant."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    nodes = ast.walk(compile(cell.source, "cell", "exec", flags=flags))
    return any(isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in nodes)


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


# ---- the rules are held ----

FIGURES = {
    "In 62 % of 1,085 texts": ["62 %", "1,085"],
    "a share of 0.25, twelve or 12 of them, 13 of others": ["0.25", "13"],
    "7 % more, 10 times as quick, 1.5 × as long, 5 minutes, 3 s": ["7 %", "10 times", "1.5 ×", "5 minutes", "3 s"],
    "2.9 million weights, 124M, 128k": ["2.9 million", "124M", "128k"],
    "It takes about 21,000 documents, 2,048 windows.": ["21,000", "2,048"],
    "about 2^30, or 1e-3, or 3.0e8": ["30", "1e-3", "3.0e8"],
    "a 20-minute run of 14-gram models": ["20-minute", "14"],
    "−14 and 1.33.": ["14", "1.33"],
    "between 89–91 %, or [14] of [15](../TERMS.md#x99)": ["89", "91 %", "14", "15"],
    "`57`, `0.5` and **42**": ["42"],
    "$\\ln 0.5 = 0.69$": ["0.5", "0.69"],
    "12 layers and 768\n\n16. an item\n## 14 · Title": ["768"],
}
NO_FIGURES = [
    "GB18030, UTF-16, bf16, GPT-2, SHA-256, 16-bit, p95, uint16, 3D, qwen25",
    "Witten and Bell 1991, on 2026-11-22, in Python 3.11, thulac 0.2.2, at 127.0.0.1",
    "[A paper, 2017, with 42.7 points](https://example.org/99), arXiv:1706.03762, https://example.org/77",
    "100 documents, 1,000 of them, 100 %",
    "### Exercise 14 · Numbers (★☆☆, 25 minutes)",
    "**Time**: 25 minutes to run, 90 minutes to read",
    "```\n57 and 0.5\n```",
    "<img width='300'>",
    "绿萝 and 12 more",
]


@pytest.mark.parametrize("text", FIGURES)
def test_a_figure_is_found(text):
    assert [figure.text for figure in figures(text)] == FIGURES[text]


@pytest.mark.parametrize("text", NO_FIGURES)
def test_what_is_no_figure_is_left_alone(text):
    assert figures(text) == []


TRUE = [
    ("91 %", "0.9125"), ("91 %", "91.3 %"), ("91.3 %", "0.9125"), ("0.91", "91 %"), ("0.58", "0.576"),
    ("0.576", "0.576"), ("1,182,017", "1182017"), ("1,182,017", "1,182,017 tokens"), ("about 21,000", "20,973"),
    ("2.9 million", "2,909,184"), ("14", "[3,14,15]"), ("17", "16.51"), ("about 300", "324"), ("5.0e-4", "0.0005"),
    ("−1.33", "-1.3333"), ("125 %", "1.25"),
]  # fmt: skip
FALSE = [
    ("91 %", "0.9049"), ("91 %", "91 texts"), ("91.3 %", "0.9"), ("0.58", "0.5739"), ("0.576", "0.58"),
    ("21,000", "20,973"), ("2.9 million", "2.9"), ("about 21,000", "20,400"), ("0.5", "50"), ("17", "16.4"),
    ("7 times", "8"), ("1.33", "1,330"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "source"), TRUE)
def test_a_figure_may_be_rounded(said, source):
    assert len(figures(said)) == 1 and not unfounded(said, numbers(source))


@pytest.mark.parametrize(("said", "source"), FALSE)
def test_a_figure_that_is_not_the_rounded_number_is_unfounded(said, source):
    assert len(unfounded(said, numbers(source))) == 1


def test_only_a_section_with_date_and_machine_needs_no_report_and_lines_keep_their_numbers():
    dated = "## B\n\nMeasured on 2026-11-22 on two cores of a server.\n\n29 s\n"
    text = f"17 s\n{dated}## C\n23 s, measured on a laptop\n## D\nMeasured on two cores: 31 s\n"
    assert dated_sections(text) == [dated]
    said = [[figure.text for figure in figures(line)] for line in without([dated], text).splitlines()]
    assert said == [["17 s"], [], [], [], [], [], [], ["23 s"], [], ["31 s"]]


def test_numbers_come_from_code_and_outputs_and_not_from_comments_colours_or_pictures():
    html = '<td style="width:417px">31.5</td>'
    outputs = [
        new_output("display_data", data={"text/html": html, "image/png": "NDE5", "image/svg+xml": "<text>423</text>"}),
        new_output("stream", name="stdout", text="421 done\n"),
    ]
    source = "limit = 2**16  # 429 as measured\nprint(f'{limit} of 433')\nawait sleep(4_390)"
    book = new_notebook(cells=[new_code_cell(source, outputs=outputs), new_markdown_cell("```python\nx = 443\n```")])
    said = "31.5 421 65,536 433 4,390 443; 417 419 423 429"
    assert [figure.text for figure in unfounded(said, sources(book))] == ["417", "419", "423", "429"]


@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_a_figure_that_somebody_made_up_is_caught(stage):
    book = read(stage)
    before = unfounded_cells(book, "x")
    made_up = new_markdown_cell("Most of it, 93.2718 %, takes 48,713 tokens per second, as everybody knows.")
    book.cells.insert(5, made_up)
    after = [line for line in unfounded_cells(book, "x") if line not in before]
    assert after == [f"x [{made_up.id}]: 93.2718 %", f"x [{made_up.id}]: 48,713"]


def test_a_cell_that_asserts_nothing_is_caught():
    def cell(source, *tags):
        return new_code_cell(source, metadata={"tags": list(tags)})

    tag = "nbval-ignore-output"
    cells = [
        cell("assert x > 1"), cell("show.table(x)", tag), cell("show.table(x)", tag),
        cell("assert x\nprint(x)", tag), cell("print(x)", tag), cell("assert True\nprint(x)", tag),
        cell("for y in x:\n    assert y", tag), cell("await show.watch(x)", tag), cell("y = show.table(x)", tag),
    ]  # fmt: skip
    found = unasserted(new_notebook(cells=cells))
    assert [cells.index(cell) for cell in cells if cell.id in found] == [2, 4, 5, 8]
