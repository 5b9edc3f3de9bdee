"""What one GPU makes of this course, in nine minutes: training, resuming, several processes, decoding, the service.

    python -m benchmarks.gpu [--run sample] [--minutes 9] [--parts rates train …] [--rehearse]

It needs torch 2.11 or newer, transformers, tokenizers, safetensors and numpy, and a run's rooms 01–03; the service over
HTTP needs also what `helpers.serve` needs, and is skipped without. Each part has an allowance of time. What goes wrong
in one is recorded in its figures and loses nothing else. A line per part is printed as soon as it is there; where the
environment variable OUT names a folder, all figures so far are also in `$OUT/gpu.json`. The last line is one JSON
object. Without a GPU there is nothing to measure: it has no figures and no aims.

`--rehearse` goes through every part with tiny models on the CPU, or on the `--device` given: no figure of it means
anything, but a fault shows before a GPU is at hand.

The 124 million parameters are those of presets/gpu.yaml, with random weights and random text: speed does not know. A
rate is compared with two others: that of the best large bf16 product on this very card, measured here with random
numbers (zeros draw less power, and are faster), and that of the card's data sheet (dense, without sparsity).
"""

import argparse
import contextlib
import copy
import gc
import importlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import describe_machine, report
from helpers import paths
from helpers.device import empty_cache, matmul_rate, memory_peak, pick_device

# dense bf16 products in TFLOP/s by the makers' data sheets; a longer name goes first
DATA_SHEETS = {
    "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250, "A100": 312, "A30": 165,
    "A10": 125, "L40S": 362, "L4": 121, "RTX 3090": 71, "RTX 4090": 165, "RTX 5090": 209,
}  # fmt: skip
AIM = 0.45  # of the data sheet, for training the 124 million
GIB = 2**30
PROMPT = 12  # ids
LEAST = 5.0  # seconds without which a part is not begun
GRACE = 20.0  # seconds after its allowance in which a part may end by itself
STARTING = 25.0  # seconds that processes need to start, and to train a little
WORKER = "--worker"  # the option of a process of `processes`


class OutOfTime(BaseException):
    """A part has used its time; not an Exception, so that no library takes it for an error of its own."""


class Skipped(Exception):
    """A part that cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    train: dict  # what differs from the preset's section "train"
    default: dict  # what differs from notebook 04's defaults, whose rules see the machine
    vocab: int = 50_000
    n_ctx: int = 1024
    laps: int = 24  # updates that count
    products: tuple[int, ...] = (4096, 8192, 16384)
    rows: tuple[int, ...] = (2048, 5042, 13108)  # of logits at once; the course takes the last, not compiled the second
    worker_batch: int = 16  # windows per micro-batch of `processes`, all of its processes together
    resumed: int = 12  # updates of the run that is resumed
    sequences: tuple[int, ...] = (1, 8, 64)
    tokens: int = 96  # written per sequence
    turns: int = 2  # of each writer, which count
    load_seconds: float = 3.0
    http_seconds: float = 3.0


REAL = Scale({}, {})
SMALL = dict(n_embd=32, n_layer=2, n_head=2, dropout=0.0)
REHEARSAL = Scale(
    SMALL | dict(batch_size=2, gradient_accumulation=2),
    SMALL | dict(epochs=1, batch_size=8, gradient_accumulation=1, warmup_steps=1, lr=1e-2),
    vocab=400, n_ctx=32, laps=2, products=(64, 128), rows=(16, 32), worker_batch=2, resumed=4, sequences=(1, 2),
    tokens=3, turns=1, load_seconds=0.2, http_seconds=1.0,
)  # fmt: skip


class Bench:
    """The parts' common ground: device, scale, clock, scratch folder, and all figures so far."""

    def __init__(self, run: str, device: torch.device, scale: Scale, scratch: Path, end: float) -> None:
        self.run, self.device, self.scale, self.scratch, self.end = run, device, scale, scratch, end
        self.deadline = end  # of the part under way
        self.figures: dict[str, dict] = {}

    @property
    def on_card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def in_time(self) -> bool:
        """Whether the part under way may go on."""
        return time.perf_counter() < self.deadline

    def measure(self, name: str, seconds: float, part: Callable[["Bench", dict], None]) -> None:
        """Run a part within `seconds`; print and keep its figures, and its error if it has one."""
        begin = time.perf_counter()
        figures = self.figures[name] = {}
        self.deadline = min(self.end, begin + seconds)
        if self.end - begin < LEAST:
            figures["skipped"] = "no time was left"
        else:
            signal.setitimer(signal.ITIMER_REAL, min(self.deadline + GRACE, self.end + LEAST) - begin)
            try:
                part(self, figures)
            except Skipped as reason:
                figures["skipped"] = str(reason)
            except (Exception, OutOfTime) as error:
                if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(("helpers", "benchmarks")):
                    figures["skipped"] = f"the package {error.name} is not installed"
                else:
                    traceback.print_exc()
                    figures["error"] = f"{type(error).__name__}: {str(error).strip()[:500]}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        figures["seconds"] = round(time.perf_counter() - begin, 1)
        with contextlib.suppress(Exception):  # after a fault of the device nothing works there, and the rest is kept
            torch._dynamo.reset()
            gc.collect()
            empty_cache(self.device)
        print(f"{name}: {json.dumps(figures, ensure_ascii=False)}", flush=True)
        self.keep(self.result())

    def result(self) -> dict:
        """Return the benchmark's object, with the aims that a measured figure can meet."""
        value = self.figures.get("train", {}).get("share_of_data_sheet")
        met = {} if value is None else {"share_of_data_sheet": {"value": value, "aim": AIM, "met": value >= AIM}}
        machine = describe_machine(self.device) | {"data_sheet_tflops": data_sheet(self.device)}
        return {"benchmark": "gpu", "machine": machine, "figures": self.figures, "aims": met}

    @staticmethod
    def keep(result: dict) -> None:
        """Write the figures so far to $OUT, where there is one."""
        if folder := os.environ.get("OUT"):
            Path(folder, "gpu.json").write_text(json.dumps(result, ensure_ascii=False, indent=1), "utf-8")

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.on_card:
            torch.cuda.synchronize(self.device)

    def milliseconds(self, work: Callable[[], object], laps: int = 5) -> float:
        """Return the mean time of `work`, after one that does not count."""
        work()
        self.wait()
        begin = time.perf_counter()
        for _ in range(laps):
            work()
        self.wait()
        return round(1000 * (time.perf_counter() - begin) / laps, 3)

    def forget_peak(self) -> None:
        if self.on_card:
            torch.cuda.reset_peak_memory_stats(self.device)


