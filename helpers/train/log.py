"""The log of a training run: `metrics.jsonl`, one row per event, and the same curves for TensorBoard.

A row of an update holds loss, learning rate, gradient norm, throughput (tokens per second), memory and more.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

_CURVES = ("step", "validation", "epoch")  # events whose numbers make curves


class MetricsLog:
    """Appends rows to `metrics.jsonl` and the same scalars to TensorBoard; only a process that `writes` does so."""

    def __init__(self, folder: Path, writes: bool):
        self.writes = writes
        if writes:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only where it is used

            self.file = open(folder / "metrics.jsonl", "a+", encoding="utf-8")
            self.file.seek(0)
            if (text := self.file.read()) and not text.endswith("\n"):  # a run was killed while it wrote a row
                self.file.write("\n")
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, event: str, **row: Any) -> None:
        """Write one row; numbers of a step also go to TensorBoard under `event/name`."""
        if not self.writes:
            return
        with contextlib.suppress(OSError):  # a full disk costs a line of the log, not the run
            self.file.write(json.dumps({"event": event, **row}, ensure_ascii=False) + "\n")
            self.file.flush()
        for name, value in row.items():
            if event in _CURVES and name != "step" and isinstance(value, float):
                self.board.add_scalar(f"{event}/{name}", value, row["step"])

    def close(self) -> None:
        """Close the file and the board."""
        if self.writes:
            self.file.close()
            self.board.close()
