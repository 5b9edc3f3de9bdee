"""CTranslate2, the optional fast path: a trained model in the format of a C++ engine, with int8 weights.

int8 stores each weight in one byte, with one scale per row: a quarter of the memory to read for every token, and that
reading is what limits the speed. `quality` measures what it costs. Supports fewer settings than `generate`, and no GPU.
"""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from helpers.files import write_folder
from helpers.generate.batch import Row, banned, prompt_ids, window_start
from helpers.generate.generate import generate
from helpers.generate.inference import context_length
from helpers.generate.settings import DEFAULT, Sample, Settings
from helpers.manifest import RoomError
from helpers.vocab.tokenizer import decode, load_tokenizer

QUANTIZATIONS = ("int8", "float32")
_SOURCE = "source_config.json"  # the model's own config.json, whose name CTranslate2 uses for another one
_SUPPORTED = ("max_new_tokens", "temperature", "top_k", "top_p")  # settings


def _library():
    try:
        import ctranslate2  # optional
    except ModuleNotFoundError:
        raise ModuleNotFoundError('the fast path needs CTranslate2: pip install -e ".[fast]"') from None
    return ctranslate2


def export(folder: Path, out: Path, quantization: str = "int8") -> Path:
    """Write the model of a final_model folder to `out` in CTranslate2's format, with its tokenizer; return `out`.

    quantization: "int8", or "float32" for unchanged weights. An older export at `out` is replaced. Raises ValueError
    for a model that CTranslate2 does not know, or an `out` that holds something else; RoomError if there is no model.
    """
    ctranslate2 = _library()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization is '{quantization}': choose {' or '.join(QUANTIZATIONS)}")
    if not (folder / "config.json").is_file():
        raise RoomError(f"{folder} holds no model: there is no config.json in it")
    if out.exists() and not (out / _SOURCE).is_file():
        raise ValueError(f"{out} already exists and is not an exported model: name another folder")

    def write(part: Path) -> None:
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(part), quantization=quantization, force=True)  # the folder is there already, and empty
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(folder / name, part / name)
        shutil.copyfile(folder / "config.json", part / _SOURCE)

    try:
        write_folder(out, write)
    except ValueError as error:
        if "No conversion is registered" not in str(error):
            raise
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
        raise ValueError(f"CTranslate2 knows no models of the kind '{kind}': generate with PyTorch") from None
    return out


