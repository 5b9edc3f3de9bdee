"""What a stage is doing while it runs: a bar in a terminal, a line a minute in a log."""

import shutil
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from helpers import progress
from helpers.progress import Note
from helpers.wording import duration

TERMINAL_SECONDS, LOG_SECONDS = 1.0, 60.0  # between two looks
BAR = 20  # signs of a bar
CLEAR = "\r\x1b[K"  # back to the line's begin, and wipe it


def meter(note: Note, with_bar: bool) -> str:
    """Return how far a piece of work is, its rate and the time left.

    In words "training 312 of 772 updates · 4.95 per second · 1 min 33 s left", with a bar behind the first.
    """
    rate = (note.done - note.first) / note.seconds if note.seconds else 0.0
    facts = [f"{amount(note.done)}{f' of {amount(note.total)}' if note.total else ''} {note.unit}"]
    if rate:
        facts.append(f"{amount(rate)} per second" if rate >= 1 else f"{amount(1 / rate)} s each")
        if note.total:
            facts.append(f"{duration((note.total - note.done) / rate)} left")
    bar = ""
    if with_bar and note.total:
        done = round(BAR * note.done / note.total)
        bar = "█" * done + "░" * (BAR - done) + " "
    return f"{note.label} {bar}{' · '.join(facts)}"


def amount(number: float) -> str:
    """Return a number as people read it: 312, 4.95, 12.3 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if number >= size:
            return _in_digits(number / (1e3 if unit == " k" else size)) + unit
    return _in_digits(number)


def _in_digits(number: float) -> str:
    """Return a number with at least three digits where it is no whole one, and never as 1e+03."""
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


class Watch:
    """Shows the notes that a kernel writes into `file`, from `with` to its end; `name` stands before each."""

    def __init__(self, file: Path, name: str, one_line: bool) -> None:
        """one_line: the same line of the terminal is written over and over; else each note has its own."""
        self.file, self.name, self.one_line = file, name, one_line
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.file.unlink(missing_ok=True)
        if self.one_line:
            print(self.name, end="", flush=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self.file.unlink(missing_ok=True)
        if self.one_line:
            print(CLEAR, end="", flush=True)

    def _look(self) -> None:
        before = None
        while not self._end.wait(TERMINAL_SECONDS if self.one_line else LOG_SECONDS):
            note = progress.read_note(self.file)
            if note is None or note == before:
                continue
            before = note
            if self.one_line:
                words = f"{self.name}{meter(note, with_bar=True)}"
                words = words[: shutil.get_terminal_size().columns - 1]  # what is wrapped could not be wiped
                print(f"{CLEAR}{words}", end="", flush=True)
            else:
                print(f"{self.name}{meter(note, with_bar=False)}", flush=True)


def in_terminal() -> bool:
    """Return whether somebody sees the output as it comes, on a screen that can wipe a line."""
    return sys.stdout.isatty()
