"""Characters, words, BPE or bytes? Four tokenizers of one text, each with the same number of operations.

    python -m benchmarks.tournament --run NAME [--characters 250000] [--seeds 4] [--title "…" --licence "…"] [--keep …]

The run must have passed notebook 01. Each tokenizer gets the same small model, trained on the same text from several
seeds. The budget of each training is what the costliest tokenizer needs to read the text once; the others read it more
often. Operations are counted, so a busy machine takes nothing from anyone.

Windows hold whole documents, so an update reads the same text with each tokenizer. After its warm-up the learning rate
stays constant, so every point of a curve is comparable with every other point. Validation is measured in bits per
character, on the same text.
"""

import math
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.machine import command_line, describe_machine, describe_text, report
from helpers import parallel
from helpers.corpus.shards import read_texts
from helpers.device import pick_precision
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens.windows import Windows, encode_texts
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.choice import choose_sizes
from helpers.vocab.tokenizer import build_bpe, build_bytes, build_characters, build_words
from helpers.vocab.words import choose_words, count_characters, count_words, get_segmenter, take_texts

MIN_COUNT, LONGEST_WORD = 10, 12  # as in notebook 02
SHAPE = dict(n_ctx=384, n_embd=128, n_layer=2, n_head=4)  # the built-in corpus has no document of more bytes
RECIPE = dict(
    optimizer="muon", lr=5e-3, momentum=0.8, beta2=0.95, weight_decay=0.01, warmup_steps=20, schedule="constant",
    batch_size=8,
)  # fmt: skip
PARTS = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1)  # of the budget: validation

Texts = dict[str, list[str]]  # train and val


def four_tokenizers(run: str, segmenter: str) -> dict[str, PreTrainedTokenizerFast]:
    """Return characters, words, BPE and bytes, made from the training text; each character in it is a token."""
    segment, cache = get_segmenter(segmenter)
    with parallel.executor(1) as pool:
        counts = count_words(read_texts(run, "train"), pool, "", segment, cache)
    characters = count_characters(counts)
    vocab_size, _ = choose_sizes(0, 0, characters.total(), True)
    words = build_words(choose_words(counts, vocab_size, MIN_COUNT, LONGEST_WORD), characters)
    bpe = build_bpe(read_texts(run, "train"), len(words), MIN_COUNT, characters=characters)
    return {"characters": build_characters(characters), "words": words, "bpe": bpe, "bytes": build_bytes()}


