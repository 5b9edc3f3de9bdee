"""The training loop: forward, loss, backward, clip, step, evaluate, log. Knows no notebook and no plot.

`fit` is the loop. `run_job` opens a run's rooms and calls it; `start` does so in a worker thread, so that a
notebook stays alive beside it; `python -m helpers.train PARAMETERS.json` (or torchrun) does so from a shell.
Whoever wants to watch reads `metrics.jsonl`; whoever wants to stop puts a file `STOP` beside it.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers import checkpoint, paths, tokenizer
from helpers import model as models
from helpers.tokens import IGNORE, TokenStream, Windows, order

# parameters that change how a run is watched or where it runs, not what it computes: they may differ on resume
_NOT_IDENTITY = "run log_step eval_step sample_step checkpoint_step device devices resume".split()
_BAD_STEPS_IN_A_ROW = 10
CHUNK = 2**22  # logits in memory at once: 16 MB in fp32, so that they stay in a processor's cache


# ---------------------------------------------------------------- the pieces, each small enough to try alone


def learning_rate(
    step: int, total_steps: int, lr: float, warmup_steps: int, schedule: str, final_fraction: float
) -> float:
    """Return the rate of update `step` (0 … total_steps-1): linear warm-up to `lr`, then decay to final_fraction × lr.

    `schedule` is "linear", "cosine" (Loshchilov and Hutter 2017) or "constant".
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)  # 0 … just below 1: no update has rate 0
    if schedule == "linear":
        decay = 1 - progress
    elif schedule == "cosine":
        decay = 0.5 * (1 + math.cos(math.pi * progress))
    elif schedule == "constant":
        decay = 1.0
    else:
        raise ValueError(f"schedule '{schedule}' is unknown: choose linear, cosine or constant")
    return lr * (final_fraction + (1 - final_fraction) * decay)


