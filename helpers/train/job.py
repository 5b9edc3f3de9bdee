"""One training run of notebook 04: prepare its room, train, be watched, be stopped."""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from helpers import parallel, paths
from helpers.device import pick_device, pick_precision
from helpers.files import write_text
from helpers.manifest import open_room
from helpers.train import trainer
from helpers.train.plan import load_windows, memory_needed, model_from_parameters, plan
from helpers.vocab import tokenizer

# parameters that change how a run is watched or where it runs, not what it computes: they may differ on resume
_NOT_IDENTITY = (
    "run log_step eval_step sample_step checkpoint_step device devices parallel restarts compile resume recipe_seconds"
).split()
TRIAL_WINDOWS = 256  # of the validation text, for a trial of seconds


def _identity(parameters: dict, tokens_manifest: dict) -> str:
    kept = {name: value for name, value in sorted(parameters.items()) if name not in _NOT_IDENTITY}
    cut = [tokens_manifest["result"][name] for name in ("n_ctx", "stride", "packing")]
    text = json.dumps([kept, tokens_manifest["outputs"], cut], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def prepare(parameters: dict) -> None:
    """Make the model room ready: keep what can be resumed, put a finished or different model aside.

    A model of other data or parameters (or any, with resume=False) is moved to `model-previous/`, so that a new
    run never destroys the last one.
    """
    folder = paths.room(parameters["run"], "train")
    identity = _identity(parameters, open_room(parameters["run"], "tokenize"))
    file = folder / "identity.txt"
    same = file.is_file() and file.read_text("utf-8") == identity
    if folder.exists() and not (parameters["resume"] and same):
        previous = folder.with_name("model-previous")
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
        print(f"the model that was here is kept in {previous.name}/")
    write_text(file, identity)
    write_text(folder / "parameters.json", json.dumps(parameters, ensure_ascii=False, indent=1))
    (folder / "STOP").unlink(missing_ok=True)


def run_job(parameters: dict, stop: Callable[[], bool] = lambda: False) -> dict:
    """Train as notebook 04's `parameters` say, in this process, and return the run's figures.

    The room must be prepared. In a process group this process does its share. `stop` is asked after each update.
    """
    return _fit(parameters, paths.room(parameters["run"], "train"), stop)


def trial(parameters: dict, seconds: float, folder: Path) -> dict:
    """Train for so long in a folder of its own, to compare recipes; the run's model is left alone.

    It is judged on the first TRIAL_WINDOWS windows of the validation text.
    """
    short = parameters | {"max_minutes": seconds / 60, "eval_step": 0, "sample_step": 0, "log_step": 1}
    return _fit(short, folder, judged_by=TRIAL_WINDOWS)


def _fit(
    parameters: dict, folder: Path, stop: Callable[[], bool] = lambda: False, judged_by: int | None = None
) -> dict:
    device = pick_device(parameters["device"])
    run = parameters["run"]
    manifest = open_room(run, "tokenize")
    tokens = manifest["result"]
    tok = tokenizer.load(paths.room(run, "vocab"))
    train, val = load_windows(run, tokens, tok.pad_token_id)
    model = model_from_parameters(parameters, tok, tokens["n_ctx"])
    precision = pick_precision(parameters["precision"], device)
    names = (
        "epochs max_minutes batch_size gradient_accumulation optimizer lr beta2 eps warmup_steps schedule "
        "final_lr_fraction weight_decay max_grad_norm compile seed log_step eval_step sample_step checkpoint_step"
    ).split()
    return trainer.fit(
        model,
        train,
        val.first(judged_by) if judged_by else val,
        folder,
        tok,
        precision=precision,
        parallel=_parallel(parameters, model, precision, tokens["n_ctx"], device),
        device=device,
        chars_per_token={"train": tokens["chars_per_token"], "val": tokens["val_chars_per_token"]},
        identity=_identity(parameters, manifest),
        stop=stop,
        **{name: parameters[name] for name in names},
    )


def _parallel(parameters: dict, model, precision: str, n_ctx: int, device: torch.device) -> str:
    """Return "ddp" or "fsdp"; "auto" is fsdp where a whole copy for each process would not fit into a GPU's memory."""
    if parameters["parallel"] != "auto":
        return parameters["parallel"]
    if device.type != "cuda":
        return "ddp"
    total = torch.cuda.get_device_properties(device).total_memory  # the same in all processes, unlike what is free
    return "fsdp" if memory_needed(model, parameters, precision, n_ctx) > 0.8 * total else "ddp"


class Training:
    """A run under way in a worker thread: what is needed to watch it, to stop it, and to wait for it."""

    def __init__(self, parameters: dict, job):
        self.folder = paths.room(parameters["run"], "train")
        self.metrics_path = self.folder / "metrics.jsonl"
        self.total_steps = plan(parameters)["total_steps"]
        self.result: dict | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(job, parameters), name="training", daemon=True)
        self._thread.start()

    def _work(self, job, parameters: dict) -> None:
        try:
            self.result = job(parameters)
        except BaseException as error:  # it is raised again in the thread that waits
            self._error = error

    @property
    def running(self) -> bool:
        """Say whether the run is still under way."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the run to save and end after the update it is in; asking twice does no harm."""
        if self.running:
            (self.folder / "STOP").touch()

    def wait(self, timeout: float | None = None) -> dict | None:
        """Wait until the run has ended (or `timeout` seconds) and return its figures; its error is raised here."""
        self._thread.join(timeout)
        if self._error:
            raise self._error
        return self.result


