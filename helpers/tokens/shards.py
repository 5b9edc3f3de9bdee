"""Documents become token shards: flat files of ids without a header, which later rooms read memory-mapped."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import parallel, paths
from helpers.files import atomic_write, fingerprint, known_sha256, stamp
from helpers.vocab.tokenizer import encode_batch, load_tokenizer

_PART_BYTES = 2**22  # of corpus files that a worker encodes per task: half a second, whatever their number
_PARTS_PER_WORKER = 4  # a worker with fewer is not started: starting it would take longer than the work
_BATCH = 1000  # documents that the tokenizer encodes at once


class Span(NamedTuple):
    """Whole lines of a JSONL file: its bytes from `start` to before `stop`."""

    file: Path
    start: int
    stop: int


class PartTask(NamedTuple):
    """One part of the corpus for a worker to encode."""

    spans: list[Span]
    vocab: Path  # the folder of the tokenizer
    file: Path  # where the ids go
    dtype: str


def _divide(files: list[Path], size: int) -> list[list[Span]]:
    """Divide JSONL files into parts of whole lines, about `size` bytes each; a part may span several files."""
    parts: list[list[Span]] = [[]]
    held = 0
    for file in files:
        start = position = 0
        with open(file, "rb") as lines:
            for line in lines:
                if held >= size:
                    if position > start:
                        parts[-1].append(Span(file, start, position))
                    parts.append([])
                    start, held = position, 0
                position += len(line)
                held += len(line)
        if position > start:
            parts[-1].append(Span(file, start, position))
    return [part for part in parts if part]


def _read_texts(spans: list[Span]) -> Iterator[str]:
    for span in spans:
        with open(span.file, "rb") as lines:
            lines.seek(span.start)
            while lines.tell() < span.stop:
                yield json.loads(lines.readline())["text"]


def encode_documents(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], dtype: str) -> list[np.ndarray]:
    """Return each document as ids with its start and end token: bos, the ids of its text, eos; (length,) of `dtype`."""
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    return [np.array([start, *ids, end], dtype) for ids in encode_batch(tokenizer, texts)]


_load_once = lru_cache(maxsize=1)(load_tokenizer)


def encode_part(task: PartTask) -> None:
    """Encode one part of the corpus into `task.file`; beside it, in a .npy, the lengths of its documents.

    The lengths are (2, documents): in tokens and in characters. They are written last: a part that has them is
    finished, and is not encoded again. Both files are atomic: two machines may make the same part at the same time.
    """
    lengths_file = task.file.with_suffix(".npy")
    if lengths_file.exists() and task.file.exists():
        return
    tokenizer = _load_once(task.vocab)
    texts = _read_texts(task.spans)
    lengths: list[tuple[int, int]] = []
    with atomic_write(task.file) as out:
        while batch := list(islice(texts, _BATCH)):
            documents = encode_documents(tokenizer, batch, task.dtype)
            np.concatenate(documents).tofile(out)
            lengths += zip(map(len, documents), map(len, batch), strict=True)
    with atomic_write(lengths_file) as out:
        np.save(out, np.array(lengths, np.int64).reshape(-1, 2).T)


def write_shards(run: str, num_pieces: int, workers: int = 0, cluster: str = "") -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`: `num_pieces` training shards, validation in proportion.

    A shard holds whole documents; the shards of a split hold equal numbers of tokens, as far as documents allow.
    Returns {"train": [{"file", "documents", "tokens", "characters"} per shard], "val": [...]}. The bytes of the shards
    do not depend on `workers` or `cluster` (see `parallel.executor`). Shards of an earlier run are removed first; the
    finished parts of an interrupted run are used if text and tokenizer are the same. ValueError if num_pieces < 1.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder, vocab = paths.room(run, "tokenize"), paths.room(run, "vocab")
    dtype = dtype_for(len(load_tokenizer(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}

    # 1. remove what belongs to another text or tokenizer, and old shards
    stamps = [stamp(file) for split in files for file in files[split]]
    parts = folder / "parts" / fingerprint(stamps, known_sha256(vocab / "tokenizer.json"), _PART_BYTES)
    for other in set((folder / "parts").glob("*")) - {parts}:
        shutil.rmtree(other)
    parts.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
        old.unlink()

    # 2. encode the corpus part by part
    tasks = [
        PartTask(spans, vocab, parts / f"{split}-{i:06d}.bin", dtype)
        for split in files
        for i, spans in enumerate(_divide(files[split], _PART_BYTES))
    ]
    with parallel.executor(min(workers or parallel.cores(), len(tasks) // _PARTS_PER_WORKER or 1), cluster) as pool:
        parallel.map_shards(pool, encode_part, tasks, label="tokenize")

    # 3. join the parts into shards
    encoded = {split: [task.file for task in tasks if task.file.name.startswith(split)] for split in files}
    sizes = {split: sum(file.stat().st_size for file in encoded[split]) for split in files}
    wanted = {"train": num_pieces, "val": max(1, round(num_pieces * sizes["val"] / max(1, sizes["train"])))}
    facts = {split: _join(encoded[split], folder, split, wanted[split], np.dtype(dtype)) for split in files}
    shutil.rmtree(folder / "parts")
    return facts


@dataclass
class _Shard:
    number: int  # of the shards asked for; a document longer than a shard leaves some of them empty
    tokens: int = 0
    characters: int = 0
    offsets: list[np.ndarray] = field(default_factory=list)  # where its documents start, in tokens


def _join(parts: list[Path], folder: Path, split: str, wanted: int, dtype: np.dtype) -> list[dict]:
    """Write the documents of all parts, in order, into at most `wanted` shards; return the facts of each."""
    total = sum(part.stat().st_size for part in parts) // dtype.itemsize
    shards: list[_Shard] = []
    done = 0  # tokens of the parts before this one
    for part in parts:
        ids = np.memmap(part, dtype, "r")
        tokens, characters = np.load(part.with_suffix(".npy"))  # (documents,) each
        ends = np.cumsum(tokens)
        # 1. a document belongs to the shard in which its middle falls: no shard is off by more than one document
        shard_of = np.minimum((done + ends - tokens / 2) * wanted / total, wanted - 1).astype(np.int64)
        for number in np.unique(shard_of):
            if not shards or shards[-1].number != number:
                shards.append(_Shard(int(number)))
            shard, chosen = shards[-1], shard_of == number
            # 2. its documents lie side by side in the part: append them as one block
            lengths, first = tokens[chosen], int((ends - tokens)[chosen][0])
            with open(folder / f"{split}-{len(shards) - 1:05d}.bin", "ab") as out:
                ids[first : first + int(lengths.sum())].tofile(out)
            shard.offsets.append(shard.tokens + np.cumsum(lengths) - lengths)
            shard.tokens += int(lengths.sum())
            shard.characters += int(characters[chosen].sum())
        done += len(ids)
    # 3. beside each shard, where its documents start
    facts = []
    for i, shard in enumerate(shards):
        offsets, file = np.concatenate(shard.offsets), folder / f"{split}-{i:05d}.bin"
        np.save(file.with_suffix(".offsets.npy"), offsets)
        counts = {"documents": len(offsets), "tokens": shard.tokens, "characters": shard.characters}
        facts.append({"file": file.name} | counts)
    return facts


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"
