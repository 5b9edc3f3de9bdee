"""Answer over HTTP: `start(make_app(engine))` in a notebook, `python -m helpers.serve --run NAME` for a trained run.

Knows how a server begins and ends, alone or as one of several processes on a port. What it answers is `app`'s matter.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import sys
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from aiohttp import web

from helpers.generate import generate
from helpers.manifest import RoomError
from helpers.serve import auth, connections
from helpers.serve.app import GUARD, LISTENER, STATE, make_app
from helpers.serve.engine import Engine

KEY = "CHINESE_GPT_API_KEY"  # the environment variable
QUEUE_SECONDS = 30.0  # a request that found no place in the batch for so long is sent away


def url(host: str, port: int) -> str:
    """Return the address of a server; an IPv6 host stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(address: str, key: bool = False) -> str:
    """Return a shell command that asks the server at `address` for text; `key`: it shows the key of the environment."""
    body = '{"context": "你好", "maxlength": 50, "samples": 5}'
    shown = f' -H "Authorization: Bearer ${KEY}"' if key else ""
    return f"curl {address}/generate -H 'Content-Type: application/json'{shown} -d '{body}'"


async def start(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, str]:
    """Serve `app` in the running event loop; return (runner, URL). Port 0 takes any free port.

    Raises OSError if the port is taken, ValueError if other machines could call and there is no API key.
    """
    auth.check_open(host, app[GUARD].key)
    return await start_on(app, connections.bind(host, port), host)


async def start_on(app: web.Application, listening: socket.socket, host: str) -> tuple[web.AppRunner, str]:
    """Serve `app` on a bound socket; see `start`."""
    app[GUARD].hosts.add(auth.host_name(host))
    # the time of the requests under way ends first, so that they can say so
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=app[STATE].grace + 2)
    await runner.setup()
    try:
        await app[LISTENER].open(runner.server, listening)
    except OSError:
        listening.close()
        await runner.cleanup()
        raise
    return runner, url(host, listening.getsockname()[1])


async def stop(runner: web.AppRunner) -> None:
    """Take no new request, let the running ones finish within their grace time, close the port."""
    state, last = runner.app[STATE], asyncio.get_running_loop().time() + runner.app[STATE].grace
    state.draining = True
    runner.app[LISTENER].close()
    for limit in state.running:
        limit.reschedule(min(limit.when(), last))
    await runner.cleanup()


