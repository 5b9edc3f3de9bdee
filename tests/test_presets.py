"""Every preset fits the notebooks and the settings that they make of it, and has the values of its source."""

import json
from itertools import islice

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from helpers import paths
from helpers.corpus import built_in
from helpers.generate.settings import Settings
from helpers.manifest import notebook_parameters
from helpers.run.parameters import plan_parameters, read_preset
from helpers.train.settings import TrainSettings

PRESETS = sorted(file.stem for file in (paths.repo_root() / "presets").glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_is_one_of_its_notebook_and_valid(preset):
    assert plan_parameters(list(paths.STAGES), "r", None, [preset], [])  # names and types
    sections = read_preset(preset)
    training = TrainSettings.from_parameters(notebook_parameters("train") | sections["train"])
    assert training.pretrained_model or training.n_embd % training.n_head == 0
    writing = sections.get("generate", {})
    Settings(**{name: value for name, value in writing.items() if hasattr(Settings, name)})
    tokens = sections["tokenize"]
    assert 0 < tokens["stride"] <= tokens["n_ctx"] and tokens.get("packing", "auto") in ("auto", "stream", "documents")


# ---- what the source systems are tried on, see test_source_systems ----


def texts(document: str) -> list[str]:
    """Return lines of verse for the poems, else documents of some hundred characters."""
    found = [item.text for item in islice(built_in.draw_documents(seed=3), 300)]
    if document == "line":
        return [text.replace("\n", "")[:40] for text in found[:120]]
    return ["\n".join(found[at : at + 3]) for at in range(0, 120, 3)]


def write_corpus(folder, settings: dict) -> None:
    """Write the texts as the preset expects them: a .txt, a poem a line, or JSONL."""
    found = texts(settings.get("document", "auto"))
    if "text_key" in settings:
        rows = (json.dumps({settings["text_key"]: text}, ensure_ascii=False) for text in found)
        (folder / "text.jsonl").write_text("\n".join(rows), "utf-8")
    else:
        blank = "\n" if settings.get("document") == "line" else "\n\n"
        (folder / "text.txt").write_text(blank.join(found), "utf-8")


def bert_checkpoint(folder) -> None:
    """A GPT-2 over a BERT vocabulary, as the poems notebook took it from the Hub: config, weights, vocab.txt."""
    letters = sorted({letter for text in texts("line") for letter in text if not letter.isspace()})
    words = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    cfg = GPT2Config(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(cfg).save_pretrained(folder)
