"""A reader's guess compared with what a cell has computed, a reader's function with the course's own."""

import asyncio
import contextlib
import inspect
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from html import escape
from typing import Any

import numpy as np

from helpers.paths import notebook
from helpers.show.text import HUES, cell_text, element, is_number, show_html
from helpers.wording import say


def predict(guess: Any, answer: Any, words: str = "", close: float = 0.0) -> None:
    """Say whether a reader's guess is right; the answer is folded until there is one.

    `guess` is None until the reader types one; `answer` is a number, a string, True or False, or a list of those, and
    `words` say what it counts: `predict(my_guess, 1, "of 50 documents stay")`. A number is also right when it differs
    from the answer by at most the share `close` of it (0.1: ten per cent). Strings are compared without regard to case
    and to spaces at their ends.
    """
    verdict, said = judged(guess, answer, close), f"{shown(answer)} {words}".strip()
    said += "" if said[-1:] in ".!?。" else "."
    right, head = verdict in (RIGHT, CLOSE), say(verdict, shown(guess))
    html = f"{'✓ ' * right}{escape(head)} {escape(said)}"
    if verdict == NO_GUESS:
        html = f"{head}<details><summary>{say('Answer')}</summary>{escape(said)}</details>"
    edge = f"border-left:3px solid rgba({HUES[2 if right else 1]},.8);padding-left:.8em"
    show_html(element("div", edge, html), f"{head} {say('Answer')}: {said}")


NO_GUESS, RIGHT, CLOSE = "No guess yet.", "Your guess: {}, right.", "Your guess: {}, close enough."
HIGH, LOW, WRONG = "Your guess: {}, too high.", "Your guess: {}, too low.", "Your guess: {}, not right."


def judged(guess: Any, answer: Any, close: float = 0.0) -> str:
    """Return which of the six verdicts a guess gets."""
    if guess is None or guess is ...:
        return NO_GUESS
    value = plain(answer)
    tried = as_number(guess) if is_number(value) else plain(guess)
    if is_number(value) and is_number(tried):
        if math.isclose(tried, value, rel_tol=1e-9):
            return RIGHT
        if abs(tried - value) <= close * abs(value):
            return CLOSE
        return HIGH if tried > value else LOW
    return RIGHT if tried == value else WRONG


def as_number(guess: Any) -> Any:
    """Return the number that a string holds (a reader may type quotes around it), and anything else as it is."""
    try:
        return float(guess.replace(",", "")) if isinstance(guess, str) else plain(guess)
    except ValueError:
        return guess


def plain(value: Any) -> Any:
    """Return a value of NumPy or torch as one of Python, a string trimmed and in lower case, a sequence as a list."""
    if isinstance(value, str):
        return value.strip().casefold()
    if hasattr(value, "tolist"):  # an array, a tensor, or one number of either
        return plain(value.tolist())
    return [plain(part) for part in value] if isinstance(value, Sequence) else value


def shown(value: Any) -> str:
    """Return a value as the line shows it: 12345 as 12,345, a list with commas between its parts."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(shown, value))
    return cell_text(value)


# ---- the workbook: a function that the reader writes, and a lesson that goes on with it ----


def attempt(name: str, mine: Callable, *examples: tuple, of: Callable | None = None) -> Callable:
    """Print whether a reader's function does what notebook 04 publishes under that name; return the one to go on with.

    examples: tuples of arguments; `of`: what of them is compared after the call, instead of what it returns. What does
    not pass gradients on may be right, but no model learns through it.
    """
    course = solution(name, inspect.stack(0)[1].frame.f_globals)

    def outcome(function: Callable, example: tuple) -> list[np.ndarray]:
        arguments = deepcopy(example)
        result = function(*arguments)
        return arrays(of(*arguments) if of else result)

    for example in examples:
        try:
            difference = first_difference(outcome(mine, example), outcome(course, example))
        except Exception as error:  # whatever a reader's function raises is a verdict
            difference = say("it stops with {}: {}", type(error).__name__, str(error).partition("\n")[0])
        if difference:
            print(say("Not yet: {}; the course's own version is used from here on", difference))
            return course
    floats = ["torch.float" in str(getattr(part, "dtype", "")) for part in examples[0]]
    learns = [1 * part.clone().requires_grad_() if yes else part for part, yes in zip(examples[0], floats, strict=True)]
    try:
        learning = not any(floats) or mine(*learns).requires_grad
    except (AttributeError, RuntimeError, TypeError):  # NumPy's arrays, lists
        learning = False
    if learning:
        print(say("Right: the same numbers as the course's; yours is used from here on"))
        return mine
    print(say("Right: the same numbers, but no model can learn through it; the course's own is used from here on"))
    return course


def solution(name: str, names: Mapping[str, Any]) -> Callable:
    """Return the function that notebook 04 publishes as an exercise's solution; `names`: those of other cells."""
    cells = json.loads(notebook("train").read_text("utf-8"))["cells"]
    blocks = re.findall(r"^```python\n(.*?)^```", "\n".join("".join(cell["source"]) for cell in cells), re.S | re.M)
    namespace = dict(names)
    exec(next(block for block in blocks if f"def {name}(" in block), namespace)
    return namespace[name]


