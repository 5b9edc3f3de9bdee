"""The training loop: forward, loss, backward, clip, step, evaluate, log, save. Knows no notebook and no plot.

`fit` is the loop; the pieces above it are small enough to try alone. Whoever wants to watch reads the
`metrics.jsonl` that it writes; whoever wants to stop puts a file `STOP` beside that.
"""

import contextlib
import hashlib
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from helpers import checkpoint, machine, optim, tokenizer
from helpers import model as models
from helpers.loss import Loss
from helpers.metrics import Log
from helpers.tokens import IGNORE, Windows, order

SKIPS_IN_A_ROW = 10  # updates without a finite gradient until a run gives up; a loss scale needs some to settle
PAUSE = 60.0  # seconds between two checkpoints at least, where a time budget makes many short epochs


class Diverged(RuntimeError):
    """A run whose gradients stay NaN or infinite; its last checkpoint is from before."""


# ---------------------------------------------------------------- the pieces


def world() -> tuple[int, int]:
    """Return this process's rank and the number of processes that train together."""
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

    All processes get equally many, because they meet in each; the last may be empty.
    """
    mine = indices[rank::world]
    most = -(-len(indices) // world)  # of the first process
    return [mine[i : i + batch_size] for i in range(0, max(1, most), batch_size)]


def load(windows: Windows, indices, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, labels) of some windows on a device, (B, T) each; of none, one window without labels."""
    inputs, labels = windows.batch(indices if len(indices) else [0])
    if len(indices) == 0:  # a process without work still takes part in the exchange of gradients
        labels = torch.full_like(labels, IGNORE)
    return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def blocks(model: nn.Module) -> nn.ModuleList:
    """Return the list of a transformer's blocks, whatever the library calls it."""
    return next(part for part in model.base_model.children() if isinstance(part, nn.ModuleList))


def distribute(loss: Loss, parallel: str, device: torch.device) -> nn.Module:
    """Return `loss` as several processes train it together; one process trains it as it is.

    "ddp": each holds the whole model, and gradients are averaged (Li et al. 2020). "fsdp": each holds a part of
    each tensor, and a block's weights are put together while it computes (Zhao et al. 2023).
    """
    _, size = world()
    if size == 1:
        return loss
    if parallel == "fsdp":
        mesh = init_device_mesh(device.type, (size,))
        for block in blocks(loss.model):
            fully_shard(block, mesh=mesh)
        return fully_shard(loss, mesh=mesh)
    return DistributedDataParallel(loss, device_ids=[device.index] if device.type == "cuda" else None)


