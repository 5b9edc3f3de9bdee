"""Measures that others know, scored as lm-eval scores them: python -m helpers.examine --task pairs [FILE …]

pairs, in the form of BLiMP and ZhoBLiMP: right is where the good sentence is likelier than the bad one. Without a FILE
our own in Chinese, and on the built-in corpus its facts. choice, in the form of C-Eval and CMMLU: the likeliest letter.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.corpus import built_in
from helpers.generate import generate
from helpers.generate.batch import prompt_ids
from helpers.generate.explain import read_logits
from helpers.manifest import RoomError, read_manifest
from helpers.model.gpt import GPT
from helpers.wording import let_console_replace, say

FORMS = {"pairs": '{"sentence_good": "…", "sentence_bad": "…"}', "choice": "question,A,B,C,D,answer"}
QUESTION = "{question}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\n答案："
Item = tuple[str, str, list[str], int]  # its kind, a context, texts that may follow, which of these is right


@torch.inference_mode()
def log_likelihoods(model: GPT, begun: int, rows: list[list[int]]) -> list[float]:
    """Return the log-probability (base e) of the ids of each row from place `begun` on."""
    if any(row[:-1] != rows[0][:-1] for row in rows):
        return [log_likelihoods(model, begun, [row])[0] for row in rows]
    found = torch.zeros(len(rows), device=model.device)
    for places, logits in read_logits(model, rows[0], begun):  # letters after one context need one forward pass
        labels = torch.tensor([[row[place] for row in rows] for place in places], device=model.device)
        found += logits.float().log_softmax(-1).gather(1, labels).sum(0)
    return found.tolist()


def items_of(file: Path, task: str, begin: str = "") -> Iterator[Item]:
    """Yield the pairs or the questions of a file, these behind `begin`; ValueError names a row of another form."""
    number, letters = 0, ["A", "B", "C", "D"]
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines) if task == "choice" else (json.loads(line) for line in lines if line.strip())
            for row in rows:
                number += 1
                if task == "pairs":
                    yield row.get("phenomenon", file.stem), "", [row["sentence_good"], row["sentence_bad"]], 0
                    continue
                fields = {(name or "").strip().lower(): value for name, value in row.items()}
                asked = QUESTION.format_map(fields | {"question": fields["question"].strip()})
                yield file.stem, begin + asked, [f" {letter}" for letter in letters], letters.index(fields["answer"])
    except (ValueError, KeyError, AttributeError, csv.Error):
        raise ValueError(say("{}, row {} or the next: not {} in UTF-8", file, number, FORMS[task])) from None


def built_in_pairs() -> Iterator[Item]:
    """Yield questions of the built-in grammar, each with its right answer and one that is right for another plant."""
    plants = built_in.plant_facts()
    for number, q in enumerate(built_in.examination(seed=0, n=200)):
        said = f"{q.prompt}它"
        verdict = "built-in verdicts, seen" if q.kind == "seen" else "built-in verdicts, held out"
        facts = {plant: built_in.value(plant, q.topic) for plant in plants}
        verdicts = {plant: built_in.right_verdict(plant, q.topic, q.situation) for plant in plants}
        for kind, slot, answers in (("built-in facts", "fact", facts), (verdict, "verdict", verdicts)):
            ways, right = built_in.wordings(q.topic, slot), answers[q.plant]
            if wrong := sorted({*answers.values()} - {right}):
                yield say(kind), "", [f"{said}{ways[each][0]}。" for each in (right, wrong[number % len(wrong)])], 0
            said += f"{ways[right][0]}，"


def show_shares(model: GPT, tokenizer: PreTrainedTokenizerFast, items: list[Item]) -> None:
    """Score items; print how many of each kind and of all are right, with Wilson's interval, and what luck is."""
    if not items:
        raise ValueError(say("there is nothing to examine with: give a FILE"))
    marks: dict[str, list[bool]] = {}
    too_long, window = 0, model.config.window
    for kind, context, texts, right in tqdm(items, disable=None, leave=False):
        begun, rows = len(prompt_ids(tokenizer, context)), [prompt_ids(tokenizer, context + text) for text in texts]
        cut = max(0, min(max(map(len, rows)) - window - 1, begun - 1))
        found = log_likelihoods(model, begun - cut, [row[cut:] for row in rows])
        marks.setdefault(kind, []).append(found.index(max(found)) == right)
        too_long += cut > 0
    print(say("right"), say("95 % interval"), say("luck"), "n", sep="\t")
    luck, z = 1 / len(items[0][2]), 1.96
    for kind, some in [*marks.items(), (say("all"), sum(marks.values(), []))]:
        k, n = sum(some), len(some)
        middle, half = k + z * z / 2, z * math.sqrt(k * (n - k) / n + z * z / 4)  # as notebook 05 explains
        low, high = (middle - half) / (n + z * z), (middle + half) / (n + z * z)
        print(f"{k / n:.1%}\t{low:5.1%} … {high:5.1%}\t{luck:.0%}\t{n}\t{kind}")
    if too_long:
        print(say("{} prompts are longer than the model's context of {} tokens: cut at the left", too_long, window))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.examine", description=__doc__)
    parser.add_argument("--run", default="sample", help="the run to examine (default: sample)")
    parser.add_argument("--room", choices=[*paths.MODELS], default="base", help="which of its models (default: base)")
    parser.add_argument("--task", choices=[*FORMS], default="pairs", help="default: pairs")
    parser.add_argument("--shots", type=Path, metavar="FILE", help="choice: solved questions, before each prompt")
    parser.add_argument("--description", default="", help="choice: the first line of each prompt")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    asked = parser.parse_args(arguments)
    let_console_replace()
    try:
        writer = generate.load(asked.run, asked.room)
        begin = f"{asked.description}\n\n" if asked.description else ""
        for _, context, texts, right in items_of(asked.shots, "choice") if asked.shots else ():
            begin += f"{context}{texts[right]}\n\n"
        ours = asked.task == "pairs" and not asked.files
        if ours and read_manifest(asked.run, "corpus")["result"].get("source") == "sample":
            show_shares(*writer, list(built_in_pairs()))
        files = [paths.repo_root() / "data" / "examine" / "pairs.jsonl"] if ours else asked.files
        show_shares(*writer, [each for file in files for each in items_of(file, asked.task, begin)])
    except (RoomError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
