"""What all benchmarks share: turns, the machine, the aims, and the report.

A report is the one JSON object that a benchmark prints as its last line. The notebooks quote reports that are kept in
benchmarks/reports/, so a report names its machine and its text.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from helpers.device import describe_device, has_bf16_units
from helpers.files import write_text
from helpers.manifest import open_room

REPORTS = Path(__file__).parent / "reports"
MIB, GIB = 2**20, 2**30


def command_line(name: str, doc: str, text: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a benchmark; with `text` it has the options of one whose report is kept."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0])
    if text:
        parser.add_argument("--title", default="", help="of the text, for the report")
        parser.add_argument("--licence", default="", help="of the text, for the report")
        parser.add_argument("--keep", default="", help="keep the report as benchmarks/reports/<KEEP>.json")
    return parser


def take_turns(ways: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Return what each way measured in each turn; a first turn sets up and does not count."""
    rows = [{name: way() for name, way in ways.items()} for _ in range(turns + 1)][1:]
    return {name: [row[name] for row in rows] for name in ways}


def median_ratio(one: list[float], other: list[float], digits: int = 2) -> float:
    """Return the median, over the turns, of one figure as a multiple of another of the same turn."""
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), digits)


def mean_and_spread(values: list[float]) -> dict[str, float]:
    """Return the mean of the seeds' results and their spread, the largest minus the smallest."""
    return {"mean": round(statistics.mean(values), 4), "spread": round(max(values) - min(values), 4)}


def met(figures: Mapping[str, Any], aims: Mapping[str, float], at_most: Collection[str] = ()) -> dict[str, dict]:
    """Return value, aim and whether it is met, for each aim that was measured; `at_most`: where less is better."""
    return {
        name: {
            "value": figures[name], "aim": aim,
            "met": figures[name] <= aim if name in at_most else figures[name] >= aim,
        }
        for name, aim in aims.items() if figures.get(name) is not None
    }  # fmt: skip


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


def _lines(figures: Mapping[str, Any], before: str = "") -> list[str]:
    """Return a line for each figure; those of a part are called `part/figure`."""
    found = []
    for name, value in figures.items():
        name = f"{before}{name}"
        found += _lines(value, f"{name}/") if isinstance(value, dict) else [f"{name:48} {value}"]
    return found


def report(benchmark: str, machine: dict, figures: dict, aims: dict, keep: str = "", **about: Any) -> None:
    """Print a line for each figure, then all as one line; with `keep`, also in benchmarks/reports/<keep>.json."""
    result = {"benchmark": benchmark, "machine": machine, **about, "figures": figures, "aims": aims}
    print("\n".join([*_lines(figures), json.dumps(result, ensure_ascii=False)]))
    if keep:
        write_text(REPORTS / f"{keep}.json", json.dumps(result, ensure_ascii=False, indent=1) + "\n")
