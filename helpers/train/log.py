"""The record of a training run: `metrics.jsonl`, one line an event, and the same scalars for TensorBoard.

Whoever wants to watch a run, in this process or another, running or finished, reads that file.
"""

import contextlib
import json
from pathlib import Path

_CURVES = ("step", "validation", "epoch")  # events whose numbers make curves


class MetricsLog:
    """Appends rows to `metrics.jsonl` and the same scalars to TensorBoard; only the first process writes."""

    def __init__(self, folder: Path, writes: bool):
        self.file = self.board = None
        if writes:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only where it is used

            self.file = open(folder / "metrics.jsonl", "a+", encoding="utf-8")
            self.file.seek(0)
            if (text := self.file.read()) and not text.endswith("\n"):  # a run was killed while it wrote a row
                self.file.write("\n")
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, event: str, **row) -> None:
        """Write one row; numbers of a step also go to TensorBoard under `event/name`."""
        if self.file is None:
            return
        with contextlib.suppress(OSError):  # a full disk costs a line of the log, not the run
            self.file.write(json.dumps({"event": event, **row}, ensure_ascii=False) + "\n")
            self.file.flush()
        for name, value in row.items():
            if event in _CURVES and name != "step" and isinstance(value, float):
                self.board.add_scalar(f"{event}/{name}", value, row["step"])

    def close(self) -> None:
        """Close the file and the board."""
        if self.file is not None:
            self.file.close()
            self.board.close()
