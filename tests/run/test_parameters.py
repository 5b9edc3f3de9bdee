"""What a command runs and with which parameters, and what it refuses before anything runs."""

import re
from pathlib import Path

import pytest

from helpers import paths
from helpers.corpus.download import CORPORA
from helpers.run import parameters
from helpers.run.__main__ import main
from helpers.run.parameters import Refused, choose_stages


def preset(house, text):
    (house / "presets" / "small.yaml").write_text(text, "utf-8")


def plan(stages=(), corpus=None, preset=None, **settings):
    presets = [] if preset is None else [preset] if isinstance(preset, str) else preset
    return parameters.plan(choose_stages(list(stages)), "r", corpus, presets, settings.items())


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


def test_a_preset_in_another_encoding_is_refused_in_words(house, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes("vocab:\n  size: 9  # 词表".encode("gb18030"))
    with pytest.raises(Refused, match="mine.yaml is not readable YAML"):
        plan(["vocab"], preset=str(file))


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
    with pytest.raises(Refused, match="notebook 01 is not to run"):  # else the old corpus would be taken in silence
        plan(["vocab"], corpus="诗 词.txt")


def test_what_is_refused_leaves_no_trace(house, capsys):
    assert main(["--run", "r", "-p", "sise", "3"]) == 2
    assert main(["--run", "../r"]) == 2
    assert main(["tournament", "--run", "r"]) == 2
    assert main(["verify", "--run", "r", "-p", "size", "3"]) == 2
    assert main(["verify", "--run", "r", "--halving"]) == 2
    assert main(["--run", "r", "--corpus", ""]) == 2
    assert main(["refresh", "--corpus", "c.txt"]) == 2
    assert main(["refresh", "--run", "r"]) == 2
    assert main(["corpus", "verify", "--run", "r"]) == 2
    errors = capsys.readouterr().err
    assert "verify takes no -p" in errors and "refresh takes no --corpus" in errors
    assert "refresh takes no --run" in errors
    assert "verify takes no --halving" in errors and "the name of the corpus is empty" in errors
    assert errors.count("nothing was run") == 9 and "verify stands alone" in errors and "there is no run 'r'" in errors
    assert not paths.runs_dir().exists()


def test_a_folder_that_cannot_be_written_gets_a_sentence(house, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "file" / "runs"))
    assert main(["corpus", "--run", "r"]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and "Traceback" not in error


def test_what_is_on_the_net_is_no_path(house):
    for source in ("https://example.org/a.jsonl.gz", "hf:owner/name", *list(CORPORA)[:1]):
        assert plan(corpus=source)["corpus"]["source"] == source
    assert plan(corpus="books/*.txt")["corpus"]["source"] == str(Path.cwd() / "books/*.txt")


def test_files_that_the_user_brings_are_found_from_where_the_command_is_called(tmp_path, monkeypatch):
    """A kernel may work in another folder, and a room remembers which file it read."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=rf"vocab_file: {re.escape(str(tmp_path))}.*我的\.txt does not exist"):
        parameters.plan(["vocab"], "r", None, [], [("vocab_file", "我的.txt")])
    (tmp_path / "我的.txt").write_text("绿萝", "utf-8")
    for given in ("我的.txt", "*.txt"):
        values = parameters.plan(["vocab"], "r", None, [], [("vocab_file", given)])
        assert values["vocab"]["vocab_file"] == str(tmp_path / given)
    assert parameters.plan(["vocab"], "r", None, [], [])["vocab"]["vocab_file"] == ""
