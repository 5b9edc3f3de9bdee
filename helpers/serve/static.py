"""The page: filled in for a server, or written as a folder of files that needs none, for the browser computes.

Such a folder holds the page, weights in 8 bits, the tokenizer, and model.json: what page/worker.js has to know. Knows
no route and no port.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template
from transformers import PreTrainedTokenizerFast

from helpers.generate import dialogue
from helpers.generate.batch import banned, end_ids, prompt_ids
from helpers.generate.settings import RANGES
from helpers.generate.surprisal import LEVELS
from helpers.model.eight_bits import write_packed
from helpers.model.gpt import GPT
from helpers.serve.limits import Limits
from helpers.serve.schema import MAX_LOGPROBS
from helpers.vocab import chat

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = [file for file in sorted(Path(__file__).with_name("page").iterdir()) if file.suffix in TYPES]
LOCAL = {"gpt.js", "local.js", "worker.js"}  # only where the browser computes
MOST_BYTES = 100_000_000  # of weights: a phone has to load and hold them


def fill_in(file: Path, limits: Limits, has_chat: bool, static: bool = False) -> str:
    """Return the text of a file of the page; index.html has the limits, the sliders' ranges and the colours' levels."""
    text = file.read_text("utf-8")
    if file.name != "index.html":
        return text
    values = {"limits": limits, "has_chat": has_chat, "static": static, "max_logprobs": MAX_LOGPROBS}
    return Template(text, keep_trailing_newline=True).render(values, ranges=RANGES, levels=LEVELS)


def check_static(model: GPT, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise ValueError, which says why, for a model or a tokenizer that page/gpt.js does not have."""
    parts, size = json.loads(tokenizer.backend_tokenizer.to_str()), model.config.sizes()["parameters"]
    if model.config.n_experts:
        why = "has no mixture of experts"
    elif size > MOST_BYTES:
        why = f"holds {MOST_BYTES // 10**6} MB of weights, and this model has {size / 1e6:.0f} in 8 bits"
    elif parts["model"]["type"] not in ("Unigram", "BPE") or parts["normalizer"] or parts["pre_tokenizer"]:
        why = "cuts text as the tokenizers of notebook 02 do, and this one has rules of its own"
    else:
        return
    raise ValueError(f"a static page {why}: serve this model, without --static")


def for_worker(model: GPT, tokenizer: PreTrainedTokenizerFast, limits: Limits) -> dict[str, Any]:
    """Return what page/worker.js has to know of a model, besides its config."""
    roles = {role: tokenizer.convert_tokens_to_ids(token) for role, token in chat.role_tokens(tokenizer).items()}
    return {
        "window": model.config.window,
        "bos": tokenizer.bos_token_id,
        "ends": sorted(end_ids(model, tokenizer)),
        "never": banned(model, tokenizer).nonzero()[:, 0].tolist(),
        "chat": roles | {"end": tokenizer.eos_token_id} if _has_our_template(tokenizer) else None,
        "max_length": limits.max_length,
    }


def write_page(
    folder: Path, model: GPT, tokenizer: PreTrainedTokenizerFast, limits: Limits, about: Mapping[str, Any]
) -> int:
    """Write a static page, return the bytes of its folder; raises ValueError as `check_static` does."""
    check_static(model, tokenizer)
    known = for_worker(model, tokenizer, limits)
    write_packed(folder, model, known | {"about": about})
    for file in FILES:
        text = fill_in(file, limits, known["chat"] is not None, static=True)
        (folder / file.name).write_text(text, "utf-8", newline="\n")
    (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str(), "utf-8", newline="\n")
    return sum(file.stat().st_size for file in folder.iterdir())


def _has_our_template(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether a conversation is written as page/worker.js writes it."""
    try:
        dialogue.check_tokenizer(tokenizer)
    except chat.ChatError:
        return False
    user, assistant = (tokenizer.convert_tokens_to_ids(token) for token in chat.role_tokens(tokenizer).values())
    said = {role: prompt_ids(tokenizer, role)[1:] for role in ("system", "user", "assistant")}
    talk: list[chat.Message] = [{"role": role, "content": role} for role in (*said, "user")]
    question = [user, *said["user"], assistant]
    ids = [tokenizer.bos_token_id, *said["system"], *question, *said["assistant"], tokenizer.eos_token_id, *question]
    return chat.encode_messages(tokenizer, talk, generation_prompt=True).ids == ids
