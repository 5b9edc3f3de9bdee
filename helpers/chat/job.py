"""One fine-tuning run of deeper/chat: from a base model and conversations to `runs/NAME/chat/final_model`.

With room 04's loop, checkpoints and guarantees. Knows nothing of templates and sampling.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from helpers import device as machine
from helpers import paths
from helpers.chat import lora
from helpers.chat.data import Conversations, Lessons, fitting, load_lessons, plain_documents
from helpers.chat.start import end_at_line_break, load_start
from helpers.files import fingerprint, write_text
from helpers.manifest import open_room
from helpers.model.gpt import GPT
from helpers.train.job import Training, claim, digests, keep_for_training
from helpers.train.loss import Loss, training_memory
from helpers.train.milestones import evaluate
from helpers.train.plan import load_windows, measure_update
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab.chat import Encoded, Message
from helpers.vocab.tokenizer import decode, load_tokenizer

_UPDATES, _MOST_EPOCHS = 100, 3  # by rule: 100 updates, but no conversation more than three times
# by rule: the rate for a run's own small model; for others' the usual ones, since large models take small steps only
_LR, _GENTLE = 4e-3, (2e-5, 2e-4)  # of all weights, of LoRA


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """The parameters of deeper/chat, by the same names and with the same defaults. Raises ValueError."""

    run: str = "sample"  # name of the run: all files are in runs/<run>/
    pretrained_model: str = ""  # fine-tune this model instead of the run's own: a folder or a Hub name
    conversations: int = 0  # learn from at most so many; 0: all of your own, 12,000 of the built-in grammar
    replay: float = 0.25  # plain documents per conversation, against forgetting
    n_ctx: int = 0  # longest window in tokens; 0: the run's; 512 for a pretrained model
    lora_rank: int = 0  # train thin matrices of this rank beside the frozen ones (LoRA); 0: train all weights
    epochs: int = 0  # times that each conversation is seen; 0: one to three, in smaller updates if few, for about 100
    max_minutes: float = 0.0  # time budget in minutes, instead of epochs; 0: none
    batch_size: int = 16  # windows per forward pass
    gradient_accumulation: int = 2  # forward passes per update
    optimizer: str = "muon"  # adamw or muon; LoRA always takes adamw
    lr: float = 0.0  # learning rate at its peak; 0: 4e-3, for a pretrained model 2e-5, or 2e-4 with LoRA
    warmup_steps: int = 10  # updates in which the rate climbs
    eval_step: int = 50  # updates between two validations
    checkpoint_step: int = 0  # updates between two checkpoints; 0: one per epoch, and where validation is best
    precision: str = "auto"  # auto, fp32, bf16 or fp16
    device: str = "auto"  # auto, cpu, cuda or mps
    resume: bool = True  # continue an interrupted run of the same settings
    seed: int = 0  # which conversations, in which order

    def __post_init__(self) -> None:
        least = dict(batch_size=1, gradient_accumulation=1)
        for name in ("conversations", "replay", "n_ctx", "lora_rank", "epochs", "lr", *least):
            if getattr(self, name) < (number := least.get(name, 0)):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {number}")

    def for_trainer(self, windows: int) -> TrainSettings:
        """Return the settings of the training loop for this number of windows."""
        per_update = self.batch_size * self.gradient_accumulation
        if not self.epochs:  # of few conversations an update takes fewer, or there would be a handful of updates
            per_update = min(per_update, max(1, windows * _MOST_EPOCHS // _UPDATES))
        batch_size = min(self.batch_size, per_update)
        per_epoch = math.ceil(windows / (batch_size * (per_update // batch_size)))
        epochs = self.epochs or min(_MOST_EPOCHS, math.ceil(_UPDATES / per_epoch))
        warmup_steps = min(self.warmup_steps, epochs * per_epoch // 5)
        return TrainSettings(
            run=self.run, epochs=epochs, max_minutes=self.max_minutes, batch_size=batch_size,
            gradient_accumulation=per_update // batch_size, optimizer="adamw" if self.lora_rank else self.optimizer,
            lr=self.lr or (_GENTLE[self.lora_rank > 0] if self.pretrained_model else _LR), warmup_steps=warmup_steps,
            eval_step=self.eval_step, checkpoint_step=self.checkpoint_step, sample_step=0, log_step=5,
            precision=self.precision, device=self.device, resume=self.resume, seed=self.seed,
        )  # fmt: skip


@dataclass
class FineTuning:
    """A fine-tuning that is ready to run."""

    settings: ChatSettings
    lessons: Lessons
    trainer: Trainer
    exchanges_left_out: int  # questions with their answers that no window holds

    def run(self) -> dict[str, Any]:
        """Train to the end, or until a file STOP appears in the room; return figures, of answers alone."""
        floor = {"floor_bits_per_char": self.lessons.floor_bits_per_char}
        with keep_for_training(self.trainer.folder):
            return self.trainer.run() | floor | {"exchanges_left_out": self.exchanges_left_out}

    def forecast(self) -> dict[str, float]:
        """Return steps, seconds, memory and free memory (bytes) of the updates to come, from measured ones.

        These change no weight. Memory is that of the whole training, the model's weights included.
        """
        trainer, wanted, config = self.trainer, self.trainer.settings, self.trainer.model.config
        device, precision, batch_size = trainer.device, trainer.precision, wanted.batch_size
        free = machine.memory_free(device) + 4 * sum(p.numel() for p in trainer.model.parameters())
        kept = [p.detach().to("cpu", copy=True) for p in trainer.parameters]
        pace = measure_update(trainer.model, trainer.train, wanted, batch_size, precision, device, 1.0)
        with torch.no_grad():
            for p, before in zip(trainer.parameters, kept, strict=True):
                p.copy_(before).grad = None
        each = pace.of(min(trainer.windows_per_update, len(trainer.train)))
        steps = trainer.session.total_steps - trainer.progress.step
        steps = int(60 * wanted.max_minutes / each) if wanted.max_minutes else steps
        memory = training_memory(
            config, batch_size, optimizer=wanted.optimizer, precision=precision, n_ctx=trainer.train.n_ctx,
            device=device.type,
        )  # fmt: skip
        if lora.is_lora(trainer.model):  # what is frozen has no gradient, the output matrix no second, and no moments
            memory -= 12 * config.sizes()["parameters"] + 4 * config.vocab_size * config.n_embd
            memory += 16 * sum(p.numel() for p in trainer.parameters)
        return {"steps": steps, "seconds": steps * each, "memory": memory, "free": free}

    def start(self) -> Training:
        """Start `run` in a worker thread."""
        total_steps = 0 if self.trainer.budget.by_clock else self.trainer.session.total_steps
        return Training(self.trainer.folder, self.run, total_steps)


def prepare_tuning(settings: ChatSettings, lessons: Lessons | None = None, folder: Path | None = None) -> FineTuning:
    """Load the base model, pack the conversations, make the room ready; an interrupted run is resumed.

    `lessons`: conversations already loaded; `folder`: another place than the run's chat room, for a trial. Raises
    RoomError where there are no conversations or no base model, ValueError and ChatError.
    """
    lessons = lessons or load_lessons(settings.run, settings.conversations, settings.seed)
    model, tokenizer, n_ctx = load_start(settings.run, settings.pretrained_model, settings.n_ctx)
    end_at_line_break(model, tokenizer, lessons.train)
    if settings.lora_rank:
        lora.add_lora(model, settings.lora_rank, settings.seed)
    count, given = round(settings.replay * len(lessons.train)), settings.pretrained_model
    # a pretrained model has not read the conversations as plain text: of them there is nothing to rehearse
    replayed = plain_documents(settings.run, tokenizer, count, n_ctx, settings.seed, with_talks=not given)
    left_out: list[Sequence[Message]] = []
    longer = n_ctx < model.config.n_ctx
    fit, judged = (
        _at_least_one(fitting(tokenizer, part, n_ctx, left_out), n_ctx, longer) for part in (lessons.train, lessons.val)
    )
    parts = {
        split: Conversations(encoded, n_ctx, tokenizer.pad_token_id)
        for split, encoded in {"train": chain(fit, replayed), "val": judged}.items()
    }
    # a model that is there is resumed if what decides the result has stayed the same
    corpus = open_room(settings.run, "corpus")["outputs"]
    base = digests(given) if given else open_room(settings.run, "train")["outputs"]
    wanted = settings.for_trainer(len(parts["train"]))
    how = [given, settings.conversations, settings.replay, n_ctx, settings.lora_rank, int(parts["train"].ids.sum())]
    identity = fingerprint(wanted.identity(), how, corpus, base)
    folder = folder or paths.room(settings.run, "chat")
    claim(folder, identity, settings.resume)
    write_text(folder / "parameters.json", json.dumps(asdict(settings), ensure_ascii=False, indent=1))
    per_token = {split: answer_characters(tokenizer, part) / int(part.labels.sum()) for split, part in parts.items()}
    merged = partial(lora.merged_weights, model) if lora.is_lora(model) else None
    trainer = Trainer(
        model, parts["train"], parts["val"], wanted, folder, tokenizer, chars_per_token=per_token, identity=identity,
        weights=merged,
    )  # fmt: skip
    return FineTuning(settings, lessons, trainer, len(left_out))


def _at_least_one(conversations: Iterator[Encoded], n_ctx: int, longer: bool) -> Iterator[Encoded]:
    """Yield conversations; raise ValueError if there is none, which plain documents beside them would hide."""
    first = next(conversations, None)
    if first is None:
        cure = "a larger n_ctx in deeper/chat" if longer else "a base model trained with a larger one, from 03 on"
        raise ValueError(f"no conversation fits into a window of {n_ctx} tokens: they need {cure}")
    yield first
    yield from conversations


def answer_characters(tokenizer: PreTrainedTokenizerFast, windows: Conversations) -> int:
    """Return how many characters the labels of all windows spell."""
    conversations = map(windows.conversation, range(len(windows.begins) - 1))
    return sum(len(decode(tokenizer, ids[is_answer].tolist())) for ids, is_answer in conversations)


def plain_bits(run: str, model: GPT, tokenizer: PreTrainedTokenizerFast) -> float:
    """Return bits per character of a run's validation text; nan for a model that reads no tokens of the run."""
    if not paths.room(run, "tokenize").is_dir():  # a pretrained model does without
        return math.nan
    tokens = open_room(run, "tokenize")["result"]
    own = load_tokenizer(paths.room(run, "vocab")).get_vocab()
    if not own.items() <= tokenizer.get_vocab().items():
        return math.nan
    _, val = load_windows(run, tokens, tokenizer.pad_token_id)
    device = model.device
    scores = evaluate(Loss(model), val, 64, machine.pick_precision("auto", device), device)
    model.eval()
    return scores["loss"] / math.log(2) / tokens["val_chars_per_token"]