def make_optimizers(model: nn.Module, name: str, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a model: fused AdamW, and with "muon" Muon for the matrices inside the blocks.

    Weight decay acts on matrices and embeddings only, never on biases and norms (Loshchilov and Hutter 2019).
    Muon (Jordan et al. 2024) orthogonalises each matrix update; its step is scaled to AdamW's size
    (Liu et al. 2025), so that one `lr` serves both.
    """
    tables = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    if model.config.model_type == "gpt2":
        tables.add(id(model.transformer.wpe.weight))
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    embeddings = [p for p in model.parameters() if id(p) in tables]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    if name == "adamw":
        decayed, optimizers = matrices + embeddings, []
    elif name == "muon":
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        decayed, optimizers = embeddings, [muon]
    else:
        raise ValueError(f"optimizer '{name}' is unknown: choose adamw or muon")
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return optimizers + [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy straight from hidden states, a few rows of logits at a time: they never stand in memory whole.

    The gradients of a chunk are computed while its logits are there (the idea of Liger Kernel, Hsu et al. 2024).
    """

    @staticmethod
    def forward(ctx, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor):
        rows = max(1, CHUNK // len(weight))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        learns = any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden) if learns else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if learns else None
        loss, correct = hidden.new_zeros((), dtype=wide), labels.new_zeros(())
        for at in range(0, len(hidden), rows):
            h, y = hidden[at : at + rows], labels[at : at + rows]
            logits = (h @ weight.T).to(wide)  # (rows, V)
            log_p = logits.log_softmax(-1)
            loss -= log_p.gather(1, y[:, None]).sum()
            correct += (logits.argmax(-1) == y).sum()
            if learns:
                grad = log_p.exp_()  # of the logits: p - 1 at the right word, p elsewhere
                grad[torch.arange(len(y), device=y.device), y] -= 1
                grad = grad.to(hidden.dtype)
                grad_hidden[at : at + rows] = grad @ weight
                grad_weight += grad.T @ h
        if learns:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad_loss: torch.Tensor, _):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss.to(grad_hidden.dtype), grad_weight * grad_loss.to(grad_weight.dtype), None


class Loss(nn.Module):
    """Model and cross-entropy in one module, so that what wraps it for data parallel training sees both."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (summed cross-entropy in nats, number of right guesses) over the labels that are not IGNORE.

        inputs, labels: (B, T). A sum, not a mean: micro-batches with unequal numbers of labels then add up.
        """
        # embeddings, not ids: given ids the library searches each batch for padding, which here is always at the
        # right end, where a causal model cannot see it
        embeddings = self.model.get_input_embeddings()(inputs)  # (B, T, C)
        hidden = self.model.base_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state  # (B, T, C)
        answered = labels != IGNORE
        weight, device = self.model.get_output_embeddings().weight, inputs.device.type  # (V, C)
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        return _ChunkedCrossEntropy.apply(hidden[answered].to(dtype), weight.to(dtype), labels[answered])


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is this process's GPU where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU here: use device = \"auto\"")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Return fp32, bf16 or fp16; "auto" is bf16 where this machine is quick at it (on a CPU it is tried), else fp32."""
    if name in ("fp32", "bf16", "fp16"):
        return name
    if name != "auto":
        raise ValueError(f"precision '{name}' is unknown: choose auto, fp32, bf16 or fp16")
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    seconds = {}
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
        laps = []
        for _ in range(6):
            begin = time.perf_counter()
            a @ b
            laps.append(time.perf_counter() - begin)
        seconds[kind] = min(laps)
    return "bf16" if seconds["bf16"] < seconds["fp32"] / 1.3 else "fp32"


def autocast(precision: str, device: torch.device):
    """Return the context in which matrix products run in `precision`; weights stay fp32."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def _world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _total(values: list[float], device: torch.device) -> list[float]:
    """Return the values summed over all processes."""
    if not dist.is_initialized():
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def share(indices, batch_size: int, rank: int, world: int) -> list:
    """Return this process's micro-batches of one update: every world-th window, at most batch_size at a time.

    The last update of an epoch may hold fewer windows than there are processes; then the list is one empty batch.
    """
    mine = indices[rank::world]
    return [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)] or [mine]


def _load(windows: Windows, indices, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    if len(indices) == 0:  # a process without work still takes part in the exchange of gradients
        inputs, labels = windows.batch([0])
        labels = torch.full_like(labels, IGNORE)
    else:
        inputs, labels = windows.batch(indices)
    return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def accumulate(
    loss_of, batches: list, n_labels: int, precision: str, device, scaler, world: int = 1
) -> tuple[float, float]:
    """Add up the gradients of one update's micro-batches; return (summed loss, right guesses) of this process.

    Each micro-batch's loss is divided by the labels of the whole update, on all processes: so k micro-batches
    give the gradient of one batch that holds them all, however their labels are spread. Backward runs outside
    autocast; processes exchange gradients once, in the last micro-batch.
    """
    loss_sum = correct_sum = 0.0
    for i, (inputs, labels) in enumerate(batches):
        wait = isinstance(loss_of, DistributedDataParallel) and i < len(batches) - 1
        with loss_of.no_sync() if wait else contextlib.nullcontext():
            with autocast(precision, device):
                loss, correct = loss_of(inputs, labels)
            scaler.scale(loss * (world / n_labels)).backward()  # × world: data parallel averages, we want the sum
        loss_sum += loss.detach()
        correct_sum += correct
    return float(loss_sum), float(correct_sum)


def update(optimizers: list, parameters: list, max_grad_norm: float, scaler) -> float:
    """Clip the accumulated, unscaled gradient once, step, and clear it; return its norm before clipping.

    A gradient that is not finite changes no weight.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = float(nn.utils.clip_grad_norm_(parameters, max_grad_norm if max_grad_norm > 0 else math.inf))
    if math.isfinite(norm) or scaler.is_enabled():  # an enabled scaler skips the step itself, and lowers its scale
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return norm


@torch.no_grad()
def evaluate(loss_of: nn.Module, windows: Windows, batch_size: int, precision: str, device) -> dict[str, float]:
    """Return mean loss (nats a token), accuracy and number of scored tokens over all windows; dropout is off."""
    rank, world = _world()
    was_training = loss_of.training
    loss_of.eval()
    loss_sum = correct_sum = labels_sum = 0.0
    by_length = windows.lengths.argsort(kind="stable")  # little padding
    for batch in share(by_length, batch_size, rank, world):
        inputs, labels = _load(windows, batch, device)
        with autocast(precision, device):
            loss, correct = loss_of(inputs, labels)
        loss_sum += float(loss)
        correct_sum += float(correct)
        labels_sum += int((labels != IGNORE).sum())
    loss_of.train(was_training)
    loss_sum, correct_sum, labels_sum = _total([loss_sum, correct_sum, labels_sum], device)
    return {"loss": loss_sum / labels_sum, "accuracy": correct_sum / labels_sum, "tokens": int(labels_sum)}


class Log:
    """Appends rows to `metrics.jsonl` and the same scalars to TensorBoard; only the first process writes."""

    def __init__(self, folder: Path, writes: bool):
        self.file = self.board = None
        if writes:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds to import: only where it is used

            self.file = open(folder / "metrics.jsonl", "a+", encoding="utf-8")
            self.file.seek(0)
            if (text := self.file.read()) and not text.endswith("\n"):  # a run was killed while it wrote a row
                self.file.write("\n")
            self.board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, event: str, **row) -> None:
        """Write one row; numbers of a step also go to TensorBoard under `event/name`."""
        if self.file is None:
            return
        self.file.write(json.dumps({"event": event, **row}, ensure_ascii=False) + "\n")
        self.file.flush()
        for name, value in row.items():
            if event in ("step", "validation") and name != "step" and isinstance(value, float):
                self.board.add_scalar(f"{event}/{name}", value, row["step"])

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.board.close()


