"""Where fine-tuning starts: a model that continues texts, and a tokenizer with the roles of a conversation."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.manifest import open_room
from helpers.model.gpt import GPT, INIT_STD
from helpers.train.initial import load_pretrained, note_sampling, note_special_tokens
from helpers.vocab import chat
from helpers.vocab.chat import ASSISTANT, USER, Message
from helpers.vocab.tokenizer import decode, encode, load_pretrained_tokenizer, load_tokenizer


def load_start(run: str, pretrained_model: str = "", n_ctx: int = 0) -> tuple[GPT, PreTrainedTokenizerFast, int]:
    """Return (model, tokenizer with a chat template, n_ctx) of a run's base model, or of a pretrained one.

    `pretrained_model` is a folder or a Hub name; its own template is kept. An `n_ctx` of 0 becomes that of room 03, or
    512 for a pretrained model, and at most what the model has.
    """
    if pretrained_model:
        tokenizer = load_pretrained_tokenizer(pretrained_model)
        name, usual = pretrained_model, 512
    else:
        open_room(run, "train")
        folder = paths.room(run, "train") / "final_model"
        tokenizer = load_tokenizer(folder)
        name, usual = str(folder), open_room(run, "tokenize")["result"]["n_ctx"]
    model = load_pretrained(name, tokenizer, 1)
    n_ctx = min(n_ctx or usual, model.config.n_ctx)
    ours = not chat.has_template(tokenizer)
    chat.add_template(tokenizer)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(chat.end_of_turn(tokenizer))
    if len(tokenizer) > model.config.vocab_size:
        grow_vocabulary(model, len(tokenizer))
    if ours:
        start_roles(model, tokenizer)
    note_special_tokens(model, tokenizer)
    if not (pretrained_model and model.generation.get("do_sample")):
        note_sampling(model, chat.ANSWER_SAMPLING)
    return model, tokenizer, n_ctx


def end_at_line_break(model: GPT, tokenizer: PreTrainedTokenizerFast, talks: Iterable[Sequence[Message]]) -> None:
    """Note in the model that it never writes a line break, if none of the answers that it learns from has one.

    In its texts a line break stands before the next question. In the place of one it ends its turn. A model with a
    template of its own has learnt to.
    """
    if not {*chat.role_tokens(tokenizer).values()} <= tokenizer.get_vocab().keys():
        return
    if any("\n" in message["content"].strip() for talk in talks for message in talk if message["role"] == ASSISTANT):
        return
    breaks = {i for i in range(len(tokenizer)) if "\n" in decode(tokenizer, [i])}
    model.generation["suppress_tokens"] = sorted({*model.generation["suppress_tokens"], *breaks})


@torch.no_grad()
def grow_vocabulary(model: GPT, vocab_size: int) -> None:
    """Give the tables rows for so many tokens; the new ones are drawn as a fresh model's are."""
    old, model.config = model.embed_tokens.weight, replace(model.config, vocab_size=vocab_size)
    tables: list[Any] = [model.embed_tokens, *([] if model.config.tied else [model.lm_head])]
    for table in tables:
        more = old.new_empty(vocab_size - len(old), old.shape[1]).normal_(0.0, INIT_STD)
        table.weight = nn.Parameter(torch.cat([table.weight, more]))
    if model.config.tied:
        model.lm_head.weight = model.embed_tokens.weight


@torch.no_grad()
def start_roles(model: GPT, tokenizer: PreTrainedTokenizerFast) -> None:
    """Initialise the embedding of the user's token from <bos>, and the assistant's from the line break.

    The model knows what follows these. With untrained rows the first updates would go into mending them.
    """
    line_break = encode(tokenizer, "\n") or [tokenizer.eos_token_id]  # some vocabularies have none
    ids = {role: tokenizer.convert_tokens_to_ids(token) for role, token in chat.role_tokens(tokenizer).items()}
    for rows in (model.embed_tokens.weight, model.lm_head.weight):  # (V, C)
        rows[ids[USER]] = rows[tokenizer.bos_token_id]
        rows[ids[ASSISTANT]] = rows[line_break[-1]]
