"""Read the corpus shards of a run: its documents, its texts.

A shard is a file of JSON lines, {"text", "source"}: corpus/train-00000.jsonl, corpus/val-00000.jsonl and so on. The
line of a conversation also has its "messages", [{"role", "content"}, …]; their contents, joined by line ends, are its
text. This module is their only reader, and loads nothing heavy.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from helpers import paths
from helpers.manifest import RoomError
from helpers.wording import run_again


def shard_paths(run: str, split: str) -> list[Path]:
    """Return the shards of a split, "train" or "val", in order; raise RoomError if the room is not there."""
    shards = paths.shards(run, "corpus", split, ".jsonl")
    if not shards:
        raise RoomError(f"run '{run}' has no {split} shards: {run_again('corpus', run)}")
    return shards


def shard_documents(shard: Path) -> Iterator[dict]:
    """Yield the documents of one shard, {"text", "source"} and perhaps {"messages"}, in order."""
    with open(shard, encoding="utf-8", newline="\n") as file:
        yield from map(json.loads, file)


def read_texts(run: str, split: str) -> Iterator[str]:
    """Yield the texts of a split, one at a time; raise RoomError if the room is not there."""
    for shard in shard_paths(run, split):
        yield from (document["text"] for document in shard_documents(shard))
