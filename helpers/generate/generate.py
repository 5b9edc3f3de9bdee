"""Generate text: load a model, continue one prompt or many, as whole texts or as a stream.

The run `try` is the default run as it comes with the course, for whoever has not trained one yet: data/try holds its
models in 8 bits, and here they become the rooms of a run.
"""

import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.corpus.build import build_corpus
from helpers.device import pick_device
from helpers.generate import sampling
from helpers.generate.batch import DecodeBatch, Row, active_filters, prompt_ids
from helpers.generate.settings import DEFAULT_SETTINGS, Chunk, Sample, Settings
from helpers.manifest import MANIFEST, RoomError, notebook_parameters, open_room, write_manifest
from helpers.model.eight_bits import read_packed
from helpers.model.gpt import GPT
from helpers.model.huggingface import load_model, save_model
from helpers.vocab.tokenizer import load_tokenizer
from helpers.wording import did_you_mean, say

_MAX_ROWS = 64  # rows that are decoded at once
TRY = "try"
TRY_FOLDER = paths.repo_root() / "data" / "try"
TRY_MODELS = ("base", "chat")  # of `paths.MODELS`


def unpack_try() -> None:
    """Make runs/try, in some seconds, unless it is there."""
    if (paths.room(TRY, paths.MODELS["chat"]) / MANIFEST).is_file():
        return
    # 1. the documents, which the built-in grammar draws again: 05 and 06 begin with texts kept out of training
    parameters = notebook_parameters("corpus") | {"run": TRY}
    report = build_corpus(**parameters)
    write_manifest(
        TRY, "corpus", parameters=parameters, inputs=report.inputs, outputs=report.outputs, result=report.result(),
        seed=parameters["seed"],
    )  # fmt: skip
    # 2. the models, as plain folders
    for name in TRY_MODELS:
        packed, final, stage = TRY_FOLDER / name, model_folder(TRY, name), paths.MODELS[name]
        made = json.loads((packed / "model.json").read_text("utf-8"))["made"]
        save_model(final, read_packed(packed))
        for file in (TRY_FOLDER / "tokenizer.json", *packed.glob("*_*")):
            shutil.copy(file, final)
        write_manifest(
            TRY, stage, parameters=made["parameters"] | {"run": TRY}, inputs=[], outputs=sorted(final.iterdir()),
            result=made["result"], seed=made["seed"],
        )  # fmt: skip


def latest_model(run: str) -> str:
    """Return the last of base, chat and reward that a run has; tools, which knows fewer facts, only by name."""
    if run == TRY:
        unpack_try()
    made = [name for name in ("base", "chat", "reward") if (paths.room(run, paths.MODELS[name]) / MANIFEST).is_file()]
    return made[-1] if made else "base"


def model_folder(run: str, model: str = "base") -> Path:
    """Return the folder of a run's model; `model` is one of `paths.MODELS`."""
    return paths.room(run, paths.MODELS[model]) / "final_model"


def load(run: str | Path, model: str = "base") -> tuple[GPT, PreTrainedTokenizerFast]:
    """Return (model in eval mode, tokenizer) of a run given by name, or of a folder given as a Path.

    `model` is one of `paths.MODELS`. On the GPU where there is one. The files of a run are checked first; raises
    RoomError with the notebook to run, ValueError for a name that no run or no model has.
    """
    if isinstance(run, Path):
        folder = run
        if not (folder / "config.json").is_file():
            raise RoomError(say("{} holds no model: there is no config.json in it", folder))
    else:
        if re.search(r"[/\\]", run):
            raise ValueError(say("'{0}' is no name of a run: to load a model from a folder, give Path('{0}')", run))
        if model not in paths.MODELS:
            raise ValueError(say("a run has no model '{}'{}", model, did_you_mean(model, paths.MODELS)))
        if run == TRY:
            unpack_try()
        open_room(run, paths.MODELS[model])
        folder = model_folder(run, model)
    return load_model(folder).to(pick_device("auto")).requires_grad_(False), load_tokenizer(folder)


