"""One training run of notebook 04: prepare its room, train in a thread or from a shell, watch it, stop it.

Several processes are started by torchrun's own launcher: it gives each its rank, and when one fails it ends them all
and starts them again from the last checkpoint. The same from a shell or on a cluster:
`torchrun --nproc-per-node 8 --max-restarts 3 -m helpers.train runs/NAME/model/parameters.json`.
Knows no training loop.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from helpers import paths
from helpers.device import pick_device, release_threads
from helpers.files import Occupied, fingerprint, known_sha256, occupied, write_text
from helpers.manifest import RoomError, open_room, write_manifest
from helpers.train.checkpoint import BadCheckpoint, list_checkpoints
from helpers.train.distributed import join_group, leave_group, world
from helpers.train.initial import model_from_settings
from helpers.train.milestones import Diverged
from helpers.train.plan import load_windows, plan_run
from helpers.train.rules import decide
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.tokenizer import load_tokenizer

# answers that a validation scores, of a longer text spread over it: their mean is known to about 0.01 nats, and no
# run spends its time on being judged
JUDGED = 150_000


def _identity(settings: TrainSettings) -> str:
    tokens = open_room(settings.run, "tokenize")
    cut = [tokens["result"][name] for name in ("n_ctx", "stride", "packing")]
    return fingerprint(settings.identity(), tokens["outputs"], cut, *digests(settings.pretrained_model))


def digests(pretrained_model: str) -> list[str]:
    """Return the digests of a folder's model, which may be another one by now; a name of the Hub has none."""
    folder, patterns = Path(pretrained_model), ("config.json", "*.safetensors", "*.bin")
    found = [file for each in patterns for file in sorted(folder.glob(each))] if pretrained_model else []
    return [known_sha256(file) for file in found]


def prepare_room(settings: TrainSettings) -> None:
    """Make the model room ready, see `claim`."""
    folder = paths.room(settings.run, "train")
    claim(folder, _identity(settings), settings.resume)
    write_text(folder / "parameters.json", json.dumps(dataclasses.asdict(settings), ensure_ascii=False, indent=1))


