"""What a model learns to answer from: conversations and plain documents, packed into windows.

Conversations are documents of room 01 that keep their turns (`messages`). The built-in grammar gives any number of
them, and the exact probability of each answer. A window is filled with whole conversations; in each of them positions
begin at 0 again, which tells the attention where one ends (a block-diagonal mask): a packed batch computes what its
conversations give one by one, and hardly any place is padding. Knows nothing of models.
"""

import bisect
import math
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.corpus import built_in
from helpers.corpus.find import BUILT_IN
from helpers.corpus.shards import shard_documents
from helpers.manifest import RoomError, open_room
from helpers.tokens.windows import IGNORE, Examples
from helpers.vocab.chat import ASSISTANT, SYSTEM, USER, ChatError, Encoded, Message, adds_only, encode_messages
from helpers.vocab.tokenizer import encode, encode_batch

BUILT_IN_COUNT = 12_000  # conversations of the built-in grammar to learn from
VALIDATION = 500  # more of them, kept out of training


@dataclass(frozen=True)
class Lessons:
    """Conversations to learn from, and others to be judged by."""

    train: list[list[Message]]
    val: list[list[Message]]
    floor_bits_per_char: float | None  # what the built-in grammar itself needs for the answers in `val`


def exchange_messages(exchanges: Sequence[built_in.AnsweredQuestion]) -> list[Message]:
    """Return a conversation of the built-in corpus as messages."""
    return [
        {"role": role, "content": content}
        for each in exchanges
        for role, content in ((USER, each.question), (ASSISTANT, each.answer))
    ]


def load_lessons(run: str, most: int, seed: int) -> Lessons:
    """Return at most `most` conversations of a run to learn from, and those kept out; 0: all, or BUILT_IN_COUNT.

    Of an own corpus they are the documents with messages, in the split of room 01. Raises RoomError if there are none.
    """
    facts = open_room(run, "corpus")["result"]
    if facts["source"] == BUILT_IN:
        # with another seed than the documents
        drawn = list(built_in.draw_conversations((most or BUILT_IN_COUNT) + VALIDATION, seed + 1))
        judged = list(chain.from_iterable(drawn[:VALIDATION]))
        floor = math.fsum(each.bits for each in judged) / sum(len(each.answer) for each in judged)
        talks = list(map(exchange_messages, drawn))
        return Lessons(talks[VALIDATION:], talks[:VALIDATION], floor)
    train = list(islice(_conversations(run, "train"), most or None))
    val = list(islice(_conversations(run, "val"), most or None))
    if not train or not val:
        raise RoomError(
            f"the corpus of run '{run}' holds {len(train)} conversations to learn from and {len(val)} for validation. "
            "Put your conversations (messages, ShareGPT, Alpaca, or a CSV with the columns question and answer) beside "
            f"your texts, and start again: python -m helpers.run --run {run} --corpus FOLDER"
        )
    return Lessons(train, val, None)


def _conversations(run: str, split: str) -> Iterator[list[Message]]:
    yield from (document["messages"] for document in _documents(run, split) if document.get("messages"))


def _documents(run: str, split: str) -> Iterator[dict]:
    return chain.from_iterable(map(shard_documents, paths.shards(run, "corpus", split, ".jsonl")))


def plain_documents(
    run: str, tokenizer: PreTrainedTokenizerFast, count: int, n_ctx: int, seed: int, with_talks: bool = True
) -> list[Encoded]:
    """Return up to `count` training documents as ids to be learnt; of a long one, a random window.

    Between the conversations they keep the model from forgetting (rehearsal; Robins 1995). They are drawn in one pass,
    with `count` of them in memory (reservoir sampling; Vitter 1985). Of a conversation's text it is not learnt that the
    user's next question follows an answer: an answer ends there.
    """
    if not count:
        return []
    drawn: list[dict] = []
    rng = random.Random(seed)
    documents = (each for each in _documents(run, "train") if with_talks or not each.get("messages"))
    for number, document in enumerate(documents):
        if number < count:
            drawn.append(document)
        elif (place := rng.randrange(number + 1)) < count:
            drawn[place] = document
    replayed = []
    for document in drawn:
        text, turns = document["text"], document.get("messages") or []
        ids = [tokenizer.bos_token_id, *encode(tokenizer, text), tokenizer.eos_token_id]
        # the turns are joined by line breaks
        ends = accumulate(len(message["content"]) + 1 for message in turns)
        before = [text[: end - 1] for end, turn in zip(ends, turns[1:], strict=False) if turn["role"] == USER]
        goes_on = {1 + len(answered) for answered in encode_batch(tokenizer, before)}
        is_learnt = [place not in goes_on for place in range(len(ids))]
        begin = rng.randrange(len(ids) - n_ctx) if len(ids) > n_ctx + 1 else 0  # the last id is a label only
        window = slice(begin, begin + n_ctx + 1)
        replayed.append(Encoded(ids[window], is_learnt[window]))
    return replayed


