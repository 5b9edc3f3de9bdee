"""What a run does between updates: validate, end early, write a sample, export, save; and how long it is.

`Progress` is all that a checkpoint needs of a run besides weights and optimizers, `Session` what only this process
knows. Knows no update and no learning rate.
"""

import math
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from helpers.device import autocast, widest_float
from helpers.model.cache import Cache
from helpers.model.gpt import GPT
from helpers.tokens.windows import Examples
from helpers.train import checkpoint, distributed
from helpers.train.log import MetricsLog, RunningMeans
from helpers.train.loss import Loss, load_batch
from helpers.train.settings import TrainSettings
from helpers.vocab.tokenizer import decode
from helpers.wording import say

FIRST_GUESS = 1000  # total of a time budget before an update is measured: large, so that the first is in the warm-up
PACE_UPDATES = 20  # last updates whose median time is the pace
PAUSE = 60.0  # seconds between two checkpoints at least, where a time budget makes many short epochs


class Diverged(RuntimeError):
    """A run whose gradients or weights are NaN or infinite; its last checkpoint is from before."""


# ---- where a run is, and how long it will be ----


@dataclass
class Progress:
    """Where a run is: with weights and optimizer state all that a checkpoint needs to go on. Times in seconds."""

    step: int = 0  # updates done
    epoch: int = 0  # epochs done
    position: int = 0  # windows done of this epoch
    best: float = math.inf  # lowest validation loss so far
    stale: int = 0  # validations since then
    unjudged: bool = False  # a validation is due, and the run was stopped before it
    seconds: float = 0.0  # since the run began, in all sessions
    updating: float = 0.0  # of these in updates
    validating: float = 0.0  # of the last validation
    tokens: int = 0  # learnt from, with repetitions
    skipped: int = 0  # updates without a finite gradient
    in_epoch: RunningMeans = field(default_factory=RunningMeans)  # of this epoch


@dataclass
class Session:
    """What this process was told and has measured; a run that is resumed begins with a new one."""

    micro_batch: int  # windows of a forward pass
    begin: float  # when the run would have begun if it had never been stopped
    saved: float  # when the last checkpoint was written
    total_steps: int = 0
    stopped: bool = False  # asked to end
    stop_now: bool = False  # asked by `stop`: without a last validation
    pause_over: bool = False  # the last checkpoint is old enough for another one, by the first process's clock
    ended_early: str = ""  # why, before its last update

    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.perf_counter() - self.begin


