"""Speed of generation: this course against `transformers`' generate, in turns.

    python -m benchmarks.generate_speed [--run sample] [--tokens 100] [--laps 5] [--quick]

Two models: the trained one of a run, and one of GPT-2's shape (124 million parameters) with random weights. One process
writes in turn, from the same prompt, the same number of tokens, in one sequence and in eight: with our loop and with
the library's. Both draw from the model's own distribution; none may end early. A speed is compared with the library's
in the same turn, so that a machine that slows down slows both of them; the median counts. A token of one sequence needs
every weight once: what reading them from memory allows at most stands beside the large model, in fp32 and bf16.
"""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from benchmarks.machine import command_line, describe_machine, median_ratio, met, report, take_turns
from helpers import paths
from helpers.device import pick_device
from helpers.generate import generate
from helpers.generate.batch import DecodeBatch, Row, prompt_ids
from helpers.generate.settings import Settings
from helpers.manifest import open_room
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.train import checkpoint
from helpers.vocab.tokenizer import build_words

SEQUENCES = (1, 8)
AIMS = {"ours_1_times": 3.0, "ours_8_times": 2.5}  # × transformers at as many sequences, the trained model
READ_AIM = 0.7  # of the tokens that the memory's speed allows, one sequence of the large model
SHAPE = dict(n_layer=12, n_embd=768, n_head=12, n_ctx=1024, vocab=50257)
QUICK = dict(n_layer=2, n_embd=64, n_head=2, n_ctx=128, vocab=2000)
PROMPT = 12  # ids, at most; the rest of the window is for writing
Writer = Callable[[], list[list[int]]]  # returns the new ids of each sequence


def made_up_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of this many tokens, most of them words that nobody says."""
    return build_words({f"w{i:05}": 1 for i in range(vocab - len(build_words({}, "")))}, "")


def random_model(shape: dict, folder: Path) -> None:
    """Write a GPT-2 of this shape, with random weights and a made-up vocabulary, as notebook 04 would."""
    shape = dict(shape)
    tokenizer = made_up_tokenizer(shape.pop("vocab"))
    checkpoint.export_model(folder, GPT(make_config("gpt2", len(tokenizer), **shape)).init_weights(0), tokenizer)


def read_rate(numbers: int = 2**27) -> float:
    """Return how many bytes per second are read from memory: the quickest sum, largest number or product of sixteen."""
    matrix, vector = torch.ones(numbers // 2**12, 2**12), torch.ones(2**12)  # 512 MiB, more than caches hold
    best = 0.0
    for work in (matrix.sum, matrix.max, lambda: matrix @ vector):
        for _ in range(16):
            begin = time.perf_counter()
            work()
            best = max(best, matrix.numel() * matrix.element_size() / (time.perf_counter() - begin))
    return best


def our_writer(
    model: GPT, tokenizer: PreTrainedTokenizerFast, ids: list[int], sequences: int, tokens: int, **settings
) -> Writer:
    """Return a function that writes with `DecodeBatch`, as rooms 05 and 06 do; no text ends early."""

    def write() -> list[list[int]]:
        batch = DecodeBatch(model, tokenizer)
        batch.eos = -1  # no token
        wanted = Settings(**dict(max_new_tokens=tokens, seed=0) | settings)
        rows = [Row(ids, wanted, number) for number in range(sequences)]
        batch.add(rows)
        while batch.rows:
            batch.step()
        return [row.new for row in rows]

    return write


def library_writer(
    model: Any, tokenizer: PreTrainedTokenizerFast, ids: list[int], sequences: int, tokens: int
) -> Writer:
    """Return a function that writes with the library's `generate`."""
    inputs = torch.tensor([ids], device=model.device)
    config = GenerationConfig(  # without an end token: no text ends early
        max_new_tokens=tokens, do_sample=True, top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id,
        num_return_sequences=sequences,
    )  # fmt: skip

    def write() -> list[list[int]]:
        model.generation_config = config
        out = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=config)
        return out[:, len(ids) :].tolist()

    return write


def tokens_per_second(write: Writer) -> float:
    """Write once, and return the tokens per second."""
    begin = time.perf_counter()
    written = write()
    return sum(map(len, written)) / (time.perf_counter() - begin)


def measure(folder: Path, prompt: str, tokens: int, laps: int, half: bool) -> dict[str, float]:
    """Return the median tokens per second (`ours_8`) and the median ratio to transformers (`ours_8_times`).

    With `half` also ours in bf16 ("ours bf16").
    """
    model, tokenizer = generate.load(folder)
    ids = prompt_ids(tokenizer, prompt)[: 1 + PROMPT]
    tokens = min(tokens, model.config.n_ctx - len(ids))
    rest = (tokenizer, ids)
    library = AutoModelForCausalLM.from_pretrained(folder).to(model.device).eval()
    models: dict[str, Any] = {"transformers": (library_writer, library), "ours": (our_writer, model)}
    if half:
        models["ours bf16"] = (our_writer, copy.deepcopy(model).bfloat16())
    writers = {f"{name}_{n}": make(each, *rest, n, tokens) for n in SEQUENCES for name, (make, each) in models.items()}
    ways = {name: lambda write=write: tokens_per_second(write) for name, write in writers.items()}
    speeds = take_turns(ways, laps)
    figures = {name: round(statistics.median(each), 1) for name, each in speeds.items()}
    for name, each in speeds.items():
        figures[f"{name}_times"] = median_ratio(each, speeds[f"transformers_{name.split('_')[1]}"])
    return figures | {"parameters": model.config.sizes()["parameters"]}


def limits(figures: dict[str, float]) -> dict[str, float]:
    """Return how many tokens per second the memory's speed allows at one sequence, and what share of them we reach."""
    rate = read_rate()
    found = {"read_gb_per_second": round(rate / 1e9, 1)}
    for name, writer, size in (("fp32", "ours_1", 4), ("bf16", "ours bf16_1", 2)):
        most = rate / (figures["parameters"] * size)
        found |= {f"limit_{name}": round(most, 1), f"read_share_{name}": round(figures[writer] / most, 3)}
    return found


def main() -> None:
    """Measure, and print one JSON line."""
    parser = command_line("generate_speed", __doc__)
    parser.add_argument("--run", default="sample", help="the run whose trained model writes (default: sample)")
    parser.add_argument("--prompt", default="绿萝怎么浇水？", help=f"its first {PROMPT} tokens count")
    parser.add_argument("--tokens", type=int, default=100, help="new tokens per sequence, as far as the context goes")
    parser.add_argument("--laps", type=int, default=5, help="turns that count (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a tiny model instead of 124 million; no aims")
    options = parser.parse_args()

    open_room(options.run, "train")
    trained = paths.room(options.run, "train") / "final_model"
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as scratch:
        random = Path(scratch, "final_model")
        random_model(QUICK if options.quick else SHAPE, random)
        made_up = "w00001w00002w00003w00004w00005w00006"
        for name, folder, prompt in (("trained", trained, options.prompt), ("random", random, made_up)):
            figures[name] = measure(folder, prompt, options.tokens, options.laps, half=name == "random")
    if not torch.cuda.is_available():
        figures["random"] |= limits(figures["random"])
    aims = {}
    if not options.quick:
        shares = dict.fromkeys(("read_share_fp32", "read_share_bf16"), READ_AIM)
        aims = met(figures["trained"], AIMS) | met(figures["random"], shares)
    report("generate_speed", describe_machine(pick_device("auto")), figures, aims)


if __name__ == "__main__":
    main()
