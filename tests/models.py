"""A model, a text and a run small enough to train in a second, for the tests of room 04."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from helpers import paths
from helpers.files import log_rows
from helpers.generate.batch import banned, window_start
from helpers.manifest import write_manifest
from helpers.model.config import make_config
from helpers.model.gpt import GPT
from helpers.tokens.shards import write_shards
from helpers.tokens.windows import Windows, count_windows
from helpers.train.settings import TrainSettings
from helpers.train.trainer import Trainer
from helpers.vocab import tokenizer
from helpers.vocab.chat import add_template

PLANTS = "绿萝怎么浇水？看土，干透了再浇。龟背竹喜欢散射光，冬天少浇水。"  # a text that `plants_tokenizer` can write
N_CTX = 24  # positions of `plants_model`
TOK = tokenizer.build_words({"浇水": 3, "今天": 2}, "今天浇水很热。")
FIRST, PAD = len(tokenizer.SPECIAL_TOKENS), TOK.pad_token_id  # the first id that is text; padding
CPU = torch.device("cpu")
# our chat template with tools, as deeper/tools types it
TOOLS_TEMPLATE = """{{- bos_token }}{%- for each in tools or [] %}{{- '<tool>' + each.function.name }}{%- endfor %}
{%- for message in messages %}{%- if message.role == "system" %}{{- message.content }}
{%- elif message.role == "user" %}{{- '<user>' + message.content }}
{%- elif message.role == "tool" %}{{- '<result>' + message.content }}
{%- else %}{{- '<assistant>' + message.content }}{%- for call in message.tool_calls or [] %}
{{- '<tool>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson(separators=(',', ':')) }}
{%- endfor %}{{- eos_token }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}"""
LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def add_tools(tok):
    """Give a tokenizer this template and its special tokens; return it."""
    tok.add_special_tokens({"extra_special_tokens": ["<tool>", "<result>"]}, replace_extra_special_tokens=False)
    tok.chat_template = TOOLS_TEMPLATE
    return tok


class Numbers:
    """A stand-in token stream that counts: after each id comes the next one."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, min(stop, self.size), dtype=np.int64) % 7 + FIRST


def tiny(seed: int = 0, dtype=torch.float32, architecture: str = "gpt2", **changes):
    shape = dict(n_ctx=8, n_embd=16, n_layer=2, n_head=2) | changes
    return GPT(make_config(architecture, len(TOK), **shape)).init_weights(seed).to(dtype)


DEFAULTS = dict(
    epochs=2, max_minutes=0.0, batch_size=4, gradient_accumulation=2, optimizer="adamw", lr=1e-2, beta2=0.95, eps=1e-8,
    warmup_steps=2, schedule="cosine", final_lr_fraction=0.1, weight_decay=0.1, max_grad_norm=1.0, precision="fp32",
    compile=False, device="cpu", seed=0, log_step=1, eval_step=0, sample_step=0, checkpoint_step=0,
    patience=0,
)  # fmt: skip
SHAPE = dict(
    architecture="gpt2", n_embd=16, n_layer=2, n_head=2, n_kv_head=0, dropout=0.0, pretrained_model="",
    n_experts=4, experts_per_token=1, aux_loss_coef=5e-4,
)  # fmt: skip


def make_trainer(folder, model=None, size: int = 200, *, train=None, identity="", stop=lambda: False, **changes):
    """Return a Trainer of `size` numbers, 25 windows of 8 for every 200, or of the windows `train`."""
    return Trainer(
        model or tiny(),
        train or Windows(Numbers(size), 8, 8, PAD),
        Windows(Numbers(50), 8, 4, PAD, once=True),
        TrainSettings(**(DEFAULTS | changes)),
        folder,
        TOK,
        chars_per_token={"train": 1.5, "val": 1.5},
        identity=identity,
        stop=stop,
    )


def fit(folder, model=None, size: int = 200, **changes) -> dict:
    """Train and return the run's figures; the arguments are those of `make_trainer`."""
    return make_trainer(folder, model, size, **changes).run()


def rows(folder, event: str = "") -> list[dict]:
    """Return the rows of a log, of one event or of all; a last row that a killed process left half is no row."""
    found = log_rows((Path(folder) / "metrics.jsonl").read_bytes().splitlines())
    return [row for row in found if not event or row.get("event") == event]


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


def settings(run: str, **changes) -> TrainSettings:
    """Return the settings of a run at this scale."""
    return TrainSettings(**(dict(run=run, restarts=0) | DEFAULTS | SHAPE | changes))


def weights(run: str) -> dict:
    """Return the parameters of a run's final model."""
    return dict(AutoModelForCausalLM.from_pretrained(paths.room(run, "train") / "final_model").named_parameters())


def plants_tokenizer():
    return tokenizer.build_words({"绿萝": 5, "浇水": 4, "怎么": 3, "龟背竹": 2, "散射光": 2}, set(PLANTS))


def plants_chat_tokenizer():
    """Return the same one with our chat template."""
    made = plants_tokenizer()
    add_template(made)
    return made


def plants_model(architecture: str, tok, n_ctx: int = N_CTX):
    """Return a random model whose distributions are far from uniform, so that a wrong mask or position shows."""
    size = len(tok) + 8  # as in models whose table is rounded up: ids without a token
    cfg = make_config(architecture, size, n_ctx=n_ctx, n_embd=32, n_layer=2, n_head=4, n_kv_head=2)
    net = GPT(cfg).init_weights(0).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return net.requires_grad_(False)


@torch.inference_mode()
def naive_logits(net, tok, ids: list[int]) -> torch.Tensor:
    """Return the logits (1, V) after the ids that the model sees: no cache, no batch, no padding."""
    window = torch.tensor([ids[window_start(len(ids), net.config.n_ctx) :]])
    return net(window)[:, -1].masked_fill(banned(net, tok), -torch.inf)