def data_sheet(device: torch.device) -> float | None:
    """Return the card's rate by its data sheet in TFLOP/s, or None for a card that the table lacks."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    known = [card for card in DATA_SHEETS if re.search(rf"\b{card}\b", name)]
    return DATA_SHEETS[max(known, key=len)] if known else None


# ---- models and windows ----


def preset() -> dict:
    """Return the section "train" of presets/gpu.yaml."""
    import yaml  # transformers needs it too

    return yaml.safe_load((paths.repo_root() / "presets" / "gpu.yaml").read_text("utf-8"))["train"]


def made_up_tokenizer(vocab: int):
    """Return a tokenizer of this many tokens, most of them words that nobody says."""
    from helpers.vocab.tokenizer import build_words

    return build_words({f"w{i:05}": 1 for i in range(vocab - len(build_words({}, "")))}, "")


def preset_settings(bench: Bench, **changes):
    """Return the preset's settings; with 32 GB or more it says to take four times the windows at once."""
    from helpers.train.settings import TrainSettings

    wanted = preset()
    if bench.on_card and torch.cuda.get_device_properties(bench.device).total_memory > 31e9:
        wanted["batch_size"] *= 4
        wanted["gradient_accumulation"] //= 4
    return TrainSettings.from_parameters(wanted | {"device": str(bench.device)} | bench.scale.train | changes)


def random_windows(scale: Scale, count: int):
    """Return at least `count` windows of random ids."""
    from helpers.tokens.windows import Stream, Windows

    ids = np.random.default_rng(0).integers(scale.vocab, size=count * scale.n_ctx + 1).astype(np.uint16)
    return Windows(Stream([ids], [np.zeros(1, np.int64)]), scale.n_ctx, scale.n_ctx, 0, "stream")


def preset_trainer(bench: Bench, folder: Path, updates: int, **changes):
    """Return a Trainer of the preset's model on random windows; it has no tokenizer, so it writes no sample."""
    from helpers.train.model import model_from_settings
    from helpers.train.trainer import Trainer

    settings = preset_settings(bench, **changes)
    per_update = settings.batch_size * settings.gradient_accumulation * world_size()
    windows = random_windows(bench.scale, updates * per_update)
    model = model_from_settings(settings, made_up_tokenizer(bench.scale.vocab), bench.scale.n_ctx)
    chars = {"train": 1.0, "val": 1.0}
    return Trainer(model, windows, windows.first(1), settings, folder, None, chars_per_token=chars)


def preset_writer(bench: Bench):
    """Return (model, tokenizer) to write with: the preset's model with random weights."""
    from helpers.train.model import model_from_settings

    tokenizer = made_up_tokenizer(bench.scale.vocab)
    model = model_from_settings(preset_settings(bench), tokenizer, bench.scale.n_ctx).to(bench.device)
    return model.eval().requires_grad_(False), tokenizer


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def without_curves() -> None:
    """Put a stand-in in TensorBoard's place: its package may be missing, and its curves are of no use here."""
    writer = SimpleNamespace(add_scalar=lambda *_: None, close=lambda: None)
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda *_: writer
    sys.modules["torch.utils.tensorboard"] = module


# ---- training ----


def rates(bench: Bench, figures: dict) -> None:
    """Measure products of random bf16 numbers, and the one of ones that `helpers.device` measures."""
    for size in bench.scale.products:
        if not bench.in_time:
            break
        a, b = torch.randn(2, size, size, device=bench.device).to(torch.bfloat16)
        milliseconds = bench.milliseconds(partial(torch.mm, a, b), laps=10)
        figures[f"product_{size}_tflops"] = round(2 * size**3 / milliseconds / 1e9, 3)
    figures["product_tflops"] = max(figures.values())
    figures["of_ones_tflops"] = round(matmul_rate("bf16", bench.device) / 1e12, 3)


