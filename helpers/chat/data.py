"""What a model learns to answer from: the conversations of a run, and plain documents against forgetting.

Conversations are documents of room 01 that keep their turns (`messages`). The built-in corpus has as many as one likes,
drawn from its grammar, and the exact probability of each answer. Knows nothing of models.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.corpus import built_in
from helpers.corpus.find import BUILT_IN
from helpers.corpus.shards import read_texts, shard_documents
from helpers.manifest import RoomError, open_room
from helpers.vocab.chat import ASSISTANT, USER, Encoded, Message
from helpers.vocab.tokenizer import encode

BUILT_IN_COUNT = 12_000  # conversations of the built-in grammar to learn from
VALIDATION = 500  # and those that are kept out of training


@dataclass(frozen=True)
class Lessons:
    """Conversations to learn from, and others to be judged by."""

    train: list[list[Message]]
    val: list[list[Message]]
    floor_bits_per_char: float | None  # of the answers in `val`: what the built-in grammar itself needs for them

    @property
    def val_characters(self) -> int:
        """The characters of all answers in `val`."""
        return sum(len(each["content"]) for talk in self.val for each in talk if each["role"] == ASSISTANT)


def messages_of(exchanges: Sequence[built_in.AnsweredQuestion]) -> list[Message]:
    """Return a conversation of the built-in corpus as messages."""
    return [
        {"role": role, "content": content}
        for each in exchanges
        for role, content in ((USER, each.question), (ASSISTANT, each.answer))
    ]


def load_lessons(run: str, most: int, seed: int) -> Lessons:
    """Return at most `most` conversations of a run to learn from, and those kept out; 0: all, or BUILT_IN_COUNT.

    From a corpus of one's own they are the documents that are conversations, in the split of room 01. Raises RoomError
    where there are none.
    """
    facts = open_room(run, "corpus")["result"]
    if facts["source"] == BUILT_IN:
        drawn = list(
            built_in.draw_conversations((most or BUILT_IN_COUNT) + VALIDATION, seed + 1)
        )  # another seed than that of the documents
        kept_out, learnt = drawn[:VALIDATION], drawn[VALIDATION:]
        bits = math.fsum(each.bits for exchanges in kept_out for each in exchanges)
        lessons = Lessons(list(map(messages_of, learnt)), list(map(messages_of, kept_out)), None)
        return Lessons(lessons.train, lessons.val, bits / lessons.val_characters)
    train = list(islice(_conversations(run, "train"), most or None))
    val = list(islice(_conversations(run, "val"), most or None))
    if not train or not val:
        raise RoomError(
            f"the corpus of run '{run}' holds {len(train)} conversations to learn from and {len(val)} to be judged by. "
            "Put your conversations (messages, ShareGPT, Alpaca, or a CSV with the columns question and answer) beside "
            f"your texts, and start again: python -m helpers.run --run {run} --corpus FOLDER"
        )
    return Lessons(train, val, None)


def _conversations(run: str, split: str) -> Iterator[list[Message]]:
    for shard in paths.shards(run, "corpus", split, ".jsonl"):
        yield from (document["messages"] for document in shard_documents(shard) if document.get("messages"))


def plain_documents(run: str, tokenizer: PreTrainedTokenizerFast, count: int, n_ctx: int, seed: int) -> list[Encoded]:
    """Return up to `count` of a run's training documents as ids to be learnt whole; of a long one, a window of it.

    Seen again between the conversations, they keep the model from forgetting what it could (rehearsal; Robins 1995).
    Drawn in one pass, with room for `count` of them only (reservoir sampling; Vitter 1985). Where a document is longer
    than a window, the place of the window is drawn too: were it left out, long documents would be forgotten.
    """
    if not count:
        return []
    drawn: list[str] = []
    rng = random.Random(seed)
    for number, text in enumerate(read_texts(run, "train")):
        if number < count:
            drawn.append(text)
        elif (place := rng.randrange(number + 1)) < count:
            drawn[place] = text
    replayed = []
    for text in drawn:
        ids = [tokenizer.bos_token_id, *encode(tokenizer, text), tokenizer.eos_token_id]
        if len(ids) > n_ctx + 1:  # one more than inputs: the last id is a label only
            begin = rng.randrange(len(ids) - n_ctx)
            ids = ids[begin : begin + n_ctx + 1]
        replayed.append(Encoded(ids, [True] * len(ids)))
    return replayed
