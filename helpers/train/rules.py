"""The rules behind 0: width, depth, dropout, batch, rate and length of training for a text, a machine and a time.

A 0 in notebook 04's parameters (for dropout -1) leaves the number to a rule here; any other value is taken as it is.
The built-in corpus has fixed numbers, so that its run is the same everywhere. For any other text the time and the speed
of the machine, measured for one shape of model after the other, say how many tokens can be read, and that decides the
rest. What the rules rest on was measured: benchmarks/README.md. Knows the sizes of a text, not what is in it.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.device import describe_device, empty_cache, is_out_of_memory, pick_device, pick_precision
from helpers.files import fingerprint, write_text
from helpers.manifest import open_room
from helpers.model.config import GPTConfig
from helpers.model.gpt import GPT
from helpers.tokens.windows import Windows
from helpers.train import plan
from helpers.train.initial import config_from_settings
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import load_tokenizer
from helpers.wording import duration

# for the built-in corpus
FIXED: dict[str, Any] = dict(
    n_embd=192, n_layer=2, n_head=3, dropout=0.0, epochs=2, batch_size=64, gradient_accumulation=1, lr=1e-2
)  # fmt: skip
# for any other text
MINUTES = 6.0
MODEL_SHAPES = (  # (n_embd, n_layer)
    (64, 2), (128, 2), (128, 3), (192, 3), (256, 4), (384, 6), (512, 8), (640, 10), (768, 12),
)  # fmt: skip
HEAD = 64  # width of an attention head
TOKENS_PER_PARAMETER = 1.5  # a shape is too large unless it can read so many for each parameter of its blocks
UPDATES = 500  # what a run aims at: fewer learn too little, more are too small
FRESH = 3  # epochs in which a text says something new: those after them bring more updates, not larger ones
DROPOUT = ((4, 0.1), (8, 0.2))  # (epochs, the share where there are more of them)
LARGEST_UPDATE = 2**17  # tokens
# in a forward pass, about: with fewer, calling small operations costs time, on a GPU much of it; with more, a CPU's
# cache is too small
PASS_TOKENS, PASS_TOKENS_GPU = 2**12, 2**16
RATES = {"muon": 1e-2, "adamw": 3e-3}
GENTLE = 0.1  # of these rates, for a model that is trained already
_PROBE = 0.3  # seconds that a measured update of a shape should take, about
ENDS_BY_CLOCK = 0.6  # part of the time: a run forecast to need more of it ends by the clock: no forecast is exact


@dataclass(frozen=True)
class Text:
    """What the rules know of a text: sizes of its training part, as notebook 03 cut it."""

    tokens: int
    windows: int
    built_in: bool = False


@dataclass(frozen=True)
class Decision:
    """Settings with every "by rule" value filled in, and the reason for each."""

    settings: TrainSettings
    reasons: list[str]


@dataclass(frozen=True)
class Machine:
    """What the rules ask about a machine; `measure_machine` makes one."""

    size: Callable[[int, int], int]  # of (n_embd, n_layer): the parameters of that shape's blocks
    speed: Callable[[int, int], float]  # of (n_embd, n_layer): tokens per second that one process learns from
    device: str = "cpu"  # its type: a GPU takes all windows of an update at once, if they fit


def most_epochs(tokens: int) -> int:
    """Return after how many epochs a text of so many tokens is learnt by heart rather than learnt from."""
    return 4 if tokens < 50_000 else 6 if tokens < 500_000 else 12


def choose_numbers(settings: TrainSettings, text: Text, machine: Machine) -> Decision:
    """Replace every number that means "by rule", 0 or for dropout -1; the same answers give the same decision.

    The machine's speed is asked for the shapes from the smallest to the first that is too large.
    """
    undecided = settings.undecided()
    timeless = {"n_head", "lr"} if settings.max_minutes else {"n_head", "lr", "dropout"}
    if text.built_in:
        return _decide_built_in(settings, text)
    if set(undecided) <= timeless:
        numbers = _head_and_rate(settings, settings.n_embd) | dict(dropout=_dropout(settings.epochs))
        return Decision(_fill(settings, undecided, numbers), [_list(numbers, undecided)])
    n_embd, n_layer, about_shape = _choose_shape(settings, text, machine)
    chosen, tokens, about_length = _choose_length(settings, text, machine.speed(n_embd, n_layer))
    update, about_update = _choose_update(settings, text, machine.device, tokens, chosen["epochs"])
    chosen |= dict(n_embd=n_embd, n_layer=n_layer) | update | _head_and_rate(settings, n_embd)
    reasons = [about_length[0], *about_shape, *about_length[1:]]
    reasons.append(f"{about_update}; lr {settings.lr or chosen['lr']:g}")
    per_update = update["windows_per_update"]
    if (least := _least_epochs(settings, text, per_update)) > chosen["epochs"] and not settings.epochs:
        chosen["epochs"] = least
        reasons.append(f"epochs {least} all the same: fewer would end within the warm-up")
    names = [*undecided, *(["max_minutes"] if "max_minutes" in chosen else [])]
    return Decision(_fill(settings, names, chosen), reasons)


def _decide_built_in(settings: TrainSettings, text: Text) -> Decision:
    """Give the built-in corpus its fixed numbers, with as many windows per update for any number of processes."""
    undecided = settings.undecided()
    windows = max(1, FIXED["batch_size"] // settings.devices)  # of each process
    # of the two that make an update, what is given decides the other
    given = settings.gradient_accumulation
    batch = settings.batch_size or (max(1, windows // given) if given else windows)
    accumulated = given or max(1, windows // batch)
    # an epoch of a part of it may be shorter than the warm-up
    least = _least_epochs(settings, text, batch * accumulated * settings.devices)
    numbers = FIXED | _head_and_rate(settings, settings.n_embd or FIXED["n_embd"])
    numbers |= dict(batch_size=batch, gradient_accumulation=accumulated, epochs=max(FIXED["epochs"], least))
    by_clock = settings.max_minutes > 0
    named = [name for name in undecided if not (by_clock and name == "epochs")]
    reasons = [f"the built-in corpus has fixed numbers: {_list(numbers, named)}"] if named else []
    if by_clock:
        reasons.append(f"max_minutes {settings.max_minutes:g}: the time decides how long, not the epochs")
    if "epochs" in named and least > FIXED["epochs"]:
        reasons.append(f"epochs {least} instead of {FIXED['epochs']}: fewer would end within the warm-up")
    return Decision(_fill(settings, undecided, numbers), reasons)


def _choose_shape(settings: TrainSettings, text: Text, machine: Machine) -> tuple[int, int, list[str]]:
    """Return n_embd and n_layer of the largest shape that can read enough tokens for its size, and why."""
    n_embd, n_layer = settings.n_embd, settings.n_layer
    if n_embd and n_layer or settings.pretrained_model:
        return n_embd, n_layer, []
    shapes = [(n_embd or width, n_layer or depth) for width, depth in MODEL_SHAPES]
    # where none can be divided among heads, `make_config` says so
    shapes = [shape for shape in shapes if _possible_heads(settings, shape[0])] or shapes
    chosen, most = shapes[0], (settings.epochs or most_epochs(text.tokens)) * text.tokens
    for shape in shapes:
        enough = TOKENS_PER_PARAMETER * machine.size(*shape)
        if most < enough or _seconds(settings) * machine.speed(*shape) < enough:
            break
        chosen = shape
    return *chosen, [
        f"n_embd {chosen[0]}, n_layer {chosen[1]}: {machine.size(*chosen):,} parameters in its blocks, the largest "
        f"shape that can read {TOKENS_PER_PARAMETER:g} tokens for each of them, or the smallest there is"
    ]


def _choose_length(settings: TrainSettings, text: Text, speed: float) -> tuple[dict[str, Any], float, list[str]]:
    """Return epochs, max_minutes and dropout, how many tokens will be read, and why."""
    minutes, most = settings.max_minutes or MINUTES, settings.epochs or most_epochs(text.tokens)
    affordable, repeated = _seconds(settings) * speed, most * text.tokens
    tokens = min(affordable, repeated)
    if settings.epochs:  # given: the run ends by the clock if there is one, else with them
        tokens = affordable if settings.max_minutes else repeated
    within = "" if settings.epochs and not settings.max_minutes else f"{duration(60 * minutes)} at "
    reasons = [f"{within}{speed:,.0f} tokens per second, as measured here"]
    chosen: dict[str, Any] = dict(epochs=most)
    if not settings.epochs:
        by_epochs = ENDS_BY_CLOCK * affordable > repeated
        chosen["max_minutes"] = 0.0 if by_epochs else minutes
        reasons.append(
            f"epochs {most}: more would teach a text of {text.tokens:,} tokens by heart" if by_epochs
            else f"the time decides how long: about {affordable / text.tokens:.1f} epochs"
        )  # fmt: skip
    if "dropout" in settings.undecided():
        chosen["dropout"] = _dropout(tokens / text.tokens)
        reasons.append(f"dropout {chosen['dropout']:g}: the more often a text is read, the more of it helps")
    return chosen, tokens, reasons


def _choose_update(
    settings: TrainSettings, text: Text, device: str, tokens: float, epochs: int
) -> tuple[dict[str, int], str]:
    """Return batch_size, gradient_accumulation and windows_per_update of a run that reads `tokens`, and why."""
    per_window = text.tokens / text.windows
    fresh = min(tokens, FRESH * text.tokens)
    windows = min(fresh / UPDATES, LARGEST_UPDATE) / per_window / settings.devices
    total = 2 ** max(2, round(math.log2(max(1, windows))))
    while total > 1 and text.windows * epochs / total / settings.devices < 5 * settings.warmup_steps:  # a page or two
        total //= 2
    given = settings.gradient_accumulation
    at_once = max(1, total // given) if given else min(total, _windows_in_pass(per_window, device))
    batch = settings.batch_size or at_once
    accumulated = given or max(1, total // batch)
    per_update = batch * accumulated * settings.devices
    of_these = f" in the first {FRESH} epochs" if fresh < tokens else ""
    by_rule = not (settings.batch_size and given)
    why = f", so that there are about {UPDATES} updates{of_these}" if by_rule else ""
    numbers = dict(batch_size=batch, gradient_accumulation=accumulated, windows_per_update=per_update)
    return numbers, f"{per_update} windows per update{why}"


def _fill(settings: TrainSettings, names: list[str], numbers: dict[str, Any]) -> TrainSettings:
    return replace(settings, **{name: numbers[name] for name in names})


def _seconds(settings: TrainSettings) -> float:
    """Return the seconds that a run may take, of all its processes together."""
    return 60 * (settings.max_minutes or MINUTES) * settings.devices


def _least_epochs(settings: TrainSettings, text: Text, windows_per_update: int) -> int:
    """Return how many epochs have twice as many updates as the warm-up."""
    return math.ceil(2 * settings.warmup_steps / math.ceil(text.windows / windows_per_update))


def _dropout(epochs: float) -> float:
    """Return the share that is switched off where a text is read so many times."""
    return max([share for least, share in DROPOUT if epochs > least], default=0.0)


def _windows_in_pass(tokens: float, device: str) -> int:
    """Return how many windows of so many tokens a forward pass has, a power of two."""
    return 2 ** max(0, round(math.log2((PASS_TOKENS_GPU if device == "cuda" else PASS_TOKENS) / tokens)))


def _head_and_rate(settings: TrainSettings, width: int) -> dict[str, Any]:
    """Return n_head for a width, and the rate for the optimizer."""
    possible = _possible_heads(settings, width) or [1]
    # the narrowest heads that have HEAD numbers, or the widest there are
    heads = max([n_head for n_head in possible if width >= HEAD * n_head] or possible[:1])
    lr = RATES.get(settings.optimizer, RATES["muon"]) * (GENTLE if settings.pretrained_model else 1)
    return dict(n_head=heads, lr=lr)


def _possible_heads(settings: TrainSettings, width: int) -> list[int]:
    """Return the numbers of heads, in order, that `make_config` takes for this width; with a given n_head only that."""
    numbers = [settings.n_head] if settings.n_head else range(1, width + 1)
    if settings.architecture == "gpt2":
        return [n_head for n_head in numbers if width % n_head == 0]
    n_kv_head = settings.n_kv_head or 1
    return [n_head for n_head in numbers if width % (2 * n_head) == 0 and n_head % n_kv_head == 0]


def _list(numbers: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {numbers[name]:g}" for name in names)


def measure_machine(settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, train: Windows) -> Machine:
    """Return a machine whose speed is that of an update of a fresh model, here and now.

    Embeddings are not counted in the size: of a large vocabulary each token meets a few rows.
    """
    device = pick_device(settings.device)
    precision = pick_precision(settings.precision, device)
    length = float(train.lengths.mean())
    windows = _windows_in_pass(length, device.type)
    if device.type == "cuda":  # the more windows at once, the faster: as many as an update will have at most
        windows = min(windows, max(1, FRESH * len(train) // UPDATES))

    def config(n_embd: int, n_layer: int, **changes: Any) -> GPTConfig:
        n_head = settings.n_head or _head_and_rate(settings, n_embd)["n_head"]
        return config_from_settings(
            replace(settings, n_embd=n_embd, n_layer=n_layer, n_head=n_head, **changes), tokenizer, train.n_ctx
        )

    @cache
    def size(n_embd: int, n_layer: int) -> int:
        sizes = config(n_embd, n_layer).sizes(train.n_ctx)
        return sizes["parameters"] - sizes["embedding_parameters"]

    @cache
    def speed(n_embd: int, n_layer: int) -> float:
        try:
            model = GPT(config(n_embd, n_layer)).init_weights(settings.seed)
            update = plan.measure_update(model, train, settings, windows, precision, device, _PROBE)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return 0.0
        finally:
            empty_cache(device)
        return windows * length / update.of(windows)

    return Machine(size, speed, device.type)


def decide(settings: TrainSettings) -> Decision:
    """Open the run's rooms, measure the machine, and `choose_numbers`.

    The decision is kept in `runs/<run>/choice.json`: the same run asked again on the same machine goes on with the same
    numbers, even when the machine is slower today. Without that file it is made anew.
    """
    plan.require_its_tokenizer(settings)
    if not settings.undecided():
        return Decision(settings, ["all numbers were given"])
    # 1. what is known
    device = pick_device(settings.device)
    corpus, tokens = open_room(settings.run, "corpus")["result"], open_room(settings.run, "tokenize")
    result = tokens["result"]
    text = Text(result["tokens"], result["windows"], built_in="floor_bits_per_char" in corpus)
    file = paths.run_dir(settings.run) / "choice.json"
    machine = [device.type, describe_device(device), settings.devices, settings.compile]
    key = fingerprint(settings.identity(), tokens["outputs"], *machine)
    # 2. decided before?
    if file.is_file() and (kept := json.loads(file.read_text("utf-8")))["key"] == key:
        return Decision(replace(settings, **kept["chosen"]), kept["reasons"])
    # 3. measure and choose
    tokenizer = load_tokenizer(paths.room(settings.run, "vocab"))
    train, _ = plan.load_windows(settings.run, result, tokenizer.pad_token_id)
    choice = choose_numbers(settings, text, measure_machine(settings, tokenizer, train))
    before = asdict(settings)
    chosen = {name: value for name, value in asdict(choice.settings).items() if value != before[name]}
    kept = {"key": key, "chosen": chosen, "reasons": choice.reasons}
    write_text(file, json.dumps(kept, ensure_ascii=False, indent=1))
    return choice
