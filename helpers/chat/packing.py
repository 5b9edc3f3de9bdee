"""Conversations become windows: packed one behind the other, none sees another, and only answers have labels.

A window is filled with whole conversations. In each of them positions begin at 0 again, and from that the library's
attention knows where one ends and the next begins (a block-diagonal mask). So a packed batch gives what its
conversations give one by one, and hardly a place is padding.
"""

import bisect
import copy
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from helpers.tokens.windows import IGNORE
from helpers.vocab.chat import SYSTEM, Encoded, Message, encode_messages


class Conversations:
    """Windows of at most `n_ctx` ids over encoded conversations; what `Trainer` needs of `tokens.windows.Windows`.

    Window of the conversations 1 2 3 4 and 5 6 7, whose answers are 3 4 and 7, with n_ctx = 6, pad_id = 0:

        inputs     1    2    3    5    6    0
        labels  -100    3    4 -100    7 -100
        positions  0    1    2    0    1    0

    Raises ValueError for a conversation that is too long (see `fitting`), and if there is none at all.
    """

    packed = True

    def __init__(self, conversations: Iterable[Encoded], n_ctx: int, pad_id: int):
        self.n_ctx, self.pad_id = n_ctx, pad_id
        # 1. all ids in a row: five bytes a token, however many conversations there are
        ids, is_answer, sizes = array("i"), bytearray(), array("i")
        for each in conversations:
            ids.extend(each.ids)
            is_answer.extend(each.is_answer)
            sizes.append(len(each.ids))
        if not sizes:
            raise ValueError("there is no conversation to learn from")
        self.ids, self.is_answer = np.frombuffer(ids, np.intc), np.frombuffer(is_answer, np.bool_)  # (tokens,) each
        self.begins = np.concatenate([[0], np.cumsum(sizes)])  # (conversations + 1,)
        # 2. who shares a window
        inputs = np.diff(self.begins) - 1  # the last id is a label only
        if inputs.max() > n_ctx:
            raise ValueError(f"a conversation has {inputs.max() + 1} tokens, and a window of {n_ctx} holds {n_ctx + 1}")
        self.windows = pack(inputs, n_ctx)
        # 3. what each window holds
        labels = np.add.reduceat(self.is_answer, self.begins[:-1], dtype=np.int64) - self.is_answer[self.begins[:-1]]
        self.lengths = np.array([int(inputs[members].sum()) for members in self.windows])  # (windows,)
        self.labels = np.array([int(labels[members].sum()) for members in self.windows])  # (windows,)

    def __len__(self) -> int:
        return len(self.windows)

    def first(self, count: int) -> "Conversations":
        """Return the first `count` of these windows."""
        part = copy.copy(self)
        part.windows, part.lengths, part.labels = self.windows[:count], self.lengths[:count], self.labels[:count]
        return part

    def conversation(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, is_answer) of one conversation, (tokens,) each."""
        part = slice(self.begins[number], self.begins[number + 1])
        return self.ids[part], self.is_answer[part]

    def count_labels(self, indices: np.ndarray) -> int:
        """Return how many tokens of these windows have a label."""
        return int(self.labels[indices].sum())

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (inputs, labels, positions), each (B, T) int64; T is the longest window, rounded up to 8."""
        rows = zip(*(self[int(i)] for i in indices), strict=True)
        width = min(self.n_ctx, -8 * (-int(self.lengths[np.asarray(indices)].max()) // 8))
        inputs, labels, positions = (torch.from_numpy(np.stack(each)[:, :width]) for each in rows)
        return inputs, labels, positions


def pack(sizes: np.ndarray, n_ctx: int) -> list[list[int]]:
    """Return which conversations share a window: each goes where it leaves the least room.

    The longest are placed first (best fit decreasing; Johnson et al. 1974).
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


def fitting(
    tokenizer: PreTrainedTokenizerFast,
    conversations: Iterable[Sequence[Message]],
    n_ctx: int,
    left_out: list[Sequence[Message]] | None = None,
) -> Iterator[Encoded]:
    """Yield conversations as ids, in pieces where one is longer than a window: whole exchanges, and the system line.

    A piece begins without what was said before it, as when the oldest turns leave a full context. An exchange that no
    window holds is left out, and added to the list `left_out`.
    """
    for messages in conversations:
        encoded = encode_messages(tokenizer, messages)
        if len(encoded.ids) <= n_ctx + 1:
            yield encoded
            continue
        system = list(messages[:1]) if messages[0]["role"] == SYSTEM else []
        spoken = messages[len(system) :]
        begin, held = 0, None
        for end in range(2, len(spoken) + 1, 2):
            longer = encode_messages(tokenizer, [*system, *spoken[begin:end]])
            if len(longer.ids) > n_ctx + 1:
                if held:
                    yield held
                begin, longer = end - 2, encode_messages(tokenizer, [*system, *spoken[end - 2 : end]])
            if len(longer.ids) <= n_ctx + 1:
                held = longer
            else:  # this exchange alone is too long
                if left_out is not None:
                    left_out.append(spoken[begin:end])
                begin, held = end, None
        if held:
            yield held
