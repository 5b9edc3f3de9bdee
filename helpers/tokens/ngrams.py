"""What a model must beat: models that only count, judged on the validation text. "What loss is right?"

The counts are sorted arrays of numbers, no dictionaries, and only of contexts that the validation text asks for: ten
million tokens take some seconds and some hundred megabytes. Knows nothing of characters; who wants bits a character
divides by ln 2 and by the characters a token.
"""

import math
from collections.abc import Iterator

import numpy as np

from helpers.tokens.windows import Stream

# a corpus may have more; the figures then move in the second decimal, and counting would take hours
TRAIN_TOKENS, VAL_TOKENS = 2**27, 2**23
_AT_ONCE = 2**22  # training tokens that are read at a time
_A_PASS = 2**25  # training tokens, about, whose successors are held at a time


def baselines(train: Stream, val: Stream, vocab_size: int, bos_id: int) -> dict[str, float]:
    """Return the cross-entropy on `val`, in nats a token, of four models that only count in `train`.

    uniform: ln vocab_size. unigram, bigram, trigram: see `probabilities`. The start of a document follows every end;
    it is nobody's answer. Of long texts the first TRAIN_TOKENS and VAL_TOKENS are used.
    """
    found = probabilities(train, val.read(0, VAL_TOKENS), vocab_size, bos_id)
    return {"uniform": math.log(vocab_size)} | {name: float(-np.log(p).mean()) for name, p in found.items()}


def probabilities(train: Stream, held: np.ndarray, vocab_size: int, bos_id: int) -> dict[str, np.ndarray]:
    """Return what each model that counts in `train` gives to the answers in the ids `held`: all but the first and bos.

    unigram: add-one frequencies. bigram and trigram: Witten-Bell interpolation with the model that looks one token
    less far back (Witten and Bell 1991): a context that was seen n times, with t different tokens behind it, is
    trusted n / (n + t). Over the whole vocabulary each model's probabilities add up to 1.
    """
    counts = sum(np.bincount(ids, minlength=vocab_size) for ids in _blocks(train, 1))
    counts[bos_id] = 0
    answers = np.flatnonzero(held != bos_id)
    answers = answers[answers > 0]
    unigram = ((counts + 1) / (counts.sum() + vocab_size))[held[answers]]
    bigram = _interpolated(train, held, answers, 1, vocab_size, unigram)
    trigram = _interpolated(train, held, answers, 2, vocab_size, bigram)
    return {"unigram": unigram, "bigram": bigram, "trigram": trigram}


def _blocks(train: Stream, width: int) -> Iterator[np.ndarray]:
    """Yield the training ids in blocks, so that each `width` ids in a row are in exactly one of them."""
    size = min(len(train), TRAIN_TOKENS)
    for start in range(0, max(1, size - width + 1), _AT_ONCE):
        yield train.read(start, min(size, start + _AT_ONCE + width - 1))


def _numbers(ids: np.ndarray, width: int, vocab_size: int) -> np.ndarray:
    """Return one number for each `width` ids in a row: the ids are its digits. (T,) -> (T - width + 1,)"""
    if vocab_size**width >= 2**63:
        raise ValueError(f"vocab_size is {vocab_size}: {width} tokens in a row do not fit into one 64-bit number")
    rows = len(ids) - width + 1
    total = np.zeros(max(0, rows), np.int64)
    for i in range(width if rows > 0 else 0):
        total = total * vocab_size + ids[i : i + rows]
    return total


def _interpolated(
    train: Stream, held: np.ndarray, answers: np.ndarray, width: int, vocab_size: int, shorter: np.ndarray
) -> np.ndarray:
    """Return the probability of each answer after the `width` ids before it, mixed with `shorter`, its probability
    after one id less."""
    whole = answers >= width  # the others have no such context
    wanted, of_answer = np.unique(_numbers(held, width + 1, vocab_size)[answers[whole] - width], return_inverse=True)
    contexts, of_wanted = np.unique(wanted // vocab_size, return_inverse=True)
    seen, followers, joint = (np.zeros(len(found), np.int64) for found in (contexts, contexts, wanted))

    # the validation text tells how the training text, too, is spread over the contexts, about
    passes = -(-min(len(train), TRAIN_TOKENS) // _A_PASS)
    share = np.cumsum(np.bincount(of_wanted[of_answer], minlength=len(contexts))) / max(1, whole.sum())
    turn = np.minimum((share * passes).astype(np.int64), passes - 1)  # of each context: the pass that counts it
    for number in range(passes):
        grams, times = _count(train, contexts[turn == number], width, vocab_size)
        at = np.searchsorted(contexts, grams // vocab_size)
        seen += np.bincount(at, times, len(contexts)).astype(np.int64)
        followers += np.bincount(at, minlength=len(contexts))
        both, here, there = np.intersect1d(wanted, grams, assume_unique=True, return_indices=True)
        joint[here] = times[there]

    place = of_wanted[of_answer]
    n, t, together = seen[place], followers[place], joint[of_answer]
    mixed = shorter.copy()
    mixed[whole] = np.where(n > 0, (together + t * shorter[whole]) / np.maximum(n + t, 1), shorter[whole])
    return mixed


def _count(train: Stream, contexts: np.ndarray, width: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the different runs of width + 1 training ids that start with one of the contexts, and how often each."""
    grams, times, waiting = np.empty(0, np.int64), np.empty(0, np.int64), []
    for ids in _blocks(train, width + 1):
        some, counts = np.unique(_numbers(ids, width + 1, vocab_size), return_counts=True)
        at = np.minimum(np.searchsorted(contexts, some // vocab_size), len(contexts) - 1)
        known = contexts[at] == some // vocab_size if len(contexts) else np.zeros(len(some), bool)
        waiting.append((some[known], counts[known]))
        if sum(len(part) for part, _ in waiting) > max(_AT_ONCE, len(grams)):
            grams, times = _added([(grams, times), *waiting])
            waiting = []
    return _added([(grams, times), *waiting])


def _added(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    grams, where = np.unique(np.concatenate([grams for grams, _ in parts]), return_inverse=True)
    return grams, np.bincount(where, np.concatenate([times for _, times in parts]), len(grams)).astype(np.int64)