# ---------------------------------------------------------------- the loop


def fit(
    model: nn.Module,
    train: Windows,
    val: Windows,
    folder: Path,
    tok,
    *,
    epochs: int,
    batch_size: int,
    gradient_accumulation: int,
    optimizer: str,
    lr: float,
    warmup_steps: int,
    schedule: str,
    final_lr_fraction: float,
    weight_decay: float,
    max_grad_norm: float,
    precision: str,
    device: torch.device,
    seed: int,
    log_step: int,
    eval_step: int,
    sample_step: int,
    checkpoint_step: int,
    chars_per_token: dict[str, float],
    identity: str = "",
) -> dict:
    """Train `model` on `train` for whole epochs and return the run's figures; everything lands in `folder`.

    An update takes batch_size × gradient_accumulation × processes windows; an epoch's last update takes what is
    left. `*_step` are counted in updates, 0 means only at the end of an epoch. Starts from the newest checkpoint
    in `folder/checkpoints` if there is one, exactly where it was taken. `chars_per_token` has the keys train and
    val and turns nats a token into bits a character.
    """
    rank, world = _world()
    model.to(device).train()
    optimizers = make_optimizers(model, optimizer, lr, weight_decay)
    parameters = [p for p in model.parameters() if p.requires_grad]
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    log = Log(folder, writes=rank == 0)

    step = epoch = position = 0  # updates done; epochs done; windows done of this epoch
    spent = {"seconds": 0.0, "updating": 0.0, "tokens": 0}  # in all sessions; updating: without validation and saving
    if resumed := checkpoint.latest(folder / "checkpoints"):
        path, state, complaints = resumed
        if state["identity"] != identity:
            raise checkpoint.BadCheckpoint(f"{path} belongs to a run with other data or parameters")
        checkpoint.restore(path, model, optimizers)
        step, epoch, position, spent = (state[name] for name in ("step", "epoch", "position", "spent"))
        scaler.load_state_dict(state["scaler"])
        log.write("resume", step=step, complaints=complaints)

    alone = Loss(model)
    loss_of = alone
    if world > 1:
        loss_of = DistributedDataParallel(alone, device_ids=[device.index] if device.type == "cuda" else None)

    per_update = batch_size * gradient_accumulation * world
    steps_per_epoch = math.ceil(len(train) / per_update)
    total_steps = step
    if epoch < epochs:
        total_steps += math.ceil((len(train) - position) / per_update) + (epochs - epoch - 1) * steps_per_epoch
    log.write("start", total_steps=total_steps, step=step, precision=precision, device=str(device), processes=world)

    nats_to_bits = {split: 1 / math.log(2) / n for split, n in chars_per_token.items()}
    stop_file = folder / "STOP"
    begin = time.perf_counter() - spent["seconds"]
    since = {"loss": 0.0, "correct": 0.0, "labels": 0.0, "seconds": 0.0}  # sums since the last logged row
    bad_steps, stopped, validation = 0, False, None

    def save() -> None:
        if rank == 0:
            spent["seconds"] = time.perf_counter() - begin
            state = {"epoch": epoch, "position": position, "spent": spent, "identity": identity}
            state["scaler"] = scaler.state_dict()
            try:
                path = checkpoint.save(folder / "checkpoints", step, model, optimizers, state)
                log.write("checkpoint", step=step, path=path.name)
            except OSError as error:  # a full disk must not cost the run: say so, go on, try again next time
                log.write("checkpoint_failed", step=step, reason=str(error))
                print(f"step {step}: checkpoint not saved ({error}); training goes on", file=sys.stderr)
        if dist.is_initialized():
            dist.barrier()

    def validate() -> dict:
        found = evaluate(alone, val, batch_size, precision, device)
        found["bits_per_char"] = found["loss"] * nats_to_bits["val"]
        log.write("validation", step=step, seconds=time.perf_counter() - begin, **found)
        return found

    while epoch < epochs and not stopped:
        windows = order(train.lengths, seed, epoch)
        while position < len(train):
            lap = time.perf_counter()
            indices = windows[position : position + per_update]
            batches = [_load(train, batch, device) for batch in share(indices, batch_size, rank, world)]
            here = sum(int((labels != IGNORE).sum()) for _, labels in batches)
            n_labels, stop_votes = _total([here, stop_file.exists()], device)
            if stop_votes:
                stopped = True
                break
            # dropout's noise is a function of seed, update and process: nothing to save, nothing to restore
            torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:7], "big"))
            rate = learning_rate(step, total_steps, lr, warmup_steps, schedule, final_lr_fraction)
            for group in (group for each in optimizers for group in each.param_groups):
                group["lr"] = rate
            loss_sum, correct = accumulate(loss_of, batches, n_labels, precision, device, scaler, world)
            norm = update(optimizers, parameters, max_grad_norm, scaler)
            step += 1
            position += len(indices)
            seconds = time.perf_counter() - lap
            spent["updating"] += seconds
            spent["tokens"] += int(n_labels)
            bad_steps = 0 if math.isfinite(norm) else bad_steps + 1
            if bad_steps >= _BAD_STEPS_IN_A_ROW and not scaler.is_enabled():
                log.write("end", step=step, reason="gradient not finite", seconds=time.perf_counter() - begin)
                raise RuntimeError(f"{bad_steps} updates in a row had a gradient that is not finite: lower lr ({lr})")
            for name, value in (("loss", loss_sum), ("correct", correct), ("labels", here), ("seconds", seconds)):
                since[name] += value

            if step % log_step == 0 or step == total_steps:
                loss_all, right, labels_all = _total([since["loss"], since["correct"], since["labels"]], device)
                log.write(
                    "step",
                    step=step,
                    epoch=epoch + position / len(train),
                    loss=loss_all / labels_all,
                    bits_per_char=loss_all / labels_all * nats_to_bits["train"],
                    accuracy=right / labels_all,
                    lr=rate,
                    grad_norm=norm,
                    tokens_per_second=labels_all / since["seconds"],
                    seconds=time.perf_counter() - begin,
                    seconds_left=(total_steps - step) * spent["updating"] / step,
                )
                since = dict.fromkeys(since, 0.0)
            last = step == total_steps
            if last or (eval_step and step % eval_step == 0):
                validation = validate()
            if rank == 0 and (last or (sample_step and step % sample_step == 0)):
                log.write("sample", step=step, text=sample(model, tok, device))
            if checkpoint_step and step % checkpoint_step == 0 and position < len(train):
                save()
        if not stopped:
            epoch, position = epoch + 1, 0
            save()
            if rank == 0:
                checkpoint.export(folder / f"epoch-{epoch}", model, tok)
    if stopped:
        save()
    if validation is None:
        validation = validate()
    if rank == 0:
        checkpoint.export(folder / "final_model", model, tok)
    elapsed = time.perf_counter() - begin
    log.write("end", step=step, reason="stopped" if stopped else "finished", seconds=elapsed)
    log.close()
    return {
        "steps": step,
        "total_steps": total_steps,
        "seconds": round(elapsed, 1),
        "tokens_per_second": round(spent["tokens"] / spent["updating"]) if step else 0,
        "val_loss": validation["loss"],
        "val_bits_per_char": validation["bits_per_char"],
        "accuracy": validation["accuracy"],
    }


