"""Chunks on their way from the engine's thread to the event loop: all arrive, in order, and none waits for another."""

import asyncio
import threading

from helpers.generate.settings import Chunk
from helpers.serve.streams import ChunkQueue, event


def chunk(text):
    return Chunk(0, text, (), None)


def test_chunks_of_another_thread_arrive_in_order():
    async def scene():
        queue, taken = ChunkQueue(), []
        thread = threading.Thread(target=lambda: [queue.put(n % 3, chunk(str(n))) for n in range(1000)])
        thread.start()
        async with asyncio.timeout(20):
            while len(taken) < 1000:
                taken += await queue.take()
        thread.join()
        assert [(number, part.text) for number, part in taken] == [(n % 3, str(n)) for n in range(1000)]

    asyncio.run(scene())


def test_what_waits_is_taken_at_once():
    async def scene():
        queue = ChunkQueue()
        for text in "你好":
            queue.put(0, chunk(text))
        queue.put(0, None)
        assert [part and part.text for _, part in await queue.take()] == ["你", "好", None]

    asyncio.run(scene())


def test_a_chunk_for_a_loop_that_has_ended_is_no_error():
    async def make():
        return ChunkQueue()

    asyncio.run(make()).put(0, chunk("你"))


def test_an_event_is_one_block():
    assert event('{"text": "你\\n"}') == 'data: {"text": "你\\n"}\n\n'.encode()
