"""An old name is refused with the new one, in a preset, in a sweep and on the command line."""

import pytest

from helpers import paths
from helpers.manifest import notebook_parameters
from helpers.run.__main__ import main
from helpers.run.old_names import GONE, NEW_NAMES, explain

KNOWN = {name for stage in paths.NOTEBOOKS for name in notebook_parameters(stage)}


def test_each_new_name_is_a_parameter_and_no_old_one_is():
    assert set(NEW_NAMES.values()) <= KNOWN
    assert not (NEW_NAMES.keys() | GONE.keys()) & KNOWN and not NEW_NAMES.keys() & GONE.keys()


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("learning_rate", "learning_rate is called lr here"),
        ("hidden_size", "hidden_size is called n_embd here"),
        ("min_lr", "give final_lr_fraction, which is min_lr / lr"),  # a rate there, a fraction here
        ("output_dir", "name it with --run"),
        ("learnin", "did you mean"),
    ],
)
def test_it_is_said_wherever_the_name_stands(old, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "old.yaml").write_text(f"train:\n  {old}: 3\n", "utf-8")
    (tmp_path / "sweep.yaml").write_text(f"{old}: [3, 4]\n", "utf-8")
    assert words in explain(old, ["learning"])
    if "did you mean" not in words:
        for command in (["-p", old, "3"], ["--preset", "old.yaml"], ["--sweep", "sweep.yaml"]):
            assert main(command) == 2
            assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
