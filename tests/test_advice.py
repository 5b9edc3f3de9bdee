"""Every command that a message, a help text, a notebook or the docs name can be typed: its parser reads it.

What the docs' commands do is test_docs.py's; the server's own `curl` is sent to it in serve/test_server.py.
"""

import argparse
import ast
import json
import re
import runpy
import shlex
import sys
import tomllib

import pytest

from helpers import paths
from helpers.run.parameters import choose_stages
from helpers.serve.server import server_parser

ROOT = paths.repo_root()
HELPERS, BOOKS = sorted((ROOT / "helpers").rglob("*.py")), sorted((ROOT / "notebooks").rglob("*.ipynb"))
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# a command ends with its quotation, its line, two spaces, or where the sentence goes on
COMMAND = re.compile(r"python -m (helpers[\w.]*)((?: (?!is\b|for\b|--help)[^\s`);,]+)*)")
# options of argparse, torchrun, TensorBoard, Jupyter, pip, uv, git, vLLM; what helpers.generate makes of its settings
OTHERS = {"--help", "--bind", "--directory", "--nproc-per-node", "--max-restarts", "--logdir", "--log-level",
          "--sys-prefix", "--name", "--index-url", "--quiet", "--depth", "--no-sync", "--torch-backend",
          "--served-model-name", "--temperature"}  # fmt: skip


def strings(tree):
    """Yield the texts of a module; what an f-string puts in is `…`."""
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.value


def texts():
    """Yield (file, text) of all that the program can say."""
    for file in HELPERS:
        yield from ((file, text) for text in strings(ast.parse(file.read_text("utf-8"))))
    yield from ((file, file.read_text("utf-8")) for file in DOCS)
    for file in BOOKS:
        yield from ((file, "".join(cell["source"])) for cell in json.loads(file.read_text("utf-8"))["cells"])


TEXTS = list(texts())


def found(pattern):
    """Return what a pattern finds, each once, and the first file that says it."""
    places = {}
    for file, text in TEXTS:
        for match in re.finditer(pattern, text):
            places.setdefault(match.groups() or match[0], file.relative_to(ROOT))
    return [pytest.param(what, id=f"{place}: {what}") for what, place in places.items()]


class Read(BaseException):
    """A parser has read its command line."""


@pytest.fixture
def parsed(monkeypatch):
    """Return a function that starts a module as a shell does, and ends it when its command line is read."""

    def read_by(parse):
        def read(*arguments, **named):
            raise Read(parse(*arguments, **named))

        return read

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, read_by(getattr(argparse.ArgumentParser, name)))

    def parsed(module, words):
        monkeypatch.setattr(sys, "argv", [module, *words])
        with pytest.raises(Read) as read:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        return read.value.args[0]

    return parsed


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", found(COMMAND))
def test_a_command_is_read_by_its_parser(parsed, command):
    module, rest = command
    words = shlex.split(re.sub(r"(?<=\s)…+", "train", rest).partition("  ")[0].rstrip(".:"))
    required = {"helpers.corpus": ["--run", "--json"]}
    words += [word for name in required.get(module, []) if name not in words for word in (name, "x")]
    words = words or {"helpers.train": ["x.json"], "helpers.report": ["publish", "x"]}.get(module, [])
    asked = parsed(module, words)
    if module == "helpers.run" and hasattr(asked, "stages"):
        choose_stages(asked.stages)


def test_an_option_that_is_named_exists():
    known = OTHERS | set(re.findall(r"--[a-z-]+", server_parser().format_help()))
    for file in HELPERS:  # where parsers are made
        known |= set(re.findall(r'"(--[a-z-]+)"', file.read_text("utf-8")))
    named = {option for _, text in TEXTS for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+\b(?!-)", text)}
    assert named - known == set() and "--allow-host" in named


def test_what_make_and_pip_are_told_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pips = [told for _, text in TEXTS for told in re.findall(r'pip install -e "\.\[(.+?)\]"(.{19})', text)]
    assert len(pips) > 2 and {rest for _, rest in pips} == {" -c constraints.txt"}
    extras = {extra for extra, _ in pips} - {"…"}
    for file in HELPERS:
        extras |= set(re.findall(r"\binstall\(['\"](\w+)", file.read_text("utf-8")))
    assert "text" in extras <= set(project["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    told = re.compile(r"(?:`|^)make ([a-z-]+)(?=`|$|  | [A-Z])", re.MULTILINE)
    assert {name for _, text in TEXTS for name in told.findall(text)} <= targets
