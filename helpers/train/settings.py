"""The settings of a training run: notebook 04's parameters as one checked record, a comment per field.

A 0 that means "by rule" is replaced by a number in `train.rules` before anything is trained. What a new setting needs:
CONTRIBUTING.md. Knows no model, no data and no torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from helpers.wording import did_you_mean


def setting(
    default: Any, *, least: float = -math.inf, most: float = math.inf, below: float = math.inf,
    words: tuple[str, ...] = (), affects: str = "result",
) -> Any:  # fmt: skip
    """Return a field; its value is from `least` to `most`, less than `below`, or one of `words`.

    `affects`: "result", "speed", "watching" (logging only) or "end" (when the run stops).
    """
    metadata = {"least": least, "most": most, "below": below, "words": words, "affects": affects}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Notebook 04's parameters. Raises ValueError; what depends on the run is checked in `plan.plan_run`."""

    run: str = setting("sample", affects="watching")  # name of the run: all files are in runs/<run>/
    # the model
    architecture: str = setting("llama", words=("llama", "gpt2", "qwen3", "moe"))  # moe: with experts
    n_embd: int = setting(0, least=0)  # width; 0: by rule
    n_layer: int = setting(0, least=0)  # blocks; 0: by rule
    n_head: int = setting(0, least=0)  # attention heads per block; 0: by rule
    n_kv_head: int = setting(0, least=0)  # heads for keys and values, shared by the others (llama, moe); 0: n_head
    n_experts: int = setting(4, least=1)  # experts per block (moe)
    experts_per_token: int = setting(1, least=1)  # experts that see each token (moe)
    aux_loss_coef: float = setting(5e-4, least=0)  # weight of the loss that keeps the experts' work even (moe)
    dropout: float = setting(-1.0)  # fraction of activations switched off while training; -1: by rule
    pretrained_model: str = setting("")  # train this model further: a folder or a Hub name; "" means fresh weights
    # how long, and how much per update
    epochs: int = setting(0, least=0)  # times that the model sees the corpus; 0: by rule
    max_minutes: float = setting(0.0, least=0)  # time budget in minutes, instead of epochs; 0: none, or by rule
    patience: int = setting(0, least=0, affects="end")  # validations without a better one that end it; 0: never
    batch_size: int = setting(0, least=0)  # windows per forward pass and process; 0: by rule
    gradient_accumulation: int = setting(0, least=0)  # forward passes per update; 0: by rule
    # the optimizer
    optimizer: str = setting("muon", words=("adamw", "muon"))  # adamw, or muon for the matrices and adamw for the rest
    lr: float = setting(0.0, least=0)  # learning rate at its peak; 0: by rule
    momentum: float = setting(0.8, least=0, below=1)  # Muon: decay of the running mean of gradients
    beta2: float = setting(0.95, least=0, below=1)  # AdamW: decay of the running mean of squared gradients
    eps: float = setting(1e-8, least=0)  # AdamW: added to the root of that mean
    warmup_steps: int = setting(20, least=0)  # updates in which the rate climbs from 0 to lr
    schedule: str = setting("linear", words=("linear", "cosine", "wsd", "constant"))  # how it falls; wsd: at the end
    final_lr_fraction: float = setting(0.0, least=0, most=1)  # where it ends, as a fraction of lr
    weight_decay: float = setting(0.01, least=0)  # pull of matrices and tables towards 0
    max_grad_norm: float = setting(1.0, least=0)  # a longer gradient is shortened to this; 0 means no limit
    # the machine
    precision: str = setting("auto", words=("auto", "fp32", "bf16", "fp16"))  # auto, fp32, bf16 or fp16
    compile: bool = setting(False, affects="speed")  # let torch compile the model's body
    device: str = setting("auto", affects="speed")  # auto, cpu, cuda or mps
    devices: int = setting(1, least=1, affects="speed")  # processes that train together, each with its windows
    restarts: int = setting(1, least=0, affects="watching")  # times that all are started again after one has failed
    # what is written; steps are updates
    log_step: int = setting(10, least=1, affects="watching")  # steps between two rows of the log
    eval_step: int = setting(200, least=0, affects="watching")  # steps between two validations; 0: one per epoch
    sample_step: int = setting(100, least=0, affects="watching")  # steps between two samples; 0: at the end of the run
    checkpoint_step: int = setting(0, least=0, affects="watching")  # steps between two checkpoints; 0: one per epoch
    keep: int = setting(3, least=0, affects="watching")  # newest epochs whose models stay, epoch-N/; 0: none
    resume: bool = setting(True, affects="watching")  # continue an interrupted run of the same settings
    seed: int = setting(0, least=0)  # first weights, order of the windows, dropout

    def __post_init__(self) -> None:
        check_settings(self)
        if not (self.dropout == -1 or 0 <= self.dropout < 1):  # what a range does not say
            raise ValueError(f"dropout is {self.dropout}: give a fraction from 0 to less than 1, or -1 for the rule's")

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> "TrainSettings":
        """Return the settings that notebook 04's parameters give; raise ValueError for a name that is none of them."""
        known = [each.name for each in fields(cls)]
        for name in parameters:
            if name not in known:
                raise ValueError(f"notebook 04 has no parameter '{name}'{did_you_mean(name, known)}")
        return cls(**parameters)

    def undecided(self) -> list[str]:
        """Return the names whose 0 or -1 a rule has to replace; a pretrained model has its own shape and dropout."""
        shape = [name for name in ("n_embd", "n_layer", "n_head") if not getattr(self, name)]
        shape += ["dropout"] if self.dropout < 0 else []
        names = ("epochs", "batch_size", "gradient_accumulation", "lr")
        return [*([] if self.pretrained_model else shape), *(name for name in names if not getattr(self, name))]

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide what is computed: a run may be resumed only where these are the same."""
        decisive = {
            each.name: getattr(self, each.name) for each in fields(self) if each.metadata["affects"] == "result"
        }
        # two processes with one pass each do what one does with two
        return decisive | {"gradient_accumulation": self.gradient_accumulation * self.devices}


def check_settings(record: Any) -> None:
    """Raise ValueError for a value of a dataclass that its field does not take, see `setting`."""
    for each in fields(record):
        name, value, kind, given = each.name, getattr(record, each.name), type(each.default), each.metadata
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number if kind is float else type(value) is kind):
            raise ValueError(f"{name} is {value!r}: give {_KINDS[kind]}, like {each.default!r}")
        if given["words"] and value not in given["words"]:
            raise ValueError(f"{name} is '{value}'{did_you_mean(value, given['words'])}")
        if kind not in (int, float):
            continue
        limits = {
            "finite": abs(value) < math.inf,
            f"at least {given['least']}": value >= given["least"],
            f"at most {given['most']}": value <= given["most"],
            f"less than {given['below']}": value < given["below"],
        }
        if broken := [limit for limit, kept in limits.items() if not kept]:
            raise ValueError(f"{name} is {value}: it must be {broken[0]}")


_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text in quotes"}
