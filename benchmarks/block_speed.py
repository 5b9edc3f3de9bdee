"""What do the kernels of `helpers/model/kernels.py` gain, and how much of the machine does the default model use?

    python -m benchmarks.block_speed [--turns 7] [--precision fp32] [--quick]

One process makes whole updates of the built-in corpus's model in turn: by the plain lines of `helpers/model/gpt.py`
("plain"), and as the course trains it ("ours"). Two kinds of text: short documents with a small vocabulary, as the
built-in corpus has them, and whole windows with a larger vocabulary, as a novel has them. The tokens are random: speed
does not know. A ratio is that of two neighbours in one turn; the share is that of the rate of a matrix product measured
in the same turn.
"""

import contextlib
import statistics
import time
from dataclasses import replace
from functools import partial

import torch

from benchmarks.machine import command_line, describe_machine, median_ratio, met, report, take_turns
from helpers.device import DTYPES, autocast, matmul_rate, pick_precision
from helpers.model import kernels
from helpers.model.gpt import GPT
from helpers.train import optim
from helpers.train.initial import config_from_settings
from helpers.train.loss import Loss
from helpers.train.rules import FIXED
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import build_words

N_CTX = 128
TEXTS = {"built-in": (48, 2680), "novel": (128, 4955)}  # tokens of a window, words in the vocabulary
WAYS = ("plain", "ours")  # the plain lines of the model, and with its kernels
AIM = 0.45  # share of the product rate


class Updates:
    """A model and its updates, made in one of WAYS."""

    def __init__(self, way: str, length: int, words: int, precision: str) -> None:
        # 1. the default model; the words of its vocabulary do not matter
        settings = TrainSettings(**FIXED)
        config = replace(config_from_settings(settings, build_words({}, "字"), N_CTX), vocab_size=words)
        self.kernels = kernels.plain_lines if way == "plain" else contextlib.nullcontext
        self.model, self.precision, self.device = GPT(config).init_weights(0), precision, torch.device("cpu")
        # 2. what an update needs
        self.loss_of = Loss(self.model).train()
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.optimizers = optim.make_optimizers(self.model, settings, DTYPES[precision])
        # 3. its windows
        shape = (settings.gradient_accumulation, settings.batch_size, length + 1)
        self.ids = torch.randint(words, shape, generator=torch.Generator().manual_seed(0))
        self.flops = config.sizes(length)["flops_per_token"] * shape[0] * shape[1] * length

    def seconds(self, count: int) -> float:
        """Make `count` updates and return the seconds of one."""
        begin = time.perf_counter()
        for _ in range(count):
            self.model.zero_grad()
            for batch in self.ids:  # (B, T + 1)
                with autocast(self.precision, self.device), self.kernels():
                    scores = self.loss_of(batch[:, :-1], batch[:, 1:])
                scores.objective.div(self.ids.numel()).backward()
            optim.clip_gradient(self.optimizers, list(self.model.parameters()), 1.0, self.scaler)
            optim.step(self.optimizers, self.scaler, finite=True)
        return (time.perf_counter() - begin) / count


def measure(text: str, precision: str, turns: int, count: int) -> dict:
    """Return a text's figures, and print a line for each way."""
    updates = {way: Updates(way, *TEXTS[text], precision) for way in WAYS}
    ways = {"rate": partial(matmul_rate, precision, torch.device("cpu"))}
    rows = take_turns(ways | {way: partial(each.seconds, count) for way, each in updates.items()}, turns)
    figures: dict[str, dict] = {}
    for way, each in updates.items():
        ratios = [mine / ours for mine, ours in zip(rows[way], rows["ours"], strict=True)]
        rates = [each.flops / seconds for seconds in rows[way]]
        figures[way] = {
            "ms_per_update": round(1000 * statistics.median(rows[way]), 1),
            "share_of_product_rate": median_ratio(rates, rows["rate"], digits=3),
            "times_ours": median_ratio(rows[way], rows["ours"]),
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }
        print(f"{text:9} {way:12} {figures[way]}", flush=True)
    return figures


def main() -> None:
    """Measure, print the table, and print one JSON line."""
    parser = command_line("block_speed", __doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--precision", default="auto", help="auto (default), fp32, bf16 or fp16")
    parser.add_argument("--quick", action="store_true", help="one turn of one update, no aims: does it run?")
    options = parser.parse_args()
    cpu = torch.device("cpu")
    precision = pick_precision(options.precision, cpu)
    turns, count = (1, 1) if options.quick else (options.turns, 8)
    figures = {text: measure(text, precision, turns, count) for text in TEXTS}
    shares = {f"share_of_product_rate, {text}": figures[text]["ours"]["share_of_product_rate"] for text in TEXTS}
    aims = {} if options.quick else met(shares, dict.fromkeys(shares, AIM))
    report("block_speed", describe_machine(cpu) | {"precision": precision}, figures, aims)


if __name__ == "__main__":
    main()
