"""export: the documents of a run leave the house as train.json, by one command."""

import json
import os
import subprocess
import sys

import pytest
from corpora import PROSE, build

from helpers import paths
from helpers.corpus.export import main
from helpers.corpus.shards import read_texts
from helpers.manifest import write_manifest


@pytest.fixture
def corpus(raw):
    (raw / "a.txt").write_text(PROSE + "龙行龘龘，𠮷。\n", "utf-8")
    report = build(raw, document="line")
    write_manifest("test", "corpus", parameters={}, inputs=[], outputs=report.outputs, result={})


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_file_is_a_list_of_the_documents(corpus, split, tmp_path, capsys):
    file = tmp_path / "new folder" / "list.json"
    assert main(["--run", "test", "--json", str(file), "--split", split]) == 0
    texts = list(read_texts("test", split))
    assert json.loads(file.read_text("utf-8")) == texts and texts
    assert f"{len(texts):,} documents in" in capsys.readouterr().out


def test_the_command_writes_training_documents_where_it_is_called(corpus, tmp_path):
    command = [sys.executable, "-m", "helpers.corpus", "--run", "test", "--json", "train.json"]
    environment = os.environ | {"PYTHONPATH": str(paths.repo_root())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "train.json").read_text("utf-8")) == list(read_texts("test", "train"))


def test_a_run_without_a_corpus_and_a_changed_one_are_refused(corpus, tmp_path, capsys):
    assert main(["--run", "nobody", "--json", str(tmp_path / "a.json")]) == 2
    assert "01_corpus" in capsys.readouterr().err
    shard = paths.shards("test", "corpus", "train", ".jsonl")[0]
    shard.write_text(shard.read_text("utf-8") + "\n", "utf-8")
    assert main(["--run", "test", "--json", str(tmp_path / "a.json")]) == 2
    assert "is not the file that 01_corpus wrote" in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()
