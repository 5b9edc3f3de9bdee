"""Connections that are slow, silent, too many, or speak no HTTP: tried with bare sockets."""

import asyncio
import json
import socket
import time

import pytest
from service import HEAD, FakeEngine, Wire, drip, fetch, serving, until

from helpers.serve import auth
from helpers.serve.app import GUARD, STATE, make_app
from helpers.serve.limits import Limits

# ---- for how long, and how many ----


@pytest.mark.slow
def test_slow_connections_are_closed_and_others_feel_nothing():
    """Five hundred that are silent, drip a header, or send half a body; meanwhile the others' waits are measured."""

    async def times(session, count):
        taken = []
        for _ in range(count):
            since = time.perf_counter()
            async with session.post("/generate", json={"context": "x"}) as response:
                assert response.status == 200
            taken.append(time.perf_counter() - since)
            await asyncio.sleep(0.005)
        return sorted(taken)

    async def scene():
        app = make_app(FakeEngine(), Limits(header_seconds=1.0, body_seconds=1.0))
        async with serving(app) as session:
            alone = await times(session, 100)
            slow = [await Wire.open(session, (b"", b"", HEAD + b"\r\n{")[kind % 3]) for kind in range(500)]
            dripping = [asyncio.create_task(drip(wire, HEAD * 3)) for wire in slow[1::3]]
            # the kept connection may have been idle for a second by now, and a POST is not tried again by itself
            async with session.get("/healthz") as response:
                assert response.status == 200
            since = time.perf_counter()
            ends = asyncio.gather(*(wire.all() for wire in slow))
            beside = await times(session, 100)
            answers = await ends
            taken = time.perf_counter() - since
            for task in dripping:
                task.cancel()
            assert taken < 6
            assert answers[0] == b""  # it asked for nothing
            half = answers[2].partition(b"\r\n\r\n")
            assert half[0].startswith(b"HTTP/1.1 408") and b"Connection: close" in half[0]
            assert json.loads(half[2]) == {"error": "the body did not arrive within 1 seconds"}
            # the median: a machine that does other things spoils the rest; the benchmark has the 99th percentile
            assert beside[50] < 1.2 * alone[50] + 0.02
            await until(lambda: not app[STATE].deadlines and not app[GUARD].under_way)

    asyncio.run(scene())


def test_a_second_header_must_come_in_time_too():
    async def scene():
        async with serving(FakeEngine(), header_seconds=0.5) as session:
            wire = await Wire.open(session, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.reader.readline()).startswith(b"HTTP/1.1 200")
            task = asyncio.create_task(drip(wire, HEAD * 3))
            since = time.perf_counter()
            await wire.all()
            assert time.perf_counter() - since < 3
            await task

    asyncio.run(scene())


def test_who_does_not_read_is_cut_off():
    """Answers nobody takes fill the buffers, and would wait in them for ever."""

    async def scene():
        app = make_app(FakeEngine(), Limits(write_seconds=0.5))
        async with serving(app) as session:
            wire = await Wire.open(session)
            wire.writer.transport.pause_reading()
            request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

            async def ask_on():
                while True:
                    wire.writer.write(request * 100)
                    await wire.writer.drain()

            with pytest.raises(ConnectionError):
                await asyncio.wait_for(ask_on(), 15)

    asyncio.run(scene())


def test_no_more_connections_than_allowed():
    async def scene():
        async with serving(FakeEngine(), max_connections=5, header_seconds=0.5) as session:
            held = [await Wire.open(session) for _ in range(5)]
            answer = await (await Wire.open(session, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")).all()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503") and b"Retry-After: 1" in head
            assert "too many connections" in json.loads(body)["error"]
            await asyncio.gather(*(wire.all() for wire in held))
            async with session.get("/healthz") as response:
                assert response.status == 200

    asyncio.run(scene())


def test_a_burst_cannot_pass_the_limit():
    """All twenty arrive while the loop does something else, and are accepted in one go."""

    def ask(wire):
        with wire:
            wire.settimeout(10)
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return wire.recv(1 << 16).split()[1]

    async def scene():
        async with serving(FakeEngine(), max_connections=5) as session:
            wires = [socket.create_connection(("127.0.0.1", session._base_url.port)) for _ in range(20)]
            answers = await asyncio.gather(*(asyncio.to_thread(ask, wire) for wire in wires))
            assert sorted(answers) == [b"200"] * 5 + [b"503"] * 15
            async with session.get("/healthz") as response:  # those have left
                assert response.status == 200

    asyncio.run(scene())


# ---- HTTP itself ----


def raw(data):
    """Send bytes on one connection; return all that comes back until the server closes it."""

    async def scene():
        async with serving(FakeEngine(), header_seconds=0.3, body_seconds=0.3) as session:
            return await (await Wire.open(session, data)).all()

    return asyncio.run(scene())


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 200 + b"\r\n",
        HEAD + b"Content-Length: 7\r\n\r\n{}", HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n\r\n",
        HEAD.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked") + b"\r\nzz\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
)  # fmt: skip
def test_what_breaks_the_rules_hears_it_in_json(data, caplog):
    head, _, body = raw(data).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert json.loads(body)["error"]
    assert b"nosniff" in head
    assert not caplog.records


def test_pipelined_requests_are_answered_in_order():
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    other = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw(one + other + one)
    assert [part.partition(b"}")[0] for part in answer.split(b'{"status":')[1:]] == [b'"ok"', b'"ready"', b'"ok"']


def test_head_and_options():
    answer = raw(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"Content-Length: " in head and body == b""
    status, headers, answer = fetch("OPTIONS", "/healthz")
    assert status == 405 and headers["Allow"] == "GET, HEAD"
    assert raw(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("path", ["/", "/healthz", "/nothing", "/v1/models"])
def test_every_answer_tells_a_browser_to_be_careful(path):
    headers = fetch("GET", path)[1] if path != "/" else None
    if headers is None:
        headers = raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").decode("latin-1")
    for name, value in auth.HEADERS.items():
        assert f"{name}: {value}" in headers if isinstance(headers, str) else headers[name] == value
