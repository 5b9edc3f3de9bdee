"""The model that a training begins with: of fresh weights, or a pretrained one; and what its folder says of writing.

Knows nothing of windows or of the training loop.
"""

from collections.abc import Mapping
from textwrap import shorten

import torch
from transformers import PreTrainedTokenizerFast

from helpers.model.config import GPTConfig, make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import load_model, read_config
from helpers.train.settings import TrainSettings
from helpers.vocab.chat import TEXT_SAMPLING
from helpers.vocab.tokenizer import fetch_settings

SHAPE = ("n_embd", "n_layer", "n_head", "n_kv_head", "n_experts", "experts_per_token", "aux_loss_coef")


def config_from_settings(settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, n_ctx: int) -> GPTConfig:
    """Return the config of the model that the settings ask for; a pretrained model's is its own."""
    if settings.pretrained_model:
        return _pretrained_config(settings.pretrained_model, tokenizer, n_ctx)
    shape = {name: getattr(settings, name) for name in SHAPE}
    shape["dropout"] = max(0.0, settings.dropout)  # the rules measure before they decide on it
    return make_config(settings.architecture, len(tokenizer), n_ctx=n_ctx, **shape)


def model_from_settings(settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, n_ctx: int) -> GPT:
    """Return the model that notebook 04's settings ask for: freshly initialised, or with pretrained weights."""
    if settings.pretrained_model:
        model = load_pretrained(settings.pretrained_model, tokenizer, n_ctx)
    else:
        model = GPT(config_from_settings(settings, tokenizer, n_ctx)).init_weights(settings.seed)
        note_special_tokens(model, tokenizer)
    if not model.generation.get("do_sample"):  # a pretrained model may bring its own
        note_sampling(model, TEXT_SAMPLING)
    return model


def note_special_tokens(model: GPT, tokenizer: PreTrainedTokenizerFast) -> None:
    """Note in the model the ids of start, end and padding, and that of special tokens it writes only the end.

    Nor an id without a token: a pretrained table may have rows to spare. Old folders may carry another vocabulary's.
    """
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    size = model.config.vocab_size
    never = {*tokenizer.all_special_ids, *range(len(tokenizer), size)} - {tokenizer.eos_token_id}
    model.generation |= ids | {"suppress_tokens": sorted(each for each in never if each < size)}


def note_sampling(model: GPT, sampling: Mapping[str, float]) -> None:
    """Note in the model how it is sampled where nobody asks for anything else: temperature, top_k, top_p."""
    model.generation |= {"do_sample": True, **sampling}


def _pretrained_config(name: str, tokenizer: PreTrainedTokenizerFast, n_ctx: int) -> GPTConfig:
    """Return the config of a folder or of a Hub name; ValueError that says what to do if there is none that fits."""
    try:
        config = read_config(fetch_settings(name))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"pretrained_model: '{name}' is no folder with a model config that can be read, and no model of that name "
            f"could be fetched ({shorten(str(error), 200)}). Give the path of a folder with config.json and "
            "model.safetensors, or a Hub name while you are online"
        ) from None
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the vocabulary has {len(tokenizer)} tokens, the model '{name}' only {config.vocab_size}: this is not its "
            f"tokenizer. Run notebook 02 with pretrained_model = {name!r}, then 03 again"
        )
    if n_ctx > config.n_ctx:
        raise ValueError(
            f"n_ctx is {n_ctx}, but the model '{name}' has {config.n_ctx} positions: "
            f"run notebook 03 again with n_ctx = {config.n_ctx} or less"
        )
    return config


def load_pretrained(name: str, tokenizer: PreTrainedTokenizerFast, n_ctx: int) -> GPT:
    """Return the model of a folder or of a Hub name, in fp32, to be trained further; ValueError says what to do."""
    _pretrained_config(name, tokenizer, n_ctx)
    try:
        model = load_model(name, torch.float32)
    except (OSError, ValueError) as error:
        raise ValueError(f"pretrained_model '{name}': its weights cannot be used: {shorten(str(error), 400)}") from None
    note_special_tokens(model, tokenizer)
    return model
