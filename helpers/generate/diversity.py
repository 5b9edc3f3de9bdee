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
    """How diverse, repetitive and copied the texts are at one temperature and top-p; n-grams are of characters."""

    temperature: float
    top_p: float
    diversity: float  # the share of different n-grams in the texts of one prompt (Li et al. 2016, distinct-n)
    repetition: float  # the share of a text's n-grams that it had before (Welleck et al. 2020, seq-rep-n)
    longest: float | None  # mean length of the longest copied stretch, in characters; None without an index
    share: float | None  # share of the n-grams, as `Index.copied` counts them, that occur in the training text


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
    """Write `samples` texts per prompt at each temperature × top-p; return a Cell for each, row by row.

    The other settings stay as given. Only the continuations count, without their prompts; n: characters per n-gram.
    Raises ValueError if there is no prompt, and for n < 1.
    """
    _check_length(n)
    if not prompts:
        raise ValueError("there is no prompt: give at least one (it may be empty)")
    cells = []
    for temperature in temperatures:
        for top_p in top_ps:
            variant = replace(settings, temperature=temperature, top_p=top_p)
            groups = [
                [sample.text[len(prompt) :] for sample in generate.generate(model, tokenizer, prompt, variant, samples)]
                for prompt in prompts
            ]
            texts = [text for group in groups for text in group]
            longest = share = None
            if index:
                copied = [index.copied(text) for text in texts]
                longest = fmean(each.longest for each in copied)
                share = sum(each.known for each in copied) / max(1, sum(each.ngrams for each in copied))
            diversity = fmean(distinct(group, n) for group in groups)
            repetition = fmean(1 - distinct([text], n) for text in texts)
            cells.append(Cell(temperature, top_p, diversity, repetition, longest, share))
    return cells


def distinct(texts: Sequence[str], n: int) -> float:
    """Return the share of different n-grams among all of the texts; 1 if there are none. ValueError for n < 1."""
    _check_length(n)
    grams = [text[i : i + n] for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _check_length(n: int) -> None:
    if n < 1:
        raise ValueError(f"n is {n}: an n-gram has 1 character or more")
