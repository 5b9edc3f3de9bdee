"""Execute notebooks in order, each in a kernel of its own; what has finished and is unchanged is skipped.

Knows what a notebook is given and where its copy goes, and nothing of what it does.
"""

import ast
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

import nbformat
import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm

from helpers import paths, progress, report
from helpers.corpus.find import BUILT_IN, same_files
from helpers.files import known_sha256, occupied
from helpers.manifest import MANIFEST, RoomError, notebook_parameters, open_room, read_manifest, unfinished
from helpers.progress import Note
from helpers.run.parameters import Values, stage_notebook
from helpers.wording import duration, say

TERMINAL_SECONDS, LOG_SECONDS = 1.0, 60.0  # between two looks at a stage's progress
LOSSES = 5  # sentences about what is left out of the corpus, at the end of a run
CLEAR = "\r\x1b[K"  # back to the beginning of the line, and wipe it
logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of what is set besides the parameters cell
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class StageFailed(RuntimeError):
    """A notebook stopped with an error; the message names the notebook, the cell and the error."""


class ThisPython(AsyncKernelManager):
    """Start kernels with the interpreter that runs this module, whatever kernels are registered on the machine."""

    environment: ClassVar[Mapping[str, str]] = {}  # of the kernel, besides this process's own
    stderr: ClassVar[IO[str] | None] = None  # where the kernel's process says what no cell shows; None: the terminal

    def __init__(self, **options: Any) -> None:
        """Talk to the kernel through files of a folder of its own: another program may take a free port before it."""
        super().__init__(**options)
        self._folder = tempfile.TemporaryDirectory()
        if os.name == "posix" and len(self._folder.name) < 80:  # a socket's path has about a hundred characters
            self.transport, self.connection_file = "ipc", str(Path(self._folder.name, "kernel.json"))

    @property
    def kernel_spec(self) -> KernelSpec:
        """What starts a kernel: this interpreter."""
        # what a kernel logs about itself would appear between the progress lines
        spec = get_kernel_dict(extra_arguments=["--log-level=CRITICAL"])
        return KernelSpec(resource_dir=RESOURCES, **spec | {"env": dict(self.environment)})

    async def start_kernel(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]  # typed as if not async
        """Start the process; its own stderr is this class's."""
        await super().start_kernel(*arguments, **options, stderr=self.stderr)


# ---- a stage ----


def run_stages(run: str, values: Values, force: bool, lessons: bool | None = None) -> bool:
    """Run the planned stages in order, print a line for each, write the report, and return whether all are done.

    A training that is stopped ends the command too: what comes after it would be made from a model that is not done.
    `lessons`: with what only teaches; None: with it on the built-in corpus, without it on one's own text. Raises
    StageFailed at the first error, Occupied if another command is at work on this run.
    """
    with occupied(paths.run_dir(run)):
        for words in filter(None, (unfinished(run, stage) for stage in paths.NOTEBOOKS if stage not in values)):
            print(say("mind          {}", words), flush=True)
        for stage in values:
            name = f"{paths.notebook(stage).stem:14}"
            taught = _is_built_in(run, values) if lessons is None else lessons
            if not force and finished_unchanged(run, stage, values[stage], taught):
                print(f"{name}{say('unchanged since it finished: skipped (--force runs it)')}", flush=True)
                continue
            begin, file = time.monotonic(), paths.executed_copy(run, stage).with_suffix(".progress")
            try:
                with watching(file, name, one_line=sys.stdout.isatty()):
                    execute(run, stage, values[stage], {progress.VARIABLE: str(file)}, taught)
            except BaseException as error:
                words = "failed after {}" if isinstance(error, StageFailed) else "stopped after {}"
                print(f"{name}{say(words, duration(time.monotonic() - begin))}", flush=True)
                raise
            words = f"{duration(time.monotonic() - begin):>12}   {report.one_line(run, stage)}".rstrip()
            print(f"{name}{words}", flush=True)
            if words := unfinished(run, stage):
                print(say("mind          {}", words), flush=True)
                break
        lost = report.result_of(run, "corpus").get("losses", []) if "corpus" in values else []
        for sentence in lost[:LOSSES]:
            print(say("left out      {}", sentence))
        if lost:
            print(f"{'':14}{say('the whole list is in {}', paths.executed_copy(run, 'corpus'))}")
        print(say("report        {}", report.write_report(run)), flush=True)
        finished = not any(unfinished(run, stage) for stage in values)
        if finished and "train" in values:
            words = "next          make serve RUN={0}; to teach it to answer: python -m helpers.run chat --run {0}"
            print(say(words, run))
    return finished


