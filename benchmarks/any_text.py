"""How good a model does anyone's text get in a given time, with nothing chosen by hand, and against what?

For each time and each kind of tokens the rules of notebooks 02 to 04 choose vocabulary, window, model, batch, length;
"auto" is what they choose by themselves. The rivals: the models that count (notebook 03), and nanoGPT with the settings
that its README gives for a machine without a GPU (Karpathy 2022): characters, 4 layers 128 wide, context 64, 12 random
windows per update, AdamW with 1e-3, betas 0.9 and 0.99, decay 0.1, 100 updates of warm-up, a cosine to a tenth, fp32.
It is GPT-2 of `transformers` here, and gets its schedule fitted to the time. By its settings it is judged every 250
updates and its best state is kept; so it is here, and the clock stands still meanwhile.

    python -m helpers.run corpus --run NAME --corpus TEXT
    python -m benchmarks.any_text --run NAME [--seconds 30 120] [--kinds auto characters] [--seeds 1] [--keep NAME]
                                  [--set n_embd=128 batch_size=32] [--min-character-count 10] [--vocab-size 2000]
                                  [--aim 0.1]

All are scored on the same validation documents, every character once, in bits per character. Time is that of the wall:
nothing else should run. Without arguments: the built-in corpus, 30 seconds, "auto" and nanoGPT.
"""

import math
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import PreTrainedTokenizerFast

from benchmarks.machine import command_line, describe_machine, describe_text, mean_and_spread, met, report
from helpers import parallel
from helpers.corpus.shards import read_texts
from helpers.device import pick_device, pick_precision
from helpers.manifest import open_room
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens import ngrams
from helpers.tokens.windows import Stream, Windows, choose_n_ctx, encode_texts
from helpers.train import rules
from helpers.train.initial import config_from_settings
from helpers.train.loss import Loss
from helpers.train.milestones import evaluate
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.choice import choose_kind, choose_sizes
from helpers.vocab.tokenizer import build_bpe, build_bytes, build_characters, build_words
from helpers.vocab.words import choose_words, count_characters, count_words, coverage, get_segmenter

MIN_COUNT, LONGEST_WORD = 10, 12  # notebook 02's defaults
KINDS = ("auto", "words", "characters", "bpe", "bytes")


@dataclass
class Text:
    """A corpus, tokenized: two streams, and how much text their tokens hold."""

    tokenizer: PreTrainedTokenizerFast
    kind: str
    train: Stream
    val: Stream
    val_characters: int

    def bits(self, nats: float) -> float:
        """Return bits per character of a summed loss in nats on the validation text."""
        return nats / math.log(2) / self.val_characters


class Corpus:
    """The documents of a run, and its words, counted once."""

    def __init__(self, run: str, segmenter: str):
        self.facts = open_room(run, "corpus")["result"]
        self.texts = {split: list(read_texts(run, split)) for split in ("train", "val")}
        segment, cache = get_segmenter(segmenter)
        with parallel.executor(1) as pool:
            self.words = count_words(self.texts["train"], pool, "", segment, cache)
            self.words_of_val = count_words(self.texts["val"], pool, "", segment, cache)
        self.characters = count_characters(self.words)

    def tokenize(self, kind: str, min_character_count: int = 0, vocab_size: int = 0) -> Text:
        """Return the text as notebook 02 with this kind, and notebook 03, would leave it."""
        built_in = "floor_bits_per_char" in self.facts
        vocab_size, fewest = choose_sizes(vocab_size, min_character_count, self.facts["characters"], built_in)
        frequent = {letter: n for letter, n in self.characters.items() if n >= fewest}
        listed = choose_words(self.words, vocab_size, MIN_COUNT, LONGEST_WORD)
        kind = choose_kind(kind, coverage(self.words_of_val, listed), self.facts["characters"])
        makers = {
            "words": lambda: build_words(listed, frequent),
            "characters": lambda: build_characters(frequent),
            "bpe": lambda: build_bpe(self.texts["train"], vocab_size, MIN_COUNT, characters=frequent),
            "bytes": build_bytes,
        }
        return self.encode(makers[kind](), kind)

    def all_characters(self) -> Text:
        """Return the text in characters, every one of them, as a tutorial has it."""
        return self.encode(build_characters(self.characters), "characters")

    def encode(self, tokenizer: PreTrainedTokenizerFast, kind: str) -> Text:
        """Return the text in the tokens of a tokenizer."""
        streams = [encode_texts(tokenizer, self.texts[split]) for split in ("train", "val")]
        return Text(tokenizer, kind, *streams, sum(map(len, self.texts["val"])))


