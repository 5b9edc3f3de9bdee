"""Several processes on one port: one that never serves ends all, one that dies is replaced, all end in order."""

import asyncio
import json
import os
import re
import signal
import socket
import threading

import aiohttp
import pytest
from service import events_of, make_run, until

from helpers.serve import engine, server, workers

needs_shared_ports = pytest.mark.skipif(
    not hasattr(socket, "SO_REUSEPORT"), reason="several processes need SO_REUSEPORT"
)


@pytest.mark.slow
def test_a_process_that_never_serves_ends_all(monkeypatch, capfd):
    monkeypatch.setattr(workers, "worker", max)  # ends at once, with an error
    kept = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    environment = dict(os.environ)
    try:
        assert server.main(["--run", "any", "--port", "0", "--processes", "2"]) == 1
        assert dict(os.environ) == environment
    finally:
        signal.signal(signal.SIGTERM, kept[0])
        signal.signal(signal.SIGINT, kept[1])
    assert "ended with code 1 before it could serve: all are stopped" in capfd.readouterr().err


@pytest.mark.slow
@needs_shared_ports
def test_processes_share_a_port_replace_the_dead_and_end_in_order(monkeypatch, capfd):
    """Two servers under load: one is killed, then all are told to end. Nobody gets half an answer."""
    made = supervise(monkeypatch, lambda made: two_processes(made, capfd))
    assert "another one takes its place" in capfd.readouterr().err
    assert len(made) == 3


@pytest.mark.slow
@needs_shared_ports
def test_a_process_whose_engine_fails_for_good_is_replaced(monkeypatch, capfd):
    monkeypatch.setattr(server, "serve", serve_until_the_first_token)
    made = supervise(monkeypatch, lambda made: one_text(capfd))
    assert sorted(process.exitcode for process in made) == [0, 0, 1]


def serve_until_the_first_token(*arguments):
    """Serve, in a process of its own, with an engine that fails for good when it is to write something."""

    def step(_):
        engine.DecodeBatch = None
        raise RuntimeError("each call fails")

    engine.DecodeBatch.step = step
    return server.serve(*arguments)


def supervise(monkeypatch, client):
    """Run two servers while `client(made)` calls them, then end them; return the processes that were made."""
    monkeypatch.setenv(server.KEY, "a-key")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made, clients = [], []
    monkeypatch.setattr(workers.Supervisor, "_start", remember(workers.Supervisor._start, made))

    def call():
        try:
            asyncio.run(client(made))
            clients.append("satisfied")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    calling = threading.Thread(target=call)
    try:
        calling.start()
        assert server.main(["--run", make_run(), "--port", "0", "--processes", "2"]) == 0
    finally:
        calling.join()
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert clients == ["satisfied"]
    assert not any(process.is_alive() for process in made)
    return made


def remember(start, made):
    """Return `start`, which starts a server process, such that the process is put into `made`."""

    def start_and_remember(supervisor):
        start(supervisor)
        made.append(list(supervisor._workers.values())[-1])

    return start_and_remember


async def announced(capfd):
    """Wait until two processes serve; return what is said then."""
    said = ""

    def told():
        nonlocal said
        said += capfd.readouterr().out
        return "in 2 processes" in said

    await until(told, 60)
    return said


async def one_text(capfd):
    address = re.search(r"http://[\d.:]+", await announced(capfd))[0]
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer a-key"}) as session:
        async with session.post(f"{address}/generate", json={"context": "绿萝"}) as response:
            assert response.status == 500
    await announced(capfd)  # again, with the new one


async def two_processes(made, capfd):
    said = await announced(capfd)
    assert "$CHINESE_GPT_API_KEY" in said and "a-key" not in said
    address = re.search(r"http://[\d.:]+", said)[0]
    answers, stopping = [], []

    async def ask(session, number):
        """Ask for one text after the other, each on a connection of its own: answers are whole, or there is none."""
        body = {"prompt": "绿萝", "max_tokens": 300, "stream": bool(number % 2)}
        while True:
            status = None
            try:
                async with session.post(f"{address}/v1/completions", json=body) as response:
                    status = response.status
                    data = await response.read()
            except aiohttp.ClientError as error:
                assert status is None, f"half an answer: {error!r}"
                assert stopping, "refused by a server that runs"
                return
            if status != 200:
                assert stopping and (status, json.loads(data)["error"]["code"]) == (503, "stopping")
                return
            events = events_of(data) if number % 2 else [json.loads(data)]
            assert events[-1]["choices"][0]["finish_reason"] in ("length", "stop")
            answers.append(number)

    async with aiohttp.ClientSession(
        headers={"Authorization": "Bearer a-key"}, connector=aiohttp.TCPConnector(force_close=True)
    ) as session:
        made[0].kill()
        await until(lambda: len(made) == 3, 60)
        asking = [asyncio.create_task(ask(session, number)) for number in range(6)]
        await until(lambda: len(answers) > 12, 60)
        stopping.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*asking), 60)
