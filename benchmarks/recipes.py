"""How fast does a small model learn? A plain recipe, and what each change to it is worth, one change at a time.

The same text and size of model each time; one setting is changed after the other. Every recipe trains for the same
number of seconds with each seed, then all are scored on the whole validation text.

    python -m benchmarks.recipes --run NAME [--seconds 150] [--seeds 2] [--n-layer 4 --n-embd 256 --n-ctx 256]
                                 [--only RECIPE …] [--keep NAME]

The run must have passed notebooks 01 to 03. Only seconds spent in updates count: not start, validation or saving.
Before its clock runs, each recipe makes a few updates that are thrown away, so that none pays for loading libraries.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.machine import command_line, describe_machine, describe_text, mean_and_spread, report
from helpers import paths
from helpers.device import pick_device, pick_precision
from helpers.manifest import open_room
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens.windows import TokenStream, Windows
from helpers.train.log import read_log_rows
from helpers.train.loss import Loss
from helpers.train.milestones import evaluate
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.tokenizer import load_tokenizer

# A plain recipe for GPT-2: linear decay over 5 epochs, which 150 seconds cut short as they would any reader's
PLAIN = dict(
    optimizer="adamw", lr=1.5e-4, beta2=0.999, eps=1e-8, weight_decay=0.0, momentum=0.95, warmup_steps=2000,
    schedule="linear", final_lr_fraction=0.0, batch_size=8, dropout=0.1, precision="fp32", max_grad_norm=1.0,
    fits=False, architecture="gpt2",
)  # fmt: skip
CHANGES = {  # each is one setting, on top of those before it; `fits`: the schedule ends when the time does
    "plain": {},
    "+ precision": {"precision": "fast"},
    "+ short warm-up": {"warmup_steps": 20},
    "+ a schedule that fits": {"fits": True},
    "+ rate 3e-3": {"lr": 3e-3},
    "+ beta2 0.95": {"beta2": 0.95},
    "+ decay 0.01": {"weight_decay": 0.01},
    "+ no dropout": {"dropout": 0.0},
    "+ Muon": {"optimizer": "muon"},
    "+ rate 1e-2": {"lr": 1e-2},
    "+ momentum 0.8": {"momentum": 0.8},
    "+ LLaMA's form": {"architecture": "llama"},
    "+ batch of 32": {"batch_size": 32},
}
# nanoGPT's config for small texts with what its README changes for a machine without a GPU (Karpathy 2022)
NANOGPT = PLAIN | dict(
    lr=1e-3, beta2=0.99, weight_decay=0.1, warmup_steps=100, schedule="cosine", final_lr_fraction=0.1, batch_size=12,
    dropout=0.0, fits=True,
)  # fmt: skip
SIDE = {"nanoGPT": NANOGPT, "nanoGPT in bf16": NANOGPT | {"precision": "fast"}}
WARM = 3.0  # seconds of updates before the clock runs


def recipes() -> dict[str, dict]:
    """Return the recipes in the order of the table, each with all its settings."""
    done, found = PLAIN, {}
    for name, changes in CHANGES.items():
        done = done | changes
        found[name] = done
    return found | SIDE


class Bench:
    """One model and one text, on which recipes are tried."""

    def __init__(self, options: argparse.Namespace):
        result = open_room(options.run, "tokenize")["result"]
        self.tokenizer = load_tokenizer(paths.room(options.run, "vocab"))
        n_ctx, pad = options.n_ctx, self.tokenizer.pad_token_id
        streams = [TokenStream(options.run, split, result["dtype"]) for split in ("train", "val")]
        self.train = Windows(streams[0], n_ctx, n_ctx, pad, "auto")
        self.val = Windows(streams[1], n_ctx, n_ctx // 2, pad, "auto", once=True)
        self.chars_per_token = {"train": result["chars_per_token"], "val": result["val_chars_per_token"]}
        self.device = pick_device("auto")
        self.fast = pick_precision("auto", self.device)
        self.options = options

    def config(self, architecture: str, dropout: float):
        """Return the config of a model; the last step changes its form, not its size."""
        shape = {name: getattr(self.options, name) for name in ("n_ctx", "n_embd", "n_layer", "n_head")}
        return make_config(architecture, len(self.tokenizer), dropout=dropout, **shape)

    def fit(self, recipe: dict, seconds: float, seed: int) -> tuple[torch.nn.Module, list[dict]]:
        """Train a fresh model by a recipe for so long; return it and the rows of its log."""
        model = GPT(self.config(recipe["architecture"], recipe["dropout"])).init_weights(seed)
        apart = ("architecture", "dropout", "fits", "precision")
        shared = {name: value for name, value in recipe.items() if name not in apart}
        began = []

        def over() -> bool:  # asked once an update; its first call comes at the end of the first
            began.append(time.perf_counter())
            return not recipe["fits"] and began[-1] - began[0] > seconds * (1 - 1 / len(began))

        with tempfile.TemporaryDirectory() as folder:
            settings = TrainSettings(
                **shared, epochs=5, max_minutes=seconds / 60 if recipe["fits"] else 0.0, gradient_accumulation=1,
                precision=self.fast if recipe["precision"] == "fast" else recipe["precision"], compile=False,
                device=str(self.device), parallel="ddp", seed=seed, log_step=1, eval_step=0,
                sample_step=0, checkpoint_step=0,
            )  # fmt: skip
            loop = Trainer(
                model, self.train, self.val.first(1), settings, Path(folder), self.tokenizer,
                chars_per_token=self.chars_per_token, stop=over,
            )  # fmt: skip
            # what counts is the last state: a glance at eight tokens may not choose another
            loop.milestones.return_to_best = lambda scores: scores
            loop.run()
            return model, read_log_rows(folder, "step")

    def measure(self, name: str, recipe: dict, seconds: float, seed: int = 0) -> dict:
        """Return what a recipe reaches in so many seconds, and how it came there."""
        self.fit(recipe, min(WARM, seconds), seed)
        model, rows = self.fit(recipe, seconds, seed)
        found = evaluate(Loss(model), self.val, 32, self.fast, self.device)
        bits = found["loss"] / torch.log(torch.tensor(2.0)).item() / self.chars_per_token["val"]
        row = {
            "recipe": name, "seed": seed, "seconds": rows[-1]["train_seconds"], "updates": rows[-1]["step"],
            "epochs": rows[-1]["epoch"], "tokens_per_second": rows[-1]["tokens_per_second"], "bits_per_char": bits,
        }  # fmt: skip
        print(row, flush=True)
        return row


def summary(rows: list[dict], names: list[str]) -> dict[str, dict]:
    """Return for each recipe the mean and the spread over its seeds, and what the step from the one before did."""
    found: dict[str, dict] = {}
    before: dict[str, dict] = {}  # the recipe above, unless this one stands apart
    for name in names:
        mine = [row for row in rows if row["recipe"] == name]
        bits = mean_and_spread([row["bits_per_char"] for row in mine])
        found[name] = {
            "bits_per_character": bits,
            "updates": round(statistics.mean(row["updates"] for row in mine)),
            "tokens_per_second": round(statistics.mean(row["tokens_per_second"] for row in mine)),
        }
        if before and name not in SIDE:
            gain = before["mean"] - bits["mean"]
            clear = abs(gain) > max(before["spread"], bits["spread"]) and len(mine) > 1
            words = f"{'better' if gain > 0 else 'worse'} by {abs(gain):.3f}" if clear else "no difference seen"
            found[name]["against_the_one_before"] = words
        before = bits
    return found


def main() -> None:
    """Measure all recipes, print the table, draw the figure, and print one JSON line."""
    parser = command_line("recipes", __doc__, text=True)
    parser.add_argument("--run", default="sample", help="a run that has passed notebooks 01 to 03")
    parser.add_argument("--seconds", type=float, default=150.0, help="training time of each recipe with each seed")
    for name, value in dict(n_layer=4, n_embd=256, n_head=4, n_ctx=256, seeds=1).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--only", nargs="+", metavar="RECIPE", help="some of the recipes; the last one is among them")
    options = parser.parse_args()

    bench, known, best = Bench(options), recipes(), list(CHANGES)[-1]
    chosen = {name: recipe for name, recipe in known.items() if not options.only or name in options.only + [best]}
    if unknown := set(options.only or []) - set(known):
        parser.error(f"no recipe is called {sorted(unknown)}; there is: {', '.join(known)}")
    if bench.fast == "fp32":
        print("no units for half precision: '+ precision' changes nothing here")
    sizes = bench.config("gpt2", 0.0).sizes()
    print(
        f"run {options.run}: {len(bench.train):,} windows of at most {options.n_ctx} tokens, {sizes['parameters']:,} "
        f"parameters, {bench.fast} on {bench.device}, {options.seconds:.0f} s each\n"
    )
    turns = [(seed, name) for seed in range(options.seeds) for name in chosen]
    rows = [bench.measure(name, chosen[name], options.seconds, seed) for seed, name in turns]
    figures = summary(rows, list(chosen))
    settings = {name: getattr(options, name) for name in ("seconds", "seeds", "n_layer", "n_embd", "n_head", "n_ctx")}
    settings |= {"precision": bench.fast, "parameters": sizes["parameters"]}
    text = describe_text(options.run, options.title, options.licence)
    machine = describe_machine(bench.device)
    report("recipes", machine, figures, {}, options.keep, text=text, settings=settings)


if __name__ == "__main__":
    main()
