"""Make this folder anew: `python data/try/make.py RUN`, of a default run that has its chat/ room; `make refresh` does.

It holds the run's two models in 8 bits, the tokenizer, the page filled in for the second one, and texts that the models
write in fp32 when the likeliest token is always taken: the tests write them again.
"""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

from helpers import paths
from helpers.corpus.shards import read_texts
from helpers.generate import generate
from helpers.generate.dialogue import answer_batch, as_messages
from helpers.generate.generate import TRY, TRY_FOLDER, TRY_MODELS
from helpers.generate.settings import Settings
from helpers.manifest import read_manifest
from helpers.model.eight_bits import write_packed
from helpers.serve.limits import DEFAULT_LIMITS
from helpers.serve.server import load_served
from helpers.serve.static import FILES, fill_in, for_worker

GREEDY = Settings(max_new_tokens=60, temperature=0.0)
TEXTS = 40  # of each model
EXAMPLES = [
    "绿萝能放太阳底下晒吗？",
    "君子兰怕冷吗？",
    "百合对猫有毒吗？",
    "茉莉什么时候开花？",
]  # what the page offers


def pack(run: str, name: str) -> None:
    """Write one of the run's models."""
    model, tokenizer, about = load_served(run, name)
    made = {
        key: value for key, value in read_manifest(run, paths.MODELS[name]).items() if key not in ("inputs", "outputs")
    }
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    known = for_worker(model, tokenizer, DEFAULT_LIMITS)
    write_packed(
        TRY_FOLDER / name,
        model,
        known | {"about": about | {"id": TRY, "examples": EXAMPLES}, "made": made | {"commit": commit}},
    )
    tokenizer.save_pretrained(TRY_FOLDER / name)
    (TRY_FOLDER / name / "tokenizer.json").rename(TRY_FOLDER / "tokenizer.json")


def written_texts(run: str) -> dict[str, list[tuple[str, str]]]:
    """Return beginnings with what the base model writes, and questions with what the other one answers."""
    lines = [text.split("\n") for text in islice(read_texts(run, "val"), 400)]
    beginnings = [line[: 4 + number % 9] for number, (line, *_) in enumerate(lines)][:TEXTS]
    questions = [line for line, *_ in lines if line.endswith("？")][:TEXTS]
    texts = generate.generate_batch(*generate.load(run), beginnings, GREEDY)
    answers = answer_batch(*generate.load(run, "chat"), [as_messages(question) for question in questions], GREEDY)
    return {
        "base": [(before, each.text[len(before) :]) for before, each in zip(beginnings, texts, strict=True)],
        "chat": [(question, each.text) for question, each in zip(questions, answers, strict=True)],
    }


def main(run: str) -> None:
    """Write the whole folder."""
    for name in TRY_MODELS:
        pack(run, name)
    index = next(file for file in FILES if file.name == "index.html")
    Path(TRY_FOLDER / index.name).write_text(fill_in(index, DEFAULT_LIMITS, has_chat=True, static=True), "utf-8")
    texts = json.dumps(written_texts(run), ensure_ascii=False, indent=0)
    (TRY_FOLDER / "texts.json").write_text(texts + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
