"""Read the corpus shards of a run: its documents, its texts."""

import json
from collections.abc import Iterator
from pathlib import Path

from helpers import paths
from helpers.manifest import RoomError
from helpers.wording import run_again


def shard_texts(shard: Path) -> list[str]:
    with open(shard, encoding="utf-8", newline="\n") as file:
        return [json.loads(line)["text"] for line in file]


def shard_paths(run: str, split: str) -> list[Path]:
    """Return the shards of a split, "train" or "val", in order; RoomError if the room is not there."""
    shards = paths.shards(run, "corpus", split, ".jsonl")
    if not shards:
        raise RoomError(f"run '{run}' has no {split} shards: {run_again('corpus', run)}")
    return shards


def read_documents(run: str, split: str) -> Iterator[dict]:
    """Yield the documents of a split, {"text", "source"}, one at a time."""
    for shard in shard_paths(run, split):
        with open(shard, encoding="utf-8", newline="\n") as file:
            yield from map(json.loads, file)


def read_texts(run: str, split: str) -> Iterator[str]:
    """Yield the texts of a split, one at a time."""
    return (document["text"] for document in read_documents(run, split))


def write_json_list(run: str) -> Path:
    """Write the training documents as one JSON list of strings, corpus/train.json, and return its path."""
    path = paths.room(run, "corpus") / "train.json"
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for i, text in enumerate(read_texts(run, "train")):
            file.write((",\n" if i else "[\n") + json.dumps(text, ensure_ascii=False))
        file.write("\n]\n")
    return path
