"""Figures (numbers) in prose: found in markdown, and looked for where they come from.

What is a figure, in markdown without code (spans and fenced), without addresses and HTML tags:

- a number with a decimal point, a thousands comma, a percent sign, a unit of measurement, or "million" behind it;
- any other whole number from 13 on. Smaller ones count things or number sections, and are not looked up.

What is none: the number in a name (GB18030, bf16, UTF-8, 16-bit, p95), a version (0.2.2, Python 3.11), a year, an ISO
date, an arXiv number, 100 and 1,000 and so on without a unit (round examples), 100 %, the number of a list's item, what
stands in a heading's "05 ·", in an exercise's "(★☆☆, 5 minutes)", and in the minutes and hours of the line **Time**.

A figure is true to a number of its source if that number, rounded to the figure's own digits, is the figure. A
percentage is true to a percentage or to a share (0.912 is 91 %), and not to a bare 91. "About 21,000" is rounded to its
zeros, "21,000" is not.
"""

import ast
import io
import json
import re
import tokenize
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import nbformat

UNITS = r"%|×|(?:[µmn]?s|secs?|seconds?|mins?|minutes?|hours?|times|[kKMGT]i?B|GFLOP/s|points?)(?![A-Za-z])"
SCALES = {"k": 1e3, "K": 1e3, "thousand": 1e3, "M": 1e6, "million": 1e6, "B": 1e9, "billion": 1e9}
ABOUT = r"(?:about|some|around|roughly|nearly|almost|over|under|more than|less than|up to|≈|~)\s*"
NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][-+−]?\d+)?"
FIGURE = re.compile(
    rf"(?P<about>\b{ABOUT}|≈\s*|~)?"
    rf"(?<![A-Za-z_\d.])(?<![A-Za-z]-)(?P<number>{NUMBER})(?![\d]|[.,]\d)"
    rf"(?P<scale>\s?(?:thousand|million|billion|[kKMB])(?![A-Za-z]))?"
    rf"(?P<unit>[-\s]?(?:{UNITS}))?(?P<rest>-?[A-Za-z]*)"
)
NO_PROSE = [
    r"```.*?```",  # fenced code
    r"`[^`\n]*`",  # code spans
    r"\[[^\]\n]*\]\(https?:[^)\s]*\)",  # references, with their years and numbers
    r"(?<=\])\([^)\s]*\)",  # where other links lead
    r"https?://\S+|\barXiv:\S+|\bdoi:\S+",
    r"<[^>\n]*>",
    r"^#{1,6} \d+\s·",
    r"^### Exercise.*$",
    r"^\s*(?:>\s*)?\d+[.)]\s",  # items of a list
    r"\b\d{4}-\d\d-\d\d\b",
    r"\b(?:Python|PyTorch|CUDA)\s\d+(?:\.\d+)*\+?",
    r"\bv?\d+\.\d+\.\d+(?:\.\d+)*\b",  # versions, addresses of machines
]


@dataclass(frozen=True)
class Figure:
    """A number as prose writes it."""

    text: str
    value: float
    step: float  # of its last digit
    percent: bool = False

    def is_true_to(self, number: float) -> bool:
        """Return whether the number, rounded as the figure is, gives the figure."""
        shown = abs(number) * (100 if self.percent else 1)
        return abs(shown - self.value) <= self.step / 2 * (1 + 1e-9) + 1e-12


def prose(markdown: str) -> str:
    """Return markdown without what is no prose."""
    for pattern in NO_PROSE:
        markdown = re.sub(pattern, " ", markdown, flags=re.DOTALL if "```" in pattern else re.MULTILINE)
    lines = markdown.splitlines()
    time = r"\b\d+(?:[–-]\d+)?\s(?:minutes?|hours?)"  # how long a chapter takes: the author's estimate
    return "\n".join(re.sub(time, " ", line) if "**Time" in line or "**time" in line else line for line in lines)


