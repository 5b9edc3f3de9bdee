"""The machine: CPU or GPU, mixed precision (bf16, fp16, fp32), threads, speed of matrix products, memory used and free.

Knows nothing of models. All sizes are in bytes, all rates in floating-point operations per second.
"""

import contextlib
import ctypes
import functools
import os
import platform
import re
import sys
import time
from pathlib import Path

import torch

from helpers.parallel import cores

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WITHOUT_FLOAT64 = {"mps"}  # types of devices that have no 64-bit numbers: Apple's GPUs
CONTAINER = Path("/sys/fs/cgroup")  # the limits of the container that this runs in, and what it has used of them


def pick_device(name: str) -> torch.device:
    """Return the device called `name`, else ValueError; "auto" is this process's GPU, or the CPU if it has none."""
    if name == "auto":
        apple = "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cuda" if torch.cuda.is_available() else apple
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    if not re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", name):
        raise ValueError(f"device '{name}' is unknown: choose auto, cpu, cuda or mps")
    device = torch.device(name)
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here[device.type]:
        raise ValueError(f"device is '{device.type}', but torch sees no such GPU here: use device = \"auto\"")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is '{device}', but torch sees {torch.cuda.device_count()} GPU(s): use fewer devices")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Return "fp32", "bf16" or "fp16"; "auto" is what is fast here.

    On a GPU that is bf16 where the card has it, else fp16; on Apple's it is fp32, for nothing was measured there. On a
    CPU it is bf16 where the processor has units for it; elsewhere its products are slower than in fp32. Where that is
    not known both are measured, and bf16 must win by 1.3, for casts cost time as well. Raises ValueError.
    """
    if name in DTYPES:
        return name
    if name != "auto":
        raise ValueError(f"precision '{name}' is unknown: choose auto, fp32, bf16 or fp16")
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "mps":
        return "fp32"
    # measured only where it is not known: on a busy machine a resumed run or a second process could get another answer
    if (quick := has_bf16_units()) is None:
        quick = matmul_rate("bf16", device) > 1.3 * matmul_rate("fp32", device)
    return "bf16" if quick else "fp32"


def has_bf16_units() -> bool | None:
    """Return whether an x86 processor has units for products in bf16 (AVX512-BF16 or AMX); None of other processors."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if capabilities.get("architecture") != "x86_64":
        return None
    return any(capabilities.get(unit, False) for unit in ("avx512_bf16", "amx_bf16"))


def widest_float(device: torch.device) -> torch.dtype:
    """Return the type of numbers for sums and comparisons that must be exact: float64 where the device has it."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager:
    """Return the context in which matrix products are computed in `precision`; weights stay fp32."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, DTYPES[precision])


def matmul_rate(precision: str, device: torch.device, laps: int = 6) -> float:
    """Return the best measured rate of a matrix product here: training cannot be faster."""
    rows, size = (8192, 8192) if device.type == "cuda" else (512, 1024)
    a = torch.ones(rows, size, dtype=DTYPES[precision], device=device)
    b = torch.ones(size, size, dtype=DTYPES[precision], device=device)
    seconds = []
    for _ in range(laps):
        wait(device)
        begin = time.perf_counter()
        a @ b
        wait(device)
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > 1:  # fp16 on a processor without fp16 units: one product is enough to see it
            break
    return 2 * rows * size * size / min(seconds)


def wait(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@functools.cache
def is_intel() -> bool:
    """Return whether the processor is Intel's: plain matrix products come from MKL, which is written for these."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = platform.processor()  # on Windows it ends with the maker's name
    return "GenuineIntel" in text


def release_threads() -> None:
    """End the idle OpenMP threads of the calling thread, before another thread computes; they come back as needed.

    Each computing thread has helpers of its own. Where two such groups outnumber the cores, OpenMP lets them sleep
    between two products instead of waiting awake: training in a second thread would be slow.
    """
    for library in (Path(torch.__file__).parent / "lib").glob("lib*omp*.so*"):
        with contextlib.suppress(OSError, AttributeError):  # not loaded by torch, or older than OpenMP 5
            ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all(1)  # 1: soft


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on a GPU or on the CPU (for which torch has no class)."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("can't allocate memory", "not enough memory", "out of memory")  # Linux, Windows, Apple's GPUs
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def empty_cache(device: torch.device) -> None:
    """Return memory that torch keeps for later to the device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def memory_peak(device: torch.device) -> int:
    """Return the most memory that this process has held so far: on the GPU if that is the device, else in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    try:  # on Linux: there ru_maxrss may be that of the parent process
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource  # a module of Unix

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe_device(device: torch.device) -> dict:
    """Return the facts of the machine that figures depend on, for a benchmark's last line."""
    return {
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
    }


def memory_free(device: torch.device) -> int:
    """Return how much memory is free, in a container of what it was given."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil  # not at the top: training on a GPU does without it

    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no container with cgroup 2, or "max": no limit
        limit, used = (int((CONTAINER / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        # files that were read stay in memory until it is needed, and count as used
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text("ascii").splitlines())
        free = min(free, max(0, limit - used + int(counts.get("inactive_file", 0))))
    return free
