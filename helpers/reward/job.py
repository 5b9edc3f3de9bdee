"""One training run of deeper/reward: from an answering model to a better one, by GRPO or by DPO.

Both ask the same kind of questions, draw the same kind of endings, have the same anchor near the start and the same
time. Only the matrices inside the blocks are trained. The final model is the mean of the weights over the
last updates. A run takes minutes: it keeps no checkpoints, and one that was interrupted begins again.
"""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.chat.start import load_start
from helpers.corpus.find import BUILT_IN
from helpers.device import pick_device, pick_precision, widest_float
from helpers.generate import generate
from helpers.manifest import MANIFEST, RoomError, open_room
from helpers.model.gpt import GPT
from helpers.reward import losses, policy
from helpers.reward.judge import Asker
from helpers.reward.policy import Branch, EndingScores
from helpers.reward.rollout import AnswerOpening, Group, write_endings, write_openings
from helpers.train import optim
from helpers.train.settings import check_settings, setting

METHODS = ("grpo", "dpo")
_SURVEY = 4  # updates' worth of questions whose rewards the asker begins with
_AHEAD = 4  # updates for which openings are written at once
_COLLECTING = 0.4  # DPO: the share of the time in which pairs are drawn
AVERAGED = 0.4  # the share of the time, its last, whose weights are averaged


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """The parameters of deeper/reward that decide on a training run. Raises ValueError."""

    run: str = setting("sample")  # name of the run: all files are in runs/<run>/
    begin: str = setting("auto", words=("auto", "base", "chat"))  # model to begin with; auto: chat if the run has it
    minutes: float = setting(1.4)  # time of one training run
    steps: int = setting(0, least=0)  # updates, instead of minutes; 0: by the clock
    questions: int = setting(64, least=1)  # questions per update
    answers: int = setting(8, least=2)  # endings per question: a group
    focus: float = setting(0.5, least=0, most=1)  # share of the questions that ask what goes wrong; others ask evenly
    kl_weight: float = setting(1.0)  # weight of the anchor: how much it costs to move where all is right
    beta: float = setting(0.5)  # DPO: how far a pair is to be parted; smaller is further
    lr: float = setting(3e-4)  # learning rate of GRPO at its peak
    dpo_lr: float = setting(1e-4)  # and of DPO, which makes three updates in the time of one
    warmup_steps: int = setting(10, least=0)  # updates in which the rate climbs
    precision: str = setting("auto", words=("auto", "fp32", "bf16", "fp16"))  # auto, fp32, bf16 or fp16
    device: str = setting("auto")  # auto, cpu, cuda or mps
    seed: int = setting(0)  # which questions, which answers

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.steps and self.minutes <= 0:
            raise ValueError(f"minutes is {self.minutes}: it must be above 0, unless steps says how many updates")


def load_beginning(settings: RewardSettings) -> tuple[GPT, PreTrainedTokenizerFast, str]:
    """Return (model in eval mode, tokenizer with a chat template, which of the run's models it is).

    Raises RoomError where the run's corpus is not the built-in one, because nothing could judge the answers.
    """
    if open_room(settings.run, "corpus")["result"]["source"] != BUILT_IN:
        raise RoomError(
            f"the corpus of run '{settings.run}' is your own, and a reward needs a judge: only for the built-in corpus "
            "there is one. Take a run without --corpus, or write a judge for your text, like helpers/reward/judge.py"
        )
    has_chat = (paths.room(settings.run, "chat") / MANIFEST).is_file()
    begin = settings.begin if settings.begin != "auto" else "chat" if has_chat else "base"
    model, tokenizer = generate.load(settings.run, begin) if begin == "chat" else load_start(settings.run)[:2]
    return model.to(pick_device(settings.device)).eval().requires_grad_(False), tokenizer, begin


