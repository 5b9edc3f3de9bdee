"""Execute notebooks in order, each in a kernel of its own; what has finished and is unchanged is skipped."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError

from helpers import paths, progress, report
from helpers.files import occupied
from helpers.manifest import notebook_parameters
from helpers.run.unchanged import finished_unchanged, remember
from helpers.run.watch import Watch, in_terminal
from helpers.wording import duration


class StageFailed(RuntimeError):
    """A notebook stopped with an error; the message names the notebook, the cell and the error."""


class ThisPython(AsyncKernelManager):
    """Start kernels with the interpreter that runs this module, whatever kernels are registered on the machine."""

    environment: ClassVar[Mapping[str, str]] = {}  # of the kernel, besides this process's own
    stderr: ClassVar[IO[str] | None] = None  # where the kernel's process says what no cell shows; None: the terminal

    @property
    def kernel_spec(self) -> KernelSpec:
        """What starts a kernel: this interpreter."""
        # what a kernel logs about itself would appear between the progress lines
        spec = get_kernel_dict(extra_arguments=["--log-level=CRITICAL"])
        return KernelSpec(resource_dir=RESOURCES, **spec | {"env": dict(self.environment)})

    async def start_kernel(self, *arguments: Any, **options: Any) -> None:  # type: ignore[override]  # typed as if not async
        """Start the process; its own stderr is this class's."""
        await super().start_kernel(*arguments, **options, stderr=self.stderr)


def _why_it_died(stderr: IO[str]) -> str:
    """Return what a kernel that died said of it on its own stderr, in a line."""
    stderr.seek(0)
    lines = [line.strip() for line in stderr if line.strip()]
    if not lines:
        return "the kernel died without a message: most often the machine ran out of memory"
    return f"the kernel died: {lines[-1]}"


def _first_line(source: str) -> str:
    """Return a cell's first line of code, or its first comment if it has none."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("#")), lines[0] if lines else "")


def _literally(path: Path) -> str:
    """Return a path as papermill takes it, which puts parameters in place of braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def execute(run: str, stage: str, values: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Execute a notebook with its parameters into the run's folder; raise StageFailed if a cell fails.

    environment: variables that only its kernel gets, such as CUDA_VISIBLE_DEVICES.
    """
    notebook, target = paths.notebook(stage), paths.executed_copy(run, stage)
    target.parent.mkdir(parents=True, exist_ok=True)
    defaults = notebook_parameters(stage)
    changed = {name: value for name, value in values.items() if name == "run" or value != defaults[name]}
    # not to the terminal: as it closes, a kernel on a busy machine may log that its own sockets are closed
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        manager = type("ThisPython", (ThisPython,), {"environment": environment, "stderr": stderr})
        try:
            papermill.execute_notebook(
                _literally(notebook), _literally(target), parameters=changed, kernel_name="python3", language="python",
                kernel_manager_class=manager, progress_bar=False,
            )  # fmt: skip
        except PapermillExecutionError as error:
            problem = f"{error.ename}: {error.evalue}"
            where = f"cell [{error.exec_count}]: {_first_line(error.source)}"
        except RuntimeError:  # in a cell (DeadKernelError), or before the first
            problem = _why_it_died(stderr)
            where = "the last cell that has a number"
        else:
            remember(run, stage)
            return
    raise StageFailed(f"  {'where':10}{notebook.name}, {where}\n  {'error':10}{problem}\n  {'copy':10}{target}")


def run_stage(
    run: str, stage: str, values: dict[str, Any], name: str, one_line: bool, environment: Mapping[str, str]
) -> str:
    """Execute a stage, show its progress after `name`, and return its time and figures in words; raises StageFailed.

    one_line: see `Watch`. Whatever ends it, a line says so.
    """
    begin, file = time.monotonic(), paths.executed_copy(run, stage).with_suffix(".progress")
    try:
        with Watch(file, name, one_line):
            execute(run, stage, values, {**environment, progress.VARIABLE: str(file)})
    except BaseException as error:
        word = "failed" if isinstance(error, StageFailed) else "stopped"
        print(f"{name}{word} after {duration(time.monotonic() - begin)}", flush=True)
        raise
    return f"{duration(time.monotonic() - begin):>12}   {report.one_line(run, stage)}".rstrip()


def run_stages(run: str, values: dict[str, dict[str, Any]], force: bool) -> None:
    """Run the planned stages in order, print a line for each, and write the report.

    Raises StageFailed at the first error, Occupied if another command is at work on this run.
    """
    with occupied(paths.run_dir(run)):
        for stage in values:
            name = f"{paths.notebook(stage).stem:14}"
            if not force and finished_unchanged(run, stage, values[stage]):
                print(f"{name}unchanged since it finished: skipped (--force runs it)", flush=True)
                continue
            words = run_stage(run, stage, values[stage], name, in_terminal(), {})
            print(f"{name}{words}", flush=True)
        print(f"{'report':14}{report.write_report(run)}", flush=True)
