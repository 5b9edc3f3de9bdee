"""The sampling panel: a prompt, sliders, Generate and Cancel, text that streams in, and bars of the next token.

Knows nothing of how text is generated: `generate` writes it, `sampling` filters; this module shows both. Every
callback returns at once and leaves the work to a thread: a callback that worked itself would make Cancel dead.
"""

import math
import os
import threading
import time
from html import escape

import ipywidgets as widgets

from helpers.generate import generate
from helpers.generate.settings import Settings
from helpers.show.explain import heat, legend, listed
from helpers.show.text import card, continuation, percent, render_probabilities

TOKENS = 10  # bars shown
ALTERNATIVES = 4  # to a word that was written, under the mouse
FRAME = 0.1  # seconds between two pictures of the text
PAUSE = 0.15  # seconds that the sliders must rest before the bars are computed


class Box(widgets.VBox):
    """A container that leaves a sentence, not a dead widget, in a notebook that runs with nobody watching."""

    def _repr_mimebundle_(self, **kwargs):
        if os.environ.get("HEADLESS"):
            return {"text/plain": "The sampling panel: open this notebook in JupyterLab and run this cell to use it."}
        return super()._repr_mimebundle_(**kwargs)


class Panel:
    """The widgets of one panel and the two threads behind them; `box` is what a notebook displays."""

    def __init__(self, model, tokenizer, prompt: str):
        self.model, self.tokenizer = model, tokenizer
        self.stop = threading.Event()
        self.worker: threading.Thread | None = None
        self.timer: threading.Timer | None = None
        self.drawing = threading.Lock()
        self.seen: tuple | None = None  # (prompt, ids, logits) of the last bars: a slider alone needs no new forward

        wide, label = {"width": "26em"}, {"description_width": "9.5em"}

        def slider(kind: type, name: str, off: str, **values) -> widgets.Widget:
            return kind(description=name, tooltip=off, layout=wide, style=label, **values)

        self.prompt = widgets.Textarea(value=prompt, placeholder="prompt", layout={"width": "26em", "height": "5em"})
        longest = model.config.max_position_embeddings
        self.settings = {
            "max_new_tokens": slider(
                widgets.IntSlider, "max_new_tokens", "longest continuation", value=min(100, longest), min=1, max=longest
            ),
            "temperature": slider(
                widgets.FloatSlider, "temperature", "1 is off, 0 is greedy", value=0.8, min=0, max=2, step=0.05
            ),
            "top_k": slider(widgets.IntSlider, "top_k", "0 is off", value=0, min=0, max=100),
            "top_p": slider(widgets.FloatSlider, "top_p", "1 is off", value=0.95, min=0, max=1, step=0.01),
            "min_p": slider(widgets.FloatSlider, "min_p", "0 is off", value=0, min=0, max=0.5, step=0.01),
            "repetition_penalty": slider(
                widgets.FloatSlider, "repetition_penalty", "1 is off", value=1, min=1, max=2, step=0.05
            ),
            "seed": slider(widgets.BoundedIntText, "seed", "the same seed, the same text", value=0, min=0, max=2**31),
        }
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

    def read(self):
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
        """Write one text into the panel, piece by piece (in the worker thread)."""

        body, characters, began, shown = continuation(prompt, prompt), 0, time.monotonic(), 0.0
        self.note.value, self.legend.value = "writing …", legend()
        try:
            self.show(body, "▌")
            for piece in generate.stream_chunks(self.model, self.tokenizer, prompt, self.read(), stop):
                body += coloured(piece)
                characters += len(piece.text)
                if time.monotonic() - shown >= FRAME:
                    self.show(body, "▌")
                    shown = time.monotonic()
            ended = "cancelled: " if stop.is_set() else ""
            self.note.value = f"{ended}{characters} characters in {time.monotonic() - began:.1f} s"
        except Exception as error:  # nobody waits for this thread: whatever went wrong is told in the panel
            self.note.value = in_words(error)
        finally:
            self.show(body)
            self.generate.disabled, self.cancel.disabled = False, True

    def show(self, body: str, cursor: str = "") -> None:
        """Show the text as far as it goes."""
        self.text.value = card(body + cursor)

    def draw_soon(self) -> None:
        """Draw the bars when the sliders have rested for a moment."""
        if self.timer:
            self.timer.cancel()
        self.timer = threading.Timer(PAUSE, self.draw)
        self.timer.daemon = True
        self.timer.start()

    def draw(self) -> None:
        """Draw the bars of the next token after the prompt, before and after the filters (in the timer's thread)."""
        with self.drawing:
            try:
                self.bars.value = render_probabilities(self.next_token())[0]
            except Exception as error:  # as in `write`
                self.bars.value = in_words(error)

    def next_token(self) -> list[tuple[str, float, float]]:
        """Return (token, probability before, probability after) of the likeliest next tokens."""

        prompt = self.prompt.value
        if self.seen is None or self.seen[0] != prompt:
            self.seen = (prompt, *generate.next_logits(self.model, self.tokenizer, prompt))
        _, ids, logits = self.seen  # (1, T), (1, V)
        before = logits.softmax(-1)[0]  # (V,)
        after = generate.filtered(logits, ids, self.read()).softmax(-1)[0]  # (V,)
        likeliest = before.maximum(after).topk(min(TOKENS, len(before))).indices.tolist()
        likeliest.sort(key=lambda token: -before[token])
        names = self.tokenizer.convert_ids_to_tokens(likeliest)
        return [(name, float(before[token]), float(after[token])) for token, name in zip(likeliest, names, strict=True)]


def coloured(piece) -> str:
    """Return a `Piece` as HTML: each word by its probability, or all as one where its words are not whole."""
    choices = piece.choices
    if "".join(choice.text for choice in choices) == piece.text:
        parts = [(choice.text, [choice]) for choice in choices]
    else:  # the bytes of a character, or a word that a stop string cuts
        parts = [(piece.text, choices)]
    html = ""
    for text, those in parts:
        nats = sum(choice.logprob for choice in those) / max(1, len(text))
        html += heat(text, math.exp(nats), "\n".join(map(described, those)))
    return html


def described(choice) -> str:
    """Return what is known of a `Choice`, for under the mouse."""
    alternatives = [(text, math.exp(logprob)) for text, logprob in choice.alternatives]
    return f"{percent(math.exp(choice.logprob))}, number {choice.rank:,}; likeliest: {listed(alternatives)}"


def in_words(error: Exception) -> str:
    """Return an error as a line of HTML."""
    return f'<span style="color:#d9534f">{escape(str(error) or type(error).__name__)}</span>'


def sampling_panel(model, tokenizer, prompt: str = "") -> widgets.VBox:
    """Return a panel to play with a model's sampling; display it as the last line of a cell.

    `model` and `tokenizer` as `generate.load` returns them.
    """
    return Panel(model, tokenizer, prompt).box
