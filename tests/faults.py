"""Child processes for the tests of faults, and the small run that is broken in them.

A child is forked from a server process that has the libraries loaded and nothing else begun: it starts in
milliseconds, is a process of its own, and can be killed like any other.
"""

import functools
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import models
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from helpers.tokens.windows import Windows
from helpers.train import checkpoint, trainer
from helpers.train.distributed import leave_group, world

FULL = os.environ.get("FAULTS") == "full"  # `make test-faults`: the counts that were promised
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["helpers.train.job", "torch.utils.tensorboard", "transformers.models.gpt2.modeling_gpt2",
     "transformers.models.llama.modeling_llama"]
)  # fmt: skip


# ---------------------------------------------------------------- children


class Children:
    """The processes of one job, by rank."""

    def __init__(self, function, *args, world: int = 1, env: dict | None = None):
        self._notes = tempfile.TemporaryDirectory(prefix="faults-")
        self.notes = Path(self._notes.name)
        self.processes = [
            _SERVER.Process(target=_child, args=(rank, world, str(self.notes), env or {}, function, args), daemon=True)
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def wait(self, timeout: float = 240) -> list[int]:
        """Return the exit codes, by rank; kill what is left after `timeout` seconds, and fail."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0, deadline - time.monotonic()))
        late = [process for process in self.processes if process.is_alive()]
        self.kill()
        assert not late, f"{len(late)} of {len(self.processes)} processes did not end within {timeout} s: {self.said()}"
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        """Kill −9 all that still run, and wait until they are gone."""
        for process in self.processes:
            process.kill()
            process.join()

    def said(self) -> str:
        """Return what the children wrote on their error streams."""
        return "\n".join(file.read_text("utf-8", "replace") for file in sorted(self.notes.glob("*.err")))

    def results(self, timeout: float = 240) -> list:
        """Return what the function returned, by rank (JSON); fail with what was said if a process failed."""
        codes = self.wait(timeout)
        assert not any(codes), f"exit codes {codes}\n{self.said()}"
        return [json.loads((self.notes / f"{rank}.json").read_text("utf-8")) for rank in range(len(self.processes))]


def run(function, *args, world: int = 1, timeout: float = 240, env: dict | None = None) -> list:
    """Call a function of a module in `world` processes of one gloo group; return what each returned."""
    return Children(function, *args, world=world, env=env).results(timeout)


def _child(rank: int, size: int, notes: str, env: dict, function, args: tuple) -> None:
    with open(Path(notes, f"{rank}.err"), "wb", buffering=0) as errors:
        os.dup2(errors.fileno(), 2)
        os.dup2(errors.fileno(), 1)
        sys.stderr, sys.stdout = open(2, "w", closefd=False, buffering=1), open(1, "w", closefd=False, buffering=1)
        os.environ.update(env)
        torch.set_num_threads(1)
        trainer.machine.matmul_rate = lambda *_: 1e12  # it only fills a column of the log, and takes seconds in fp16
        if size > 1 and "WORLD_SIZE" not in env:  # with it, the function makes its group itself
            dist.init_process_group("gloo", init_method=f"file://{notes}/store", rank=rank, world_size=size)
        elif size > 1:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        try:
            answer = function(*args)
        except BaseException:
            traceback.print_exc()
            raise
        Path(notes, f"{rank}.json").write_text(json.dumps(answer), "utf-8")
        if dist.is_initialized():
            leave_group(0)


# ---------------------------------------------------------------- the run that is broken


class Seen(Windows):
    """Windows that note which of them were asked for, a line a micro-batch."""

    note: Path | None = None

    def batch(self, indices):
        if self.note:
            with open(self.note, "a", encoding="ascii") as file:
                file.write(json.dumps([int(i) for i in indices]) + "\n")
        return super().batch(indices)


# checkpoints often, three epochs; `identity` as a run with rooms has it
DEFAULTS = dict(epochs=3, gradient_accumulation=1, checkpoint_step=2, identity="a")


def model_of(seed: int = 0, dtype: str = "float32", dropout: float = 0.1, **shape):
    """Return the small model, with dropout."""
    return models.tiny(seed, getattr(torch, dtype), dropout=dropout, **shape)


def fit(folder, shape=None, *, model=None, stop_after=0, stop=None, keep=2, size=200, **changes) -> dict:
    """Train the small run in this process, as far as `stop_after` updates (0: to its end); return its figures.

    `stop` is asked with the number of the update.
    """
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    train = Seen(models.Numbers(size), 8, 8, models.PAD)
    rank, _ = world()
    train.note = folder / f"seen-{rank}.jsonl"
    asked = []

    def stop_now() -> bool:
        asked.append(1)
        return len(asked) == stop_after or bool(stop and stop(len(asked)))

    checkpoint.save = functools.partial(checkpoint.save, keep=keep)  # this process is one test's own
    model = model or model_of(**(shape or {}))
    with open(train.note, "a", encoding="ascii") as file:
        file.write("null\n")  # a session begins
    return models.fit(folder, model, train=train, **(DEFAULTS | changes), stop=stop_now)


def job(folder, shape: dict, changes: dict) -> dict:
    """`fit` in the form that a child can be asked for."""
    return fit(folder, shape, **changes)


# ---------------------------------------------------------------- what is left of it


def seen(folder, rank: int = 0) -> list[list]:
    """Return the micro-batches' window numbers, a list a session."""
    sessions = []
    for line in (Path(folder) / f"seen-{rank}.jsonl").read_text("ascii").splitlines():
        if line == "null":
            sessions.append([])
        else:
            sessions[-1].append(json.loads(line))
    return sessions


def digest(file: Path) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def final(folder) -> str:
    """Return the SHA-256 of the weights of final_model."""
    return digest(Path(folder) / "final_model" / "model.safetensors")


def newest(folder) -> Path:
    return max((Path(folder) / "checkpoints").glob("step-*"))


def everything(folder, step: int) -> dict:
    """Return what must be equal bit for bit of a checkpoint: weights, moments, scaler, rates, position; no times."""
    path = Path(folder) / "checkpoints" / f"step-{step:08d}"
    state = json.loads((path / "state.json").read_text("utf-8"))
    for name in ("seconds", "updating", "validating", "in_epoch", "best"):  # a run in a hurry does not validate
        state["progress"].pop(name)
    state.pop("val_loss")
    return state | {name: digest(path / name) for name in ("model.safetensors", "optimizer.safetensors")}


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "final_model" / "model.safetensors")


def debris(folder) -> list[str]:
    """Return the names of half-written or put-aside folders anywhere in a run's folder."""
    return [str(path) for path in Path(folder).rglob(".*") if path.name.endswith((".part", ".old"))]


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)
