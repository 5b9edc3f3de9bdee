"""The training loop: forward, loss, backward, clip, step, evaluate, log, save. Knows no notebook and no plot.

`fit` is the loop; the pieces above it are small enough to try alone. Whoever wants to watch reads the
`metrics.jsonl` that it writes; whoever wants to stop puts a file `STOP` beside that.
"""

import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from helpers.device import autocast, empty_cache, is_out_of_memory, matmul_rate, memory_peak
from helpers.tokens.windows import IGNORE, Windows, epoch_order
from helpers.train import checkpoint, optim
from helpers.train.log import MetricsLog
from helpers.train.loss import Loss
from helpers.train.model import model_sizes
from helpers.train.state import Progress, RunningMeans, SpikeDetector, StepBudget
from helpers.vocab import tokenizer

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


def split_across_ranks(indices, batch_size: int, rank: int, world: int) -> list:
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
            with autocast(precision, device):
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
        batches = [load(windows, batch, device) for batch in split_across_ranks(indices, micro_batch, rank, size)]
        try:
            return *accumulate(loss_of, batches, n_labels, precision, device, scaler, size), micro_batch
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if micro_batch == 1:
                raise MemoryError(
                    "memory runs out at a single window: choose a smaller model, or a smaller n_ctx in notebook 03"
                ) from error
            if size > 1:
                raise
        micro_batch = -(-micro_batch // 2)  # here the error, and all that it held, is gone
        loss_of.zero_grad(set_to_none=True)
        empty_cache(device)


@torch.no_grad()
def evaluate(loss_of: nn.Module, windows: Windows, batch_size: int, precision: str, device) -> dict[str, float]:
    """Return mean loss (nats a token), accuracy and number of scored tokens over all windows; dropout is off."""
    rank, size = world()
    was_training = loss_of.training
    loss_of.eval()
    loss_sum = correct_sum = labels_sum = 0.0
    by_length = windows.lengths.argsort(kind="stable")  # little padding
    for batch in split_across_ranks(by_length, batch_size, rank, size):
        inputs, labels = load(windows, batch, device)
        with autocast(precision, device):
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


@dataclass(kw_only=True)
class _Sitting:
    """A run from where it is found to where it is left: the settings of `fit`, and a method for each thing it does."""

    model: nn.Module
    train: Windows
    val: Windows
    folder: Path
    tok: object
    epochs: int
    max_minutes: float
    batch_size: int
    gradient_accumulation: int
    optimizer: str
    lr: float
    beta2: float
    eps: float
    warmup_steps: int
    schedule: str
    final_lr_fraction: float
    weight_decay: float
    max_grad_norm: float
    precision: str
    compile: bool
    parallel: str
    device: torch.device
    seed: int
    log_step: int
    eval_step: int
    sample_step: int
    checkpoint_step: int
    chars_per_token: dict[str, float]
    identity: str = ""
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.rank, self.size = world()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model.to(self.device).train()
        self.alone = Loss(self.model, self.compile)
        self.loss_of = distribute(self.alone, self.parallel, self.device)
        self.optimizers = optim.make_optimizers(
            self.model, self.optimizer, self.lr, self.weight_decay, self.beta2, self.eps
        )
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.watched = [[p for p in block.parameters() if p.ndim == 2][-1] for block in blocks(self.model)]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.log = MetricsLog(self.folder, writes=self.rank == 0)
        self.at = Progress()
        self.restore()
        self.micro_file = self.folder / "micro_batch.txt"  # left by a process whose memory ran out
        self.micro_batch = self.batch_size
        if self.micro_file.exists():
            self.micro_batch = min(self.batch_size, int(self.micro_file.read_text("utf-8")))
        self.per_update = self.batch_size * self.gradient_accumulation * self.size
        val_tokens = int(self.val.lengths.sum())
        self.length = StepBudget(self.epochs, self.max_minutes, len(self.train), self.per_update, val_tokens)
        self.total_steps = self.length.total(self.at)
        self.flops = model_sizes(self.model.config, self.train.n_ctx)["flops_per_token"]
        self.fastest = self.size * matmul_rate(self.precision, self.device)
        # bits a character of nats a token
        self.bits = {split: 1 / math.log(2) / n for split, n in self.chars_per_token.items()}
        self.since, self.in_epoch, self.spikes = RunningMeans(), RunningMeans(**self.at.in_epoch), SpikeDetector()
        self.order = epoch_order(self.train.lengths, self.seed, self.at.epoch)
        self.begin, self.saved = time.perf_counter() - self.at.seconds, time.perf_counter()
        self.stopped = self.hurry = False  # asked to end; and asked by a signal, so without a last validation
        self.skips_in_a_row, self.validation = 0, None

    def run(self) -> dict:
        """Train to the end, or until asked to stop; return the figures."""
        at = self.at
        self.log.write(
            "start",
            step=at.step,
            total_steps=None if self.max_minutes else self.total_steps,
            precision=self.precision,
            device=str(self.device),
            processes=self.size,
            windows_per_update=self.per_update,
            flops_per_token=self.flops,
            matmul_rate=self.fastest,
        )
        while at.step < self.total_steps and not self.stopped:
            # a row of the log; a time budget may end between two of them
            due = (at.step + 1) % self.log_step == 0 or at.step + 1 == self.total_steps
            before = [_whole(p.detach()).clone() for p in self.watched] if due else []
            rate, norm = self.update()
            if (due or at.step >= self.total_steps) and self.since.labels:
                self.write_row(rate, norm, before)
            self.milestones()
        return self.finish()

    def update(self) -> tuple[float, float]:
        """Do one update, or skip it if its gradient is not finite; return the learning rate and the gradient's norm."""
        lap, at = time.perf_counter(), self.at
        indices = self.order[at.position : at.position + self.per_update]
        n_labels = int((self.train.lengths[indices] - self.train.skip[indices]).sum())
        # dropout's noise is a function of seed, update and process: nothing to save, nothing to restore
        noise = hashlib.sha256(f"{self.seed}/{at.step}/{self.rank}".encode()).digest()[:7]
        torch.manual_seed(int.from_bytes(noise, "big"))
        warmup = self.length.warmup(self.warmup_steps, self.total_steps)
        rate = optim.learning_rate(at.step, self.total_steps, self.lr, warmup, self.schedule, self.final_lr_fraction)
        for group in (group for each in self.optimizers for group in each.param_groups):
            group["lr"] = rate
        losses, correct = self.gradients(indices, n_labels)
        # the one exchange besides the gradients: sums, whether anyone was asked to stop, the first process's clock
        at.seconds = time.perf_counter() - self.begin
        ahead = self.rank == 0 and self.length.total(at)
        mine = [float(losses.double().sum()), float(correct.sum()), (self.folder / "STOP").exists(), self.stop(), ahead]
        loss_sum, right, self.stopped, self.hurry, clock = _total(mine, self.device)
        self.stopped = bool(self.stopped or self.hurry)
        norm = optim.update(self.optimizers, self.parameters, self.max_grad_norm, self.scaler, math.isfinite(loss_sum))
        at.step += 1
        at.position += len(indices)
        elapsed = time.perf_counter() - lap
        at.updating += elapsed
        at.tokens += n_labels
        self.length.pace.append(elapsed)
        if self.max_minutes:
            self.total_steps = int(clock)
        if math.isfinite(loss_sum) and math.isfinite(norm):
            self.skips_in_a_row = 0
            self.since.add(loss_sum, right, n_labels, elapsed)
            self.in_epoch.add(loss_sum, right, n_labels, elapsed)
            if (usual := self.spikes.usual(loss_sum / n_labels)) is not None:
                worst = worst_windows(indices[self.rank :: self.size], losses.tolist(), self.train, self.tok)
                self.log.write("spike", step=at.step, loss=loss_sum / n_labels, usual=usual, windows=worst)
        else:
            self.skip()
        return rate, norm

    def gradients(self, indices, n_labels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add up the gradients of these windows; remember the micro-batch that fits into memory."""
        try:
            losses, correct, used = accumulate_in_memory(
                self.loss_of, self.train, indices, self.micro_batch, n_labels, self.precision, self.device, self.scaler
            )
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error) and self.size > 1:
                self.micro_file.write_text(str(-(-self.micro_batch // 2)), "utf-8")
            raise
        if used < self.micro_batch:
            self.micro_batch = used
            self.micro_file.write_text(str(used), "utf-8")
            self.log.write("out_of_memory", step=self.at.step, micro_batch=used)
        return losses, correct

    def skip(self) -> None:
        """Count an update whose loss or gradient was not finite; give up after too many in a row."""
        self.skips_in_a_row += 1
        self.at.skipped += 1
        reason = "loss or gradient is not finite"
        self.log.write("skipped", step=self.at.step, reason=reason, in_a_row=self.skips_in_a_row)
        if self.skips_in_a_row < SKIPS_IN_A_ROW * (2 if self.scaler.is_enabled() else 1):
            return
        seconds = time.perf_counter() - self.begin
        self.log.write("end", step=self.at.step, reason="gradient not finite", seconds=seconds)
        self.log.close()
        raise Diverged(
            f"{self.skips_in_a_row} updates in a row had a loss or gradient that is not finite; no weight was changed "
            f"by them. Lower lr ({self.lr}), or raise warmup_steps; the last checkpoint before them is kept."
        )

    def write_row(self, rate: float, norm: float, before: list[torch.Tensor]) -> None:
        """Write a row of the log, about all updates since the last; `before` is what `watched` was an update ago."""
        at, speed = self.at, self.since.labels / self.since.seconds
        row = self.since.means(self.bits["train"]) | {
            "total_steps": self.total_steps,
            "epoch": at.epoch + at.position / len(self.train),
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": speed,
            "mfu": speed * self.flops / self.fastest,
            "memory": memory_peak(self.device),
            "seconds": time.perf_counter() - self.begin,
            "train_seconds": at.updating,
            "seconds_left": (self.total_steps - at.step) * at.updating / at.step,
            "skipped": at.skipped,
        }
        if before:
            row["update_ratio"] = _distance(self.watched, before) / _distance(before)
        if self.scaler.is_enabled():
            row["scale"] = self.scaler.get_scale()
        if (shares := self.alone.expert_shares()) is not None:  # of this process; the others' are alike
            row["expert_load"] = shares
        self.log.write("step", step=at.step, **row)
        self.since = RunningMeans()

    def milestones(self) -> None:
        """Validate, write a sample, export and save, whatever is due after this update."""
        at = self.at
        ends = at.step >= self.total_steps
        whole = at.position >= len(self.train)
        if whole:
            self.close_epoch()
        milestone = whole and (not self.max_minutes or time.perf_counter() - self.saved > PAUSE)
        self.validation, better = None, False
        if not self.hurry and (ends or self.stopped or milestone or _every(self.eval_step, at.step)):
            self.validation = self.validate()
            better = self.validation["loss"] < at.best
            at.best = min(at.best, self.validation["loss"])
        sharded = self.size > 1 and self.parallel == "fsdp"
        if self.rank == 0 and not self.hurry and not sharded and (ends or _every(self.sample_step, at.step)):
            self.log.write("sample", step=at.step, text=sample(self.model, self.tok, self.device))
        if whole and not self.max_minutes:  # before the checkpoint: killed in between, the run comes by here again
            self.unless_full(lambda: self.export(f"epoch-{at.epoch}"))
        if ends or self.stopped or milestone or better or _every(self.checkpoint_step, at.step):
            self.unless_full(self.save)
            self.saved = time.perf_counter()

    def close_epoch(self) -> None:
        """Begin the next epoch, and write what the last one was."""
        at = self.at
        at.epoch, at.position = at.epoch + 1, 0
        self.order = epoch_order(self.train.lengths, self.seed, at.epoch)
        if self.in_epoch.labels:
            means = self.in_epoch.means(self.bits["train"])
            self.log.write("epoch", step=at.step, epoch=at.epoch, **means, seconds=self.in_epoch.seconds)
        self.in_epoch = RunningMeans()

    def validate(self) -> dict:
        """Score the validation text, all of it, and write the result."""
        lap = time.perf_counter()
        found = evaluate(self.alone, self.val, self.micro_batch, self.precision, self.device)
        found["bits_per_char"] = found["loss"] * self.bits["val"]
        self.at.validating = time.perf_counter() - lap
        self.at.seconds = time.perf_counter() - self.begin
        self.log.write(
            "validation", step=self.at.step, **found, seconds=self.at.seconds, train_seconds=self.at.updating
        )
        return found

    def restore(self) -> None:
        """Go to the newest sound checkpoint of this run, if there is one."""
        if resumed := checkpoint.latest(self.folder / "checkpoints", self.identity):
            path, state, complaints = resumed
            checkpoint.restore(path, self.model, self.optimizers)
            self.scaler.load_state_dict(state["scaler"])
            self.at = Progress(**state["progress"])
            self.log.write("resume", step=self.at.step, complaints=complaints)

    def save(self) -> Path:
        """Write a checkpoint: all that it takes to go on from here as if nothing had happened."""
        self.at.seconds, self.at.in_epoch = time.perf_counter() - self.begin, vars(self.in_epoch)
        state = {"progress": asdict(self.at), "scaler": self.scaler.state_dict(), "identity": self.identity}
        state["val_loss"] = self.validation["loss"] if self.validation else None
        folder = self.folder / "checkpoints"
        return checkpoint.save(folder, self.at.step, self.model, self.optimizers, state, writes=self.rank == 0)

    def export(self, name: str) -> None:
        """Write the model as a plain Hugging Face folder."""
        checkpoint.export(self.folder / name, self.model, self.tok, writes=self.rank == 0)

    def unless_full(self, write: Callable[[], Path | None]) -> None:
        """Write something; a full disk must not cost the run: say so, go on, try again next time."""
        try:
            if path := write():
                self.log.write("checkpoint", step=self.at.step, path=path.name)
        except OSError as error:
            self.log.write("checkpoint_failed", step=self.at.step, reason=str(error))
            print(f"step {self.at.step}: not saved ({error}); training goes on", file=sys.stderr)
        if self.size > 1:
            dist.barrier()

    def finish(self) -> dict:
        """Write the final model and return the run's figures; after a signal, without a last validation."""
        at = self.at
        speed = at.tokens / at.updating if at.step else 0.0
        figures = {"steps": at.step, "total_steps": self.total_steps, "tokens_per_second": round(speed)}
        figures |= {"mfu": round(speed * self.flops / self.fastest, 4), "skipped": at.skipped}
        if not self.hurry:
            validation = self.validation or self.validate()
            names = {"val_loss": "loss", "val_bits_per_char": "bits_per_char", "accuracy": "accuracy"}
            figures |= {name: validation[found] for name, found in names.items()}
            self.export("final_model")
        elapsed = time.perf_counter() - self.begin
        reason = "finished" if at.step >= self.total_steps else "stopped"
        self.log.write("end", step=at.step, reason=reason, seconds=elapsed)
        self.log.close()
        return figures | {"seconds": round(elapsed, 1)}


def _every(steps: int, step: int) -> bool:
    return steps > 0 and step % steps == 0


def fit(model: nn.Module, train: Windows, val: Windows, folder: Path, tok, **settings) -> dict:
    """Train `model` on `train` and return the run's figures; everything lands in `folder`.

    `settings` are notebook 04's parameters of the same names, with these: `device`, `chars_per_token` (keys train and
    val; turns nats a token into bits a character), `identity` (a checkpoint of another one is not gone on from) and
    `stop`, a function that says when to save and end.

    An update takes batch_size × gradient_accumulation × processes windows; an epoch's last update takes what is
    left. The run has `epochs` whole epochs, or with max_minutes > 0 as many updates as fit. `*_step` are counted in
    updates, 0 means only at the end of an epoch. Starts from the newest sound checkpoint in `folder/checkpoints` if
    there is one, exactly where it was taken. A file STOP saves, validates and ends after the update; `stop()` saves
    and ends. Raises Diverged, and leaves the last checkpoint, when the gradient is not finite SKIPS_IN_A_ROW times.
    """
    return _Sitting(model=model, train=train, val=val, folder=folder, tok=tok, **settings).run()
