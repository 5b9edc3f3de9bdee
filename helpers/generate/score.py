"""Score a text: bits per character (perplexity's logarithm), of each document and of all.

The measure is that of notebook 04's validation: every token counts, and the document's end, with half a window of
context or more before it. Knows nothing of files.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.device import widest_float
from helpers.generate import explain, inference
from helpers.generate.batch import prompt_ids


@dataclass(frozen=True)
class Score:
    """How surprising a text is to a model."""

    bits: float  # of all its tokens and its end
    tokens: int
    characters: int

    @property
    def per_character(self) -> float:
        """Bits per character; infinite for an empty text."""
        return self.bits / self.characters if self.characters else math.inf

    def __add__(self, other: "Score") -> "Score":
        return Score(self.bits + other.bits, self.tokens + other.tokens, self.characters + other.characters)


@torch.inference_mode()
def score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Iterator[Score]:
    """Yield the Score of each text, a document of its own. Raises ValueError for a model in training mode."""
    inference.check_eval(model)
    n_ctx = inference.context_length(model.config)
    for text in texts:
        ids = [*prompt_ids(tokenizer, text), tokenizer.eos_token_id]
        nats = 0.0
        for places, logits in explain.read_logits(model, ids, 1, n_ctx):
            labels = torch.tensor([ids[place] for place in places], device=logits.device)[:, None]  # (N, 1)
            nats -= float(logits.to(widest_float(logits.device)).log_softmax(-1).gather(1, labels).sum())
        yield Score(nats / math.log(2), len(ids) - 1, len(text))