def train_speed(bench: Bench, figures: dict, compile: bool, **changes) -> None:
    """Measure updates of the preset's model; with `compile`, then also where the time of one goes."""
    from helpers.train.model import training_memory

    bench.forget_peak()
    folder = bench.scratch / f"train-{len(bench.figures)}"
    trainer = preset_trainer(bench, folder, bench.scale.laps + 3, compile=compile, **changes)
    firsts = []
    for _ in range(2):  # they compile, and fill the optimizers' states; they do not count
        begin = time.perf_counter()
        trainer.step_in_memory()
        bench.wait()
        firsts.append(round(time.perf_counter() - begin, 2))
    begin, laps, tokens = time.perf_counter(), 0, 0
    while laps == 0 or (laps < bench.scale.laps and bench.in_time):
        update = trainer.step_in_memory()
        laps, tokens = laps + 1, tokens + update.labels
    bench.wait()
    seconds = time.perf_counter() - begin
    rate = tokens * trainer.pace.flops_per_token / seconds / 1e12
    product, sheet = bench.figures["rates"].get("product_tflops"), data_sheet(bench.device)
    settings = trainer.settings
    estimate = training_memory(
        trainer.model.config, trainer.session.micro_batch, optimizer=settings.optimizer, precision=settings.precision,
        device=bench.device.type,
    )  # fmt: skip
    figures |= {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "compile": compile,
        "micro_batch": trainer.session.micro_batch,
        "updates": laps,
        "tokens_per_update": update.labels,
        "first_updates_seconds": firsts,
        "tokens_per_second": round(tokens / seconds),
        "tflops": round(rate, 3),
        "share_of_product": product and round(rate / product, 3),
        "share_of_data_sheet": sheet and round(rate / sheet, 3),
        "loss": round(update.loss / update.labels, 3),
        "peak_gib": round(memory_peak(bench.device) / GIB, 2),
        "estimated_gib": round(estimate / GIB, 2),
    }
    if compile:
        print(f"train, so far: {json.dumps(figures)}", flush=True)
        bench.keep(bench.result())
        figures["parts_ms"] = breakdown(bench, trainer)
        figures["operators"] = profile(bench, trainer)


def breakdown(bench: Bench, trainer) -> dict:
    """Return the milliseconds of an update's parts, each alone: where the time goes."""
    from helpers.device import autocast
    from helpers.train import loss as losses
    from helpers.train import optim
    from helpers.train.loss import load_batch

    loss_of, model = trainer.local_loss, trainer.model
    load = partial(load_batch, trainer.train, np.arange(trainer.session.micro_batch), bench.device)
    inputs, labels = load()

    def body(backward: bool) -> Tensor:
        with autocast(trainer.precision, bench.device):
            hidden = loss_of._run_body(inputs)[0]
        if backward:
            hidden.sum().backward()
        return hidden.detach()

    parts = {"batch": bench.milliseconds(load), "body_forward": bench.milliseconds(partial(body, False))}
    parts["body_forward_backward"] = bench.milliseconds(partial(body, True))
    hidden = body(False).flatten(0, 1).requires_grad_()
    weight, dtype = model.get_output_embeddings().weight, torch.bfloat16

    def loss(way: Callable) -> None:
        losses._ChunkedCrossEntropy.apply(hidden, weight, labels.flatten(), dtype, way)[0].backward()

    for name, way in {"": loss_of._at_once, "_eager": losses._at_once}.items():
        for rows in bench.scale.rows:
            if not bench.in_time:
                break
            with mock.patch.object(losses, "rows_at_once", lambda *_, rows=rows: rows):
                parts[f"loss{name}_{rows}_rows"] = bench.milliseconds(partial(loss, way), laps=3)

    def clip() -> None:
        optim.clip_gradient(trainer.optimizers, trainer.parameters, 1.0, trainer.scaler)

    parts["clip"] = bench.milliseconds(clip)
    for optimizer in trainer.optimizers:
        parts[type(optimizer).__name__.lower()] = bench.milliseconds(optimizer.step)
    return parts


def profile(bench: Bench, trainer) -> dict:
    """Return the operators that take most of an update, as shares of the device's busy time, and that time's share."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_card else [])]
    bench.wait()
    with profiler(activities=activities) as recorded:
        begin = time.perf_counter()
        trainer.step_in_memory()
        bench.wait()
        seconds = time.perf_counter() - begin
    which = "self_device_time_total" if bench.on_card else "self_cpu_time_total"
    # on a card each kernel is listed under its own name, and again under the operator that started it
    events = [
        event
        for event in recorded.key_averages()
        if not bench.on_card or event.device_type == torch.autograd.DeviceType.CUDA
    ]
    times = {event.key[:80]: getattr(event, which) / 1e6 for event in events}
    busy = sum(times.values()) or 1.0
    top = sorted(times, key=times.get, reverse=True)[:15]
    return {"busy": round(busy / seconds, 3), **{name: round(times[name] / busy, 3) for name in top}}


def open_rooms(bench: Bench):
    """Make the run's rooms 01–03 the only ones in a runs folder of our own; return its settings for room 04."""
    from helpers.train.settings import TrainSettings

    source = paths.run_dir(bench.run)
    rooms = [paths.STAGES[stage][1] for stage in ("corpus", "vocab", "tokenize")]
    if missing := [room for room in rooms if not (source / room).is_dir()]:
        raise Skipped(f"the run '{bench.run}' has no {', '.join(missing)}")
    folder = bench.scratch / "runs" / bench.run
    for room in rooms:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / room).exists():
            (folder / room).symlink_to((source / room).resolve())
    return TrainSettings(run=bench.run, device=str(bench.device), **bench.scale.default)


