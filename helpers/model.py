"""A config becomes a causal language model of `transformers`; and what it will cost, before it is built.

GPT-2 and a LLaMA-like cousin (RMSNorm, rotary positions, grouped-query attention, SwiGLU) come from the
library as they are: what is trained here loads anywhere. Knows nothing of data or of the training loop.
"""

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, PreTrainedModel

ARCHITECTURES = ("gpt2", "llama")


def config(
    architecture: str,
    tokenizer,
    *,
    n_ctx: int,
    n_embd: int,
    n_layer: int,
    n_head: int,
    n_kv_head: int = 0,
    dropout: float = 0.0,
) -> PretrainedConfig:
    """Return the config of a model; vocab_size and the special ids come from the tokenizer, never by hand.

    `n_kv_head` (LLaMA-like only) is the number of key/value heads that the n_head queries share; 0 means n_head.
    """
    if n_embd % n_head:
        raise ValueError(f"n_embd {n_embd} cannot be divided among {n_head} heads: choose n_embd = n_head × head size")
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if architecture == "gpt2":
        return GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=n_ctx,
            n_embd=n_embd,
            n_layer=n_layer,
            n_head=n_head,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own gelu, in one kernel instead of eight
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            **ids,
        )
    if architecture == "llama":
        if n_head % (n_kv_head or n_head):
            raise ValueError(f"{n_head} query heads cannot share {n_kv_head} key/value heads evenly")
        return LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=n_ctx,
            hidden_size=n_embd,
            intermediate_size=64 * round(n_embd * 8 / 3 / 64) or 64,  # three matrices of 8/3 cost what two of 4 cost
            num_hidden_layers=n_layer,
            num_attention_heads=n_head,
            num_key_value_heads=n_kv_head or n_head,
            attention_dropout=dropout,
            tie_word_embeddings=True,
            **ids,
        )
    raise ValueError(f"architecture '{architecture}' is unknown: choose one of {', '.join(ARCHITECTURES)}")


def build(cfg: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Return a freshly initialised model: the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(cfg)


def sizes(cfg: PretrainedConfig) -> dict[str, int]:
    """Return parameters, how many of them are embeddings, and training FLOPs a token, without building the model.

    FLOPs a token = 6 × (parameters in matrix products) + 6 × n_layer × n_ctx × n_embd for attention over half
    the window on average (Kaplan et al. 2020; PaLM, appendix B, halved because the mask is causal).
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(cfg)
    total = sum(p.numel() for p in model.parameters())
    tokens = model.get_input_embeddings().weight.numel()
    positions = model.transformer.wpe.weight.numel() if cfg.model_type == "gpt2" else 0
    matrices = total - positions  # the token table counts: tied, it is the output matrix
    attention = 6 * cfg.num_hidden_layers * cfg.max_position_embeddings * cfg.hidden_size
    flops = 6 * matrices + attention
    return {"parameters": total, "embedding_parameters": tokens + positions, "flops_per_token": flops}


def training_memory(cfg: PretrainedConfig, batch_size: int) -> int:
    """Return an estimate, in bytes, of what training needs at its peak with AdamW in fp32.

    16 bytes a parameter (weight, gradient, two moments), + the activations kept for backward, 34 × n_embd bytes
    a token and layer in half precision (Korthikanti et al. 2022, without the attention matrix, which fused
    kernels don't keep), + the logits and their gradient in fp32.
    """
    tokens = batch_size * cfg.max_position_embeddings
    activations = 34 * cfg.hidden_size * cfg.num_hidden_layers * tokens
    logits = 2 * 4 * cfg.vocab_size * tokens
    return 16 * sizes(cfg)["parameters"] + activations + logits
