"""What every benchmark says of the machine, and where a report is kept.

A report is the one JSON object that a benchmark prints as its last line. The notebooks quote reports that are kept in
benchmarks/reports/, so a report names its machine and its text.
"""

import json
import platform
import statistics
from pathlib import Path

import torch

from helpers.device import describe_device
from helpers.files import write_text
from helpers.manifest import open_room

REPORTS = Path(__file__).parent / "reports"
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them: x86, x86, ARM


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo, or nothing where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def describe_machine(device: torch.device) -> dict:
    """Return `describe_device` with the processor's name and whether it has bf16 units (None: unknown)."""
    info = _cpuinfo()
    name = info.get("model name", "").replace("(R)", "").replace("(TM)", "")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    facts = {"processor": name or platform.processor() or platform.machine()}
    return describe_device(device) | facts | {"bf16_units": bool(flags & BF16_FLAGS) if flags else None}


def describe_text(run: str, title: str, licence: str) -> dict:
    """Return what a report says of the text in a run's corpus room: its title, size and licence, never the text."""
    facts = open_room(run, "corpus")["result"]
    shown = {name: facts[name] for name in ("documents", "characters", "val_characters")}
    return {"title": title or Path(str(facts["source"])).name, **shown, "licence": licence}


def mean_and_spread(values: list[float]) -> dict[str, float]:
    """Return the mean of the seeds' results and their spread, the largest minus the smallest."""
    return {"mean": round(statistics.mean(values), 4), "spread": round(max(values) - min(values), 4)}


def report(result: dict, keep: str = "") -> None:
    """Print a benchmark's result as one line; with a name, also keep it in benchmarks/reports/<name>.json."""
    print(json.dumps(result, ensure_ascii=False))
    if keep:
        write_text(REPORTS / f"{keep}.json", json.dumps(result, ensure_ascii=False, indent=1) + "\n")