def _is_built_in(run: str, values: Values) -> bool:
    """Return whether a run's corpus is the course's own: the one to be made now, else the one that is there."""
    try:
        corpus = values["corpus"] if "corpus" in values else read_manifest(run, "corpus")["parameters"]
    except RoomError:  # the notebook says so
        return True
    return corpus.get("source", BUILT_IN) == BUILT_IN


def execute(run: str, stage: str, values: dict[str, Any], environment: Mapping[str, str], lessons: bool = True) -> None:
    """Execute a notebook with its parameters into the run's folder; raise StageFailed if a cell fails."""
    notebook, target = paths.in_language(paths.notebook(stage)), paths.executed_copy(run, stage)
    target.parent.mkdir(parents=True, exist_ok=True)
    defaults = notebook_parameters(stage)
    changed = {name: value for name, value in values.items() if name == "run" or value != defaults[name]}
    # not to the terminal: as it closes, a kernel on a busy machine may log that its own sockets are closed
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr,
        tempfile.TemporaryDirectory() as folder,
    ):
        source = notebook
        if not lessons:
            source = Path(folder, notebook.name)
            nbformat.write(stage_notebook(notebook, lessons), source)
        manager = type("ThisPython", (ThisPython,), {"environment": environment, "stderr": stderr})
        try:
            papermill.execute_notebook(
                _literally(source), _literally(target), parameters=changed, kernel_name="python3", language="python",
                kernel_manager_class=manager, progress_bar=False,
            )  # fmt: skip
        except PapermillExecutionError as error:
            problem = f"{error.ename}: {error.evalue}"
            lines = [line.strip() for line in error.source.splitlines()]
            code = next((line for line in lines if line and not line.startswith("#")), "")
            where = say("cell [{}]: {}", error.exec_count, code)
        except RuntimeError:  # in a cell (DeadKernelError), or before the first
            problem = _why_it_died(stderr)
            where = say("the last cell that has a number")
        else:
            note_finished(run, stage)
            return
    raise StageFailed(say("  where     {}, {}\n  error     {}\n  copy      {}", notebook.name, where, problem, target))


