"""The command line: run notebooks in order, each in a kernel of its own, then write the run's report.

python -m helpers.run                                     all six, on the built-in corpus
python -m helpers.run --run songci --corpus songci.txt    all six, on your own text
python -m helpers.run train generate -p epochs 3          two of them, with another number of epochs
python -m helpers.run tournament --run songci             a side door: an optional notebook on a run that exists
python -m helpers.run sweep lr.yaml --run songci          songci-1, songci-2, …: a run for each combination of values
python -m helpers.run parameters train                    what -p can set
python -m helpers.run refresh                             fresh outputs into notebooks/ itself
"""

import argparse
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # while the libraries load, Ctrl-C ends the process without a traceback; see `main`
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from helpers import paths
from helpers.files import Occupied
from helpers.manifest import no_run, read_parameters
from helpers.run.execute import StageFailed, refresh, run_stages
from helpers.run.parameters import Refused, choose_stages, plan_parameters
from helpers.run.sweep import run_sweep
from helpers.wording import let_console_replace, say


def _require_run(run: str) -> None:
    try:
        folder = paths.run_dir(run)
    except ValueError as error:
        raise Refused(str(error)) from None
    if not folder.is_dir():
        runs = sorted(each.name for each in paths.runs_dir().glob("*/"))
        raise Refused(no_run(run, runs))


def _run(asked: argparse.Namespace) -> int:
    stages = choose_stages(asked.stages)
    values = plan_parameters(stages, asked.run, asked.corpus, asked.presets, asked.settings)
    if not set(stages) & set(paths.STAGES):
        _require_run(asked.run)
    return 0 if run_stages(asked.run, values, asked.force, asked.lessons or None) else 130


def _parameters(asked: argparse.Namespace) -> int:
    for stage in choose_stages(asked.stages):
        print(f"{paths.notebook(stage).stem}")
        for name, each in read_parameters(stage).items():
            print(f"  {name:24}{each.default!r:12}  {each.meaning}".rstrip())
    return 0


def _refresh(asked: argparse.Namespace) -> int:
    refresh(choose_stages(asked.stages))
    return 0


def read_command_line(arguments: list[str]) -> argparse.Namespace:
    """Return what was asked; its `do` is the function that does it. Without a subcommand, `run` is meant."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m helpers.run", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(title="commands; `run` if none is named, for its options: run --help")

    def add(name: str, do: object, words: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(do=do)
        return command

    run = add("run", _run, "run the notebooks in order and write runs/NAME/report.html")
    sweep = add("sweep", run_sweep, "notebooks 01 to 04 for each combination of values, as trials of an Optuna study")
    listing = add("parameters", _parameters, "list the parameters of notebooks, and their defaults")
    fresh = add("refresh", _refresh, "write fresh outputs into notebooks/ itself")
    sweep.add_argument("file", type=Path, help="YAML, `lr: [1.0e-3, 1.0e-2]`: parameters with their values")
    for command in (run, listing, fresh):
        command.add_argument("stages", nargs="*", help=f"{' '.join(paths.STAGES)}; all six if none is named. Optional "
                             f"notebooks, on the rooms of a run that exists: {' '.join(paths.SIDE_DOORS)}")  # fmt: skip
    for command in (run, sweep):
        command.add_argument("--run", default="sample", metavar="NAME", help="name of the run: the folder under runs/")
        command.add_argument("--corpus", metavar="PATH", help="a text file, a folder, a pattern, an address")
        command.add_argument("--preset", action="append", default=[], metavar="NAME", dest="presets",
                             help="presets/NAME.yaml, or a YAML file; may be repeated, the later wins")  # fmt: skip
        command.add_argument("-p", nargs=2, action="append", default=[], metavar=("PARAMETER", "VALUE"),
                             dest="settings", help="set a parameter in every notebook that has it")  # fmt: skip
    run.add_argument("--lessons", action="store_true",
                     help="also run what only teaches, which a run of your own text leaves out")  # fmt: skip
    for command in (run, fresh):
        command.add_argument("--language", choices=("en", "zh"), default=paths.language(), help="of the notebooks")
    run.add_argument("--force", action="store_true", help="run a stage even if nothing changed since it finished")
    if arguments[:1] in (["-h"], ["--help"]):
        parser.parse_args(arguments)
    named = arguments[:1] and arguments[0] in commands.choices
    command = commands.choices[arguments[0] if named else "run"]
    return command.parse_intermixed_args(arguments[1:] if named else arguments)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, do it, and return the exit code: 0 done, 1 a notebook failed, 2 refused, 130 stopped."""
    asked = read_command_line(sys.argv[1:] if arguments is None else arguments)
    let_console_replace()
    # the notebooks read it: without a browser a dashboard prints lines instead of drawing widgets
    os.environ["HEADLESS"] = "1"
    os.environ["COURSE_LANGUAGE"] = getattr(asked, "language", paths.language())
    os.environ["TQDM_DISABLE"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # for the kernels; the Makefile says why
    try:
        return asked.do(asked)
    except (Refused, Occupied) as error:
        print(say("nothing was run: {}", error), file=sys.stderr)
        return 2
    except StageFailed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that may not be written to
        where = "" if error.filename else say(", in {}", paths.runs_dir())  # papermill's writing names no file
        print(say("stopped: {}{}; once that is mended, the same command goes on", error, where), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        anew = asked.do is _refresh or asked.do is _run and asked.force
        print(say("stopped" if anew else "stopped; the same command goes on with this stage"), file=sys.stderr)
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
