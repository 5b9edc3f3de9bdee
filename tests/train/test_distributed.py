"""Room 04 on several processes: shares, sums, wrappers (test_job, test_faults: what they compute together)."""

import faults
import numpy as np
import pytest
import torch
from models import CPU, tiny

from helpers.device import pick_device
from helpers.train import distributed
from helpers.train.loss import Loss


@pytest.mark.parametrize(("world", "n", "batches"), [(1, 9, 5), (2, 9, 3), (4, 9, 2), (4, 2, 1), (3, 7, 2)])
def test_processes_share_an_update_without_loss_or_overlap(world, n, batches):
    """Each has equally many micro-batches, for the processes meet in each of them."""
    parts = [distributed.split_across_ranks(np.arange(n), 2, rank, world) for rank in range(world)]
    assert sorted(int(i) for part in parts for batch in part for i in batch) == list(range(n))
    assert {len(part) for part in parts} == {batches}


def test_one_process_needs_no_exchange():
    loss = Loss(tiny())
    assert distributed.world() == (0, 1)
    assert distributed.distribute(loss, CPU) is loss
    assert distributed.sum_over_ranks([1.5, 2.0], CPU) == [1.5, 2.0]
    assert distributed.gather_over_ranks([3, 4]) == [3, 4]


@pytest.mark.parametrize("local_rank", [0, 3])
def test_each_process_has_a_card_of_its_own(monkeypatch, local_rank):
    """By what torchrun says: the card that is set, and the card of the wrapper, are the one with the local rank."""
    set_to, groups, wrapped = [], [], []
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", set_to.append)
    monkeypatch.setattr(distributed.dist, "rendezvous", lambda how: iter([(torch.distributed.HashStore(), 5, 8)]))
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda kind, **how: groups.append((kind, how["rank"])))
    monkeypatch.setattr(distributed, "world", lambda: (5, 8))
    monkeypatch.setattr(distributed, "DistributedDataParallel", lambda loss, device_ids: wrapped.append(device_ids))
    device = pick_device("auto")
    distributed.join_group(device)
    distributed.distribute(Loss(tiny()), device)
    assert set_to == [torch.device("cuda", local_rank)]
    assert groups == [("nccl", 5)] and wrapped == [[local_rank]]


def exchange() -> list:
    """In each of several processes: what it gets from the others."""
    rank, size = distributed.world()
    sums = distributed.sum_over_ranks([rank + 1.0, 0.5], CPU)
    wrapped = type(distributed.distribute(Loss(tiny()), CPU)).__name__
    return [size, sums, distributed.gather_over_ranks([rank, rank + 10]), wrapped]


@pytest.mark.slow
def test_two_processes_get_the_same_sums():
    assert faults.run(exchange, world=2) == [[2, [3.0, 1.0], [0, 10, 1, 11], "DistributedDataParallel"]] * 2
