"""A training run: notebook 04's parameters and a run's rooms around the loop. Knows no notebook and no plot.

`plan` and `forecast` say what a run will be, and refuse what makes no sense. `start` trains in a worker thread, so
that a notebook stays alive beside it; `python -m helpers.train PARAMETERS.json` (or torchrun) does so from a shell.
"""

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist

from helpers import loop, machine, optim, parallel, paths, tokenizer
from helpers import model as models
from helpers.loss import Loss
from helpers.tokens import TokenStream, Windows

# parameters that change how a run is watched or where it runs, not what it computes: they may differ on resume
_NOT_IDENTITY = (
    "run log_step eval_step sample_step checkpoint_step device devices parallel restarts compile resume recipe_seconds"
).split()
TRIAL_WINDOWS = 256  # of the validation text, for a trial of seconds
PROBE = 1.0  # seconds that the forecast's measured update should take, about


# ---------------------------------------------------------------- what a run will be


def windows(run: str, tokens: dict, pad_id: int) -> tuple[Windows, Windows]:
    """Return the training and validation windows of a run; `tokens` is the result in the tokens manifest.

    Validation windows overlap by half and score each token once, so that none is judged without context.
    """
    n_ctx, packing = tokens["n_ctx"], tokens["packing"]
    train = Windows(TokenStream(run, "train", tokens["dtype"]), n_ctx, tokens["stride"], pad_id, packing)
    val = Windows(TokenStream(run, "val", tokens["dtype"]), n_ctx, max(1, n_ctx // 2), pad_id, packing, once=True)
    return train, val


def build(parameters: dict, tok, n_ctx: int):
    """Return the model that notebook 04's parameters ask for: freshly initialised, or with pretrained weights."""
    if parameters["pretrained_model"]:
        model = models.pretrained(parameters["pretrained_model"], tok, n_ctx)
    else:
        model = models.build(config(parameters, tok, n_ctx), parameters["seed"])
    # saved with the model: whoever samples from it with the library's `generate` gets text, never padding
    unwritten = {i for i in tok.all_special_ids if i < model.config.vocab_size} - {tok.eos_token_id}
    model.generation_config.suppress_tokens = sorted(unwritten)
    return model


def config(parameters: dict, tok, n_ctx: int):
    """Return the config of a fresh model from notebook 04's parameters."""
    names = "n_embd n_layer n_head n_kv_head n_experts experts_per_token aux_loss_coef dropout".split()
    return models.config(parameters["architecture"], tok, n_ctx=n_ctx, **{name: parameters[name] for name in names})


def plan(parameters: dict) -> dict[str, int]:
    """Return windows, updates and tokens of a run, before anything is trained; refuse what makes no sense.

    With a time budget (max_minutes > 0) total_steps and tokens are 0: the clock decides, `forecast` estimates.
    """
    tokens = paths.open_room(parameters["run"], "tokenize")["result"]
    for name in ("epochs", "batch_size", "gradient_accumulation", "log_step", "devices"):
        if parameters[name] < 1:
            raise ValueError(f"{name} is {parameters[name]}: it must be at least 1")
    if parameters["max_minutes"] < 0:
        raise ValueError(f"max_minutes is {parameters['max_minutes']}: it is a time, or 0 for as long as epochs take")
    if parameters["parallel"] not in ("auto", "ddp", "fsdp"):
        raise ValueError(f"parallel is '{parameters['parallel']}': choose auto, ddp or fsdp")
    per_update = parameters["batch_size"] * parameters["gradient_accumulation"] * parameters["devices"]
    steps_per_epoch = math.ceil(tokens["windows"] / per_update)
    total_steps = 0 if parameters["max_minutes"] else steps_per_epoch * parameters["epochs"]
    if total_steps and parameters["warmup_steps"] >= total_steps:
        raise ValueError(
            f"warmup_steps is {parameters['warmup_steps']}, but the whole run has {total_steps} updates "
            f"({tokens['windows']} windows, {per_update} an update, {parameters['epochs']} epochs): "
            "the learning rate would never reach lr. Lower warmup_steps, or train more epochs."
        )
    return {
        "windows": tokens["windows"],
        "windows_per_update": per_update,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "tokens": 0 if parameters["max_minutes"] else tokens["tokens"] * parameters["epochs"],
    }


def forecast(parameters: dict) -> dict:
    """Return steps, tokens, seconds, memory (bytes) and concerns of a run, from one measured update of its own model.

    `concerns` are sentences about what is allowed but rarely meant: an output layer of which most rows are never
    trained, a context that no document fills, more memory than there is, hardly any updates.
    Raises ValueError where a time budget is too short for a single update.
    """
    planned = plan(parameters)
    device = machine.pick_device(parameters["device"])
    precision = machine.pick_precision(parameters["precision"], device)
    tokens = paths.open_room(parameters["run"], "tokenize")["result"]
    tok = tokenizer.load(paths.room(parameters["run"], "vocab"))
    train, _ = windows(parameters["run"], tokens, tok.pad_token_id)
    model = build(parameters, tok, tokens["n_ctx"]).to(device)

    seconds_a_step = planned["windows_per_update"] / parameters["devices"] * _seconds_a_window(
        model, train, parameters, precision, device
    )  # fmt: skip
    steps, seconds = planned["total_steps"], planned["total_steps"] * seconds_a_step
    if minutes := parameters["max_minutes"]:
        seconds, steps = 60.0 * minutes, int(60 * minutes / seconds_a_step)
        if steps < 1:
            raise ValueError(
                f"max_minutes is {minutes}, but one update takes about {seconds_a_step:.1f} seconds here: nothing "
                "would be learnt. Give it more time, or a smaller model or batch."
            )
    seen = steps / planned["steps_per_epoch"]  # epochs
    memory = _memory(model, parameters, precision, tokens["n_ctx"])
    return {
        "steps": steps,
        "epochs": round(seen, 2),
        "tokens": round(seen * tokens["tokens"]),
        "seconds": round(seconds, 1),
        "memory": memory,
        "concerns": _concerns(train, len(tok), steps, parameters["warmup_steps"], memory, machine.memory_free(device)),
    }


def _memory(model, parameters: dict, precision: str, n_ctx: int) -> int:
    return models.training_memory(
        model.config, parameters["batch_size"], optimizer=parameters["optimizer"], precision=precision, n_ctx=n_ctx
    )


def _seconds_a_window(model, train: Windows, parameters: dict, precision: str, device) -> float:
    """Time one update of a few windows, the second of two, and return its seconds a window."""
    rate = machine.matmul_rate(precision, device)
    work = models.sizes(model.config, train.n_ctx)["flops_per_token"] * float(train.lengths.mean())
    cost = work / (0.4 * rate)  # a guess, so that the probe is short
    count = min(parameters["batch_size"], len(train), max(1, int(PROBE / cost)))
    some = np.linspace(0, len(train) - 1, count).astype(int)
    optimizers = optim.make_optimizers(
        model, parameters["optimizer"], 1e-4, parameters["weight_decay"], parameters["beta2"], parameters["eps"]
    )
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    loss_of = Loss(model)
    gradient = step = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        loop.accumulate(loss_of, [loop.load(train, some, device)], 1, precision, device, scaler)
        middle = time.perf_counter()
        optim.update(optimizers, list(model.parameters()), 1.0, scaler)
        gradient, step = (middle - begin) / count, time.perf_counter() - middle
    return gradient + step / (parameters["batch_size"] * parameters["gradient_accumulation"])


def _concerns(
    train: Windows, vocab_size: int, steps: int, warmup_steps: int, memory: int, free: int | None
) -> list[str]:
    said = []
    counts = np.zeros(vocab_size, np.int64)
    for at in range(0, len(train.stream), 2**20):
        counts += np.bincount(train.stream.read(at, at + 2**20), minlength=vocab_size)
    if (dead := float((counts == 0).mean())) > 0.5:
        said.append(
            f"{dead:.0%} of the {vocab_size:,} tokens never occur in the training text: their rows in the output layer "
            "cost memory and time and learn nothing. A smaller vocab_size in notebook 02 loses nothing."
        )
    if (longest := int(train.lengths.max())) < train.n_ctx // 2:
        said.append(
            f"n_ctx is {train.n_ctx}, but no document is longer than {longest} tokens: the positions after that are "
            "never trained, and the model will write nothing longer. A smaller n_ctx in notebook 03 is enough."
        )
    if steps < 100:
        said.append(f"only {steps} updates: the model will hardly learn. More epochs, more time, or a smaller batch.")
    elif warmup_steps > steps / 2:
        said.append(f"the warm-up takes {warmup_steps} of {steps} updates: the rate has hardly time to fall.")
    if free and memory > free:
        said.append(
            f"training needs about {memory / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. A smaller batch_size "
            "with more gradient_accumulation gives the same updates in less memory."
        )
    return said


# ---------------------------------------------------------------- a run


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
    identity = _identity(parameters, paths.open_room(parameters["run"], "tokenize"))
    file = folder / "identity.txt"
    same = file.is_file() and file.read_text("utf-8") == identity
    if folder.exists() and not (parameters["resume"] and same):
        previous = folder.with_name("model-previous")
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
        print(f"the model that was here is kept in {previous.name}/")
    paths.write_text(file, identity)
    paths.write_text(folder / "parameters.json", json.dumps(parameters, ensure_ascii=False, indent=1))
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
    device = machine.pick_device(parameters["device"])
    run = parameters["run"]
    manifest = paths.open_room(run, "tokenize")
    tokens = manifest["result"]
    tok = tokenizer.load(paths.room(run, "vocab"))
    train, val = windows(run, tokens, tok.pad_token_id)
    model = build(parameters, tok, tokens["n_ctx"])
    precision = machine.pick_precision(parameters["precision"], device)
    names = (
        "epochs max_minutes batch_size gradient_accumulation optimizer lr beta2 eps warmup_steps schedule "
        "final_lr_fraction weight_decay max_grad_norm compile seed log_step eval_step sample_step checkpoint_step"
    ).split()
    return loop.fit(
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
    return "fsdp" if _memory(model, parameters, precision, n_ctx) > 0.8 * total else "ddp"


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
        device = machine.pick_device(parameters["device"])
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
    first = loop.world()[0] == 0
    if first:
        plan(parameters)
        prepare(parameters)
    if dist.is_initialized():
        dist.barrier()
    launcher = os.getppid()  # if it is killed, nobody would ever end this process: then it saves and ends by itself
    try:
        figures = run_job(parameters, lambda: signals.asked() or os.getppid() != launcher)
    except loop.Diverged as error:
        sys.exit(str(error))
    if first and "val_loss" in figures:
        paths.write_text(paths.room(parameters["run"], "train") / "figures.json", json.dumps(figures))
    code = 128 + signals.number if signals.number else 0
    if dist.is_initialized():
        leave_group(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
