"""The sampling panel: a prompt, sliders, Generate and Cancel, text that streams in, and bars of the next token.

Every callback returns at once and leaves the work to a thread: a callback that did the work itself would block Cancel.
"""

import math
import os
import threading
import time
from collections.abc import Sequence
from html import escape

import ipywidgets as widgets
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from helpers.generate import generate
from helpers.generate.explain import token_name
from helpers.generate.settings import RANGES, Chunk, Settings, TokenLogprob
from helpers.model.gpt import GPT
from helpers.show.explain import coloured, legend, probabilities_in_words
from helpers.show.text import card, percent, render_continuation, render_probabilities
from helpers.wording import say

START = {"temperature": 0.8, "top_p": 0.95}  # where their sliders begin; all others begin where they are off
MOST_BARS = 10
ALTERNATIVES = 4  # to each written token, in its tooltip


class Box(widgets.VBox):
    """A container that leaves a sentence, not a dead widget, in a notebook that runs headless."""

    def _repr_mimebundle_(self, **kwargs):
        if os.environ.get("HEADLESS"):
            words = "The sampling panel: open this notebook in JupyterLab and run this cell to use it."
            return {"text/plain": say(words)}
        return super()._repr_mimebundle_(**kwargs)


def sliders(longest: int) -> dict[str, widgets.Widget]:
    """Return the widgets of `Settings` by name, with the ranges of `RANGES`; a text has at most `longest` tokens."""
    look = {"layout": {"width": "26em"}, "style": {"description_width": "9.5em"}}
    made = {"max_new_tokens": widgets.IntSlider(min(100, longest), 1, longest, tooltip="longest continuation", **look)}
    for name, values in RANGES.items():
        if values.slider:
            least, most, step = values.slider
            kind = widgets.IntSlider if isinstance(values.off, int) else widgets.FloatSlider
            at = {"value": START.get(name, values.off), "min": least, "max": most, "step": step}
            made[name] = kind(tooltip=values.note, **at, **look)
    made["seed"] = widgets.BoundedIntText(0, min=0, max=2**31, tooltip="the same seed gives the same text", **look)
    for name, widget in made.items():
        widget.description = name
    return made


