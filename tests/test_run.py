"""The runner, on stand-in notebooks that take a second: what it refuses, runs, skips, and says when a cell fails."""

import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from house import make_house
from nbformat.v4 import new_notebook

from helpers import paths, run
from helpers.corpus.download import CORPORA
from helpers.manifest import MANIFEST, read_manifest, write_manifest
from helpers.paths import executed_copy
from helpers.run import WIDGET_VIEW, Refused, choose_stages, main, remember


def preset(house, text):
    (house / "presets" / "small.yaml").write_text(text, "utf-8")


def plan(stages=(), corpus=None, preset=None, **settings):
    return run.plan(choose_stages(list(stages)), "r", corpus, preset, settings.items())


# ---- what to run ----


@pytest.mark.parametrize("word", ["train", "04", "04_train", "04_train.ipynb"])
def test_a_stage_goes_by_its_noun_its_number_or_its_notebook(word):
    assert choose_stages([word]) == ["train"]


def test_stages_run_in_the_order_of_the_course_and_all_of_them_by_default():
    assert choose_stages(["generate", "01"]) == ["corpus", "generate"]
    assert choose_stages([]) == list(paths.STAGES)


@pytest.mark.parametrize("word", ["tournament", "deeper/tournament", "deeper/tournament.ipynb"])
def test_a_side_door_runs_only_when_it_is_named_and_after_the_stages(word):
    assert choose_stages([word]) == ["tournament"]
    assert choose_stages([word, "vocab"]) == ["vocab", "tournament"]
    assert "tournament" not in choose_stages([])


def test_a_misspelt_stage_is_refused_with_the_closest_one():
    with pytest.raises(Refused, match="no stage is called 'trian'; did you mean 'train'?"):
        choose_stages(["trian"])


def test_later_sources_of_a_value_win(house):
    preset(house, "corpus:\n  size: 7\n  ratio: 2\nvocab:\n  size: 8\ntrain:\n")
    values = plan(["corpus", "vocab"], preset="small", size="9")
    assert values["corpus"] | values["vocab"] == values["corpus"]  # -p reaches every notebook that has the name
    assert values["corpus"] == {
        "run": "r", "source": "sample", "size": 9, "ratio": 2.0, "deep": False, "words": [], "limit": None,
    }  # fmt: skip
    assert plan(preset="small")["vocab"] == {"run": "r", "size": 8}
    preset(house, "tournament:\n  seconds: 3\n")
    assert plan(["tournament"], preset="small", seconds="2") == {"tournament": {"run": "r", "seconds": 2.0}}


def test_words_of_the_command_line_take_the_type_of_the_default(house):
    values = plan(ratio="1e-3", deep="true", words="[一, 二]", limit="5", source="sample")["corpus"]
    assert (values["ratio"], values["deep"], values["words"], values["limit"]) == (1e-3, True, ["一", "二"], 5)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"sise": "3"}, "did you mean 'size'"),
        ({"size": "3.5"}, "size is '3.5', str, but the notebook's default 100 is int"),
        ({"size": "true"}, "is 'true', str"),
        ({"deep": "1"}, "is 1, int, but the notebook's default False is bool"),
        ({"x; import os": "3"}, "no notebook that is to run has it"),
        ({"run": "other"}, "--run"),
        ({"epochs": "3"}, "no notebook that is to run has it"),
    ],
)
def test_an_unknown_name_or_a_wrong_type_is_refused(house, settings, words):
    with pytest.raises(Refused, match=re.escape(words)):
        plan(["corpus", "vocab"], **settings)


@pytest.mark.parametrize(
    "text, words",
    [
        ("train:\n  lr: 1e-3", "write 1.0e-3"),
        ("train:\n  lr: fast", "lr is 'fast', str"),
        ("train:\n  epochs: true", "epochs is True, bool"),
        ("train:\n  epochs: 2.0", "epochs is 2.0, float"),
        ("train:\n  epoch: 2", "did you mean 'epochs'"),
        ("training:\n  epochs: 2", "did you mean 'train'"),
        ("tournament:\n  second: 2", "did you mean 'seconds'"),
        ("corpus:\n  source: 12", "put it in quotes"),
        ("corpus:\n  run: a", "with --run"),
        ("train: 3", "expected lines like"),
        ("- train", "one section per stage"),
        ("train: {", "not readable YAML"),
    ],
)
def test_a_preset_is_checked_whole_before_anything_runs(house, text, words):
    """Numbers that arrive as text ('32' x 512) were one fault of the old notebooks: here they never reach a kernel."""
    preset(house, text)
    with pytest.raises(Refused, match=re.escape(words)):
        plan(["vocab"], preset="small")


