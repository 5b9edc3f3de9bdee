"""The house as a whole: one list of dependencies, who imports whom, and the shape of the six notebooks."""

import ast
import graphlib
import json
import re
import sys
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers import paths
from helpers.manifest import read_parameters

ROOT = paths.repo_root()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# who imports whom, from the ground up: each imports exactly what is listed, and that stands above it; `corpus.find`
# permits this one module
IMPORTS = {
    "paths": set(),
    "wording": {"paths"},
    "files": set(),
    "manifest": {"paths", "wording", "files"},
    "progress": set(),
    "parallel": {"progress"},
    "device": {"parallel"},
    "corpus": {"paths", "wording", "files", "manifest", "progress", "parallel"},
    "vocab": {"paths", "files", "manifest", "parallel", "corpus.conversations", "corpus.encodings"},
    "tokens": {"paths", "wording", "files", "manifest", "parallel", "vocab"},
    "model": {"wording", "device"},
    "train": {"paths", "wording", "files", "manifest", "progress", "parallel", "device", "vocab", "tokens", "model"},
    "generate": {"files", "paths", "wording", "device", "manifest", "vocab", "corpus.build", "model"},
    "serve": {"paths", "wording", "manifest", "vocab.chat", "model", "generate"},
    "chat": {"paths", "files", "manifest", "device", "corpus", "vocab", "tokens", "model", "train"},
    "reward": {"paths", "device", "manifest", "corpus", "vocab", "model", "train", "generate", "chat"},
    "examine": {"paths", "wording", "manifest", "corpus.built_in", "model", "generate"},
    "report": {"paths", "wording", "files", "manifest"},
    "run": {"paths", "wording", "files", "manifest", "progress", "report", "corpus.find"},
}
WITH_TORCH = {"device", "tokens.windows", "model", "train", "generate", "serve", "chat", "reward", "examine", "show"}
MODULES = sorted((ROOT / "helpers").rglob("*.py"))
SIX = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEEPER = sorted((ROOT / "notebooks" / "deeper").glob("*.ipynb"))
NOTEBOOKS = SIX + DEEPER


# ---- one list of dependencies ----


def constraints():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements():
    return [Requirement(line) for line in PROJECT["dependencies"] + sum(EXTRAS.values(), [])]


def test_what_a_run_imports_at_its_start_it_has_installed():
    """Packages of the other groups are imported where they are used, by code that says how to install them."""
    apart = {canonicalize_name(Requirement(line).name) for group in EXTRAS.values() for line in group}
    for file in MODULES:
        first = {
            (each.module or "") if isinstance(each, ast.ImportFrom) else each.names[0].name
            for each in ast.parse(file.read_text("utf-8")).body
            if isinstance(each, ast.Import | ast.ImportFrom)
        }
        assert not {canonicalize_name(name.split(".")[0]) for name in first} & apart, file


def test_every_dependency_has_a_version_that_was_tested_and_fits():
    """A build tag (`+cpu`) would tie the course to one kind of machine."""
    tested = constraints()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in tested, f"constraints.txt lacks {name}"
        assert requirement.specifier.contains(tested[name]) and "+" not in tested[name], requirement


def test_the_tests_run_with_the_versions_of_constraints():
    installed = {canonicalize_name(item.name): item.version.split("+")[0] for item in metadata.distributions()}
    tested = constraints()
    wrong = {name: installed[name] for name in tested if installed.get(name, tested[name]) != tested[name]}
    assert not wrong, f"not at the versions of constraints.txt (run make test, which installs them): {wrong}"


def test_what_is_imported_is_a_dependency():
    by_module = {"yaml": "pyyaml", "IPython": "ipykernel", "PIL": "pillow", "pydantic_core": "pydantic"}
    lines = PROJECT["dependencies"] + sum((EXTRAS[name] for name in EXTRAS if name != "dev"), [])
    listed = {canonicalize_name(Requirement(line).name) for line in lines}
    for file in MODULES:
        for module in imports(file) - {"helpers", *STANDARD}:
            name = canonicalize_name(by_module.get(module, module))
            assert name in listed, f"{file.name} imports {module}: pyproject.toml doesn't list it"


# ---- who imports whom ----

STANDARD = sys.stdlib_module_names


def imported(file: Path) -> list[str]:
    """Return the dotted names a module imports, anywhere in it, with `from x import y` as x.y."""
    names = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def imports(file: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(file)}


def name_of(file: Path) -> str:
    """Return a module's name below `helpers`: "paths", "corpus.find"; of a package its own: "corpus"."""
    parts = file.relative_to(ROOT / "helpers").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(file) for file in MODULES}
