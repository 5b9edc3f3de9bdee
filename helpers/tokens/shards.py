"""Documents become token shards: flat files of ids without a header, read memory-mapped. Knows no windows or models."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import parallel, paths
from helpers.files import atomic_write, known_sha256, occupied
from helpers.vocab.tokenizer import encode_batch, load_tokenizer

_PART_BYTES = 2**22  # of a corpus file that a worker encodes per task: half a second
_PARTS_PER_WORKER = 4  # with fewer, starting a worker would take longer than its work
_BATCH = 1000  # documents that the tokenizer encodes at once


class PartTask(NamedTuple):
    """A part of the corpus for a worker to encode: whole lines of a JSONL file."""

    source: Path
    start: int  # its first byte
    stop: int  # the byte after its last
    vocab: Path  # the tokenizer's folder
    digest: str  # of the tokenizer: a process that holds an older one reads again
    file: Path  # where the ids go
    dtype: str


def _divide(file: Path, size: int) -> Iterator[tuple[Path, int, int]]:
    """Divide a JSONL file into parts of whole lines, about `size` bytes each: (file, start, stop)."""
    start, end = 0, file.stat().st_size
    with open(file, "rb") as lines:
        while start < end:
            lines.seek(start + size)
            lines.readline()
            yield file, start, (stop := min(lines.tell(), end))
            start = stop


def _read_texts(task: PartTask) -> list[str]:
    with open(task.source, "rb") as lines:
        lines.seek(task.start)
        rows = lines.read(task.stop - task.start).decode().removesuffix("\n").split("\n")
    # one list, because a call for each row costs more than reading it
    return [document["text"] for document in json.loads(f"[{','.join(rows)}]")]


def encode_joined(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], dtype: str) -> tuple[np.ndarray, list[int]]:
    """Return the ids of all documents in a row, (tokens,) of `dtype`, and their lengths: bos, a text's ids, eos."""
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    documents = [[start, *ids, end] for ids in encode_batch(tokenizer, texts)]
    lengths = list(map(len, documents))
    return np.fromiter(chain.from_iterable(documents), dtype, sum(lengths)), lengths


@lru_cache(maxsize=1)
def _load_once(vocab: Path, digest: str) -> PreTrainedTokenizerFast:
    if multiprocessing.parent_process():  # the other cores have workers of their own
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return load_tokenizer(vocab)


def encode_part(task: PartTask) -> None:
    """Encode a part of the corpus into `task.file`.

    The .npy beside it holds its documents' lengths in tokens and in characters, (2, documents).
    """
    tokenizer = _load_once(task.vocab, task.digest)
    texts = _read_texts(task)
    lengths: list[int] = []
    with atomic_write(task.file) as out:
        for at in range(0, len(texts), _BATCH):
            ids, sizes = encode_joined(tokenizer, texts[at : at + _BATCH], task.dtype)
            ids.tofile(out)
            lengths += sizes
    with atomic_write(task.file.with_suffix(".npy")) as out:
        np.save(out, np.array([lengths, list(map(len, texts))], np.int64))


def write_shards(run: str, num_pieces: int, workers: int = 0) -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`: `num_pieces` training shards, validation in proportion.

    Shards hold whole documents and about equal numbers of tokens, with the same bytes for any `workers`
    (see `parallel.executor`). Returns {"train": [{"file", "documents", "tokens", "characters"} per shard], "val": …}.
    Raises ValueError if num_pieces < 1.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder, vocab = paths.room(run, "tokenize"), paths.room(run, "vocab")
    dtype = dtype_for(len(load_tokenizer(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}

    # 1. the tasks
    digest, parts = known_sha256(vocab / "tokenizer.json"), folder / "parts"
    tasks = {
        split: [
            PartTask(*part, vocab, digest, parts / f"{split}-{i:06d}.bin", dtype)
            for i, part in enumerate(part for file in files[split] for part in _divide(file, _PART_BYTES))
        ]
        for split in files
    }
    every = [*tasks["train"], *tasks["val"]]
    pool = parallel.executor(min(workers or parallel.cores(), len(every) // _PARTS_PER_WORKER or 1))
    with pool, occupied(folder):
        # 2. remove what a killed run has left, and encode the corpus part by part
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir(parents=True)
        parallel.map_shards(pool, encode_part, every, label="tokenize")

        # 3. join the parts to shards, which replace older ones
        for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
            old.unlink()
        encoded = {split: [task.file for task in tasks[split]] for split in files}
        sizes = {split: sum(file.stat().st_size for file in encoded[split]) for split in files}
        wanted = {"train": num_pieces, "val": max(1, round(num_pieces * sizes["val"] / max(1, sizes["train"])))}
        facts = {split: _join(encoded[split], folder, split, wanted[split], np.dtype(dtype)) for split in files}
        shutil.rmtree(parts)
    return facts


def _join(parts: list[Path], folder: Path, split: str, wanted: int, dtype: np.dtype) -> list[dict]:
    """Write the documents of all parts, in order, into at most `wanted` shards; return each shard's facts."""
    if not parts:
        return []
    tokens, characters = np.concatenate([np.load(part.with_suffix(".npy")) for part in parts], axis=1)  # (D,) each
    ends = np.cumsum(tokens)
    pieces = [np.memmap(part, dtype, "r") for part in parts]
    begins = np.cumsum([0, *map(len, pieces)])  # where each part begins
    # a document belongs to the shard that holds its middle: no shard is off by more than one document, and one
    # longer than a shard leaves others empty
    shard_of = np.minimum((ends - tokens / 2) * wanted / ends[-1], wanted - 1).astype(np.int64)
    firsts = np.flatnonzero(np.diff(shard_of, prepend=-1)).tolist()  # the first document of each shard
    facts = []
    for i, (first, stop) in enumerate(pairwise([*firsts, len(tokens)])):
        # the ids of its documents, from all parts that hold some of them
        file, starts = folder / f"{split}-{i:05d}.bin", ends[first:stop] - tokens[first:stop]
        with open(file, "wb") as out:
            for ids, begin in zip(pieces, begins, strict=False):
                ids[max(0, starts[0] - begin) : max(0, ends[stop - 1] - begin)].tofile(out)
        np.save(file.with_suffix(".offsets.npy"), starts - starts[0])
        counts = {"tokens": int(tokens[first:stop].sum()), "characters": int(characters[first:stop].sum())}
        facts.append({"file": file.name, "documents": stop - first} | counts)
    return facts


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"