def test_a_preset_is_found_by_name_or_by_path(house, tmp_path):
    preset(house, "vocab:\n  size: 8\n")
    elsewhere = tmp_path / "another.yaml"
    elsewhere.write_text("vocab:\n  size: 9\n", "utf-8")
    assert plan(["vocab"], preset="small")["vocab"]["size"] == 8
    assert plan(["vocab"], preset=str(elsewhere))["vocab"]["size"] == 9
    with pytest.raises(Refused, match="did you mean 'small'"):
        plan(preset="smal")


def test_a_relative_corpus_is_the_callers_and_must_exist(house):
    Path("诗 词.txt").write_text("花", "utf-8")
    assert plan(corpus="诗 词.txt")["corpus"]["source"] == str(Path.cwd() / "诗 词.txt")
    with pytest.raises(Refused, match="does not exist"):
        plan(corpus="nothing.txt")


def test_what_is_refused_leaves_no_trace(house, capsys):
    assert main(["--run", "r", "-p", "sise", "3"]) == 2
    assert main(["--run", "../r"]) == 2
    assert main(["tournament", "--run", "r"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("nothing was run") == 3 and "there is no run 'r'" in errors
    assert not paths.runs_dir().exists()


# ---- running, skipping, failing ----


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
        for name, value in (("RUNS_DIR", folder / "runs"), ("PYTHONPATH", Path(__file__).parent.parent)):
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


@pytest.mark.slow
def test_a_kernel_is_of_this_very_interpreter(house):
    book = nbformat.read(paths.notebook("generate"), as_version=4)
    book.metadata["kernelspec"] = {"name": "some-other", "display_name": "x", "language": "python"}
    book.cells[2].source = "import sys; print(sys.executable)"
    nbformat.write(book, paths.notebook("generate"))
    assert main(["generate", "--run", "r"]) == 0
    assert executed("generate").cells[-1].outputs[0].text.strip() == sys.executable


@pytest.mark.slow
def test_a_failing_cell_is_reported_in_four_lines(house, capsys):
    assert main(["train", "generate", "--run", "r"]) == 1
    out, err = capsys.readouterr()
    assert "failed after" in out and "05_generate" not in out
    assert "04_train.ipynb, cell [3]: x = 1" in err and "ZeroDivisionError: division by zero" in err
    assert str(executed_copy("r", "train")) in err and "Traceback" not in err and len(err.splitlines()) == 3
    assert any(output.output_type == "error" for output in executed("train").cells[-1].outputs)


@pytest.mark.slow
def test_a_kernel_that_dies_is_reported_too(house, capsys):
    assert main(["serve", "--run", "r"]) == 1
    assert "the kernel died" in capsys.readouterr().err


@pytest.mark.slow
def test_refresh_writes_clean_outputs_in_place(house, monkeypatch):
    monkeypatch.delenv("RUNS_DIR")
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    book.metadata["widgets"] = {}
    before = [(cell.id, cell.source, dict(cell.metadata)) for cell in book.cells]
    book.cells[2].source += f"\nfrom IPython.display import display\ndisplay({{'{WIDGET_VIEW}': {{}}}}, raw=True)"
    nbformat.write(book, paths.notebook("corpus"))
    assert main(["refresh", "corpus"]) == 0
    book = nbformat.read(paths.notebook("corpus"), as_version=4)
    assert [(cell.id, dict(cell.metadata)) for cell in book.cells] == [(a, c) for a, _, c in before]
    assert [cell.execution_count for cell in book.cells[1:]] == [1, 2]
    assert [output.output_type for output in book.cells[2].outputs] == ["stream"]
    assert "language_info" not in book.metadata
    assert not (house / "runs").exists()
    monkeypatch.delenv("RUNS_DIR")


@pytest.mark.slow
def test_refresh_leaves_a_failing_notebook_as_it_was(house, capsys):
    before = paths.notebook("train").read_bytes()
    assert main(["refresh", "04"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err and paths.notebook("train").read_bytes() == before


# ---- does it all still fit together? ----


def write_room(stage, name, text, inputs, **result):
    """Write a finished room of one file, and the executed copy of its notebook, as a run does."""
    file = paths.room("r", stage) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    write_manifest("r", stage, parameters={"run": "r"}, inputs=inputs, outputs=[file], result=result)
    executed_copy("r", stage).parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(), executed_copy("r", stage))
    remember("r", stage)


@pytest.fixture
def finished(house, capsys):
    """Make a run of two rooms from a file outside."""
    source = Path("c.txt").resolve()
    source.write_text("明月几时有", "utf-8")
    write_room("corpus", "train-00000.jsonl", "明月\n", [source], documents=5)
    write_room("vocab", "vocab_user.txt", "花\n", [paths.room("r", "corpus") / "train-00000.jsonl"], vocab_size=9)

    def verdict():
        code = main(["verify", "--run", "r"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 7 and (code == 0) == (lines[-1] == "all belong together")
        return {line[:2]: line for line in lines[:6] if line[14:16] == "NO"}

    return verdict


def test_a_run_that_nobody_touched_belongs_together(finished):
    assert finished() == {}


def test_a_flipped_byte_is_found_in_the_room_and_in_the_one_made_from_it(finished):
    shard = paths.room("r", "corpus") / "train-00000.jsonl"
    data = bytearray(shard.read_bytes())
    data[1] ^= 1
    shard.write_bytes(data)
    off = finished()
    assert set(off) == {"01", "02"}
    assert "corpus/train-00000.jsonl has changed since 01_corpus wrote it" in off["01"]
    assert "python -m helpers.run corpus --run r" in off["01"]
    assert "since 02_vocab read it: run notebook 02_vocab again" in off["02"]


def test_a_replaced_tokenizer_and_a_missing_file_are_found(finished):
    words = paths.room("r", "vocab") / "vocab_user.txt"
    words.write_text("另\n", "utf-8")
    assert "vocab/vocab_user.txt has changed since 02_vocab wrote it" in finished()["02"]
    words.unlink()
    assert set(off := finished()) == {"02"} and "vocab/vocab_user.txt is missing" in off["02"]


def test_a_changed_source_file_is_found(finished):
    Path("c.txt").write_text("明月几时有？", "utf-8")
    assert set(off := finished()) == {"01"} and "c.txt has changed since 01_corpus read it" in off["01"]


def test_a_room_made_again_leaves_the_next_one_behind(finished):
    write_room("corpus", "train-00000.jsonl", "明\n", [Path("c.txt").resolve()], documents=5)
    assert set(off := finished()) == {"02"} and "since 02_vocab read it" in off["02"]


def test_other_figures_of_the_same_files_are_a_change_too(finished):
    write_room("corpus", "train-00000.jsonl", "明月\n", [Path("c.txt").resolve()], documents=7)
    assert set(off := finished()) == {"02"} and "has found other figures since (documents 5 -> 7)" in off["02"]


def test_a_torn_manifest_and_a_room_that_went_are_found(finished):
    manifest = paths.room("r", "corpus") / MANIFEST
    text = manifest.read_text("utf-8")
    manifest.write_text(text[: len(text) // 2], "utf-8")
    assert "not readable JSON" in finished()["01"]
    manifest.unlink()
    assert "not made yet" in finished()["01"]


def test_a_run_that_is_not_there_cannot_be_verified(house, capsys):
    assert main(["verify", "--run", "nobody"]) == 2
    assert "there is no run 'nobody'" in capsys.readouterr().err


def test_what_is_on_the_net_is_no_path(house):
    for source in ("https://example.org/a.jsonl.gz", "hf:owner/name", *list(CORPORA)[:1]):
        assert plan(corpus=source)["corpus"]["source"] == source
    assert plan(corpus="books/*.txt")["corpus"]["source"] == str(Path.cwd() / "books/*.txt")
