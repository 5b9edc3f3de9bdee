"""Continuous batching: one thread writes the texts of many requests in one batch.

Requests join and leave the batch between any two tokens (Yu et al. 2022, "Orca"): a short one never waits for a long
one to end. A request's text is the one it would get alone. Knows nothing of HTTP.
"""

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerFast

from helpers.generate.batch import DecodeBatch, Row, prompt_ids
from helpers.generate.settings import DEFAULT_SETTINGS, Chunk, Sample, Settings
from helpers.model.gpt import GPT
from helpers.serve.limits import DEFAULT_LIMITS, Limits

_log = logging.getLogger(__name__)

OnChunk = Callable[[Chunk], None]
# parameters; the steps of a small model are too short to be shared among cores: with 3 million, one thread is faster
_SMALL = 30_000_000


class QueueFull(RuntimeError):
    """The queue is full, or no place in the batch became free in time: the caller may ask again later."""


class NotRunning(RuntimeError):
    """The engine takes no request, or has failed and will not finish this one."""


@dataclass(eq=False)
class _Request:
    """One call of `Engine.submit`: its arguments, the rows that write its samples, and its future."""

    prompt: str
    ids: Sequence[int] | None
    settings: Settings
    samples: int
    listener: OnChunk | None
    submitted: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    future: Future[list[Sample]] = field(default_factory=Future)

    def settle(self, tokenizer: PreTrainedTokenizerFast, error: Exception | None = None) -> None:
        """Give the future its samples, or the error; called once per request, also for a cancelled one."""
        # until now the future was pending: a running one could no longer be cancelled
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            if error:
                raise error
            self.future.set_result([row.result(tokenizer, self.prompt) for row in self.rows])
        except Exception as failure:
            self.future.set_exception(failure)


