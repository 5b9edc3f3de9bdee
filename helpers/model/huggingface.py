"""Folders of `transformers`: a row for each family of models says how its config and its weights are called.

Reads and writes plain folders, config.json and model.safetensors, which load anywhere. Knows no training and no text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PretrainedConfig
from transformers.utils import logging as transformers_logging

from helpers.model.config import ARCHITECTURES, GPTConfig
from helpers.model.gpt import GPT

transformers_logging.disable_progress_bar()  # a bar for each file that it reads would fill the notebook

WEIGHTS = "model.safetensors"
# what other programs put before the names of all weights: DDP, torch.compile, Lightning
_WRAPPED = re.compile(r"^(?:(?:module|_orig_mod)\.|model\.(?=(?:module|_orig_mod|model|transformer|lm_head)\.))+")
# tensors that are no weights of ours, and change nothing: masks, angles, a head for rewards
_IDLE = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.|^(v_head|value_head|score|summary)\.")


@dataclass(frozen=True)
class Family:
    """How one kind of model is written in a folder."""

    library: str  # its class in `transformers`
    config: dict[str, str]  # our field -> its name in config.json
    fixed: dict[str, Any] = field(default_factory=dict)  # our fields that are the same in all of its models
    # what config.json must say, or not speak of: another value is a model that we do not have
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    body: str = "model."  # before the names of all weights but the output matrix's
    layers: str = "layers"
    parts: dict[str, str] = field(default_factory=dict)  # our name of a part -> its name, where that is another
    transposed: tuple[str, ...] = ()  # our names of matrices that are stored as (in, out)


_LLAMA = {
    "vocab_size": "vocab_size", "n_ctx": "max_position_embeddings", "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_kv_head": "num_key_value_heads",
    "head_size": "head_dim", "n_inner": "intermediate_size", "norm_eps": "rms_norm_eps", "tied": "tie_word_embeddings",
}  # fmt: skip
_SWIGLU = {"hidden_act": ("silu", "swish")}
_BIASES = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_ALL_LAYERS = {"use_sliding_window": (False,)}  # else some layers slide, and others do not
FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        {
            "vocab_size": "vocab_size", "n_ctx": "n_positions", "n_embd": "n_embd", "n_layer": "n_layer",
            "n_head": "n_head", "n_inner": "n_inner", "norm_eps": "layer_norm_epsilon", "tied": "tie_word_embeddings",
            "dropout": "resid_pdrop",
        },
        fixed=ARCHITECTURES["gpt2"],
        only={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
        },
        body="transformer.",
        layers="h",
        parts={
            "embed_tokens": "wte", "embed_positions": "wpe", "norm": "ln_f", "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2", "self_attn.qkv": "attn.c_attn", "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj",
        },
        transposed=("self_attn.qkv", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"),
    ),
    "llama": Family("LlamaForCausalLM", _LLAMA | _BIASES | {"mlp_bias": "mlp_bias"}, only=_SWIGLU),
    "mistral": Family("MistralForCausalLM", _LLAMA | {"sliding_window": "sliding_window"}, only=_SWIGLU),
    "qwen2": Family("Qwen2ForCausalLM", _LLAMA, {"qkv_bias": True}, _SWIGLU | _ALL_LAYERS),
    "qwen3": Family("Qwen3ForCausalLM", _LLAMA | _BIASES, {"qk_norm": True}, _SWIGLU | _ALL_LAYERS),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        _LLAMA | _BIASES | {
            "n_inner": "moe_intermediate_size", "n_experts": "num_experts", "experts_per_token": "num_experts_per_tok",
            "normalize_experts": "norm_topk_prob", "aux_loss_coef": "router_aux_loss_coef",
        },
        {"qk_norm": True},
        _SWIGLU | _ALL_LAYERS | {"decoder_sparse_step": (1,), "mlp_only_layers": ([],)},
    ),
}  # fmt: skip


def family_of(config: GPTConfig) -> str:
    """Return the kind of model in `transformers` that computes the same."""
    if config.positions == "learned":
        return "gpt2"
    if config.n_experts:
        return "qwen3_moe"
    if config.qk_norm:
        return "qwen3"
    if config.qkv_bias and not config.out_bias:
        return "qwen2"
    return "mistral" if config.sliding_window else "llama"


# ---- config.json ----


def config_from(theirs: PretrainedConfig) -> GPTConfig:
    """Return our config of theirs. Raises ValueError for a kind, or a part of one, that this model does not have."""
    kind = theirs.model_type
    if kind not in FAMILIES:
        raise ValueError(f"models of the kind '{kind}' are not known here, only {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    for name, known in family.only.items():
        if (value := getattr(theirs, name, None)) is not None and value not in known:
            raise ValueError(f"its config.json says {name}: {value!r}, and only {known[0]!r} is known here")
    fields = {ours: value for ours, name in family.config.items() if (value := getattr(theirs, name, None)) is not None}
    if kind != "gpt2":
        rope = theirs.rope_parameters
        if rope["rope_type"] != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"its rotary positions are of the kind {rope}, which is not known here")
        fields["rope_theta"] = float(rope["rope_theta"])
    return GPTConfig(**family.fixed | fields)


def library_config(config: GPTConfig, generation: Mapping[str, Any] | None = None) -> PretrainedConfig:
    """Return the config that `transformers` has for a model; `generation`: with its ids of start, end and padding."""
    kind = family_of(config)
    family = FAMILIES[kind]
    fields = {theirs: getattr(config, ours) for ours, theirs in family.config.items()}
    fields |= {name: value for name, value in (generation or {}).items() if name.endswith("_token_id")}
    if kind == "gpt2":
        fields |= {"embd_pdrop": config.dropout, "attn_pdrop": 0.0, "activation_function": "gelu_pytorch_tanh"}
    else:
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    return AutoConfig.for_model(kind, architectures=[family.library], **fields)


# ---- names of weights ----


def to_library(config: GPTConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our weights by their names, in their shapes; a tied output matrix is left out."""
    family, named = FAMILIES[family_of(config)], dict(weights)
    if config.tied:
        named.pop("lm_head.weight", None)
    if "self_attn.qkv" in family.parts:
        for name in [each for each in named if ".q_proj." in each]:
            three = [named.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
            named[name.replace(".q_proj.", ".qkv.")] = torch.cat(three)
    return {_their_name(family, name): _turned(family, name, tensor) for name, tensor in named.items()}


def from_library(config: GPTConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return their weights by our names, in our shapes. Raises ValueError unless each one has its place and shape."""
    family = FAMILIES[family_of(config)]
    weights = {_WRAPPED.sub("", name): tensor for name, tensor in weights.items()}
    if not any(name.startswith(family.body) for name in weights):  # the body alone, without its head
        weights = {name if name.startswith("lm_head.") else family.body + name: each for name, each in weights.items()}
    # 1. what the model needs, by their names
    with torch.device("meta"):
        needed = GPT(config).state_dict()
    shapes = {name: tuple(each.shape) for name, each in to_library(config, needed).items()}
    # 2. each weight of the model is in the file, and each tensor of the file is explained
    missing = sorted(shapes.keys() - weights.keys())
    foreign = sorted(name for name in weights.keys() - shapes.keys() if not _IDLE.search(name))
    if config.tied and "lm_head.weight" in foreign:  # the table once more
        foreign.remove("lm_head.weight")
    for name in sorted(shapes.keys() & weights.keys()):
        if tuple(weights[name].shape) != shapes[name]:
            theirs = tuple(weights[name].shape)
            raise ValueError(f"by config.json {name} has the shape {shapes[name]}, in the file it has {theirs}")
    if missing:
        other = f"; tensors of other names are there, such as {foreign[0]}" if foreign else ""
        raise ValueError(f"{len(missing)} tensors are missing, such as {missing[0]}{other}")
    if foreign:
        raise ValueError(
            f"{len(foreign)} tensors have no place in the model that config.json describes, such as {foreign[0]}: it "
            "would not compute what it did"
        )
    # 3. by our names
    ours = {}
    for name in needed:
        joined = re.sub(r"\.[qkv]_proj\.", ".qkv.", name) if "self_attn.qkv" in family.parts else name
        if name == "lm_head.weight" and config.tied:
            joined = "embed_tokens.weight"
        tensor = _turned(family, joined, weights[_their_name(family, joined)])
        if joined != name and ".qkv." in joined:
            tensor = tensor.chunk(3)["qkv".index(name[name.index("_proj.") - 1])]
        ours[name] = tensor
    return ours


def _their_name(family: Family, name: str) -> str:
    if name.startswith("lm_head."):
        return name
    layer, part, kind = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.(weight|bias)", name).groups()  # type: ignore[union-attr]
    place = f"{family.layers}.{layer}." if layer else ""
    return f"{family.body}{place}{family.parts.get(part, part)}.{kind}"


def _turned(family: Family, name: str, tensor: Tensor) -> Tensor:
    return tensor.T if name.endswith(tuple(f"{part}.weight" for part in family.transposed)) else tensor


# ---- folders ----


def fetch_model(name: str) -> Path:
    """Return the folder of a model with its weights: `name` itself, or what the Hub has by this name."""
    if Path(name).is_dir():
        return Path(name)
    folder = Path(snapshot_download(name, allow_patterns=["*.json", "model*.safetensors"]))
    if not list(folder.glob("*.safetensors")):
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "pytorch_model*.bin"]))
    return folder


def read_config(folder: Path) -> GPTConfig:
    """Return the config of a folder's model. Raises OSError, and ValueError for a model that is not known here."""
    return config_from(AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True))


def load_model(name: str | Path, dtype: torch.dtype | None = None) -> GPT:
    """Return the model of a folder or of a Hub name, in eval mode; `dtype`: its weights', or else those of the file.

    Weights are read from safetensors, or from a pickle by torch's restricted reader, which makes tensors and runs
    nothing. Raises ValueError that says what is wrong with them.
    """
    folder = fetch_model(str(name))
    config = read_config(folder)
    weights = from_library(config, read_weights(folder))
    with torch.device("meta"):
        model = GPT(config)
    dtype = dtype or weights["embed_tokens.weight"].dtype
    model.load_state_dict({name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}, assign=True)
    if config.tied:
        model.lm_head.weight = model.embed_tokens.weight
    model.generation = _read_generation(folder)
    return model.eval()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, by their names. Raises ValueError for what cannot be read, or might run."""
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    weights: dict[str, Tensor] = {}
    try:
        for file in files:
            weights |= load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except MemoryError:
        raise
    except (OSError, EOFError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} could not be read ({shorten(str(error), 300)})") from None
    except Exception as error:  # the unpickler's, without its message: that recommends to read the file unprotected
        raise ValueError(
            f"{file.name} is damaged, or it holds more than weights and might run a program ({type(error).__name__}). "
            f"Nothing of it was run. Look for the same model as {WEIGHTS}"
        ) from None
    if not weights:
        raise ValueError(f"neither {WEIGHTS} nor pytorch_model.bin is there")
    return weights


def _read_generation(folder: Path) -> dict[str, Any]:
    file = folder / "generation_config.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def save_model(folder: Path, model: GPT, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write config.json, generation_config.json and model.safetensors; `weights`: others than the model's own."""
    theirs = library_config(model.config, model.generation)
    tensors = to_library(model.config, model.state_dict() if weights is None else weights)
    theirs.dtype = next(iter(tensors.values())).dtype
    theirs.save_pretrained(folder)
    GenerationConfig(**model.generation).save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