def read_key(file: str | None) -> str | None:
    """Return the API key: of a file, or else of the environment; None if neither has one. Raises ValueError."""
    if file is None:
        key = os.environ.get(KEY)
        return auth.check_key(key) if key else None
    try:
        return auth.check_key(Path(file).read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API key from {file}: {error}") from None


def serve(options: argparse.Namespace, key: str | None, listening: socket.socket, ready=lambda: None) -> int:
    """Serve a run on a bound socket until told to stop; return the exit code."""
    try:
        threads = max(1, torch.get_num_threads() // options.processes)  # torch knows real cores and OMP_NUM_THREADS
        engine = Engine(*generate.load(options.run), max_wait=QUEUE_SECONDS, threads=threads)
        app = make_app(
            engine, name=options.run, api_key=key, hosts=options.allow_host, origins=options.origin,
            proxies=options.proxy,
        )  # fmt: skip
    except (RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1

    async def until_told() -> None:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        if parent := multiprocessing.parent_process():  # without it nobody would tell
            loop.add_reader(parent.sentinel, told.set)
        else:
            loop.add_signal_handler(signal.SIGINT, told.set)
        runner, address = await start_on(app, listening, options.host)
        ready()
        if not parent:
            print(f"run '{options.run}' answers at {address} until Ctrl-C. Try: {curl(address, bool(key))}", flush=True)
        await told.wait()
        if parent:
            loop.remove_reader(parent.sentinel)
        else:
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends at once
        await stop(runner)

    engine.start()
    try:
        asyncio.run(until_told())
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    finally:
        engine.close(cancel=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Serve a trained run until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.serve",
        description="Serve a trained run over HTTP.",
        epilog=f"The API key comes from the environment variable {KEY}, or from --api-key-file.",
    )
    parser.add_argument("--run", required=True, help="the run whose model answers")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can call")
    parser.add_argument("--port", type=int, default=5005, help="default 5005; 0 takes any free port")
    parser.add_argument("--processes", type=int, default=1, help="servers that share the port, each with its own model")
    parser.add_argument("--api-key-file", help="a file that holds the key that callers must show")
    parser.add_argument("--allow-host", action="append", default=[], help="a name of this server; repeatable")
    parser.add_argument("--origin", action="append", default=[], help="a web origin whose pages may call; repeatable")
    parser.add_argument("--proxy", action="append", default=[], help="a reverse proxy's address; repeatable")
    options = parser.parse_args(arguments)
    try:
        key = read_key(options.api_key_file)
        auth.check_open(options.host, bool(key))
        if options.processes < 1:
            raise ValueError(f"--processes is {options.processes}: it must be 1 or more")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    try:  # the port before the model: it is the quicker to fail
        listening = connections.bind(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(f"cannot listen on {options.host}:{options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    with listening:
        if options.processes == 1:
            return serve(options, key, listening)
        options.port = listening.getsockname()[1]
    return Processes(options, key).run()


# ---- several processes ----


def worker(options: argparse.Namespace, key: str | None, ready: Connection, environment: dict[str, str]) -> None:
    """Be one of several servers on one port; tell through `ready` when requests are taken."""
    os.environ.update(environment)  # what a worker is forked from may be older than this program's settings
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent passes it on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(serve(options, key, connections.bind(options.host, options.port, shared=True), partial(ready.send, True)))


class Processes:
    """Several servers on one port: the kernel shares the connections out, each process has its own model and queue.

    One that dies after it has served is started again; one that never served ends all: it would only die again.
    """

    def __init__(self, options: argparse.Namespace, key: str | None) -> None:
        self.options, self.key = options, key
        self.stopping = False
        self.code = 0
        # each process comes from one that has imported everything and done nothing: ready soon, and safe with a GPU
        self._spawn = multiprocessing.get_context("forkserver")
        self._spawn.set_forkserver_preload(
            ["aiohttp.web", "helpers.serve.schema", "helpers.serve.engine", "helpers.serve.metrics"]
        )
        self._workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._served: set[Connection] = set()

    def run(self) -> int:
        """Start them, mend them, and end when told to; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        # holds the port while no worker does; it never listens, so the kernel gives it no connection
        with connections.bind(self.options.host, self.options.port, shared=True):
            for _ in range(self.options.processes):
                self._start()
            while self._workers:
                for pipe in wait(list(self._workers)):
                    self._hear(pipe)
        return self.code

    def stop(self) -> None:
        """Let every process finish what it has."""
        self.stopping = True
        for process in self._workers.values():
            process.terminate()

    def _start(self) -> None:
        mine, theirs = self._spawn.Pipe(duplex=False)
        process = self._spawn.Process(target=worker, args=(self.options, self.key, theirs, dict(os.environ)))
        process.start()
        theirs.close()  # so that the pipe ends when the process does
        self._workers[mine] = process
        if self.stopping:  # told while it was being started
            process.terminate()

    def _hear(self, pipe: Connection) -> None:
        process = self._workers[pipe]
        try:
            pipe.recv()
        except EOFError:
            self._ended(pipe, process)
            return
        self._served.add(pipe)
        if len(self._served) == self.options.processes:
            address = url(self.options.host, self.options.port)
            shown = f"Try: {curl(address, bool(self.key))}"
            print(
                f"run '{self.options.run}' answers at {address} in {len(self._served)} processes. {shown}", flush=True
            )

    def _ended(self, pipe: Connection, process: multiprocessing.process.BaseProcess) -> None:
        process.join()
        del self._workers[pipe]
        pipe.close()
        if self.stopping:
            return
        what = f"server process {process.pid} ended with code {process.exitcode}"
        if pipe in self._served:
            self._served.remove(pipe)
            print(f"{what}: another one takes its place", file=sys.stderr, flush=True)
            self._start()
        else:
            print(f"{what} before it could serve: all are stopped", file=sys.stderr, flush=True)
            self.code = 1
            self.stop()