def _literally(path: Path) -> str:
    """Return a path as papermill takes it, which puts parameters in place of braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _why_it_died(stderr: IO[str]) -> str:
    """Return the last line that a dead kernel wrote to its own stderr."""
    stderr.seek(0)
    lines = [line.strip() for line in stderr if line.strip()]
    if not lines:
        return say("the kernel died without a message: most often the machine ran out of memory")
    return say("the kernel died: {}", lines[-1])


# ---- has a stage finished already, with the same parameters and inputs? ----


def _found_other_figures(run: str, copy: nbformat.NotebookNode) -> bool:
    """Return whether an earlier room has other figures than this notebook read when it ran."""
    return any(read_manifest(run, earlier)["result"] != figures for earlier, figures in copy.metadata["read"].items())


def note_finished(run: str, stage: str) -> None:
    """Note in the executed copy that it ran to its end, and the results of the rooms whose files it read."""
    if (paths.room(run, stage) / MANIFEST).is_file():
        rooms = {name.split("/")[0] for name in read_manifest(run, stage)["inputs"]}
        stages = [earlier for earlier, (_, room) in paths.NOTEBOOKS.items() if room in rooms]
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        copy.metadata["read"] = {earlier: read_manifest(run, earlier)["result"] for earlier in stages}
        nbformat.write(copy, paths.executed_copy(run, stage))


def finished_unchanged(run: str, stage: str, values: dict[str, Any], lessons: bool = True) -> bool:
    """Return whether a stage is done, with these parameters, inputs and this notebook, see `stage_notebook`."""
    # 1. it was not stopped, and the room and the rooms that it read are as they were when it finished
    if unfinished(run, stage):
        return False
    try:
        manifest = open_room(run, stage)
        copy = nbformat.read(paths.executed_copy(run, stage), as_version=4)
        if "read" not in copy.metadata or _found_other_figures(run, copy):  # see `note_finished`
            return False
    except (RoomError, OSError, ValueError):  # the copy may be torn: papermill was killed while it wrote
        return False
    # 2. the same parameters, the same code
    editions = filter(Path.is_file, (paths.notebook(stage), paths.chinese(paths.notebook(stage))))
    published = [_code_of(stage_notebook(edition, lessons)) for edition in editions]
    if manifest["parameters"] != values or _code_of(copy) not in published:
        return False
    # 3. the same input files, and no new one
    files = {paths.run_dir(run) / name: wanted for name, wanted in manifest["inputs"].items()}
    if any(not file.is_file() or known_sha256(file) != wanted for file, wanted in files.items()):
        return False
    return same_files(values.get("source", BUILT_IN), [*files])


def _code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the code without comments, which have a language, and without papermill's cell of parameters."""
    own = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    return [ast.unparse(ast.parse(cell.source)) for cell in own if cell.cell_type == "code"]


# ---- what it is doing: a bar in a terminal, a line a minute in a log ----


@contextlib.contextmanager
def watching(file: Path, name: str, one_line: bool) -> Iterator[None]:
    """Show the notes that a kernel writes into `file`, with `name` before each, until the block ends.

    one_line: the same line of the terminal is written over and over; else each note has its own.
    """

    end = threading.Event()

    def look() -> None:
        before = None
        while not end.wait(TERMINAL_SECONDS if one_line else LOG_SECONDS):
            note = progress.read_note(file)
            if note is None or note == before:
                continue
            before = note
            if one_line:  # what is wrapped could not be wiped
                room = shutil.get_terminal_size().columns - 1 - len(name)
                print(f"{CLEAR}{name}{meter(note, room)}", end="", flush=True)
            else:
                print(f"{name}{meter(note, 0)}", flush=True)

    file.unlink(missing_ok=True)
    if one_line:
        print(name, end="", flush=True)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        file.unlink(missing_ok=True)
        if one_line:
            print(CLEAR, end="", flush=True)


def meter(note: Note, columns: int) -> str:
    """Return how far a piece of work is, its rate and the time left, with a bar that fills the columns (0: none)."""
    return tqdm.format_meter(
        note.done, note.total or 0, note.seconds, ncols=columns, prefix=note.label, unit=note.unit, unit_scale=True,
        initial=note.first,
    )  # fmt: skip


# ---- fresh outputs for the notebooks themselves ----


def refresh(stages: list[str]) -> None:
    """Execute the notebooks at their defaults and write them back with outputs that can be compared and committed.

    The run itself goes to a temporary folder unless RUNS_DIR names one: outputs must not depend on an earlier run. A
    later notebook alone needs RUNS_DIR with the rooms that it reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        # absolute: each kernel works in the folder of its notebook
        os.environ["RUNS_DIR"] = os.path.abspath(os.environ.get("RUNS_DIR") or folder)
        for stage in stages:
            path = paths.in_language(paths.notebook(stage))
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
            except (CellExecutionError, RuntimeError) as error:  # in a cell, or its kernel died
                print()
                raise StageFailed(f"  {path.name} is unchanged\n{error}") from None
            notebook.metadata = before  # no widget state, no version of the Python that happened to run it
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = [output for output in cell.outputs if WIDGET_VIEW not in output.get("data", {})]
            nbformat.write(notebook, path)
            print(f"{duration(time.monotonic() - begin):>12}", flush=True)
