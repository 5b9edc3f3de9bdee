"""How fast does a small model learn? A plain recipe, and what each change to it is worth, one change at a time.

The same text and size of model each time; one setting is changed after the other. Every recipe trains for the same
number of seconds with each seed, then all are scored on the whole validation text. With --reach the last recipe then
gets ever more time until it has reached what the plain recipe, and what nanoGPT's settings, reach in the full time.

    python -m benchmarks.recipes --run NAME [--seconds 150] [--seeds 2] [--n-layer 4 --n-embd 256 --n-ctx 256]
                                 [--reach] [--figure PNG] [--keep NAME]

The run must have passed notebooks 01 to 03. Only seconds spent in updates count: not start, validation or saving.
Before its clock runs, each recipe makes a few updates that are thrown away, so that none pays for loading libraries.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.machine import describe_machine, describe_text, mean_and_spread, report
from helpers import paths
from helpers.device import pick_device, pick_precision
from helpers.manifest import open_room
from helpers.tokens.windows import TokenStream, Windows
from helpers.train.log import read_log_rows
from helpers.train.loss import Loss
from helpers.train.milestones import evaluate
from helpers.train.model import build_model, make_config, model_sizes
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
AIMS = {"plain": 6 / 150, "nanoGPT": 40 / 150}  # the part of --seconds in which the last one reaches what they reach
WARM = 3.0  # seconds of updates before the clock runs
SLOWER = 1.5  # a budget that wasn't enough is followed by one so many times as long


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
        self.glance = Windows(_Beginning(streams[1]), n_ctx, n_ctx, pad)  # Trainer takes one; what counts is self.val
        self.chars_per_token = {"train": result["chars_per_token"], "val": result["val_chars_per_token"]}
        self.device = pick_device("auto")
        self.fast = pick_precision("auto", self.device)
        self.options = options

    def config(self, architecture: str, dropout: float):
        """Return the config of a model; the last step changes its form, not its size."""
        shape = {name: getattr(self.options, name) for name in ("n_ctx", "n_embd", "n_layer", "n_head")}
        return make_config(architecture, self.tokenizer, dropout=dropout, **shape)

    def fit(self, recipe: dict, seconds: float, seed: int) -> tuple[torch.nn.Module, list[dict]]:
        """Train a fresh model by a recipe for so long; return it and the rows of its log."""
        model = build_model(self.config(recipe["architecture"], recipe["dropout"]), seed)
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
                model, self.train, self.glance, settings, Path(folder), self.tokenizer,
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
            # while a text is new to the model, the loss on it is as good as a validation
            "curve": [(each["train_seconds"], each["bits_per_char"]) for each in rows if each["epoch"] <= 1],
        }  # fmt: skip
        print(line(row), flush=True)
        return row

    def time_to_reach(self, name: str, recipe: dict, bits: float, seconds: float) -> list[dict]:
        """Give a recipe `seconds`, then ever more up to the full time, until it reaches `bits`; return all tries."""
        tries = []
        while not tries or (tries[-1]["bits_per_char"] > bits and seconds <= self.options.seconds):
            tries.append(self.measure(f"{name}, {seconds:.1f} s", recipe, seconds))
            seconds *= SLOWER
        return tries


class _Beginning:
    """The first few tokens of a stream."""

    def __init__(self, stream: TokenStream):
        self.stream = stream

    def __len__(self) -> int:
        return min(len(self.stream), 9)

    def read(self, start: int, stop: int):
        return self.stream.read(start, min(stop, len(self)))


def line(row: dict) -> str:
    """Return a row of the table as text."""
    return (
        f"{row['recipe']:24} {row['seconds']:7.1f} s {row['updates']:7,} updates {row['epochs']:6.2f} epochs "
        f"{row['tokens_per_second']:8,.0f} tokens/s {row['bits_per_char']:8.3f} bits/char"
    )


def crossing(row: dict, bits: float, window: int = 20) -> float | None:
    """Return the seconds at which a recipe's loss, averaged over `window` updates, first is at most `bits`.

    A rate that hasn't fallen yet holds the loss up: a schedule fitted to fewer seconds gets there sooner.
    """
    for end in range(window, len(row["curve"]) + 1):
        if sum(value for _, value in row["curve"][end - window : end]) / window <= bits:
            return row["curve"][end - 1][0]
    return row["seconds"] if row["bits_per_char"] <= bits else None


def figure(rows: list[dict], tries: list[dict], path: Path) -> None:
    """Draw loss over training time: a line for each recipe, its validation at the end, and the best one's tries."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, ax = plt.subplots(figsize=(8, 5))
    for row in rows:
        (drawn,) = ax.plot(*zip(*row["curve"], strict=True), linewidth=1, alpha=0.7)
        label = f"{row['recipe']}: {row['bits_per_char']:.2f}"
        ax.plot(row["seconds"], row["bits_per_char"], "o", color=drawn.get_color(), label=label)
    for row in tries:
        ax.plot(row["seconds"], row["bits_per_char"], "k*", markersize=10)
    ax.plot([], [], "k*", label="the best, given less time")
    ax.set(xscale="log", xlabel="seconds of training", ylabel="bits per character")
    ax.set_title("lines: text as it is first read; points: validation at the end")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    fig.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(fig)


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