class StepBudget:
    """How many updates a run has: exactly so many epochs, or what fits into so many minutes.

    With a time budget the number is estimated again before each update from the measured pace; so the schedule,
    which is a function of that number, comes to its end when the time does.
    """

    def __init__(self, settings: TrainSettings, windows: int, windows_per_update: int, val_tokens: int):
        """val_tokens: of a validation, of which there is one after each `eval_step` updates (0: none), and one more."""
        self.epochs, self.limit = settings.epochs, 60 * settings.max_minutes  # seconds; 0 means that epochs decide
        self.eval_step = settings.eval_step
        self.by_clock = settings.max_minutes > 0
        self.windows, self.windows_per_update, self.val_tokens = windows, windows_per_update, val_tokens
        self.update_seconds: deque[float] = deque(maxlen=PACE_UPDATES)

    def total_steps(self, progress: Progress) -> int:
        """Return the number of the run's last update, seen from where the run is."""
        if not self.by_clock:
            if progress.epoch >= self.epochs:
                return progress.step
            rest = math.ceil((self.windows - progress.position) / self.windows_per_update)
            per_epoch = math.ceil(self.windows / self.windows_per_update)
            return progress.step + rest + (self.epochs - progress.epoch - 1) * per_epoch
        if not progress.step:
            return FIRST_GUESS
        pace = statistics.median(self.update_seconds) if self.update_seconds else progress.updating / progress.step
        # validations are part of the time; until one is measured: forward only, a third of the work
        validating = progress.validating or self.val_tokens / 3 * progress.updating / progress.tokens
        left = self.limit - progress.seconds - validating
        return progress.step + max(0, round(self._updates_in(left, pace, validating, progress.step)))

    def _updates_in(self, seconds: float, pace: float, validating: float, step: int) -> float:
        """Return how many updates fit into so many seconds beside the validations on the way, begun after `step`."""
        first = self.eval_step - step % self.eval_step if self.eval_step else math.inf  # updates to the next validation
        if seconds <= first * pace:
            return seconds / pace
        # of each validation and the updates up to the next one; in the last cycle perhaps only a part of either
        cycles, rest = divmod(seconds - first * pace, validating + self.eval_step * pace)
        return first + cycles * self.eval_step + max(0.0, rest - validating) / pace

    def warmup(self, warmup_steps: int, total_steps: int) -> int:
        """Return the updates of warm-up; by the clock at most a fifth, because the total is not known in advance."""
        return min(warmup_steps, total_steps // 5) if self.by_clock else warmup_steps


def resume(
    folder: Path, identity: str, model: GPT, optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler, log: MetricsLog,
) -> tuple[Progress, bool]:  # fmt: skip
    """Go on from a run's newest sound checkpoint, if there is one; return where it was, and if it was validated."""
    newest = checkpoint.latest(folder / "checkpoints", identity)
    if newest is None:
        return Progress(), False
    path, state, complaints = newest
    checkpoint.restore(path, model, optimizers)
    if state["scaler"]:  # empty where the run went on in another precision, on another device
        scaler.load_state_dict(state["scaler"])
    saved = state["progress"]
    progress = Progress(**saved | {"in_epoch": RunningMeans(**saved["in_epoch"])})
    log.write("resume", step=progress.step, complaints=complaints)
    return progress, state["val_loss"] is not None


# ---- what a run does between updates ----


@dataclass
class Milestones:
    """Validation and what follows from it: the best state, an early end, checkpoints, exported folders."""

    loss_of: Loss  # of this process, with the model
    optimizers: Sequence[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    val: Examples
    settings: TrainSettings
    folder: Path
    tokenizer: PreTrainedTokenizerFast
    identity: str  # of the run: a checkpoint of another one is refused
    log: MetricsLog
    progress: Progress
    session: Session
    precision: str
    device: torch.device
    bits_per_char: float  # of a validation loss of one nat per token
    weights: Callable[[], dict[str, torch.Tensor]] | None = None  # exported in place of the model's own
    validation: dict[str, float] | None = None  # of this update

    def __post_init__(self) -> None:
        self.writes = distributed.world()[0] == 0  # one process does, for all have the same weights

    def reach(self, epoch_ended: bool) -> None:
        """Validate, write a sample, export and save, whatever is due after this update."""
        # 1. what is due
        progress, session, settings = self.progress, self.session, self.settings
        ends = progress.step >= session.total_steps
        by_clock = settings.max_minutes > 0
        milestone = epoch_ended and (not by_clock or session.pause_over)
        # 2. validation and sample. Being stopped is no reason to validate here: a run that is resumed must have judged
        # itself at the same steps as one that was never stopped
        self.validation = None
        progress.unjudged = ends or milestone or _every(settings.eval_step, progress.step)
        better = progress.unjudged and not session.stop_now and self.judge()
        ending = ends or session.stopped
        sample_due = not session.stop_now and (ending or _every(settings.sample_step, progress.step))
        save_due = ending or milestone or better or _every(settings.checkpoint_step, progress.step)
        if not (epoch_ended or sample_due or save_due):
            return
        if self.is_broken():
            self.log.write("checkpoint_failed", step=progress.step, reason="a weight is NaN or infinite")
            return
        if sample_due and self.writes:
            text = write_sample(self.loss_of.model, self.tokenizer, self.device)
            self.log.write("sample", step=progress.step, text=text)
        # 3. the epoch's folder before the checkpoint: killed in between, the run passes here again
        if epoch_ended and not by_clock and settings.keep:
            self.write_unless_full(self.export_epoch)
        if save_due:
            self.write_unless_full(self.save)
            session.saved = time.perf_counter()

    def judge(self) -> bool:
        """Validate, and end the run if it should end early; return whether this is its best state so far."""
        progress = self.progress
        self.validation = self.validate()
        better = self.validation["loss"] < progress.best
        progress.best = min(progress.best, self.validation["loss"])
        progress.stale = 0 if better else progress.stale + 1
        progress.unjudged = False
        if progress.step < self.session.total_steps and not self.session.stopped:
            self.end_early()
        return better

    def end_early(self) -> None:
        """End the run before its last update after `patience` validations without a better one (0: never)."""
        patience, stale = self.settings.patience, self.progress.stale
        self.session.stopped = bool(patience) and stale >= patience
        self.session.ended_early = f"no better for {stale} validations" if self.session.stopped else ""

    def score(self) -> dict[str, float]:
        """Return loss, bits per character and accuracy on the validation windows."""
        scores = evaluate(self.loss_of, self.val, self.session.micro_batch, self.precision, self.device)
        return scores | {"bits_per_char": scores["loss"] * self.bits_per_char}

    def validate(self) -> dict[str, float]:
        """Score the validation windows and log the result."""
        begin, progress = time.perf_counter(), self.progress
        scores = self.score()
        progress.validating = time.perf_counter() - begin
        progress.seconds = self.session.seconds()
        times = {"seconds": progress.seconds, "train_seconds": progress.updating}
        self.log.write("validation", step=progress.step, **scores, **times)
        return scores

    def is_broken(self) -> bool:
        """Return whether a weight is NaN or infinite in any process: such a model takes no sound checkpoint's place."""
        learnt = [p for p in self.loss_of.model.parameters() if p.requires_grad]
        broken = sum(not bool(torch.isfinite(p).all()) for p in learnt)
        return distributed.sum_over_ranks([broken], self.device)[0] > 0

    def save(self) -> Path:
        """Write a checkpoint: all that a resumed run needs to continue bit for bit."""
        progress = self.progress
        progress.seconds = self.session.seconds()
        state = {
            "progress": asdict(progress),
            "scaler": self.scaler.state_dict(),
            "identity": self.identity,
            "val_loss": self.validation["loss"] if self.validation else None,
        }
        return checkpoint.save(self.folder / "checkpoints", progress.step, self.loss_of.model, self.optimizers, state)

    def export(self, name: str) -> None:
        """Write the model as a plain Hugging Face folder."""
        weights = self.weights() if self.weights else None
        checkpoint.export_model(self.folder / name, self.loss_of.model, self.tokenizer, weights)

    def export_epoch(self) -> None:
        """Write the model of the epoch that has ended; then remove all but the newest `keep` of them."""
        self.export(f"epoch-{self.progress.epoch}")
        for old in range(1, self.progress.epoch - self.settings.keep + 1):
            shutil.rmtree(self.folder / f"epoch-{old}", ignore_errors=True)

    def write_unless_full(self, write: Callable[[], Path | None]) -> None:
        """Call `write`; a full disk does not end the run: it is logged, and the next save tries again."""
        step = self.progress.step
        try:
            if self.writes and (path := write()):
                self.log.write("checkpoint", step=step, path=path.name)
        except OSError as error:
            self.log.write("checkpoint_failed", step=step, reason=str(error))
            print(f"step {step}: not saved ({error}); training goes on", file=sys.stderr)
        if dist.is_initialized():
            dist.barrier()

    def write_final_model(self) -> dict[str, float]:
        """Export the best state as `final_model` and return its scores; raise Diverged if a weight is not finite."""
        scores = self.return_to_best(self.validation or self.validate())
        if self.is_broken():
            words = (
                "a weight is NaN or infinite, so there is no model to keep. "
                "Lower lr ({}), or raise warmup_steps; the last checkpoint before is kept."
            )
            raise Diverged(say(words, self.settings.lr))
        if self.writes:
            self.export("final_model")
        return scores

    def return_to_best(self, scores: dict[str, float]) -> dict[str, float]:
        """Take back the best checkpoint's weights if the last, with these `scores`, are worse; return its scores."""
        best = checkpoint.best(self.folder / "checkpoints", self.identity)
        if best is None or best[1]["val_loss"] >= scores["loss"]:  # not if these are NaN
            return scores
        checkpoint.restore_weights(best[0], self.loss_of.model)
        scores = self.score()
        self.log.write("best", step=self.progress.step, of_step=best[1]["step"], **scores)
        return scores


def _every(steps: int, step: int) -> bool:
    return steps > 0 and step % steps == 0


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


def write_sample(model: GPT, tokenizer: PreTrainedTokenizerFast, device: torch.device) -> str:
    """Return a text that the model writes from a document's start: a glance; room 05 does this with care."""
    model.eval()
    ids, cache = [tokenizer.bos_token_id], Cache(model.config, model.embed_tokens.weight)
    while len(ids) < min(60, model.config.window) and ids[-1] != tokenizer.eos_token_id:
        logits = model(torch.tensor([ids[-1:]], device=device), cache=cache)[0, -1]  # (V,)
        logits[model.generation.get("suppress_tokens", [])] = -torch.inf
        best = logits.topk(min(30, len(logits)))
        ids.append(int(best.indices[torch.multinomial(best.values.softmax(-1), 1)]))
    model.train()
    return decode(tokenizer, ids)
