"""A model_config.json of GPT-2, the book's or that of a Hugging Face folder, as parameters of the notebooks.

What changes the model is kept or refused by name, never dropped in silence. The book's file has comments and numbers
like `1e - 05`, which JSON does not allow; they are read all the same.
"""

import json
import re
from pathlib import Path
from typing import Any

_SHAPE = ("n_embd", "n_layer", "n_head")
_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_GELU = ("gelu_new", "gelu_pytorch_tanh")  # one function under two names
# what every GPT-2 of this course has
_FIXED: dict[str, tuple] = {
    "model_type": ("gpt2",),
    "initializer_range": (0.02,),
    "layer_norm_epsilon": (1e-5,),
    "activation_function": _GELU,
    "activation": _GELU,
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "tie_word_embeddings": (True,),
    "add_cross_attention": (False,),
}
# what changes nothing in a model that is trained from the start here; its special ids are those of the tokenizer
_WITHOUT_EFFECT = re.compile(
    r"architectures|(bos|eos|pad|sep|unk)_token_id|summary_.*|output_.*|use_cache|(torch_)?dtype|transformers_version|_.*|"
    r"task_specific_params|finetuning_task|num_labels|id2label|label2id|tokenizer_class|predict_special_tokens|"
    r"return_dict|torchscript|use_bfloat16|gradient_checkpointing|pruned_heads|is_decoder|is_encoder_decoder|"
    r"chunk_size_feed_forward|problem_type"
)


def read_model_config(path: Path) -> dict[str, dict[str, Any]]:
    """Return {stage: {parameter: value}} as a preset has it; raise ValueError for what cannot be kept.

    Dropout that the file does not name is GPT-2's own, 0.1. vocab_size is left out: see `say_vocab_size`.
    """
    config = _load(path)
    # 1. what the models of this course do not have
    for name, value in config.items():
        if name in _FIXED and value not in _FIXED[name]:
            ours = " or ".join(map(repr, _FIXED[name]))
            more = "; for a LLaMA-like model see --preset minimind" if name == "model_type" else ""
            raise ValueError(f"{path.name}: {name} is {value!r}, which cannot be kept: here it is always {ours}{more}")
        known = {*_FIXED, *_SHAPE, *_DROPOUTS, "n_ctx", "n_positions", "n_inner", "vocab_size"}
        if name not in known and not _WITHOUT_EFFECT.fullmatch(name):
            raise ValueError(f"{path.name}: {name} cannot be kept: if your model does without it, take its line out")
    # 2. the numbers
    length = config.get("n_positions") or config.get("n_ctx")
    numbers = {name: config.get(name) for name in _SHAPE} | {"n_ctx": length}
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            said = "is missing" if value is None else f"is {value!r}"
            raise ValueError(f"{path.name}: {name} {said}: a GPT-2 needs it, as a whole number")
    if config.get("n_ctx") not in (None, length):
        raise ValueError(f"{path.name}: n_ctx is {config['n_ctx']} and n_positions {length}: here both are one, n_ctx")
    if config.get("n_inner") not in (None, 4 * config["n_embd"]):
        raise ValueError(f"{path.name}: n_inner is {config['n_inner']}, which cannot be kept: here it is 4 × n_embd")
    dropouts = {name: config.get(name, 0.1) for name in _DROPOUTS}
    for name, value in dropouts.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ValueError(f"{path.name}: {name} is {value!r}: expected a number, from 0 to less than 1")
    if len(set(dropouts.values())) > 1:
        said = ", ".join(f"{name} {value}" for name, value in dropouts.items())
        raise ValueError(f"{path.name}: three kinds of dropout, {said}, cannot be kept: here they are one, dropout")
    shape = {name: numbers[name] for name in _SHAPE}
    return {
        "tokenize": {"n_ctx": length},
        "train": {"architecture": "gpt2"} | shape | {"dropout": float(dropouts["attn_pdrop"])},
    }


def say_vocab_size(path: Path) -> str:
    """Return in words what becomes of the file's vocab_size; "" if it has none."""
    size = _load(path).get("vocab_size")
    if size is None:
        return ""
    return (
        f"{path.name}: vocab_size {size} is not used: the model has a row for each token of notebook 02's vocabulary "
        "(a list of your own: -p vocab_file)"
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        config = _parse(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} is not readable JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f'{path.name}: expected names and values, like {{"n_layer": 12}}')
    return config


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except ValueError:
        # comments, but not what looks like one in a string
        text = re.sub(r'("(?:\\.|[^"\\])*")|(?:#|//)[^\n]*', lambda found: found[1] or "", text)
        text = re.sub(r"(\d)\s*e\s*([-+])\s*(\d)", r"\1e\2\3", text)
        return json.loads(re.sub(r",(\s*})", r"\1", text), object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict; raise ValueError where a name stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' stands twice")
    return found
