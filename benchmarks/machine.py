"""What every benchmark says of the machine, and where a report is kept.

A report is the one JSON object that a benchmark prints as its last line. The notebooks quote reports that are kept in
benchmarks/reports/, so a report names its machine and its text.
"""

import json
import platform
import statistics
from pathlib import Path

import torch

from helpers.device import describe_device, has_bf16_units
from helpers.files import write_text
from helpers.manifest import open_room

REPORTS = Path(__file__).parent / "reports"


def _processor() -> str:
    """Return the processor's name, or its kind where no name is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # no Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe_machine(device: torch.device) -> dict:
    """Return `describe_device` with the processor's name and whether it has bf16 units (None: unknown)."""
    name = _processor().replace("(R)", "").replace("(TM)", "")
    return describe_device(device) | {"processor": name, "bf16_units": has_bf16_units()}


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
