"""Messages in the reader's language, and phrases that many share: a duration, "did you mean", what to run again."""

import difflib
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

from helpers.paths import NOTEBOOKS, language

# the commonest names of other programs that are not near ours
FOREIGN = {
    "learning_rate": "lr",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "block_size": "n_ctx",
    "max_seq_len": "n_ctx",
    "per_device_train_batch_size": "batch_size",
    "accumulation_steps": "gradient_accumulation",
    "grad_clip": "max_grad_norm",
    "dtype": "precision",
    "max_steps": "epochs, or max_minutes",
    "length": "max_new_tokens",
    "output_dir": "--run NAME: a run is in runs/NAME/",
}


@cache
def chinese_messages() -> dict[str, str]:
    """Return what `say` knows in Chinese: {English: Chinese}, each with the same places {}."""
    return yaml.safe_load(Path(__file__).with_name("messages.zh.yaml").read_text("utf-8"))


def say(english: str, *values: object) -> str:
    """Return a message in the reader's language, its places {} filled; in English where it has no Chinese."""
    words = chinese_messages().get(english, english) if language() == "zh" else english
    return words.format(*values) if values else words


def let_console_replace() -> None:
    """Let a console whose encoding lacks a character print "?" for it, instead of ending the command with an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not where a test or a notebook has put its own
            stream.reconfigure(errors="replace")


def printable(text: str) -> str:
    """Return a text with escapes for half characters, which no file takes; in JSON they read as what they were."""
    return text.encode("utf-8", "backslashreplace").decode()


def duration(seconds: float) -> str:
    """Return a duration in words: 7 s, 4 min 05 s, 1 h 02 min."""
    seconds = round(seconds)
    if seconds < 60:
        return say("{} s", seconds)
    minutes, seconds = divmod(seconds, 60)
    return say("{} min {:02} s", minutes, seconds) if minutes < 60 else say("{} h {:02} min", *divmod(minutes, 60))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for a close match, else the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return say("; did you mean '{}'?", close[0]) if close else say("; there is: {}", ", ".join(known))


def called_here(name: str, known: Iterable[str]) -> str:
    """Return what to say of a parameter that no notebook has: what it is called here, or the nearest known one."""
    near = did_you_mean(name, sorted(set(known) - {"run"}))
    return say(": here it is {}", FOREIGN[name]) if name in FOREIGN else near


def install(extra: str) -> str:
    """Return the command that installs one of pyproject.toml's groups of packages, at the versions that were tested."""
    return f'python -m pip install -e ".[{extra}]" -c constraints.txt'


def run_again(stage: str, run: str = "") -> str:
    """Return what mends a missing or outdated room: the notebook of its stage, and the command."""
    command = f"python -m helpers.run {stage}" + (f" --run {run}" if run else "")
    return say("run notebook {} again, or: {}", NOTEBOOKS[stage][0], command)
