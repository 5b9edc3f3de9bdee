"""What a training run will do and cost, before it starts: steps, time, memory, and what looks wrong.

How fast this machine trains a model no formula says: the rate of a matrix product tells how fast training could be, and
small models reach 14 to 70 % of it, depending on the processor and the precision (`block_speed` in
benchmarks/README.md). So an update is measured. Knows no rule for a number that was not given.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from helpers import device as machine
from helpers import paths
from helpers.manifest import open_room
from helpers.model.gpt import GPT
from helpers.parallel import cores
from helpers.tokens.windows import Examples, TokenStream, Windows
from helpers.train import optim
from helpers.train.initial import config_from_settings, model_from_settings
from helpers.train.loss import Loss, load_batch, training_memory
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import load_pretrained_tokenizer, load_tokenizer
from helpers.wording import say

_PROBE = 1.0  # seconds that the forecast's measured update should take, about
FEW_TOKENS = 300  # a vocabulary of bytes: too few rows to warn about


def load_windows(run: str, tokens: dict[str, Any], pad_id: int) -> tuple[Windows, Windows]:
    """Return the training and validation windows of a run; `tokens` is the result in the tokens manifest.

    Validation windows overlap by half and score each token once, so that none is judged without context.
    """
    n_ctx, packing = tokens["n_ctx"], tokens["packing"]
    train = Windows(TokenStream(run, "train", tokens["dtype"]), n_ctx, tokens["stride"], pad_id, packing)
    val = Windows(TokenStream(run, "val", tokens["dtype"]), n_ctx, max(1, n_ctx // 2), pad_id, packing, once=True)
    return train, val


def require_its_tokenizer(settings: TrainSettings) -> None:
    """Raise ValueError where a pretrained model would read the ids of another tokenizer."""
    name = settings.pretrained_model
    theirs = load_pretrained_tokenizer(name).get_vocab() if name else {}
    if name and theirs != load_tokenizer(paths.room(settings.run, "vocab")).get_vocab():
        raise ValueError(
            f"the vocabulary of run '{settings.run}' is not that of pretrained_model '{name}', for which each id is "
            f"another token. Run notebook 02 with pretrained_model = {name!r}, then 03 again"
        )


def plan_run(settings: TrainSettings) -> dict[str, int]:
    """Return windows, updates and tokens of a run, before anything is trained.

    With a time budget total_steps and tokens are 0. Raises ValueError for what would fail once the room is prepared,
    and a model that is there has made way: a shape or device that cannot be, a warm-up as long as the run.
    """
    require_its_tokenizer(settings)
    tokens = open_room(settings.run, "tokenize")["result"]
    config_from_settings(settings, load_tokenizer(paths.room(settings.run, "vocab")), tokens["n_ctx"])
    machine.pick_precision(settings.precision, machine.pick_device(settings.device))
    per_update = settings.batch_size * settings.gradient_accumulation * settings.devices
    steps_per_epoch = math.ceil(tokens["windows"] / per_update)
    total_steps = 0 if settings.max_minutes else steps_per_epoch * settings.epochs
    if total_steps and settings.warmup_steps >= total_steps:
        raise ValueError(
            f"warmup_steps is {settings.warmup_steps}, but the whole run has {total_steps} updates "
            f"({tokens['windows']} windows, {per_update} an update, {settings.epochs} epochs): "
            "the learning rate would reach lr only at the end. Lower warmup_steps, or train more epochs."
        )
    return {
        "windows": tokens["windows"],
        "windows_per_update": per_update,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "tokens": 0 if settings.max_minutes else tokens["tokens"] * settings.epochs,
    }


def forecast(settings: TrainSettings) -> dict[str, Any]:
    """Return steps, tokens, seconds, memory (bytes) and concerns of a run, from one measured update of its own model.

    `concerns` are sentences about what is allowed but rarely meant. Raises ValueError.
    """
    # 1. the run's own model and windows
    planned = plan_run(settings)
    device = machine.pick_device(settings.device)
    precision = machine.pick_precision(settings.precision, device)
    tokens = open_room(settings.run, "tokenize")["result"]
    tokenizer = load_tokenizer(paths.room(settings.run, "vocab"))
    train, _ = load_windows(settings.run, tokens, tokenizer.pad_token_id)
    machine.empty_cache(device)
    free = machine.memory_free(device)  # before the measured model takes a part of it
    model = model_from_settings(settings, tokenizer, tokens["n_ctx"])
    # 2. time
    pace = measure_update(model, train, settings, settings.batch_size, precision, device, _PROBE)
    # of a short text an update may take all, and less than it could
    own_windows = -(-len(train) // settings.devices)
    seconds_per_step = pace.of(min(settings.batch_size * settings.gradient_accumulation, own_windows))
    steps, seconds = planned["total_steps"], planned["total_steps"] * seconds_per_step
    if minutes := settings.max_minutes:
        seconds, steps = 60.0 * minutes, int(60 * minutes / seconds_per_step)
        if steps < 1:
            raise ValueError(
                f"max_minutes is {minutes}, but one update takes about {seconds_per_step:.1f} seconds here: nothing "
                "would be learnt. Give it more time, or a smaller model or batch."
            )
    # 3. memory
    config = model.config
    del model
    machine.empty_cache(device)  # where several processes train, one of them trains on this device
    memory = training_memory(
        config, settings.batch_size, optimizer=settings.optimizer, precision=precision, n_ctx=tokens["n_ctx"],
        device=device.type,
    )  # fmt: skip
    epochs = steps / planned["steps_per_epoch"]
    # a pretrained model keeps the vocabulary that it was trained with
    dead = 0.0 if settings.pretrained_model or len(tokenizer) < FEW_TOKENS else _dead_tokens(train, len(tokenizer))
    return {
        "steps": steps,
        "epochs": round(epochs, 2),
        "tokens": round(epochs * tokens["tokens"]),
        "seconds": round(seconds, 3),
        "memory": memory,
        "concerns": list(_concerns(train, dead, steps, settings.warmup_steps, memory, free)),
    }


def _dead_tokens(train: Windows, vocab_size: int) -> float:
    """Return the share of a vocabulary that never occurs in the training text."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(train.stream), 2**20):
        counts += np.bincount(train.stream.read(start, start + 2**20), minlength=vocab_size)
    return float((counts == 0).mean())


