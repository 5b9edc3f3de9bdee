"""A model with its tokenizer in llama.cpp's format, GGUF, for Ollama, LM Studio and llama.cpp; knows no run."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN

from helpers.files import atomic_write
from helpers.model.gpt import GPT
from helpers.model.huggingface import family_of, to_library
from helpers.vocab.chat import USER, encode_messages
from helpers.wording import install, say

# scores of a piece that is never matched, and of the least likely other one: llama.cpp spells a character at -1000
_NEVER, _LEAST = -1e4, -900


def write_gguf(file: Path, model: GPT, tokenizer: PreTrainedTokenizerFast, sampling: Mapping[str, float]) -> list[str]:
    """Write the file, its weights in 32 bits; return what llama.cpp does otherwise than Python, a sentence each.

    `sampling`: the settings that programs begin with. Raises ValueError for what llama.cpp cannot do.
    """
    try:
        import gguf
    except ImportError:
        raise ValueError(say("a GGUF file needs a package: {}", install("export"))) from None
    config, arch = model.config, family_of(model.config).replace("mistral", "llama")
    if config.n_experts or (config.qk_norm and (config.qkv_bias or config.out_bias)):
        raise ValueError(say("llama.cpp has no such model, or computes it otherwise: {}", config))
    facts, differences = _tokenizer_facts(tokenizer, config.vocab_size)
    facts |= {
        "context_length": config.window,  # within a sliding window, sliding attention is plain attention
        "vocab_size": config.vocab_size, "embedding_length": config.n_embd, "block_count": config.n_layer,
        "feed_forward_length": config.n_inner, "head_count": config.n_head, "head_count_kv": config.n_kv_head,
        "layer_norm_rms_eps" if config.norm == "rms" else "layer_norm_eps": config.norm_eps,
        **dict.fromkeys(("key_length", "value_length", "rope_dimension_count"), config.head_size),
        "rope_freq_base": config.rope_theta, "sampling_temp": sampling["temperature"],
        **{f"sampling_{name}": sampling[name] for name in ("top_k", "top_p", "min_p")},
    }  # fmt: skip
    names, writer = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.n_layer), gguf.GGUFWriter("", arch)
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    for name, tensor in to_library(config, model.state_dict()).items():
        array = tensor.to("cpu", torch.float32).numpy()
        if arch == "gpt2" and re.search(r"\.c_\w+\.weight$", name):
            array = array.T
        if arch == "llama" and re.search(r"\.[qk]_proj\.", name):  # its rotary positions turn neighbours, not halves
            array = array.reshape(-1, 2, config.head_size // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")) or name, np.ascontiguousarray(array))
    with atomic_write(file) as part:
        writer.write_header_to_file(Path(part.name))
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    never = len(set(model.generation.get("suppress_tokens") or ()) - set(tokenizer.all_special_ids))
    return [*differences, say("llama.cpp may write special tokens, and {} others that are suppressed here", never)]


def _tokenizer_facts(tokenizer: PreTrainedTokenizerFast, rows: int) -> tuple[dict[str, Any], list[str]]:
    """Return what the file says of the tokenizer, and what llama.cpp does otherwise."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    kind, cut, scores, merges = _vocabulary(spec["model"], spec["pre_tokenizer"], spec["normalizer"])
    added = {each["id"]: each for each in spec["added_tokens"]}
    texts = dict(enumerate(scores)) | {i: each["content"] for i, each in added.items()}
    types = [1 if i in texts else 5 for i in range(rows)]  # plain, or unused; below: a byte, special, or always matched
    for i, text in texts.items():
        if i in added or re.fullmatch("<0x[0-9A-F]{2}>", text):
            types[i] = 6 if i not in added else 3 if added[i]["special"] else 4
    starts = alike = tokenizer("")["input_ids"] == [tokenizer.bos_token_id]
    if tokenizer.chat_template:  # llama.cpp begins texts and conversations alike
        alike = encode_messages(tokenizer, [{"role": USER, "content": "?"}], True).ids[0] == tokenizer.bos_token_id
    begins = starts and alike and kind != "plamo2"
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(rows)]
    facts = {
        "tokenizer_model": kind, "tokenizer_pre": cut, "token_list": tokens, "token_types": types,
        "token_scores": [scores.get(token, _NEVER) for token in tokens], "token_merges": merges,
        "add_space_prefix": False, "add_bos_token": begins, "chat_template": tokenizer.chat_template,
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")},
    }  # fmt: skip
    start, form = tokenizer.bos_token if starts and not begins else "", (spec["normalizer"] or {}).get("type")
    differences = {
        "llama.cpp puts no {0} before a text: begin with {0} what it continues": start,
        "of two cuts with the same score, llama.cpp may take the other; U+FEFF in front is lost": kind == "plamo2",
        "llama.cpp does not normalise a text: {}": form,
    }
    said = [say(words, what) for words, what in differences.items() if what]
    return {name: value for name, value in facts.items() if value is not None}, said


def _vocabulary(model: dict, cuts: Any, normalizer: Any) -> tuple[str, str, dict[str, float], list[str]]:
    """Return llama.cpp's names of a tokenizer and of its cuts, the score of each piece by id, and the merges."""
    if model["type"] == "Unigram" and model.get("byte_fallback") and not cuts and not normalizer:
        scores = dict(model["vocab"])  # llama.cpp's `t5` loses what is no piece; `plamo2` spells it in bytes, as ours
        scale = _LEAST / min(-1e-9, *(score for score in scores.values() if score > _NEVER))
        return "plamo2", "default", {t: s * scale if s > _NEVER else s for t, s in scores.items()}, []
    *before, last = cuts["pretokenizers"] if cuts and "pretokenizers" in cuts else [cuts or {}]
    first = [each.get("pattern") for each in before] or last.get("use_regex")
    name = "gpt-2" if first is True else "qwen2" if first == [{"Regex": QWEN}] else ""
    if name and last["type"] == "ByteLevel" and not last["add_prefix_space"] and not model.get("ignore_merges"):
        pieces = dict.fromkeys(sorted(model["vocab"], key=model["vocab"].get), 0.0)
        return "gpt2", name, pieces, [" ".join(pair) for pair in model["merges"]]
    raise ValueError(say("llama.cpp has no such tokenizer: {}", f"{model['type']}, {cuts}, {normalizer}"))
