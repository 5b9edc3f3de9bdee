"""Where everything lies: the repository, its notebooks, the folder of a run, the room of each stage, its shards.

Knows nothing of what is in a file.
"""

import os
import re
from pathlib import Path

# stage -> (notebook, the room it writes), in the course's order: a stage reads only rooms above its own
STAGES = {
    "corpus": ("01_corpus", "corpus"),
    "vocab": ("02_vocab", "vocab"),
    "tokenize": ("03_tokenize", "tokens"),
    "train": ("04_train", "model"),
    "generate": ("05_generate", "text"),
    "serve": ("06_serve", "serve"),
}
# optional lessons on the rooms of a run: nothing in the six stages reads what these write
_DOORS = ("your-text", "words", "tournament", "parts", "since-llama", "faster", "scaling", "recipes", "chat", "reward")
SIDE_DOORS = {door: (f"deeper/{door}", door) for door in _DOORS}
NOTEBOOKS = STAGES | SIDE_DOORS
# what a run's models are called -> the stage or side door that trains each; a later one began as an earlier one
MODELS = {"base": "train", "chat": "chat", "reward": "reward"}


def repo_root() -> Path:
    """Return the folder that holds notebooks/ and helpers/, whatever the working folder is."""
    return Path(__file__).resolve().parent.parent


def runs_dir() -> Path:
    """Return the folder of all runs: `runs/` in the repository, or the environment variable RUNS_DIR."""
    return Path(os.environ.get("RUNS_DIR") or repo_root() / "runs")


def run_dir(run: str) -> Path:
    """Return the folder of a run; its name may hold letters, digits, `-`, `_` and `.` (not first), else ValueError."""
    if not isinstance(run, str):  # papermill's -p makes a number of 2024
        raise ValueError(f"run is {run!r}, and a name is a text: in a notebook '{run}', for papermill -r run {run}")
    if not re.fullmatch(r"[\w-][\w.-]*", run):
        raise ValueError(f"'{run}' cannot name a run: use letters, digits, '-', '_' and '.', not starting with '.'")
    return runs_dir() / run


def room(run: str, stage: str) -> Path:
    """Return the folder that a stage ("tokenize") or a side door ("tournament") writes; it may not exist yet."""
    return run_dir(run) / NOTEBOOKS[stage][1]


def notebook(stage: str) -> Path:
    """Return the notebook of a stage or of a side door."""
    return repo_root() / "notebooks" / f"{NOTEBOOKS[stage][0]}.ipynb"


def chinese(english: Path) -> Path:
    """Return where a notebook's Chinese edition is: notebooks/zh/deeper/x.ipynb for notebooks/deeper/x.ipynb."""
    return repo_root() / "notebooks" / "zh" / english.relative_to(repo_root() / "notebooks")


def language() -> str:
    """Return "zh" in a Chinese notebook's kernel and where COURSE_LANGUAGE says so, else "en"."""
    here = repo_root() / "notebooks" / "zh" in (Path.cwd(), *Path.cwd().parents)
    return os.environ.get("COURSE_LANGUAGE") or ("zh" if here else "en")


def in_language(english: Path) -> Path:
    """Return the Chinese notebook if that is the reader's language and there is one, else the English."""
    return chinese(english) if language() == "zh" and chinese(english).is_file() else english


def executed_copy(run: str, stage: str) -> Path:
    """Return where the runner puts the executed notebook of a stage or of a side door."""
    return run_dir(run) / "notebooks" / notebook(stage).name


def shards(run: str, stage: str, split: str, suffix: str) -> list[Path]:
    """Return a room's shards of one split (`train` or `val`) in order: `train-00000.jsonl`, `train-00001.jsonl`, …"""
    return sorted(room(run, stage).glob(f"{split}-[0-9]*{suffix}"))