def finish_room(settings: TrainSettings, parameters: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a training that has ended, with its figures, and return it."""
    tokens, vocab, model = (paths.room(settings.run, stage) for stage in ("tokenize", "vocab", "train"))
    return write_manifest(
        settings.run,
        "train",
        parameters=parameters,
        inputs=[*tokens.glob("*.bin"), vocab / "tokenizer.json"],
        outputs=sorted((model / "final_model").iterdir()),
        result=figures,
        seed=settings.seed,
    )


def say_beforehand(settings: TrainSettings) -> str:
    """Return what a training will do with the models that the run has, see `foresee`."""
    return foresee(paths.room(settings.run, "train"), _identity(settings), settings.resume)[2]


def foresee(folder: Path, identity: str, resume: bool) -> tuple[Path | None, Path | None, str]:
    """Return what `claim` will do: which folder's training goes on, where the room's model will be kept, and in words.

    A training goes on if all that decides its result is the same (`identity`), in the room or in `…-previous/`,
    `…-previous-2/`, …: these hold what has made way, and nothing there is ever deleted. Without `resume`, none does.
    """
    kept = sorted(folder.parent.glob(f"{folder.name}-previous*"), key=_updates, reverse=True)
    trained = next(folder.rglob("*.safetensors"), None)
    files = [place / "identity.txt" for place in ([folder, *kept] if trained else [*kept, folder]) if resume]
    own = next((file.parent for file in files if file.is_file() and file.read_text("utf-8") == identity), None)
    if own == folder:
        return folder, None, f"the training in {folder.name}/ goes on after update {_updates(folder):,}"
    words, aside = [f"a new training begins in {folder.name}/"], None
    if own:
        words = [f"the model in {own.name}/ has these settings: its run goes on after update {_updates(own):,}"]
    if trained:
        names = ["previous", *(f"previous-{number}" for number in range(2, len(kept) + 3))]  # one of them is free
        aside = next(place for name in names if not (place := folder.with_name(f"{folder.name}-{name}")).exists())
        words.append(f"the model of {_updates(folder):,} updates that is there now is kept in {aside.name}/")
    return own, aside, "; ".join(words)


def _updates(folder: Path) -> int:
    """Return after how many updates the newest checkpoint in a folder was taken; 0 without any."""
    return max((int(place.name.removeprefix("step-")) for place in list_checkpoints(folder / "checkpoints")), default=0)


def claim(folder: Path, identity: str, resume: bool) -> None:
    """Make a folder ready for a training, and say which models change places, see `foresee`; raises Occupied.

    What an attempt left that failed before it had any weights is deleted, and so is a file STOP: it asked an earlier
    training to end.
    """
    with keep_for_training(folder):
        own, aside, words = foresee(folder, identity, resume)
        if own != folder:
            if own or aside:
                print(words, flush=True)
            if aside:  # killed after this line, the next start finds each model by its identity, and an empty place
                folder.rename(aside)
            elif folder.exists():
                shutil.rmtree(folder)
            if own:
                own.rename(folder)
        write_text(folder / "identity.txt", identity)
        (folder / "STOP").unlink(missing_ok=True)


def keep_for_training(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keep a folder for one training run, see `files.occupied`; raises Occupied."""
    return occupied(folder, f"Wait until it has ended, or end it (`touch {folder / 'STOP'}` lets it save first).")


def run_training(settings: TrainSettings, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Train in this process, in a group its share, and return the run's figures; its room must be prepared."""
    tokens = open_room(settings.run, "tokenize")["result"]
    tokenizer = load_tokenizer(paths.room(settings.run, "vocab"))
    train, val = load_windows(settings.run, tokens, tokenizer.pad_token_id)
    folder = paths.room(settings.run, "train")
    with keep_for_training(folder) if world()[0] == 0 else contextlib.nullcontext():
        return Trainer(
            model_from_settings(settings, tokenizer, tokens["n_ctx"]),
            train,
            val.spread(JUDGED),
            settings,
            folder,
            tokenizer,
            chars_per_token={"train": tokens["chars_per_token"], "val": tokens["val_chars_per_token"]},
            identity=_identity(settings),
            stop=stop,
        ).run()


class Training:
    """A run under way in a worker thread: watch it by its files, stop it, wait for it."""

    def __init__(self, folder: Path, work: Callable[[], dict[str, Any]], total_steps: int):
        self.folder = folder
        self.metrics_path = folder / "metrics.jsonl"
        self.total_steps = total_steps
        self._figures: Future[dict[str, Any]] = Future()
        release_threads()  # of the thread that from now on only watches
        threading.Thread(target=self._work, args=(work,), name="training", daemon=True).start()

    def _work(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            self._figures.set_result(work())
        except BaseException as error:  # it is raised again in the thread that waits
            self._figures.set_exception(error)

    @property
    def running(self) -> bool:
        """Return whether the run is still under way."""
        return not self._figures.done()

    def stop(self) -> None:
        """Ask the run to save and end after the update it is in; asking twice does no harm."""
        if self.running:
            (self.folder / "STOP").touch()

    def wait(self) -> dict[str, Any]:
        """Wait until the run has ended and return its figures; raise its error here."""
        return self._figures.result()


def start_training(settings: TrainSettings) -> Training:
    """Prepare the model room and train, in a thread of this process or in `settings.devices` others; return at once."""
    total_steps = plan_run(settings)["total_steps"]
    prepare_room(settings)
    job = launch_training if settings.devices > 1 else run_training
    return Training(paths.room(settings.run, "train"), lambda: job(settings), total_steps)


def launch_training(settings: TrainSettings) -> dict[str, Any]:
    """Train in `settings.devices` processes on this machine and return the run's figures; its room must be prepared.

    If a process fails, all are started again, `settings.restarts` times at most; then RuntimeError.
    """
    room = paths.room(settings.run, "train")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=settings.devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=settings.restarts,
        monitor_interval=0.5,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "helpers.train", "--prepared", str(room / "parameters.json"))
    except ChildFailedError as error:
        raise RuntimeError(
            f"one of the {settings.devices} training processes failed; its own message is above. "
            f"Started again, the run goes on from the last checkpoint in {room}."
        ) from error
    return json.loads((room / "figures.json").read_text("utf-8"))


# ---- from a shell ----


class StopSignals:
    """SIGTERM and Ctrl-C ask the run to end; a second one ends the process at once."""

    def __init__(self) -> None:
        self.number = 0  # of the signal that came
        signal.signal(signal.SIGTERM, self._receive)
        signal.signal(signal.SIGINT, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _prepared(file: Path, room_is_ready: bool) -> TrainSettings:
    """Return the settings that a file of parameters gives, when this process's group and the run's room are ready."""
    # 1. the settings
    parameters = json.loads(file.read_text("utf-8"))
    if not isinstance(parameters, dict):
        raise ValueError("expected an object of notebook 04's parameters")
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
        parameters["resume"] = True  # started again after a failure: continue from what was saved
    settings = TrainSettings.from_parameters(parameters)
    if settings.devices not in (1, processes):
        raise ValueError(
            f"devices is {settings.devices}, but {processes} process(es) were started. Start so many with "
            "torchrun --nproc-per-node, or set devices to 1 for as many as there are"
        )
    settings = dataclasses.replace(settings, devices=processes)
    # 2. the process group, and the room, made ready by its first process
    if "WORLD_SIZE" in os.environ:  # torchrun started us
        join_group(pick_device(settings.device))
    if world()[0] == 0 and not room_is_ready:
        settings = decide(settings).settings
        plan_run(settings)
        prepare_room(settings)
    if dist.is_initialized():
        dist.barrier()
    return decide(settings).settings  # as the first process decided and kept it


def train_from_shell() -> None:
    """Train as `[torchrun …] -m helpers.train PARAMETERS.json` asks; end the process.

    Its code is 0, after SIGTERM or Ctrl-C 143 or 130, else 1 with a reason, 2 for a wrong command.
    """
    # 1. what is asked
    parser = argparse.ArgumentParser(prog="python -m helpers.train")
    parser.add_argument(
        "file", metavar="PARAMETERS.json", type=Path,
        help="an object of notebook 04's parameters; the notebook writes runs/NAME/model/parameters.json",
    )  # fmt: skip
    # by `launch_training`: a STOP in the room is meant for this run
    parser.add_argument("--prepared", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    # 2. the run; if torchrun is killed, nothing else would end this process: it saves and ends by itself. When a shell
    # goes, what it started with nohup stays
    signals, launcher = StopSignals(), os.getppid() if "WORLD_SIZE" in os.environ else 0
    try:
        settings = _prepared(asked.file, asked.prepared)
        figures = run_training(settings, lambda: signals.number > 0 or launcher > 0 and os.getppid() != launcher)
    except (RoomError, Occupied, Diverged, BadCheckpoint, ValueError, TypeError, OSError, MemoryError) as error:
        sys.exit(f"{asked.file}: {error}")
    # 3. the end
    if world()[0] == 0 and "val_loss" in figures:
        write_text(paths.room(settings.run, "train") / "figures.json", json.dumps(figures))
        if not asked.prepared:  # a notebook waits for these figures, and finishes the room
            finish_room(settings, dataclasses.asdict(settings), figures)
    code = 128 + signals.number if signals.number else 0
    if dist.is_initialized():
        leave_group(code)
    sys.exit(code)
