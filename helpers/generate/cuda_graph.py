"""A decoding step as a CUDA graph: hundreds of kernels that a GPU starts by itself, as they were recorded.

One new token per row is little work for a GPU: it waits for Python, which starts one kernel after another, most of the
time. A graph holds all kernels of a step and is started as a whole. It does the same work at the same addresses each
time, so ids and positions have fixed places, rows are rounded up to a power of two, and attention reads the whole cache
behind a mask. Knows no model: what a step does, `inference` says.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]  # ids (R,), positions (R,) -> logits (R, V)


def rounded_up(rows: int, most: int) -> int:
    """Return the next power of two, but at most `most`: for 64 rows seven graphs are enough."""
    return min(1 << (rows - 1).bit_length(), most)


class GraphedStep:
    """A step of at most `rows` rows, recorded when it is first called.

    It writes into the cache it was made for, also beyond the rows that are given: those must be free.
    """

    def __init__(self, step: Step, rows: int, device: torch.device) -> None:
        self._step = step
        self._ids = torch.zeros(rows, dtype=torch.long, device=device)
        self._positions = torch.zeros(rows, dtype=torch.long, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor

    def __call__(self, ids: Tensor, positions: Sequence[int]) -> Tensor:
        """Return the logits (B, V) after one more id (B,) at these positions; call it in inference mode."""
        self._ids[: len(ids)] = ids
        self._positions[: len(ids)] = torch.tensor(positions)
        if self._graph is None:
            self._record()
        assert self._graph is not None
        self._graph.replay()
        return self._logits[: len(ids)].clone()  # the next replay overwrites them

    def _record(self) -> None:
        # once without recording, aside: libraries prepare themselves at their first call. It writes into the cache what
        # the replay will write
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._step(self._ids, self._positions)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads go on
            self._logits = self._step(self._ids, self._positions)
        self._graph = graph