def reach(bench: Bench, chosen: dict[str, dict], rows: list[dict], seconds: float) -> tuple[dict, dict, list[dict]]:
    """Give the last recipe ever more time until it is where others are after the full time; return figures and aims."""
    best = list(CHANGES)[-1]
    figures, aims, tries = {}, {}, []
    for name, part in AIMS.items():
        if name not in chosen:
            continue
        aim = part * seconds
        level = next(row["bits_per_char"] for row in rows if row["recipe"] == name)
        print(f"\n'{best}' on its way to {level:.3f}, what '{name}' has after {seconds:.0f} s:")
        made = bench.time_to_reach(best, chosen[best], level, 0.98 * aim)  # so that the last update is in time
        tries += made
        reached = made[-1]["bits_per_char"] <= level
        took = round(made[-1]["seconds"], 2) if reached else None
        value = {"value": took, "aim": round(aim, 2), "met": reached and took <= aim}
        aims[f"seconds to the level of {name} after {seconds:.0f} s"] = value
        for row in (row for row in rows if row["seed"] == 0):
            sooner = crossing(row, level)
            figures[f"seconds to the level of {name}, {row['recipe']}"] = sooner and round(sooner, 1)
    return figures, aims, tries


def main() -> None:
    """Measure all recipes, print the table, draw the figure, and print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="sample", help="a run that has passed notebooks 01 to 03")
    parser.add_argument("--seconds", type=float, default=150.0, help="training time of each recipe with each seed")
    for name, value in dict(n_layer=4, n_embd=256, n_head=4, n_ctx=256, seeds=1).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--only", nargs="+", metavar="RECIPE", help="some of the recipes; the last one is among them")
    parser.add_argument("--reach", action="store_true", help="how soon is the last recipe where the others end?")
    parser.add_argument("--figure", type=Path, help="where to put a PNG")
    parser.add_argument("--title", default="", help="of the text, for the report")
    parser.add_argument("--licence", default="", help="of the text, for the report")
    parser.add_argument("--keep", default="", help="keep the report as benchmarks/reports/<KEEP>.json")
    options = parser.parse_args()

    bench, known, best = Bench(options), recipes(), list(CHANGES)[-1]
    chosen = {name: recipe for name, recipe in known.items() if not options.only or name in options.only + [best]}
    if unknown := set(options.only or []) - set(known):
        parser.error(f"no recipe is called {sorted(unknown)}; there is: {', '.join(known)}")
    if bench.fast == "fp32":
        print("no units for half precision: '+ precision' changes nothing here")
    sizes = model_sizes(bench.config("gpt2", 0.0))
    print(
        f"run {options.run}: {len(bench.train):,} windows of at most {options.n_ctx} tokens, {sizes['parameters']:,} "
        f"parameters, {bench.fast} on {bench.device}, {options.seconds:.0f} s each\n"
    )
    turns = [(seed, name) for seed in range(options.seeds) for name in chosen]
    rows = [bench.measure(name, chosen[name], options.seconds, seed) for seed, name in turns]
    figures = summary(rows, list(chosen))
    more, aims, tries = reach(bench, chosen, rows, options.seconds) if options.reach else ({}, {}, [])
    print(f"\n{'recipe':24} bits/char   spread")
    for name, each in figures.items():
        bits = each["bits_per_character"]
        print(f"{name:24} {bits['mean']:9.3f} {bits['spread']:8.3f}  {each.get('against_the_one_before', '')}")
    if options.figure:
        figure([row for row in rows if row["seed"] == 0], tries, options.figure)
        print(f"figure: {options.figure}")
    settings = {name: getattr(options, name) for name in ("seconds", "seeds", "n_layer", "n_embd", "n_head", "n_ctx")}
    result = {
        "benchmark": "recipes",
        "machine": describe_machine(bench.device),
        "text": describe_text(options.run, options.title, options.licence),
        "settings": settings | {"precision": bench.fast, "parameters": sizes["parameters"]},
        "figures": figures | more,
        "aims": aims,
    }
    report(result, options.keep)


if __name__ == "__main__":
    main()
