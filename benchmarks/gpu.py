"""What one GPU makes of this course, in nine minutes: training, DDP, writing, the service.

    python -m benchmarks.gpu [--run sample] [--minutes 9] [--parts rates train …]

It needs torch 2.11 or newer, transformers, tokenizers, safetensors and numpy, and a run's rooms 01–03; the service over
HTTP needs also what `helpers.serve` needs, and is skipped without. Each part has a share of the time. What goes wrong
in one is recorded in its figures and loses nothing else. A line per part is printed as soon as it is there; where the
environment variable OUT names a folder, all figures so far are also in `$OUT/gpu.json`. The last line is one JSON
object. Without a GPU there is nothing to measure: it has no figures and no aims.

The 124 million parameters are those of presets/gpu.yaml, with random weights and random text: speed does not know. A
rate is compared with two others: that of the best large bf16 product on this very card, measured here with random
numbers (zeros draw less power, and are faster), and that of the card's data sheet (dense, without sparsity).
"""

import asyncio
import contextlib
import copy
import gc
import importlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from benchmarks.generate_speed import library_writer, made_up_tokenizer, our_writer, tokens_per_second
from benchmarks.machine import GIB, command_line, describe_machine, met, report
from helpers import paths
from helpers.device import empty_cache, matmul_rate, memory_peak, pick_device
from helpers.generate.settings import Settings
from helpers.manifest import write_manifest
from helpers.serve.engine import Engine
from helpers.serve.limits import Limits
from helpers.tokens.windows import Stream, Windows
from helpers.train import checkpoint, distributed
from helpers.train.initial import model_from_settings
from helpers.train.job import prepare_room, run_training
from helpers.train.loss import Loss, training_memory
from helpers.train.rules import decide
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer

# dense bf16 products in TFLOP/s by the makers' data sheets; the first name that fits counts
DATA_SHEETS = {
    "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250, "A100": 312, "A30": 165,
    "A10": 125, "L40S": 362, "L4": 121, "RTX 3090": 71, "RTX 4090": 165, "RTX 5090": 209,
}  # fmt: skip
AIM = 0.45  # of the data sheet, for training the 124 million
VOCAB, N_CTX = 50_000, 1024
UPDATES = 24  # that count
PROMPT = list(range(100, 112))  # ids
SEQUENCES = (1, 8, 64)
TOKENS = 96  # written per sequence
SECONDS = 3.0  # of each load of the service
RATIO = {"train": 1.0, "val": 1.0}  # characters per token: the ids are random
USUAL = dict(temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.1)  # filters


class Skipped(Exception):
    """A part that cannot be measured here; the message says why."""


class Bench:
    """The parts' common ground: device, clock, scratch folder, and all figures so far."""

    def __init__(self, run: str, device: torch.device, scratch: Path, end: float) -> None:
        self.run, self.device, self.scratch, self.end = run, device, scratch, end
        self.deadline = end  # of the part under way
        self.figures: dict[str, dict] = {}

    @property
    def in_time(self) -> bool:
        """Whether the part under way may go on."""
        return time.perf_counter() < self.deadline

    def measure(self, name: str, seconds: float, part: Callable[["Bench", dict], None]) -> None:
        """Run a part within about `seconds`; print and keep its figures, and its error if it has one."""
        begin = time.perf_counter()
        figures = self.figures[name] = {}
        self.deadline = min(self.end, begin + seconds)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            if not self.in_time:
                raise Skipped("no time was left")
            part(self, figures)
        except Skipped as reason:
            figures["skipped"] = str(reason)
        except ModuleNotFoundError as error:
            figures["skipped"] = f"the package {error.name} is not installed"
        except Exception as error:
            traceback.print_exc()
            figures["error"] = f"{type(error).__name__}: {str(error).strip()[:500]}"
        figures["seconds"] = round(time.perf_counter() - begin, 1)
        with contextlib.suppress(Exception):  # after a fault of the device nothing works there, and the rest is kept
            torch.compiler.reset()
            gc.collect()
            empty_cache(self.device)
        print(f"{name}: {json.dumps(figures, ensure_ascii=False)}", flush=True)
        self.keep()

    def machine(self) -> dict:
        """Return the machine, with the card's rate by its data sheet."""
        return describe_machine(self.device) | {"data_sheet_tflops": data_sheet(self.device)}

    def keep(self) -> None:
        """Write the figures so far to $OUT, where there is one."""
        if folder := os.environ.get("OUT"):
            found = {"benchmark": "gpu", "machine": self.machine(), "figures": self.figures}
            Path(folder, "gpu.json").write_text(json.dumps(found, ensure_ascii=False, indent=1), "utf-8")

    def milliseconds(self, work: Callable[[], object], laps: int = 5) -> float:
        """Return the mean time of `work`, after one that does not count."""
        work()
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(laps):
            work()
        torch.cuda.synchronize(self.device)
        return round(1000 * (time.perf_counter() - begin) / laps, 3)


