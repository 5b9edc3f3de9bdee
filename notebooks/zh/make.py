"""Make the notebooks of this folder: code and outputs of the English ones, texts of the catalogues beside this file.

A catalogue, `01_corpus.md`, reads from top to bottom. A line `<!-- id fingerprint -->` stands before each
text and says which cell it translates, and what its English was at that time. The text of a code cell is a list: its
comments, in their order, then strings that it prints, `- "Right: {n}" → "对：{n}"`; all that an exercise's check can
say must be there. `make zh` writes the notebooks, or says which cells to translate anew. An output stays as
`python -m helpers.run refresh --language zh` wrote it; where code has changed since, it is the English one.
"""

import ast
import io
import json
import os
import re
import sys
import tokenize
from pathlib import Path
from typing import Any

from helpers import paths
from helpers.files import fingerprint, write_text

Catalogue = dict[str, tuple[str, str]]  # id of a cell -> fingerprint of its English, the Chinese text
_MARK = re.compile(r"^<!-- (\w+) ([0-9a-f]{8}) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))|(?<=src=\")[^\"]+(?=\")")
_TERM = re.compile(r"\[([^\]]+)\]\([./]*TERMS\.md#([a-z0-9-]+)\)")
_ROW = re.compile(r'^\| <a id="([^"]+)"></a>[^|]*\| ([^|]*?) \|', re.MULTILINE)  # of TERMS.md
_STRING = re.compile(r'^- "(.*)" → "(.*)"$', re.MULTILINE)
_PIECE = re.compile(r"""[rf]?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")  # of a string that may go over several lines
_PHRASE = re.compile(r"[A-Za-z]{2,}[ ,:;]+[A-Za-z]{2,}")
_CHECK = "# ---- check ----"  # below it is what marks an exercise
_KEPT = re.compile(r"# *(----|fmt:|noqa|isort:)")  # comments that are not for readers


def comments_of(code: str) -> list[tuple[int, int]]:
    """Return where a code cell's comments for readers begin and end."""
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    found = [token for token in tokens if token.type == tokenize.COMMENT and not _KEPT.match(token.string)]
    return [(starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1]) for t in found]


def items_of(text: str) -> list[str]:
    """Return the items of a list that translate comments, a line each."""
    return [line.removeprefix("- ") for line in _STRING.sub("", text).splitlines() if line.startswith("- ")]


def strings_of(code: str) -> dict[str, str]:
    """Return the strings of a code cell, without quotes and joined: {string: how it stands in the code}."""
    found, inside = {}, set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in inside:
                segment = ast.get_source_segment(code, node) or ""
                found["".join(piece[1:-1] for piece in _PIECE.findall(segment))] = segment
            inside |= set(ast.walk(node))
    return found


def places_of(string: str) -> list[str]:
    """Return the places {} of a string, sorted; where one chooses between two words, without these: they are said."""
    places = re.findall(r"{[^{}]*}", string)
    return sorted(re.sub(r"'[^']*'(?= if )|(?<= else )'[^']*'", "''", each) for each in places)


def said_by_checks(code: str) -> list[str]:
    """Return the strings of an exercise's check that are for readers: phrases, without what stands in their braces."""
    strings = strings_of(code.partition(_CHECK)[2]) if _CHECK in code else {}
    return [each for each in strings if _PHRASE.search(re.sub(r"{[^{}]*}", "", each)) and "\\n" not in each]


def string_faults(code: str, text: str) -> list[str]:
    """Return what is wrong with the strings of a code cell's text."""
    chinese, there, faults = dict(_STRING.findall(text)), strings_of(code), []
    for english in sorted({*said_by_checks(code), *chinese}):
        if english not in chinese:
            faults.append(f'says in English: - "{english}" → ""')
        elif english not in there:
            faults.append(f'has no string "{english}"')
        elif places_of(english) != places_of(chinese[english]):
            faults.append(f'has other places {{}} in "{chinese[english]}"')
    return faults


