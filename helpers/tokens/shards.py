"""Documents become token shards: flat files of ids without a header, which later rooms read memory-mapped."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import parallel, paths
from helpers.files import atomic_write, fingerprint, known_sha256, occupied, stamp
from helpers.vocab.tokenizer import encode_batch, load_tokenizer

_PART_BYTES = 2**22  # of corpus files that a worker encodes per task: half a second, whatever their number
_PARTS_PER_WORKER = 4  # a worker with fewer is not started: starting it would take longer than the work
_BATCH = 1000  # documents that the tokenizer encodes at once


class PartTask(NamedTuple):
    """One part of the corpus for a worker to encode: whole lines of a JSONL file."""

    source: Path
    start: int  # the first byte
    stop: int  # the byte behind the last
    vocab: Path  # the folder of the tokenizer
    digest: str  # of the tokenizer that is meant: a process that has read an older one reads again
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
    # as one list, for a call per row costs more than the reading of it
    return [document["text"] for document in json.loads(f"[{','.join(rows)}]")]


def encode_joined(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], dtype: str) -> tuple[np.ndarray, list[int]]:
    """Return the ids of all documents one after the other, (tokens,) of `dtype`, and how many each document has.

    A document is bos, the ids of its text, eos.
    """
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    joined: list[int] = []
    lengths = []
    for ids in encode_batch(tokenizer, texts):
        joined.append(start)
        joined += ids
        joined.append(end)
        lengths.append(len(ids) + 2)
    return np.fromiter(joined, dtype, len(joined)), lengths


def encode_documents(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], dtype: str) -> list[np.ndarray]:
    """Return each document as ids with its start and end token, (length,) of `dtype` (see `encode_joined`)."""
    joined, lengths = encode_joined(tokenizer, texts, dtype)
    ends = accumulate(lengths, initial=0)
    return [joined[start:end] for start, end in pairwise(ends)]


@lru_cache(maxsize=1)
def _load_once(vocab: Path, digest: str) -> PreTrainedTokenizerFast:
    if multiprocessing.parent_process():  # the other cores have workers of their own: threads would cost a tenth
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return load_tokenizer(vocab)


def encode_part(task: PartTask) -> None:
    """Encode one part of the corpus into `task.file`; beside it, in a .npy, the lengths of its documents.

    The lengths are (2, documents): in tokens and in characters. A part that has them is finished, and is not encoded
    again. Two machines may make the same part at the same time.
    """
    lengths_file = task.file.with_suffix(".npy")
    if lengths_file.exists() and task.file.exists():
        return
    tokenizer = _load_once(task.vocab, task.digest)
    texts = _read_texts(task)
    lengths: list[int] = []
    with atomic_write(task.file) as out:
        for at in range(0, len(texts), _BATCH):
            ids, sizes = encode_joined(tokenizer, texts[at : at + _BATCH], task.dtype)
            ids.tofile(out)
            lengths += sizes
    with atomic_write(lengths_file) as out:
        np.save(out, np.array([lengths, list(map(len, texts))], np.int64))


def write_shards(run: str, num_pieces: int, workers: int = 0, cluster: str = "") -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`: `num_pieces` training shards, validation in proportion.

    A shard holds whole documents; the shards of a split hold about equal numbers of tokens, and the same bytes for any
    `workers` and `cluster` (see `parallel.executor`). Returns {"train": [{"file", "documents", "tokens", "characters"}
    per shard], "val": [...]}. An interrupted run goes on with its finished parts. ValueError if num_pieces < 1.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder, vocab = paths.room(run, "tokenize"), paths.room(run, "vocab")
    dtype = dtype_for(len(load_tokenizer(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}

    # 1. the tasks; the name of their folder says which text and tokenizer they are of
    stamps = [stamp(file) for split in files for file in files[split]]
    digest = known_sha256(vocab / "tokenizer.json")
    parts = folder / "parts" / fingerprint(stamps, digest, _PART_BYTES)
    tasks = [
        PartTask(*part, vocab, digest, parts / f"{split}-{i:06d}.bin", dtype)
        for split in files
        for i, part in enumerate(part for file in files[split] for part in _divide(file, _PART_BYTES))
    ]
    pool = parallel.executor(min(workers or parallel.cores(), len(tasks) // _PARTS_PER_WORKER or 1), cluster)
    with pool, occupied(folder):
        # 2. remove what belongs to another text or tokenizer, and encode the corpus part by part
        for other in set((folder / "parts").glob("*")) - {parts}:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
        parts.mkdir(parents=True, exist_ok=True)
        parallel.map_shards(pool, encode_part, tasks, label="tokenize")

        # 3. join the parts into shards, which take the place of older ones
        encoded = {split: [task.file for task in tasks if task.file.name.startswith(split)] for split in files}
        remove_shards(folder)
        facts = join_parts(encoded, folder, num_pieces, dtype)
        shutil.rmtree(folder / "parts")
    return facts


def remove_shards(folder: Path) -> None:
    """Remove the shards of an earlier run."""
    for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
        old.unlink()


def join_parts(parts: dict[str, list[Path]], folder: Path, num_pieces: int, dtype: str) -> dict[str, list[dict]]:
    """Join the encoded parts of both splits to shards, and return the facts that `write_shards` returns.

    A part is a file of ids; beside it, in a .npy, are the lengths of its documents (see `encode_part`).
    """
    sizes = {split: sum(file.stat().st_size for file in parts[split]) for split in parts}
    wanted = {"train": num_pieces, "val": max(1, round(num_pieces * sizes["val"] / max(1, sizes["train"])))}
    return {split: _join(parts[split], folder, split, wanted[split], np.dtype(dtype)) for split in parts}


def _join(parts: list[Path], folder: Path, split: str, wanted: int, dtype: np.dtype) -> list[dict]:
    """Write the documents of all parts, in order, into at most `wanted` shards; return the facts of each."""
    if not parts:
        return []
    tokens, characters = np.concatenate([np.load(part.with_suffix(".npy")) for part in parts], axis=1)  # (D,) each
    ends = np.cumsum(tokens)
    pieces = [np.memmap(part, dtype, "r") for part in parts]
    begins = np.cumsum([0, *map(len, pieces)])  # where each part begins
    # 1. a document belongs to the shard in which its middle falls: no shard is off by more than one document, and a
    # document longer than a shard leaves others without any
    shard_of = np.minimum((ends - tokens / 2) * wanted / ends[-1], wanted - 1).astype(np.int64)
    firsts = np.flatnonzero(np.diff(shard_of, prepend=-1)).tolist()  # the first document of each shard
    facts = []
    for i, (first, stop) in enumerate(pairwise([*firsts, len(tokens)])):
        # 2. the ids of its documents, from all parts that hold some of them
        file, starts = folder / f"{split}-{i:05d}.bin", ends[first:stop] - tokens[first:stop]
        with open(file, "wb") as out:
            for ids, begin in zip(pieces, begins, strict=False):
                ids[max(0, starts[0] - begin) : max(0, ends[stop - 1] - begin)].tofile(out)
        # 3. beside them, where its documents start
        np.save(file.with_suffix(".offsets.npy"), starts - starts[0])
        counts = {"tokens": int(tokens[first:stop].sum()), "characters": int(characters[first:stop].sum())}
        facts.append({"file": file.name, "documents": stop - first} | counts)
    return facts


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"