def data_sheet(device: torch.device) -> float | None:
    """Return the card's rate by its data sheet in TFLOP/s, or None for a card that the table lacks."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((rate for card, rate in DATA_SHEETS.items() if re.search(rf"\b{card}\b", name)), None)


# ---- models and windows ----


def preset_settings(device: torch.device, **changes) -> TrainSettings:
    """Return the settings of presets/gpu.yaml; with 32 GB or more it says to take four times the windows at once."""
    wanted = yaml.safe_load((paths.repo_root() / "presets" / "gpu.yaml").read_text("utf-8"))["train"]
    if device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory > 31e9:
        wanted["batch_size"] *= 4
        wanted["gradient_accumulation"] //= 4
    return TrainSettings.from_parameters(wanted | {"device": str(device)} | changes)


def preset_trainer(bench: Bench, folder: Path, updates: int, **changes) -> Trainer:
    """Return a Trainer of the preset's model on random windows; it has no tokenizer, so it writes no sample."""
    settings = preset_settings(bench.device, **changes)
    size = updates * settings.batch_size * settings.gradient_accumulation * N_CTX + 1
    ids = np.random.default_rng(0).integers(VOCAB, size=size).astype(np.uint16)
    windows = Windows(Stream([ids], [np.zeros(1, np.int64)]), N_CTX, N_CTX, 0, "stream")
    model = model_from_settings(settings, made_up_tokenizer(VOCAB), N_CTX)
    return Trainer(model, windows, windows.first(1), settings, folder, None, chars_per_token=RATIO)


def preset_writer(bench: Bench):
    """Return (model, tokenizer) to write with: the preset's model with random weights."""
    tokenizer = made_up_tokenizer(VOCAB)
    model = model_from_settings(preset_settings(bench.device), tokenizer, N_CTX).to(bench.device)
    return model.eval().requires_grad_(False), tokenizer


def without_curves() -> None:
    """Put a stand-in in TensorBoard's place: its package may be missing, and its curves are of no use here."""
    writer = SimpleNamespace(add_scalar=lambda *_: None, close=lambda: None)
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda *_: writer
    sys.modules["torch.utils.tensorboard"] = module


# ---- training ----


def rates(bench: Bench, figures: dict) -> None:
    """Measure products of random bf16 numbers, and the one of ones that `helpers.device` measures."""
    for size in (4096, 8192, 16384):
        a, b = torch.randn(2, size, size, device=bench.device).to(torch.bfloat16)
        milliseconds = bench.milliseconds(partial(torch.mm, a, b), laps=10)
        figures[f"product_{size}_tflops"] = round(2 * size**3 / milliseconds / 1e9, 3)
    figures["product_tflops"] = max(figures.values())
    figures["of_ones_tflops"] = round(matmul_rate("bf16", bench.device) / 1e12, 3)