class Engine:
    """A worker thread around a `DecodeBatch`; submit from any thread.

    limits: max_rows, max_queue and queue_seconds are used here. on_first_token(seconds) is called in the engine's
    thread, with the time between a request and its first token. on_failure() is called there when the thread ends
    before `close`: the engine is of no more use then, and all requests have been told.
    """

    def __init__(self, model: GPT, tokenizer: PreTrainedTokenizerFast, limits: Limits = DEFAULT_LIMITS):
        self.model, self.tokenizer, self.limits = model, tokenizer, limits
        self.max_rows = limits.max_rows
        self.tokens = 0  # written since the engine started
        self.on_first_token: Callable[[float], None] | None = None
        self.on_failure: Callable[[], object] | None = None
        self._batch = DecodeBatch(model, tokenizer)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._closing = False
        self._wake = threading.Condition()  # its lock is reentrant; it guards the fields above
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Return whether a request can be submitted."""
        return self._thread.is_alive() and not self._closing

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a place in the batch."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Return whether the queue has no place left."""
        return self.waiting >= self.limits.max_queue

    @property
    def rows(self) -> int:
        """The number of texts that are being written."""
        return len(self._batch.rows)

    def start(self) -> "Engine":
        """Start the worker thread."""
        self._thread.start()
        return self

    def submit(
        self,
        prompt: str,
        settings: Settings = DEFAULT_SETTINGS,
        samples: int = 1,
        *,
        ids: Sequence[int] | None = None,
        listener: OnChunk | None = None,
    ) -> Future[list[Sample]]:
        """Queue a request and return the future of its samples; each text starts with the prompt.

        ids: the prompt's, from `prompt_ids`, if they are known. listener: gets the chunks while they are written, in
        the engine's thread, and must return at once. Cancelling the future removes its rows within one token. Raises
        ValueError for a number of samples that never fits; QueueFull and NotRunning, as the future may do later.
        """
        if not 1 <= samples <= self.max_rows:
            raise ValueError(f"samples is {samples}: this engine writes 1 to {self.max_rows} at once")
        request = _Request(prompt, ids, settings, samples, listener)
        with self._wake:
            if not self.alive:
                raise NotRunning("the engine is not running: call start(), and submit before close()")
            if self.full:
                raise QueueFull(f"{self.limits.max_queue} requests are waiting already: ask again later")
            self._waiting.append(request)
            self._wake.notify()
        request.future.add_done_callback(lambda _: self._give_up(request))
        return request.future

    def _give_up(self, request: _Request) -> None:
        """Free the place of a request that was cancelled while it waited (in the thread that cancelled it)."""
        with self._wake:
            if request.future.cancelled() and request in self._waiting:
                self._waiting.remove(request)

    def close(self, cancel: bool = False) -> None:
        """Accept no more requests, finish (or cancel) those in the engine, and wait for the thread to end."""
        with self._wake:
            self._closing = True
            if cancel:
                for request in [*self._waiting, *self._running]:
                    request.future.cancel()
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        """Write until the engine is closed and idle; if an error ends this, nobody is left waiting."""
        try:
            self._write()
        except Exception as error:
            # without its message, which may quote a prompt
            trace = "".join(traceback.format_tb(error.__traceback__))
            _log.error("the engine has failed: %s\n%s", type(error).__name__, trace)
        finally:
            with self._wake:
                failed, self._closing = not self._closing, True
                left = [*self._running, *self._waiting]
                self._running.clear()
                self._waiting.clear()
            for request in left:
                request.settle(self.tokenizer, NotRunning("the engine has failed for good: start another one"))
            if failed and self.on_failure:
                self.on_failure()

    def _write(self) -> None:
        if self.model.config.sizes()["parameters"] <= _SMALL:
            torch.set_num_threads(1)  # of this thread only: other threads keep the other cores
        while (joining := self._admit()) is not None:
            try:
                self._batch.add([row for request in joining for row in self._begin(request) if not row.done])
                if self._batch.rows:
                    self.tokens += len(self._batch.rows)
                    self._batch.step()
                for request in joining:
                    if self.on_first_token and request.rows:
                        self.on_first_token(time.monotonic() - request.submitted)
                for request in self._running:
                    if request.listener and not request.future.cancelled():
                        for chunk in filter(None, [row.take() for row in request.rows]):
                            request.listener(chunk)
                ended = [r for r in self._running if r.future.cancelled() or all(row.done for row in r.rows)]
                self._batch.drop([row for request in ended for row in request.rows])
                self._settle(ended)
            except Exception as error:  # e.g. out of memory: every request in the batch fails, later ones are served
                self._settle(list(self._running), error)
                # the old batch may hold rows that it has not read, and could not drop them; if a new one fails as well,
                # nothing works any more: a GPU, say, that answers each call with the same error
                self._batch = DecodeBatch(self.model, self.tokenizer)

    def _admit(self) -> list[_Request] | None:
        """Wait for work; return the requests that join the batch now, None when the engine is closed and idle."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._running or self._closing)
            if not self._waiting and not self._running:
                return None
            joining, free = [], self.max_rows - len(self._batch.rows)
            # in order of arrival: smaller requests must not overtake a bigger one for ever
            while self._waiting and (self._has_left(self._waiting[0]) or self._waiting[0].samples <= free):
                request = self._waiting.popleft()
                if self._has_left(request):
                    request.settle(self.tokenizer, QueueFull("no place was free in time: ask again later"))
                    continue
                free -= request.samples
                joining.append(request)
            self._running += joining
            return joining

    def _has_left(self, request: _Request) -> bool:
        """Return whether a waiting request was cancelled or has waited too long."""
        late = time.monotonic() - request.submitted > self.limits.queue_seconds
        return late or request.future.cancelled()

    def _begin(self, request: _Request) -> list[Row]:
        try:
            ids = prompt_ids(self.tokenizer, request.prompt) if request.ids is None else request.ids
            streamed = request.listener is not None
            rows = [Row(ids, request.settings, number, streamed) for number in range(request.samples)]
            for row in rows:
                row.begin(self.tokenizer)
        except Exception as error:  # a prompt that cannot be encoded fails its own request only
            self._settle([request], error)
            return []
        request.rows = rows
        return rows

    def _settle(self, requests: list[_Request], error: Exception | None = None) -> None:
        for request in requests:
            with self._wake:
                self._running.remove(request)
            request.settle(self.tokenizer, error)
