"""The sampling panel over a fake model: text that streams in, Cancel, bars that follow the sliders."""

import math
import os
import re
import time
from types import SimpleNamespace

import pytest
import torch
from displays import Page, until
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from helpers.generate import generate
from helpers.generate.settings import RANGES, Chunk, Settings, TokenLogprob
from helpers.show import panel


def chunk(text: str, *words: tuple[str, float]) -> Chunk:
    """A chunk of a text; `words` are (text, probability) of its tokens, where they differ from the chunk."""
    other = ((text[::-1], math.log(0.25)), ("", -9.0))
    choices = [TokenLogprob(7, word, math.log(p), 2, other) for word, p in words or [(text, 0.5)]]
    return Chunk(0, text, tuple(choices), None)


@pytest.fixture
def play(shown, monkeypatch):
    """A panel over a fake model; `play.stream` is what it streams."""
    state = SimpleNamespace(forwards=0, stream=lambda prompt, settings, stop: iter([chunk("好"), chunk("的")]))

    def next_logits(model, tokenizer, prompt):
        state.forwards += 1
        return torch.tensor([[1, 2]]), torch.tensor([[0.0, 1.0, 2.0, 3.0]])

    monkeypatch.setattr(panel.Panel, "pause", 0.01)
    monkeypatch.setattr(panel.Panel, "redraw", 0.0)
    monkeypatch.setattr(generate, "next_logits", next_logits)
    monkeypatch.setattr(generate, "stream_chunks", lambda model, tokenizer, *rest: state.stream(*rest))
    model = SimpleNamespace(config=SimpleNamespace(n_ctx=64))
    names = lambda ids: [["甲", "<eos>", "<乙>", "丙"][i] for i in ids]  # noqa: E731
    backend = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(names([i for i in ids if i != 1])))
    tokenizer = SimpleNamespace(convert_ids_to_tokens=names, backend_tokenizer=backend)
    state.panel = panel.Panel(model, tokenizer, "问 <b>\n")
    until(lambda: "丙" in state.panel.bars.value)
    return state


def test_the_panel_colours_what_it_wrote_by_probability(play):
    """A sure word stays plain; the bytes of a rare character share a colour; under the mouse are the alternatives."""
    rare = chunk("<🌱>", ("<", 0.9), ("\ufffd", 0.1), ("\ufffd", 0.1), ("🌱>", 0.9))
    play.stream = lambda prompt, settings, stop: iter([chunk("好的", ("好", 0.9), ("的", 0.02)), rare])
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    assert play.panel.note.value.startswith("5 characters in ") and play.panel.cancel.disabled
    html = play.panel.text.value
    page = Page(html)
    assert page.words == "问 <b>\n好的<🌱>" and page.open == [] and page.tags == {"blockquote", "div", "span", "br"}
    assert re.search('<span title="90.0 %, number 2; likeliest: [^"]*">好</span>', html)
    assert re.search(r'<span style="background:rgba\([^"]*,0.48\)[^"]*" title="2.0 %[^"]*, ■ [^"]*">的</span>', html)
    assert re.search(r'<span style="background:rgba\([^"]*,0.6\)[^"]*" title="90.0 %[^"]*">&lt;🌱&gt;</span>', html)
    assert "probability of a token" in Page(play.panel.legend.value).words


def test_cancel_works_in_the_middle_of_a_text(play):
    def endless(prompt, settings, stop):
        while not stop.is_set():
            yield chunk("字")
            time.sleep(0.005)

    play.stream = endless
    play.panel.generate.click()  # returns, though the text never ends: the callback left the work to a thread
    assert play.panel.generate.disabled and not play.panel.cancel.disabled
    worker = play.panel.worker
    until(lambda: play.panel.text.value.count(">字<") >= 3)
    assert "▌" in play.panel.text.value
    play.panel.generate.click()  # while a text is being written, nothing new begins
    assert play.panel.worker is worker
    play.panel.cancel.click()
    worker.join(5)
    assert not worker.is_alive()
    assert play.panel.note.value.startswith("cancelled: ")
    assert "▌" not in play.panel.text.value and not play.panel.generate.disabled


def test_errors_are_told_in_the_panel(play):
    def broken(prompt, settings, stop):
        yield chunk("好")
        raise ValueError("the prompt is <too> long")

    play.stream = broken
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    assert Page(play.panel.note.value).words == "the prompt is <too> long"
    assert Page(play.panel.text.value).words.endswith("好")


def test_sliders_redraw_the_bars_without_a_new_forward(play):
    before = play.panel.bars.value
    assert "&lt;乙&gt;" in before and "&lt;eos&gt;" in before
    play.panel.settings["top_k"].value = 1
    until(lambda: play.panel.bars.value != before)
    assert "100.0 %" in play.panel.bars.value
    assert play.forwards == 1
    play.panel.prompt.value = "别的"
    until(lambda: play.forwards == 2)


def test_the_bars_of_a_byte_level_vocabulary_have_characters_as_names(shown, monkeypatch):
    """Its raw tokens are bytes as letters: 绿 is written ç»¿, and a space is Ġ. A lone byte keeps its raw name."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=["</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)  # fmt: skip
    backend.train_from_iterator(["绿萝 cat 绿萝 cat"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    raw = tokenizer.convert_tokens_to_ids(["ç»¿", "Ġcat", "ç", "</s>"])
    logits = torch.full((1, len(tokenizer)), -20.0)
    logits[0, raw] = torch.tensor([0.0, -1.0, -2.0, -3.0])
    monkeypatch.setattr(generate, "next_logits", lambda *_: (torch.tensor([[0]]), logits))
    play = panel.Panel(SimpleNamespace(config=SimpleNamespace(n_ctx=64)), tokenizer, "问")
    play.timer.cancel()
    assert [name for name, _, _ in play.next_token()[:4]] == ["绿", " cat", "ç", "</s>"]


def test_settings_are_those_of_the_sliders_and_sliders_those_of_the_one_table(play):
    got = []
    play.stream = lambda prompt, settings, stop: got.append((prompt, settings)) or iter(())
    for name, value in {"seed": 7, "temperature": 0.5, "min_p": 0.1}.items():
        play.panel.settings[name].value = value
    play.panel.generate.click()
    until(lambda: not play.panel.generate.disabled)
    settings = Settings(max_new_tokens=64, temperature=0.5, top_p=0.95, min_p=0.1, seed=7, logprobs=panel.ALTERNATIVES)
    assert got == [("问 <b>\n", settings)]
    assert [name for name in play.panel.settings if name in RANGES] == [name for name in RANGES if RANGES[name].slider]
    for name, widget in play.panel.settings.items():
        assert name not in RANGES or (widget.min, widget.max, widget.step) == RANGES[name].slider


def test_headless_the_panel_is_a_sentence(play, monkeypatch):
    assert "application/vnd.jupyter.widget-view+json" in play.panel.box._repr_mimebundle_()
    monkeypatch.setitem(os.environ, "HEADLESS", "1")
    assert list(play.panel.box._repr_mimebundle_()) == ["text/plain"]
