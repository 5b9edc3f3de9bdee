"""Which notebooks run, and with which parameters: defaults, presets, the command line; checked before anything runs.

Lessons are parted from the pipeline: cells tagged `lesson` only teach, and the other cells need none of them. A run of
one's own text leaves them out, and its rooms are the same as with them. Knows nothing of what a cell does.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode

from helpers import paths
from helpers.corpus.find import resolve_source
from helpers.manifest import notebook_parameters
from helpers.wording import called_here, did_you_mean, say

Values = dict[str, dict[str, Any]]  # {stage: {parameter: value}}

LESSON = "lesson"  # tag of a cell
_FILES = ("vocab_file",)  # parameters that name files which the user brings


class Refused(ValueError):
    """The command cannot be run as it was given; nothing has been started."""


def choose_stages(words: list[str]) -> list[str]:
    """Return the stages and side doors that the words name (`train`, `04`, `04_train`), in the course's order.

    Without words, the six stages. Raises Refused for a word that names none.
    """
    if not words:
        return list(paths.STAGES)
    names: dict[str, str] = {}
    for stage, (notebook, _) in paths.NOTEBOOKS.items():
        names |= {stage: stage, notebook: stage, f"{notebook}.ipynb": stage}
        if stage in paths.STAGES:
            names[notebook[:2]] = stage
    for word in words:
        if word not in names:
            raise Refused(say("no stage is called '{}'{}", word, did_you_mean(word, paths.NOTEBOOKS)))
    chosen = {names[word] for word in words}
    return [stage for stage in paths.NOTEBOOKS if stage in chosen]


# ---- lessons ----


def stage_notebook(file: Path, lessons: bool) -> NotebookNode:
    """Return a notebook; without lessons, the cells that only teach and their prose are left out."""
    book = nbformat.read(file, as_version=4)
    if not lessons:
        kept: list[NotebookNode] = []
        for part in _parts(book.cells):
            rest = [cell for cell in part if LESSON not in cell.metadata.get("tags", [])]
            # prose whose code is all left out would lead to nothing
            kept += rest if rest == part or any(cell.cell_type == "code" for cell in rest) else []
        book.cells = kept
    return book


def _parts(cells: list[NotebookNode]) -> Iterator[list[NotebookNode]]:
    """Yield prose together with the code that follows it."""
    part: list[NotebookNode] = []
    for before, cell in zip([None, *cells], cells, strict=False):
        if before is not None and before.cell_type == "code" and cell.cell_type != "code":
            yield part
            part = []
        part.append(cell)
    yield part


# ---- presets ----


class _OneValuePerKey(yaml.SafeLoader):
    """YAML whose keys stand once each: a second `train:` section would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):  # anything else is no key, and refused below
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds; raises Refused for one that cannot be read, or in which a key stands twice."""
    try:
        return yaml.load(path.read_text("utf-8-sig"), _OneValuePerKey)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(say("{} is not readable YAML: {}", path.name, " ".join(str(error).split()))) from None


def read_preset(name: str) -> Values:
    """Return the values of presets/<name>.yaml, or of a YAML file; raises Refused for what is neither."""
    folder = paths.repo_root() / "presets"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        raise Refused(say("no preset '{}'", name) + did_you_mean(name, sorted(x.stem for x in folder.glob("*.yaml"))))
    sections = load_yaml(path) or {}
    if not isinstance(sections, dict):
        raise Refused(say("{}: expected a section per stage, like `train:` and below it `  epochs: 2`", path.name))
    for stage, section in sections.items():
        if stage not in paths.NOTEBOOKS:
            hint = did_you_mean(str(stage), paths.NOTEBOOKS)
            raise Refused(f"{path.name}: " + say("no stage is called '{}'{}", stage, hint))
        if not isinstance(section or {}, dict):
            raise Refused(say("{}: under `{}:` expected `name: value`, found {!r}", path.name, stage, section))
    return {stage: section or {} for stage, section in sections.items()}


# ---- values ----


def _check_type(where: str, name: str, value: Any, default: Any) -> Any:
    """Return `value` if it has the type of the notebook's default (an int is accepted for a float), else refuse it."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    hint = say("; put it in quotes") if isinstance(default, str) else ""
    if isinstance(default, float) and re.fullmatch(r"[-.\d]+e[-+]?\d+", str(value), re.IGNORECASE):
        hint = say("; YAML reads a number like 1e-3 as text: write 1.0e-3")
    words = "{}: {} is {!r}, {}, but the notebook's default {!r} is {}{}"
    raise Refused(say(words, where, name, value, type(value).__name__, default, type(default).__name__, hint))


