"""Write in a terminal: `python -m helpers.generate --run NAME` continues texts or holds a conversation.

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

from helpers.generate import generate
from helpers.generate.dialogue import Dialogue
from helpers.generate.gguf import write_gguf
from helpers.generate.settings import RANGES, Settings, default_settings
from helpers.manifest import RoomError
from helpers.vocab.chat import ChatError
from helpers.wording import say

NEW = "/new"  # typed as a question: the conversation starts again
_PIPED = {"encoding": "utf-8-sig", "errors": "strict"}  # Windows' programs begin with a mark, which is no text
INTERRUPTED = 130  # the exit status of a program that Ctrl-C ended


def _parser() -> argparse.ArgumentParser:
    """Return the command's options; each sampling setting is one, with the range of `settings`."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.generate",
        description=(__doc__ or "").splitlines()[0],
        epilog=say("Where an option of sampling is left out, the model's own generation_config.json decides."),
    )
    add = parser.add_argument
    add("prompt", nargs="?", help="how the text begins; without it: a pipe, or what you type")
    add("--run", default="sample", help="a run that has passed notebook 04 (default: sample)")
    add("--chat", action="store_true", help="answer questions, as one conversation; the prompt is one")
    add("--system", default="", metavar="TEXT", help="instructions given before the conversation")
    add("--line", action="store_true", help="a line break follows the prompt, as after a question")
    add("-n", "--samples", type=int, default=1, help="texts from one prompt (default: 1)")
    add("--max-new-tokens", type=int, default=200, help="the longest continuation (default: 200)")
    add("--seed", type=int, help="the same seed writes the same text")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated")
    add("--gguf", type=Path, metavar="FILE", help="write the run's last model as a file of llama.cpp, and no text")
    for name, values in RANGES.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=type(values.off), help=f"{say(values.meaning)}: {values}")
    return parser


def terminal_main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdin, sys.stdout):  # a console of Windows may have another encoding
        if hasattr(stream, "reconfigure"):
            # a pipe in another encoding is an error, or the model would continue a text of question marks
            is_pipe = stream is sys.stdin and not stream.isatty()
            stream.reconfigure(**_PIPED if is_pipe else {"encoding": "utf-8", "errors": "replace"})
    try:
        settings = _check_options(options)
        if options.gguf:
            return _write_model(options)
        options.typed = options.prompt is None and sys.stdin.isatty()  # prompts come from a keyboard
        return _converse(options, settings) if options.chat else _continue_texts(options, settings)
    except KeyboardInterrupt:  # while nothing is being written: the model is loading
        print()
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeDecodeError:
        words = "what comes through the pipe is not UTF-8: save the file as UTF-8, or turn it into that on the way: {}"
        print(say(words, "iconv -f GB18030 -t UTF-8 FILE | python -m helpers.generate …"), file=sys.stderr)
        return 1
    except (RoomError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _check_options(options: argparse.Namespace) -> Settings:
    """Return the settings; raise ValueError for options that do not go together."""
    defaults = vars(_parser().parse_args(["--run", ""]))
    given = {name for name, value in vars(options).items() if value != defaults[name]}
    if options.chat:
        what, idle = "with --chat each question has one answer", given & {"line", "samples"}
    else:
        what, idle = "without --chat a text is continued", given & {"system"}
    if idle:
        names = ", ".join(f"--{name}" for name in sorted(idle))
        raise ValueError(say("{}: leave out {}", say(what), names))
    if options.samples < 1:
        raise ValueError(say("--samples is {}: ask for 1 or more", options.samples))
    model = generate.latest_model(options.run) if options.chat else "base"
    sampled = default_settings(generate.model_folder(options.run, model), options.chat)
    sampled |= {name: value for name in RANGES if (value := getattr(options, name)) is not None}
    return Settings(max_new_tokens=options.max_new_tokens, seed=options.seed, stop=tuple(options.stop), **sampled)  # type: ignore[arg-type]  # a setting that counts is an int in its range


def _write_model(options: argparse.Namespace) -> int:
    """Write the last model that the run has in llama.cpp's format; return the exit status."""
    name = generate.latest_model(options.run)
    sampling = default_settings(generate.model_folder(options.run, name), name != "base")
    print(*write_gguf(options.gguf, *generate.load(options.run, name), sampling), options.gguf, sep="\n")
    return 0


def _prompts(options: argparse.Namespace, greeting: str) -> Iterator[str]:
    """Yield the prompt of the command line, or lines as they are typed, or a pipe: its lines are questions."""
    if options.prompt is not None:
        yield options.prompt
    elif not options.typed:
        pipe = sys.stdin if options.chat else [sys.stdin.read()]
        yield from (text.removesuffix("\n") for text in pipe)
    else:
        print(greeting, file=sys.stderr)
        while True:
            try:
                yield input("› ")
            except (EOFError, KeyboardInterrupt):
                print()
                return


def _print_texts(texts: Callable[[threading.Event], Iterator[str]]) -> bool:
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


def _continue_texts(options: argparse.Namespace, settings: Settings) -> int:
    """Continue each prompt; return the exit status."""
    model, tokenizer = generate.load(options.run)
    for prompt in _prompts(options, say("Type how a text begins; Ctrl-C stops a text, Ctrl-D ends.")):
        for sample in range(options.samples):
            if sample:
                print()
            beginning = prompt + "\n" * options.line
            if not _print_texts(partial(generate.stream_text, model, tokenizer, beginning, settings, sample=sample)):
                if not options.typed:
                    return INTERRUPTED
                break
    return 0


def _converse(options: argparse.Namespace, settings: Settings) -> int:
    """Answer each question in one conversation; return the exit status."""
    model, tokenizer = generate.load(options.run, generate.latest_model(options.run))
    talk = Dialogue(model, tokenizer, options.system)
    questions = _prompts(options, say("Ask; Ctrl-C stops an answer, {} starts again, Ctrl-D ends.", NEW))
    for question in filter(str.strip, questions):
        if question.strip() == NEW:
            talk = Dialogue(model, tokenizer, options.system)
            continue
        try:
            is_whole = _print_texts(partial(talk.ask, question, settings))
        except ChatError as error:
            if not options.typed:
                raise
            print(error, file=sys.stderr)
            continue
        if talk.left_out:
            print(say("(the context is full: written without the oldest {} messages)", talk.left_out), file=sys.stderr)
        if not is_whole and not options.typed:
            return INTERRUPTED
    return 0
