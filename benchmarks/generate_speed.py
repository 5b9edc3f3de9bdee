"""Speed of generation: this course against `transformers`' generate and CTranslate2, in turns; and the cost of int8.

    python -m benchmarks.generate_speed [--run sample] [--tokens 100] [--laps 5] [--quick]

Two models: the trained one of a run, and one of GPT-2's shape (124 million parameters) with random weights. One process
writes in turn, from the same prompt, the same number of tokens, in one sequence and in eight: with our loop, with the
library's, and with CTranslate2 in float32 and int8. All draw from the model's own distribution; none may end early. A
speed is compared with the library's in the same turn, so that a machine that slows down slows all of them; the median
counts. A token of one sequence needs every weight once: what reading them from memory allows at most is printed beside
the large model, in fp32 and bf16; and ours in bf16 is compared with CTranslate2's int8.

Then what int8 costs on the trained model: bits per character of validation documents, and how often both choose the
same token. CTranslate2 needs `pip install -e ".[fast]"`; without it, and on a GPU, only the first two are compared.
"""

import argparse
import copy
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoConfig, GenerationConfig, GPT2Config, PreTrainedModel

from benchmarks.machine import describe_machine, report
from helpers import paths
from helpers.corpus.shards import read_texts
from helpers.device import pick_device
from helpers.generate import ctranslate, generate
from helpers.generate.batch import DecodeBatch, Row, prompt_ids
from helpers.generate.settings import Settings
from helpers.manifest import open_room
from helpers.train import checkpoint
from helpers.train.model import build_model, model_sizes
from helpers.vocab import tokenizer

SEQUENCES = (1, 8)
AIMS = {"ours_1": 3.0, "ours_8": 2.5}  # × transformers at as many sequences, the trained model
READ_AIM = 0.7  # of the tokens that the memory's speed allows, one sequence of the large model
INT8_AIM = 1.0  # × CTranslate2's int8: ours of the large model, where our fastest is bf16
NAMES = {
    "transformers": "transformers", "ours": "ours", "ours bf16": "ours in bf16", "float32": "CTranslate2 float32",
    "int8": "CTranslate2 int8",
}  # fmt: skip
SHAPE = dict(n_layer=12, n_embd=768, n_head=12, n_ctx=1024, vocab=50257)
QUICK = dict(n_layer=2, n_embd=64, n_head=2, n_ctx=128, vocab=2000)
PROMPT = 12  # ids, at most; the rest of the window is for writing
Writer = Callable[[int], int]  # sequences -> tokens written, without those of the prompt


def random_model(shape: dict, folder: Path) -> None:
    """Write a GPT-2 of this shape, with random weights and a made-up vocabulary, as notebook 04 would."""
    own = len(tokenizer.build_words({}, ""))
    tok = tokenizer.build_words({f"w{i:05}": 1 for i in range(shape["vocab"] - own)}, "")
    cfg = GPT2Config(
        vocab_size=len(tok), n_positions=shape["n_ctx"], n_embd=shape["n_embd"], n_layer=shape["n_layer"],
        n_head=shape["n_head"], activation_function="gelu_pytorch_tanh", bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
    )  # fmt: skip
    checkpoint.export_model(folder, build_model(cfg, seed=0), tok)


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


def writers(folder: Path, scratch: Path, prompt: str, tokens: int, half: bool = False) -> dict[str, Writer]:
    """Return the competitors by name, for one model; with `half` also ours in bf16."""
    model, tok = generate.load(folder)
    ids = prompt_ids(tok, prompt)[: 1 + PROMPT]
    tokens = min(tokens, model.config.max_position_embeddings - len(ids))

    def ours(sequences: int, model: PreTrainedModel = model) -> int:
        batch = DecodeBatch(model, tok)
        batch.eos = -1  # no token: no text ends early
        rows = [Row(ids, Settings(max_new_tokens=tokens, seed=0), number) for number in range(sequences)]
        batch.add(rows)
        while batch.rows:
            batch.step()
        return sum(len(row.new) for row in rows)

    model.generation_config = GenerationConfig()  # without an end token: no text ends early
    drawing = dict(max_new_tokens=tokens, do_sample=True, top_k=0, top_p=1.0, pad_token_id=tok.pad_token_id)
    inputs = torch.tensor([ids], device=model.device)

    def transformers(sequences: int) -> int:
        mask = torch.ones_like(inputs)
        out = model.generate(inputs, attention_mask=mask, num_return_sequences=sequences, **drawing)
        return (out.shape[1] - len(ids)) * len(out)

    def exported(quantization: str) -> Writer:
        engine = ctranslate.Fast(ctranslate.export(folder, scratch / quantization, quantization))

        def write(sequences: int) -> int:
            return sum(map(len, engine.write([ids] * sequences, tokens, at_least=tokens)))

        return write

    competitors = {"transformers": transformers, "ours": ours}
    if half:
        competitors["ours bf16"] = partial(ours, model=copy.deepcopy(model).bfloat16())
    if importlib.util.find_spec("ctranslate2") and model.device.type == "cpu":
        competitors |= {quantization: exported(quantization) for quantization in ("float32", "int8")}
    return competitors


