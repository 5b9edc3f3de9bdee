"""The same training loop in several processes: one for each GPU, or several on a CPU to see that it is right.

torchrun's own launcher starts the processes, gives each its rank, and when one fails ends them all and starts them
again from the last checkpoint. The same from a shell or on a cluster:
`torchrun --nproc-per-node 8 --max-restarts 3 -m helpers.train runs/NAME/model/parameters.json`.
"""

import json
import sys
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers import paths
from helpers.train import job
from helpers.train.settings import TrainSettings


def run_job(settings: TrainSettings) -> dict[str, Any]:
    """Train in `settings.devices` processes on this machine and return the run's figures; blocks until the end.

    The room must be prepared. If a process fails, all are started again, `settings.restarts` times at most; then
    RuntimeError, and no process is left.
    """
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        file = Path(folder, "parameters.json")
        file.write_text(json.dumps(asdict(settings) | {"resume": True}), "utf-8")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=settings.devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            max_restarts=settings.restarts,
            monitor_interval=0.5,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "helpers.train", job.PREPARED, str(file))
        except ChildFailedError as error:
            raise RuntimeError(
                f"one of the {settings.devices} training processes failed; its own message is above. "
                f"Started again, the run goes on from the last checkpoint in {paths.room(settings.run, 'train')}."
            ) from error
    return json.loads((paths.room(settings.run, "train") / "figures.json").read_text("utf-8"))


def start(settings: TrainSettings) -> job.Training:
    """Train in `settings.devices` processes, watched and stopped like a run of one: by its files. Return at once."""
    return job.start(settings, run_job)
