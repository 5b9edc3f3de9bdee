"""All six notebooks as `make run` runs them, at a scale of seconds: on the built-in corpus, then on one's own text.

On the built-in corpus every exercise has its published solution in place, and before it, in cells of their own, some
wrong answers; on one's own text they are as committed.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import nbformat
import pytest
from exercises import SOLVED, UNSOLVED, exercises, let_through, solved, verdict_problems, with_wrong_answers
from wrong_answers import WRONG_ANSWERS

from helpers import paths
from helpers.corpus import built_in
from helpers.manifest import open_room, read_manifest

pytestmark = pytest.mark.slow
# what a room says of itself, for the rooms after it and for the report
RESULT = {
    "corpus": {"documents", "characters", "dropped", "val_documents", "val_characters", "source"},
    "vocab": {"vocab_size", "coverage"},
    "tokenize": {"tokens", "windows", "chars_per_token"},
    "train": {"steps", "seconds", "tokens_per_second", "val_loss", "val_bits_per_char", "accuracy"},
    "generate": {"longest_copy", "copied_share", "samples"},
    "serve": {"latency_ms_p50", "first_token_ms_p50"},
    "your-text": {"unfiltered_bits_per_char", "filtered_bits_per_char", "precision", "recall"},
    "recipes": {"best", "old_bits_per_char", "new_bits_per_char"},
    "chat": {"val_bits_per_char", "floor_bits_per_char", "conversations", "steps", "plain_bits_tuned"},
    "reward": {"best", "facts_seen", "facts_held_out", "steps"},
    "tools": {"right_plants_held_out", "called_plants_of_the_corpus", "steps"},
    "words": {"agreement_f1"},
    "parts": {"best", "whole_bits_per_char"},
    "scaling": {"size_power", "fitted_floor", "lowest_bits_per_char"},
    "since-llama": {"fp32_bits_per_char", "int8_bits_per_char", "joined_bits_per_char"},
    "faster": {"tokens_per_pass", "int8_bits_per_char", "int4_bits_per_char"},
    "tournament": {"best"} | {f"{kind}_bits_per_char" for kind in ("characters", "words", "bpe", "bytes")},
}
DOORS = {"sample": [*paths.SIDE_DOORS], "own": ["chat"]}


def solved_course(root: Path) -> None:
    """Copy what a run needs of the repository, with each exercise answered wrongly, then as its notebook says."""
    for name in ("helpers", "notebooks", "presets", "data", "benchmarks"):
        shutil.copytree(paths.repo_root() / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for stage in paths.NOTEBOOKS:
        path = root / paths.notebook(stage).relative_to(paths.repo_root())
        book = with_wrong_answers(solved(nbformat.read(path, as_version=4)), WRONG_ANSWERS[stage])
        nbformat.write(book, path)


def own_corpus(folder: Path) -> None:
    """Write what somebody may have: texts in one file, and conversations in a table, in an old encoding each."""
    folder.mkdir()
    text = "\n\n".join(document.text for document in islice(built_in.draw_documents(seed=1), 220))
    (folder / "我的 文章.txt").write_bytes(text.encode("gb18030"))
    first = [exchanges[0] for exchanges in islice(built_in.draw_conversations(80, seed=1), 80)]
    lines = ["问题,回答", *(f"{exchange.question},{exchange.answer}" for exchange in first)]
    (folder / "对话.csv").write_bytes("\n".join(lines).encode("gb18030"))


def run_course(runs: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m helpers.run …` from a folder that isn't the repository, with one thread: two runs share the cores.

    The notebooks are those of the folder's `solved`, where there is one.
    """
    root = cwd / "solved" if (cwd / "solved").is_dir() else paths.repo_root()
    environment = {**os.environ, "RUNS_DIR": str(runs), "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "helpers.run", "--preset", "micro", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8")


def take_course(corpus: str, folder: Path) -> dict[str, list[subprocess.CompletedProcess[str]]]:
    """Do with a corpus all that the tests are about: {what: the commands' ends}. Whether they are right, the tests say.

    The six notebooks, twice, one's own text first in Chinese, then the side doors, twice. In between, on the built-in
    corpus again with another parameter. Of the side doors one's own text opens the one that reads conversations, and
    the one that refuses it.
    """
    arguments, named, done, language = ["--run", corpus], ["--run", corpus], {}, []
    if corpus == "own":
        own_corpus(folder / "我的 语料")
        arguments += ["--corpus", "我的 语料", "-p", "vocab_size", "0", "--lessons"]  # 0: a rule decides, as by default
        language = ["--language", "zh"]
    else:
        solved_course(folder / "solved")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return run_course(folder / "runs", *words, cwd=folder)

    done["course"] = [run(*arguments, *language), run(*arguments)]
    if corpus == "own":
        done["refused"] = [run("reward", *named)]
    else:
        done["change"] = [run(*arguments, "-p", "max_new_tokens", "9")]
    done["doors"] = [run(*DOORS[corpus], *named), run(*DOORS[corpus], *named)]
    return done


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a command printed. It must not have failed, nor said anything on stderr."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, f"the terminal stays quiet: {done.stderr}"
    return done.stdout


