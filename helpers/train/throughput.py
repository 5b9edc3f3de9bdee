"""How fast this machine trains a model: one measured update, from which a forecast and a choice of shape are made.

No formula says it: the rate of a matrix product tells how fast training could be, and small models reach 14 to 70 % of
it, depending on the processor and the precision (`block_speed` in benchmarks/README.md). Knows no budget and no rule.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from helpers.device import DTYPES, autocast, empty_cache, is_out_of_memory, wait
from helpers.parallel import cores
from helpers.tokens.windows import Windows
from helpers.train import optim
from helpers.train.loss import Loss
from helpers.train.settings import TrainSettings
from helpers.train.trainer import load_batch


class UpdateTime(NamedTuple):
    """What an update takes, in seconds."""

    per_window: float  # forward and backward
    optimizer: float  # the step, once per update

    def of(self, windows: int) -> float:
        """Return the seconds of an update of so many windows."""
        return windows * self.per_window + self.optimizer


def measure(
    model: PreTrainedModel,
    train: Windows,
    settings: TrainSettings,
    batch_size: int,
    precision: str,
    device: torch.device,
    probe: float,
) -> UpdateTime:
    """Time an update of `batch_size` windows, or of as many as take about `probe` seconds; it changes the weights.

    Of three updates of one size the faster of the last two counts: in the first, memory is allocated and products are
    compiled, and another program may have the processor for a moment. Where memory runs out, fewer windows are
    measured, as the trainer takes fewer then; with a single one the error is raised.
    """
    # 1. windows of about the mean length: a batch has windows of one length
    order = np.argsort(train.lengths, kind="stable")
    middle = int(np.searchsorted(train.lengths[order], train.lengths.mean()))
    most = min(batch_size, len(train))
    loss_of = Loss(model).to(device).train()
    optimizers = optim.make_optimizers(
        model, settings.optimizer, 1e-4, settings.weight_decay, settings.beta2, settings.eps, settings.momentum,
        DTYPES[precision],
    )  # fmt: skip
    scaler = torch.amp.GradScaler(device.type, enabled=False)

    def update(count: int) -> UpdateTime:
        first = max(0, min(middle - count // 2, len(train) - count))
        batch = load_batch(train, order[first : first + count], device)
        begin = time.perf_counter()
        model.zero_grad()
        with autocast(precision, device):
            objective = loss_of(*batch).objective
        objective.backward()
        wait(device)
        between = time.perf_counter()
        optim.clip_gradient(optimizers, list(model.parameters()), 1.0, scaler)
        optim.step(optimizers, scaler, finite=True)
        wait(device)
        return UpdateTime((between - begin) / count, time.perf_counter() - between)

    def timed(count: int) -> UpdateTime:
        update(count)
        return UpdateTime(*map(min, update(count), update(count)))

    # 2. one window tells how many fit into the time; on a GPU it does not, where many take hardly longer than one
    with _threads_of_each(settings.devices, device):
        one = timed(1)
        count = most if device.type == "cuda" else max(1, min(most, int(probe / one.per_window)))
        while count > 1:
            try:
                return timed(count)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            count //= 2
            empty_cache(device)
        return one


@contextlib.contextmanager
def _threads_of_each(processes: int, device: torch.device) -> Iterator[None]:
    """Compute with as many threads as each of several processes on this CPU will have, see `join_group`."""
    before = torch.get_num_threads()
    if processes > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, cores() // processes))
    try:
        yield
    finally:
        torch.set_num_threads(before)
