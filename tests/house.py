"""A repository of stand-in notebooks that take a second, for the tests of the runner and of the report."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers import paths
from helpers.manifest import SETTINGS

CORPUS = """
from pathlib import Path
from helpers import paths
from helpers.manifest import write_manifest
folder = paths.room(run, "corpus"); folder.mkdir(parents=True, exist_ok=True)
files = [] if source == "sample" else [Path(source)] if Path(source).is_file() else sorted(Path(source).glob("*.txt"))
text = "".join(file.read_text("utf-8") for file in files) or "花\\n"
(folder / "train-00000.jsonl").write_text(text[:size], "utf-8")
values = {"run": run, "source": source, "size": size, "ratio": ratio, "deep": deep, "words": words, "limit": limit}
_ = write_manifest(run, "corpus", parameters=values, inputs=files, outputs=[folder / "train-00000.jsonl"],
                         result={"documents": len(text), "characters": 12345, "deep": deep})
print(sorted(values))
"""
VOCAB = """
from helpers import paths
from helpers.manifest import open_room, write_manifest
open_room(run, "corpus")
folder = paths.room(run, "vocab"); folder.mkdir(parents=True, exist_ok=True)
(folder / "vocab_user.txt").write_text("花\\n", "utf-8")
_ = write_manifest(run, "vocab", parameters={"run": run, "size": size},
                         inputs=[paths.room(run, "corpus") / "train-00000.jsonl"],
                         outputs=[folder / "vocab_user.txt"], result={"vocab_size": size})
"""
TOURNAMENT = """
from helpers import paths
from helpers.manifest import open_room, write_manifest
open_room(run, "vocab")
folder = paths.room(run, "tournament"); folder.mkdir(parents=True, exist_ok=True)
(folder / "words.jsonl").write_text("{}\\n", "utf-8")
_ = write_manifest(run, "tournament", parameters={"run": run, "seconds": seconds},
                         inputs=[paths.room(run, "vocab") / "vocab_user.txt"],
                         outputs=[folder / "words.jsonl"], result={"words_bits_per_char": 3.25})
"""
EMPTY = '# parameters\nrun: str = "sample"  # name of the run\n'
HOUSE = {
    "corpus": (
        EMPTY + 'source: str = "sample"\nsize: int = 100\nratio: float = 0.5\ndeep: bool = False\n'
        "words: list = []\nlimit: int | None = None",
        CORPUS,
    ),
    "vocab": (EMPTY + "size: int = 50", VOCAB),
    "train": (EMPTY + "epochs: int = 1\nlr: float = 1.0e-3", "# divide\nx = 1\nx / 0"),
    "serve": (EMPTY, "import os\nos._exit(9)"),
    "tournament": (EMPTY + "seconds: float = 4.0", TOURNAMENT),
}


def write_cell(stage, source="", more="", parameters="", **metadata):
    """Put other code into the last cell of a stand-in notebook, or more behind it; and other parameters before it."""
    book = nbformat.read(paths.notebook(stage), as_version=4)
    book.metadata |= metadata
    book.cells[1].source = parameters or book.cells[1].source
    book.cells[2].source = (source or book.cells[2].source) + more
    nbformat.write(book, paths.notebook(stage))


def make_house(root):
    """Write the stand-in notebooks of all stages and side doors below `root`; `paths.repo_root` must return it."""
    for folder in ("notebooks/deeper", "presets"):
        (root / folder).mkdir(parents=True)
    for file, name in SETTINGS.values():  # their cells hold all that can be set
        (root / "helpers" / file).parent.mkdir(parents=True)
        (root / "helpers" / file).write_text(f"class {name}: pass\n", "utf-8")
    for stage in paths.NOTEBOOKS:
        parameters, code = HOUSE.get(stage, (EMPTY, "pass"))
        cells = [
            new_markdown_cell(f"# {stage} 一步 $x$ [docs](https://example.org)"),
            new_code_cell(parameters, metadata={"tags": ["parameters"]}),
            new_code_cell(code.strip()),
        ]
        nbformat.write(new_notebook(cells=cells), paths.notebook(stage))
