"""The page as a folder: what it holds, and what it is refused for; tests/test_browser.py opens it."""

import json
import runpy
import subprocess
import sys

import pytest
from families import lively
from service import chat_tokenizer, make_run, tiny_model, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.generate.generate import TRY_FOLDER
from helpers.manifest import write_manifest
from helpers.model.eight_bits import read_packed
from helpers.serve import server, static
from helpers.serve.limits import DEFAULT_LIMITS, Limits


def spaced():
    backend = Tokenizer(models.BPE({"<eos>": 0, "a": 1}, [], unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<eos>", eos_token="<eos>")


@pytest.mark.parametrize(
    "model, tokenizer, most, why",
    [
        (lambda: lively("qwen3_moe"), tiny_tokenizer, 10**8, "no mixture of experts"),
        (tiny_model, tiny_tokenizer, 10**4, "holds 0 MB of weights, and this model has 0"),
        (tiny_model, spaced, 10**8, "has rules of its own"),
    ],
)
def test_what_the_browser_cannot_do_is_refused(tmp_path, monkeypatch, model, tokenizer, most, why):
    monkeypatch.setattr(static, "MOST_BYTES", most)
    with pytest.raises(ValueError, match=why):
        static.write_page(tmp_path / "new", model(), tokenizer(), DEFAULT_LIMITS, {})
    assert not (tmp_path / "new").exists()


def test_a_run_becomes_a_folder_by_one_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path))
    make_run()
    write_manifest("tiny", "corpus", parameters={}, inputs=[], outputs=[], result={"source": "my letters"}, seed=0)
    (paths.room("tiny", "corpus") / "val-00000.jsonl").write_text('{"text": "这是谁的信？\\n我的。"}\n', "utf-8")
    page = tmp_path / "a page"
    assert server.main(["--run", "tiny", "--static", str(page), "--max-length", "77"]) == 0
    assert "http.server" in (said := capsys.readouterr().out) and f"'{page}'" in said
    known = json.loads((page / "model.json").read_text("utf-8"))
    assert (known["about"]["id"], known["max_length"], known["chat"]) == ("tiny", 77, None)
    assert known["about"]["examples"] == []  # a page is for strangers
    assert 'class="texts static"' in (page / "index.html").read_text("utf-8")
    assert read_packed(page).config == tiny_model().config
    assert server.main(["--run", "tinny", "--static", str(page)]) == 1
    assert "did you mean 'tiny'" in capsys.readouterr().err


def test_a_conversation_needs_our_template():
    tokenizer = chat_tokenizer()
    known = static.for_worker(tiny_model(), tokenizer, Limits())
    names = {"user": "<user>", "assistant": "<assistant>", "end": "<eos>"}
    assert known["chat"] == {role: tokenizer.convert_tokens_to_ids(name) for role, name in names.items()}
    tokenizer.chat_template = tokenizer.chat_template.replace("message.content", "message.content + '！'")
    assert static.for_worker(tiny_model(), tokenizer, Limits())["chat"] is None


def test_the_page_of_the_course_needs_python_alone_and_is_the_page_of_today(tmp_path):
    command = [sys.executable, "-I", "-S", TRY_FOLDER / "serve.py", "--write", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    today = {file.name: static.fill_in(file, DEFAULT_LIMITS, has_chat=True, static=True) for file in static.FILES}
    found = {file.name: file for file in tmp_path.iterdir()}
    assert found.keys() == today.keys() | {"model.json", "model.safetensors", "tokenizer.json"}
    changed = [name for name, text in today.items() if found[name].read_text("utf-8") != text]
    assert not changed, "python data/try/make.py writes it anew"
    assert sum(file.stat().st_size for file in TRY_FOLDER.rglob("*") if file.is_file()) < 5_000_000
    wrong = runpy.run_path(str(TRY_FOLDER / "serve.py"))["main"](["--port", "99999"])
    assert wrong == 1
