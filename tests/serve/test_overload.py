"""Load shedding: what is refused before HTTP is parsed, what is not, and that a client sees no difference."""

import asyncio
import json
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from service import FakeEngine, Wire, app_with, serving

from helpers.serve.app import METRICS, STATE, WRITING
from helpers.serve.overload import whole_post

BODY = '{"context": "你好"}'.encode()


def request(path="/generate", body=BODY, *more, version="1.1"):
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", *more, "", ""]).encode() + body


async def answer(wire):
    """Return the status, the headers and the body of the next answer."""
    head = (await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 10)).decode()
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, await wire.reader.readexactly(int(headers["content-length"]))


# ---- what is one whole request ----


def test_whole_requests_are_known_by_their_path():
    for path in WRITING:
        assert whole_post(request(path)) == path.encode()
        assert whole_post(request(path, BODY, "Connection: keep-alive")) == path.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request()[:-1],
        request() + b"x",
        request() + request(),
        request("/generate", BODY, "Content-Length: 3"),
        request("/generate", BODY, "Transfer-Encoding: chunked"),
        request("/generate", BODY, "transfer-encoding : chunked"),
        request("/generate", BODY, "Expect: 100-continue"),
        request("/generate", BODY, "Upgrade: websocket"),
        request("/generate", BODY, "Connection: close"),
        request("/generate", BODY, "Origin: https://example.org"),
        request("/generate", BODY, "X-More: 1", " content-length: 4"),
        request("/generate", BODY, "X-More: 1", "\ttransfer-encoding: chunked"),
        request(version="1.0"),
        request().replace(b"POST", b"GET"),
        request().replace(b"Content-Length: ", b"Content-Length: +"),
        request().replace(b"\r\n", b"\n"),
    ],
)
def test_anything_else_goes_the_long_way(data):
    assert whole_post(data) is None


@given(st.binary(max_size=200), st.integers(0, 300))
@example(b"", len(request("/generate", b"")) - 4)  # the blank line is still to come
def test_a_part_of_a_request_is_never_taken_for_one(body, cut):
    whole = request("/generate", body)
    assert whole_post(whole) == b"/generate"
    if cut < len(whole):
        assert whole_post(whole[:cut]) is None
    assert whole_post(whole + body) == (b"/generate" if not body else None)


# ---- over a connection ----


@pytest.mark.parametrize("path", WRITING)
def test_the_answer_is_the_same_by_both_ways(path):
    async def scene():
        async with serving(FakeEngine(room=0)) as session:
            quick = await Wire.open(session, request(path))
            status, headers, body = await answer(quick)
            long = await Wire.open(session, request(path, BODY, "Connection: close"))
            parsed = await answer(long)
            assert (status, json.loads(body)) == (parsed[0], json.loads(parsed[2])) and status == 429
            # aiohttp adds what time it is and its name; and the connection ends where that was asked for
            assert headers == {k: v for k, v in parsed[1].items() if k not in ("date", "server", "connection")}
            quick.writer.close()
            long.writer.close()

    asyncio.run(scene())


def test_a_connection_is_refused_served_and_refused_again():
    async def scene():
        engine = FakeEngine(room=0)
        app = app_with(engine, header_seconds=0.6)
        async with serving(app) as session:
            wire = await Wire.open(session)
            for room, wanted in ((0, 429), (0, 429), (1, 200), (1, 429), (2, 200)):
                engine.room = room
                wire.writer.write(request())
                status, headers, body = await answer(wire)
                assert status == wanted, body
                assert ("server" in headers) == (wanted == 200)  # aiohttp names itself: it has seen no refused one
                await asyncio.sleep(0.3)  # 1.5 s in all: refusals keep a connection alive, as answers do
            assert b'chinese_gpt_requests_total{route="/generate",status="429"} 3.0' in app[METRICS].text()[0]
            assert b'chinese_gpt_rejects_total{reason="full"} 3.0' in app[METRICS].text()[0]
            wire.writer.close()

    asyncio.run(scene())


def test_bytes_of_a_body_that_look_like_a_request_are_none():
    """What comes in pieces is never read as a request in the middle, or one could be smuggled in."""

    async def scene():
        engine = FakeEngine(room=1)
        async with serving(engine) as session:
            inner = request()
            body = json.dumps({"context": "x" * 100}).encode()
            whole = request("/generate", inner + body)
            wire = await Wire.open(session, whole[: whole.index(inner)])
            await asyncio.sleep(0.1)
            engine.room = 0  # full, as the second piece arrives
            wire.writer.write(inner)
            await asyncio.sleep(0.1)
            wire.writer.write(body)
            status, _, _ = await answer(wire)
            assert status == 400  # one answer to all of it: no JSON
            wire.writer.write(request("/generate", b"{}", "Connection: close"))
            assert (await answer(wire))[0] == 429
            assert await wire.reader.read() == b""
            wire.writer.close()

    asyncio.run(scene())


def test_a_server_that_stops_says_so_first():
    async def scene():
        app = app_with(FakeEngine(room=0))
        async with serving(app) as session:
            app[STATE].draining = True
            wire = await Wire.open(session, request())
            assert (await answer(wire))[0] == 503
            wire.writer.close()

    asyncio.run(scene())


@pytest.mark.slow
def test_a_client_that_floods_and_never_reads_fills_no_memory():
    async def scene():
        app = app_with(FakeEngine(room=0), write_seconds=1.0)
        async with serving(app) as session:
            wire = await Wire.open(session)
            wire.writer.transport.pause_reading()
            since = time.perf_counter()
            with pytest.raises((ConnectionError, TimeoutError)):
                async with asyncio.timeout(10):
                    while True:
                        wire.writer.write(request("/generate", b'{"context": "' + b"x" * 20_000 + b'"}'))
                        await wire.writer.drain()
                        await asyncio.sleep(0)
            assert time.perf_counter() - since < 8  # cut off by write_seconds, or no longer read
            assert not re.search(rb'status="429"} \d{6}', app[METRICS].text()[0])
            wire.writer.transport.abort()

    asyncio.run(scene())
