"""A sweep file: parameters by name, each with a list of values; every combination of them is a run (grid search).

lr: [1.0e-3, 1.0e-2]
n_embd: [128, 256]
"""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

from helpers import paths
from helpers.files import write_text
from helpers.manifest import notebook_parameters
from helpers.run.parameters import Refused, load_yaml

MOST_RUNS = 1000  # of one sweep
MEMBERS = "sweep.json"

Combination = dict[str, Any]  # a value for each of the names


def read_grid(file: Path) -> dict[str, list]:
    """Return {parameter: values} of a sweep file; raises Refused for one that is no such thing."""
    try:
        grid = load_yaml(file)
    except OSError as error:
        raise Refused(f"--sweep: {file} cannot be read ({error.strerror})") from None
    if not isinstance(grid, dict) or not grid:
        raise Refused(f"{file.name}: expected lines like `lr: [1.0e-3, 1.0e-2]`")
    for name, values in grid.items():
        if not isinstance(name, str):
            raise Refused(f"{file.name}: {name!r} is no parameter; YAML reads on, off, yes and no as true or false")
        if name == "run":
            raise Refused(f"{file.name}: the runs of a sweep are numbered: NAME-1, NAME-2, …")
        if not isinstance(values, list) or not values:
            raise Refused(f"{file.name}: {name} needs a list of values, like `{name}: [{values}]`")
        if len({json.dumps(value, default=str) for value in values}) < len(values):
            raise Refused(f"{file.name}: {name} has a value twice")
    return grid


def combinations(grid: dict[str, list], draws: int = 0) -> list[Combination]:
    """Return all combinations of the values in the file's order, or `draws` of them (random search).

    Draws are the first of one shuffled list: more of them add runs, and keep those that there are. Raises Refused for
    more than MOST_RUNS. (Bergstra and Bengio 2012: where few parameters matter, draws find as much as the whole grid.)
    """
    total = math.prod(map(len, grid.values()))
    wanted = min(draws, total) if draws else total
    if wanted > MOST_RUNS:
        raise Refused(f"that makes {wanted:,} runs, and a sweep has {MOST_RUNS:,} at most: take some with --draws")
    if draws and total > 10**6:
        raise Refused(f"there are {total:,} combinations: leave values out until they are a million at most")
    numbers = list(range(total))
    if draws:
        random.Random(0).shuffle(numbers)
    every = list(itertools.product(*grid.values())) if total <= 10**6 else []
    return [dict(zip(grid, every[number], strict=True)) for number in numbers[:wanted]]


def last_stage(grid: dict[str, list]) -> int:
    """Return the place of the last of the six stages that has one of these parameters, at least that of 04."""
    stages = list(paths.STAGES)
    have = [i for i, stage in enumerate(stages) if notebook_parameters(stage).keys() & grid.keys()]
    return max([stages.index("train"), *have])


def in_words(combination: Combination) -> str:
    """Return a combination as people read it: lr 0.01 · n_embd 128."""
    return " · ".join(f"{name} {value}" for name, value in combination.items())


# ---- which run has which combination ----


def known_members(sweep: str) -> dict[int, Combination]:
    """Return {number: combination} of all runs that a sweep has had so far."""
    try:
        return {int(number): each for number, each in json.loads(_file(sweep).read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}


def number(sweep: str, wanted: list[Combination]) -> dict[int, Combination]:
    """Return {number: combination}: a combination that has a number keeps it, others get the next ones; noted on disk.

    Raises Refused where a run of such a name is there that the sweep did not make.
    """
    known = known_members(sweep)
    numbers = {_key(combination): i for i, combination in known.items()}
    new = [combination for combination in wanted if _key(combination) not in numbers]
    for i, combination in enumerate(new, max(known, default=0) + 1):
        if paths.run_dir(member(sweep, i)).exists():
            raise Refused(f"there is a run '{member(sweep, i)}' that this sweep did not make: choose another --run")
        numbers[_key(combination)] = i
        known[i] = combination
    if new:
        write_text(_file(sweep), json.dumps(known, ensure_ascii=False, indent=1) + "\n")
    return {numbers[_key(combination)]: combination for combination in wanted}


def member(sweep: str, i: int) -> str:
    """Return the name of a run of a sweep."""
    return f"{sweep}-{i}"


def _file(sweep: str) -> Path:
    return paths.run_dir(sweep) / MEMBERS


def _key(combination: Combination) -> str:
    return json.dumps(combination, sort_keys=True, ensure_ascii=False)
