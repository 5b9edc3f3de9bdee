"""How much of this machine's speed does training use? Our update against `transformers.Trainer`, turn by turn.

    python -m benchmarks.train_speed [--n-layer 12 --n-embd 768 --n-ctx 512 --batch 4 …] [--quick]

One process measures in turn: the rate of a large matrix product, an update of ours, an update inside Trainer's own
loop; with the same config, first weights, windows and precision. An update is compared with the product measured just
before it and with Trainer's update just after it, so a machine that slows down slows all of them; the median counts.
Before that, two processes of their own measure peak memory, with whole logits and with logits in chunks.

The defaults are GPT-2's 124 million parameters and its vocabulary of 50,257. The tokens are random: speed does not
know. Needs the package accelerate, which Trainer is built on (`pip install accelerate`).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from benchmarks.generate_speed import made_up_tokenizer
from benchmarks.machine import MIB, command_line, describe_machine, median_ratio, met, report
from helpers.device import autocast, matmul_rate, memory_peak, pick_device, wait
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import save_model
from helpers.tokens.windows import Stream, Windows
from helpers.train.loss import Loss
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer as OurTrainer

DEFAULTS = dict(n_layer=12, n_embd=768, n_head=12, n_ctx=512, vocab=50257, batch=4, accumulation=1, laps=3)
QUICK = dict(n_layer=2, n_embd=64, n_head=2, n_ctx=64, vocab=2000, batch=2, accumulation=2, laps=2)
AIMS = {"cpu": {"share_of_matmul_rate": 0.5, "times_trainer": 1.3}, "cuda": {"share_of_matmul_rate": 0.45}}
OPTIMIZER = dict(lr=1e-4, weight_decay=0.1, beta2=0.95)


def build(options: argparse.Namespace):
    """Return the model, as notebook 04 would build it, without dropout."""
    shape = {name: getattr(options, name) for name in ("n_ctx", "n_embd", "n_layer", "n_head")}
    return GPT(make_config("gpt2", made_up_tokenizer(options.vocab), **shape)).init_weights(0)


def windows(options: argparse.Namespace, count: int) -> torch.Tensor:
    """Return `count` windows of n_ctx + 1 random ids."""
    return torch.randint(options.vocab, (count, options.n_ctx + 1), generator=torch.Generator().manual_seed(0))


class Ours:
    """Updates of helpers/train/trainer.py."""

    def __init__(self, model, options: argparse.Namespace, precision: str, device: torch.device, folder: str):
        per_update = options.batch * options.accumulation
        ids = windows(options, per_update * (options.laps + 2)).numpy()  # two turns are not counted
        stream = Stream(list(ids), [np.zeros(1, np.int64)] * len(ids))
        data = Windows(stream, options.n_ctx, options.n_ctx, 0, "documents")
        settings = TrainSettings(
            epochs=1, batch_size=options.batch, gradient_accumulation=options.accumulation, warmup_steps=0,
            optimizer=options.optimizer, max_grad_norm=1.0, precision=precision, compile=options.compile,
            device=str(device), **OPTIMIZER,
        )  # fmt: skip
        self.trainer = OurTrainer(  # it writes no sample: `step` needs no tokenizer
            model, data, data, settings, Path(folder), None, chars_per_token={"train": 1.0, "val": 1.0}
        )
        self.precision, self.device = precision, device

    def update(self) -> float:
        """Make one update and return its seconds."""
        begin = time.perf_counter()
        self.trainer.step()
        wait(self.device)
        return time.perf_counter() - begin


class Turns(TrainerCallback):
    """Between two updates of Trainer, which it times from end to end, it measures the product and an update of ours."""

    def __init__(self, ours: Ours):
        self.ours, self.rows, self.resumed = ours, [], 0.0

    def on_train_begin(self, *args, **kwargs):
        """Make an update that counts for nothing, as Trainer's first one does: it loads and sets up."""
        self.ours.update()
        self._measure()

    def on_step_end(self, args, state, control, **kwargs):
        """Note Trainer's update and take the next turn."""
        wait(self.ours.device)
        self.rows[-1]["trainer"] = time.perf_counter() - self.resumed
        if state.global_step < state.max_steps:
            self._measure()

    def _measure(self) -> None:
        rate = matmul_rate(self.ours.precision, self.ours.device)
        self.rows.append({"rate": rate, "ours": self.ours.update()})
        self.resumed = time.perf_counter()


