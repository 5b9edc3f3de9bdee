"""What this machine is: which device trains, in which precision, how fast it multiplies, how much memory it has.

Knows nothing of models. All sizes are in bytes, all rates in floating-point operations a second.
"""

import contextlib
import os
import platform
import resource
import sys
import time

import psutil
import torch

from helpers.parallel import cores

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is this process's GPU where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU here: use device = \"auto\"")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16; "auto" is bf16 where this machine is quick at it (on a CPU it is tried), else fp32."""
    if name in DTYPES:
        return name
    if name != "auto":
        raise ValueError(f"precision '{name}' is unknown: choose auto, fp32, bf16 or fp16")
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if matmul_rate("bf16", device) > 1.3 * matmul_rate("fp32", device) else "fp32"


def autocast(precision: str, device: torch.device):
    """Return the context in which matrix products run in `precision`; weights stay fp32."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, DTYPES[precision])


def matmul_rate(precision: str, device: torch.device, laps: int = 6) -> float:
    """Return the best measured rate of a matrix product here: the most that training could ever reach."""
    rows, size = (8192, 8192) if device.type == "cuda" else (512, 1024)
    a = torch.ones(rows, size, dtype=DTYPES[precision], device=device)
    b = torch.ones(size, size, dtype=DTYPES[precision], device=device)
    seconds = []
    for _ in range(laps):
        _wait(device)
        begin = time.perf_counter()
        a @ b
        _wait(device)
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > 1:  # fp16 on a processor that cannot do it: slow enough to see at once
            break
    return 2 * rows * size * size / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory ran out, on a GPU or on the CPU (there torch has no class for it)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def empty_cache(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory_peak(device: torch.device) -> int:
    """Return the most memory that this process has held so far: on the GPU if it trains there, else in all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:  # where there is /proc: ru_maxrss may be that of the process which started this one
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe_device(device: torch.device) -> dict:
    """Return what figures were measured on, for a benchmark's last line."""
    return {
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
    }


def memory_free(device: torch.device) -> int:
    """Return how much memory can still be taken."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