def sample(model, tok, device, max_new_tokens: int = 60) -> str:
    """Return a text the model writes from a document's start; room 05 does this with care, here it is a glance."""
    was_training = model.training
    model.eval()
    start = torch.tensor([[tok.bos_token_id]], device=device)
    room = min(max_new_tokens, model.config.max_position_embeddings - 1)
    ids = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=30, max_new_tokens=room)
    model.train(was_training)
    return tokenizer.decode(tok, ids[0].tolist())


# ---------------------------------------------------------------- a run's rooms around the loop


def windows(run: str, tokens: dict, pad_id: int) -> tuple[Windows, Windows]:
    """Return the training and validation windows of a run; `tokens` is the result in the tokens manifest.

    Validation windows overlap by half and score each token once, so that none is judged without context.
    """
    n_ctx, packing = tokens["n_ctx"], tokens["packing"]
    train = Windows(TokenStream(run, "train", tokens["dtype"]), n_ctx, tokens["stride"], pad_id, packing)
    val = Windows(TokenStream(run, "val", tokens["dtype"]), n_ctx, max(1, n_ctx // 2), pad_id, packing, once=True)
    return train, val


def config(parameters: dict, tok, n_ctx: int):
    """Return the model's config from notebook 04's parameters."""
    names = ("n_embd", "n_layer", "n_head", "dropout")
    return models.config(parameters["architecture"], tok, n_ctx=n_ctx, **{name: parameters[name] for name in names})


def plan(parameters: dict) -> dict:
    """Return what a run will be, before anything is trained: windows, updates, tokens; refuse what makes no sense."""
    tokens = paths.open_room(parameters["run"], "tokenize")["result"]
    per_update = parameters["batch_size"] * parameters["gradient_accumulation"] * max(1, parameters["devices"])
    for name in ("epochs", "batch_size", "gradient_accumulation", "log_step"):
        if parameters[name] < 1:
            raise ValueError(f"{name} is {parameters[name]}: it must be at least 1")
    steps_per_epoch = math.ceil(tokens["windows"] / per_update)
    total_steps = steps_per_epoch * parameters["epochs"]
    if parameters["warmup_steps"] >= total_steps:
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
        "tokens": tokens["tokens"] * parameters["epochs"],
    }


def _identity(parameters: dict, tokens_manifest: dict) -> str:
    kept = {name: value for name, value in sorted(parameters.items()) if name not in _NOT_IDENTITY}
    cut = [tokens_manifest["result"][name] for name in ("n_ctx", "stride", "packing")]
    text = json.dumps([kept, tokens_manifest["outputs"], cut], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def prepare(parameters: dict) -> None:
    """Make the model room ready: keep what can be resumed, put a finished or different model aside.

    A model of other data or parameters (or any, with resume=False) is moved to `model-previous/`, so that a new
    run never destroys the last one.
    """
    folder = paths.room(parameters["run"], "train")
    identity = _identity(parameters, paths.open_room(parameters["run"], "tokenize"))
    file = folder / "identity.txt"
    same = file.is_file() and file.read_text("utf-8") == identity
    if folder.exists() and not (parameters["resume"] and same):
        previous = folder.with_name("model-previous")
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
        print(f"the model that was here is kept in {previous.name}/")
    paths.write_text(file, identity)
    paths.write_text(folder / "parameters.json", json.dumps(parameters, ensure_ascii=False, indent=1))
    (folder / "STOP").unlink(missing_ok=True)


def run_job(parameters: dict) -> dict:
    """Train as notebook 04's `parameters` say, in this process, and return the run's figures.

    The room must be prepared. In a process group this process does its share.
    """
    device = pick_device(parameters["device"])
    run = parameters["run"]
    manifest = paths.open_room(run, "tokenize")
    tokens = manifest["result"]
    tok = tokenizer.load(paths.room(run, "vocab"))
    train, val = windows(run, tokens, tok.pad_token_id)
    names = (
        "epochs batch_size gradient_accumulation optimizer lr warmup_steps schedule final_lr_fraction weight_decay "
        "max_grad_norm seed log_step eval_step sample_step checkpoint_step"
    ).split()
    return fit(
        models.build(config(parameters, tok, tokens["n_ctx"]), parameters["seed"]),
        train,
        val,
        paths.room(run, "train"),
        tok,
        precision=pick_precision(parameters["precision"], device),
        device=device,
        chars_per_token={"train": tokens["chars_per_token"], "val": tokens["val_chars_per_token"]},
        identity=_identity(parameters, manifest),
        **{name: parameters[name] for name in names},
    )


class Training:
    """A run under way in a worker thread: what is needed to watch it, to stop it, and to wait for it."""

    def __init__(self, parameters: dict, job):
        self.folder = paths.room(parameters["run"], "train")
        self.metrics_path = self.folder / "metrics.jsonl"
        self.total_steps = plan(parameters)["total_steps"]
        self.result: dict | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(job, parameters), name="training", daemon=True)
        self._thread.start()

    def _work(self, job, parameters: dict) -> None:
        try:
            self.result = job(parameters)
        except BaseException as error:  # it is raised again in the thread that waits
            self._error = error

    @property
    def running(self) -> bool:
        """Say whether the run is still under way."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the run to save and end after the update it is in; asking twice does no harm."""
        if self.running:
            (self.folder / "STOP").touch()

    def wait(self, timeout: float | None = None) -> dict | None:
        """Wait until the run has ended (or `timeout` seconds) and return its figures; its error is raised here."""
        self._thread.join(timeout)
        if self._error:
            raise self._error
        return self.result


def start(parameters: dict) -> Training:
    """Prepare the model room and train in a worker thread of this process; return at once."""
    plan(parameters)
    prepare(parameters)
    return Training(parameters, run_job)


def main() -> None:
    """Train from a shell: `[torchrun …] -m helpers.train PARAMETERS.json`, an object of notebook 04's parameters."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m helpers.train PARAMETERS.json  (notebook 04 writes runs/NAME/model/parameters.json)")
    parameters = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    parameters["devices"] = int(os.environ.get("WORLD_SIZE", 1))
    folder = paths.room(parameters["run"], "train")
    if "WORLD_SIZE" in os.environ:  # torchrun started us
        device = pick_device(parameters["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if _world()[0] == 0:
        plan(parameters)
        prepare(parameters)
    if dist.is_initialized():
        dist.barrier()

    def ask_to_stop(number, frame) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends at once
        (folder / "STOP").touch()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    figures = run_job(parameters)
    if _world()[0] == 0:
        paths.write_text(folder / "figures.json", json.dumps(figures))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
