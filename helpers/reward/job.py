"""One training run of deeper/reward: from an answering model to another one, by GRPO or by DPO.

Only the matrices inside the blocks are trained. A run takes about a minute: it keeps no checkpoints, and one that was
interrupted begins again.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.chat.start import load_start
from helpers.corpus.find import BUILT_IN
from helpers.device import pick_device
from helpers.generate import generate
from helpers.manifest import MANIFEST, RoomError, open_room
from helpers.model.gpt import GPT
from helpers.reward import losses, policy
from helpers.reward.judge import ask
from helpers.reward.rollout import Group, Judge, draw_groups
from helpers.train.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """The parameters of deeper/reward that decide on a training run. Raises ValueError."""

    run: str = setting("sample")  # name of the run: all files are in runs/<run>/
    begin: str = setting("auto", words=("auto", "base", "chat"))  # model to begin with; auto: chat if the run has it
    steps: int = setting(40, least=1)  # updates of a training run
    questions: int = setting(24, least=1)  # questions per update
    answers: int = setting(8, least=2)  # answers per question: a group
    kl_weight: float = setting(0.1, least=0)  # weight of the anchor: how much it costs to move away from the start
    beta: float = setting(0.1)  # DPO: how far a pair is to be parted; smaller is further
    lr: float = setting(3e-4)  # learning rate of GRPO at its peak
    dpo_lr: float = setting(1e-4)  # and of DPO
    warmup_steps: int = setting(5, least=1)  # updates in which the rate climbs
    device: str = setting("auto")  # auto, cpu, cuda or mps
    seed: int = setting(0)  # which questions, which answers

    def __post_init__(self) -> None:
        check_settings(self)


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
    """A model that learns from a judge, beside the model that it was."""

    def __init__(self, start: GPT, tokenizer: PreTrainedTokenizerFast, judge: Judge, settings: RewardSettings) -> None:
        self.settings, self.tokenizer, self.judge, self.start = settings, tokenizer, judge, start
        self.model = copy.deepcopy(start).requires_grad_(False)
        # the tied table and the norms serve all texts; what is to be learnt here fits into the blocks
        self.trained = [p for block in self.model.layers for p in block.parameters() if p.ndim > 1]
        for p in self.trained:
            p.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.trained, betas=(0.9, 0.98), weight_decay=0.0)
        self.random = random.Random(settings.seed)

    def draw(self) -> list[Group]:
        """Ask questions, let the model as it is now answer each several times, and judge the answers."""
        asked = ask(self.settings.questions, self.random)
        return draw_groups(self.model, self.tokenizer, asked, self.settings.answers, self.judge, self.random)

    def loss(self, groups: Sequence[Group]) -> tuple[Tensor, dict[str, float]]:
        """Return GRPO's loss with its anchor, and figures for the log.

        The anchor is the mean KL(now ‖ before) per written token, exact: summed over the vocabulary.
        """
        branches = [(group.opening, group.endings) for group in groups]
        scored = policy.score_endings(self.model, branches)
        with torch.no_grad():
            before = policy.score_endings(self.start, branches).log_p
        kl = policy.kl(scored.log_p, before).mean()
        loss = losses.policy_loss(scored, groups) + self.settings.kl_weight * kl
        entropy = policy.entropy(scored.log_p.detach()).mean()
        return loss, {"kl": float(kl.detach()), "entropy": float(entropy)}

    def update(self, loss: Tensor, step: int, lr: float) -> float:
        """Move the weights against the gradient of a loss; return its norm before clipping.

        The rate climbs to `lr` and then falls with the updates that are left.
        """
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        rate = lr * min(1.0, step / self.settings.warmup_steps) * (1 - (step - 1) / self.settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return float(norm)

    def grpo(self) -> Iterator[dict[str, float]]:
        """Learn by GRPO; yield the figures of each update."""
        for step in range(1, self.settings.steps + 1):
            groups = self.draw()
            loss, row = self.loss(groups)
            row |= {"step": step, "reward": fmean(group.mean for group in groups)}
            row["mixed"] = fmean(group.mixed for group in groups)
            row["length"] = fmean(len(ending) for group in groups for ending in group.endings)
            yield row | {"grad_norm": self.update(loss, step, self.settings.lr)}

    def dpo(self, pairs: Sequence[losses.Pair]) -> Iterator[dict[str, float]]:
        """Learn by DPO from pairs that were drawn before; yield the figures of each update. Without pairs, nothing."""
        for step in range(1, self.settings.steps + 1 if pairs else 1):
            drawn = self.random.sample(pairs, min(self.settings.questions, len(pairs)))
            branches = [(pair.opening, (pair.won, pair.lost)) for pair in drawn]
            with torch.no_grad():
                before = policy.score_endings(self.start, branches)
            now = policy.score_endings(self.model, branches)
            policy_total, before_total = (losses.ending_totals(each, 2 * len(drawn)) for each in (now, before))
            won, lost = (policy_total - before_total).detach().view(-1, 2).mean(0).tolist()
            loss = losses.preference_loss(policy_total, before_total, self.settings.beta)
            yield {"step": step, "won": won, "lost": lost, "grad_norm": self.update(loss, step, self.settings.dpo_lr)}