class Fast:
    """An exported model on the CPU; raises RoomError for a folder that is not an export.

    threads: one is the fastest up to the size of GPT-2 (measured on two cores): a step is too short to be shared.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        ctranslate2 = _library()
        if not (folder / _SOURCE).is_file():
            raise RoomError(
                f"{folder} is no export: make one with helpers.generate.ctranslate.export(final_model, {folder})"
            )
        self.tokenizer = load_tokenizer(folder)
        self.n_ctx = context_length(AutoConfig.from_pretrained(folder / _SOURCE))
        torch_threads = torch.get_num_threads()
        self.generator = ctranslate2.Generator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        torch.set_num_threads(torch_threads)  # CTranslate2 changes it for the calling thread
        vocabulary = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        special, eos = set(self.tokenizer.all_special_ids), self.tokenizer.eos_token_id
        never = [i for i in range(len(vocabulary)) if i != eos and (i in special or i >= len(self.tokenizer))]
        self._vocabulary, self._never = vocabulary, [[vocabulary[i]] for i in never]

    def generate(self, prompt: str, settings: Settings = DEFAULT, samples: int = 1) -> list[Sample]:
        """Return `samples` continuations of a prompt, as `generate.generate` does, also beyond the context window.

        Greedy texts of a float32 export are the same; drawn ones differ, and differ each time: CTranslate2 keeps its
        random numbers to itself. Raises ValueError for settings that are not supported, a seed among them.
        """
        changed = [name for name, value in vars(settings).items() if value != getattr(DEFAULT, name)]
        unknown = [name for name in changed if name not in (*_SUPPORTED, "seed")]
        if settings.seed is not None and not settings.greedy:
            unknown.append("seed")
        if unknown:
            raise ValueError(f"the fast path does not know {', '.join(unknown)}: leave out, or generate with PyTorch")
        if samples < 1:
            raise ValueError(f"samples is {samples}: ask for 1 or more")
        rows = [Row(prompt_ids(self.tokenizer, prompt), settings) for _ in range(samples)]
        while going := [row for row in rows if not row.done]:
            # all of them have the same length, and so the same window
            length, written = len(going[0].ids), len(going[0].new)
            start = window_start(length, self.n_ctx)
            room = min(self.n_ctx + 1 - (length - start), settings.max_new_tokens - written)
            for row, ids in zip(going, self.write([row.ids[start:] for row in going], room, settings), strict=True):
                for token in ids:
                    row.write(token, self.tokenizer.eos_token_id, None)
        return [row.result(self.tokenizer, prompt) for row in rows]

    def write(
        self, windows: Sequence[Sequence[int]], new: int, settings: Settings = DEFAULT, at_least: int = 0
    ) -> list[list[int]]:
        """Return up to `new` ids that follow each window of ids, the document's end among them; without sliding."""
        results = self.generator.generate_batch(
            [[self._vocabulary[i] for i in window] for window in windows],
            max_length=new,
            min_length=at_least,
            include_prompt_in_result=False,
            return_end_token=True,
            suppress_sequences=self._never,
            sampling_topk=1 if settings.greedy else settings.top_k,
            sampling_topp=1 if settings.greedy else settings.top_p,
            sampling_temperature=1 if settings.greedy else settings.temperature,
        )
        return [result.sequences_ids[0] for result in results]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) after each of ids (T,), at most n_ctx of them."""
        return torch.from_numpy(np.array(self.generator.forward_batch([list(ids)])))[0].float()


@dataclass(frozen=True)
class Quality:
    """What an export costs in quality: the model and its export on the same texts."""

    bits_per_token: float  # of the model
    fast_bits_per_token: float  # of the export
    bits_per_character: float
    fast_bits_per_character: float
    same_likeliest: float  # the share of places where both find the same token likeliest
    same_greedy: float  # the share of equal tokens in greedy texts, place by place; few are equal after a first change


@torch.inference_mode()
def quality(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, fast: Fast, texts: Sequence[str], new: int = 40
) -> Quality:
    """Compare an export with its model on texts that were not in its training, up to one window of each.

    Greedy texts have `new` tokens and continue the first eighth of a window. Raises ValueError if there is no text.
    """
    never = banned(model, tokenizer).cpu()
    bits, fast_bits, same, tokens, characters, equal, written = 0.0, 0.0, 0, 0, 0, 0, 0
    for text in filter(None, texts):
        ids = prompt_ids(tokenizer, text)[: fast.n_ctx]
        # 1. the probability of each next token
        logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()  # (T, V)
        both = [each[:-1].masked_fill(never, -torch.inf) for each in (logits, fast.logits(ids))]  # (T - 1, V) each
        labels = torch.tensor(ids[1:])[:, None]  # (T - 1, 1)
        nats = [-float(each.double().log_softmax(-1).gather(1, labels).sum()) for each in both]
        bits, fast_bits = bits + nats[0] / math.log(2), fast_bits + nats[1] / math.log(2)
        same += int((both[0].argmax(-1) == both[1].argmax(-1)).sum())
        tokens, characters = tokens + len(labels), characters + len(decode(tokenizer, ids))
        # 2. greedy texts
        prompt, settings = decode(tokenizer, ids[: 1 + fast.n_ctx // 8]), Settings(max_new_tokens=new, temperature=0)
        first, second = generate(model, tokenizer, prompt, settings)[0], fast.generate(prompt, settings)[0]
        equal += sum(a == b for a, b in zip(first.tokens, second.tokens, strict=False))
        written += max(len(first.tokens), len(second.tokens))
    if not tokens:
        raise ValueError("there is no text to compare on: give at least one")
    per_character = bits / characters, fast_bits / characters
    return Quality(bits / tokens, fast_bits / tokens, *per_character, same / tokens, equal / max(1, written))
