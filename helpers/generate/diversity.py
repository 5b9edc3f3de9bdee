"""Diversity, repetition and memorization of texts over a grid of temperature and top-p."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate import generate
from helpers.generate.memorization import Index
from helpers.generate.settings import DEFAULT, Settings


@dataclass(frozen=True)
class Cell:
    """How texts are at one temperature and top-p.

    diversity: of all n-grams in the texts of one prompt, the share that differ (Li et al. 2016, distinct-n).
    repetition: of a text's n-grams, the share that stood in it before (Welleck et al. 2020, seq-rep-n). longest: the
    longest stretch of a text that stands in the training text, in characters, on average; share: of its n-grams as
    `Index.copied` counts them; both None without an index.
    """

    temperature: float
    top_p: float
    diversity: float
    repetition: float
    longest: float | None
    share: float | None


def grid(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    index: Index | None = None,
    *,
    samples: int = 8,
    settings: Settings = DEFAULT,
    n: int = 4,
) -> list[Cell]:
    """Write `samples` texts a prompt at each temperature × top-p, and return how they are, row by row.

    The other settings stay as they are given. Only what was written counts, not the prompt; n counts characters.
    Raises ValueError where there is no prompt.
    """
    if not prompts:
        raise ValueError("there is no prompt: give at least one (it may be empty)")
    cells = []
    for temperature in temperatures:
        for top_p in top_ps:
            wanted = replace(settings, temperature=temperature, top_p=top_p)
            groups = []
            for prompt in prompts:
                drawn = generate.generate(model, tokenizer, prompt, wanted, samples)
                groups.append([sample.text[len(prompt) :] for sample in drawn])
            texts = [text for group in groups for text in group]
            longest = share = None
            if index:
                copied = [index.copied(text) for text in texts]
                longest = fmean(each.longest for each in copied)
                share = sum(each.known for each in copied) / max(1, sum(each.ngrams for each in copied))
            diversity = fmean(_distinct(group, n) for group in groups)
            repetition = fmean(1 - _distinct([text], n) for text in texts)
            cells.append(Cell(temperature, top_p, diversity, repetition, longest, share))
    return cells


def _distinct(texts: Sequence[str], n: int) -> float:
    """Return the share of different ones among the n-grams of texts; 1 where there is none."""
    grams = [text[i : i + n] for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