def train_speed(bench: Bench, figures: dict, compile: bool, **changes) -> None:
    """Measure updates of the preset's model; with `compile`, then also where the time of one goes."""
    folder = bench.scratch / f"train-{len(bench.figures)}"
    trainer = preset_trainer(bench, folder, UPDATES + 3, compile=compile, **changes)
    firsts = []
    for _ in range(2):  # they compile, and fill the optimizers' states; they do not count
        begin = time.perf_counter()
        trainer.step_in_memory()
        torch.cuda.synchronize(bench.device)
        firsts.append(round(time.perf_counter() - begin, 2))
    begin, laps, tokens = time.perf_counter(), 0, 0
    while laps == 0 or (laps < UPDATES and bench.in_time):
        update = trainer.step_in_memory()
        laps, tokens = laps + 1, tokens + update.labels
    torch.cuda.synchronize(bench.device)
    seconds = time.perf_counter() - begin
    rate = tokens * trainer.pace.flops_per_token / seconds / 1e12
    product, sheet = bench.figures.get("rates", {}).get("product_tflops"), data_sheet(bench.device)
    estimate = training_memory(
        trainer.model.config, trainer.session.micro_batch, optimizer=trainer.settings.optimizer,
        precision=trainer.settings.precision, device=bench.device.type,
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
        figures["operators"] = operators(bench, trainer)


def operators(bench: Bench, trainer: Trainer) -> dict:
    """Return the kernels that take most of an update, as shares of the device's busy time, and that time's share."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        begin = time.perf_counter()
        trainer.step_in_memory()
        torch.cuda.synchronize(bench.device)
        seconds = time.perf_counter() - begin
    # each kernel is listed under its own name, and again under the operator that started it
    kernels = [each for each in recorded.key_averages() if each.device_type == torch.autograd.DeviceType.CUDA]
    times = {each.key[:80]: each.self_device_time_total / 1e6 for each in kernels}
    busy = sum(times.values()) or 1.0
    top = sorted(times, key=times.get, reverse=True)[:15]
    return {"busy": round(busy / seconds, 3), **{name: round(times[name] / busy, 3) for name in top}}


@contextlib.contextmanager
def runs_folder(folder: Path) -> Iterator[None]:
    """Let `folder` be the runs folder for a while."""
    with mock.patch.dict(os.environ, RUNS_DIR=str(folder)):
        yield


@contextlib.contextmanager
def own_runs(bench: Bench) -> Iterator[TrainSettings]:
    """Train in a runs folder of our own with the run's rooms 01–03; yield the settings that the rules choose."""
    source, folder = paths.run_dir(bench.run), bench.scratch / "runs"
    rooms = [paths.STAGES[stage][1] for stage in ("corpus", "vocab", "tokenize")]
    if missing := [room for room in rooms if not (source / room).is_dir()]:
        raise Skipped(f"the run '{bench.run}' has no {', '.join(missing)}")
    for room in rooms:
        shutil.copytree(source / room, folder / bench.run / room)
    with runs_folder(folder):
        yield decide(TrainSettings(run=bench.run, device=str(bench.device))).settings


def default_run(bench: Bench, figures: dict) -> None:
    """Train the run as notebook 04 does by default, to its end or that of the part's time."""
    with own_runs(bench) as settings:
        prepare_room(settings)
        figures |= run_training(settings, stop=lambda: not bench.in_time)
        lines = (paths.room(bench.run, "train") / "metrics.jsonl").read_text("utf-8").splitlines()
    figures["precision"] = json.loads(lines[0])["precision"]
    figures["skipped_updates"] = figures.pop("skipped")  # the word has another meaning here
    figures["peak_gib"] = round(memory_peak(bench.device) / GIB, 2)


def wrapped(bench: Bench, figures: dict) -> None:
    """Train the preset's model as it is, and wrapped in DDP, as a group of one process."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for kind in ("plain", "ddp", "ddp_compiled"):
            if not bench.in_time:
                raise Skipped("no time was left for the rest")
            figures[kind] = train_wrapped(bench, *kind.split("_"))
            pairs = zip(figures[kind]["losses"], figures["plain"]["losses"], strict=True)
            figures[kind]["losses_differ_by"] = round(max(abs(a / b - 1) for a, b in pairs), 6)
    finally:
        dist.destroy_process_group()


def wrap_alone(way: str, loss: Loss, device: torch.device) -> torch.nn.Module:
    """Wrap a single process's loss as `distributed.distribute` wraps that of several; "plain" leaves it as it is."""
    return DistributedDataParallel(loss, device_ids=[device.index]) if way == "ddp" else loss


def train_wrapped(bench: Bench, way: str, compiled: str = "") -> dict:
    """Do four updates, write a checkpoint, restore it, and do one more; return the figures."""
    changes = dict(batch_size=16, gradient_accumulation=2, compile=bool(compiled), warmup_steps=1)
    folder = bench.scratch / f"wrapped-{way}{compiled}"
    with mock.patch.object(distributed, "distribute", partial(wrap_alone, way)):
        trainer = preset_trainer(bench, folder, 5, **changes)
        updates = [trainer.step() for _ in range(4)]
        torch.cuda.synchronize(bench.device)
        begin = time.perf_counter()
        trainer.milestones.save()
        save_seconds = time.perf_counter() - begin
        wanted, got = trainer.step(), preset_trainer(bench, folder, 5, **changes).step()
    rate = sum(update.labels for update in updates[2:]) / sum(update.seconds for update in updates[2:])
    return {
        "tokens_per_second": round(rate),
        "losses": [update.loss / update.labels for update in updates],
        "save_seconds": round(save_seconds, 2),
        "resumed_loss_differs_by": round(abs(got.loss / wanted.loss - 1), 6),
        "peak_gib": round(memory_peak(bench.device) / GIB, 2),
    }


# ---- writing ----


def decode(bench: Bench, figures: dict) -> None:
    """Measure tokens per second of ours, without and with filters, and of the library, in fp32 and in bf16."""
    model, tokenizer = preset_writer(bench)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        each = copy.deepcopy(model).to(dtype)
        figures[name] = {}
        for sequences in SEQUENCES:
            common = (each, tokenizer, PROMPT, sequences, TOKENS)
            writers = {
                "ours": our_writer(*common),
                "ours_filtered": our_writer(*common, **USUAL),
                "library": library_writer(*common),
            }
            for writer, write in writers.items():
                if not bench.in_time:
                    raise Skipped("no time was left for the rest")
                write()
                speed = statistics.median(tokens_per_second(write) for _ in range(2))
                figures[name][f"{writer}_{sequences}"] = round(speed, 1)


# ---- the service ----


def engine(bench: Bench, figures: dict) -> None:
    """Measure the engine of room 06 alone: as many clients as places, each with one request after another."""
    model, tokenizer = preset_writer(bench)
    wanted = Settings(max_new_tokens=64)
    for clients in SEQUENCES:
        if not bench.in_time:
            raise Skipped("no time was left for the rest")
        firsts: list[float] = []
        running = Engine(model, tokenizer, Limits(max_rows=clients)).start()
        running.on_first_token = firsts.append
        running.submit("w00001", wanted).result()
        begin, before = time.perf_counter(), running.tokens

        def client(end: float, running=running) -> list[float]:
            latencies = []
            while (since := time.perf_counter()) < end:
                running.submit("w00001", wanted).result()
                latencies.append(1000 * (time.perf_counter() - since))
            return latencies

        with ThreadPoolExecutor(clients) as pool:
            latencies = sum(pool.map(client, [begin + SECONDS] * clients), [])
        tokens, seconds = running.tokens - before, time.perf_counter() - begin
        running.close()
        figures[f"clients_{clients}"] = {
            "tokens_per_second": round(tokens / seconds, 1),
            "request_ms_p50": round(statistics.median(latencies), 1),
            "request_ms_max": round(max(latencies), 1),
            "first_token_ms_p50": round(1000 * statistics.median(firsts), 1),
        }


def service(bench: Bench, figures: dict) -> None:
    """Put the service over HTTP under the load of benchmarks/serve_load.py; the server has a process of its own."""
    serve_load = importlib.import_module("benchmarks.serve_load")  # it needs packages that the other parts do not
    model, tokenizer = preset_writer(bench)
    options = Namespace(tokens=32, seconds=SECONDS)
    with runs_folder(bench.scratch / "served"):
        checkpoint.export_model(paths.room("gpu", "train") / "final_model", model, tokenizer)
        outputs = (paths.room("gpu", "train") / "final_model").iterdir()
        write_manifest("gpu", "train", parameters={}, inputs=[], outputs=outputs, result={})
        del model
        command = ("helpers.serve", "--run", "gpu", "--port", "0", "--max-rows", "64")
        with serve_load.serving(*command) as (address, pid):
            figures |= asyncio.run(serve_load.load(address, pid, options))
            figures |= asyncio.run(serve_load.health(address, options))


# ---- all of it ----

# name -> (share of the time, part), the most important first; what a part leaves, later ones have
PARTS: dict[str, tuple[float, Callable[[Bench, dict], None]]] = {
    "rates": (15, rates),
    "train": (110, partial(train_speed, compile=True)),
    "train_eager": (30, partial(train_speed, compile=False)),
    "train_as_written": (20, partial(train_speed, compile=False, batch_size=16, gradient_accumulation=8)),
    "default_run": (60, default_run),
    "decode": (75, decode),
    "engine": (20, engine),
    "service": (40, service),
    "wrapped": (120, wrapped),
}


def main() -> None:
    """Measure part by part, print a line each, and print one JSON line."""
    end = time.perf_counter()
    parser = command_line("gpu", __doc__)
    parser.add_argument("--run", default="sample", help="the run whose rooms 01–03 are trained on (default: sample)")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (default: 9)")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="default: all")
    options = parser.parse_args()
    end += 60 * options.minutes
    device = pick_device("auto")
    if device.type != "cuda":
        print("there is no GPU here: nothing is measured", file=sys.stderr)
        return report("gpu", describe_machine(device), {}, {})
    without_curves()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options.run, device, Path(scratch), end)
        for number, name in enumerate(options.parts):
            share, part = PARTS[name]
            left = sum(PARTS[later][0] for later in options.parts[number:])
            bench.measure(name, (end - time.perf_counter()) * share / left, part)
    aims = met(bench.figures.get("train", {}), {"share_of_data_sheet": AIM})
    report("gpu", bench.machine(), bench.figures, aims)


if __name__ == "__main__":
    main()
