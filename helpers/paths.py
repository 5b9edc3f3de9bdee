"""The names of the rooms: repository, run folder, files; and the manifests that tie one room to the next.

Knows nothing of what is in a file: only where it lies, which bytes it has, and which stage wrote it.
"""

import os
import re
from pathlib import Path

# stage -> (notebook, the room it writes). A stage reads rooms that stand before its own.
STAGES = {
    "corpus": ("01_corpus", "corpus"),
    "vocab": ("02_vocab", "vocab"),
    "tokenize": ("03_tokenize", "tokens"),
    "train": ("04_train", "model"),
    "generate": ("05_generate", "text"),
    "serve": ("06_serve", "serve"),
}


def repo_root() -> Path:
    """Return the folder that holds notebooks/ and helpers/, wherever the process was started."""
    return Path(__file__).resolve().parent.parent


def runs_dir() -> Path:
    """Return the folder of all runs: `runs/` in the repository, or the environment variable RUNS_DIR."""
    return Path(os.environ.get("RUNS_DIR") or repo_root() / "runs")


def run_dir(run: str) -> Path:
    """Return the folder of one run; the name may hold letters, digits, `-`, `_` and `.` (not first)."""
    if not re.fullmatch(r"[\w-][\w.-]*", run):
        raise ValueError(f"'{run}' cannot name a run: use letters, digits, '-', '_' and '.', not starting with '.'")
    return runs_dir() / run


def room(run: str, stage: str) -> Path:
    """Return the folder that a stage (corpus, vocab, tokenize, train, generate, serve) writes; it may not exist yet."""
    return run_dir(run) / STAGES[stage][1]


def notebook(stage: str) -> Path:
    """Return the notebook of a stage."""
    return repo_root() / "notebooks" / f"{STAGES[stage][0]}.ipynb"


def shards(run: str, stage: str, split: str, suffix: str) -> list[Path]:
    """Return a room's shards of one split (`train` or `val`) in order: `train-00000.jsonl`, `train-00001.jsonl`, …"""
    return sorted(room(run, stage).glob(f"{split}-[0-9]*{suffix}"))