def measure(competitors: dict[str, Writer], laps: int) -> dict[str, float]:
    """Return the median tokens per second (`ours_8`) and the median ratio to transformers (`ours_8_times`)."""
    speeds: dict[str, list[float]] = {}
    for lap in range(laps + 1):
        for sequences in SEQUENCES:
            for name, write in competitors.items():
                begin = time.perf_counter()
                written = write(sequences)
                if lap:  # the first lap sets up and does not count
                    speeds.setdefault(f"{name}_{sequences}", []).append(written / (time.perf_counter() - begin))
    figures = {name: round(statistics.median(each), 1) for name, each in speeds.items()}

    def times(one: list[float], other: list[float]) -> float:
        return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 2)

    for name, each in speeds.items():
        figures[f"{name}_times"] = times(each, speeds[f"transformers_{name.split('_')[1]}"])
    for n in SEQUENCES:
        if f"ours bf16_{n}" in speeds and f"int8_{n}" in speeds:
            figures[f"bf16_against_int8_{n}"] = times(speeds[f"ours bf16_{n}"], speeds[f"int8_{n}"])
    return figures


def cost(run: str, folder: Path, export: Path, count: int) -> dict[str, float]:
    """Return what int8 costs on the first `count` validation documents of a run."""
    model, tok = generate.load(folder)
    texts = list(islice(read_texts(run, "val"), count))
    return asdict(ctranslate.quality(model, tok, ctranslate.Fast(export), texts))


def show(title: str, figures: dict[str, float], competitors: dict[str, Writer]) -> None:
    """Print the table of one model."""
    print(f"\n{title:22} {'tokens/s: 1':>12} {'8 sequences':>12}   × transformers: {'1':>6} {'8':>6}")
    for name in competitors:
        speeds = "".join(f" {figures[f'{name}_{n}']:12.1f}" for n in SEQUENCES)
        ratios = "".join(f" {figures[f'{name}_{n}_times']:6.2f}" for n in SEQUENCES)
        print(f"{NAMES[name]:22}{speeds}{'':18} {ratios}")


def limits(figures: dict[str, float], parameters: int) -> dict[str, float]:
    """Return what the memory's speed allows at one sequence, and what share of it we reach; print both."""
    rate = read_rate()
    found = {"read_gb_per_second": round(rate / 1e9, 1)}
    for name, writer, size in (("fp32", "ours_1", 4), ("bf16", "ours bf16_1", 2)):
        most = rate / (parameters * size)
        found |= {f"limit_{name}": round(most, 1), f"read_share_{name}": round(figures[writer] / most, 3)}
        print(f"reading all weights in {name} at {rate / 1e9:.1f} GB/s: at most {most:.1f} tokens/s; ours", end=" ")
        print(f"reaches {figures[writer] / most:.0%}")
    return found


def main() -> None:
    """Measure, print the tables, and print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="sample", help="the run whose trained model writes (default: sample)")
    parser.add_argument("--prompt", default="绿萝怎么浇水？", help=f"its first {PROMPT} tokens count")
    parser.add_argument("--tokens", type=int, default=100, help="new tokens per sequence, as far as the context goes")
    parser.add_argument("--laps", type=int, default=5, help="turns that count (default: 5)")
    parser.add_argument("--texts", type=int, default=50, help="validation documents for the cost of int8")
    parser.add_argument("--quick", action="store_true", help="a tiny model instead of 124 million; no aims")
    options = parser.parse_args()

    open_room(options.run, "train")
    trained = paths.room(options.run, "train") / "final_model"
    shape = QUICK if options.quick else SHAPE
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        random_model(shape, scratch / "random" / "final_model")
        for name, folder, prompt in (
            ("trained", trained, options.prompt),
            ("random", scratch / "random" / "final_model", "w00001w00002w00003w00004w00005w00006"),
        ):
            large = name == "random"
            competitors = writers(folder, scratch / name, prompt, options.tokens, half=large)
            parameters = model_sizes(AutoConfig.from_pretrained(folder))["parameters"]
            figures[name] = measure(competitors, options.laps)
            show(f"{name}, {parameters / 1e6:.1f} M", figures[name], competitors)
            figures[name]["parameters"] = parameters
            del competitors
            if large and not torch.cuda.is_available():
                figures[name] |= limits(figures[name], parameters)
        if "int8_1" in figures["trained"]:
            figures["cost"] = cost(options.run, trained, scratch / "trained" / "int8", options.texts)
            lost = figures["cost"]
            print(
                f"\nint8 on {options.texts} validation documents: {lost['fast_bits_per_character']:.4f} bits per "
                f"character instead of {lost['bits_per_character']:.4f}; the same likeliest token at "
                f"{lost['same_likeliest']:.1%} of all places; {lost['same_greedy']:.1%} of the tokens of greedy texts "
                "are equal"
            )
    met = {}
    if not options.quick:
        values = {f"{each}_times": (figures["trained"][f"{each}_times"], aim) for each, aim in AIMS.items()}
        shares = ("read_share_fp32", "read_share_bf16")
        values |= {each: (figures["random"][each], READ_AIM) for each in shares if each in figures["random"]}
        values |= {name: (value, INT8_AIM) for name, value in figures["random"].items() if "against_int8" in name}
        met = {name: {"value": value, "aim": aim, "met": value >= aim} for name, (value, aim) in values.items()}
    described = describe_machine(pick_device("auto"))
    report({"benchmark": "generate_speed", "machine": described, "figures": figures, "aims": met})


if __name__ == "__main__":
    main()
