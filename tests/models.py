"""A model, a text and a run small enough to train in a second, for the tests of room 04."""

import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from helpers import paths
from helpers.manifest import write_manifest
from helpers.tokens.shards import write_shards
from helpers.tokens.windows import Windows, count_windows
from helpers.train import trainer
from helpers.train.model import build_model, make_config
from helpers.vocab import tokenizer

TOK = tokenizer.build({"浇水": 3, "今天": 2}, "今天浇水很热。")
CPU = torch.device("cpu")


class Numbers:
    """A stand-in token stream that counts: after each id comes the next one."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.size), dtype=np.int64) % 7 + 5


def tiny(seed: int = 0, dtype=torch.float32, architecture: str = "gpt2", **changes):
    shape = dict(n_ctx=8, n_embd=16, n_layer=2, n_head=2) | changes
    return build_model(make_config(architecture, TOK, **shape), seed).to(dtype)


DEFAULTS = dict(
    epochs=2, max_minutes=0.0, batch_size=4, gradient_accumulation=2, optimizer="adamw", lr=1e-2, beta2=0.95, eps=1e-8,
    warmup_steps=2, schedule="cosine", final_lr_fraction=0.1, weight_decay=0.1, max_grad_norm=1.0, precision="fp32",
    compile=False, parallel="ddp", device=CPU, seed=0, log_step=1, eval_step=0, sample_step=0, checkpoint_step=0,
    chars_per_token={"train": 1.5, "val": 1.5},
)  # fmt: skip


def fit(folder, model=None, size: int = 200, **changes):
    """Train on `size` numbers, 25 windows of 8 for every 200."""
    folder.mkdir(exist_ok=True)
    windows = Windows(Numbers(size), 8, 8, 3), Windows(Numbers(50), 8, 4, 3, once=True)
    return trainer.fit(model or tiny(), *windows, folder, TOK, **(DEFAULTS | changes))


def rows(folder, event: str) -> list[dict]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row for row in lines if row["event"] == event]


def make_run() -> str:
    """Make a run in RUNS_DIR whose corpus, vocabulary and tokens are ready; return its name."""
    corpus = paths.room("t", "corpus")
    corpus.mkdir(parents=True)
    for split, size in (("train", 40), ("val", 4)):
        lines = (json.dumps({"text": "今天浇水，很热。" * 2}, ensure_ascii=False) + "\n" for _ in range(size))
        (corpus / f"{split}-00000.jsonl").write_text("".join(lines), "utf-8")
    TOK.save_pretrained(paths.room("t", "vocab"))
    shards = write_shards("t", 2, workers=1)
    n_tokens = sum(shard["tokens"] for shard in shards["train"])
    result = dict(n_ctx=8, stride=8, dtype="uint16", windows=int(count_windows(n_tokens, 8, 8)))
    result |= dict(chars_per_token=1.0, val_chars_per_token=1.0, tokens=n_tokens, packing="stream")
    outputs = paths.room("t", "tokenize").glob("*.bin")
    write_manifest("t", "tokenize", parameters={}, inputs=[], outputs=outputs, result=result)
    return "t"


def parameters(run: str, **changes) -> dict:
    """Return notebook 04's parameters at this scale."""
    fixed = {name: value for name, value in DEFAULTS.items() if name not in ("device", "chars_per_token")}
    shape = dict(architecture="gpt2", n_embd=16, n_layer=2, n_head=2, n_kv_head=0, dropout=0.0, pretrained_model="")
    shape |= dict(n_experts=4, experts_per_token=1, aux_loss_coef=5e-4)
    return dict(run=run, device="cpu", devices=1, restarts=0, resume=True) | fixed | shape | changes


def weights(run: str) -> dict:
    """Return the parameters of a run's final model."""
    return dict(AutoModelForCausalLM.from_pretrained(paths.room(run, "train") / "final_model").named_parameters())
