"""What a sweep has found: a table of its runs, the best first, and how much each parameter mattered."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import paths
from helpers.files import log_rows, write_text
from helpers.manifest import RoomError, read_manifest
from helpers.run.grid import Combination, known_members, member

FIGURES = ("val_bits_per_char", "accuracy", "steps", "total_steps")  # of notebook 04
LATER = ("facts_seen", "facts_held_out", "plain_questions")  # of notebook 05, if it ran


@dataclass(frozen=True)
class Row:
    """A run of a sweep."""

    run: str
    combination: Combination
    figures: dict[str, float]  # none if it has not trained
    chosen: dict[str, Any]  # what rules made of zeros
    end: str  # finished, why it ended early, or not trained

    @property
    def bits(self) -> float | None:
        """Bits per character of its validation, None where they are not a number."""
        found = self.figures.get("val_bits_per_char")
        return found if found is not None and math.isfinite(found) else None

    @property
    def whole(self) -> bool:
        """Whether it trained to its last update."""
        return self.end == "finished"


def rows(sweep: str) -> list[Row]:
    """Return the runs of a sweep, the best validation first, those without one last."""
    found = [_row(member(sweep, i), combination) for i, combination in known_members(sweep).items()]
    return sorted(found, key=lambda row: (row.bits is None, row.bits or 0.0))


def _row(run: str, combination: Combination) -> Row:
    try:
        result = read_manifest(run, "train")["result"]
    except RoomError:
        return Row(run, combination, {}, {}, "not trained")
    figures = {name: result[name] for name in FIGURES if name in result}
    try:
        later = read_manifest(run, "generate")["result"]
        figures |= {name: later[name] for name in LATER if later.get(name) is not None}
    except RoomError:
        pass
    return Row(run, combination, figures, result.get("chosen", {}), _end(run))


def _end(run: str) -> str:
    """Return how a run's training ended, by the last row of its log."""
    lines = (paths.room(run, "train") / "metrics.jsonl").read_bytes().splitlines()
    ends = [row["reason"] for row in log_rows(lines) if row["event"] == "end"]
    return ends[-1] if ends else "broke off"


@dataclass(frozen=True)
class Effect:
    """How much a parameter mattered."""

    name: str
    share: float  # of the variance between runs that its values explain
    means: dict[str, float]  # value -> mean bits per character of the runs that have it


def effects(found: Iterable[Row]) -> list[Effect]:
    """Return the effect of each parameter on the bits per character, the largest first; only whole runs count.

    The share is η², the sum of squares between the means of its values over the total (Fisher 1925): of a whole grid
    the shares of all parameters and of their joint effects add up to 1, of draws they may overlap. Empty for less than
    two whole runs, or runs that are all alike.
    """
    whole = [row for row in found if row.whole and row.bits is not None]
    bits = [row.bits or 0.0 for row in whole]
    if len(whole) < 2 or len(set(bits)) < 2:
        return []
    mean = statistics.fmean(bits)
    total = sum((each - mean) ** 2 for each in bits)
    names = dict.fromkeys(name for row in whole for name in row.combination)
    found_effects = []
    for name in names:
        groups: dict[str, list[float]] = {}
        for row, each in zip(whole, bits, strict=True):
            groups.setdefault(str(row.combination.get(name, "–")), []).append(each)
        between = sum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups.values())
        means = {value: statistics.fmean(group) for value, group in groups.items()}
        found_effects.append(Effect(name, between / total, dict(sorted(means.items(), key=lambda pair: pair[1]))))
    return sorted(found_effects, key=lambda effect: -effect.share)


def differing(found: Iterable[Row]) -> list[str]:
    """Return the names of what rules chose differently in different runs, besides the sweep's own parameters."""
    every = [row.chosen for row in found if row.figures]
    names = dict.fromkeys(name for chosen in every for name in chosen)
    return [name for name in names if len({json.dumps(chosen.get(name)) for chosen in every}) > 1]


def header(found: list[Row]) -> list[str]:
    """Return the names of the table's columns."""
    swept = dict.fromkeys(name for row in found for name in row.combination)
    chosen = [name for name in differing(found) if name not in swept]
    figures = [name for name in (*FIGURES, *LATER) if any(name in row.figures for row in found)]
    return ["run", *swept, *chosen, *figures, "end"]


def table(found: list[Row]) -> list[list[Any]]:
    """Return the table's cells, "" where a run has none."""
    cells, names = [], header(found)
    for row in found:
        known = {**row.chosen, **row.combination, **row.figures, "run": row.run, "end": row.end}
        cells.append([known.get(name, "") for name in names])
    return cells


def write_csv(sweep: str) -> Path:
    """Write the table as runs/<sweep>/sweep.csv; return its path. It holds no times: the same runs, the same table."""
    found = rows(sweep)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header(found), *table(found)])
    path = paths.run_dir(sweep) / "sweep.csv"
    write_text(path, text.getvalue())
    return path
