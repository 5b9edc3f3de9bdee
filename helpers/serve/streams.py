"""Streams: the chunks of an engine's thread reach the event loop, and become server-sent events.

Knows no route and no request: `app` says what is written, `answers` what an event looks like.
"""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial

from helpers.generate.settings import Chunk
from helpers.serve.answers import Writer

LONG = 50  # tokens; an event of more takes milliseconds to write


class ChunkQueue:
    """Chunks on their way from the engine's thread to the event loop; all that are waiting are taken at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, Chunk | None]] = deque()
        self._ready = asyncio.Event()
        self._called = False  # the loop is on its way: one call wakes it for everything that arrives until it looks

    def put(self, number: int, chunk: Chunk | None) -> None:
        """Add a chunk of prompt `number`, or None when this prompt is done; callable in any thread, returns at once."""
        self._waiting.append((number, chunk))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the reader
                self._loop.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[tuple[int, Chunk | None]]:
        """Wait until there is something, and return all of it."""
        await self._ready.wait()
        self._ready.clear()
        self._called = False  # before looking: what arrives from now on calls again
        return [self._waiting.popleft() for _ in range(len(self._waiting))]


async def events(writer: Writer, chunks: ChunkQueue, futures: list[Future]) -> AsyncIterator[bytes]:
    """Yield events as the texts grow, several at once if they grow faster than events are sent."""
    for number, future in enumerate(futures):
        future.add_done_callback(partial(lambda number, _: chunks.put(number, None), number))
    unfinished = len(futures)
    while unfinished:
        # 1. take all that is new, by text
        new: dict[int, list[Chunk]] = defaultdict(list)
        for number, chunk in await chunks.take():
            if chunk is None:
                unfinished -= 1
            else:
                new[number * writer.request.samples + chunk.sample].append(chunk)
        # 2. one event per text
        lines = []
        for index, parts in new.items():
            tokens = [token for part in parts for token in part.logprobs]
            lines.append(writer.event(index, "".join(part.text for part in parts), tokens, parts[-1].reason))
            if len(tokens) > LONG:  # the client has not read for a while: others have their turn before its next text
                await asyncio.sleep(0)
        if lines:
            yield b"".join(map(event, lines))
    ending = writer.ending([future.result() for future in futures])  # raises the error of a failed request
    if ending:
        yield event(ending)


def event(data: str) -> bytes:
    """Return a server-sent event; JSON text has no line break of its own."""
    return f"data: {data}\n\n".encode()