PACKAGES = [file for file in MODULES if file.stem == "__init__"]


def ours(file: Path) -> set[str]:
    """Return the modules of `helpers` that a file imports, by the names of `name_of`."""
    dotted = [name.removeprefix("helpers.") for name in imported(file) if name.startswith("helpers.")]
    return {name if name in NAMES else name.rpartition(".")[0] for name in dotted}


each_module = pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(ROOT / "helpers").as_posix())


def test_rooms_import_what_stands_above_them_and_a_permission_that_nothing_uses_is_taken_back():
    found = {unit: set() for unit in IMPORTS}
    for file in MODULES:
        unit = name_of(file).split(".")[0]
        if unit in ("", "show"):  # show is for the eyes: it may look at everything
            continue
        assert unit in found, f"helpers/{unit} has no place in the house: give it a line in IMPORTS"
        allowed = IMPORTS[unit]
        for name in ours(file):
            room = name.split(".")[0]
            if room != unit:
                assert room != "show", f"{file.name} imports show, which is for notebooks only"
                assert {room, name} & allowed, f"helpers/{unit} may not import {name} (in {file.name})"
                found[unit].add(name if name in allowed else room)
    assert found == IMPORTS
    order = list(IMPORTS)
    for unit, allowed in IMPORTS.items():
        assert {name.split(".")[0] for name in allowed} <= set(order[: order.index(unit)])


def test_no_two_modules_import_each_other():
    """Also within a room, and over several steps: the imports at the top of the modules make no circle."""
    graph = graphlib.TopologicalSorter({name_of(file): ours(file) - {name_of(file)} for file in MODULES})
    graph.prepare()  # raises CycleError


@each_module
def test_heavy_libraries_stay_in_their_rooms(file):
    used, name = imports(file), name_of(file)
    if not {name, name.split(".")[0]} & WITH_TORCH:
        assert "torch" not in used
    if not name.startswith("show"):
        assert not used & {"ipywidgets", "IPython", "matplotlib"}
    if not name.startswith("serve"):
        assert "aiohttp" not in used


@pytest.mark.parametrize("file", PACKAGES, ids=lambda file: file.parent.name)
def test_a_package_is_a_docstring_that_lists_its_modules(file):
    """A worker process that segments words must not load torch because a package imports its modules."""
    tree = ast.parse(file.read_text("utf-8"))
    assert len(tree.body) == 1
    modules = {path.stem for path in file.parent.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in file.parent.glob("*/__init__.py")}
    listed = re.findall(r"^ *(\w+) {2,}\S", ast.get_docstring(tree), re.MULTILINE)  # a name in each indented line
    assert sorted(listed) == sorted(modules | packages)


@each_module
def test_each_module_has_its_test_file(file):
    """tests/<room>/test_<module>.py; test_<something>_<module>.py where two rooms have a module of that name."""
    if file.stem.startswith("__"):
        return
    folder = ROOT / "tests" / file.parent.relative_to(ROOT / "helpers")
    assert [test for test in folder.glob("test_*.py") if f"_{test.stem}".endswith(f"_{file.stem}")]


@each_module
def test_each_module_runs_nothing_that_it_reads(file):
    """A corpus in pickle was a fault of a source. Ruff finds `pickle.load`, shells, swallowed errors, private parts."""
    assert not imports(file) & {"pickle", "dill", "joblib"}
    assert not re.search(r"trust_remote_code\W+True|__class__ = ", file.read_text("utf-8"))


# ---- how much of it there may be ----

SHARED = {  # public functions and classes whose name stands in two modules -> why; ten at most
    "main": "the command of a package, behind `python -m`",
}


def lines_of(files) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


@pytest.mark.parametrize(
    ("place", "most"),
    [("helpers/**/*.py", 19_207), ("tests/**/*.py", 20_593), ("benchmarks/*.py", 2170), ("README.md", 200)],
)
def test_the_house_stays_within_its_budget(place, most):
    """Who adds takes away. Where it is too large still, the number only falls: 16,500 and 19,500 are the aims."""
    assert lines_of(ROOT.glob(place)) <= most


def test_there_are_at_most_a_hundred_modules_and_no_room_is_too_large():
    assert len([file for file in MODULES if not file.stem.startswith("__")]) <= 100
    lines = {
        file.parent.name: lines_of(file.parent.rglob("*.py")) for file in PACKAGES if file.parent.name != "helpers"
    }
    too_large_still = {"corpus": 4050}  # numbers that only fall
    assert not {room: n for room, n in lines.items() if n > too_large_still.get(room, 3200)}


def definitions(file: Path, kinds) -> list:
    return [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, kinds)]


