"""The training loop: `Trainer.step` is one update, `Trainer.run` does them all and logs them.

One update is a batch, its learning rate, forward, loss and backward with gradient accumulation, clipping, and a step of
the optimizers; when it runs out of memory it is tried again in smaller micro-batches. To watch a run, read the
`metrics.jsonl` that it writes; to stop it, put a file `STOP` beside that. Knows no notebook and no plot, and of what
happens between two updates (`milestones`) only when it is due.
"""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedTokenizerFast

from helpers import device as machine
from helpers.model.gpt import GPT
from helpers.progress import tell
from helpers.tokens.windows import Examples, epoch_order
from helpers.train import distributed, optim
from helpers.train.log import MetricsLog, RunningMeans, SpikeDetector
from helpers.train.loss import Loss, load_batch
from helpers.train.milestones import PAUSE, Diverged, Milestones, Session, StepBudget, resume
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import decode
from helpers.wording import say

SKIPS_IN_A_ROW = 10  # updates without a finite gradient until a run gives up; a loss scale needs some to settle


class Totals(NamedTuple):
    """What the processes sum up once per update, besides their gradients."""

    loss: float  # summed cross-entropy, nats
    correct: float  # right first guesses
    stop_file: float  # processes that see a file STOP
    stop_now: float  # processes whose `stop` says so
    rank0_total_steps: float  # the length of the run by the first process's clock; 0 from all others
    rank0_paused: float  # 1 if by that clock the last checkpoint is old enough for another one; 0 from all others


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


class Pace:
    """What the rows of updates say beside their loss: speed against the machine's, and how far the weights move."""

    def __init__(self, model: GPT, n_ctx: int, peak_flops: float, bits_per_char: float):
        self.flops_per_token, self.peak_flops = model.config.sizes(n_ctx)["flops_per_token"], peak_flops
        self.bits_per_char = bits_per_char  # of a training loss of one nat per token
        self.since_last_row, self.spikes = RunningMeans(), SpikeDetector()
        # the last matrix of each block, and a copy of it from before an update
        self.watched = [[p for p in block.parameters() if p.ndim == 2][-1] for block in model.layers]
        self.before: list[torch.Tensor] = []

    def remember(self, due: bool) -> None:
        """Copy the watched weights if the next update has a row."""
        self.before = [p.detach().clone() for p in self.watched] if due else []

    def row(self) -> dict[str, float]:
        """Return what is known of the updates since the last row, and begin anew."""
        means, self.since_last_row = self.since_last_row, RunningMeans()
        speed = means.labels / means.seconds
        row = means.means(self.bits_per_char) | {"tokens_per_second": speed, "mfu": self.mfu(speed)}
        if self.before:
            moved = [p.detach() - old for p, old in zip(self.watched, self.before, strict=True)]
            row["update_ratio"] = _length(moved) / (_length(self.before) or math.inf)  # LoRA begins with zeros
        return row

    def mfu(self, tokens_per_second: float) -> float:
        """Return the share of the machine's products per second that a speed needs."""
        return tokens_per_second * self.flops_per_token / self.peak_flops