@contextlib.contextmanager
def own_runs(bench: Bench) -> Iterator:
    """Let a part train in a runs folder of our own, which goes with the scratch folder; yield its settings."""
    from helpers.train.rules import decide

    settings = open_rooms(bench)
    with mock.patch.dict(os.environ, RUNS_DIR=str(bench.scratch / "runs")):
        yield decide(settings).settings


def default_run(bench: Bench, figures: dict) -> None:
    """Train the run as notebook 04 does by default, to its end or that of the part's time."""
    from helpers.train.job import prepare_room, run_training

    bench.forget_peak()
    with own_runs(bench) as settings:
        prepare_room(settings)
        figures |= run_training(settings, stop=lambda: not bench.in_time)
        lines = (paths.room(bench.run, "train") / "metrics.jsonl").read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        figures["precision"] = rows[0]["precision"]
        figures["skipped_updates"] = figures.pop("skipped")  # the word has another meaning here
        figures["peak_gib"] = round(memory_peak(bench.device) / GIB, 2)


def resume(bench: Bench, figures: dict) -> None:
    """Train a few updates twice, and a third time interrupted half way: are the weights the same?"""
    from helpers.manifest import open_room
    from helpers.train.model import model_from_settings
    from helpers.train.plan import load_windows
    from helpers.train.trainer import Trainer
    from helpers.vocab.tokenizer import load_tokenizer

    updates = bench.scale.resumed

    def trained(folder: str, stop_after: int) -> list[Tensor]:
        """Return the weights after the run has ended, or was stopped."""
        asked = iter(range(1, 10**6))
        trainer = Trainer(
            model_from_settings(settings, tokenizer, tokens["n_ctx"]), windows, val.first(4), settings,
            bench.scratch / folder, tokenizer, chars_per_token={"train": 1.0, "val": 1.0},
            stop=lambda: next(asked) >= stop_after,
        )  # fmt: skip
        trainer.run()
        return [parameter.detach().clone() for parameter in trainer.model.parameters()]

    def largest_difference(weights: list[Tensor]) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(whole, weights, strict=True))

    with own_runs(bench) as settings:
        settings = replace(settings, epochs=1, max_minutes=0.0, warmup_steps=1)
        tokens = open_room(bench.run, "tokenize")["result"]
        tokenizer = load_tokenizer(paths.room(bench.run, "vocab"))
        train, val = load_windows(bench.run, tokens, tokenizer.pad_token_id)
        windows = train.first(updates * settings.batch_size * settings.gradient_accumulation)
        whole = trained("whole", 10**6)
        figures["updates"] = updates
        figures["twice_differs_by"] = largest_difference(trained("again", 10**6))
        half = trained("half", max(1, updates // 2))
        figures["stopped_differs_by"] = largest_difference(half)  # what "not resumed" would look like
        figures["resumed_differs_by"] = largest_difference(trained("half", 10**6))
        figures["bit_for_bit"] = figures["resumed_differs_by"] == 0


# ---- several processes ----


def processes(bench: Bench, figures: dict) -> None:
    """Train the preset's model wrapped in DDP and FSDP: alone, and as two processes that share the card.

    NCCL refuses two processes on one card, so those talk through gloo.
    """
    launches = [
        ("alone", 1, "nccl" if bench.on_card else "gloo", "plain,ddp,fsdp,ddp_compiled,fsdp_compiled"),
        ("two_ddp", 2, "gloo", "ddp"),
        ("two_fsdp", 2, "gloo", "fsdp"),
    ]
    for others, (name, size, backend, kinds) in zip((2, 1, 0), launches, strict=True):
        if not bench.in_time:
            raise Skipped("no time was left for the rest")
        allowed = bench.deadline - time.perf_counter() - others * STARTING
        figures[name] = launch(bench, size, backend, kinds, max(STARTING, allowed))
    reference = figures["alone"].get("plain", {}).get("losses")
    for name, kind, found in [(n, k, f) for n, each in figures.items() for k, f in each.items()]:
        if reference and "losses" in found:
            pairs = zip(found["losses"], reference, strict=True)
            figures[name][kind]["losses_differ_by"] = round(max(abs(a / b - 1) for a, b in pairs), 6)


def launch(bench: Bench, size: int, backend: str, kinds: str, seconds: float, again: bool = True) -> dict:
    """Start workers and return what the first printed for each kind; what they did not come to has an error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = bench.scratch / f"workers-{size}-{kinds}"
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.gpu", WORKER, kinds, backend, str(folder)]
    command += ["--device", bench.device.type, "--minutes", str(seconds / 60)]
    if bench.scale is REHEARSAL:
        command.append("--rehearse")
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
    started, outputs, end = [], [], time.perf_counter() + seconds
    try:
        for rank in range(size):
            out, err = (open(folder / f"{rank}.{kind}", "w+", encoding="utf-8") for kind in ("out", "err"))
            outputs.append((out, err))
            environment = os.environ | group | {"RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            started.append(
                subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=paths.repo_root(), text=True)
            )
        # one that fails leaves the others waiting for it
        while time.perf_counter() < end and None in (codes := [each.poll() for each in started]) and not any(codes):
            time.sleep(0.1)
    finally:
        codes = [each.poll() for each in started]  # None: it had to be ended
        for each in started:
            each.kill()
            each.wait()
    found: dict[str, dict] = {}
    texts = []
    for rank, files in enumerate(outputs):
        for file in files:
            file.seek(0)
        out, err = (file.read() for file in files)
        texts.append(err.strip()[-500:])
        for line in out.splitlines() if rank == 0 else ():
            if line.startswith("{"):
                found |= json.loads(line)
        for file in files:
            file.close()
    for kind in kinds.split(","):
        if kind not in found:
            why = "it took too long" if None in codes else f"exit codes {codes}"
            found[kind] = {"error": f"{why}; {' | '.join(text for text in texts if text)}"}
    if again and any("EADDRINUSE" in text for text in texts):  # the free port was taken in the meantime
        shutil.rmtree(folder)
        return launch(bench, size, backend, kinds, max(STARTING, end - time.perf_counter()), again=False)
    return found


def work(bench: Bench, kinds: str, backend: str, folder: Path) -> None:
    """Train as one of the processes of `processes`; the first prints a line per kind."""
    from helpers.train import distributed

    begin_group = dist.init_process_group
    # the course takes NCCL on a card
    with mock.patch.object(dist, "init_process_group", lambda _, **group: begin_group(backend, **group)):
        distributed.join_group(bench.device)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # whatever becomes of the parent, this process ends
    signal.setitimer(signal.ITIMER_REAL, max(LEAST, bench.end - time.perf_counter()))
    rank, size = distributed.world()
    for kind in kinds.split(","):
        figures: dict = {}
        try:
            way, _, compiled = kind.partition("_")
            wrap = partial(wrap_alone, way) if size == 1 else distributed.distribute
            with mock.patch.object(distributed, "distribute", wrap):
                work_kind(bench, figures, way, bool(compiled), folder / kind)
        except Exception as error:
            traceback.print_exc()
            figures["error"] = f"{type(error).__name__}: {str(error).strip()[:500]}"
        if rank == 0:
            print(json.dumps({kind: figures}), flush=True)
        gc.collect()
        empty_cache(bench.device)
    distributed.leave_group(0)


def wrap_alone(way: str, loss, parallel: str, device: torch.device):
    """Wrap a single process's loss as `distributed.distribute` wraps that of several; "plain" leaves it as it is."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from helpers.train.model import transformer_blocks

    if way == "ddp":
        return DistributedDataParallel(loss, device_ids=[device.index] if device.type == "cuda" else None)
    if way == "fsdp":
        mesh = init_device_mesh(device.type, (1,))
        for part in [*transformer_blocks(loss.model), loss]:
            fully_shard(part, mesh=mesh)
    return loss


def work_kind(bench: Bench, figures: dict, way: str, compile: bool, folder: Path) -> None:
    """Do a few updates, write a checkpoint, restore it, and do one more."""
    changes = dict(
        batch_size=max(1, bench.scale.worker_batch // world_size()), gradient_accumulation=2, compile=compile,
        parallel="fsdp" if way == "fsdp" else "ddp", warmup_steps=1, device=str(bench.device.type),
    )  # fmt: skip
    trainer = preset_trainer(bench, folder, 5, **changes)
    updates = [trainer.step() for _ in range(4)]
    bench.wait()
    rate = sum(update.labels for update in updates[2:]) / sum(update.seconds for update in updates[2:])
    figures["tokens_per_second"] = round(rate)
    figures["losses"] = [update.loss / update.labels for update in updates]
    begin = time.perf_counter()
    trainer.milestones.save()
    figures["save_seconds"] = round(time.perf_counter() - begin, 2)
    if dist.is_initialized():
        dist.barrier()
    again = preset_trainer(bench, folder, 5, **changes)
    if again.progress.step != 4:
        raise RuntimeError(f"the checkpoint of update 4 was restored as that of {again.progress.step}")
    wanted, got = trainer.step(), again.step()
    figures["resumed_loss_differs_by"] = round(abs(got.loss / wanted.loss - 1), 6)
    figures["peak_gib"] = round(memory_peak(bench.device) / GIB, 2)


# ---- decoding ----


class StaticDecoder:
    """The arithmetic of `helpers.generate.inference` over a cache of one size; all that a token needs is on the device.

    Each step is the same work at the same addresses: a CUDA graph can hold it. Nothing waits for a token until all of
    them are written. All sequences continue one prompt and are equally long.
    """

    def __init__(self, model, tokenizer, prompt: list[int], sequences: int, tokens: int, greedy: bool = False) -> None:
        from helpers.generate import inference
        from helpers.generate.batch import banned

        self.decoder, self.greedy, self.prompt = inference.of(model), greedy, prompt
        self.banned, device = banned(model, tokenizer), model.device
        self.sequences, self.tokens, self.length = sequences, tokens, len(prompt) + tokens
        self.cache = self.decoder.cache()  # of the prompt
        like = self.decoder.embedding.weight
        shape = (2, sequences, self.decoder.n_kv_head, self.length, self.decoder.head_size)  # keys and values
        with torch.inference_mode():
            self.layers = [like.new_zeros(shape) for _ in self.cache.layers]
            self.ids = torch.zeros(sequences, dtype=torch.long, device=device)
            self.at = torch.zeros(1, dtype=torch.long, device=device)  # of the id that is read next
            self.places = torch.arange(self.length, device=device)
            self.written = torch.zeros(sequences, self.length, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def choose(self, logits: Tensor) -> None:
        """Draw the next id of each row, by a race that is run on the device."""
        logits = logits.masked_fill(self.banned, -torch.inf)
        if not self.greedy:
            logits = logits - torch.empty_like(logits).exponential_().log()
        self.ids.copy_(logits.argmax(-1))
        self.written.index_copy_(1, self.at, self.ids[:, None])

    @torch.inference_mode()
    def begin(self) -> None:
        """Read the prompt once, and choose the first id of each row."""
        cache, n = self.cache, len(self.prompt)
        ids = torch.tensor([self.prompt], device=self.ids.device)
        logits = self.decoder.read(ids, [n], cache, [(0, 0)])
        for layer, source in zip(self.layers, cache.layers, strict=True):
            layer[:, :, :, :n] = source[:, :1, :, :n]
        self.at.fill_(n)
        self.choose(logits.expand(self.sequences, -1))

    @torch.inference_mode()
    def step(self) -> None:
        """Read the newest ids and choose the next ones."""
        seen = self.places <= self.at  # (length,)

        def attend(layer: int, qkv: Tensor, scale: float) -> Tensor:  # (B, heads + 2 kv heads, head size)
            n_head, shape = decoder.n_head, (self.sequences, -1, decoder.n_kv_head, decoder.head_size)
            new = qkv[:, n_head:].view(shape).transpose(0, 1)  # (2, B, kv heads, head size)
            keys, values = self.layers[layer].index_copy_(3, self.at, new.unsqueeze(3))
            shared = qkv[:, :n_head].view(shape).transpose(1, 2)  # (B, kv heads, heads per key, head size)
            out = F.scaled_dot_product_attention(shared, keys, values, attn_mask=seen.expand(1, -1), scale=scale)
            return out.reshape(self.sequences, -1)

        decoder = self.decoder
        self.logits = decoder._head(decoder._forward_layers(self.ids, self.at.expand(self.sequences), attend)).float()
        self.at.add_(1)
        self.choose(self.logits)

    def capture(self) -> None:
        """Record a step as a CUDA graph."""
        self.begin()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def write(self) -> list[list[int]]:
        """Return the ids that each row writes."""
        self.begin()
        for _ in range(self.tokens - 1):
            self.graph.replay() if self.graph else self.step()
        return self.written[:, len(self.prompt) :].tolist()


def our_writer(model, tokenizer, ids: list[int], sequences: int, tokens: int, **settings) -> Callable[[], list]:
    """Return a function that writes with `DecodeBatch`, as rooms 05 and 06 do; no text ends early."""
    from helpers.generate.batch import DecodeBatch, Row
    from helpers.generate.settings import Settings

    def write() -> list[list[int]]:
        batch = DecodeBatch(model, tokenizer)
        batch.eos = -1  # no token
        wanted = Settings(max_new_tokens=tokens, seed=0, **settings)
        rows = [Row(ids, wanted, number) for number in range(sequences)]
        batch.add(rows)
        while batch.rows:
            batch.step()
        return [row.new for row in rows]

    return write


def library_writer(model, tokenizer, ids: list[int], sequences: int, tokens: int, **options) -> Callable[[], list]:
    """Return a function that writes with the library's `generate`; on a card a static cache makes it compile."""
    from transformers import GenerationConfig

    inputs = torch.tensor([ids], device=model.device)
    config = GenerationConfig(  # without an end token: no text ends early
        max_new_tokens=tokens, do_sample=True, top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id,
        num_return_sequences=sequences, **options,
    )  # fmt: skip

    def write() -> list[list[int]]:
        model.generation_config = config
        out = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=config)
        return out[:, len(ids) :].tolist()

    return write


def writers(bench: Bench, model, tokenizer, sequences: int) -> dict[str, Callable[[], Callable[[], list]]]:
    """Return the competitors by name: functions that make a writer, because some are slow to make."""
    ids, tokens = list(range(100, 100 + PROMPT)), bench.scale.tokens
    common = (model, tokenizer, ids, sequences, tokens)

    def static(graph: bool) -> Callable[[], list]:
        decoder = StaticDecoder(*common[:3], sequences, tokens)
        if graph and bench.on_card:
            decoder.capture()
        return decoder.write

    return {
        "ours": partial(our_writer, *common),
        "ours_filtered": partial(our_writer, *common, temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.1),
        "static": partial(static, False),
        "graph": partial(static, True),
        "library": partial(library_writer, *common),
    }


def decode(bench: Bench, figures: dict) -> None:
    """Measure tokens per second of all writers, in fp32 as a run is loaded, and in bf16; and compare greedy texts."""
    model, tokenizer = preset_writer(bench)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        each = copy.deepcopy(model).to(dtype)
        figures[name] = {}
        for sequences in bench.scale.sequences:
            for writer, make in writers(bench, each, tokenizer, sequences).items():
                if not bench.in_time:
                    raise Skipped("no time was left for the rest")
                figures[name][f"{writer}_{sequences}"] = speed(bench, make)
        figures[name] |= compare_greedy(bench, each, tokenizer)
        figures[name]["prefill_ms"] = prefill(bench, each, tokenizer)


def compare_greedy(bench: Bench, model, tokenizer) -> dict:
    """Return how much of a greedy text the static decoder writes as ours does, and how far their last logits differ."""
    from helpers.generate.batch import DecodeBatch, Row
    from helpers.generate.settings import Settings

    prompt, tokens = list(range(100, 100 + PROMPT)), bench.scale.tokens
    batch, row = DecodeBatch(model, tokenizer), Row(prompt, Settings(max_new_tokens=tokens + 1, temperature=0.0))
    batch.eos = -1
    batch.add([row])
    for _ in range(tokens):
        last = batch.logits.clone()
        batch.step()
    static = StaticDecoder(model, tokenizer, prompt, 1, tokens, greedy=True)
    if bench.on_card:
        static.capture()
    same = np.array(row.new) == np.array(static.write()[0])
    differs = (last - static.logits)[last.isfinite()].abs().max()
    return {"greedy_tokens_equal": round(float(same.mean()), 3), "greedy_logits_differ_by": round(float(differs), 6)}


def speed(bench: Bench, make: Callable[[], Callable[[], list]]) -> float | str:
    """Return a writer's median tokens per second, or its error: the next one may work."""
    try:
        write, speeds = make(), []
        write()
        for _ in range(bench.scale.turns):
            bench.wait()
            begin = time.perf_counter()
            written = write()
            speeds.append(sum(map(len, written)) / (time.perf_counter() - begin))
        return round(statistics.median(speeds), 1)
    except Exception as error:
        traceback.print_exc()
        return f"error: {type(error).__name__}: {str(error).strip()[:300]}"


def prefill(bench: Bench, model, tokenizer) -> float:
    """Return the milliseconds of reading a prompt that nearly fills the window."""
    from helpers.generate.batch import DecodeBatch, Row
    from helpers.generate.settings import Settings

    ids = [7 + i % 100 for i in range(bench.scale.n_ctx - 2)]
    return bench.milliseconds(lambda: DecodeBatch(model, tokenizer).add([Row(ids, Settings())]), laps=3)


def decode_compiled(bench: Bench, figures: dict) -> None:
    """Measure the library's `generate` with a static cache, which it compiles on a card: about a minute each."""
    model, tokenizer = preset_writer(bench)
    ids = list(range(100, 100 + PROMPT))
    for sequences in bench.scale.sequences:
        if not bench.in_time:
            raise Skipped("no time was left for the rest")
        make = partial(
            library_writer, model, tokenizer, ids, sequences, bench.scale.tokens, cache_implementation="static"
        )
        figures[f"library_static_{sequences}"] = speed(bench, make)


# ---- waiting for the device ----


@contextlib.contextmanager
def waits(bench: Bench) -> Iterator[Counter]:
    """Count, by place in the source, where the host waits for the card; without a card there is nothing to count."""
    places: Counter = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if bench.on_card:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            if bench.on_card:
                torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        if "synchroniz" in str(each.message):
            places["/".join(Path(each.filename).parts[-3:]) + f":{each.lineno}"] += 1


def synchronisations(bench: Bench, figures: dict) -> None:
    """Count the waits of an update, and of a step of decoding: without filters, and with all usual ones."""
    from helpers.generate.batch import DecodeBatch, Row
    from helpers.generate.settings import Settings

    def counted(name: str, work: Callable[[], object], times: int) -> None:
        work()
        with waits(bench) as places:
            for _ in range(times):
                work()
        figures[name] = {place: round(count / times, 2) for place, count in places.most_common(20)}
        figures[f"{name}_waits"] = round(sum(places.values()) / times, 2)

    trainer = preset_trainer(bench, bench.scratch / "waits", 6, compile=False)
    counted("update", trainer.step, 2)
    del trainer
    model, tokenizer = preset_writer(bench)
    usual = dict(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    for name, settings in {"token": {}, "token_greedy": {"temperature": 0.0}, "token_filtered": usual}.items():
        batch = DecodeBatch(model, tokenizer)
        batch.eos = -1
        batch.add([Row([7 + row], Settings(seed=0, **settings), row) for row in range(2)])
        counted(name, batch.step, 8)


# ---- the service ----


def engine(bench: Bench, figures: dict) -> None:
    """Measure the engine of room 06 alone: as many clients as places, each with one request after another."""
    from helpers.generate.settings import Settings
    from helpers.serve.engine import Engine
    from helpers.serve.limits import Limits

    model, tokenizer = preset_writer(bench)
    wanted = Settings(max_new_tokens=min(64, bench.scale.tokens))
    for clients in bench.scale.sequences:
        if not bench.in_time:
            raise Skipped("no time was left for the rest")
        firsts: list[float] = []
        latencies: list[float] = []
        errors: list[Exception] = []
        running = Engine(model, tokenizer, Limits(max_rows=clients), on_first_token=firsts.append).start()
        running.submit("w00001", wanted).result()

        def client(end: float, running=running, latencies=latencies, errors=errors) -> None:
            try:
                while time.perf_counter() < end:
                    begin = time.perf_counter()
                    running.submit("w00001", wanted).result()
                    latencies.append(1000 * (time.perf_counter() - begin))
            except Exception as error:
                errors.append(error)

        begin, before = time.perf_counter(), running.tokens
        threads = [threading.Thread(target=client, args=[begin + bench.scale.load_seconds]) for _ in range(clients)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        tokens, seconds = running.tokens - before, time.perf_counter() - begin
        running.close()
        if errors:
            raise errors[0]
        figures[f"clients_{clients}"] = {
            "tokens_per_second": round(tokens / seconds, 1),
            "request_ms_p50": round(statistics.median(latencies), 1),
            "request_ms_max": round(max(latencies), 1),
            "first_token_ms_p50": round(1000 * statistics.median(firsts), 1),
        }


def service(bench: Bench, figures: dict) -> None:
    """Put the service over HTTP under the load of benchmarks/serve_load.py; the server has a process of its own."""
    import asyncio

    serve_load = importlib.import_module("benchmarks.serve_load")
    importlib.import_module("helpers.serve.server")
    from helpers.train import checkpoint

    model, tokenizer = preset_writer(bench)
    folder = bench.scratch / "served"
    checkpoint.export_model(folder, model, tokenizer)
    del model
    arguments = ("benchmarks.gpu", "--serve", str(folder), "--device", bench.device.type)
    options = argparse.Namespace(tokens=min(32, bench.scale.tokens), seconds=bench.scale.http_seconds)
    with serve_load.serving(*arguments) as (address, pid):
        figures |= asyncio.run(serve_load.load(address, pid, options))
        if bench.in_time:
            figures |= asyncio.run(serve_load.health(address, options))


def serve(folder: Path, device: torch.device) -> None:
    """Serve a folder's model until SIGTERM; print the address."""
    import asyncio

    from helpers.generate import generate
    from helpers.serve import server
    from helpers.serve.app import make_app
    from helpers.serve.engine import Engine
    from helpers.serve.limits import Limits

    model, tokenizer = generate.load(folder)
    limits = Limits(max_rows=64, max_queue=64)
    running = Engine(model.to(device), tokenizer, limits).start()

    async def until_stopped() -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        runner, address = await server.start(make_app(running, limits))
        print(address, flush=True)
        await stopped.wait()
        await server.stop(runner)

    asyncio.run(until_stopped())
    running.close(cancel=True)


# ---- all of it ----

# name -> (share of the time, part), the most important first; what a part leaves, later ones have
PARTS: dict[str, tuple[float, Callable[[Bench, dict], None]]] = {
    "rates": (15, rates),
    "train": (110, partial(train_speed, compile=True)),
    "train_eager": (30, partial(train_speed, compile=False)),
    "train_as_written": (20, partial(train_speed, compile=False, batch_size=16, gradient_accumulation=8)),
    "default_run": (60, default_run),
    "resume": (30, resume),
    "decode": (75, decode),
    "synchronisations": (15, synchronisations),
    "processes": (120, processes),
    "engine": (20, engine),
    "service": (40, service),
    "decode_compiled": (60, decode_compiled),
}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="sample", help="the run whose rooms 01–03 are trained on (default: sample)")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default: 9)")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--rehearse", action="store_true", help="tiny, and on the CPU: does it work? No aims")
    parser.add_argument("--device", help="default: the GPU; with --rehearse the CPU")
    parser.add_argument(WORKER, nargs=3, help=argparse.SUPPRESS)  # kinds, backend, folder
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)  # a folder with a model
    return parser.parse_args()


def out_of_time(*_: object) -> None:
    """End the part under way."""
    raise OutOfTime("the part was still at work after its time")


def main() -> None:
    """Measure part by part, print a line each, and print one JSON line."""
    end = time.perf_counter()
    options = arguments()
    end += 60 * options.minutes
    device = pick_device(options.device or ("cpu" if options.rehearse else "auto"))
    if options.serve:
        return serve(options.serve, device)
    if device.type != "cuda" and not options.rehearse:
        print("there is no GPU here: nothing is measured", file=sys.stderr)
        return report({"benchmark": "gpu", "machine": describe_machine(device), "figures": {}, "aims": {}})
    without_curves()
    scale = REHEARSAL if options.rehearse else REAL
    quick = options.rehearse and device.type == "cpu"  # without a C++ compiler, which would take minutes
    compile = partial(torch.compile, backend="aot_eager") if quick else torch.compile
    signal.signal(signal.SIGALRM, out_of_time)
    with mock.patch.object(torch, "compile", compile), tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options.run, device, scale, Path(scratch), end)
        if options.worker:
            kinds, backend, folder = options.worker
            return work(bench, kinds, backend, Path(folder))
        for number, name in enumerate(options.parts):
            share, part = PARTS[name]
            left = sum(PARTS[later][0] for later in options.parts[number:])
            bench.measure(name, (end - time.perf_counter()) * share / left, part)
        result = bench.result() | ({"aims": {}} if options.rehearse else {})
    report(result)


if __name__ == "__main__":
    main()
