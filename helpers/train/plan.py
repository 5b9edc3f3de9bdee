"""What a training run will do and cost, before it starts: steps, time, memory, and what looks wrong."""

import math
import time

import numpy as np
import torch

from helpers import paths
from helpers.device import matmul_rate, memory_free, pick_device, pick_precision
from helpers.manifest import open_room
from helpers.tokens.windows import TokenStream, Windows
from helpers.train import optim, trainer
from helpers.train.loss import Loss
from helpers.train.model import build_model, load_pretrained, make_config, model_sizes, training_memory
from helpers.vocab import tokenizer

PROBE = 1.0  # seconds that the forecast's measured update should take, about


def load_windows(run: str, tokens: dict, pad_id: int) -> tuple[Windows, Windows]:
    """Return the training and validation windows of a run; `tokens` is the result in the tokens manifest.

    Validation windows overlap by half and score each token once, so that none is judged without context.
    """
    n_ctx, packing = tokens["n_ctx"], tokens["packing"]
    train = Windows(TokenStream(run, "train", tokens["dtype"]), n_ctx, tokens["stride"], pad_id, packing)
    val = Windows(TokenStream(run, "val", tokens["dtype"]), n_ctx, max(1, n_ctx // 2), pad_id, packing, once=True)
    return train, val


def model_from_parameters(parameters: dict, tok, n_ctx: int):
    """Return the model that notebook 04's parameters ask for: freshly initialised, or with pretrained weights."""
    if parameters["pretrained_model"]:
        model = load_pretrained(parameters["pretrained_model"], tok, n_ctx)
    else:
        model = build_model(config_from_parameters(parameters, tok, n_ctx), parameters["seed"])
    # saved with the model: whoever samples from it with the library's `generate` gets text, never padding
    unwritten = {i for i in tok.all_special_ids if i < model.config.vocab_size} - {tok.eos_token_id}
    model.generation_config.suppress_tokens = sorted(unwritten)
    return model


def config_from_parameters(parameters: dict, tok, n_ctx: int):
    """Return the config of a fresh model from notebook 04's parameters."""
    names = "n_embd n_layer n_head n_kv_head n_experts experts_per_token aux_loss_coef dropout".split()
    return make_config(parameters["architecture"], tok, n_ctx=n_ctx, **{name: parameters[name] for name in names})


def plan(parameters: dict) -> dict[str, int]:
    """Return windows, updates and tokens of a run, before anything is trained; refuse what makes no sense.

    With a time budget (max_minutes > 0) total_steps and tokens are 0: the clock decides, `forecast` estimates.
    """
    tokens = open_room(parameters["run"], "tokenize")["result"]
    for name in ("epochs", "batch_size", "gradient_accumulation", "log_step", "devices"):
        if parameters[name] < 1:
            raise ValueError(f"{name} is {parameters[name]}: it must be at least 1")
    if parameters["max_minutes"] < 0:
        raise ValueError(f"max_minutes is {parameters['max_minutes']}: it is a time, or 0 for as long as epochs take")
    if parameters["parallel"] not in ("auto", "ddp", "fsdp"):
        raise ValueError(f"parallel is '{parameters['parallel']}': choose auto, ddp or fsdp")
    per_update = parameters["batch_size"] * parameters["gradient_accumulation"] * parameters["devices"]
    steps_per_epoch = math.ceil(tokens["windows"] / per_update)
    total_steps = 0 if parameters["max_minutes"] else steps_per_epoch * parameters["epochs"]
    if total_steps and parameters["warmup_steps"] >= total_steps:
        raise ValueError(
            f"warmup_steps is {parameters['warmup_steps']}, but the whole run has {total_steps} updates "
            f"({tokens['windows']} windows, {per_update} an update, {parameters['epochs']} epochs): "
            "the learning rate would never reach lr. Lower warmup_steps, or train more epochs."
        )
    return {
        "windows": tokens["windows"],
        "windows_per_update": per_update,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "tokens": 0 if parameters["max_minutes"] else tokens["tokens"] * parameters["epochs"],
    }


def forecast(parameters: dict) -> dict:
    """Return steps, tokens, seconds, memory (bytes) and concerns of a run, from one measured update of its own model.

    `concerns` are sentences about what is allowed but rarely meant: an output layer of which most rows are never
    trained, a context that no document fills, more memory than there is, hardly any updates.
    Raises ValueError where a time budget is too short for a single update.
    """
    planned = plan(parameters)
    device = pick_device(parameters["device"])
    precision = pick_precision(parameters["precision"], device)
    tokens = open_room(parameters["run"], "tokenize")["result"]
    tok = tokenizer.load(paths.room(parameters["run"], "vocab"))
    train, _ = load_windows(parameters["run"], tokens, tok.pad_token_id)
    model = model_from_parameters(parameters, tok, tokens["n_ctx"]).to(device)

    seconds_a_step = planned["windows_per_update"] / parameters["devices"] * _seconds_a_window(
        model, train, parameters, precision, device
    )  # fmt: skip
    steps, seconds = planned["total_steps"], planned["total_steps"] * seconds_a_step
    if minutes := parameters["max_minutes"]:
        seconds, steps = 60.0 * minutes, int(60 * minutes / seconds_a_step)
        if steps < 1:
            raise ValueError(
                f"max_minutes is {minutes}, but one update takes about {seconds_a_step:.1f} seconds here: nothing "
                "would be learnt. Give it more time, or a smaller model or batch."
            )
    seen = steps / planned["steps_per_epoch"]  # epochs
    memory = memory_needed(model, parameters, precision, tokens["n_ctx"])
    return {
        "steps": steps,
        "epochs": round(seen, 2),
        "tokens": round(seen * tokens["tokens"]),
        "seconds": round(seconds, 1),
        "memory": memory,
        "concerns": _concerns(train, len(tok), steps, parameters["warmup_steps"], memory, memory_free(device)),
    }


def memory_needed(model, parameters: dict, precision: str, n_ctx: int) -> int:
    return training_memory(
        model.config, parameters["batch_size"], optimizer=parameters["optimizer"], precision=precision, n_ctx=n_ctx
    )


def _seconds_a_window(model, train: Windows, parameters: dict, precision: str, device) -> float:
    """Time one update of a few windows, the second of two, and return its seconds a window."""
    rate = matmul_rate(precision, device)
    work = model_sizes(model.config, train.n_ctx)["flops_per_token"] * float(train.lengths.mean())
    cost = work / (0.4 * rate)  # a guess, so that the probe is short
    count = min(parameters["batch_size"], len(train), max(1, int(PROBE / cost)))
    some = np.linspace(0, len(train) - 1, count).astype(int)
    optimizers = optim.make_optimizers(
        model, parameters["optimizer"], 1e-4, parameters["weight_decay"], parameters["beta2"], parameters["eps"]
    )
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    loss_of = Loss(model)
    gradient = step = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        trainer.accumulate(loss_of, [trainer.load(train, some, device)], 1, precision, device, scaler)
        middle = time.perf_counter()
        optim.update(optimizers, list(model.parameters()), 1.0, scaler)
        gradient, step = (middle - begin) / count, time.perf_counter() - middle
    return gradient + step / (parameters["batch_size"] * parameters["gradient_accumulation"])


def _concerns(
    train: Windows, vocab_size: int, steps: int, warmup_steps: int, memory: int, free: int | None
) -> list[str]:
    said = []
    counts = np.zeros(vocab_size, np.int64)
    for at in range(0, len(train.stream), 2**20):
        counts += np.bincount(train.stream.read(at, at + 2**20), minlength=vocab_size)
    if (dead := float((counts == 0).mean())) > 0.5:
        said.append(
            f"{dead:.0%} of the {vocab_size:,} tokens never occur in the training text: their rows in the output layer "
            "cost memory and time and learn nothing. A smaller vocab_size in notebook 02 loses nothing."
        )
    if (longest := int(train.lengths.max())) < train.n_ctx // 2:
        said.append(
            f"n_ctx is {train.n_ctx}, but no document is longer than {longest} tokens: the positions after that are "
            "never trained, and the model will write nothing longer. A smaller n_ctx in notebook 03 is enough."
        )
    if steps < 100:
        said.append(f"only {steps} updates: the model will hardly learn. More epochs, more time, or a smaller batch.")
    elif warmup_steps > steps / 2:
        said.append(f"the warm-up takes {warmup_steps} of {steps} updates: the rate has hardly time to fall.")
    if free and memory > free:
        said.append(
            f"training needs about {memory / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. A smaller batch_size "
            "with more gradient_accumulation gives the same updates in less memory."
        )
    return said
