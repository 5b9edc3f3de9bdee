"""N-gram models of tokens: the baselines that a model must beat on this text.

Counts are sorted arrays, and only of contexts that occur in the validation text: ten million tokens take some seconds
and some hundred megabytes. Losses are in nats per token, that is ln(perplexity); divided by ln 2 and by characters per
token they are bits per character. Knows ids, and nothing of texts.
"""

import math
from collections.abc import Iterator

import numpy as np

from helpers.tokens.windows import Stream

# of a longer corpus a part is counted: more takes much memory, and moves the figures little
TRAIN_TOKENS, VAL_TOKENS = 2**25, 2**23
_BLOCK_TOKENS = 2**22  # training tokens that are read at a time


def baselines(train: Stream, val: Stream, vocab_size: int, bos_id: int, eos_id: int) -> dict[str, float]:
    """Return the cross-entropy on `val`, in nats per token, of four models that only count in `train`.

    uniform: ln vocab_size. unigram, bigram, trigram: see `ngram_probabilities`. A document's start follows every end
    and is not scored. Of long texts the first TRAIN_TOKENS and VAL_TOKENS are used.
    """
    by_model = ngram_probabilities(train, val.read(0, VAL_TOKENS), vocab_size, bos_id, eos_id)
    return {"uniform": math.log(vocab_size)} | {name: float(-np.log(p).mean()) for name, p in by_model.items()}


def ngram_probabilities(
    train: Stream, held_out: np.ndarray, vocab_size: int, bos_id: int, eos_id: int
) -> dict[str, np.ndarray]:
    """Return the probability, (answers,), that each model counted in `train` gives to each answer in `held_out`.

    The answers are all ids of `held_out`, (T,), but the first and each document's start. unigram: add-one
    frequencies. bigram and trigram: interpolated with the next shorter model (Witten and Bell 1991), where a context
    seen n times, followed by t different tokens, has the weight n / (n + t). ValueError if three ids exceed 64 bits.
    """
    counts = np.zeros(vocab_size, np.int64)
    for ids in _blocks(train, 2):
        counts += np.bincount(ids[1:][~_starts(ids, bos_id, eos_id)], minlength=vocab_size)
    first = train.read(0, 1)
    counts[first] += first != bos_id
    answers = 1 + np.flatnonzero(~_starts(held_out, bos_id, eos_id))
    unigram = ((counts + 1) / (counts.sum() + vocab_size))[held_out[answers]]
    bigram = _interpolated(train, held_out, answers, 1, vocab_size, unigram)
    trigram = _interpolated(train, held_out, answers, 2, vocab_size, bigram)
    return {"unigram": unigram, "bigram": bigram, "trigram": trigram}


def _starts(ids: np.ndarray, bos_id: int, eos_id: int) -> np.ndarray:
    """Return which ids but the first start a document: (T,) -> (T - 1,).

    GPT-2 has one token for the start and the end: the second of two in a row is the start.
    """
    return (ids[1:] == bos_id) & ((ids[:-1] == eos_id) | (bos_id != eos_id))


def _blocks(train: Stream, width: int) -> Iterator[np.ndarray]:
    """Yield the training ids in overlapping blocks: each `width` ids in a row are in exactly one of them."""
    size = min(len(train), TRAIN_TOKENS)
    for start in range(0, max(1, size - width + 1), _BLOCK_TOKENS):
        yield train.read(start, min(size, start + _BLOCK_TOKENS + width - 1))


def _as_numbers(ids: np.ndarray, width: int, vocab_size: int) -> np.ndarray:
    """Return one number for each `width` ids in a row, with the ids as its digits: (T,) -> (T - width + 1,)."""
    if vocab_size**width >= 2**63:
        raise ValueError(f"vocab_size is {vocab_size}: {width} tokens in a row do not fit into one 64-bit number")
    rows = max(0, len(ids) - width + 1)
    total = np.zeros(rows, np.int64)
    for i in range(width):
        total = total * vocab_size + ids[i : i + rows]
    return total


def _interpolated(
    train: Stream, held_out: np.ndarray, answers: np.ndarray, width: int, vocab_size: int, shorter: np.ndarray
) -> np.ndarray:
    """Return the probability, (answers,), of each answer after `width` ids, mixed with `shorter`, after one id less.

    An n-gram is a context and its answer, as one number.
    """
    # 1. the n-grams of the held-out text, and their contexts, each once
    has_context = answers >= width
    ngrams_here = _as_numbers(held_out, width + 1, vocab_size)[answers[has_context] - width]
    ngrams, ngram_of_answer = np.unique(ngrams_here, return_inverse=True)
    contexts, context_of_ngram = np.unique(ngrams // vocab_size, return_inverse=True)
    context_of_answer = context_of_ngram[ngram_of_answer]

    # 2. count them in the training text
    counted, times = _count(train, contexts, width, vocab_size)
    context = np.searchsorted(contexts, counted // vocab_size)
    seen = np.bincount(context, times, len(contexts)).astype(np.int64)  # n of each context
    followers = np.bincount(context, minlength=len(contexts))  # t of each context
    joint = np.zeros(len(ngrams), np.int64)  # how often each n-gram occurs
    _, at, at_counted = np.intersect1d(ngrams, counted, assume_unique=True, return_indices=True)
    joint[at] = times[at_counted]

    # 3. interpolate: (joint + t × shorter) / (n + t); a context that training never met leaves it to `shorter`
    n, t = seen[context_of_answer], followers[context_of_answer]
    below = shorter[has_context]
    mixed = shorter.copy()
    mixed[has_context] = np.where(n > 0, (joint[ngram_of_answer] + t * below) / np.maximum(n + t, 1), below)
    return mixed


def _count(train: Stream, contexts: np.ndarray, width: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct n-grams of the training text that start with one of the contexts, and their counts."""
    parts = []
    for ids in _blocks(train, width + 1):
        ngrams, times = np.unique(_as_numbers(ids, width + 1, vocab_size), return_counts=True)
        wanted = np.isin(ngrams // vocab_size, contexts)
        parts.append((ngrams[wanted], times[wanted]))
    ngrams, index = np.unique(np.concatenate([ngrams for ngrams, _ in parts]), return_inverse=True)
    return ngrams, np.bincount(index, np.concatenate([times for _, times in parts]), len(ngrams)).astype(np.int64)