def _concerns(train: Windows, dead: float, steps: int, warmup: int, memory: int, free: int | None) -> Iterator[str]:
    if dead > 0.5:
        words = (
            "{:.0%} of the tokens never occur in the training text: a smaller vocabulary, made in 02, loses nothing."
        )
        yield say(words, dead)
    if (longest := int(train.lengths.max())) < train.n_ctx // 2:
        words = "n_ctx is {}, but no document is longer than {} tokens: a smaller n_ctx in notebook 03 is enough."
        yield say(words, train.n_ctx, longest)
    if steps < 100:
        yield say("only {} updates: the model will hardly learn. More epochs, more time, or a smaller batch.", steps)
    elif warmup > steps / 2:
        yield say("the warm-up takes {} of {} updates: the rate hardly has time to fall.", warmup, steps)
    if free and memory > free:
        words = (
            "training needs about {:.1f} GiB of the {:.1f} free: try a smaller batch_size, more gradient_accumulation."
        )
        yield say(words, memory / 2**30, free / 2**30)


# ---- a measured update ----


class UpdateTime(NamedTuple):
    """What an update takes, in seconds."""

    per_window: float  # forward and backward
    optimizer: float  # the step, once per update

    def of(self, windows: int) -> float:
        """Return the seconds of an update of so many windows."""
        return windows * self.per_window + self.optimizer


def measure_update(
    model: GPT,
    train: Examples,
    settings: TrainSettings,
    batch_size: int,
    precision: str,
    device: torch.device,
    probe: float,
) -> UpdateTime:
    """Time an update of `batch_size` windows, or of as many as take about `probe` seconds; it changes the weights.

    Of three updates of one size the faster of the last two counts: in the first, memory is allocated and products are
    compiled. Where memory runs out, fewer windows are measured, as the trainer takes fewer then.
    """
    # 1. windows of about the mean length: a batch has windows of one length
    order = np.argsort(train.lengths, kind="stable")
    middle = int(np.searchsorted(train.lengths[order], train.lengths.mean()))
    most = min(batch_size, len(train))
    loss_of = Loss(model).to(device).train()
    optimizers = optim.make_optimizers(model, replace(settings, lr=1e-4), machine.DTYPES[precision])
    scaler = torch.amp.GradScaler(device.type, enabled=False)

    def update(count: int) -> UpdateTime:
        first = max(0, min(middle - count // 2, len(train) - count))
        batch = load_batch(train, order[first : first + count], device)
        begin = time.perf_counter()
        model.zero_grad()
        with machine.autocast(precision, device):
            objective = loss_of(*batch).objective
        objective.backward()
        machine.wait(device)
        between = time.perf_counter()
        optim.clip_gradient(optimizers, list(model.parameters()), 1.0, scaler)
        optim.step(optimizers, scaler, finite=True)
        machine.wait(device)
        return UpdateTime((between - begin) / count, time.perf_counter() - between)

    def timed(count: int) -> UpdateTime:
        update(count)
        return UpdateTime(*map(min, update(count), update(count)))

    # 2. one window tells how many fit into the time; on a GPU it does not, where many take hardly longer than one
    with contextlib.ExitStack() as stack:
        if settings.devices > 1 and device.type == "cpu":  # as many threads as each process will have: `join_group`
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(max(1, cores() // settings.devices))
        one = timed(1)
        count = most if device.type == "cuda" else max(1, min(most, int(probe / one.per_window)))
        while count > 1:
            try:
                return timed(count)
            except (RuntimeError, MemoryError) as error:
                if not machine.is_out_of_memory(error):
                    raise
            count //= 2
            machine.empty_cache(device)
        return one
