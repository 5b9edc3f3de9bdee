"""Run the notebooks in order, each in a kernel of its own, then write the run's report.

Knows the notebooks by name and by their parameters, and nothing of what they do.

    python -m helpers.run                                     all six, on the built-in corpus
    python -m helpers.run --run songci --corpus songci.txt    all six, on your own text
    python -m helpers.run train generate -p epochs 3          two of them, with another number of epochs
    python -m helpers.run tournament --run songci             a side door: an optional notebook on a run that exists
    python -m helpers.run verify --run songci                 do all files of the run still fit together?
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from helpers import paths, report
from helpers.corpus.find import BUILT_IN, resolve_source, same_files
from helpers.files import known_sha256
from helpers.manifest import MANIFEST, RoomError, notebook_parameters, open_room, read_manifest
from helpers.wording import did_you_mean, duration, run_again

NOT_MADE = "not made yet"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Refused(ValueError):
    """The command cannot be run as it was given; nothing has been started."""


class StageFailed(RuntimeError):
    """A notebook stopped with an error; the message names the notebook, the cell and the error."""


class ThisPython(AsyncKernelManager):
    """Start kernels with the interpreter that runs this module, whatever kernels are registered on the machine."""

    @property
    def kernel_spec(self) -> KernelSpec:
        # what a kernel logs about itself would appear between the progress lines
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict(extra_arguments=["--log-level=CRITICAL"]))


# ---- what to run, and with which parameters ----


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
            raise Refused(f"no stage is called '{word}'{did_you_mean(word, paths.NOTEBOOKS)}")
    chosen = {names[word] for word in words}
    return [stage for stage in paths.NOTEBOOKS if stage in chosen]


def _check_type(where: str, name: str, value: Any, default: Any) -> Any:
    """Return `value` if it has the type of the notebook's default (an int is accepted for a float), else refuse it."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    hint = "; put it in quotes" if isinstance(default, str) else ""
    if isinstance(default, float) and re.match(r"[-.\d]+e", str(value), re.IGNORECASE):
        hint = "; YAML reads a number like 1e-3 as text: write 1.0e-3"
    raise Refused(
        f"{where}: {name} is {value!r}, {type(value).__name__}, but the notebook's "
        f"default {default!r} is {type(default).__name__}{hint}"
    )


def read_preset(name: str) -> dict[str, dict]:
    """Return {stage: {parameter: value}} of presets/<name>.yaml, or of a YAML file given by its path, else refuse."""
    folder = paths.repo_root() / "presets"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        raise Refused(f"no preset '{name}'{did_you_mean(name, sorted(file.stem for file in folder.glob('*.yaml')))}")
    try:
        sections = yaml.safe_load(path.read_text("utf-8")) or {}
    except yaml.YAMLError as error:
        raise Refused(f"{path.name} is not readable YAML: {' '.join(str(error).split())}") from None
    if not isinstance(sections, dict):
        raise Refused(f"{path.name}: expected one section per stage, like `train:` with `epochs: 2` indented below it")
    for stage, section in sections.items():
        if stage not in paths.NOTEBOOKS:
            raise Refused(f"{path.name}: no stage is called '{stage}'{did_you_mean(str(stage), paths.NOTEBOOKS)}")
        if not isinstance(section or {}, dict):
            raise Refused(f"{path.name}: under `{stage}:` expected lines like `name: value`, found {section!r}")
    return {stage: section or {} for stage, section in sections.items()}


def _parse_value(text: str, default: Any) -> Any:
    """Return a word of the command line as a value of the default's type; what cannot be read stays text."""
    if isinstance(default, str):
        return text
    try:
        return type(default)(text) if type(default) in (int, float) else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return text


