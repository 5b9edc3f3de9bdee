"""Data-parallel training: several processes, each with its share of the windows, train one model (DDP).

Ranks, shares, sums over processes, and the wrapper that exchanges gradients. With a single process all this does
nothing. Knows no training loop.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers import parallel
from helpers.device import widest_float
from helpers.train.loss import Loss


def world() -> tuple[int, int]:
    """Return this process's rank and the number of processes that train together."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def join_group(device: torch.device) -> None:
    """Join the process group that torchrun's environment variables describe."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:  # by itself each process would take all cores, and how many it takes changes the last digits
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        torch.set_num_threads(max(1, parallel.cores() // neighbours))
    # the launcher's store outlives a restart, with addresses of dead processes: each attempt has its own keys
    store, rank, size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=size)


def leave_group(code: int) -> NoReturn:
    """Leave the process group, then end this process with an exit code."""
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may still hold tensors, and Python's own clearing up then aborts at times


def split_across_ranks(indices: np.ndarray, batch_size: int, rank: int, world: int) -> list[np.ndarray]:
    """Return this process's micro-batches of one update: every world-th window, at most batch_size at a time.

    All processes get equally many, because they meet in each; the last may be empty.
    """
    own = indices[rank::world]
    most = -(-len(indices) // world)  # windows of the first process
    return [own[i : i + batch_size] for i in range(0, max(1, most), batch_size)]


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the values summed over all processes."""
    if not dist.is_initialized():
        return list(values)
    tensor = torch.tensor(values, dtype=widest_float(device), device=device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def gather_over_ranks(values: list) -> list:
    """Return the lists of all processes as one."""
    if not dist.is_initialized():
        return values
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


def distribute(loss: Loss, device: torch.device) -> nn.Module:
    """Return `loss` as several processes train it, gradients averaged (Li et al. 2020); one trains it as it is."""
    if world()[1] == 1:
        return loss
    return DistributedDataParallel(loss, device_ids=[device.index] if device.type == "cuda" else None)
