"""What a command runs and with which parameters, and what it refuses before anything runs."""

import re
from pathlib import Path

import pytest

from helpers import paths
from helpers.corpus.download import CORPORA
from helpers.manifest import notebook_parameters
from helpers.run.__main__ import main, read_command_line
from helpers.run.parameters import Refused, choose_stages, plan_parameters
from helpers.wording import FOREIGN


def preset(house, text):
    (house / "presets" / "small.yaml").write_text(text, "utf-8")


def plan(stages=(), corpus=None, preset=None, **settings):
    presets = [] if preset is None else [preset] if isinstance(preset, str) else preset
    return plan_parameters(choose_stages(list(stages)), "r", corpus, presets, settings.items())


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        *(([word], ["train"]) for word in ("train", "04", "04_train", "04_train.ipynb")),
        (["generate", "01"], ["corpus", "generate"]),  # in the course's order
        ([], list(paths.STAGES)),  # no side door that is not named
        *(([word, "vocab"], ["vocab", "tournament"]) for word in ("tournament", "deeper/tournament.ipynb")),
    ],
)
def test_a_stage_goes_by_its_noun_its_number_or_its_notebook(words, stages):
    assert choose_stages(words) == stages


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
    with pytest.raises(Refused, match="ratio is '1e-3x', str, but the notebook's default 0.5 is float$"):  # no advice
        plan(ratio="1e-3x")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["-p", "sise", "3"], "did you mean 'size'"),
        (["-p", "size", "3.5"], "size is '3.5', str, but the notebook's default 100 is int"),
        (["-p", "deep", "1"], "is 1, int, but the notebook's default False is bool"),
        (["-p", "x; import os", "3"], "no notebook that is to run has it"),
        (["corpus", "-p", "epochs", "3"], "no notebook that is to run has it"),
        (["-p", "run", "other"], "--run"),
        (["--run", "../r"], "cannot name a run"),
        (["tournament", "--run", "r"], "there is no run 'r'"),
        (["--corpus", ""], "the name of the corpus is empty"),
        (["--corpus", "nothing.txt"], "does not exist"),
        (["vocab", "--corpus", "books/*.txt"], "notebook 01 is not to run"),  # else the old corpus would be taken
        (["--preset", "smal"], "no preset 'smal'"),
        (["trian"], "no stage is called 'trian'; did you mean 'train'?"),
    ],
)
def test_what_is_refused_leaves_no_trace(house, capsys, command, words):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("nothing was run: ") and words in error and not paths.runs_dir().exists()


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
        ("train: 3", "expected `name: value`"),
        ("- train", "a section per stage"),
        ("train: {", "not readable YAML"),
        ("train:\n  epochs: 2\ntrain:\n  lr: 0.1", "'train' stands twice"),
        ("train:\n  epochs: 2\n  epochs: 3", "'epochs' stands twice"),
        ("? [train, vocab]\n: 3", "not readable YAML"),
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
    elsewhere.write_bytes("vocab:\n  size: 9  # 词表".encode("gb18030"))
    with pytest.raises(Refused, match="another.yaml is not readable YAML"):
        plan(["vocab"], preset=str(elsewhere))


def test_stages_and_options_come_in_any_order(house):
    command = ["--run", "r", "corpus", "-p", "size", "9", "vocab"]
    assert read_command_line(command).stages == read_command_line(["run", *command]).stages == ["corpus", "vocab"]


def test_the_parameters_of_a_notebook_are_listed(house, capsys):
    assert main(["parameters", "vocab"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "02_vocab" and [line.split()[:2] for line in lines] == [["run", "'sample'"], ["size", "50"]]


def test_a_folder_that_cannot_be_written_gets_a_sentence(house, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "file" / "runs"))
    assert main(["corpus", "--run", "r"]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and "Traceback" not in error


def test_a_relative_corpus_is_the_callers_and_what_is_on_the_net_is_no_path(house):
    Path("诗 词.txt").write_text("花", "utf-8")
    for source in ("诗 词.txt", "books/*.txt"):
        assert plan(corpus=source)["corpus"]["source"] == str(Path.cwd() / source)
    for source in ("https://example.org/a.jsonl.gz", "hf:owner/name", *list(CORPORA)[:1]):
        assert plan(corpus=source)["corpus"]["source"] == source


def test_a_file_that_the_user_brings_is_found_from_where_the_command_is_called(tmp_path, monkeypatch):
    """A kernel may work in another folder, and a room remembers which file it read."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=rf"vocab_file: {re.escape(str(tmp_path))}.*我的\.txt does not exist"):
        plan(["vocab"], vocab_file="我的.txt")
    Path("我的.txt").write_text("绿萝", "utf-8")
    for given in ("我的.txt", "*.txt"):
        assert plan(["vocab"], vocab_file=given)["vocab"]["vocab_file"] == str(tmp_path / given)
    assert plan(["vocab"])["vocab"]["vocab_file"] == ""


# ---- names of other programs ----


def test_a_foreign_name_is_none_of_ours_and_what_is_said_instead_is():
    known = {name for stage in paths.NOTEBOOKS for name in notebook_parameters(stage)}
    assert not FOREIGN.keys() & known
    assert all(re.match(r"[\w-]+", ours)[0] in {*known, "--run"} for ours in FOREIGN.values())


def test_a_foreign_name_is_refused_with_ours(house):
    preset(house, "train:\n  learning_rate: 3\n")
    for given in (dict(preset="small"), dict(learning_rate="3")):
        with pytest.raises(Refused, match="here it is lr"):
            plan(["train"], **given)
