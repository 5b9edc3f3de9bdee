"""Natural Chinese text, which is not in the repository: do segmenters agree on it, and what does counting reach?

    python -m benchmarks.natural_text --text RUN TITLE LICENCE [--text …] [--keep natural-text]

Each run must have passed notebook 01. For each text, on its validation part: the F1 of the cuts of thulac, of rjieba
and of the tokenizer that learned its words from thulac; the coverage of its word list; and the bits per character of
the models that only count tokens. Needs the package rjieba (`pip install -e ".[text]"`).
"""

import math
from collections import Counter
from functools import partial
from timeit import timeit

from benchmarks.machine import command_line, describe_machine, describe_text, report, take_turns
from helpers import parallel
from helpers.corpus.shards import read_texts
from helpers.device import pick_device
from helpers.tokens.ngrams import baselines
from helpers.tokens.windows import encode_texts
from helpers.vocab.tokenizer import build_words, encode_batch, to_pieces
from helpers.vocab.words import (
    SEGMENTERS,
    boundary_f1,
    choose_words,
    count_characters,
    count_words,
    coverage,
    get_segmenter,
    segment_texts,
    take_texts,
)

VOCAB_SIZE, MIN_COUNT, LONGEST_WORD = 8000, 3, 12  # rarer words than in notebook 02 (10)
HELD_OUT = 200_000  # characters of validation text that are cut, at most
TIMED = 20_000  # characters on which speed is measured


def cuts(run: str) -> tuple[dict[str, list[list[str]]], object, dict[str, int], Counter]:
    """Return each way's cut of the validation text, the tokenizer, its word list and the training text's words."""
    held_out = take_texts(read_texts(run, "val"), HELD_OUT)
    counts = Counter()
    by = {}
    with parallel.executor(1) as pool:
        for name in SEGMENTERS:
            segment, cache = get_segmenter(name)
            by[name] = segment_texts(held_out, pool, "", segment, cache)
            if name == "thulac":
                counts = count_words(read_texts(run, "train"), pool, "", segment, cache)
    words = choose_words(counts, VOCAB_SIZE, MIN_COUNT, LONGEST_WORD)
    tokenizer = build_words(words, count_characters(counts))
    by["tokenizer"] = [to_pieces(tokenizer, text) for text in held_out]
    by["characters"] = [list(text) for text in held_out]
    return by, tokenizer, words, counts


def speeds(run: str, tokenizer) -> dict[str, int]:
    """Return characters per second of one process, the best of three turns."""
    texts = take_texts(read_texts(run, "val"), TIMED)
    ways = {name: lambda cut=cut: [cut(text) for text in texts] for name, cut in SEGMENTERS.items()}
    ways["tokenizer"] = lambda: encode_batch(tokenizer, texts)
    timed = take_turns({name: partial(timeit, way, number=1) for name, way in ways.items()}, turns=3)
    return {name: round(sum(map(len, texts)) / min(seconds)) for name, seconds in timed.items()}


def counting(run: str, tokenizer) -> dict[str, float]:
    """Return the bits per character of validation text that models which only count tokens need, as in notebook 03."""
    train, val = (encode_texts(tokenizer, list(read_texts(run, split))) for split in ("train", "val"))
    characters = sum(len(text) for text in read_texts(run, "val"))
    per_token = characters / (len(val) - len(val.documents))
    nats = baselines(train, val, len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id)
    return {name: round(value / math.log(2) / per_token, 4) for name, value in nats.items()}


def measure(run: str, title: str, licence: str) -> dict:
    """Return one text's figures."""
    by, tokenizer, words, counts = cuts(run)
    held_out = [word for text in by["thulac"] for word in text]
    length = sum(map(len, held_out))
    bits = counting(run, tokenizer)
    return {
        "text": describe_text(run, title, licence),
        "words_in_list": len(words),
        "tokens": len(tokenizer),
        "coverage": round(coverage(Counter(held_out), words), 4),
        "f1_with_thulac": {name: round(boundary_f1(cut, by["thulac"]), 4) for name, cut in by.items()},
        "f1_with_rjieba": {name: round(boundary_f1(cut, by["rjieba"]), 4) for name, cut in by.items()},
        "characters_per_piece": {name: round(length / sum(map(len, cut)), 3) for name, cut in by.items()},
        "characters_per_second": speeds(run, tokenizer),
        "bits_per_character": bits,
        "trigram_gain": round(bits["bigram"] - bits["trigram"], 4),
    }


def main() -> None:
    """Measure each text, and print one JSON line."""
    parser = command_line("natural_text", __doc__)
    parser.add_argument("--text", nargs=3, action="append", required=True, metavar=("RUN", "TITLE", "LICENCE"))
    parser.add_argument("--keep", default="", help="keep the report as benchmarks/reports/<KEEP>.json")
    options = parser.parse_args()
    figures = {run: measure(run, title, licence) for run, title, licence in options.text}
    report("natural_text", describe_machine(pick_device("cpu")), figures, {}, options.keep)


if __name__ == "__main__":
    main()
