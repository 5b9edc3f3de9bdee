"""Successive halving: which bits per character a run must have reached at a quarter and at half of its updates.

The asynchronous form (Li et al. 2020, ASHA): nobody waits for others. A run goes on at a rung while it belongs to the
better half of those that have come there before it; notebook 04 compares, see `train.milestones.early_stop`.
"""

import math
from collections.abc import Iterable

from helpers import paths
from helpers.files import json_lines

RUNGS = (0.25, 0.5)  # shares of a run


def rungs(earlier: Iterable[str]) -> list[list[float]]:
    """Return [share, bits per character] for each rung that one of these runs has reached."""
    reached = [curve(run) for run in earlier]
    found = []
    for share in RUNGS:
        bits = sorted(each for each in (at(share, validations) for validations in reached) if each is not None)
        if bits:
            # of the n earlier ones and itself the better half, rounded up, goes on
            found.append([share, bits[math.ceil((len(bits) + 1) / 2) - 1]])
    return found


def at(share: float, validations: list[tuple[float, float]]) -> float | None:
    """Return the best bits per character up to the first validation at a share of the run; None: it never came there.

    validations: (share of the updates, bits per character), in order.
    """
    best = math.inf
    for done, bits in validations:
        best = min(best, bits)
        if done >= share:
            return best
    return None


def curve(run: str) -> list[tuple[float, float]]:
    """Return (share of the updates, bits per character) of a run's validations; none before it has trained."""
    try:
        lines = (paths.room(run, "train") / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows = list(json_lines(lines))
    total = next((row["total_steps"] for row in reversed(rows) if row.get("total_steps")), 0)
    by_step = {
        row["step"]: row["bits_per_char"] for row in rows if row["event"] == "validation"
    }  # twice after a resume
    return [(step / total, bits) for step, bits in sorted(by_step.items())] if total else []