def _parse_value(text: str, default: Any) -> Any:
    """Return a word of the command line as a value of the default's type; what cannot be read stays text."""
    if isinstance(default, str):
        return text
    try:
        return type(default)(text) if type(default) in (int, float) else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text


def _resolve(name: str, given: str) -> str:
    """Return the absolute path of a file, a folder or a pattern; refuse it if it does not exist."""
    path = Path(os.path.abspath(os.path.expanduser(given)))
    if not path.exists() and not any(sign in given for sign in "*?["):
        raise Refused(say("{}: {} does not exist", name, path))
    return str(path)


def plan_parameters(
    stages: list[str], run: str, corpus: str | None, presets: Sequence[str], settings: Iterable[tuple[str, Any]],
    combination: Mapping[str, Any] | None = None,
) -> Values:  # fmt: skip
    """Return the stages' values, complete and checked: defaults, then presets, then --corpus, then -p.

    `settings` are the pairs of -p, (name, text), `combination` is a sweep's, {name: value}. Raises Refused at the first
    name or type that no notebook has.
    """
    try:
        paths.run_dir(run)
    except ValueError:
        words = "'{}' cannot name a run: use letters, digits, '-', '_' and '.', not '.' first"
        raise Refused(say(words, run)) from None
    defaults = {stage: notebook_parameters(stage) for stage in paths.NOTEBOOKS}
    values = {stage: dict(names) for stage, names in defaults.items()}

    def put(where: str, stage: str, name: str, value: Any) -> None:
        if name == "run":
            raise Refused(say("{}: a run is named on the command line, with --run", where))
        if name not in defaults[stage]:
            hint = called_here(str(name), defaults[stage])
            raise Refused(f"{where}: " + say("{} has no parameter '{}'{}", paths.notebook(stage).stem, name, hint))
        values[stage][name] = _check_type(where, name, value, defaults[stage][name])

    for preset in presets:  # every section is checked, also those of stages that do not run today
        for stage, section in read_preset(preset).items():
            for name, value in section.items():
                put(f"preset {preset}, {stage}", stage, name, value)
    if corpus is not None:
        if "corpus" not in stages:
            raise Refused(say("--corpus: notebook 01 is not to run, so this text would not be read: name 'corpus' too"))
        put("--corpus", "corpus", "source", corpus)
    for flag, pairs in (("-p", settings), ("sweep", (combination or {}).items())):
        for name, value in pairs:
            owners = [stage for stage in stages if name in defaults[stage]]
            if not owners:
                hint = called_here(name, (known for stage in stages for known in defaults[stage]))
                raise Refused(say("{} {}: no notebook that is to run has it{}", flag, name, hint))
            for stage in owners:
                read = _parse_value(value, defaults[stage][name]) if isinstance(value, str) else value
                put(f"{flag} {name}", stage, name, read)
    return {stage: _as_the_kernel_finds_it(stage, run, values[stage]) for stage in stages}


def _as_the_kernel_finds_it(stage: str, run: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a stage's values with the run's name, and with the paths of files as any working folder finds them."""
    values |= {"run": run} | {name: _resolve(name, values[name]) for name in _FILES if values.get(name)}
    if stage == "corpus" and "source" in values:
        try:
            values["source"] = resolve_source(values["source"])
        except ValueError as error:
            raise Refused(f"corpus: {error}") from None
    return values