def skipped(done: subprocess.CompletedProcess[str]) -> list[bool]:
    """Return for each stage whether its last line says that it was skipped.

    On a slow machine lines about its progress come before; what was left out, and the report, come after them all.
    """
    stages = [paths.notebook(stage).stem for stage in paths.NOTEBOOKS]
    last = {line.split()[0]: line for line in printed(done).splitlines() if line.startswith(tuple(stages))}
    return ["skipped" in line for line in last.values()]


@pytest.fixture(scope="module")
def courses(tmp_path_factory):
    """Both corpora, side by side: {corpus: (its folder, the future of `take_course`)}."""
    folders = {corpus: tmp_path_factory.mktemp("elsewhere") for corpus in ("sample", "own")}
    with ThreadPoolExecutor(2) as pool:
        yield {corpus: (folder, pool.submit(take_course, corpus, folder)) for corpus, folder in folders.items()}


@pytest.fixture(scope="module", params=["sample", "own"])
def commands(request, courses):
    """What the commands on one of the two corpora said, see `take_course`."""
    folder, taken = courses[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS_DIR", str(folder / "runs"))
        yield request.param, taken.result()


@pytest.fixture
def run(commands):
    """The name of the run."""
    return commands[0]


def test_what_has_run_is_skipped(commands):
    corpus, done = commands
    for what, stages in (("course", 6), ("doors", len(DOORS[corpus]))):
        assert [skipped(each) for each in done[what]] == [[False] * stages, [True] * stages]


@pytest.mark.parametrize("commands", ["sample"], indirect=True)
def test_a_change_runs_the_rooms_that_it_reaches(commands):
    [changed] = commands[1]["change"]
    assert skipped(changed) == [True, True, True, True, False, True]


def check_copy(run, stage):
    """Assert that an executed copy has neither an error nor a warning, and that each exercise says what it must.

    That is what is missing on one's own text, and that it is right in `sample`.
    """
    book = nbformat.read(paths.executed_copy(run, stage), as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    for exercise in exercises(book):
        assert not verdict_problems(exercise, SOLVED if run == "sample" else UNSOLVED), f"{stage} [{exercise.cell.id}]"


@pytest.mark.parametrize("stage", paths.STAGES)
def test_every_notebook_runs_to_its_end_and_each_published_solution_solves_its_exercise(run, stage):
    check_copy(run, stage)


@pytest.mark.parametrize("commands", ["sample"], indirect=True)
@pytest.mark.parametrize("stage", paths.NOTEBOOKS)
def test_each_wrong_answer_is_refused(run, stage):
    """By the check that the published solution passes; a cell that raises would have ended the run."""
    book = nbformat.read(paths.executed_copy(run, stage), as_version=4)
    found = let_through(book, WRONG_ANSWERS[stage])
    assert not found, "\n".join(found)


def test_every_room_fits_the_one_before_and_says_what_it_found(run):
    for stage in paths.STAGES:
        manifest = open_room(run, stage)
        assert set(manifest["result"]) >= RESULT[stage], f"{stage} lacks {RESULT[stage] - set(manifest['result'])}"
        assert manifest["inputs"] and manifest["parameters"]["run"] == run
    results = {stage: read_manifest(run, stage)["result"] for stage in paths.STAGES}
    assert results["train"]["steps"] > 0
    assert 250 < results["corpus"]["documents"] <= 300
    # only the built-in corpus has a known floor and known facts
    known = run == "sample"
    assert (results["train"].get("floor_bits_per_char") is not None) == known
    assert (results["generate"].get("facts_seen") is not None) == known
    assert (results["generate"].get("plain_questions") is not None) == known


def test_samples_were_written_and_are_in_the_report(run):
    lines = (paths.room(run, "generate") / "samples.jsonl").read_text("utf-8").splitlines()
    assert lines and all(json.loads(line)["text"] for line in lines)
    page = (paths.run_dir(run) / "report.html").read_text("utf-8")
    assert "What the model writes" in page
    assert all(f"id='{notebook}'" in page for notebook, _ in paths.STAGES.values())
    assert len(page) < 8_000_000


def test_a_side_door_runs_on_the_rooms_of_the_run(run):
    """By papermill, as the six: `make run` leaves it out, and what it writes changes nothing for the stages."""
    page = (paths.run_dir(run) / "report.html").read_text("utf-8")
    for side_door in DOORS[run]:
        manifest = open_room(run, side_door)
        assert set(manifest["result"]) >= RESULT[side_door] and manifest["inputs"] and manifest["outputs"]
        check_copy(run, side_door)
        assert f"id='{side_door}'" in page
    assert all(open_room(run, stage) for stage in paths.STAGES)


@pytest.mark.parametrize("commands", ["own"], indirect=True)
def test_nobody_knows_which_answers_about_ones_own_text_are_right(commands):
    [refused] = commands[1]["refused"]
    assert refused.returncode == 1 and "a reward needs a judge" in refused.stdout + refused.stderr
