"""Small models of the library, one for each family and switch of ours, far from the start of training."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from helpers.model.config import GPTConfig, make_config
from helpers.model.gpt import GPT
from helpers.model.huggingface import config_from, save_model

V, N_CTX = 90, 80
IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
OTHERS = dict(
    vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=N_CTX, intermediate_size=48, **IDS,
)  # fmt: skip
MIXTURE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
CONFIGS: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=N_CTX, **IDS),
    "gpt2, wider inside": GPT2Config(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=N_CTX, n_inner=50, **IDS
    ),
    "llama": LlamaConfig(**OTHERS),
    "llama, each its keys, tied": LlamaConfig(tie_word_embeddings=True, **OTHERS | {"num_key_value_heads": 4}),
    "llama, biases": LlamaConfig(attention_bias=True, mlp_bias=True, **OTHERS),
    "llama, faster turns": LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, **OTHERS),
    "mistral": MistralConfig(head_dim=16, sliding_window=None, **OTHERS),
    "mistral, a window": MistralConfig(sliding_window=9, **OTHERS),
    "qwen2": Qwen2Config(tie_word_embeddings=True, **OTHERS),
    "qwen3": Qwen3Config(head_dim=16, **OTHERS),
    "qwen3_moe": Qwen3MoeConfig(head_dim=8, **MIXTURE, **OTHERS),
    "qwen3_moe, shares of 1": Qwen3MoeConfig(head_dim=16, norm_topk_prob=True, **MIXTURE, **OTHERS),
}


def library_model(name: str, dtype: torch.dtype = torch.float32, vocab_size: int = V):
    config = copy.deepcopy(CONFIGS[name])
    config.vocab_size = vocab_size
    torch.manual_seed(0)
    # the library's quick way of several experts knows no fp64
    more = {"experts_implementation": "eager"} if config.model_type == "qwen3_moe" else {}
    net = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **more).to(dtype).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3).add_(0.1 * torch.randn_like(weight))
    return net


def as_library(net: GPT):
    """Return the library's model of a folder that ours writes, in the type of its weights."""
    with TemporaryDirectory() as folder:
        save_model(Path(folder), net)
        more = {"experts_implementation": "eager"} if net.config.n_experts else {}
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=net.lm_head.weight.dtype, attn_implementation="eager", **more
        ).eval()


TOKENS = torch.randint(1, V, (4, 16), generator=torch.Generator().manual_seed(0))  # for a model of `small_config`


def small_config(architecture: str, **changes) -> GPTConfig:
    return make_config(architecture, V, **dict(n_ctx=16, n_embd=32, n_layer=2, n_head=4) | changes)


def small_model(architecture: str, seed: int = 0, **changes) -> GPT:
    return GPT(small_config(architecture, **changes)).init_weights(seed)


def lively(name: str) -> GPT:
    """Return a model in fp64 whose weights are far from the start of training."""
    net = GPT(config_from(CONFIGS[name])).init_weights(0).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in net.parameters():
        weight.mul_(5).add_(0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return net
