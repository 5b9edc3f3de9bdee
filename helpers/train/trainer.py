"""The training loop: `Trainer.step` is one update, `Trainer.run` does them all, evaluates, logs and saves.

One update is a batch, its learning rate, forward, loss and backward with gradient accumulation, clipping, and a step of
the optimizers; when it runs out of memory it is tried again in smaller micro-batches. To watch a run, read the
`metrics.jsonl` that it writes; to stop it, put a file `STOP` beside that. Knows no notebook and no plot.
"""

import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.device import (
    DTYPES,
    autocast,
    empty_cache,
    is_out_of_memory,
    matmul_rate,
    memory_peak,
    pick_device,
    pick_precision,
    widest_float,
)
from helpers.files import write_text
from helpers.progress import tell
from helpers.tokens.windows import IGNORE, Examples, epoch_order
from helpers.train import checkpoint, distributed, optim
from helpers.train.fused import speed_up
from helpers.train.log import MetricsLog
from helpers.train.loss import Loss
from helpers.train.model import blocks, model_sizes
from helpers.train.settings import TrainSettings
from helpers.train.state import Progress, RunningMeans, SpikeDetector, StepBudget, early_stop
from helpers.vocab.tokenizer import decode

SKIPS_IN_A_ROW = 10  # updates without a finite gradient until a run gives up; a loss scale needs some to settle
PAUSE = 60.0  # seconds between two checkpoints at least, where a time budget makes many short epochs


class Diverged(RuntimeError):
    """A run whose gradients stay NaN or infinite; its last checkpoint is from before."""


class Exchange(NamedTuple):
    """What the processes sum up once per update, besides their gradients."""

    loss: float  # summed cross-entropy, nats
    correct: float  # right first guesses
    stop_file: float  # processes that see a file STOP
    stop_now: float  # processes whose `stop` says so
    rank0_total_steps: float  # the length of the run by the first process's clock; 0 from all others
    rank0_pause: float  # 1 if by that clock the last checkpoint is PAUSE seconds old; 0 from all others


class Update(NamedTuple):
    """What `Trainer.step` did."""

    lr: float
    grad_norm: float  # before clipping
    loss: float  # summed cross-entropy over all processes, nats
    correct: float  # right first guesses, over all processes
    labels: int  # tokens with a label, over all processes
    seconds: float
    windows: np.ndarray  # indices of this process's windows
    window_losses: torch.Tensor  # (n,) summed cross-entropy of each of them