def write_rows(model: GPT, tokenizer: PreTrainedTokenizerFast, rows: list[Row], max_rows: int = _MAX_ROWS) -> None:
    """Write all rows to their end, at most max_rows at a time; others join once half of the places are free."""
    batch = DecodeBatch(model, tokenizer)
    waiting = [row for row in reversed(rows) if not row.done]
    while waiting or batch.rows:
        if len(batch.rows) <= max_rows // 2:
            free = max_rows - len(batch.rows)
            batch.add([waiting.pop() for _ in range(min(free, len(waiting)))])
        batch.step()


def generate(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    settings: Settings = DEFAULT_SETTINGS,
    samples: int = 1,
) -> list[Sample]:
    """Return `samples` continuations of one prompt, written in one batch; the prompt is read once.

    Sample i of a seed is the same text for any number of samples. Raises ValueError for samples < 1.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}: ask for 1 or more")
    return generate_batch(model, tokenizer, [prompt] * samples, settings, numbered=True, max_rows=samples)


def generate_batch(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str | list[int]],
    settings: Settings = DEFAULT_SETTINGS,
    *,
    numbered: bool = False,
    max_rows: int = _MAX_ROWS,
) -> list[Sample]:
    """Return one continuation per prompt, in order: the same texts as `generate` one by one, in far less time.

    A prompt is a text, or ids, which the sample's text then leaves out. numbered: prompt i is continued by sample i of
    the seed, so that equal prompts have different texts. Raises ValueError when there is no prompt.
    """
    if not prompts:
        raise ValueError("there is no prompt: give at least one (it may be empty)")
    begun = [prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    rows = [Row(ids, settings, number if numbered else 0) for number, ids in enumerate(begun)]
    write_rows(model, tokenizer, rows, max_rows)
    texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
    return [row.result(tokenizer, text) for row, text in zip(rows, texts, strict=True)]


def stream_chunks(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str | Sequence[int],
    settings: Settings = DEFAULT_SETTINGS,
    stop: threading.Event | None = None,
    sample: int = 0,
) -> Iterator[Chunk]:
    """Yield the continuation of a text, or of ids, in chunks and without it; setting `stop` ends it within one token.

    The texts add up to what `generate` returns as this sample, a number from 0: half characters and what may begin a
    stop string are held back.
    """
    ids = prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt
    batch, row = DecodeBatch(model, tokenizer), Row(ids, settings, sample, streamed=True)
    if not row.done:
        batch.add([row])
    while batch.rows and not (stop and stop.is_set()):
        batch.step()
        if chunk := row.take():
            yield chunk


def stream_text(
    model: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str | Sequence[int],
    settings: Settings = DEFAULT_SETTINGS,
    stop: threading.Event | None = None,
    sample: int = 0,
) -> Iterator[str]:
    """Yield only the texts of `stream_chunks`."""
    chunks = stream_chunks(model, tokenizer, prompt, settings, stop, sample)
    yield from (chunk.text for chunk in chunks if chunk.text)


def next_logits(model: GPT, tokenizer: PreTrainedTokenizerFast, prompt: str) -> tuple[Tensor, Tensor]:
    """Return what the model sees of a prompt, ids (1, T), and the logits (1, V) of the token that comes next."""
    batch = DecodeBatch(model, tokenizer)
    batch.add([Row(prompt_ids(tokenizer, prompt), DEFAULT_SETTINGS)])
    return batch.ids, batch.logits


def filtered(logits: Tensor, ids: Tensor, settings: Settings) -> Tensor:
    """Return logits (B, V) after all filters that the settings ask for; softmax gives the distribution to draw from.

    ids (B, T): the text so far.
    """
    return sampling.apply_filters(logits, ids, **active_filters([settings], logits.device))