def figures(markdown: str) -> list[Figure]:
    """Return the figures in a piece of markdown, in their order."""
    found = []
    for match in FIGURE.finditer(prose(unescape(markdown))):
        number, unit, rest = match["number"], (match["unit"] or "").strip(" -"), match["rest"]
        if rest and (rest[0] != "-" or rest == "-bit") and not unit and not match["scale"]:
            continue  # a name: 3D, 16-bit
        scale = SCALES[match["scale"].strip()] if match["scale"] else 1
        value = float(number.replace(",", "").replace("−", "-"))
        decimals = number.partition(".")[2]
        bare = not unit and not match["scale"]
        if bare and not decimals and "e" not in number.lower():
            year = "," not in number and 1800 <= value <= 2030
            if value < 13 or year or re.fullmatch(r"10+", number.replace(",", "")):
                continue
        if unit == "%" and value == 100:
            continue
        zeros = len(number.replace(",", "")) - len(number.replace(",", "").rstrip("0")) if match["about"] else 0
        digits = re.fullmatch(r"\d+\.(\d*)(?:[eE].*)?", number)
        step = 10.0 ** -len(digits[1]) if digits else 10.0**zeros
        if "e" in number.lower():
            step *= 10.0 ** int(re.split("[eE]", number)[1].replace("−", "-"))
        text = number + (match["scale"] or "") + (match["unit"] or "")
        found.append(Figure(text.strip(), value * scale, step * scale, unit == "%"))
    return found


# ---- where figures come from ----


def numbers(text: str) -> set[float]:
    """Return all numbers in a text; 1,234 is one number and also two; "91 %" is 91 and also 0.91."""
    found = set()
    for match in re.finditer(rf"(?P<number>{NUMBER}|\d+\.)(?P<percent>\s?%)?", text):
        value = float(match["number"].replace(",", "").replace("−", "-"))
        found |= {value, value / 100} if match["percent"] else {value}
        if "," in match["number"]:
            found |= {float(part) for part in match["number"].split(",")}
    return found


def output_numbers(book: nbformat.NotebookNode) -> set[float]:
    """Return the numbers that a notebook's cells print and show, as text and as HTML without its tags."""
    found = set()
    for output in (output for cell in book.cells for output in cell.get("outputs", [])):
        texts = [output.get("text", "")]
        texts += [value for kind, value in output.get("data", {}).items() if kind in ("text/plain", "text/markdown")]
        texts += [unescape(re.sub(r"<[^>]*>", " ", value)) for value in [output.get("data", {}).get("text/html", "")]]
        for text in texts:
            found |= numbers(text)
    return found


def code_numbers(source: str) -> set[float]:
    """Return the numbers that stand in code, also in its strings and as 2**16, and not in its comments."""
    found = set()
    tree = compile(source, "cell", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NUMBER and not token.string.endswith(("j", "J")):
            found.add(float(ast.literal_eval(token.string)))
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)):
            found |= numbers(token.string)
    for node in ast.walk(tree):  # of two numbers: 2**16, 1 / 50
        if isinstance(node, ast.BinOp) and all(isinstance(side, ast.Constant) for side in (node.left, node.right)):
            left, right = node.left.value, node.right.value
            if all(isinstance(side, int | float) and abs(side) < 1e6 for side in (left, right)):
                if not isinstance(node.op, ast.Pow) or abs(right) <= 64:
                    try:
                        found.add(float(eval(ast.unparse(node), {})))
                    except (ArithmeticError, TypeError):
                        pass
    return found


def fenced(book: nbformat.NotebookNode) -> list[str]:
    """Return the fenced blocks of Python in a notebook's markdown: solutions."""
    markdown = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    return re.findall(r"^```python\n(.*?)^```$", markdown, re.DOTALL | re.MULTILINE)


def all_code_numbers(book: nbformat.NotebookNode) -> set[float]:
    """Return the numbers in all code of a notebook, its parameters and its solutions among them."""
    sources = [cell.source for cell in book.cells if cell.cell_type == "code"] + fenced(book)
    return set().union(*map(code_numbers, sources))


def report_numbers(report: Path) -> set[float]:
    """Return the numbers of a benchmark's report; curves (lists of more than a dozen) are none to be quoted."""

    def walk(value: object) -> set[float]:
        if isinstance(value, dict):
            return set().union(*map(walk, value.values()), *map(walk, value))
        if isinstance(value, list):
            return set().union(*map(walk, value)) if len(value) <= 12 else set()
        if isinstance(value, str):
            return numbers(value)
        return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()

    return walk(json.loads(report.read_text("utf-8")))


def unfounded(markdown: str, sources: set[float]) -> list[Figure]:
    """Return the figures of a piece of markdown that are true to no number of the sources."""
    return [figure for figure in figures(markdown) if not any(map(figure.is_true_to, sources))]