class Trainer:
    """One training run in `folder`, from where it is found to its end: its state, and `step`.

    `chars_per_token` (keys train and val) turns nats per token into bits per character. A checkpoint of another
    `identity` is refused. `stop` is asked after each update whether to save and end. `weights`: what is exported
    instead of the model's own tensors, such as those that LoRA was merged into.

    An update takes batch_size × gradient_accumulation × processes windows, an epoch's last one those that remain. The
    run starts from the newest sound checkpoint in `folder/checkpoints` if there is one, exactly where that was taken.
    """

    def __init__(
        self,
        model: GPT,
        train: Examples,
        val: Examples,
        settings: TrainSettings,
        folder: Path,
        tokenizer: PreTrainedTokenizerFast,
        *,
        chars_per_token: Mapping[str, float],
        identity: str = "",
        stop: Callable[[], bool] = lambda: False,
        weights: Callable[[], dict[str, torch.Tensor]] | None = None,
    ):
        of_the_model = ("n_embd", "n_layer", "n_head", "dropout")  # it is there
        if names := [name for name in settings.undecided() if name not in of_the_model]:
            raise ValueError(f"{', '.join(names)}: 0 leaves them to a rule, which `rules.decide` has not applied yet")
        self.model, self.train, self.settings = model, train, settings
        self.folder, self.tokenizer, self.stop = folder, tokenizer, stop
        # 1. the machine
        rank, size = distributed.world()
        self.device = machine.pick_device(settings.device)
        self.precision = machine.pick_precision(settings.precision, self.device)
        # 2. model, loss and optimizers
        self.local_loss = Loss(model, settings.compile).to(self.device).train()
        self.loss_of = distributed.distribute(self.local_loss, self.device)
        self.optimizers = optim.make_optimizers(model, settings, machine.DTYPES[self.precision])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        # 3. where the run is
        self.windows_per_update = settings.batch_size * settings.gradient_accumulation * size
        folder.mkdir(parents=True, exist_ok=True)
        self.log = MetricsLog(folder, rank == 0)
        self.progress, judged = resume(folder, identity, model, self.optimizers, self.scaler, self.log)
        self.order = epoch_order(train.lengths, settings.seed, self.progress.epoch)
        self.budget = StepBudget(settings, len(train), self.windows_per_update, int(val.lengths.sum()))
        bits = {split: 1 / math.log(2) / chars for split, chars in chars_per_token.items()}  # of a nat per token
        self.pace = Pace(model, train.n_ctx, size * machine.matmul_rate(self.precision, self.device), bits["train"])
        now = time.perf_counter()
        self.session = Session(settings.batch_size, now - self.progress.seconds, now)
        self.session.total_steps = self.budget.total_steps(self.progress)
        self.milestones = Milestones(
            self.local_loss, self.optimizers, self.scaler, val, settings, folder, tokenizer, identity, self.log,
            self.progress, self.session, self.precision, self.device, bits["val"], weights,
        )  # fmt: skip
        if judged:
            self.milestones.end_early()
        self.gradient_complete = False  # all of this update's backward passes are done
        self.skips_in_a_row = 0

    # ---- one update ----

    def step(self) -> Update:
        """Do one update; a loss or gradient that is not finite changes no weight."""
        begin, settings, progress, session = time.perf_counter(), self.settings, self.progress, self.session
        rank, size = distributed.world()

        # 1. the batch: the next windows of the epoch, shared out over processes and micro-batches
        indices = self.order[progress.position : progress.position + self.windows_per_update]
        n_labels = self.train.count_labels(indices)
        micro_batches = distributed.split_across_ranks(indices, session.micro_batch, rank, size)
        self.seed_dropout()

        # 2. the learning rate of this step
        warmup = self.budget.warmup(settings.warmup_steps, session.total_steps)
        lr = optim.learning_rate(
            progress.step, session.total_steps, settings.lr, warmup, settings.schedule, settings.final_lr_fraction
        )

        # 3. set it, and zero the gradients
        optim.begin_step(self.optimizers, lr)
        self.gradient_complete = False

        # 4. forward, loss, backward: the gradients of the micro-batches add up (gradient accumulation). Each loss is
        # divided by the labels of the whole update, so k micro-batches give the gradient of one that holds them all
        losses: list[torch.Tensor] = []
        correct: list[torch.Tensor] = []
        for number, micro_batch in enumerate(micro_batches, 1):
            batch = load_batch(self.train, micro_batch, self.device)  # inputs, labels: (B, T) each
            with self.exchange_gradients(number == len(micro_batches)):
                with machine.autocast(self.precision, self.device):
                    scores = self.loss_of(*batch)
                # × processes: they exchange the average of their gradients, and what we want is the sum
                self.scaler.scale(scores.objective * (size / n_labels)).backward()
            losses.append(scores.loss)  # (B,)
            correct.append(scores.correct)  # (B,)
        self.gradient_complete = True

        # 5. unscale and clip the gradient
        norm = optim.clip_gradient(self.optimizers, self.parameters, settings.max_grad_norm, self.scaler)

        # 6. the one exchange besides the gradients
        window_losses = torch.cat(losses)
        progress.seconds = session.seconds()
        loss = float(window_losses.to(machine.widest_float(self.device)).sum())
        total = self.exchange(loss, float(torch.cat(correct).sum()))

        # 7. the step of the optimizers
        optim.step(self.optimizers, self.scaler, finite=math.isfinite(total.loss) and math.isfinite(norm))

        # 8. count
        seconds = time.perf_counter() - begin
        self.count(len(indices), n_labels, seconds, total)
        return Update(lr, norm, total.loss, total.correct, n_labels, seconds, indices[rank::size], window_losses)

    def seed_dropout(self) -> None:
        """Make dropout's noise a function of seed, update and process: nothing to save, nothing to restore."""
        which = f"{self.settings.seed}/{self.progress.step}/{distributed.world()[0]}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(which.encode()).digest()[:7], "big"))

    def exchange_gradients(self, last: bool) -> contextlib.AbstractContextManager:
        """Return the context of a micro-batch: DDP's processes exchange gradients in the last one only."""
        if isinstance(self.loss_of, DistributedDataParallel) and not last:
            return self.loss_of.no_sync()
        return contextlib.nullcontext()

    def exchange(self, loss: float, correct: float) -> Totals:
        """Return the sums over all processes of what this one computed and was asked."""
        first = distributed.world()[0] == 0
        total_steps = self.budget.total_steps(self.progress) if first else 0
        stop_file, paused = (self.folder / "STOP").exists(), first and time.perf_counter() - self.session.saved > PAUSE
        own = Totals(loss, correct, stop_file, self.stop(), total_steps, paused)
        return Totals(*distributed.sum_over_ranks(own, self.device))

    def count(self, windows: int, labels: int, seconds: float, total: Totals) -> None:
        """Note that an update is done, and what the processes were asked meanwhile."""
        progress, session = self.progress, self.session
        progress.step += 1
        progress.position += windows
        progress.updating += seconds
        progress.tokens += labels
        self.budget.update_seconds.append(seconds)
        if self.budget.by_clock:
            session.total_steps = max(int(total.rank0_total_steps), progress.step)
        session.stop_now = bool(total.stop_now)
        session.pause_over = bool(total.rank0_paused)
        session.stopped = bool(total.stop_file or total.stop_now)

    def step_in_memory(self) -> Update:
        """Do one update, in smaller micro-batches if memory runs out: more of them, so the update stays what it is."""
        session, step, before = self.session, self.progress.step, self.session.micro_batch
        while True:
            try:
                update = self.step()
                break
            except (RuntimeError, MemoryError) as error:
                if self.gradient_complete or not machine.is_out_of_memory(error):
                    raise
                if session.micro_batch == 1:
                    raise MemoryError(
                        "memory runs out at a single window: choose a smaller model, or a smaller n_ctx in notebook 03"
                    ) from error
                session.micro_batch = -(-session.micro_batch // 2)
                if distributed.world()[1] > 1:  # one process cannot try again alone
                    raise
            machine.empty_cache(self.device)  # here the error, and all that it held, is gone
        if session.micro_batch < before:
            self.log.write("out_of_memory", step=step, micro_batch=session.micro_batch)
        return update

    # ---- the run ----

    def run(self) -> dict:
        """Train to the end, or until asked to stop; return the run's figures.

        A file STOP saves, validates and ends after the update; `stop()` saves and ends. Raises Diverged, and leaves
        the last checkpoint, when the gradient is not finite SKIPS_IN_A_ROW times.
        """
        progress, session = self.progress, self.session
        rank, size = distributed.world()
        self.log.write(
            "start",
            step=progress.step,
            total_steps=None if self.budget.by_clock else session.total_steps,
            precision=self.precision,
            device=str(self.device),
            processes=size,
            windows_per_update=self.windows_per_update,
            flops_per_token=self.pace.flops_per_token,
            matmul_rate=self.pace.peak_flops,
        )
        if progress.unjudged and self.milestones.judge():  # it was stopped before it could
            self.milestones.write_unless_full(self.milestones.save)
        while progress.step < session.total_steps and not session.stopped:
            # a row of the log; a time budget may end between two of them
            due = (progress.step + 1) % self.settings.log_step == 0 or progress.step + 1 == session.total_steps
            self.pace.remember(due)
            update = self.step_in_memory()
            if rank == 0:
                tell("training", progress.step, session.total_steps, "updates")
            self.account(update)
            if (due or session.stopped or progress.step >= session.total_steps) and self.pace.since_last_row.labels:
                self.write_row(update.lr, update.grad_norm)
            if epoch_ended := progress.position >= len(self.train):
                self.close_epoch()
            self.milestones.reach(epoch_ended)
        return self.finish()

    def account(self, update: Update) -> None:
        """Add an update to the running means and report a loss spike; count one that was skipped."""
        if not (math.isfinite(update.loss) and math.isfinite(update.grad_norm)):
            self.skip()
            return
        self.skips_in_a_row = 0
        for means in (self.pace.since_last_row, self.progress.in_epoch):
            means.add(update.loss, update.correct, update.labels, update.seconds)
        loss = update.loss / update.labels
        if (usual := self.pace.spikes.check(loss)) is not None:
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
            words = (
                "{} updates in a row had a loss or gradient that is not finite; no weight was changed by them. "
                "Lower lr ({}), or raise warmup_steps; the last checkpoint before them is kept."
            )
            raise Diverged(say(words, self.skips_in_a_row, self.settings.lr))

    def write_row(self, lr: float, grad_norm: float) -> None:
        """Log one row for the updates since the last one."""
        progress, left = self.progress, self.session.total_steps - self.progress.step
        row: dict[str, Any] = self.pace.row() | {
            "total_steps": self.session.total_steps,
            "epoch": progress.epoch + progress.position / len(self.train),
            "lr": lr,
            "grad_norm": grad_norm,
            "memory": machine.memory_peak(self.device),
            "seconds": self.session.seconds(),
            "train_seconds": progress.updating,
            "seconds_left": left * progress.updating / progress.step,
            "skipped": progress.skipped,
        }
        if self.scaler.is_enabled():
            row["scale"] = self.scaler.get_scale()
        if shares := self.local_loss.expert_shares():  # of this process; the others' are alike
            row["expert_load"] = shares
        self.log.write("step", step=progress.step, **row)

    def close_epoch(self) -> None:
        """Begin the next epoch, and log the means of the last one."""
        progress = self.progress
        progress.epoch, progress.position = progress.epoch + 1, 0
        self.order = epoch_order(self.train.lengths, self.settings.seed, progress.epoch)
        if progress.in_epoch.labels:
            means = progress.in_epoch.means(self.pace.bits_per_char)
            seconds = progress.in_epoch.seconds
            self.log.write("epoch", step=progress.step, epoch=progress.epoch, **means, seconds=seconds)
        progress.in_epoch = RunningMeans()

    def finish(self) -> dict:
        """Write the final model and return the run's figures; after `stop`, without a last validation."""
        progress, session = self.progress, self.session
        speed = progress.tokens / progress.updating if progress.step else 0.0
        figures = {
            "steps": progress.step,
            "total_steps": session.total_steps,
            "tokens_per_second": round(speed),
            "mfu": round(self.pace.mfu(speed), 4),
            "skipped": progress.skipped,
        }
        if not session.stop_now:
            try:
                scores = self.milestones.write_final_model()
            except Diverged:
                self.end("weights not finite")
                raise
            figures |= {"val_loss": scores["loss"], "val_bits_per_char": scores["bits_per_char"]}
            figures["accuracy"] = scores["accuracy"]
        ended = "no better" if session.ended_early else "stopped"
        ended = "finished" if progress.step >= session.total_steps else ended
        seconds = self.end(session.ended_early if ended == "no better" else ended)
        return figures | {"seconds": round(seconds, 1), "ended": ended}

    def end(self, reason: str) -> float:
        """Write the log's last row and close it; return the run's seconds."""
        seconds = self.session.seconds()
        self.log.write("end", step=self.progress.step, reason=reason, seconds=seconds)
        self.log.close()
        return seconds


def _length(tensors: list[torch.Tensor]) -> float:
    """Return the Euclidean length of a list of tensors."""
    return math.hypot(*(float(tensor.norm()) for tensor in tensors))


def worst_windows(update: Update, windows: Examples, tokenizer: PreTrainedTokenizerFast) -> list[dict[str, object]]:
    """Return an update's three windows of the highest mean loss, over all processes: index, loss and text of each."""
    pairs = zip(update.windows, update.window_losses.tolist(), strict=False)  # a process without work has a loss too
    means = [(loss / max(1, windows.count_labels(np.array([i]))), int(i)) for i, loss in pairs]
    worst = sorted(distributed.gather_over_ranks(means), reverse=True)[:3]
    text = {i: decode(tokenizer, windows[i][0][: windows.lengths[i]].tolist()) for _, i in worst}
    return [{"index": i, "loss": loss, "text": text[i]} for loss, i in worst]