def ours(text: Text, given: dict[str, Any], seconds: float, seed: int, device: torch.device) -> dict:
    """Train by the rules, but with what is `given`, for so many seconds; return the score and what was chosen."""
    # 1. the rules; what they measure takes its time from the training
    begin = time.perf_counter()
    n_ctx = choose_n_ctx(0, text.train)
    train = Windows(text.train, n_ctx, n_ctx, text.tokenizer.pad_token_id, "auto")
    val = Windows(text.val, n_ctx, max(1, n_ctx // 2), text.tokenizer.pad_token_id, "auto", once=True)
    precision = pick_precision("auto", device)
    same = dict(max_minutes=seconds / 60, seed=seed, device=str(device), precision=precision)
    asked = TrainSettings(**(same | given))
    sizes = rules.Text(len(text.train), len(train))  # the built-in corpus too, as if it were anyone's
    settings = rules.choose_numbers(asked, sizes, rules.measure_machine(asked, text.tokenizer, train)).settings
    if settings.max_minutes:
        left = seconds - (time.perf_counter() - begin)
        settings = replace(settings, max_minutes=max(0.1 * seconds, left) / 60)  # 0 would mean no limit
    # 2. the run
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, eval_step=0, sample_step=0, log_step=10**6)
        model = GPT(config_from_settings(settings, text.tokenizer, n_ctx)).init_weights(seed)
        ratio = {"train": 1.0, "val": text.val_characters / val.answers}
        trainer = Trainer(model, train, val, settings, Path(folder), text.tokenizer, chars_per_token=ratio)
        figures = trainer.run()
    return {
        "bits": figures["val_bits_per_char"], "seconds": round(time.perf_counter() - begin, 1),
        "kind": text.kind, "updates": figures["steps"], "epochs": round(trainer.progress.tokens / train.answers, 2),
        "tokens": len(text.tokenizer), "n_ctx": n_ctx, "n_embd": settings.n_embd, "n_layer": settings.n_layer,
        "parameters": model.config.sizes()["parameters"],
        "windows_per_update": settings.batch_size * settings.gradient_accumulation,
    }  # fmt: skip


def nanogpt(text: Text, seconds: float, seed: int, device: torch.device) -> dict:
    """Train nanoGPT's small model by its own loop for so many seconds, in `text`'s characters; return the score."""
    # 1. its model and its optimizer
    n_ctx, batch = 64, 12
    config = make_config("gpt2", len(text.tokenizer), n_ctx=n_ctx, n_embd=128, n_layer=4, n_head=4)
    model = GPT(config).init_weights(seed).to(device)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    # 2. its loop: random windows; the cosine runs over the time instead of a number of updates
    ids = torch.from_numpy(text.train.read(0, len(text.train)))
    generator = torch.Generator().manual_seed(seed)
    val = Windows(text.val, n_ctx, n_ctx // 2, text.tokenizer.pad_token_id, "stream", once=True)

    def score() -> float:
        found = evaluate(Loss(model), val, 64, "fp32", device)  # every character, half a window of context before it
        return text.bits(found["loss"] * found["tokens"])

    scores = []
    begin, judging, updates = time.perf_counter(), 0.0, 0
    while (passed := time.perf_counter() - begin - judging) < seconds:
        starts = torch.randint(max(1, len(ids) - n_ctx - 1), (batch,), generator=generator)
        inputs = torch.stack([ids[start : start + n_ctx] for start in starts]).to(device)  # (B, T)
        labels = torch.stack([ids[start + 1 : start + n_ctx + 1] for start in starts]).to(device)  # (B, T)
        for group in optimizer.param_groups:
            cosine = 1e-4 + 0.5 * (1 + math.cos(math.pi * passed / seconds)) * (1e-3 - 1e-4)
            group["lr"] = min(1e-3 * (updates + 1) / 100, cosine)
        logits = model(inputs)  # (B, T, V)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        updates += 1
        if updates % 250 == 0:
            since = time.perf_counter()
            scores.append(score())
            judging += time.perf_counter() - since
    took = time.perf_counter() - begin - judging
    # 3. the best state's score
    scores.append(score())
    return {
        "bits": min(scores), "bits_at_end": scores[-1], "seconds": round(took, 1), "updates": updates,
        "epochs": round(updates * batch * n_ctx / len(ids), 2), "tokens": len(text.tokenizer),
        "parameters": config.sizes()["parameters"],
    }  # fmt: skip


def main() -> None:
    """Train all, print the table, and print one JSON line."""
    parser = command_line("any_text", __doc__, text=True)
    parser.add_argument("--run", default="sample", help="a run that has passed notebook 01")
    parser.add_argument("--seconds", type=float, nargs="+", default=[30.0], help="training times")
    parser.add_argument("--kinds", nargs="+", default=["auto"], choices=KINDS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="numbers given to notebook 04")
    parser.add_argument("--min-character-count", type=int, default=0, help="as in notebook 02; 0: by rule")
    parser.add_argument("--vocab-size", type=int, default=0, help="as in notebook 02; 0: by rule")
    parser.add_argument("--aim", type=float, default=0.2, help="fewer bits than nanoGPT: 0.2 on prose, 0.1 on verse")
    parser.add_argument("--segmenter", default="thulac")
    options = parser.parse_args()

    # 1. the text, and the models that count
    given = {name: yaml.safe_load(value) for name, value in (each.split("=") for each in options.set)}
    device, corpus = pick_device("auto"), Corpus(options.run, options.segmenter)
    texts = {kind: corpus.tokenize(kind, options.min_character_count, options.vocab_size) for kind in options.kinds}
    plain = corpus.all_characters()
    figures: dict[str, Any] = {"kind by rule": corpus.tokenize("auto").kind}
    for name, text in {"words": corpus.tokenize("words"), "characters": plain}.items():
        tok = text.tokenizer
        nats = ngrams.baselines(text.train, text.val, len(tok), tok.bos_token_id, tok.eos_token_id)
        answers = len(text.val) - len(text.val.documents)
        figures[f"counting {name}"] = {each: round(text.bits(float(loss) * answers), 4) for each, loss in nats.items()}
        print(f"counting {name}: {figures[f'counting {name}']}", flush=True)
    # 2. the models, in turns: a slow minute of the machine falls on all of them
    rows: dict[str, list[dict]] = {}
    ways = {kind: partial(ours, text, given=given) for kind, text in texts.items()}
    ways["nanoGPT"] = partial(nanogpt, plain)
    for seconds in options.seconds:
        for seed in range(options.seeds):
            for name, train in ways.items():
                row = train(seconds=seconds, seed=seed, device=device)
                rows.setdefault(f"{name}, {seconds:g} s", []).append(row)
                print(f"{name:10} {seconds:5g} s: {row}", flush=True)
    for name, each in rows.items():
        figures[name] = {"bits_per_character": mean_and_spread([row.pop("bits") for row in each])} | each[0]
    # 3. the aims
    fewer = {}
    for seconds in options.seconds:
        rival = figures[f"nanoGPT, {seconds:g} s"]["bits_per_character"]["mean"]
        for kind in options.kinds:
            bits = figures[f"{kind}, {seconds:g} s"]["bits_per_character"]["mean"]
            fewer[f"fewer bits than nanoGPT, {kind}, {seconds:g} s"] = round(1 - bits / rival, 4)
    precision = pick_precision("auto", device)
    report(
        "any_text", describe_machine(device), figures, met(fewer, dict.fromkeys(fewer, options.aim)), options.keep,
        text=describe_text(options.run, options.title, options.licence),
        settings={
            "seeds": options.seeds, "given": given, "threads": torch.get_num_threads(), "precision": precision,
            "unit": "bits",
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