class Trainer:
    """One training run in `folder`, from where it is found to its end: its state, `step`, and a method per event.

    `chars_per_token` (keys train and val) turns nats per token into bits per character. A checkpoint of another
    `identity` is refused. `stop` is asked after each update whether to save and end.

    An update takes batch_size × gradient_accumulation × processes windows, an epoch's last one those that remain. The
    run starts from the newest sound checkpoint in `folder/checkpoints` if there is one, exactly where that was taken.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        train: Examples,
        val: Examples,
        settings: TrainSettings,
        folder: Path,
        tokenizer: PreTrainedTokenizerFast,
        *,
        chars_per_token: Mapping[str, float],
        identity: str = "",
        stop: Callable[[], bool] = lambda: False,
    ):
        of_the_model = ("n_embd", "n_layer", "n_head", "dropout")  # it is there
        if names := [name for name in settings.undecided() if name not in of_the_model]:
            raise ValueError(f"{', '.join(names)}: 0 leaves them to a rule, which `rules.decide` has not applied yet")
        self.model, self.train, self.val, self.settings = model, train, val, settings
        self.folder, self.tokenizer, self.identity, self.stop = folder, tokenizer, identity, stop
        # of a loss of one nat per token: its bits per character
        self.bits_per_char = {split: 1 / math.log(2) / chars for split, chars in chars_per_token.items()}
        # 1. the machine
        self.rank, self.size = distributed.world()
        self.device = pick_device(settings.device)
        self.precision = pick_precision(settings.precision, self.device)
        self.parallel = distributed.choose_parallel(settings, model.config, train.n_ctx, self.precision, self.device)
        folder.mkdir(parents=True, exist_ok=True)
        # 2. model, loss and optimizers
        speed_up(self.model, settings, train.n_ctx, self.precision, self.device, train.packed)
        self.local_loss = Loss(self.model, settings.compile).to(self.device).train()
        self.loss_of = distributed.distribute(self.local_loss, self.parallel, self.device)
        self.optimizers = optim.make_optimizers(
            self.model,
            settings.optimizer,
            settings.lr,
            settings.weight_decay,
            settings.beta2,
            settings.eps,
            settings.momentum,
            DTYPES[self.precision],
        )
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.watched = [[p for p in block.parameters() if p.ndim == 2][-1] for block in blocks(self.model)]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        # 3. where the run is
        self.log = MetricsLog(self.folder, self.rank == 0, settings.tracker, asdict(settings))
        self.progress = Progress()
        judged = self.restore()
        self.micro_batch_file = self.folder / "micro_batch.txt"  # left by a process whose memory ran out
        self.micro_batch = settings.batch_size
        if self.micro_batch_file.exists():
            self.micro_batch = min(self.micro_batch, int(self.micro_batch_file.read_text("utf-8")))
        self.windows_per_update = settings.batch_size * settings.gradient_accumulation * self.size
        self.order = epoch_order(self.train.lengths, settings.seed, self.progress.epoch)
        val_tokens = int(self.val.lengths.sum())
        self.budget = StepBudget(
            settings.epochs, settings.max_minutes, len(self.train), self.windows_per_update, val_tokens,
            settings.eval_step,
        )  # fmt: skip
        self.total_steps = self.budget.total_steps(self.progress)
        # 4. what is measured
        self.flops_per_token = model_sizes(self.model.config, self.train.n_ctx)["flops_per_token"]
        self.peak_flops = self.size * matmul_rate(self.precision, self.device)
        self.since_last_row, self.in_epoch = RunningMeans(), RunningMeans(**self.progress.in_epoch)
        self.spikes = SpikeDetector()
        self.begin, self.saved = time.perf_counter() - self.progress.seconds, time.perf_counter()
        self.ended_early = self.early_stop() if judged else ""  # why, before its last update
        self.stopped = bool(self.ended_early)  # asked to end
        self.stop_now = False  # asked by `stop`: without a last validation
        self.pause_over = False  # the last checkpoint is old enough for another one, by the first process's clock
        self.gradient_complete = False  # all of this update's backward passes are done
        self.skips_in_a_row = 0
        self.validation: dict[str, float] | None = None

    # ---- one update ----

    def step(self) -> Update:
        """Do one update; a loss or gradient that is not finite changes no weight."""
        begin, settings, progress = time.perf_counter(), self.settings, self.progress

        # 1. the batch: the next windows of the epoch, shared out over processes and micro-batches
        indices = self.order[progress.position : progress.position + self.windows_per_update]
        n_labels = self.train.count_labels(indices)
        micro_batches = distributed.split_across_ranks(indices, self.micro_batch, self.rank, self.size)
        self.seed_dropout()

        # 2. the learning rate of this step
        warmup = self.budget.warmup(settings.warmup_steps, self.total_steps)
        lr = optim.learning_rate(
            progress.step, self.total_steps, settings.lr, warmup, settings.schedule, settings.final_lr_fraction
        )
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = lr

        # 3. zero the gradients
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.gradient_complete = False

        # 4. forward, loss, backward: the gradients of the micro-batches add up (gradient accumulation). Each loss is
        # divided by the labels of the whole update, so k micro-batches give the gradient of one that holds them all
        losses: list[torch.Tensor] = []
        correct: list[torch.Tensor] = []
        for number, micro_batch in enumerate(micro_batches, 1):
            batch = load_batch(self.train, micro_batch, self.device)  # inputs, labels: (B, T) each
            with self.exchange_gradients(number == len(micro_batches)):
                with autocast(self.precision, self.device):
                    scores = self.loss_of(*batch)
                # × processes: they exchange the average of their gradients, and what we want is the sum
                self.scaler.scale(scores.objective * (self.size / n_labels)).backward()
            losses.append(scores.loss)  # (B,)
            correct.append(scores.correct)  # (B,)
        self.gradient_complete = True

        # 5. unscale and clip the gradient
        norm = optim.clip_gradient(self.optimizers, self.parameters, settings.max_grad_norm, self.scaler)

        # 6. the one exchange besides the gradients
        window_losses = torch.cat(losses)
        progress.seconds = time.perf_counter() - self.begin
        total = self.exchange(float(window_losses.to(widest_float(self.device)).sum()), float(torch.cat(correct).sum()))

        # 7. the step of the optimizers
        optim.step(self.optimizers, self.scaler, finite=math.isfinite(total.loss) and math.isfinite(norm))

        # 8. count
        seconds = time.perf_counter() - begin
        progress.step += 1
        progress.position += len(indices)
        progress.updating += seconds
        progress.tokens += n_labels
        self.budget.update_seconds.append(seconds)
        if self.budget.by_clock:
            self.total_steps = max(int(total.rank0_total_steps), progress.step)
        self.stop_now = bool(total.stop_now)
        self.pause_over = bool(total.rank0_pause)
        self.stopped = bool(total.stop_file or total.stop_now)
        own = indices[self.rank :: self.size]
        return Update(lr, norm, total.loss, total.correct, n_labels, seconds, own, window_losses)

    def seed_dropout(self) -> None:
        """Make dropout's noise a function of seed, update and process: nothing to save, nothing to restore."""
        noise = hashlib.sha256(f"{self.settings.seed}/{self.progress.step}/{self.rank}".encode()).digest()[:7]
        torch.manual_seed(int.from_bytes(noise, "big"))

    def exchange_gradients(self, last: bool) -> contextlib.AbstractContextManager:
        """Return the context of a micro-batch: DDP's processes exchange gradients in the last one only."""
        if isinstance(self.loss_of, DistributedDataParallel) and not last:
            return self.loss_of.no_sync()
        return contextlib.nullcontext()

    def exchange(self, loss: float, correct: float) -> Exchange:
        """Return the sums over all processes of what this one computed and was asked."""
        total_steps = self.budget.total_steps(self.progress) if self.rank == 0 else 0
        pause = self.rank == 0 and time.perf_counter() - self.saved > PAUSE
        own = Exchange(loss, correct, (self.folder / "STOP").exists(), self.stop(), total_steps, pause)
        return Exchange(*distributed.sum_over_ranks(own, self.device))

    def step_in_memory(self) -> Update:
        """Do one update, in smaller micro-batches if memory runs out: more of them, so the update stays what it is."""
        step, before = self.progress.step, self.micro_batch
        while True:
            try:
                update = self.step()
                break
            except (RuntimeError, MemoryError) as error:
                if self.gradient_complete or not is_out_of_memory(error):
                    raise
                if self.micro_batch == 1:
                    raise MemoryError(
                        "memory runs out at a single window: choose a smaller model, or a smaller n_ctx in notebook 03"
                    ) from error
                self.micro_batch = -(-self.micro_batch // 2)
                if self.size > 1:  # one process cannot try again alone: the launcher starts all of them again
                    write_text(self.micro_batch_file, str(self.micro_batch))
                    raise
            empty_cache(self.device)  # here the error, and all that it held, is gone
        if self.micro_batch < before:
            write_text(self.micro_batch_file, str(self.micro_batch))
            self.log.write("out_of_memory", step=step, micro_batch=self.micro_batch)
        return update

    # ---- the run ----

    def run(self) -> dict:
        """Train to the end, or until asked to stop; return the run's figures.

        A file STOP saves, validates and ends after the update; `stop()` saves and ends. Raises Diverged, and leaves
        the last checkpoint, when the gradient is not finite SKIPS_IN_A_ROW times.
        """
        progress = self.progress
        self.log.write(
            "start",
            step=progress.step,
            total_steps=None if self.budget.by_clock else self.total_steps,
            precision=self.precision,
            device=str(self.device),
            processes=self.size,
            windows_per_update=self.windows_per_update,
            flops_per_token=self.flops_per_token,
            matmul_rate=self.peak_flops,
        )
        if progress.unjudged and self.judge():
            self.write_unless_full(self.save)
        while progress.step < self.total_steps and not self.stopped:
            # a row of the log; a time budget may end between two of them
            due = (progress.step + 1) % self.settings.log_step == 0 or progress.step + 1 == self.total_steps
            before = [distributed.whole(p.detach()).clone() for p in self.watched] if due else []
            update = self.step_in_memory()
            if self.rank == 0:
                tell("training", progress.step, self.total_steps, "updates")
            self.account(update)
            if (due or progress.step >= self.total_steps) and self.since_last_row.labels:
                self.write_row(update, before)
            self.milestones()
        return self.finish()

    def account(self, update: Update) -> None:
        """Add an update to the running means and report a loss spike; count one that was skipped."""
        if not (math.isfinite(update.loss) and math.isfinite(update.grad_norm)):
            self.skip()
            return
        self.skips_in_a_row = 0
        for means in (self.since_last_row, self.in_epoch):
            means.add(update.loss, update.correct, update.labels, update.seconds)
        loss = update.loss / update.labels
        if (usual := self.spikes.check(loss)) is not None:
            worst = worst_windows(update, self.train, self.tokenizer)
            self.log.write("spike", step=self.progress.step, loss=loss, usual=usual, windows=worst)

    def skip(self) -> None:
        """Count an update whose loss or gradient was not finite; give up after too many in a row."""
        self.skips_in_a_row += 1
        self.progress.skipped += 1
        reason = "loss or gradient is not finite"
        self.log.write("skipped", step=self.progress.step, reason=reason, in_a_row=self.skips_in_a_row)
        if self.skips_in_a_row >= SKIPS_IN_A_ROW * (2 if self.scaler.is_enabled() else 1):
            self.end("gradient not finite")
            raise Diverged(
                f"{self.skips_in_a_row} updates in a row had a loss or gradient that is not finite; no weight was "
                f"changed by them. Lower lr ({self.settings.lr}), or raise warmup_steps; the last checkpoint before "
                "them is kept."
            )

    def write_row(self, update: Update, before: list[torch.Tensor]) -> None:
        """Write a row of the log, about all updates since the last; `before` is `watched` as it was an update ago."""
        progress, throughput = self.progress, self.since_last_row.labels / self.since_last_row.seconds
        row: dict[str, Any] = self.since_last_row.means(self.bits_per_char["train"]) | {
            "total_steps": self.total_steps,
            "epoch": progress.epoch + progress.position / len(self.train),
            "lr": update.lr,
            "grad_norm": update.grad_norm,
            "tokens_per_second": throughput,
            "mfu": throughput * self.flops_per_token / self.peak_flops,
            "memory": memory_peak(self.device),
            "seconds": time.perf_counter() - self.begin,
            "train_seconds": progress.updating,
            "seconds_left": (self.total_steps - progress.step) * progress.updating / progress.step,
            "skipped": progress.skipped,
        }
        if before:
            moved = [distributed.whole(p.detach()) - old for p, old in zip(self.watched, before, strict=True)]
            row["update_ratio"] = _norm(moved) / (_norm(before) or math.inf)  # LoRA begins with zeros
        if self.scaler.is_enabled():
            row["scale"] = self.scaler.get_scale()
        if shares := self.local_loss.expert_shares():  # of this process; the others' are alike
            row["expert_load"] = shares
        self.log.write("step", step=progress.step, **row)
        self.since_last_row = RunningMeans()

    def milestones(self) -> None:
        """Validate, write a sample, export and save, whatever is due after this update."""
        # 1. what is due
        progress, settings = self.progress, self.settings
        ends = progress.step >= self.total_steps
        epoch_ends = progress.position >= len(self.train)
        if epoch_ends:
            self.close_epoch()
        milestone = epoch_ends and (not self.budget.by_clock or self.pause_over)
        # 2. validation and sample. Being stopped is no reason to validate here: a run that is resumed must have judged
        # itself at the same steps as one that was never stopped
        self.validation = None
        progress.unjudged = ends or milestone or _every(settings.eval_step, progress.step)
        better = progress.unjudged and not self.stop_now and self.judge()
        sharded = self.size > 1 and self.parallel == "fsdp"
        sample_due = not self.stop_now and (ends or self.stopped or _every(settings.sample_step, progress.step))
        save_due = ends or self.stopped or milestone or better or _every(settings.checkpoint_step, progress.step)
        if not (epoch_ends or sample_due or save_due):
            return
        if self.is_broken():
            self.log.write("checkpoint_failed", step=progress.step, reason="a weight is NaN or infinite")
            return
        if sample_due and self.rank == 0 and not sharded:
            self.log.write("sample", step=progress.step, text=sample(self.model, self.tokenizer, self.device))
        # 3. the epoch's folder before the checkpoint: killed in between, the run passes here again
        if epoch_ends and not self.budget.by_clock:
            self.write_unless_full(lambda: self.export(f"epoch-{progress.epoch}"))
        if save_due:
            self.write_unless_full(self.save)
            self.saved = time.perf_counter()

    def is_broken(self) -> bool:
        """Return whether a weight is NaN or infinite in any process: such a model takes no sound checkpoint's place."""
        own = [p.to_local() if hasattr(p, "to_local") else p for p in self.parameters]  # of fsdp, its own part
        broken = sum(not bool(torch.isfinite(p).all()) for p in own)
        return distributed.sum_over_ranks([broken], self.device)[0] > 0

    def judge(self) -> bool:
        """Validate, and end the run if it should end early; return whether this is its best state so far."""
        progress = self.progress
        self.validation = self.validate()
        better = self.validation["loss"] < progress.best
        progress.best = min(progress.best, self.validation["loss"])
        progress.stale = 0 if better else progress.stale + 1
        progress.unjudged = False
        if progress.step < self.total_steps and not self.stopped:
            self.ended_early = self.early_stop()
            self.stopped = bool(self.ended_early)
        return better

    def early_stop(self) -> str:
        """Return why the run should end early, see `state.early_stop`."""
        best = self.progress.best * self.bits_per_char["val"]
        return early_stop(self.progress, self.total_steps, best, self.settings.patience, self.settings.rungs)

    def close_epoch(self) -> None:
        """Begin the next epoch, and log the means of the last one."""
        progress = self.progress
        progress.epoch, progress.position = progress.epoch + 1, 0
        self.order = epoch_order(self.train.lengths, self.settings.seed, progress.epoch)
        if self.in_epoch.labels:
            means = self.in_epoch.means(self.bits_per_char["train"])
            self.log.write("epoch", step=progress.step, epoch=progress.epoch, **means, seconds=self.in_epoch.seconds)
        self.in_epoch = RunningMeans()

    def score(self) -> dict[str, float]:
        """Return loss, bits per character and accuracy on the validation windows."""
        scores = evaluate(self.local_loss, self.val, self.micro_batch, self.precision, self.device)
        return scores | {"bits_per_char": scores["loss"] * self.bits_per_char["val"]}

    def validate(self) -> dict[str, float]:
        """Score the validation windows and log the result."""
        begin, progress = time.perf_counter(), self.progress
        scores = self.score()
        progress.validating = time.perf_counter() - begin
        progress.seconds = time.perf_counter() - self.begin
        times = {"seconds": progress.seconds, "train_seconds": progress.updating}
        self.log.write("validation", step=progress.step, **scores, **times)
        return scores

    def restore(self) -> bool:
        """Resume from the newest sound checkpoint of this run, if there is one; return whether that was validated."""
        if newest := checkpoint.latest(self.folder / "checkpoints", self.identity):
            path, state, complaints = newest
            checkpoint.restore(path, self.model, self.optimizers)
            if state["scaler"]:  # empty where the run went on in another precision, on another device
                self.scaler.load_state_dict(state["scaler"])
            self.progress = Progress(**state["progress"])
            self.log.write("resume", step=self.progress.step, complaints=complaints)
            return state["val_loss"] is not None
        return False

    def save(self) -> Path:
        """Write a checkpoint: all that a resumed run needs to continue bit for bit."""
        self.progress.seconds, self.progress.in_epoch = time.perf_counter() - self.begin, vars(self.in_epoch)
        state = {
            "progress": asdict(self.progress),
            "scaler": self.scaler.state_dict(),
            "identity": self.identity,
            "val_loss": self.validation["loss"] if self.validation else None,
        }
        folder = self.folder / "checkpoints"
        return checkpoint.save(folder, self.progress.step, self.model, self.optimizers, state, writes=self.rank == 0)

    def export(self, name: str) -> None:
        """Write the model as a plain Hugging Face folder."""
        checkpoint.export(self.folder / name, self.model, self.tokenizer, writes=self.rank == 0)

    def write_unless_full(self, write: Callable[[], Path | None]) -> None:
        """Call `write`; a full disk does not end the run: it is logged, and the next save tries again."""
        try:
            if path := write():
                self.log.write("checkpoint", step=self.progress.step, path=path.name)
        except OSError as error:
            self.log.write("checkpoint_failed", step=self.progress.step, reason=str(error))
            print(f"step {self.progress.step}: not saved ({error}); training goes on", file=sys.stderr)
        if self.size > 1:
            dist.barrier()

    def finish(self) -> dict:
        """Write the final model and return the run's figures; after `stop`, without a last validation."""
        progress = self.progress
        throughput = progress.tokens / progress.updating if progress.step else 0.0
        figures = {
            "steps": progress.step,
            "total_steps": self.total_steps,
            "tokens_per_second": round(throughput),
            "mfu": round(throughput * self.flops_per_token / self.peak_flops, 4),
            "skipped": progress.skipped,
        }
        if not self.stop_now:
            scores = self.return_to_best(self.validation or self.validate())
            if self.is_broken():
                self.end("weights not finite")
                raise Diverged(
                    "a weight is NaN or infinite, so there is no model to keep. Lower lr "
                    f"({self.settings.lr}), or raise warmup_steps; the last checkpoint before is kept."
                )
            figures |= {"val_loss": scores["loss"], "val_bits_per_char": scores["bits_per_char"]}
            figures["accuracy"] = scores["accuracy"]
            self.export("final_model")
        seconds = self.end("finished" if progress.step >= self.total_steps else self.ended_early or "stopped")
        return figures | {"seconds": round(seconds, 1)}

    def return_to_best(self, scores: dict[str, float]) -> dict[str, float]:
        """Take back the best checkpoint's weights if the last, with these `scores`, are worse; return its scores."""
        best = checkpoint.best(self.folder / "checkpoints", self.identity)
        if best is None or best[1]["val_loss"] >= scores["loss"]:  # not if these are NaN
            return scores
        checkpoint.restore_weights(best[0], self.model)
        scores = self.score()
        self.log.write("best", step=self.progress.step, of_step=best[1]["step"], **scores)
        return scores

    def end(self, reason: str) -> float:
        """Write the log's last row and close it; return the run's seconds."""
        seconds = time.perf_counter() - self.begin
        self.log.write("end", step=self.progress.step, reason=reason, seconds=seconds)
        self.log.close()
        return seconds


def _every(steps: int, step: int) -> bool:
    return steps > 0 and step % steps == 0


def _norm(tensors: list[torch.Tensor]) -> float:
    """Return the Euclidean length of a list of tensors."""
    return math.hypot(*(float(tensor.norm()) for tensor in tensors))


# ---- batches, validation, samples ----


def load_batch(windows: Examples, indices: np.ndarray, device: torch.device) -> list[torch.Tensor]:
    """Return what `Loss` takes of windows, on a device, (B, T) each; for no indices, one window without labels."""
    inputs, labels, *more = windows.batch(indices if len(indices) else [0])
    if len(indices) == 0:  # a process without work still takes part in the exchange of gradients
        labels = torch.full_like(labels, IGNORE)
    batch = [inputs, labels, *more]
    if device.type == "cuda":  # from pinned memory the copy waits for nothing, and nothing waits for it
        batch = [tensor.pin_memory() for tensor in batch]
    return [tensor.to(device, non_blocking=True) for tensor in batch]


@torch.no_grad()
def evaluate(
    loss_of: Loss, windows: Examples, batch_size: int, precision: str, device: torch.device
) -> dict[str, float]:
    """Return mean loss (nats per token), accuracy and number of scored tokens over all windows, without dropout."""
    loss_of.eval()
    loss = correct = n_labels = 0.0
    by_length = windows.lengths.argsort(kind="stable")  # little padding
    for batch in distributed.split_across_ranks(by_length, batch_size, *distributed.world()):
        with autocast(precision, device):
            scores = loss_of(*load_batch(windows, batch, device))
        loss += float(scores.loss.to(widest_float(device)).sum())
        correct += int(scores.correct.sum())
        n_labels += windows.count_labels(batch)
    loss_of.train()
    loss, correct, n_labels = distributed.sum_over_ranks([loss, correct, n_labels], device)
    return {"loss": loss / n_labels, "accuracy": correct / n_labels, "tokens": int(n_labels)}


def sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, device: torch.device) -> str:
    """Return a text that the model writes from a document's start: a glance; room 05 does this with care."""
    model.eval()
    start = torch.tensor([[tokenizer.bos_token_id]], device=device)
    length = min(60, model.config.max_position_embeddings - 1)
    ids = model.generate(  # type: ignore[operator]  # the library's types leave out that a causal model can generate
        start, attention_mask=torch.ones_like(start), do_sample=True, top_k=30, max_new_tokens=length
    )
    model.train()
    return decode(tokenizer, ids[0].tolist())


def worst_windows(update: Update, windows: Examples, tokenizer: PreTrainedTokenizerFast) -> list[dict[str, object]]:
    """Return an update's three windows of the highest mean loss, over all processes: index, loss and text of each."""
    pairs = zip(update.windows, update.window_losses.tolist(), strict=False)  # a process without work has a loss too
    means = [(loss / max(1, windows.count_labels(np.array([i]))), int(i)) for i, loss in pairs]
    worst = sorted(distributed.gather_over_ranks(means), reverse=True)[:3]
    text = {i: decode(tokenizer, windows[i][0][: windows.lengths[i]].tolist()) for _, i in worst}
    return [{"index": i, "loss": loss, "text": text[i]} for loss, i in worst]
