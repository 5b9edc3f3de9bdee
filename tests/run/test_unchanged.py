"""Stages that have finished with the same parameters, inputs and notebook are skipped, others run."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from house import make_house

from helpers import paths
from helpers.manifest import read_manifest
from helpers.paths import executed_copy
from helpers.run.__main__ import main


def executed(stage):
    return nbformat.read(executed_copy("r", stage), as_version=4)


TWO = ["corpus", "vocab", "--run", "r", "--corpus", "c"]


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory):
    """Run two stages on a folder of one file; return the folder of it all, and a copy of its state."""
    folder = tmp_path_factory.mktemp("two") / "state"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "一.txt").write_text("明月几时有", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RUNS_DIR", folder / "runs"), ("PYTHONPATH", Path(__file__).parents[2])):
            patch.setenv(name, str(value))
        for name in ("HEADLESS", "TQDM_DISABLE"):
            patch.setenv(name, "")
        patch.setattr(paths, "repo_root", lambda: folder / "house")
        patch.chdir(folder)
        make_house(folder / "house")
        assert main(TWO) == 0
        shutil.copytree(folder, folder.parent / "finished")
        yield folder, folder.parent / "finished"


@pytest.fixture
def skipped(two_stages, capsys):
    """A function that runs the two stages again, and returns for each whether it was skipped; both have finished."""
    folder, finished = two_stages
    for name in ("c", "house", "runs"):
        shutil.rmtree(folder / name)
        shutil.copytree(finished / name, folder / name)

    def run_again(*more):
        capsys.readouterr()
        assert main([*TWO, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["01_corpus", "02_vocab", "report"]
        return ["skipped" in line for line in lines[:2]]

    return run_again


@pytest.mark.slow
def test_two_finished_stages_are_skipped(skipped):
    source = str(Path("c").resolve())
    assert read_manifest("r", "corpus")["parameters"]["source"] == source
    assert executed("corpus").metadata.papermill.parameters == {"run": "r", "source": source}
    assert skipped() == [True, True]
    assert os.environ["HEADLESS"] == "1"


@pytest.mark.slow
def test_force_runs_them_again(skipped):
    assert skipped("--force") == [False, False]


@pytest.mark.slow
def test_a_parameter_that_changes_no_file_and_no_figure_runs_its_own_stage_only(skipped):
    assert skipped("-p", "ratio", "0.25") == [False, True]
    assert skipped() == [False, True]  # back to the default


@pytest.mark.slow
def test_other_figures_of_the_same_files_run_the_next_stage(skipped):
    assert skipped("-p", "deep", "true") == [False, False]
    assert skipped() == [False, False]


@pytest.mark.slow
def test_a_changed_source_file_runs_both(skipped):
    Path("c/一.txt").write_text("明月几时有?", "utf-8")
    assert skipped() == [False, False]


@pytest.mark.slow
def test_a_new_source_file_runs_both(skipped):
    Path("c/二.txt").write_text("把酒问青天", "utf-8")
    assert skipped() == [False, False]


@pytest.mark.slow
def test_a_missing_output_runs_its_stage(skipped):
    (paths.room("r", "vocab") / "vocab_user.txt").unlink()
    assert skipped() == [True, False]


@pytest.mark.slow
def test_a_changed_notebook_runs_its_stage(skipped):
    book = nbformat.read(paths.notebook("vocab"), as_version=4)
    book.cells[2].source += "\nx = 1"
    nbformat.write(book, paths.notebook("vocab"))
    assert skipped() == [True, False]
    assert skipped() == [True, True]


@pytest.mark.slow
def test_a_side_door_runs_on_the_rooms_of_a_run_and_is_skipped_and_verified_like_a_stage(skipped, capsys):
    for words in ("bits per character 3.25", "skipped"):
        assert main(["tournament", "--run", "r"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["tournament", "report"] and words in lines[0]
    assert executed("tournament").metadata.papermill.parameters == {"run": "r"}
    page = (paths.run_dir("r") / "report.html").read_text("utf-8")
    assert "<a href='#tournament'>tournament</a>" in page and "id='tournament'" in page
    assert skipped() == [True, True]
    assert main(["verify", "--run", "r"]) == 0
    assert "tournament    fits  1 files as written, 1 files as read" in capsys.readouterr().out
    (paths.room("r", "vocab") / "vocab_user.txt").write_text("另\n", "utf-8")
    assert main(["verify", "--run", "r"]) == 1
    assert "since tournament read it: run notebook deeper/tournament again" in capsys.readouterr().out
