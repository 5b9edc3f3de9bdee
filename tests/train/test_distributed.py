"""Room 04 on several processes: shares, sums, wrappers (test_launch, test_faults: what they compute together)."""

import faults
import numpy as np
import pytest
import torch
from models import tiny

from helpers.train import distributed
from helpers.train.loss import Loss
from helpers.train.settings import TrainSettings

CPU = torch.device("cpu")


@pytest.mark.parametrize(("world", "n", "batches"), [(1, 9, 5), (2, 9, 3), (4, 9, 2), (4, 2, 1), (3, 7, 2)])
def test_processes_share_an_update_without_loss_or_overlap(world, n, batches):
    """Each has equally many micro-batches, for the processes meet in each of them."""
    parts = [distributed.split_across_ranks(np.arange(n), 2, rank, world) for rank in range(world)]
    assert sorted(int(i) for part in parts for batch in part for i in batch) == list(range(n))
    assert {len(part) for part in parts} == {batches}


def test_one_process_needs_no_exchange():
    loss = Loss(tiny())
    assert distributed.world() == (0, 1)
    assert distributed.distribute(loss, "fsdp", CPU) is loss
    assert distributed.sum_over_ranks([1.5, 2.0], CPU) == [1.5, 2.0]
    assert distributed.gather_over_ranks([3, 4]) == [3, 4]


def exchange() -> list:
    """In each of several processes: what it gets from the others."""
    rank, size = distributed.world()
    sums = distributed.sum_over_ranks([rank + 1.0, 0.5], CPU)
    wrapped = {how: type(distributed.distribute(Loss(tiny()), how, CPU)).__name__ for how in ("ddp", "fsdp")}
    return [size, sums, distributed.gather_over_ranks([rank, rank + 10]), wrapped]


@pytest.mark.slow
def test_two_processes_get_the_same_sums():
    wrapped = {"ddp": "DistributedDataParallel", "fsdp": "FSDPLoss"}
    assert faults.run(exchange, world=2) == [[2, [3.0, 1.0], [0, 10, 1, 11], wrapped]] * 2


class SmallGpu:
    """A GPU's properties, as torch tells them."""

    total_memory = 10 * 2**20


def test_a_model_that_fills_a_gpu_is_sharded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SmallGpu)
    gpu, config = torch.device("cuda:0"), tiny().config
    choose = distributed.choose_parallel
    assert choose(TrainSettings(), config, 8, "bf16", gpu) == "fsdp"  # the logits of a GPU alone take more
    monkeypatch.setattr(SmallGpu, "total_memory", 2**34)
    assert choose(TrainSettings(), config, 8, "bf16", gpu) == "ddp"
    assert choose(TrainSettings(), config, 8, "bf16", CPU) == "ddp"
    assert choose(TrainSettings(parallel="fsdp"), config, 8, "bf16", CPU) == "fsdp"
