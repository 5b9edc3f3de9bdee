"""Many requests at once: one thread, one batch, which requests join and leave between any two tokens.

A short request never waits for a long one to end, and eight clients cost little more than one (continuous
batching, Yu et al. 2022, "Orca"). A request's text is the one it would get alone. Knows nothing of HTTP.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.generate.batch import DecodeBatch, Row, prompt_ids
from helpers.generate.settings import DEFAULT, Chunk, Sample, Settings

Listener = Callable[[Chunk], None]
# parameters; the steps of a small model are too short to be shared among cores: with 3 million, one thread is quicker
SMALL = 30_000_000


class QueueFull(RuntimeError):
    """The queue has no place left, or a place in the batch was not free in time: ask again later."""


class _Request:
    """What one caller wants, the rows that write it, and the future that it is handed."""

    def __init__(self, prompt: str, settings: Settings, samples: int, listener: Listener | None) -> None:
        self.prompt, self.settings, self.samples, self.listener = prompt, settings, samples, listener
        self.since = time.monotonic()
        self.rows: list[Row] = []
        self.future: Future[list[Sample]] = Future()

    def settle(self, tokenizer: PreTrainedTokenizerFast, error: Exception | None = None) -> None:
        """Give the future its texts, or the error; to be called once, also when it was cancelled."""
        # until now the future counted as pending: one that runs could not be cancelled any more
        if not self.future.set_running_or_notify_cancel():
            return
        if error:
            self.future.set_exception(error)
        else:
            self.future.set_result([row.result(tokenizer, self.prompt) for row in self.rows])


class Engine:
    """A worker thread around a `DecodeBatch`; submit from any thread.

    max_rows: texts written at once. max_queue: requests that may wait for a place, max_wait: for how many seconds.
    threads: cores that a large model may use (default: all); a small one uses one.
    on_first_token is called with the seconds between a request and its first token, in the engine's thread.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_rows: int = 16,
        max_queue: int = 64,
        max_wait: float | None = None,
        threads: int | None = None,
        on_first_token: Callable[[float], None] | None = None,
    ) -> None:
        if max_rows < 1 or max_queue < 1:
            raise ValueError(f"max_rows is {max_rows}, max_queue {max_queue}: each must be 1 or more")
        self.model, self.tokenizer = model, tokenizer
        self.max_rows, self.max_queue, self.max_wait = max_rows, max_queue, max_wait
        self.threads = 1 if model.num_parameters() <= SMALL else threads
        self.tokens = 0  # written since the start
        self.on_first_token = on_first_token
        self._batch = DecodeBatch(model, tokenizer)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._closing = False
        self._wake = threading.Condition()  # of a lock that its holder may take again; guards what is above
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether a request can be submitted."""
        return self._thread.is_alive() and not self._closing

    @property
    def waiting(self) -> int:
        """How many requests wait for a place in the batch."""
        with self._wake:
            return sum(not request.future.cancelled() for request in self._waiting)

    @property
    def full(self) -> bool:
        """Whether the queue has no place left."""
        return self.waiting >= self.max_queue

    @property
    def rows(self) -> int:
        """How many texts are being written."""
        return len(self._batch.rows)

    def start(self) -> "Engine":
        """Start the worker thread."""
        self._thread.start()
        return self

    def submit(
        self, prompt: str, settings: Settings = DEFAULT, samples: int = 1, *, listener: Listener | None = None
    ) -> Future[list[Sample]]:
        """Queue a request and return the future of its samples, each text starting with the prompt.

        `listener` gets the samples' pieces while they are written; it is called in the engine's thread and must return
        at once. Cancelling the future, queued or running, takes its rows out within one token. Raises QueueFull (so
        does the future of a request that waited for too long), ValueError for a number of samples that never fits,
        RuntimeError when the engine does not run.
        """
        if not 1 <= samples <= self.max_rows:
            raise ValueError(f"samples is {samples}: this engine writes 1 to {self.max_rows} at once")
        request = _Request(prompt, settings, samples, listener)
        with self._wake:
            if not self.alive:
                raise RuntimeError("the engine is not running: call start(), and submit before close()")
            if self.full:
                raise QueueFull(f"{self.max_queue} requests are waiting already: ask again later")
            self._waiting.append(request)
            self._wake.notify()
        return request.future

    def close(self, cancel: bool = False) -> None:
        """Take no more requests, finish (or cancel) those that are here, and wait for the thread to end."""
        with self._wake:
            self._closing = True
            if cancel:
                for request in [*self._waiting, *self._running]:
                    request.future.cancel()
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        if self.threads:
            torch.set_num_threads(self.threads)  # of this thread: what others do keeps the other cores
        while (joining := self._admit()) is not None:
            try:
                self._batch.add([row for request in joining for row in self._begin(request) if not row.done])
                if self._batch.rows:
                    self.tokens += len(self._batch.rows)
                    self._batch.step()
                for request in joining:
                    if self.on_first_token and request.rows:
                        self.on_first_token(time.monotonic() - request.since)
                self._tell()
            except Exception as error:  # out of memory, say: all who are in this batch are told, the next ones served
                self._settle(list(self._running), error)
                self._batch = DecodeBatch(self.model, self.tokenizer)
            self._settle([r for r in self._running if r.future.cancelled() or all(row.done for row in r.rows)])

    def _admit(self) -> list[_Request] | None:
        """Wait for something to do; return the requests that now have a place, None when closed and all is done."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._running or self._closing)
            if not self._waiting and not self._running:
                return None
            joining, free = [], self.max_rows - len(self._batch.rows)
            # in order of arrival: smaller requests must not overtake a bigger one for ever
            while self._waiting and (self._gone(self._waiting[0]) or self._waiting[0].samples <= free):
                request = self._waiting.popleft()
                if self._gone(request):
                    request.settle(self.tokenizer, QueueFull("no place was free in time: ask again later"))
                    continue
                free -= request.samples
                joining.append(request)
            self._running += joining
            return joining

    def _gone(self, request: _Request) -> bool:
        late = self.max_wait is not None and time.monotonic() - request.since > self.max_wait
        return late or request.future.cancelled()

    def _begin(self, request: _Request) -> list[Row]:
        try:
            ids = prompt_ids(self.tokenizer, request.prompt)
            watched = request.listener is not None
            rows = [Row(ids, request.settings, number, watched) for number in range(request.samples)]
            for row in rows:
                row.begin(self.tokenizer)
        except Exception as error:  # a prompt that cannot be encoded is its caller's matter alone
            self._settle([request], error)
            return []
        request.rows = rows
        return rows

    def _tell(self) -> None:
        for request in self._running:
            if request.listener and not request.future.cancelled():
                for row in request.rows:
                    if piece := row.take():
                        request.listener(piece)

    def _settle(self, requests: list[_Request], error: Exception | None = None) -> None:
        for request in requests:
            with self._wake:
                self._running.remove(request)
            self._batch.drop(request.rows)
            request.settle(self.tokenizer, error)
