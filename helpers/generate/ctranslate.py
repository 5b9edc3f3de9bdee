"""The optional fast path: a trained model in CTranslate2's format, whose engine is C++ and counts in whole numbers.

int8 keeps each weight in one byte, with a scale for each row: a quarter of the memory to read for every token, which is
what writing text waits for. It costs a little quality; `quality` measures it. A folder made by `export` is all that is
needed. Knows fewer settings than `generate`, and no GPU.
"""

import json
import math
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate.batch import Row, banned, prompt_ids, window_start
from helpers.generate.generate import generate
from helpers.generate.settings import DEFAULT, Sample, Settings
from helpers.manifest import RoomError
from helpers.vocab.tokenizer import decode
from helpers.vocab.tokenizer import load as load_tokenizer

QUANTIZATIONS = ("int8", "float32")
_SOURCE = "source_config.json"  # the model's own config; CTranslate2 writes another one under its name
_ELSEWHERE = (
    "repetition_penalty", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "no_repeat_ngram", "stop",
    "sentence", "logprobs", "constraint",
)  # fmt: skip


def _library():
    try:
        import ctranslate2  # optional
        import ctranslate2.converters
    except ModuleNotFoundError:
        raise ModuleNotFoundError('the fast path needs CTranslate2: pip install -e ".[fast]"') from None
    return ctranslate2


def export(folder: Path, out: Path, quantization: str = "int8") -> Path:
    """Write the model of a final_model folder to `out` in CTranslate2's format, with its tokenizer; return `out`.

    quantization: "int8", or "float32" for the same numbers as before. An older export at `out` is replaced, whole or
    not at all. Raises ValueError for a kind of model that CTranslate2 does not know, or an `out` that holds something
    else; RoomError where there is no model.
    """
    ctranslate2 = _library()
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization is '{quantization}': choose {' or '.join(QUANTIZATIONS)}")
    if not (folder / "config.json").is_file():
        raise RoomError(f"{folder} holds no model: there is no config.json in it")
    if out.exists() and not (out / _SOURCE).is_file():
        raise ValueError(f"{out} is there already, and no export of a model: name another folder")
    beside = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    beside.parent.mkdir(parents=True, exist_ok=True)
    try:
        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(beside), quantization=quantization)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(folder / name, beside / name)
        shutil.copyfile(folder / "config.json", beside / _SOURCE)
        shutil.rmtree(out, ignore_errors=True)
        beside.rename(out)
    except ValueError as error:
        if "No conversion is registered" not in str(error):
            raise
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
        raise ValueError(f"CTranslate2 knows no models of the kind '{kind}': generate with PyTorch") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return out


class Fast:
    """An exported model on the CPU. Raises RoomError for another folder.

    threads: one is the quickest up to the size of GPT-2 (measured on two cores): a step is too short to be shared.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        ctranslate2 = _library()
        if not (folder / _SOURCE).is_file():
            raise RoomError(
                f"{folder} is no export: make one with helpers.generate.ctranslate.export(final_model, {folder})"
            )
        self.tokenizer = load_tokenizer(folder)
        config = json.loads((folder / _SOURCE).read_text("utf-8"))
        self.n_ctx: int = config.get("max_position_embeddings") or config["n_positions"]
        torch_threads = torch.get_num_threads()
        self.generator = ctranslate2.Generator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        torch.set_num_threads(torch_threads)  # CTranslate2 sets its number for the whole thread that calls it
        vocabulary = json.loads((folder / "vocabulary.json").read_text("utf-8"))
        special, eos = set(self.tokenizer.all_special_ids), self.tokenizer.eos_token_id
        never = [i for i in range(len(vocabulary)) if i != eos and (i in special or i >= len(self.tokenizer))]
        self._vocabulary, self._never = vocabulary, [[vocabulary[i]] for i in never]

    def generate(self, prompt: str, settings: Settings = DEFAULT, samples: int = 1) -> list[Sample]:
        """Return `samples` continuations of a prompt, as `generate.generate` does, beyond the context window too.

        Greedy texts of a float32 export are the same; drawn ones are others, and each time others: CTranslate2 keeps
        its random numbers to itself. Raises ValueError for settings that it does not know, a seed among them.
        """
        unknown = [name for name in _ELSEWHERE if getattr(settings, name) != getattr(DEFAULT, name)]
        if settings.seed is not None and not settings.greedy:
            unknown.append("seed")
        if unknown:
            raise ValueError(f"the fast path does not know {', '.join(unknown)}: leave out, or generate with PyTorch")
        if samples < 1:
            raise ValueError(f"samples is {samples}: ask for 1 or more")
        rows = [Row(prompt_ids(self.tokenizer, prompt), settings) for _ in range(samples)]
        while going := [row for row in rows if not row.done]:
            # all that go on have one length: they slide together
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
        """Return up to `new` ids that follow each window of ids, the document's end among them; no sliding here."""
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
        """Return the logits (T, V) after each of ids (T), at most n_ctx of them."""
        return torch.from_numpy(np.array(self.generator.forward_batch([list(ids)])))[0].float()


@dataclass(frozen=True)
class Quality:
    """What the fast path costs, on one text: bits under the model as it was, and under the export.

    same_likeliest: the share of places of the text where both find the same token likeliest. same_greedy: of greedy
    texts begun alike, the share of tokens that are equal, place by place; after a first difference few are.
    """

    bits_per_token: float
    fast_bits_per_token: float
    bits_per_character: float
    fast_bits_per_character: float
    same_likeliest: float
    same_greedy: float


@torch.inference_mode()
def quality(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, fast: Fast, texts: Sequence[str], new: int = 40
) -> Quality:
    """Compare an export with its model on texts that it was not trained on; of each what one window holds.

    Greedy texts have `new` tokens and go on from the first eighth of a window. Raises ValueError without any text.
    """
    never = banned(model, tokenizer).cpu()
    bits, fast_bits, same, tokens, characters, equal, written = 0.0, 0.0, 0, 0, 0, 0, 0
    for text in filter(None, texts):
        ids = prompt_ids(tokenizer, text)[: fast.n_ctx]
        ours = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()  # (T, V)
        theirs = fast.logits(ids)  # (T, V)
        ours, theirs = (logits[:-1].masked_fill(never, -torch.inf) for logits in (ours, theirs))  # (T - 1, V)
        labels = torch.tensor(ids[1:])[:, None]  # (T - 1, 1)
        bits -= float(ours.double().log_softmax(-1).gather(1, labels).sum()) / math.log(2)
        fast_bits -= float(theirs.double().log_softmax(-1).gather(1, labels).sum()) / math.log(2)
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        tokens, characters = tokens + len(labels), characters + len(decode(tokenizer, ids))
        prompt, settings = decode(tokenizer, ids[: 1 + fast.n_ctx // 8]), Settings(max_new_tokens=new, temperature=0)
        first, second = generate(model, tokenizer, prompt, settings)[0], fast.generate(prompt, settings)[0]
        equal += sum(a == b for a, b in zip(first.tokens, second.tokens, strict=False))
        written += max(len(first.tokens), len(second.tokens))
    if not tokens:
        raise ValueError("there is no text to compare on: give at least one")
    per_character = bits / characters, fast_bits / characters
    return Quality(bits / tokens, fast_bits / tokens, *per_character, same / tokens, equal / max(1, written))
