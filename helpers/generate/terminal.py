"""Write in a terminal: `python -m helpers.generate --run NAME` continues texts, holds a conversation, or scores a file.

A prompt comes from the command line, from a pipe, or is typed, line after line; with --chat it is a question. Ctrl-C
ends the text that is being written; at an empty prompt it ends the program. Knows nothing of HTTP: that is room 06.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import generate
from helpers.generate.dialogue import Dialogue
from helpers.generate.score import Score, score
from helpers.generate.settings import RANGES, Settings
from helpers.manifest import RoomError
from helpers.vocab.chat import ChatError

DOCUMENTS = ("block", "line", "file")
SHOWN = 24  # characters of a document that stand beside its score
NEW = "/new"  # typed as a question: the conversation starts again
INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended


def parser() -> argparse.ArgumentParser:
    """Return the command's options; each sampling setting is one, with the range of `settings`."""
    found = argparse.ArgumentParser(prog="python -m helpers.generate", description=(__doc__ or "").splitlines()[0])
    found.add_argument("prompt", nargs="?", help="how the text begins; without it: a pipe, or what you type")
    found.add_argument("--run", required=True, help="a run that has passed notebook 04")
    found.add_argument("--chat", action="store_true", help="answer questions, as one conversation; the prompt is one")
    found.add_argument("--system", default="", metavar="TEXT", help="instructions given before the conversation")
    found.add_argument("--line", action="store_true", help="a line break follows the prompt, as after a question")
    found.add_argument("-n", "--samples", type=int, default=1, help="texts from one prompt (default: 1)")
    found.add_argument("--max-new-tokens", type=int, default=200, help="the longest continuation (default: 200)")
    found.add_argument("--seed", type=int, help="the same seed writes the same text")
    found.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated")
    for name, values in RANGES.items():
        option = f"--{name.replace('_', '-')}"
        found.add_argument(option, type=type(values.off), default=values.off, help=f"{values.meaning}: {values}")
    found.add_argument("--score", type=Path, metavar="FILE", help="write nothing: bits per character of a text file")
    found.add_argument("--document", choices=DOCUMENTS, default="block", help="of that file (default: block)")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    for stream in (sys.stdin, sys.stdout):  # a console of Windows may have another encoding
        if hasattr(stream, "reconfigure"):
            # a pipe in another encoding is an error, or the model would continue a text of question marks
            errors = "replace" if stream is sys.stdout or stream.isatty() else "strict"
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        if options.seed is not None and options.seed < 0:
            raise ValueError(f"--seed is {options.seed}: give 0 or more, or leave it out for another text each time")
        if "" in options.stop:
            raise ValueError("--stop is empty: give the text to end before, or leave it out")
        wanted = Settings(
            max_new_tokens=options.max_new_tokens, seed=options.seed, stop=tuple(options.stop),
            **{name: getattr(options, name) for name in RANGES},
        )  # fmt: skip
        if options.samples < 1:
            raise ValueError(f"--samples is {options.samples}: ask for 1 or more")
        if options.score and (given := writing_options(options)):
            raise ValueError(f"--score writes nothing: leave out {', '.join(given)}")
        if not options.score and options.document != parser().get_default("document"):
            raise ValueError("--document is of a file to score: add --score")
        if options.chat and (options.score or options.line or options.samples > 1):
            raise ValueError("--chat gives one answer to each question: leave out --score, --line and --samples")
        if options.system and not options.chat:
            raise ValueError("--system is for a conversation: add --chat")
        if options.chat:
            return converse(options, wanted)
        texts = documents(options.score, options.document) if options.score else []
        model, tokenizer = generate.load(options.run)
        if options.score:
            return show_scores(texts, list(score(model, tokenizer, texts)))
        return write_all(model, tokenizer, options, wanted)
    except KeyboardInterrupt:  # while nothing is being written: the model is loading, a file is scored
        print()
        return INTERRUPTED
    except (RoomError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader has seen enough: `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(error, file=sys.stderr)
        return 1


def writing_options(options: argparse.Namespace) -> list[str]:
    """Return those that were given of the options that only matter where something is written."""
    others = {"run", "chat", "score", "document"}
    given = [name for name, value in vars(options).items() if value != parser().get_default(name)]
    return ["the prompt" if name == "prompt" else f"--{name.replace('_', '-')}" for name in given if name not in others]


# ---- writing ----


def is_typed(options: argparse.Namespace) -> bool:
    """Return whether prompts come from a keyboard."""
    return options.prompt is None and sys.stdin.isatty()


def write_all(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace, wanted: Settings
) -> int:
    """Continue each prompt; return the exit status."""
    for prompt in prompts(options):
        for sample in range(options.samples):
            if sample:
                print()
            beginning = prompt + "\n" * options.line
            if not write(partial(generate.stream, model, tokenizer, beginning, wanted, sample=sample)):
                if not is_typed(options):
                    return INTERRUPTED
                break
    return 0


def prompts(options: argparse.Namespace) -> Iterator[str]:
    """Yield the prompt of the command line, or all that a pipe holds, or lines as they are typed."""
    if options.prompt is not None:
        yield options.prompt
    elif is_typed(options):
        yield from typed("Type how a text begins; Ctrl-C stops a text, Ctrl-D ends.")
    else:
        yield sys.stdin.read().removesuffix("\n")


def typed(greeting: str) -> Iterator[str]:
    """Yield lines as they are typed, after a word on how that is done."""
    print(greeting, file=sys.stderr)
    while True:
        try:
            yield input("› ")
        except (EOFError, KeyboardInterrupt):
            print()
            return


def write(texts: Callable[[threading.Event], Iterator[str]]) -> bool:
    """Print texts as they come; return False if Ctrl-C ended them, by setting the event that they are given."""
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        for text in texts(stop):
            print(text, end="", flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    print(flush=True)
    return not stop.is_set()


# ---- a conversation ----


def converse(options: argparse.Namespace, wanted: Settings) -> int:
    """Answer each question in one conversation; return the exit status."""
    model, tokenizer = generate.load(options.run, generate.latest_model(options.run))
    talk = Dialogue(model, tokenizer, options.system)
    for question in filter(str.strip, questions(options)):
        if question.strip() == NEW:
            talk = Dialogue(model, tokenizer, options.system)
            continue
        try:
            whole = write(partial(talk.ask, question, wanted))
        except ChatError as error:
            if not is_typed(options):
                raise
            print(error, file=sys.stderr)
            continue
        if talk.left_out:
            print(f"(the context is full: written without the oldest {talk.left_out} messages)", file=sys.stderr)
        if not whole and not is_typed(options):
            return INTERRUPTED
    return 0


def questions(options: argparse.Namespace) -> Iterator[str]:
    """Yield the question of the command line, or the lines of a pipe, or lines as they are typed."""
    if options.prompt is not None:
        yield options.prompt
    elif is_typed(options):
        yield from typed(f"Ask; Ctrl-C stops an answer, {NEW} starts again, Ctrl-D ends.")
    else:
        yield from (line.removesuffix("\n") for line in sys.stdin)


# ---- scores ----


def documents(file: Path, kind: str) -> list[str]:
    """Return the documents of a UTF-8 file: blocks between blank lines, lines, or the whole; ValueError without any."""
    try:
        text = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 (byte {error.start:,}): notebook 01 reads other encodings") from None
    parts = [text] if kind == "file" else text.split("\n") if kind == "line" else _blocks(text)
    if not (found := [part.strip("\n") for part in parts if part.strip()]):
        raise ValueError(f"{file} holds no text to score")
    return found


def _blocks(text: str) -> list[str]:
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block) for block in blocks]


def show_scores(texts: Sequence[str], scores: Sequence[Score]) -> int:
    """Print a line per document, tab-separated, and one for all of them."""
    print("bits per character\tcharacters\tbeginning")
    for text, each in zip(texts, scores, strict=True):
        print(f"{each.per_character:.3f}\t{each.characters}\t{' '.join(text[:SHOWN].split())}")
    whole = sum(scores[1:], scores[0])
    print(f"{whole.per_character:.3f}\t{whole.characters}\tall {len(texts)} documents")
    return 0
