"""What only teaches is left out of a run of one's own text: the rest needs none of it, and makes the same rooms."""

import subprocess
import sys

import nbformat
import pytest

from helpers import paths
from helpers.manifest import read_manifest
from helpers.run.lessons import LESSON, stage_notebook

ROOMS = ["corpus", "vocab", "tokenize", "train"]


def code_of(book):
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("stage", paths.STAGES)
def test_what_is_no_lesson_needs_none(stage, tmp_path):
    kept = stage_notebook(stage, lessons=False)
    assert 0 < len(code_of(kept)) < len(code_of(stage_notebook(stage, lessons=True)))
    nbformat.write(kept, tmp_path / "kept.ipynb")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path / "kept.ipynb")]
    done = subprocess.run(ruff, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("stage", paths.STAGES)
def test_exercises_are_lessons_and_parameters_are_none(stage):
    for cell in stage_notebook(stage, lessons=True).cells:
        tags = set(cell.metadata.get("tags", []))
        assert LESSON in tags or "exercise" not in tags
        assert LESSON not in tags or "parameters" not in tags


@pytest.mark.slow
def test_the_rooms_are_the_same_with_lessons_and_without(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    text = tmp_path / "own.txt"
    text.write_text("\n".join(f"第{n}盆绿萝放在窗边，{n % 7}天浇一次水，叶子很绿。" for n in range(200)), "utf-8")
    made = {}
    for run, options in {"a": [], "b": ["--lessons"]}.items():
        words = [*ROOMS, "--run", run, "--corpus", str(text), "--preset", "micro", *options]
        done = subprocess.run([sys.executable, "-m", "helpers.run", *words], capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr
        manifests = [read_manifest(run, stage)["outputs"] for stage in ROOMS]
        made[run] = {name: sha for outputs in manifests for name, sha in outputs.items()}
        cells = nbformat.read(paths.executed_copy(run, "train"), as_version=4).cells
        assert any(LESSON in cell.metadata.get("tags", []) for cell in cells) == (run == "b")
    assert made["a"] == made["b"] and any("final_model" in name for name in made["a"])
