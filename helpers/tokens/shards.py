"""Documents become token shards: flat files of ids that are memory-mapped by whoever reads them."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers import parallel, paths
from helpers.files import sha256
from helpers.vocab import tokenizer

if TYPE_CHECKING:
    pass

_PART_BYTES = 2**22  # of corpus files that a worker encodes at a time: half a second, whatever their number
_PARTS_EACH = 4  # a worker that has fewer is not started: it would take longer than the work
_BATCH = 1000  # documents that the tokenizer gets at once


def cut_points(files: list[Path], size: int) -> list[list[tuple[Path, int, int]]]:
    """Divide JSONL files into runs of whole lines of about `size` bytes each.

    Returns one list of (file, first byte, byte after the last) for each run.
    """
    spans: list[list[tuple[Path, int, int]]] = [[]]
    held = 0
    for file in files:
        start = position = 0
        with open(file, "rb") as lines:
            for line in lines:
                if held >= size:
                    if position > start:
                        spans[-1].append((file, start, position))
                    spans.append([])
                    start, held = position, 0
                position += len(line)
                held += len(line)
        if position > start:
            spans[-1].append((file, start, position))
    return [span for span in spans if span]


def _texts(span: list[tuple[Path, int, int]]) -> Iterator[str]:
    for file, start, stop in span:
        with open(file, "rb") as lines:
            lines.seek(start)
            while lines.tell() < stop:
                yield json.loads(lines.readline())["text"]


def _documents(tok, texts: list[str], dtype: str) -> list[np.ndarray]:
    start, end = tok.bos_token_id, tok.eos_token_id
    return [np.array([start, *ids, end], dtype) for ids in tokenizer.encode_batch(tok, texts)]


_load_once = lru_cache(maxsize=1)(tokenizer.load)


def encode_part(task: tuple[list, Path, Path, str]) -> None:
    """Encode one run of the corpus's lines into a part; `task` is (span, tokenizer folder, file to write, dtype).

    A document is `[MASK] ids… [CLS]`: a start, its text, an end. Beside the part lies the length of each of its
    documents, in tokens and in characters: (2, documents). It comes last: a part that has it is finished, and kept.
    """
    span, folder, file, dtype = task
    lengths_file = file.with_suffix(".npy")
    if lengths_file.exists() and file.exists():
        return
    tok = _load_once(folder)
    texts, lengths = _texts(span), []
    mine = file.with_name(f"{file.name}.{uuid.uuid4().hex}")  # the same part may be made twice, on two machines
    with open(mine, "wb") as out:
        while batch := list(islice(texts, _BATCH)):
            rows = _documents(tok, batch, dtype)
            np.concatenate(rows).tofile(out)
            lengths += zip(map(len, rows), map(len, batch), strict=True)
    os.replace(mine, file)
    with open(mine, "wb") as out:
        np.save(out, np.array(lengths, np.int64).reshape(-1, 2).T)
    os.replace(mine, lengths_file)


def write_shards(run: str, num_pieces: int, workers: int = 0, cluster: str = "") -> dict[str, list[dict]]:
    """Encode both splits of a run's corpus into `tokens/`, `num_pieces` shards for training, validation in proportion.

    Shards hold whole documents, and as equal numbers of tokens as these allow. Returns {"train": [facts of each
    shard], "val": [...]}. Their bytes do not depend on `workers` or `cluster` (see `parallel.executor`). Shards of an
    earlier run are removed first; the finished parts of an interrupted one, of the same text and tokenizer, are used.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    folder = paths.room(run, "tokenize")
    vocab = paths.room(run, "vocab")
    dtype = dtype_for(len(tokenizer.load(vocab)))
    files = {split: paths.shards(run, "corpus", split, ".jsonl") for split in ("train", "val")}
    parts = folder / "parts" / _fingerprint(files["train"] + files["val"], vocab)
    for other in set((folder / "parts").glob("*")) - {parts}:
        shutil.rmtree(other)
    parts.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.bin"), *folder.glob("*.offsets.npy")]:
        old.unlink()
    tasks = [
        (span, vocab, parts / f"{split}-{i:06d}.bin", dtype)
        for split in files
        for i, span in enumerate(cut_points(files[split], _PART_BYTES))
    ]
    with parallel.executor(min(workers or parallel.cores(), len(tasks) // _PARTS_EACH or 1), cluster) as pool:
        parallel.map_shards(pool, encode_part, tasks, label="tokenize")
    encoded = {split: [file for _, _, file, _ in tasks if file.name.startswith(split)] for split in files}
    sizes = {split: sum(file.stat().st_size for file in encoded[split]) for split in files}
    pieces = {"train": num_pieces, "val": max(1, round(num_pieces * sizes["val"] / max(1, sizes["train"])))}
    facts = {split: _join(encoded[split], folder, split, pieces[split], np.dtype(dtype)) for split in files}
    shutil.rmtree(folder / "parts")
    return facts


def _fingerprint(files: list[Path], vocab: Path) -> str:
    """Return a name for what parts are made of: the same for the same shards of text and the same tokenizer."""
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    told = repr((stamps, sha256(vocab / "tokenizer.json"), _PART_BYTES))
    return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


def _join(parts: list[Path], folder: Path, split: str, pieces: int, dtype: np.dtype) -> list[dict]:
    """Write the documents of all parts, in order, into at most `pieces` shards; return the facts of each."""
    total = sum(part.stat().st_size for part in parts) // dtype.itemsize
    shards, done = [], 0
    for part in parts:
        ids, lengths = np.memmap(part, dtype, "r"), np.load(part.with_suffix(".npy"))
        ends = np.cumsum(lengths[0])
        # a document belongs to the shard in which its middle falls: so no shard is off by more than a document
        shard_of = np.minimum((done + ends - lengths[0] / 2) * pieces / total, pieces - 1).astype(np.int64)
        for shard in np.unique(shard_of):
            if not shards or shards[-1]["number"] != shard:
                shards.append({"number": int(shard), "tokens": 0, "characters": 0, "offsets": []})
            fact, chosen = shards[-1], shard_of == shard
            tokens, first = lengths[0][chosen], int((ends - lengths[0])[chosen][0])
            with open(folder / f"{split}-{len(shards) - 1:05d}.bin", "ab") as out:
                ids[first : first + int(tokens.sum())].tofile(out)
            fact["offsets"].append(fact["tokens"] + np.cumsum(tokens) - tokens)
            fact["tokens"] += int(tokens.sum())
            fact["characters"] += int(lengths[1][chosen].sum())
        done += len(ids)
    facts = []
    for i, fact in enumerate(shards):
        offsets, file = np.concatenate(fact["offsets"]), folder / f"{split}-{i:05d}.bin"
        np.save(file.with_suffix(".offsets.npy"), offsets)
        facts.append({"file": file.name, "documents": len(offsets)} | {k: fact[k] for k in ("tokens", "characters")})
    return facts


def dtype_for(vocab_size: int) -> str:
    """Return the smallest of uint16 and uint32 that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"
