"""The command line: run notebooks in order, each in a kernel of its own, then write the run's report.

python -m helpers.run                                     all six, on the built-in corpus
python -m helpers.run --run songci --corpus songci.txt    all six, on your own text
python -m helpers.run train generate -p epochs 3          two of them, with another number of epochs
python -m helpers.run tournament --run songci             a side door: an optional notebook on a run that exists
python -m helpers.run --sweep lr.yaml --run songci        runs songci-1, songci-2, …: one for each combination
python -m helpers.run verify --run songci                 do all files of the run still fit together?
"""

import argparse
import os
import sys
from pathlib import Path

from helpers import paths
from helpers.files import Occupied
from helpers.run.execute import StageFailed, run_stages
from helpers.run.grid import combinations, last_stage, member, number, read_grid
from helpers.run.model_config import say_vocab_size
from helpers.run.parameters import Refused, choose_stages, plan
from helpers.run.refresh import refresh
from helpers.run.sweep import Sweep, places
from helpers.run.verify import print_verdict
from helpers.wording import let_console_replace


def _require_run(run: str) -> None:
    try:
        folder = paths.run_dir(run)
    except ValueError as error:
        raise Refused(str(error)) from None
    if not folder.is_dir():
        raise Refused(f"there is no run '{run}' in {paths.runs_dir()}")


def _say_what_is_not_kept(presets: list[str]) -> None:
    for preset in presets:
        if preset.endswith(".json") and (said := say_vocab_size(Path(preset))):
            print(said, flush=True)


def run_sweep(asked: argparse.Namespace) -> int:
    """Check everything, run the sweep, and return the exit code."""
    grid = read_grid(asked.sweep)
    wanted = combinations(grid, asked.draws)
    # without stages: as far as a parameter reaches, and at least to the model
    reached = list(paths.STAGES)[: last_stage(grid) + 1]
    stages = choose_stages(asked.stages or reached)
    # also what does not run today has its parameters: runs share what they were given alike up to there
    order = list(paths.NOTEBOOKS)
    last = max(order.index(stage) for stage in (*stages, *reached))
    every = [stage for stage in order[: last + 1] if stage in paths.STAGES or stage in stages]
    for combination in wanted:  # before a number is given
        plan(every, asked.run, asked.corpus, asked.presets, asked.settings, combination)
    members = number(asked.run, wanted)
    if asked.only:
        if asked.only not in members:
            raise Refused(f"--only {asked.only}: the runs are numbered {', '.join(map(str, members))}")
        members = {asked.only: members[asked.only]}
    values = {
        i: plan(every, member(asked.run, i), asked.corpus, asked.presets, asked.settings, combination)
        for i, combination in members.items()
    }
    _say_what_is_not_kept(asked.presets)
    print(f"{len(members)} runs: {', '.join(f'{name} {values}' for name, values in grid.items())}", flush=True)
    devices = max(each.get("train", {}).get("devices", 1) for each in values.values())
    sweep = Sweep(asked.run, members, values, stages, asked.halving, asked.force)
    return 1 if sweep.run(places(asked.jobs, devices)) else 0


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, run, and return the exit code: 0 done, 1 a notebook failed, 2 refused, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.run", description="Run the notebooks in order and write runs/<name>/report.html.",
        epilog="Instead of stages: `verify` checks that all files of a run still fit together; `refresh [stages…]` "
        "writes fresh outputs into notebooks/ itself.",
    )  # fmt: skip
    parser.add_argument("stages", nargs="*", help=f"{' '.join(paths.STAGES)}; all six if none is named. Optional "
                        f"notebooks, on the rooms of a run that exists: {' '.join(paths.SIDE_DOORS)}")  # fmt: skip
    parser.add_argument("--run", default="sample", metavar="NAME", help="name of the run: the folder under runs/")
    parser.add_argument(
        "--corpus", metavar="PATH", help="a text file, a folder, a pattern, an address; see notebook 01"
    )
    parser.add_argument(
        "--preset", action="append", default=[], metavar="NAME", dest="presets", help="presets/NAME.yaml, a YAML file "
        "or GPT-2's model_config.json; may be repeated, the later over the earlier",
    )  # fmt: skip
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("PARAMETER", "VALUE"), dest="settings",
                        help="set a parameter in every notebook that has it; may be repeated")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="run a stage even if nothing changed since it finished")
    sweep = parser.add_argument_group("sweeps")
    sweep.add_argument(
        "--sweep", type=Path, metavar="FILE", help="YAML, `lr: [1.0e-3, 1.0e-2]`: a run for each combination, NAME-1, "
        "NAME-2, …, and runs/NAME/sweep.html; without stages as far as these parameters reach, at least to 04",
    )  # fmt: skip
    sweep.add_argument("--draws", type=int, default=0, metavar="N", help="only N combinations, drawn at random")
    sweep.add_argument("--only", type=int, default=0, metavar="N", help="only run NAME-N of it: for a job scheduler")
    sweep.add_argument("--halving", action="store_true", help="end a run early that is behind at a quarter or half")
    sweep.add_argument("--jobs", type=int, default=0, metavar="N", help="runs at once; without it one for each GPU")
    asked = parser.parse_intermixed_args(arguments)

    let_console_replace()
    # the notebooks read it: without a browser a dashboard prints lines instead of drawing widgets
    os.environ["HEADLESS"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # for the kernels; the Makefile says why
    try:
        if asked.stages[:1] in (["verify"], ["refresh"]):
            others = {
                "--corpus": asked.corpus, "--preset": asked.presets, "-p": asked.settings, "--force": asked.force,
                "--sweep": asked.sweep, "--draws": asked.draws, "--only": asked.only, "--halving": asked.halving,
                "--jobs": asked.jobs,
            }  # fmt: skip
            if asked.stages[0] == "refresh":
                others["--run"] = asked.run != parser.get_default("run")
            for flag in [flag for flag, given in others.items() if given]:
                raise Refused(f"{asked.stages[0]} takes no {flag}")
        if len(asked.stages) > 1 and "verify" in asked.stages:
            raise Refused("verify stands alone: it checks all rooms of a run")
        if asked.stages == ["verify"]:
            _require_run(asked.run)
            return print_verdict(asked.run)
        if min(asked.draws, asked.only, asked.jobs) < 0:
            raise Refused("--draws, --only and --jobs are numbers from 1 on")
        if asked.sweep:
            return run_sweep(asked)
        if asked.draws or asked.only or asked.halving or asked.jobs:
            raise Refused("--draws, --only, --halving and --jobs belong to --sweep FILE")
        if asked.stages[:1] == ["refresh"]:
            refresh(choose_stages(asked.stages[1:]))
        else:
            stages = choose_stages(asked.stages)
            values = plan(stages, asked.run, asked.corpus, asked.presets, asked.settings)
            if not set(stages) & set(paths.STAGES):
                _require_run(asked.run)
            _say_what_is_not_kept(asked.presets)
            run_stages(asked.run, values, asked.force)
    except (Refused, Occupied) as error:
        print(f"nothing was run: {error}", file=sys.stderr)
        return 2
    except StageFailed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written to
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        anew = asked.force or asked.stages[:1] == ["refresh"]
        print("stopped" if anew else "stopped; the same command goes on with this stage", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
