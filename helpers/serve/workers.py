"""Several server processes on one port, and the supervisor that starts, replaces and stops them."""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from helpers.serve import connections

# serve(listening, ready): serve until SIGTERM and return the exit code; call `ready` when requests are accepted
Serve = Callable[[socket.socket, Callable[[], None]], int]


def worker(serve: Serve, host: str, port: int, ready: Connection, environment: dict[str, str]) -> None:
    """Run one server process; it sends True through `ready` when it accepts requests."""
    os.environ.update(environment)  # the fork server may be older than this program's settings
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent passes it on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(serve(connections.bind(host, port, shared=True), partial(ready.send, True)))


class Supervisor:
    """Several servers on one port: the kernel distributes connections, each process has its own model and queue.

    A process that ends after it has served is replaced; if one ends before, all are stopped: a new one would only end
    again. on_ready() is called each time that all processes serve.
    """

    def __init__(self, serve: Serve, host: str, port: int, processes: int, on_ready: Callable[[], None]) -> None:
        self._serve, self._host, self._port, self._processes, self._on_ready = serve, host, port, processes, on_ready
        self._stopping = False
        self._code = 0
        # each process is forked from one that has imported everything and done nothing: fast, and safe with a GPU
        self._spawn = multiprocessing.get_context("forkserver")
        self._spawn.set_forkserver_preload(
            ["aiohttp.web", "helpers.serve.schema", "helpers.serve.engine", "helpers.serve.metrics"]
        )
        self._workers: dict[Connection, BaseProcess] = {}
        self._ready: set[Connection] = set()  # of the processes that serve

    def run(self) -> int:
        """Start the processes, replace those that end, and wait for SIGTERM or SIGINT; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        # keeps the port while no worker has it; it never listens, so the kernel gives it no connection
        with connections.bind(self._host, self._port, shared=True):
            for _ in range(self._processes):
                self._start()
            while self._workers:
                for pipe in wait(list(self._workers)):
                    assert isinstance(pipe, Connection)
                    self._receive(pipe)
        return self._code

    def stop(self) -> None:
        """Let every process finish the requests that it has."""
        self._stopping = True
        for process in self._workers.values():
            process.terminate()

    def _start(self) -> None:
        receiver, sender = self._spawn.Pipe(duplex=False)
        arguments = (self._serve, self._host, self._port, sender, dict(os.environ))
        process = self._spawn.Process(target=worker, args=arguments)
        process.start()
        sender.close()  # now the pipe ends when the process does
        self._workers[receiver] = process
        if self._stopping:  # the signal came while the process was being started
            process.terminate()

    def _receive(self, pipe: Connection) -> None:
        """Read what a process has sent: it serves, or (the end of its pipe) it has ended."""
        try:
            pipe.recv()
        except EOFError:
            self._replace(pipe)
            return
        self._ready.add(pipe)
        if len(self._ready) == self._processes:
            self._on_ready()

    def _replace(self, pipe: Connection) -> None:
        process = self._workers.pop(pipe)
        process.join()
        pipe.close()
        if self._stopping:
            return
        what = f"server process {process.pid} ended with code {process.exitcode}"
        if pipe in self._ready:
            self._ready.remove(pipe)
            print(f"{what}: another one takes its place", file=sys.stderr, flush=True)
            self._start()
        else:
            print(f"{what} before it could serve: all are stopped", file=sys.stderr, flush=True)
            self._code = 1
            self.stop()
