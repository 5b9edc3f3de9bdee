"""How far a long piece of work is: a bar in a notebook, and a note for the runner, which shows it in its terminal.

The runner names a file in the environment variable CHINESE_GPT_PROGRESS, and the kernel notes there what is done;
without that variable nothing is written. Knows nothing of the work.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple, Self

from tqdm.auto import tqdm

VARIABLE = "CHINESE_GPT_PROGRESS"
_PAUSE = 0.5  # seconds between two notes


class Note(NamedTuple):
    """What has been done of a piece of work."""

    label: str  # what is being done: reading, training
    done: float
    total: float | None  # None: nobody knows
    unit: str
    first: float  # how much was done already when the work began or was resumed
    seconds: float  # since then


_begun: dict[str, tuple[float, float]] = {}  # label -> when it began in this process, and how far it was then
_noted = 0.0


def tell(label: str, done: float, total: float | None, unit: str) -> None:
    """Note for the runner how far a piece of work is, twice a second at most."""
    global _noted
    file, now = os.environ.get(VARIABLE), time.monotonic()
    if not file:
        return
    begin, first = _begun.setdefault(label, (now, done))
    if done < first:  # the same work once more, from its beginning
        begin, first = _begun[label] = now, done
    if now - _noted < _PAUSE and done != total:
        return
    _noted = now
    part = Path(f"{file}.part")
    with contextlib.suppress(OSError):  # a full disk must not end the work
        part.write_text(json.dumps(Note(label, done, total, unit, first, now - begin)), "utf-8")
        part.replace(file)


def read_note(file: Path) -> Note | None:
    """Return the newest note, None if there is none."""
    try:
        return Note(*json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class Bar:
    """A progress bar with rate and time left, or where HEADLESS is set only a note; without a label neither."""

    def __init__(self, label: str, total: float | None, unit: str, scaled: bool = False) -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, 0.0
        self._bar = tqdm(
            total=total, desc=label, unit=unit, unit_scale=scaled, leave=False,
            disable=not label or bool(os.environ.get("HEADLESS")),
        )  # fmt: skip

    def update(self, more: float = 1) -> None:
        """Count what has been done since the last call."""
        self.done += more
        self._bar.update(more)
        if self.label:
            tell(self.label, self.done, self.total, self.unit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