def read_catalogue(file: Path) -> Catalogue:
    """Return the texts of a catalogue by the ids of their cells."""
    _, *parts = _MARK.split(file.read_text("utf-8"))
    return {cell: (was, text.strip()) for cell, was, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def problems(cells: list[dict[str, Any]], catalogue: Catalogue) -> list[str]:
    """Return what a catalogue lacks for the cells of an English notebook, a line for each fault."""
    terms, found = dict(_ROW.findall((paths.repo_root() / "TERMS.md").read_text("utf-8"))), []
    for cell in cells:
        source, code = "".join(cell["source"]), cell["cell_type"] == "code"
        wanted = comments_of(source) if code else sorted(_LINK.findall(source))
        was, text = catalogue.get(cell["id"], ("", ""))
        if code and not wanted and not text and not said_by_checks(source):
            continue
        faults = [f"calls {term} {words}, TERMS.md {terms.get(term)}" for words, term in _TERM.findall(text)
                  if terms.get(term, "") not in words and words not in terms.get(term, "")]  # fmt: skip
        if was != fingerprint(source)[:8]:
            faults.append("is not translated" if not text else "has another English now")
        if code and len(items_of(text)) != len(wanted):
            faults.append(f"has {len(wanted)} comments, and the list {len(items_of(text))}")
        if code:
            faults += string_faults(source, text)
        elif sorted(_LINK.findall(text)) != wanted:
            faults.append(f"has other links: {sorted({*_LINK.findall(text)} ^ {*wanted}) or 'another number'}")
        found += [f"<!-- {cell['id']} {fingerprint(source)[:8]} --> {fault}: {source[:50]!r}" for fault in faults]
    gone = catalogue.keys() - {cell["id"] for cell in cells}
    return found + [f"{cell} is no cell of the notebook any more" for cell in sorted(gone)]


def relinked(text: str, english: Path) -> str:
    """Return a text whose relative links are those of the Chinese notebook, to other Chinese ones where there are."""

    def there(match: re.Match) -> str:
        target, hash_, anchor = match[0].partition("#")
        if not target or "://" in target:
            return match[0]
        file = Path(os.path.normpath(english.parent / target))
        if file.suffix == ".ipynb" and paths.chinese(file).with_suffix(".md").is_file():
            file = paths.chinese(file)
        elif (page := file.parent / "zh" / file.name).is_file():
            file = page
        return os.path.relpath(file, paths.chinese(english).parent).replace(os.sep, "/") + hash_ + anchor

    return _LINK.sub(there, text)


def in_chinese(code: str, text: str) -> str:
    """Return a code cell with the comments and the strings of its text."""
    for (start, end), words in reversed(list(zip(comments_of(code), items_of(text), strict=True))):
        code = f"{code[:start]}# {words}{code[end:]}"
    for english, chinese in _STRING.findall(text):
        segment = strings_of(code)[english]
        form = "f" * isinstance(ast.parse(f"({segment})", mode="eval").body, ast.JoinedStr)
        new = f"{form}{segment[-1]}{chinese}{segment[-1]}"
        here = re.escape(segment)
        if re.search("(?<!== )" + here, code):
            here = "(?<!== )" + here  # one that is compared stays, unless it stands nowhere else: `verdict[0] == "R"`
        code = re.sub(here, lambda _, new=new: new, code)
    return code


def translated(notebook: dict[str, Any], catalogue: Catalogue, english: Path) -> dict[str, Any]:
    """Return the Chinese notebook: the English one, with other texts, comments and strings, and outputs of its own."""
    file, cells = paths.chinese(english), []
    before = json.loads(file.read_text("utf-8"))["cells"] if file.is_file() else []
    ran = {(cell["id"], ast.dump(ast.parse("".join(cell["source"])))): cell for cell in before if "outputs" in cell}
    for cell in notebook["cells"]:
        source, text = "".join(cell["source"]), catalogue.get(cell["id"], ("", ""))[1]
        if cell["cell_type"] == "markdown":
            new, source = cell, relinked(text, english)
        else:
            source = in_chinese(source, text)
            outputs = ran.get((cell["id"], ast.dump(ast.parse(source))), cell)["outputs"]
            new = cell | {"outputs": outputs}
        cells.append(new | {"source": source.splitlines(keepends=True)})
    return notebook | {"cells": cells}


def main() -> int:
    """Write the Chinese notebook of each catalogue that fits its English; return how many faults there are."""
    notebooks, faults = paths.repo_root() / "notebooks", 0
    for english in sorted([*notebooks.glob("*.ipynb"), *notebooks.glob("deeper/*.ipynb")]):
        if not (file := paths.chinese(english).with_suffix(".md")).is_file():
            continue
        notebook, catalogue = json.loads(english.read_text("utf-8")), read_catalogue(file)
        if found := problems(notebook["cells"], catalogue):
            faults += len(found)
            print(f"{file.relative_to(notebooks)}:", *found, sep="\n  ", file=sys.stderr)
        else:
            chinese = translated(notebook, catalogue, english)
            write_text(paths.chinese(english), json.dumps(chinese, ensure_ascii=False, indent=1) + "\n")
    return faults


if __name__ == "__main__":
    sys.exit(min(main(), 1))