def accumulate(
    loss_of: nn.Module, batches: list, n_labels: int, precision: str, device: torch.device, scaler, world: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the gradients of one update's micro-batches; return the loss (n,) and right guesses (n,) of its n windows.

    Each micro-batch's loss is divided by the labels of the whole update, on all processes: so k micro-batches
    give the gradient of one batch that holds them all, however their labels are spread. Backward runs outside
    autocast; processes exchange gradients once, in the last micro-batch.
    """
    losses, correct = [], []
    for i, (inputs, labels) in enumerate(batches):
        wait = isinstance(loss_of, DistributedDataParallel) and i < len(batches) - 1
        with loss_of.no_sync() if wait else contextlib.nullcontext():
            with machine.autocast(precision, device):
                scores = loss_of(inputs, labels)
            # × world: processes exchange the average of their gradients, and we want the sum
            scaler.scale(scores.objective * (world / n_labels)).backward()
        losses.append(scores.loss)
        correct.append(scores.correct)
    return torch.cat(losses), torch.cat(correct)


def accumulate_in_memory(
    loss_of: nn.Module, windows: Windows, indices, micro_batch: int, n_labels: int, precision: str, device, scaler
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Do what `accumulate` does with these windows, in smaller micro-batches if memory runs out; return their size too.

    Halving the micro-batch doubles their number, so the update stays what it is. One of several processes cannot
    try again alone: it raises, and the launcher starts all of them anew with the smaller size.
    """
    rank, size = world()
    while True:
        batches = [load(windows, batch, device) for batch in share(indices, micro_batch, rank, size)]
        try:
            return *accumulate(loss_of, batches, n_labels, precision, device, scaler, size), micro_batch
        except (RuntimeError, MemoryError) as error:
            if not machine.is_out_of_memory(error):
                raise
            if micro_batch == 1:
                raise MemoryError(
                    "memory runs out at a single window: choose a smaller model, or a smaller n_ctx in notebook 03"
                ) from error
            if size > 1:
                raise
        micro_batch = -(-micro_batch // 2)  # here the error, and all that it held, is gone
        loss_of.zero_grad(set_to_none=True)
        machine.empty_cache(device)


@torch.no_grad()
def evaluate(loss_of: nn.Module, windows: Windows, batch_size: int, precision: str, device) -> dict[str, float]:
    """Return mean loss (nats a token), accuracy and number of scored tokens over all windows; dropout is off."""
    rank, size = world()
    was_training = loss_of.training
    loss_of.eval()
    loss_sum = correct_sum = labels_sum = 0.0
    by_length = windows.lengths.argsort(kind="stable")  # little padding
    for batch in share(by_length, batch_size, rank, size):
        inputs, labels = load(windows, batch, device)
        with machine.autocast(precision, device):
            scores = loss_of(inputs, labels)
        loss_sum += float(scores.loss.double().sum())
        correct_sum += int(scores.correct.sum())
        labels_sum += int((labels != IGNORE).sum())
    loss_of.train(was_training)
    loss_sum, correct_sum, labels_sum = _total([loss_sum, correct_sum, labels_sum], device)
    return {"loss": loss_sum / labels_sum, "accuracy": correct_sum / labels_sum, "tokens": int(labels_sum)}


def sample(model, tok, device, max_new_tokens: int = 60) -> str:
    """Return a text the model writes from a document's start; room 05 does this with care, here it is a glance."""
    was_training = model.training
    model.eval()
    start = torch.tensor([[tok.bos_token_id]], device=device)
    room = min(max_new_tokens, model.config.max_position_embeddings - 1)
    ids = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=30, max_new_tokens=room)
    model.train(was_training)
    return tokenizer.decode(tok, ids[0].tolist())


class Sums:
    """Adds up what updates report, until a row of the log is due."""

    def __init__(self, loss: float = 0.0, correct: float = 0.0, labels: float = 0, seconds: float = 0.0):
        self.loss, self.correct, self.labels, self.seconds = loss, correct, labels, seconds

    def add(self, loss: float, correct: float, labels: int, seconds: float) -> None:
        """Add one update's sums over all processes."""
        self.__init__(self.loss + loss, self.correct + correct, self.labels + labels, self.seconds + seconds)

    def means(self, bits_a_nat: float) -> dict[str, float]:
        """Return loss (nats a token), bits a character and accuracy over all labels, each weighed the same."""
        loss = self.loss / self.labels
        return {"loss": loss, "bits_per_char": loss * bits_a_nat, "accuracy": self.correct / self.labels}


@dataclass
class Progress:
    """Where a run is: with weights and optimizer state all that a checkpoint needs to go on. Times in seconds."""

    step: int = 0  # updates done
    epoch: int = 0  # epochs done
    position: int = 0  # windows done of this epoch
    best: float = math.inf  # lowest validation loss so far
    seconds: float = 0.0  # since the run began, in all sessions
    updating: float = 0.0  # of these in updates
    validating: float = 0.0  # of the last validation
    tokens: int = 0  # learnt from, with repetitions
    skipped: int = 0  # updates without a finite gradient
    in_epoch: dict = field(default_factory=dict)  # Sums of this epoch


class Length:
    """How many updates a run has: exactly so many epochs, or what fits into so many minutes.

    With a time budget the number is estimated anew before each update from the measured pace; so the schedule,
    which is a function of that number, comes to its end when the time does.
    """

    def __init__(self, epochs: int, max_minutes: float, windows: int, per_update: int, val_tokens: int):
        self.epochs, self.seconds = epochs, 60 * max_minutes
        self.windows, self.per_update, self.val_tokens = windows, per_update, val_tokens
        self.pace: deque = deque(maxlen=20)  # seconds of the last updates

    def total(self, at: Progress) -> int:
        """Return the number of the run's last update, seen from where it is."""
        if not self.seconds:
            rest = math.ceil((self.windows - at.position) / self.per_update) if at.epoch < self.epochs else 0
            return at.step + rest + max(0, self.epochs - at.epoch - 1) * math.ceil(self.windows / self.per_update)
        if not at.step:
            return 1000  # nothing is measured yet: somewhere in the warm-up
        pace = statistics.median(self.pace) if self.pace else at.updating / at.step
        # the last validation is part of the time; until one is measured: forward only, a third of the work
        validating = at.validating or self.val_tokens / 3 * at.updating / at.tokens
        return at.step + max(0, round((self.seconds - at.seconds - validating) / pace))

    def warmup(self, warmup_steps: int, total_steps: int) -> int:
        """Return the updates of warm-up; in a time budget at most a fifth, for nobody can know their number before."""
        return min(warmup_steps, total_steps // 5) if self.seconds else warmup_steps


class Spikes:
    """Notices an update whose loss stands out from those before it."""

    def __init__(self):
        self.losses: deque = deque(maxlen=50)

    def usual(self, loss: float) -> float | None:
        """Take the next loss; return the mean of those before it if this one is a spike, else None."""
        before = list(self.losses)
        self.losses.append(loss)
        if len(before) < 20:
            return None
        usual = statistics.mean(before)
        return usual if loss - usual > max(5 * statistics.stdev(before), 0.1 * usual) else None


def worst_windows(indices: list[int], losses: list[float], windows: Windows, tok, count: int = 3) -> list[dict]:
    """Return the windows of an update with the highest mean loss, and their text, from all processes' shares."""
    mine = [(total / max(1, int(windows.lengths[i])), int(i)) for i, total in zip(indices, losses, strict=False)]
    parts = [mine]
    if dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
    worst = sorted((pair for part in parts for pair in part), reverse=True)[:count]
    text = {i: tokenizer.decode(tok, windows[i][0][: windows.lengths[i]].tolist()) for _, i in worst}
    return [{"index": i, "loss": loss, "text": text[i]} for loss, i in worst]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _distance(tensors: list[torch.Tensor], others: list[torch.Tensor] | None = None) -> float:
    """Return the length of the difference of two lists of tensors, or of one list."""
    differences = [_whole(a.detach()) - b for a, b in zip(tensors, others, strict=True)] if others else tensors
    return math.hypot(*(float(tensor.norm()) for tensor in differences))


# ---------------------------------------------------------------- the loop


def fit(
    model: nn.Module,
    train: Windows,
    val: Windows,
    folder: Path,
    tok,
    *,
    epochs: int,
    max_minutes: float,
    batch_size: int,
    gradient_accumulation: int,
    optimizer: str,
    lr: float,
    beta2: float,
    eps: float,
    warmup_steps: int,
    schedule: str,
    final_lr_fraction: float,
    weight_decay: float,
    max_grad_norm: float,
    precision: str,
    compile: bool,
    parallel: str,
    device: torch.device,
    seed: int,
    log_step: int,
    eval_step: int,
    sample_step: int,
    checkpoint_step: int,
    chars_per_token: dict[str, float],
    identity: str = "",
    stop: Callable[[], bool] = lambda: False,
) -> dict:
    """Train `model` on `train` and return the run's figures; everything lands in `folder`.

    An update takes batch_size × gradient_accumulation × processes windows; an epoch's last update takes what is
    left. The run has `epochs` whole epochs, or with max_minutes > 0 as many updates as fit. `*_step` are counted in
    updates, 0 means only at the end of an epoch. Starts from the newest sound checkpoint in `folder/checkpoints` if
    there is one, exactly where it was taken. `chars_per_token` has the keys train and val and turns nats a token
    into bits a character. A file STOP saves, validates and ends after the update; `stop()` saves and ends.
    Raises Diverged, and leaves the last checkpoint, when the gradient is not finite SKIPS_IN_A_ROW times.
    """
    rank, size = world()
    first = rank == 0
    folder.mkdir(parents=True, exist_ok=True)
    model.to(device).train()
    alone = Loss(model, compile)
    loss_of = distribute(alone, parallel, device)
    sharded = size > 1 and parallel == "fsdp"
    optimizers = optim.make_optimizers(model, optimizer, lr, weight_decay, beta2, eps)
    parameters = [p for p in model.parameters() if p.requires_grad]
    watched = [[p for p in block.parameters() if p.ndim == 2][-1] for block in blocks(model)]
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    log = Log(folder, writes=first)

    at = Progress()
    if resumed := checkpoint.latest(folder / "checkpoints", identity):
        path, state, complaints = resumed
        checkpoint.restore(path, model, optimizers)
        scaler.load_state_dict(state["scaler"])
        at = Progress(**state["progress"])
        log.write("resume", step=at.step, complaints=complaints)
    micro_file = folder / "micro_batch.txt"  # left by a process whose memory ran out
    micro_batch = min(batch_size, int(micro_file.read_text("utf-8"))) if micro_file.exists() else batch_size

    per_update = batch_size * gradient_accumulation * size
    length = Length(epochs, max_minutes, len(train), per_update, int(val.lengths.sum()))
    total_steps = length.total(at)
    flops = models.sizes(model.config, train.n_ctx)["flops_per_token"]
    fastest = size * machine.matmul_rate(precision, device)
    log.write(
        "start",
        step=at.step,
        total_steps=None if max_minutes else total_steps,
        precision=precision,
        device=str(device),
        processes=size,
        windows_per_update=per_update,
        flops_per_token=flops,
        matmul_rate=fastest,
    )
    bits = {split: 1 / math.log(2) / n for split, n in chars_per_token.items()}  # bits a character of nats a token
    since, in_epoch, spikes = Sums(), Sums(**at.in_epoch), Spikes()
    order_of_epoch = order(train.lengths, seed, at.epoch)
    begin, saved = time.perf_counter() - at.seconds, time.perf_counter()
    stopped = hurry = False  # asked to end; and asked by a signal, so without a last validation
    in_a_row, validation = 0, None

    def validate() -> dict:
        lap = time.perf_counter()
        found = evaluate(alone, val, micro_batch, precision, device)
        found["bits_per_char"] = found["loss"] * bits["val"]
        at.validating = time.perf_counter() - lap
        at.seconds = time.perf_counter() - begin
        log.write("validation", step=at.step, **found, seconds=at.seconds, train_seconds=at.updating)
        return found

    def unless_full(write: Callable[[], Path | None]) -> None:
        try:
            if path := write():
                log.write("checkpoint", step=at.step, path=path.name)
        except OSError as error:  # a full disk must not cost the run: say so, go on, try again next time
            log.write("checkpoint_failed", step=at.step, reason=str(error))
            print(f"step {at.step}: not saved ({error}); training goes on", file=sys.stderr)
        if size > 1:
            dist.barrier()

    def save() -> Path:
        at.seconds, at.in_epoch = time.perf_counter() - begin, vars(in_epoch)
        state = {"progress": asdict(at), "scaler": scaler.state_dict(), "identity": identity}
        state["val_loss"] = validation["loss"] if validation else None
        return checkpoint.save(folder / "checkpoints", at.step, model, optimizers, state, writes=first)

    while at.step < total_steps and not stopped:
        lap = time.perf_counter()
        indices = order_of_epoch[at.position : at.position + per_update]
        n_labels = int((train.lengths[indices] - train.skip[indices]).sum())
        # dropout's noise is a function of seed, update and process: nothing to save, nothing to restore
        torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}/{at.step}/{rank}".encode()).digest()[:7], "big"))
        warmup = length.warmup(warmup_steps, total_steps)
        rate = optim.learning_rate(at.step, total_steps, lr, warmup, schedule, final_lr_fraction)
        for group in (group for each in optimizers for group in each.param_groups):
            group["lr"] = rate
        due = (at.step + 1) % log_step == 0 or at.step + 1 == total_steps  # a row of the log
        before = [_whole(p.detach()).clone() for p in watched] if due else []

        try:
            losses, correct, used = accumulate_in_memory(
                loss_of, train, indices, micro_batch, n_labels, precision, device, scaler
            )
        except (RuntimeError, MemoryError) as error:
            if machine.is_out_of_memory(error) and size > 1:
                micro_file.write_text(str(-(-micro_batch // 2)), "utf-8")
            raise
        if used < micro_batch:
            micro_batch = used
            micro_file.write_text(str(micro_batch), "utf-8")
            log.write("out_of_memory", step=at.step, micro_batch=micro_batch)
        # the one exchange besides the gradients: sums, whether anyone was asked to stop, the first process's clock
        at.seconds = time.perf_counter() - begin
        mine = [float(losses.double().sum()), float(correct.sum()), (folder / "STOP").exists(), stop()]
        loss_sum, right, stopped, hurry, clock = _total([*mine, first and length.total(at)], device)
        norm = optim.update(optimizers, parameters, max_grad_norm, scaler, math.isfinite(loss_sum))
        at.step += 1
        at.position += len(indices)
        elapsed = time.perf_counter() - lap
        at.updating += elapsed
        at.tokens += n_labels
        length.pace.append(elapsed)
        stopped = bool(stopped or hurry)

        if math.isfinite(loss_sum) and math.isfinite(norm):
            in_a_row = 0
            since.add(loss_sum, right, n_labels, elapsed)
            in_epoch.add(loss_sum, right, n_labels, elapsed)
            if (usual := spikes.usual(loss_sum / n_labels)) is not None:
                worst = worst_windows(indices[rank::size], losses.tolist(), train, tok)
                log.write("spike", step=at.step, loss=loss_sum / n_labels, usual=usual, windows=worst)
        else:
            in_a_row += 1
            at.skipped += 1
            log.write("skipped", step=at.step, reason="loss or gradient is not finite", in_a_row=in_a_row)
            if in_a_row >= SKIPS_IN_A_ROW * (2 if scaler.is_enabled() else 1):
                log.write("end", step=at.step, reason="gradient not finite", seconds=time.perf_counter() - begin)
                log.close()
                raise Diverged(
                    f"{in_a_row} updates in a row had a loss or gradient that is not finite; no weight was changed by "
                    f"them. Lower lr ({lr}), or raise warmup_steps; the last checkpoint before them is kept."
                )

        if max_minutes:
            total_steps = int(clock)
        ends = at.step >= total_steps
        if (due or ends) and since.labels:  # a time budget may end between two rows
            speed = since.labels / since.seconds
            row = since.means(bits["train"]) | {
                "total_steps": total_steps,
                "epoch": at.epoch + at.position / len(train),
                "lr": rate,
                "grad_norm": norm,
                "tokens_per_second": speed,
                "mfu": speed * flops / fastest,
                "memory": machine.memory_peak(device),
                "seconds": time.perf_counter() - begin,
                "train_seconds": at.updating,
                "seconds_left": (total_steps - at.step) * at.updating / at.step,
                "skipped": at.skipped,
            }
            if before:
                row["update_ratio"] = _distance(watched, before) / _distance(before)
            if scaler.is_enabled():
                row["scale"] = scaler.get_scale()
            if (shares := alone.expert_shares()) is not None:  # of this process; the others' are alike
                row["expert_load"] = shares
            log.write("step", step=at.step, **row)
            since = Sums()

        whole = at.position >= len(train)  # an epoch is done
        if whole:
            at.epoch, at.position = at.epoch + 1, 0
            order_of_epoch = order(train.lengths, seed, at.epoch)
            if in_epoch.labels:
                means = in_epoch.means(bits["train"])
                log.write("epoch", step=at.step, epoch=at.epoch, **means, seconds=in_epoch.seconds)
            in_epoch = Sums()
        milestone = whole and (not max_minutes or time.perf_counter() - saved > PAUSE)
        validation, better = None, False
        if not hurry and (ends or stopped or milestone or (eval_step and at.step % eval_step == 0)):
            validation = validate()
            better = validation["loss"] < at.best
            at.best = min(at.best, validation["loss"])
        if first and not hurry and not sharded and (ends or (sample_step and at.step % sample_step == 0)):
            log.write("sample", step=at.step, text=sample(model, tok, device))
        if whole and not max_minutes:  # before the checkpoint: killed in between, the run comes by here again
            unless_full(lambda: checkpoint.export(folder / f"epoch-{at.epoch}", model, tok, writes=first))
        if ends or stopped or milestone or better or (checkpoint_step and at.step % checkpoint_step == 0):
            unless_full(save)
            saved = time.perf_counter()

    speed = at.tokens / at.updating if at.step else 0.0
    figures = {"steps": at.step, "total_steps": total_steps, "tokens_per_second": round(speed)}
    figures |= {"mfu": round(speed * flops / fastest, 4), "skipped": at.skipped}
    if not hurry:
        validation = validation or validate()
        names = {"val_loss": "loss", "val_bits_per_char": "bits_per_char", "accuracy": "accuracy"}
        figures |= {name: validation[found] for name, found in names.items()}
        checkpoint.export(folder / "final_model", model, tok, writes=first)
    elapsed = time.perf_counter() - begin
    reason = "finished" if at.step >= total_steps else "stopped"
    log.write("end", step=at.step, reason=reason, seconds=elapsed)
    log.close()
    return figures | {"seconds": round(elapsed, 1)}