class Learner:
    """A model that learns from rewards, beside the model that it was: one method per part of an update."""

    def __init__(self, start: GPT, tokenizer: PreTrainedTokenizerFast, settings: RewardSettings) -> None:
        self.settings, self.tokenizer, self.start = settings, tokenizer, start
        self.model = copy.deepcopy(start).requires_grad_(False)
        self.precision = pick_precision(settings.precision, start.device)
        # the tied table and the norms serve all texts; a conclusion is learnt in the blocks
        self.trained = [p for block in self.model.layers for p in block.parameters() if p.ndim > 1]
        for p in self.trained:
            p.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.trained, betas=(0.9, 0.98), weight_decay=0.0)
        self.scaler = torch.amp.GradScaler(start.device.type, enabled=self.precision == "fp16")
        self.asker = Asker(settings.focus, settings.seed)
        self.openings: list[AnswerOpening] = []
        self.step, self.updates, self.begin = 0, 0, time.perf_counter()
        # the mean of all weights on the way (Polyak and Juditsky 1992)
        self.mean = AveragedModel(self.model, multi_avg_fn=get_swa_multi_avg_fn())

    @property
    def progress(self) -> float:
        """How much of the run is over: 1 at its end, or more."""
        if self.settings.steps:
            return self.step / self.settings.steps
        return (time.perf_counter() - self.begin) / (60 * max(self.settings.minutes, 1e-9))

    # ---- 1. answers ----

    def draw(self) -> list[Group]:
        """Ask questions, write endings and judge them; the asker records the rewards."""
        settings = self.settings
        if len(self.openings) < settings.questions:
            questions = self.asker.ask(_AHEAD * settings.questions)
            self.openings += write_openings(self.model, self.tokenizer, questions, self.asker.random)
        if not self.openings:
            raise ValueError("the model begins every answer with its verdict: nothing is left to be rewarded")
        openings, self.openings = self.openings[: settings.questions], self.openings[settings.questions :]
        groups = write_endings(self.model, self.tokenizer, openings, settings.answers, self.asker.random)
        self.asker.record((group.opening.question, group.mean) for group in groups)
        return groups

    # ---- 2. losses ----

    def anchors(self, groups: Sequence[Group]) -> list[Branch]:
        """Return an ending of each group that is all right: there the model should stay as it was."""
        return [(group.opening.ids, group.endings[:1]) for group in groups if group.mean == 1]

    def score_both(
        self, learnt: Sequence[Branch], held: Sequence[Branch]
    ) -> tuple[EndingScores, Tensor, dict[str, float]]:
        """Return (scores of `learnt`, drift on `held`, figures for the log), from one pass over both.

        The drift is the mean KL(before ‖ now) per token. In this direction it costs to give up what the model could say
        before, so answers stay varied.
        """
        scored = policy.score_endings(self.model, [*learnt, *held], self.precision)
        own = scored.ending < sum(len(endings) for _, endings in learnt)  # (N,) whether it is of `learnt`
        drift = scored.log_p.new_zeros(())
        if held:
            with torch.no_grad():
                before = policy.score_endings(self.start, held, self.precision).log_p
            drift = policy.kl(before, scored.log_p[~own]).mean()
        entropy = policy.entropy(scored.log_p.detach()).mean()
        figures = {"kl": float(drift.detach()), "entropy": float(entropy)}
        return EndingScores(scored.log_p[own], scored.chosen[own], scored.ending[own]), drift, figures

    # ---- 3. the update ----

    def update(self, loss: Tensor, lr: float) -> float:
        """Move the weights against the gradient of a loss; return its norm before clipping.

        The rate climbs to `lr` and then falls with the time that is left.
        """
        settings, progress = self.settings, min(self.progress, 1.0)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        norm = optim.clip_gradient([self.optimizer], self.trained, 1.0, self.scaler)
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = lr * min(1.0, self.updates / max(settings.warmup_steps, 1)) * (1 - progress)
        optim.step([self.optimizer], self.scaler, finite=math.isfinite(norm))
        if progress >= 1 - AVERAGED:
            self.mean.update_parameters(self.model)
        return norm

    # ---- the two methods ----

    def grpo(self) -> Iterator[dict[str, float]]:
        """Learn by GRPO; yield the figures of each update."""
        settings = self.settings
        while self.progress < 1:
            groups = self.draw()
            mixed = [group for group in groups if group.mixed]
            row = _figures(groups)
            if mixed:
                parts = [losses.distinct_endings(group) for group in mixed]
                scored, drift, more = self.score_both([branch for branch, _ in parts], self.anchors(groups))
                weights = [weight for _, own in parts for weight in own]
                loss = losses.policy_loss(scored, weights, len(mixed) * settings.answers)
                row |= more | {"grad_norm": self.update(loss + settings.kl_weight * drift, settings.lr)}
            self.step += 1
            yield row

    def dpo(self) -> Iterator[dict[str, float]]:
        """Learn by DPO: first draw pairs, then learn from them; yield the figures of each update."""
        settings = self.settings
        found: list[losses.Pair] = []
        held: list[Branch] = []
        while self.progress < _COLLECTING or not found:
            groups = self.draw()
            found += losses.preference_pairs(groups)
            held += self.anchors(groups)
            self.step += 1
            yield _figures(groups)
            if self.progress >= 1:
                return
        per_update, rng = max(settings.questions // 2, 1), self.asker.random
        while self.progress < 1:
            pairs = rng.sample(found, min(per_update, len(found)))
            branches = [(pair.opening, (pair.won, pair.lost)) for pair in pairs]
            scored, drift, row = self.score_both(branches, rng.sample(held, min(per_update, len(held))))
            with torch.no_grad():
                before = policy.score_endings(self.start, branches, self.precision)
            now, then = (losses.ending_totals(each, 2 * len(branches)) for each in (scored, before))
            loss = losses.preference_loss(now, then, settings.beta)
            won = float(((now - then).view(-1, 2).diff(dim=1) < 0).to(widest_float(now.device)).mean())
            row |= {"won": won, "grad_norm": self.update(loss + settings.kl_weight * drift, settings.dpo_lr)}
            self.step += 1
            yield row

    def learn(self, method: str) -> Iterator[dict[str, Any]]:
        """Learn by one of METHODS; yield the figures of each update. Afterwards `model` has the mean weights."""
        if method not in METHODS:
            raise ValueError(f"method '{method}' is unknown: choose {' or '.join(METHODS)}")
        for _ in range(_SURVEY):  # what goes wrong? Before the clock runs, the same for both
            self.draw()
        self.openings, self.begin = [], time.perf_counter()
        for row in self.grpo() if method == "grpo" else self.dpo():
            yield row | {"step": self.step, "seconds": time.perf_counter() - self.begin}
        if self.mean.n_averaged:
            self.model.load_state_dict(self.mean.module.state_dict())
        self.model.requires_grad_(False)


def _figures(groups: Sequence[Group]) -> dict[str, float]:
    """Return what an update's answers were like."""
    return {
        "reward": fmean(group.mean for group in groups),
        "mixed": fmean(group.mixed for group in groups),
        "length": fmean(len(ending) for group in groups for ending in group.endings),
    }
