"""Characters, words, BPE or bytes? Four tokenizers of one text, at equal training time and at equal updates.

    python -m benchmarks.tournament --run NAME [--seconds 60] [--seeds 2] [--title "…" --licence "…"] [--keep NAME]

The run must have passed notebook 01. Each tokenizer gets the same small model, trained on the same text. They take
turns, update by update: the one that has trained for the least time goes next. So a machine that slows down slows all
of them. Only updates count; on a CPU a second is processor time divided by threads, so another busy program takes
nothing from anyone.

After its warm-up the learning rate stays constant, so every point of a curve is comparable with every other point. A
rate that falls to 0 would lower all four at the end. Validation is measured in bits per character, on the same text.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.machine import command_line, describe_machine, describe_text, mean_and_spread, report
from helpers import parallel
from helpers.corpus.shards import read_texts
from helpers.device import pick_device
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens.windows import Windows, encode_texts
from helpers.train.milestones import evaluate
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.tokenizer import build_bpe, build_bytes, build_characters, build_words
from helpers.vocab.words import choose_words, count_characters, count_words, get_segmenter, take_texts

VOCAB_SIZE, MIN_COUNT, LONGEST_WORD = 8000, 3, 12  # rarer words than in notebook 02 (10)
TRAIN_CHARACTERS = 20_000_000
SHAPE = dict(n_ctx=128, n_embd=128, n_layer=2, n_head=4)
RECIPE = dict(
    optimizer="muon", lr=5e-3, momentum=0.8, beta2=0.95, weight_decay=0.01, warmup_steps=20, schedule="constant"
)  # fmt: skip
FIRST_UPDATES = 25  # validation after so many updates, then after twice as many, and so on
PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the time: validation there too


@dataclass
class Entrant:
    """One tokenizer with one seed: its model in training, and the curve so far."""

    trainer: Trainer
    val: Windows
    seconds: float = 0.0  # in updates
    due_updates: int = FIRST_UPDATES
    due_seconds: list[float] = field(default_factory=list)
    curve: list[tuple[int, float, float]] = field(default_factory=list)  # updates, seconds, bits per character

    def update(self) -> float:
        """Do one update; return how long it took."""
        on_cpu = self.trainer.device.type == "cpu"
        clock, share = (time.process_time, torch.get_num_threads()) if on_cpu else (time.perf_counter, 1)
        begin = clock()
        self.trainer.step()
        return (clock() - begin) / share

    def go_on(self, seconds: float) -> None:
        """Do one update, and validate if that is due: at certain updates, at certain seconds, at the end."""
        trainer = self.trainer
        self.seconds += self.update()
        if trainer.progress.position >= len(trainer.train):
            trainer.close_epoch()
        updates = trainer.progress.step
        reached = [mark for mark in self.due_seconds if mark <= self.seconds]
        if updates >= self.due_updates or reached or self.seconds >= seconds:
            self.due_updates *= 2 if updates >= self.due_updates else 1
            self.due_seconds = self.due_seconds[len(reached) :]
            scores = evaluate(trainer.local_loss, self.val, 32, trainer.precision, trainer.device)
            self.curve.append((updates, round(self.seconds, 2), scores["loss"] * trainer.milestones.bits_per_char))


def four_tokenizers(run: str, segmenter: str) -> dict:
    """Return characters, words, BPE and bytes, made from the training text; each character in it is a token."""
    segment, cache = get_segmenter(segmenter)
    with parallel.executor(1) as pool:
        counts = count_words(read_texts(run, "train"), pool, "", segment, cache)
    characters = count_characters(counts)
    words = build_words(choose_words(counts, VOCAB_SIZE, MIN_COUNT, LONGEST_WORD), characters)
    bpe = build_bpe(read_texts(run, "train"), len(words), MIN_COUNT)
    return {"characters": build_characters(characters), "words": words, "bpe": bpe, "bytes": build_bytes()}


def enter(tokenizer, texts: dict[str, list[str]], options: argparse.Namespace, seed: int, folder: Path) -> Entrant:
    """Return a tokenizer's entrant, ready to train."""
    train, val = (
        Windows(encode_texts(tokenizer, texts[split]), SHAPE["n_ctx"], SHAPE["n_ctx"], tokenizer.pad_token_id, "auto")
        for split in ("train", "val")
    )
    ratio = {split: sum(map(len, texts[split])) / part.answers for split, part in (("train", train), ("val", val))}
    settings = TrainSettings(
        **RECIPE, epochs=10**6, batch_size=options.batch_size, gradient_accumulation=1, final_lr_fraction=0.0,
        precision=options.precision, device=options.device, seed=seed, sample_step=0, log_step=10**6,
    )  # fmt: skip
    model = GPT(make_config("llama", len(tokenizer), **SHAPE)).init_weights(seed)
    trainer = Trainer(model, train, val, settings, folder, tokenizer, chars_per_token=ratio)
    return Entrant(trainer, val, due_seconds=[options.seconds * part for part in PARTS])