def train(options: argparse.Namespace, precision: str, device: torch.device) -> list[dict]:
    """Return a row of each turn: rate (FLOP/s) and the seconds of one update each, ours and Trainer's."""
    ours = build(options)
    data = [{"input_ids": row[:-1], "labels": row[:-1]} for row in windows(options, 64)]  # Trainer moves labels on
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), ours)
        model = AutoModelForCausalLM.from_pretrained(folder)
        turns = Turns(Ours(ours, options, precision, device, folder))
        arguments = TrainingArguments(
            folder, max_steps=options.laps + 1, per_device_train_batch_size=options.batch,
            gradient_accumulation_steps=options.accumulation, bf16=precision == "bf16", fp16=precision == "fp16",
            use_cpu=device.type == "cpu", learning_rate=OPTIMIZER["lr"], weight_decay=OPTIMIZER["weight_decay"],
            adam_beta2=OPTIMIZER["beta2"], torch_compile=options.compile, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        dataset = data * options.accumulation * options.batch
        trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[turns])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return turns.rows[1:]


def memory(options: argparse.Namespace, precision: str, device: torch.device) -> None:
    """Print the peak memory, in bytes, of a forward and backward pass."""
    model = build(options).to(device)
    ids = windows(options, options.batch).to(device)
    inputs, labels = ids[:, :-1], ids[:, 1:]
    with autocast(precision, device):
        if options.memory == "chunks":
            objective = Loss(model)(inputs, labels).objective
        else:
            objective = F.cross_entropy(model(inputs).float().flatten(0, 1), labels.flatten())
    objective.backward()
    print(memory_peak(device))


def measure_memory(how: str) -> int:
    """Return what `memory` prints in a process of its own, started with our arguments."""
    command = [sys.executable, "-m", "benchmarks.train_speed", *sys.argv[1:], "--memory", how]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(out.splitlines()[-1])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("train_speed", __doc__)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{value}; with --quick {QUICK[name]}")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw", help="ours; Trainer's is AdamW")
    parser.add_argument("--precision", default="bf16", help="of both: bf16 (default), fp32, fp16")
    parser.add_argument("--compile", action="store_true", help="compile both models")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs; no aims")
    parser.add_argument("--memory", choices=["whole", "chunks"], help=argparse.SUPPRESS)  # one of the two processes
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> None:
    """Measure, and print one JSON line."""
    options = arguments()
    device = pick_device("auto")
    if options.memory:
        return memory(options, options.precision, device)
    peaks = {how: measure_memory(how) for how in ("whole", "chunks")}  # first: a child starts from its parent's peak
    rows = train(options, options.precision, device)

    sizes = build(options).config.sizes()
    tokens = options.batch * options.accumulation * options.n_ctx
    shares = {
        who: [sizes["flops_per_token"] * tokens / row[who] / row["rate"] for row in rows] for who in ("ours", "trainer")
    }
    speed = {who: tokens / statistics.median(row[who] for row in rows) for who in shares}
    figures = {
        "parameters": sizes["parameters"],
        "tokens_per_update": tokens,
        "matmul_gflops": round(statistics.median(row["rate"] for row in rows) / 1e9, 1),
        "tokens_per_second": round(speed["ours"], 1),
        "trainer_tokens_per_second": round(speed["trainer"], 1),
        "share_of_matmul_rate": round(statistics.median(shares["ours"]), 3),
        "trainer_share_of_matmul_rate": round(statistics.median(shares["trainer"]), 3),
        "times_trainer": median_ratio([row["trainer"] for row in rows], [row["ours"] for row in rows]),
        "peak_mib_whole_logits": round(peaks["whole"] / MIB),
        "peak_mib_chunks": round(peaks["chunks"] / MIB),
        "peak_ratio": round(peaks["whole"] / peaks["chunks"], 2),
    }
    aims = {} if options.quick else met(figures, AIMS[device.type])
    report("train_speed", describe_machine(device), figures, aims)


if __name__ == "__main__":
    main()