class Panel:
    """The widgets of one panel and the two threads behind them; `box` is what a notebook displays."""

    redraw = 0.1  # seconds between two pictures of the text, at least
    pause = 0.15  # seconds that the sliders must rest before the bars are computed

    def __init__(self, model: GPT, tokenizer: PreTrainedTokenizerFast, prompt: str):
        self.model, self.tokenizer = model, tokenizer
        self.stop = threading.Event()
        self.worker: threading.Thread | None = None
        self.timer: threading.Timer | None = None
        self.drawing = threading.Lock()
        # prompt, ids, logits of the bars that were drawn last: for a slider alone, the model need not run again
        self.last_prompt: tuple[str, Tensor, Tensor] | None = None

        self.prompt = widgets.Textarea(value=prompt, placeholder="prompt", layout={"width": "26em", "height": "5em"})
        self.settings = sliders(longest=model.config.n_ctx)
        self.generate = widgets.Button(description="Generate", icon="play", button_style="primary")
        self.cancel = widgets.Button(description="Cancel", icon="stop", disabled=True)
        self.note = widgets.HTML()
        self.bars = widgets.HTML(layout={"min_height": "20em"})
        self.text = widgets.HTML()
        self.legend = widgets.HTML()

        self.generate.on_click(lambda _: self.begin())
        self.cancel.on_click(lambda _: self.stop.set())
        for widget in (self.prompt, *self.settings.values()):
            widget.observe(lambda _: self.draw_soon(), names="value")

        buttons = widgets.HBox([self.generate, self.cancel])
        left = widgets.VBox(
            [self.prompt, *self.settings.values(), buttons, self.note], layout={"width": "27em", "margin": "0 2em 0 0"}
        )
        self.box = Box([widgets.HBox([left, self.bars], layout={"flex_flow": "row wrap"}), self.text, self.legend])
        self.draw_soon()

    def read(self) -> Settings:
        """Return the sliders as `Settings`."""
        values = {name: widget.value for name, widget in self.settings.items()}
        return Settings(**values, logprobs=ALTERNATIVES)

    def begin(self) -> None:
        """Start a text, unless one is being written."""
        if self.worker and self.worker.is_alive():
            return
        self.stop = threading.Event()
        self.generate.disabled, self.cancel.disabled = True, False
        self.worker = threading.Thread(target=self.write, args=(self.prompt.value, self.stop), daemon=True)
        self.worker.start()
        self.draw_soon()

    def write(self, prompt: str, stop: threading.Event) -> None:
        """Write one text into the panel, chunk by chunk (in the worker thread)."""
        body, characters, began, drawn = render_continuation(prompt, prompt), 0, time.monotonic(), 0.0
        self.note.value, self.legend.value = say("writing …"), legend()
        try:
            self.text.value = card(body + "▌")
            for chunk in generate.stream_chunks(self.model, self.tokenizer, prompt, self.read(), stop):
                body += render_chunk(chunk)
                characters += len(chunk.text)
                if time.monotonic() - drawn >= self.redraw:
                    self.text.value = card(body + "▌")
                    drawn = time.monotonic()
            words = "cancelled: {} characters in {:.1f} s" if stop.is_set() else "{} characters in {:.1f} s"
            self.note.value = say(words, characters, time.monotonic() - began)
        except Exception as error:  # an error in a thread would be lost: the panel shows it
            self.note.value = render_error(error)
        finally:
            self.text.value = card(body)
            self.cancel.disabled = True
            self.generate.disabled = False  # last: Generate is free when all is done

    def draw_soon(self) -> None:
        """Draw the bars when the sliders have rested for a moment."""
        if self.timer:
            self.timer.cancel()
        self.timer = threading.Timer(self.pause, self.draw)
        self.timer.daemon = True
        self.timer.start()

    def draw(self) -> None:
        """Draw the bars of the next token after the prompt, before and after the filters (in the timer's thread)."""
        with self.drawing:
            try:
                self.bars.value = render_probabilities(self.next_token())[0]
            except Exception as error:  # as in `write`
                self.bars.value = render_error(error)

    def next_token(self) -> list[tuple[str, float, float]]:
        """Return (token, probability before, probability after) of the likeliest next tokens."""
        prompt = self.prompt.value
        if self.last_prompt is None or self.last_prompt[0] != prompt:
            self.last_prompt = (prompt, *generate.next_logits(self.model, self.tokenizer, prompt))
        _, ids, logits = self.last_prompt  # (1, T), (1, V)
        before = logits.softmax(-1)[0]  # (V,)
        after = generate.filtered(logits, ids, self.read()).softmax(-1)[0]  # (V,)
        likeliest = before.maximum(after).topk(min(MOST_BARS, len(before))).indices.tolist()
        likeliest.sort(key=lambda token: -before[token])
        return [(token_name(self.tokenizer, each), float(before[each]), float(after[each])) for each in likeliest]


def render_chunk(chunk: Chunk) -> str:
    """Return a `Chunk` as HTML: each token in its own colour, or all in one colour where its tokens are not whole."""
    groups: list[tuple[str, Sequence[TokenLogprob]]] = [(token.text, [token]) for token in chunk.logprobs]
    if "".join(text for text, _ in groups) != chunk.text:  # bytes of a character, or a token cut by a stop string
        groups = [(chunk.text, chunk.logprobs)]
    html = ""
    for text, tokens in groups:
        html += coloured(text, math.exp(sum(token.logprob for token in tokens)), "\n".join(map(token_in_words, tokens)))
    return html


def token_in_words(token: TokenLogprob) -> str:
    """Return a token's tooltip."""
    likeliest = probabilities_in_words((text, math.exp(logprob)) for text, logprob in token.alternatives)
    return f"{percent(math.exp(token.logprob))}, number {token.rank:,}; likeliest: {likeliest}"


def render_error(error: Exception) -> str:
    """Return an error as a line of HTML."""
    return f'<span style="color:#d9534f">{escape(str(error) or type(error).__name__)}</span>'
