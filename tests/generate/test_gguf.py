"""A file in llama.cpp's format: read back by its own reader, and by llama.cpp, which has to write what Python does."""

import json
import shutil
import subprocess
import tempfile
from itertools import islice
from pathlib import Path

import models
import numpy as np
import pytest
from transformers import GPT2Tokenizer, Qwen2Tokenizer

from helpers.corpus import built_in
from helpers.generate import dialogue, generate, terminal
from helpers.generate.gguf import write_gguf
from helpers.generate.settings import Settings, default_settings
from helpers.model.huggingface import to_library
from helpers.vocab.tokenizer import build_bpe, encode_batch, load_pretrained_tokenizer

gguf = pytest.importorskip("gguf")
TEXTS = [document.text for document in islice(built_in.draw_documents(seed=1), 500)]
TEXTS += ["  前\n\n后 ", "😀 龘é", "<bos>你<0x41><assistant>", "I'll a1 12345", "\t한 x\r\ny", "▁"]
NODE = ["node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1"]  # llama.cpp, built
ASK = """import fs from "node:fs"
import {getLlama, LlamaChatSession} from "node-llama-cpp"
const {file, texts, prompts, questions} = JSON.parse(fs.readFileSync(process.argv[2])), written = [], answers = []
const model = await (await getLlama({gpu: false, build: "never", logLevel: "error"})).loadModel({modelPath: file})
const exact = {flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"}
const contextSequence = (await model.createContext({contextSize: 64, threads: 1, ...exact})).getSequence()
for (const prompt of prompts) {
  written.push([])
  await contextSequence.clearHistory()
  for await (const id of contextSequence.evaluate(prompt, {temperature: 0})) if (written.at(-1).push(id) == 8) break
}
for (const question of questions) {
  await contextSequence.clearHistory()
  const talk = new LlamaChatSession({contextSequence, systemPrompt: ""})
  answers.push(await talk.prompt(question, {temperature: 0, maxTokens: 8}))
}
fs.writeFileSync(process.argv[3], JSON.stringify({ids: texts.map(text => model.tokenize(text)), written, answers}))
process.exit()"""


@pytest.fixture(params=["llama", "qwen3", "gpt2", "qwen2"])
def made(request, tmp_path):
    """Return a random model that is unlikely to write what Python never writes, its tokenizer, and its file."""
    kind, tok = request.param, models.plants_chat_tokenizer()
    if kind in ("gpt2", "qwen2"):
        theirs = {"gpt2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer}[kind]()
        theirs.train_new_from_iterator(TEXTS[:100], 600, show_progress=False).save_pretrained(tmp_path)
        tok = load_pretrained_tokenizer(str(tmp_path))
    net = models.plants_model(kind.replace("qwen2", "llama"), tok, 64)
    net.embed_tokens.weight[[*tok.all_special_ids, *range(len(tok), net.config.vocab_size)]] = 0
    write_gguf(tmp_path / "model.gguf", net, tok, default_settings(tmp_path))
    return net, tok, tmp_path / "model.gguf"


def test_the_file_holds_the_weights_the_tokens_and_the_template(made):
    net, tok, file = made
    reader = gguf.GGUFReader(file)
    said = {name: field.contents() for name, field in reader.fields.items()}
    assert said["tokenizer.ggml.tokens"][: len(tok)] == tok.convert_ids_to_tokens(range(len(tok)))
    assert said.get("tokenizer.chat_template") == tok.chat_template
    ours = [np.sort(each.numpy(), axis=None).tobytes() for each in to_library(net.config, net.state_dict()).values()]
    # llama.cpp has another order of some rows
    assert sorted(ours) == sorted(np.sort(each.data, axis=None).tobytes() for each in reader.tensors)


@pytest.mark.outside
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed, which brings llama.cpp built for Linux")
def test_llama_cpp_cuts_writes_and_answers_as_python_does(made, tmp_path):
    net, tok, file = made
    folder = Path(tempfile.gettempdir()) / "chinese-gpt-llama.cpp"  # stays for the next time
    if not (folder / "node_modules").is_dir():
        folder.mkdir()
        subprocess.run(["npm", "install", "--ignore-scripts", "--omit=optional", *NODE], cwd=folder, check=True)
    (folder / "ask.mjs").write_text(ASK, "utf-8")
    ids, questions = encode_batch(tok, TEXTS), ["绿萝怎么浇水？", "冬天呢？"] * bool(tok.chat_template)
    prompts = [[tok.bos_token_id, *each[:9]] for each in ids]
    asked = dict(file=str(file), texts=TEXTS, prompts=prompts, questions=questions)
    (tmp_path / "asked").write_text(json.dumps(asked), "utf-8")
    subprocess.run(["node", "ask.mjs", tmp_path / "asked", tmp_path / "got"], cwd=folder, check=True)
    got, greedy = json.loads((tmp_path / "got").read_text("utf-8")), Settings(max_new_tokens=8, temperature=0.0)
    assert got["ids"] == ids
    own = [each.tokens for each in generate.generate_batch(net, tok, prompts, greedy)]
    # llama.cpp looks GELU up in a table of 16 bits
    assert sum(map(list.__ne__, own, got["written"])) <= (3 if net.config.mlp == "gelu" else 0)
    answers = dialogue.answer_batch(net, tok, list(map(dialogue.as_messages, questions)), greedy)
    assert got["answers"] == [each.text.replace("\ufffd", "") for each in answers]  # half a character is nothing there


def test_the_command_says_what_is_lost_and_what_llama_cpp_does_not_have_is_refused(monkeypatch, tmp_path, capsys):
    tok = models.plants_tokenizer()
    monkeypatch.setattr(generate, "load", lambda run, model="base": (models.plants_model("qwen3", tok), tok))
    assert terminal.terminal_main(["--run", "any", "--gguf", str(tmp_path / "a.gguf")]) == 0
    assert "begin with <bos>" in capsys.readouterr().out
    for kind, cuts in (("moe", tok), ("llama", build_bpe(["浇水"], 300))):
        with pytest.raises(ValueError, match=r"llama\.cpp has no such"):
            write_gguf(tmp_path / "b.gguf", models.plants_model(kind, cuts), cuts, default_settings(tmp_path))
