"""Sweeps: ordinary runs NAME-1, NAME-2, …, one for each combination of some parameters, and a page about them.

Stage by stage: runs that were given the same parameters so far share a room, so a sweep over `lr` segments and
tokenizes once. What has finished is skipped, so the same command goes on where it was stopped or killed. A run that
fails does not stop the others.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from filelock import FileLock

from helpers import paths, report, speeds
from helpers.files import write_text
from helpers.parallel import cores
from helpers.run import halving, results, share
from helpers.run.execute import StageFailed, run_stage
from helpers.run.grid import Combination, in_words, known_members, member
from helpers.run.parameters import Refused
from helpers.run.unchanged import finished_unchanged
from helpers.run.watch import in_terminal

Values = dict[str, dict[str, Any]]  # {stage: {parameter: value}}, see `parameters.plan`
Environment = Mapping[str, str]
RUNGS_FILE = "rungs.json"  # in a sweep's folder: what each run was asked for, so that asking again changes nothing


@dataclass
class Sweep:
    """A sweep under way."""

    name: str
    members: dict[int, Combination]
    values: dict[int, Values]  # complete and checked, of all stages up to the last one that runs
    stages: list[str]  # that run
    halve: bool = False  # successive halving
    force: bool = False
    failed: dict[int, str] = field(default_factory=dict)  # run -> the message
    changed: set[int] = field(default_factory=set)  # runs that have a new room
    at_once: int = 1  # runs

    def run(self, places: list[Environment]) -> int:
        """Run all stages and write the page; return how many runs failed.

        places: the environment of the kernels of each of the runs that go at once: a GPU of its own, for example.
        """
        self.at_once = len(places)
        shared = speeds.environment(paths.run_dir(self.name))
        places = [{**place, **shared} for place in places]
        for stage in self.stages:
            self.run_stage(stage, places)
            if stage == "train" and stage != self.stages[-1]:
                self.write_page()
        for i in self.changed - set(self.failed):
            report.write_report(member(self.name, i))
        self.write_page()
        self.print_result()
        return len(self.failed)

    def run_stage(self, stage: str, places: list[Environment]) -> None:
        """Run a stage once for all runs that can share its room; each place takes the next one that waits."""
        waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for group in self.groups(stage):
            waiting.put(group)
        errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

        def work(place: Environment) -> None:
            while True:
                try:
                    group = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self.run_group(stage, group, place)
                except BaseException as error:  # it is raised again in the main thread
                    errors.put(error)
                    return

        if len(places) == 1:  # in the main thread, where Ctrl-C arrives
            work(places[0])
        else:
            threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in places]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if not errors.empty():
            raise errors.get()

    def groups(self, stage: str) -> list[list[int]]:
        """Return the runs that go on, those together that were given the same parameters up to this stage."""
        found: dict[str, list[int]] = {}
        for i, values in sorted(self.values.items()):  # an older run, which has its rooms, owns them
            if i not in self.failed:
                stages = list(values)[: list(values).index(stage) + 1]
                given = {each: {k: v for k, v in values[each].items() if k != "run"} for each in stages}
                found.setdefault(json.dumps(given, sort_keys=True, default=str), []).append(i)
        return list(found.values())

    def run_group(self, stage: str, group: list[int], place: Environment) -> None:
        """Run a stage for the first of these runs, and give its room to the others."""
        owner, *others = group
        if stage == "train" and self.halve:
            asked = self.rungs(owner)
            for i in group:
                self.values[i]["train"]["rungs"] = asked
        run = member(self.name, owner)
        if not self.force and finished_unchanged(run, stage, self.values[owner][stage]):
            words = "unchanged since it finished: skipped"
        else:
            name, values = self.begin_of_line(stage, owner), self.values[owner][stage]
            try:
                words = run_stage(run, stage, values, name, self.at_once == 1 and in_terminal(), place)
            except StageFailed as error:
                self.failed |= dict.fromkeys(group, str(error))
                print(error, flush=True)
                return
            self.changed.add(owner)
        for i in others:
            if self.force or not finished_unchanged(member(self.name, i), stage, self.values[i][stage]):
                share.adopt(run, member(self.name, i), stage)
                self.changed.add(i)
        self.say(stage, group, words)

    def rungs(self, i: int) -> list[list[float]]:
        """Return what a run is asked for at its rungs: by the runs before it, and the same when asked again."""
        file = paths.run_dir(self.name) / RUNGS_FILE
        with FileLock(file.with_name(f".{file.name}.lock")):  # with --only, each run has a process of its own
            known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if str(i) not in known:
                before = [member(self.name, j) for j in known_members(self.name) if j != i and j not in self.failed]
                known[str(i)] = halving.rungs(before)
                write_text(file, json.dumps(known, indent=1) + "\n")
            return known[str(i)]

    def begin_of_line(self, stage: str, i: int) -> str:
        """Return what a line about a stage of a run begins with."""
        return f"{paths.notebook(stage).stem:14}{member(self.name, i):{len(self.name) + 4}}"

    def say(self, stage: str, group: list[int], words: str) -> None:
        """Print a line about a stage of a run."""
        if len(group) > 1:
            words = f"{words}   for {len(group)} runs"
        elif stage == "train":
            words = f"{words}   {in_words(self.members[group[0]])}"
        print(f"{self.begin_of_line(stage, group[0])}{words}", flush=True)

    def write_page(self) -> None:
        """Write sweep.csv, and sweep.html by another process: matplotlib and torch stay out of this one."""
        results.write_csv(self.name)
        subprocess.run([sys.executable, "-m", "helpers.show.sweep", self.name], check=True, stdout=subprocess.DEVNULL)

    def print_result(self) -> None:
        """Print the best run, what mattered, and where the page is."""
        found = results.rows(self.name)
        best = found[0]
        if best.bits is not None:
            print(f"{'best':14}{best.run}: {best.bits:.4f} bits per character   {in_words(best.combination)}")
        for effect in results.effects(found):
            order = ", ".join(f"{value} {bits:.3f}" for value, bits in effect.means.items())
            print(f"{effect.name:14}explains {effect.share:.0%} of the variance: {order}")
        print(f"{'page':14}{paths.run_dir(self.name) / 'sweep.html'}", flush=True)


def places(jobs: int, devices: int) -> list[Environment]:
    """Return the environments of `jobs` kernels that run at once; 0: as many as there are groups of `devices` GPUs.

    A run's kernel sees only its own GPUs; with more jobs than groups, several runs share a group. Without a GPU one run
    goes at a time, or `jobs`, which share the cores. Raises Refused where a run would have no device.
    """
    if devices < 1:
        raise Refused(f"-p devices {devices}: a run needs 1 or more")
    gpus = visible_gpus()
    if len(gpus) >= devices:
        groups = [",".join(gpus[i : i + devices]) for i in range(0, len(gpus) - devices + 1, devices)]
        return [{"CUDA_VISIBLE_DEVICES": groups[i % len(groups)]} for i in range(jobs or len(groups))]
    if jobs < 2:
        return [{}]
    return [{"OMP_NUM_THREADS": str(max(1, cores() // jobs))} for _ in range(jobs)]


def visible_gpus() -> list[str]:
    """Return the names by which CUDA calls the GPUs that may be used; torch is asked in a process of its own."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name and not name.startswith("-")]  # -1: none
    count = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    return [str(i) for i in range(int(found.stdout))]