def plan(
    stages: list[str], run: str, corpus: str | None, preset: str | None, settings: Iterable[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    """Return {stage: {parameter: value}}, complete and checked: defaults, then preset, then --corpus, then -p.

    `settings` are the (name, text) pairs of -p. Raises Refused at the first name or type that no notebook has.
    """
    # 1. the defaults; every section of a preset is checked, also those of stages that do not run today
    try:
        paths.run_dir(run)
    except ValueError as error:
        raise Refused(str(error)) from None
    defaults = {stage: notebook_parameters(stage) for stage in paths.NOTEBOOKS}
    values = {stage: dict(names) for stage, names in defaults.items()}

    def put(where: str, stage: str, name: str, value: Any) -> None:
        if name not in defaults[stage]:
            hint = did_you_mean(str(name), [known for known in defaults[stage] if known != "run"])
            raise Refused(f"{where}: {paths.notebook(stage).stem} has no parameter '{name}'{hint}")
        values[stage][name] = _check_type(where, name, value, defaults[stage][name])

    # 2. what the command says, the later over the earlier
    for stage, section in (read_preset(preset) if preset else {}).items():
        for name, value in section.items():
            if name == "run":
                raise Refused(f"preset {preset}: a run is named on the command line, with --run")
            put(f"preset {preset}, {stage}", stage, name, value)
    if corpus is not None:
        put("--corpus", "corpus", "source", corpus)
    for name, text in settings:
        if name == "run":
            raise Refused("-p run: name the run with --run")
        owners = [stage for stage in stages if name in defaults[stage]]
        if not owners:
            known = sorted({name for stage in stages for name in defaults[stage]} - {"run"})
            raise Refused(f"-p {name}: no notebook that is to run has it{did_you_mean(name, known)}")
        for stage in owners:
            put(f"-p {name}", stage, name, _parse_value(text, defaults[stage][name]))
    # 3. the run, and the corpus as the kernel will find it, wherever it works
    for stage in stages:
        values[stage]["run"] = run
    if "corpus" in stages and "source" in values["corpus"]:
        try:
            values["corpus"]["source"] = resolve_source(values["corpus"]["source"])
        except ValueError as error:
            raise Refused(f"corpus: {error}") from None
    return {stage: values[stage] for stage in stages}


# ---- is it done already? ----


def _code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the sources of the code cells, without the cell in which papermill sets the parameters."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.source for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]


def remember(run: str, stage: str) -> None:
    """Note in the executed copy that it ran to its end, and the results of the rooms whose files it read."""
    if (paths.room(run, stage) / MANIFEST).is_file():
        rooms = {name.split("/")[0] for name in read_manifest(run, stage)["inputs"]}
        stages = [earlier for earlier, (_, room) in paths.NOTEBOOKS.items() if room in rooms]
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        copy.metadata["read"] = {earlier: read_manifest(run, earlier)["result"] for earlier in stages}
        nbformat.write(copy, paths.executed_copy(run, stage))


def finished_unchanged(run: str, stage: str, values: dict[str, Any]) -> bool:
    """Return whether a stage has finished with these parameters, these inputs and this notebook."""
    # 1. the room and the rooms that it read are as they were when it finished
    try:
        manifest = open_room(run, stage)
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
    except (RoomError, OSError, nbformat.reader.NotJSONError):
        return False
    if "read" not in copy.metadata or _changed_figures(run, copy):  # see `remember`
        return False
    # 2. the same parameters, the same code
    original = nbformat.read(paths.notebook(stage), as_version=4)
    if manifest["parameters"] != values or _code_of(copy) != _code_of(original):
        return False
    # 3. the same input files, and no new one
    inputs = {paths.run_dir(run) / name: wanted for name, wanted in manifest["inputs"].items()}
    if any(not file.is_file() or known_sha256(file) != wanted for file, wanted in inputs.items()):
        return False
    return same_files(values.get("source", BUILT_IN), inputs)


# ---- does it all still fit together? ----


def verify(run: str) -> list[tuple[str, bool, str]]:
    """Return (notebook, fits, words) for each room of a run; side doors only where they have been made.

    Every file is hashed again: what a room wrote, and what it was made from, in the rooms before it and outside.
    """
    rows = []
    for stage in paths.NOTEBOOKS:
        notebook, copy = paths.notebook(stage).stem, paths.executed_copy(run, stage)
        if not (paths.room(run, stage) / MANIFEST).is_file():
            if stage in paths.STAGES:
                start = f'"{paths.room(run, stage).name}/'  # in the manifest of each room that was made from it
                manifests = [file.read_text("utf-8", "replace") for file in paths.run_dir(run).glob(f"*/{MANIFEST}")]
                rows.append((notebook, not any(start in manifest for manifest in manifests), NOT_MADE))
            continue
        try:
            manifest = read_manifest(run, stage)
        except RoomError as error:
            rows.append((notebook, False, str(error)))
            continue
        problems = [f"{what} since {notebook} wrote it" for what in _changed_files(run, manifest["outputs"])]
        problems += [f"{what} since {notebook} read it" for what in _changed_files(run, manifest["inputs"])]
        if copy.is_file():  # else it was run by hand, in Jupyter
            problems += _changed_figures(run, nbformat.read(copy, as_version=4))
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            rows.append((notebook, False, f"{'; '.join(problems[:3])}{more}: {run_again(stage, run)}"))
        else:
            counts = f"{len(manifest['outputs'])} files as written, {len(manifest['inputs'])} files as read"
            rows.append((notebook, True, counts))
    return rows


def _changed_files(run: str, names: dict[str, str]) -> list[str]:
    """Return which of these files (path -> SHA-256) are missing or have changed."""
    changes = []
    for name, wanted in names.items():
        file = paths.run_dir(run) / name
        if not file.is_file():
            changes.append(f"{name} is missing")
        elif known_sha256(file) != wanted:
            changes.append(f"{name} has changed")
    return changes


def _changed_figures(run: str, copy: nbformat.NotebookNode) -> list[str]:
    """Return which figures of earlier rooms are no longer those that this notebook read when it ran."""
    changes = []
    for earlier, figures in copy.metadata.get("read", {}).items():
        try:
            now = read_manifest(run, earlier)["result"]
        except RoomError:
            continue  # that room's own line says so
        names = [name for name in {**figures, **now} if figures.get(name) != now.get(name)]
        if names:
            differences = ", ".join(f"{name} {figures.get(name)} -> {now.get(name)}" for name in names[:3])
            changes.append(f"{paths.notebook(earlier).stem} has found other figures since ({differences})")
    return changes


def _print_verdict(run: str) -> int:
    """Print one line per room, and return the exit code: 0 if all fit together, 1 if not."""
    rows = verify(run)
    for notebook, fits, words in rows:
        word = "NO" if not fits else "-" if words == NOT_MADE else "fits"
        print(f"{notebook:14}{word:6}{words}", flush=True)
    off = sum(not fits for _, fits, _ in rows)
    print(f"{off} of {len(rows)} rooms don't fit: mend them from the top" if off else "all belong together", flush=True)
    return 1 if off else 0


# ---- running ----


def _first_line(source: str) -> str:
    """Return a cell's first line of code, or its first comment if it has none."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("#")), lines[0] if lines else "")


def execute(run: str, stage: str, values: dict[str, Any]) -> None:
    """Execute a notebook with its parameters into the run's folder; raise StageFailed if a cell fails."""
    notebook, target = paths.notebook(stage), paths.executed_copy(run, stage)
    target.parent.mkdir(parents=True, exist_ok=True)
    defaults = notebook_parameters(stage)
    changed = {name: value for name, value in values.items() if name == "run" or value != defaults[name]}
    try:
        papermill.execute_notebook(
            notebook, target, parameters=changed, kernel_name="python3", language="python",
            kernel_manager_class=ThisPython, progress_bar=False,
        )  # fmt: skip
    except PapermillExecutionError as error:
        problem = f"{error.ename}: {error.evalue}"
        where = f"cell [{error.exec_count}]: {_first_line(error.source)}"
    except DeadKernelError:
        problem = "the kernel died without a message: most often the machine ran out of memory"
        where = "the last cell that has a number"
    else:
        return
    raise StageFailed(f"  {'where':10}{notebook.name}, {where}\n  {'error':10}{problem}\n  {'copy':10}{target}")


def run_stages(run: str, values: dict[str, dict[str, Any]], force: bool) -> None:
    """Run the planned stages in order, print a line for each, and write the report; StageFailed at the first error."""
    for stage in values:
        print(f"{paths.notebook(stage).stem:14}", end="", flush=True)
        if not force and finished_unchanged(run, stage, values[stage]):
            print("unchanged since it finished: skipped (--force runs it)", flush=True)
            continue
        begin = time.monotonic()
        try:
            execute(run, stage, values[stage])
            remember(run, stage)
        except BaseException as error:
            word = "failed" if isinstance(error, StageFailed) else "stopped"
            print(f"{word} after {duration(time.monotonic() - begin)}", flush=True)
            raise
        print(f"{duration(time.monotonic() - begin):>12}   {report.one_line(run, stage)}".rstrip(), flush=True)
    print(f"{'report':14}{report.write(run)}", flush=True)


# ---- the committed outputs ----


def refresh(stages: list[str]) -> None:
    """Execute the notebooks at their defaults and write them back with outputs that can be compared and committed.

    The run itself goes to a temporary folder unless RUNS_DIR names one: outputs must not depend on an earlier run. A
    later notebook alone needs RUNS_DIR with the rooms that it reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RUNS_DIR", folder)
        for stage in stages:
            path = paths.notebook(stage)
            notebook = nbformat.read(path, as_version=4)
            before = nbformat.from_dict(notebook.metadata)
            print(f"{path.stem:14}", end="", flush=True)
            begin = time.monotonic()
            client = NotebookClient(
                notebook, timeout=None, kernel_name="python3", kernel_manager_class=ThisPython,
                resources={"metadata": {"path": str(path.parent)}}, record_timing=False, coalesce_streams=True,
            )  # fmt: skip
            try:
                client.execute()
            except CellExecutionError as error:
                raise StageFailed(f"  {path.name} is unchanged\n{error}") from None
            notebook.metadata = before  # no widget state, no version of the Python that happened to run it
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = [output for output in cell.outputs if WIDGET_VIEW not in output.get("data", {})]
            nbformat.write(notebook, path)
            print(f"{duration(time.monotonic() - begin):>12}", flush=True)


def _require_run(run: str) -> None:
    if not paths.run_dir(run).is_dir():
        raise Refused(f"there is no run '{run}' in {paths.runs_dir()}")


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, run, and return the exit code: 0 done, 1 a notebook failed, 2 refused, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.run", description="Run the notebooks in order and write runs/<name>/report.html.",
        epilog="Instead of stages: `verify` checks that all files of a run still fit together; `refresh [stages…]` "
        "writes fresh outputs into notebooks/ itself.",
    )  # fmt: skip
    parser.add_argument("stages", nargs="*", help=f"{' '.join(paths.STAGES)}; all six if none is named. Optional "
                        f"notebooks, on the rooms of a run that exists: {' '.join(paths.SIDE_DOORS)}")  # fmt: skip
    parser.add_argument("--run", default="sample", metavar="NAME", help="name of the run: the folder under runs/")
    parser.add_argument(
        "--corpus", metavar="PATH", help="a text file, a folder, a pattern, an address; see notebook 01"
    )
    parser.add_argument("--preset", metavar="NAME", help="presets/NAME.yaml, or a YAML file")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("PARAMETER", "VALUE"), dest="settings",
                        help="set a parameter in every notebook that has it; may be repeated")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="run a stage even if nothing changed since it finished")
    asked = parser.parse_intermixed_args(arguments)

    # the notebooks read it: without a browser a dashboard prints lines instead of drawing widgets
    os.environ["HEADLESS"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # for the kernels; the Makefile says why
    try:
        if asked.stages == ["verify"]:
            _require_run(asked.run)
            return _print_verdict(asked.run)
        if asked.stages[:1] == ["refresh"]:
            refresh(choose_stages(asked.stages[1:]))
        else:
            stages = choose_stages(asked.stages)
            values = plan(stages, asked.run, asked.corpus, asked.preset, asked.settings)
            if not set(stages) & set(paths.STAGES):
                _require_run(asked.run)
            run_stages(asked.run, values, asked.force)
    except Refused as error:
        print(f"nothing was run: {error}", file=sys.stderr)
        return 2
    except StageFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues with the stage that was interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