def windows_of(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Windows:
    """Return the windows of some texts, a document each."""
    n_ctx = SHAPE["n_ctx"]
    return Windows(encode_texts(tokenizer, texts), n_ctx, n_ctx, tokenizer.pad_token_id, "documents")


def operations_per_token(tokenizer: PreTrainedTokenizerFast, train: Windows) -> int:
    """Return the operations of training on one token, attention over windows of the length that they have."""
    config = make_config("llama", len(tokenizer), **SHAPE)
    return config.sizes(round(train.answers / len(train)))["flops_per_token"]


def race(name: str, tokenizer: PreTrainedTokenizerFast, texts: Texts, seed: int, budget: float, precision: str) -> list:
    """Train one model with `budget` operations; return points (updates, characters, operations, bits per character).

    There is a point at each part of the budget, and one each time that the text has been read to its end.
    """
    torch.set_num_threads(1)
    train, val = (windows_of(tokenizer, texts[split]) for split in ("train", "val"))
    ratio = {split: sum(map(len, texts[split])) / part.answers for split, part in (("train", train), ("val", val))}
    cost, points, due = operations_per_token(tokenizer, train), [], [budget * part for part in PARTS]
    settings = TrainSettings(
        **RECIPE, epochs=10**6, gradient_accumulation=1, precision=precision, device="cpu", seed=seed, sample_step=0,
        log_step=10**6,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = GPT(make_config("llama", len(tokenizer), **SHAPE)).init_weights(seed)
        trainer = Trainer(model, train, val, settings, Path(folder), tokenizer, chars_per_token=ratio)
        progress = trainer.progress
        while due:
            trainer.step()
            spent, read = progress.tokens * cost, round(progress.tokens * ratio["train"])
            if end_of_text := progress.position >= len(train):
                trainer.close_epoch()
            if end_of_text or spent >= due[0]:
                bits = trainer.milestones.validate()["bits_per_char"]
                points.append((progress.step, read, spent, round(bits, 4)))
                due = [mark for mark in due if mark > spent]
        trainer.end("the operations are used up")
    print(f"{name}, {seed}: {progress.step:,} updates, {bits:.3f} bits per character", flush=True)
    return points


def describe(tokenizer: PreTrainedTokenizerFast, texts: Texts) -> dict[str, float]:
    """Return what a tokenizer makes of the texts, and what its model costs."""
    train = windows_of(tokenizer, texts["train"])
    cost = operations_per_token(tokenizer, train)
    return {
        "tokens": len(tokenizer),
        "parameters": make_config("llama", len(tokenizer), **SHAPE).sizes()["parameters"],
        "characters_per_token": round(sum(map(len, texts["val"])) / windows_of(tokenizer, texts["val"]).answers, 3),
        "tokens_per_document": round(train.answers / len(train), 1),
        "whole_documents": round(sum(train.lengths < SHAPE["n_ctx"]) / len(train), 4),
        "operations_per_token": cost,
        "operations_per_reading": cost * train.answers,
    }


def beaten(bits: dict[str, list[float]]) -> dict[str, list[str]]:
    """Return whom each name beats: those whose best seed is worse than its own worst one."""
    return {one: [other for other in bits if max(bits[one]) < min(bits[other])] for one in bits}


def luck(seeds: int) -> float:
    """Return how often two equally good ones, with so many seeds each, are parted so by chance, either way round."""
    return 2 / math.comb(2 * seeds, seeds)


def main() -> None:
    """Train all, print the table, and print one JSON line."""
    parser = command_line("tournament", __doc__, text=True)
    parser.add_argument("--run", default="sample", help="a run that has passed notebook 01")
    parser.add_argument("--characters", type=int, default=250_000, help="training text")
    parser.add_argument("--val-characters", type=int, default=16_000)
    parser.add_argument("--seeds", type=int, default=4, help="models per tokenizer, each from another seed")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument("--segmenter", default="thulac")
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()

    # 1. the tokenizers, the text, the budget
    four = four_tokenizers(options.run, options.segmenter)
    texts = {
        "train": take_texts(read_texts(options.run, "train"), options.characters),
        "val": take_texts(read_texts(options.run, "val"), options.val_characters),
    }
    figures: dict[str, dict] = {name: describe(tokenizer, texts) for name, tokenizer in four.items()}
    budget = max(each["operations_per_reading"] for each in figures.values())
    # 2. all train
    with parallel.executor(options.workers) as pool:
        runs = {
            (name, seed): pool.submit(race, name, tokenizer, texts, seed, budget, options.precision)
            for seed in range(options.seeds)
            for name, tokenizer in four.items()
        }
        for name in four:
            figures[name]["curves"] = [runs[name, seed].result() for seed in range(options.seeds)]
    # 3. the report
    ends = {name: [curve[-1][-1] for curve in each["curves"]] for name, each in figures.items()}
    report(
        "tournament", describe_machine(torch.device("cpu")), figures, {}, options.keep,
        text=describe_text(options.run, options.title, options.licence),
        settings={
            "operations": budget, "seeds": options.seeds, **SHAPE, **RECIPE, "architecture": "llama",
            "precision": pick_precision(options.precision, torch.device("cpu")), "segmenter": options.segmenter,
            "characters": sum(map(len, texts["train"])), "validated_on_characters": sum(map(len, texts["val"])),
            "points": "updates, characters read, operations, bits per character of validation text",
        },
        beats=beaten(ends), luck=luck(options.seeds),
    )  # fmt: skip


if __name__ == "__main__":
    main()