def fitting(
    tokenizer: PreTrainedTokenizerFast,
    conversations: Iterable[Sequence[Message]],
    n_ctx: int,
    left_out: list[Sequence[Message]] | None = None,
) -> Iterator[Encoded]:
    """Yield conversations as ids; one longer than a window in pieces of whole exchanges, each with the system line.

    Where a template changes older answers, see `chat.adds_only`, each answer comes by itself, after the exchanges
    before it. What no window holds, and what the template refuses, is left out and added to the list `left_out`.
    Raises ChatError if it refuses all.
    """
    refused, is_used, lost = None, False, [] if left_out is None else left_out
    for messages in conversations:
        try:
            pieces = list(_pieces(tokenizer, messages, n_ctx + 1, lost))
        except ChatError as error:
            refused = error
            lost.append(messages)
            continue
        is_used = True
        yield from pieces
    if refused and not is_used:
        raise refused


def _pieces(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], most: int, left_out: list[Sequence[Message]]
) -> Iterator[Encoded]:
    """Yield a conversation as ids, in pieces of at most so many; see `fitting`."""
    system = list(messages[:1]) if messages[0]["role"] == SYSTEM else []
    turns, all_at_once = messages[len(system) :], adds_only(tokenizer)
    if all_at_once and len((whole := encode_messages(tokenizer, messages)).ids) <= most:
        yield whole
        return
    begin, piece = 0, None
    for end in range(2, len(turns) + 1, 2):
        begins = (begin, end - 2) if all_at_once else range(0, end, 2)
        tried = ((at, encode_messages(tokenizer, [*system, *turns[at:end]])) for at in begins)
        at, longer = next((each for each in tried if len(each[1].ids) <= most), (end, None))
        if piece and not (all_at_once and at == begin):  # it cannot become longer
            yield piece
        if not longer:  # this exchange alone is too long
            left_out.append(turns[end - 2 : end])
        begin, piece = at, longer
    if piece:
        yield piece


class Conversations(Examples):
    """Windows of at most `n_ctx` ids over encoded conversations: the examples of fine-tuning.

    The window of the conversations 1 2 3 4 and 5 6 7, whose answers are 3 4 and 7, with n_ctx = 6, pad_id = 0:

        inputs     1    2    3    5    6    0
        labels  -100    3    4 -100    7 -100
        positions  0    1    2    0    1    0

    Raises ValueError for a conversation that is too long (see `fitting`), and if there is none.
    """

    packed = True

    def __init__(self, conversations: Iterable[Encoded], n_ctx: int, pad_id: int):
        self.n_ctx, self.pad_id = n_ctx, pad_id
        # all ids in a row: five bytes a token
        ids, is_answer, sizes = array("i"), bytearray(), array("i")
        for each in conversations:
            ids.extend(each.ids)
            is_answer.extend(each.is_answer)
            sizes.append(len(each.ids))
        if not sizes:
            raise ValueError("there is no conversation to learn from")
        self.ids, self.is_answer = np.frombuffer(ids, np.intc), np.frombuffer(is_answer, np.bool_)  # (tokens,) each
        self.begins = np.concatenate([[0], np.cumsum(sizes)])  # (conversations + 1,)
        inputs = np.diff(self.begins) - 1  # the last id is a label only
        if inputs.max() > n_ctx:
            raise ValueError(f"a conversation has {inputs.max() + 1} tokens, and a window of {n_ctx} holds {n_ctx + 1}")
        self.windows = pack_windows(inputs, n_ctx)
        labels = np.add.reduceat(self.is_answer, self.begins[:-1], dtype=np.int64) - self.is_answer[self.begins[:-1]]
        self.lengths = np.array([int(inputs[members].sum()) for members in self.windows])  # (windows,)
        self.labels = np.array([int(labels[members].sum()) for members in self.windows])  # (windows,)

    def conversation(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, is_answer) of one conversation, (tokens,) each."""
        part = slice(self.begins[number], self.begins[number + 1])
        return self.ids[part], self.is_answer[part]

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        """Return (inputs, labels, positions) of one window, each (n_ctx,) int64."""
        inputs = np.full(self.n_ctx, self.pad_id, np.int64)
        labels = np.full(self.n_ctx, IGNORE, np.int64)
        positions = np.zeros(self.n_ctx, np.int64)
        at = 0
        for member in self.windows[index]:
            ids, is_answer = self.conversation(member)
            end = at + len(ids) - 1
            inputs[at:end] = ids[:-1]
            labels[at:end] = np.where(is_answer[1:], ids[1:], IGNORE)
            positions[at:end] = np.arange(end - at)
            at = end
        positions[at:] = np.arange(self.n_ctx - at)
        return inputs, labels, positions


def pack_windows(sizes: np.ndarray, n_ctx: int) -> list[list[int]]:
    """Return which conversations share a window (best fit decreasing; Johnson et al. 1974).

    The longest is placed first, and each where it leaves the least room.
    """
    windows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, window), sorted
    for number in sizes.argsort(kind="stable")[::-1].tolist():
        size = int(sizes[number])
        place = bisect.bisect_left(free, (size, 0))
        if place == len(free):
            windows.append([])
            left, window = n_ctx, len(windows) - 1
        else:
            left, window = free.pop(place)
        windows[window].append(number)
        if left > size:
            bisect.insort(free, (left - size, window))
    return windows
