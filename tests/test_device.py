"""device: what "auto" chooses, what is refused, and what the machine says of itself."""

import subprocess
import sys

import numpy as np
import psutil
import pytest
import torch

from helpers import device
from helpers.device import (
    is_out_of_memory,
    matmul_rate,
    memory_free,
    memory_peak,
    pick_device,
    pick_precision,
)

CPU = torch.device("cpu")


@pytest.fixture
def cards(monkeypatch):
    """Let this machine have so many of NVIDIA's GPUs, and one of Apple's or none; this process is the third of four."""

    def has(cuda, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    monkeypatch.setenv("LOCAL_RANK", "2")
    return has


@pytest.mark.parametrize(
    ("machine", "name", "device"),
    [
        ((0,), "auto", "cpu"), ((0,), "cpu", "cpu"), ((0, True), "auto", "mps"), ((4, True), "auto", "cuda:2"),
        ((4,), "cuda", "cuda:2"), ((4,), "cuda:1", "cuda:1"), ((4,), "cpu", "cpu"),
    ],
)  # fmt: skip
def test_auto_is_the_gpu_of_this_process_where_there_is_one(cards, machine, name, device):
    cards(*machine)
    assert pick_device(name) == torch.device(device)


@pytest.mark.parametrize(
    ("machine", "name", "words"),
    [
        ((0,), "cuda", 'use device = "auto"'), ((4,), "mps", 'use device = "auto"'),
        ((1,), "auto", "'cuda:2', but torch sees 1 GPU"), ((0,), "meta", "unknown: choose auto, cpu, cuda or mps"),
        ((0,), "", "unknown: choose auto"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_refused_with_what_to_write(cards, machine, name, words):
    cards(*machine)
    with pytest.raises(ValueError, match=words):
        pick_device(name)


@pytest.mark.parametrize("bf16, expected", [(1.0, "fp32"), (1.3, "fp32"), (2.0, "bf16")])
def test_auto_on_a_cpu_of_unknown_units_is_what_is_quick(monkeypatch, bf16, expected):
    monkeypatch.setattr(device, "has_bf16_units", lambda: None)
    monkeypatch.setattr(device, "matmul_rate", lambda name, _: {"bf16": bf16, "fp32": 1.0}[name])
    assert pick_precision("auto", CPU) == expected


@pytest.mark.parametrize("unit", ["avx512_bf16", "amx_bf16", None])
def test_auto_on_a_known_cpu_is_what_it_has_units_for_and_is_not_measured(monkeypatch, unit):
    found = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False} | ({unit: True} if unit else {})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.delattr(device, "matmul_rate")
    assert pick_precision("auto", CPU) == ("bf16" if unit else "fp32")


def test_units_are_unknown_on_another_processor_and_with_an_older_torch(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "arm64", "bf16": True}, raising=False)
    assert device.has_bf16_units() is None
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert device.has_bf16_units() is None


@pytest.mark.clock
@pytest.mark.skipif(device.has_bf16_units() is None, reason="it is not known what this processor has")
def test_what_the_processor_has_is_what_is_quick():
    turns = [[matmul_rate(name, CPU) for name in ("bf16", "fp32")] for _ in range(5)]  # a busy moment slows both
    bf16, fp32 = map(max, zip(*turns, strict=True))
    assert (bf16 > 1.3 * fp32) == device.has_bf16_units()


@pytest.mark.parametrize("supported, expected", [(True, "bf16"), (False, "fp16")])
def test_auto_on_a_gpu_is_what_the_card_has(monkeypatch, supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert pick_precision("auto", torch.device("cuda:0")) == expected
    assert pick_precision("auto", torch.device("mps")) == "fp32"


def test_a_precision_is_taken_as_it_is_or_refused():
    assert [pick_precision(name, CPU) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]
    with pytest.raises(ValueError, match="precision 'fp8' is unknown: choose auto, fp32, bf16 or fp16"):
        pick_precision("fp8", CPU)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_idle_threads_end_and_come_back():
    program = """if True:
        import os, torch
        from helpers.device import release_threads
        torch.set_num_threads(3)
        def threads(): return len(os.listdir("/proc/self/task"))
        a = torch.ones(1_000_000)
        a.exp()
        busy = threads()
        release_threads()
        released = threads()
        assert torch.equal(a.exp(), a.exp())
        print(busy - released, threads() - released)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2"]


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("x"), True), (MemoryError(), True), (KeyboardInterrupt(), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to …"), True),  # Windows
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GiB)"), True),
        (ValueError("out of memory"), False), (RuntimeError("shape mismatch"), False),
    ],
)  # fmt: skip
def test_out_of_memory_is_recognized(error, is_it):
    assert is_out_of_memory(error) == is_it


def test_the_peak_grows_with_what_is_held_and_stays():
    before = memory_peak(CPU)
    held = np.ones(before, np.uint8)  # as much as this process ever held, once more
    peak = memory_peak(CPU)
    assert peak > before
    del held
    assert memory_peak(CPU) > 0.99 * peak  # Linux adds up pages in batches
    assert 0 < memory_free(CPU) <= psutil.virtual_memory().total


def test_in_a_container_the_free_memory_is_what_is_left_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "CONTAINER", tmp_path)
    whole = psutil.virtual_memory().total
    (tmp_path / "memory.current").write_text("3000000\n", "ascii")
    (tmp_path / "memory.stat").write_text("anon 2000000\ninactive_file 500000\nactive_file 7\n", "ascii")
    for limit, free in (("4000000", 1_500_000), ("2000000", 0)):
        (tmp_path / "memory.max").write_text(limit + "\n", "ascii")
        assert memory_free(CPU) == free
    for limit in ("max", str(10 * whole)):
        (tmp_path / "memory.max").write_text(limit + "\n", "ascii")
        assert 10_000_000 < memory_free(CPU) <= whole
    (tmp_path / "memory.max").unlink()
    assert 10_000_000 < memory_free(CPU) <= whole


@pytest.mark.parametrize(
    ("proc", "name", "intel"),
    [
        ("vendor_id\t: GenuineIntel", "", True),
        ("vendor_id\t: AuthenticAMD", "", False),
        (None, "Intel64 Family 6 Model 158 Stepping 10, GenuineIntel", True),  # Windows
        (None, "arm", False),
    ],
)
def test_the_maker_of_the_processor_is_known_on_every_system(monkeypatch, proc, name, intel):
    def read(path, encoding):
        if proc is None:
            raise FileNotFoundError(path)
        return proc

    monkeypatch.setattr(device.Path, "read_text", read)
    monkeypatch.setattr(device.platform, "processor", lambda: name)
    assert device.is_intel.__wrapped__() == intel