def start(parameters: dict, job=run_job) -> Training:
    """Prepare the model room and train in a worker thread of this process; return at once."""
    plan(parameters)
    prepare(parameters)
    return Training(parameters, job)


class Signals:
    """SIGTERM and Ctrl-C ask for the end of the run; a second one ends the process at once."""

    def __init__(self):
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame) -> None:
        self.number = number
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)

    def asked(self) -> bool:
        """Say whether a signal has come."""
        return self.number > 0


def leave_group(code: int) -> NoReturn:
    """Leave the process group, then end this process with an exit code.

    At once: gloo's threads may still hold tensors, and Python's own clearing up then aborts, one time in fifteen.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Train from a shell: `[torchrun …] -m helpers.train PARAMETERS.json`, an object of notebook 04's parameters.

    Ends with 0, with 143 or 130 after SIGTERM or Ctrl-C, else with 1 and a reason.
    """
    if len(sys.argv) != 2:
        sys.exit("usage: python -m helpers.train PARAMETERS.json  (notebook 04 writes runs/NAME/model/parameters.json)")
    signals = Signals()
    parameters = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    parameters["devices"] = int(os.environ.get("WORLD_SIZE", 1))
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
        parameters["resume"] = True  # started again after a failure: what was saved is what this is for
    if "WORLD_SIZE" in os.environ:  # torchrun started us
        device = pick_device(parameters["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:  # by itself each process would take all cores, and how many it takes changes the last digits
            here = int(os.environ.get("LOCAL_WORLD_SIZE", parameters["devices"]))
            torch.set_num_threads(max(1, parallel.cores() // here))
        # the launcher's store outlives a restart, with addresses of dead processes: each attempt has its own keys
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    first = trainer.world()[0] == 0
    if first:
        plan(parameters)
        prepare(parameters)
    if dist.is_initialized():
        dist.barrier()
    launcher = os.getppid()  # if it is killed, nobody would ever end this process: then it saves and ends by itself
    try:
        figures = run_job(parameters, lambda: signals.asked() or os.getppid() != launcher)
    except trainer.Diverged as error:
        sys.exit(str(error))
    if first and "val_loss" in figures:
        write_text(paths.room(parameters["run"], "train") / "figures.json", json.dumps(figures))
    code = 128 + signals.number if signals.number else 0
    if dist.is_initialized():
        leave_group(code)
    sys.exit(code)
