"""Measured speeds in a file that the runs of a sweep share, so that only what the sweep varies differs between them.

Each run would measure a little differently, and where a rule has to choose between two shapes that are nearly equal,
one run would get the other one.
Knows no model and no torch.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock

from helpers.files import write_text

VARIABLE = "CHINESE_GPT_SPEEDS"  # in the environment of a sweep's kernels


def environment(folder: Path) -> Mapping[str, str]:
    """Return what the kernels of a sweep are started with; the file lies in its folder."""
    return {VARIABLE: str(folder.resolve() / "speeds.json")}


def remember(key: str, measure: Callable[[], float]) -> float:
    """Return what a run of this sweep measured under `key`; if none has, or it is no sweep, `measure()`.

    Runs that go at once wait for the one that measures.
    """
    if VARIABLE not in os.environ:
        return measure()
    file = Path(os.environ[VARIABLE])
    with FileLock(file.with_name(f".{file.name}.lock")):
        known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        if key in known:
            return known[key]
        value = measure()
        if value:  # 0: memory ran out, which a neighbour on the same GPU may have caused
            write_text(file, json.dumps(known | {key: value}, indent=1) + "\n")
        return value