def arrays(result: Any) -> list[np.ndarray]:
    """Return a result as arrays, one for each part of a tuple, but one for several numbers; nothing for None."""
    parts = result if isinstance(result, tuple) else (list(result) if hasattr(result, "__next__") else result,)
    found = [np.array(plain(part), dtype=float) for part in parts if part is not None and part is not ...]
    return found if any(each.ndim for each in found) or len(found) < 2 else [np.stack(found)]


def first_difference(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> str:
    """Return in words where results differ by more than rounding; "" where they don't."""
    if len(got) != len(wanted) and wanted:
        return say("it returns {} instead of {}", len(got), len(wanted)) if got else say("it returns nothing")
    for mine, own in zip(got, wanted, strict=False):
        if mine.shape != own.shape:
            return say("it returns the shape {} instead of {}", mine.shape, own.shape)
        if len(off := np.argwhere(~np.isclose(mine, own, rtol=1e-3, atol=1e-5))):
            at = tuple(off[0].tolist())
            words = say("it returns {:.4g} instead of {:.4g}", mine[at], own[at])
            return words + (say(" at {}", list(at)) if at else "")
    return ""


# ---- a stream that the reader writes ----


class StepEngine:
    """Writes `pieces` in a thread of its own, each when the reader has got the one before, or a second later."""

    pieces = ["绿萝", "喜阴，\n", "常喷", "水。"]

    def submit(self, prompt, settings=None, samples=1, *, ids=None, listener=lambda chunk: None) -> Future:
        """Return the future of a text, as `Engine.submit` does."""
        from helpers.generate.settings import Chunk, Sample  # here, because they load torch

        future, got = self.future, self.got = Future[list](), threading.Semaphore(0)
        self.fault, loop = "", asyncio.get_running_loop()

        def write() -> None:
            for piece in self.pieces:
                time.sleep(0.05)  # the reader waits by now
                if wait([asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)], timeout=1).not_done:
                    self.fault = "the event loop stands still until a piece comes: `await` it, from an asyncio.Queue"
                listener(Chunk(0, piece, (), "end" if piece == self.pieces[-1] else None))
                if not (self.fault or future.cancelled() or got.acquire(timeout=1)):
                    self.fault = "yield each piece as the listener gets it, not all in the end, and wake the loop"
            if future.set_running_or_notify_cancel():
                future.set_result([Sample(prompt + "".join(self.pieces), True, [], "end")])

        threading.Thread(target=write, daemon=True).start()
        return future


async def judge_stream(stream: Callable) -> str:
    """Return the verdict on an asynchronous generator of the pieces that an engine writes."""
    engine, got = StepEngine(), []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(6):
            async for piece in stream("请问", engine):
                got.append(piece)
                engine.got.release()
    if engine.fault or got != engine.pieces:
        return say("Not yet: {}", say(engine.fault) or say("it yields {}, not {}", got, engine.pieces))
    leaving = stream("请问", engine)
    await anext(leaving)
    await leaving.aclose()
    if not engine.future.cancelled():
        return say("Not yet: a client has left in the middle, and the engine writes on: cancel its future")
    return say("Right: {} pieces, each as soon as it is there, and none for a client that has left", len(got))
