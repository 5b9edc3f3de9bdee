"""Execute the notebooks at their defaults and write the outputs into them, to be compared and committed."""

import os
import tempfile
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from helpers import paths
from helpers.run.execute import StageFailed, ThisPython
from helpers.wording import duration

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def refresh(stages: list[str]) -> None:
    """Execute the notebooks at their defaults and write them back with outputs that can be compared and committed.

    The run itself goes to a temporary folder unless RUNS_DIR names one: outputs must not depend on an earlier run. A
    later notebook alone needs RUNS_DIR with the rooms that it reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        # absolute: each kernel works in the folder of its notebook
        os.environ["RUNS_DIR"] = os.path.abspath(os.environ.get("RUNS_DIR") or folder)
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
            except (CellExecutionError, RuntimeError) as error:  # in a cell, or its kernel died
                print()
                raise StageFailed(f"  {path.name} is unchanged\n{error}") from None
            notebook.metadata = before  # no widget state, no version of the Python that happened to run it
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = [output for output in cell.outputs if WIDGET_VIEW not in output.get("data", {})]
            nbformat.write(notebook, path)
            print(f"{duration(time.monotonic() - begin):>12}", flush=True)