def verdict(bits: dict[str, dict[str, float]]) -> str:
    """Return the order in words; neighbours that differ by no more than their spread are joined by `=`."""
    order = sorted(bits, key=lambda name: bits[name]["mean"])
    words = order[0]
    for better, worse in zip(order, order[1:], strict=False):
        clear = bits[worse]["mean"] - bits[better]["mean"] > max(bits[better]["spread"], bits[worse]["spread"]) > 0
        words += f"{' < ' if clear else ' = '}{worse}"
    return words


def main() -> None:
    """Train all, print the table, and print one JSON line."""
    parser = command_line("tournament", __doc__, text=True)
    parser.add_argument("--run", default="sample", help="a run that has passed notebook 01")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each model")
    parser.add_argument("--seeds", type=int, default=2, help="models per tokenizer, each from another seed")
    parser.add_argument("--val-characters", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=16, help="windows per update")
    parser.add_argument("--segmenter", default="thulac")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    # 1. the tokenizers and the text
    began = time.perf_counter()
    four = four_tokenizers(options.run, options.segmenter)
    texts = {
        "train": take_texts(read_texts(options.run, "train"), TRAIN_CHARACTERS),
        "val": take_texts(read_texts(options.run, "val"), options.val_characters),
    }
    print(f"{', '.join(f'{name} {len(each):,}' for name, each in four.items())} tokens", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # 2. all train, turn by turn
        entrants = {
            (name, seed): enter(tokenizer, texts, options, seed, Path(folder, f"{name}-{seed}"))
            for name, tokenizer in four.items()
            for seed in range(options.seeds)
        }
        print(f"ready after {time.perf_counter() - began:.0f} s", flush=True)
        for entrant in entrants.values():  # the first updates of a process are slow: they are done, and not timed
            entrant.update()
        while behind := [each for each in entrants.values() if each.seconds < options.seconds]:
            min(behind, key=lambda each: each.seconds).go_on(options.seconds)
        for entrant in entrants.values():
            entrant.trainer.end("time is over")
    for (name, seed), entrant in entrants.items():
        updates, seconds, bits = entrant.curve[-1]
        print(f"{name}, {seed}: {seconds:.1f} s, {updates:,} updates, {bits:.3f} bits per character")

    # 3. the figures
    def at(name: str, column: int, value: float) -> list[float]:
        """Return each seed's bits at the first point of its curve whose updates (0) or seconds (1) reach `value`."""
        curves = [entrants[name, seed].curve for seed in range(options.seeds)]
        return [next(point[2] for point in curve if point[column] >= value) for curve in curves]

    fewest = min(entrant.trainer.progress.step for entrant in entrants.values())
    doublings = int(math.log2(max(1, fewest / FIRST_UPDATES)))
    shared = FIRST_UPDATES * 2**doublings if fewest >= FIRST_UPDATES else fewest
    time_marks = [options.seconds * part for part in (*PARTS, 1)]
    update_marks = [FIRST_UPDATES * 2**power for power in range(doublings + 1)] if fewest >= FIRST_UPDATES else [fewest]
    figures = {}
    for name, tokenizer in four.items():
        first = entrants[name, 0].trainer
        steps = [entrants[name, seed].trainer.progress.step for seed in range(options.seeds)]
        per_update = first.progress.tokens / first.progress.step
        ratio = 1 / math.log(2) / first.bits_per_char["val"]  # characters per token of validation text
        figures[name] = {
            "tokens": len(tokenizer),
            "parameters": first.model.config.sizes()["parameters"],
            "characters_per_token": round(ratio, 3),
            "updates": round(statistics.mean(steps)),
            "characters_read": round(statistics.mean(steps) * per_update * ratio),
            "epochs": round(first.progress.epoch + first.progress.position / len(first.train), 2),
            "by_seconds": {f"{mark:g}": mean_and_spread(at(name, 1, mark)) for mark in time_marks},
            "by_updates": {f"{mark}": mean_and_spread(at(name, 0, mark)) for mark in update_marks},
        }
    equal_time = {name: each["by_seconds"][f"{options.seconds:g}"] for name, each in figures.items()}
    equal_updates = {name: each["by_updates"][f"{shared}"] for name, each in figures.items()}

    # 4. the report
    on_cpu = next(iter(entrants.values())).trainer.device.type == "cpu"
    report(
        "tournament", describe_machine(pick_device(options.device)), figures, {}, options.keep,
        text=describe_text(options.run, options.title, options.licence),
        settings={
            "seconds": options.seconds, "seeds": options.seeds, "batch_size": options.batch_size, **SHAPE, **RECIPE,
            "architecture": "llama", "precision": next(iter(entrants.values())).trainer.precision,
            "segmenter": options.segmenter, "clock": "processor time per thread" if on_cpu else "wall",
            "unit": "bits per character of validation text",
            "validated_on_characters": sum(map(len, texts["val"])), "updates_compared": shared,
        },
        verdicts={"equal_time": verdict(equal_time), "equal_updates": verdict(equal_updates)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