@each_module
def test_no_function_is_longer_than_60_lines(file):
    functions = definitions(file, ast.FunctionDef | ast.AsyncFunctionDef)
    assert not {each.name: length for each in functions if (length := each.end_lineno - each.lineno + 1) > 60}


def test_one_name_is_one_idea():
    places = defaultdict(set)
    for file in MODULES:
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                places[node.name].add(name_of(file))
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1 and name not in SHARED} == {}
    assert len(SHARED) <= 10 and all(len(places[name]) > 1 for name in SHARED)


# ---- the six notebooks, and the side doors in notebooks/deeper/ ----

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def outputs(path):
    return [(cell, output) for cell in code_cells(path) for output in cell.outputs]


def test_there_are_six_and_the_side_doors_that_the_runner_knows():
    assert SIX == [paths.notebook(stage) for stage in paths.STAGES]
    assert DEEPER == sorted(paths.notebook(stage) for stage in paths.SIDE_DOORS)


@each_notebook
def test_it_is_a_valid_notebook_without_widget_state(path):
    """GitHub shows "Invalid Notebook" where widget state without its content was saved."""
    book = read(path)
    nbformat.validate(book)
    assert "widgets" not in book.metadata and len({cell.id for cell in book.cells}) == len(book.cells)
    assert not any("widget-view" in mime for _, output in outputs(path) for mime in output.get("data", {}))


@each_notebook
def test_it_was_run_from_top_to_bottom_without_an_error(path):
    assert [cell.execution_count for cell in code_cells(path)] == list(range(1, len(code_cells(path)) + 1))
    for _, output in outputs(path):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", f"on stderr: {output.text[:200]}"
        assert "Glyph" not in str(output.get("text", "")), "a figure has a character that its font lacks"


@each_notebook
def test_its_outputs_name_no_place_on_a_machine(path):
    places = [str(ROOT), str(Path.home()), "/tmp/", "/home/", "/Users/", "site-packages", "C:\\\\"]
    for cell, output in outputs(path):
        shown = json.dumps({k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")})
        shown += output.get("text", "")
        assert not [place for place in places if place in shown], f"cell [{cell.execution_count}] shows a path"


@each_notebook
def test_its_parameters_are_one_cell_of_plain_literals_with_a_comment_each(path):
    stage = next(stage for stage in paths.NOTEBOOKS if paths.notebook(stage) == path)
    known = read_parameters(stage)
    hidden = {name for name, each in known.items() if not each.shown}
    assert list(known)[0] == "run" and known["run"].default == "sample" and len(known) - len(hidden) <= 10
    assert all(each.meaning for each in known.values())
    # a value that a cell leaves behind would be taken as set when the notebook's first cells run again
    nodes = [node for cell in code_cells(path) for node in ast.walk(ast.parse(cell.source))]
    assert not hidden & {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    (cell,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    # IPython would take a cell that is the single line `run: …` for its magic %run
    assert len(cell.source.strip().splitlines()) > 1
    for node in ast.parse(cell.source).body:
        assert isinstance(node, ast.AnnAssign), f"{ast.unparse(node)}: write `name: type = value  # comment`"


@each_notebook
def test_its_cells_are_short_and_its_prose_keeps_up(path):
    book = read(path)
    prose = [cell for cell in book.cells if cell.cell_type == "markdown"]
    for cell in code_cells(path):
        if "parameters" in cell.metadata.get("tags", []):
            continue
        assert len(cell.source.splitlines()) <= 25, f"a cell of more than 25 lines: {cell.source[:80]}"
    most = 111 if path.stem in ("04_train", "05_generate") else 91  # 04 opens the model, 05 has an idea a cell
    assert (20 if path in SIX else 10) <= len(book.cells) <= most and 0.5 <= len(prose) / len(code_cells(path)) <= 2
    assert prose[0].source.startswith(f"# {path.stem[:2]}" if path in SIX else "# ")


@each_notebook
def test_it_reaches_for_the_package_and_not_around_it(path):
    source = "\n".join(cell.source for cell in code_cells(path))
    assert not re.search(r"sys\.path|^\s*[%!]|trust_remote_code|\bpickle\b|filterwarnings", source, re.MULTILINE)


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *NOTEBOOKS], ids=lambda path: path.name)
def test_links_inside_the_repository_live(path):
    cells = read(path).cells if path.suffix == ".ipynb" else [nbformat.v4.new_markdown_cell(path.read_text("utf-8"))]
    for cell in (cell for cell in cells if cell.cell_type == "markdown"):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", cell.source)):
            if not re.match(r"https?:|mailto:|#", target):
                assert (path.parent / target.split("#")[0]).exists(), f"{path.name} links to {target}"
