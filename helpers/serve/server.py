"""Start and stop the service: `start(make_app(engine))` in a notebook, `python -m helpers.serve --run NAME` for a run.

This module knows how a server begins and ends; `app` knows what it answers, `workers` how several processes share a
port.
"""

import argparse
import asyncio
import errno
import gc
import multiprocessing
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from aiohttp import web

from helpers import paths
from helpers.generate import dialogue, generate
from helpers.manifest import RoomError
from helpers.serve import auth, connections
from helpers.serve.app import GUARD, LISTENER, STATE, make_app
from helpers.serve.engine import Engine
from helpers.serve.limits import Limits
from helpers.serve.workers import Supervisor
from helpers.wording import let_console_replace

KEY = "CHINESE_GPT_API_KEY"  # the environment variable
# how long the engine's thread may wait for Python while requests are answered; Python's default is 5 ms
SWITCH_SECONDS = 5e-4


def url(host: str, port: int) -> str:
    """Return the address of a server; an IPv6 host is written in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(address: str, key: str = "") -> str:
    """Return a shell command that asks the server for text; `key`: how that shell is told the API key, if any."""
    body = '{"context": "你好", "maxlength": 50, "samples": 5}'
    header = f' -H "Authorization: Bearer {key}"' if key else ""
    return f"curl {address}/generate -H 'Content-Type: application/json'{header} -d '{body}'"


async def start(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> tuple[web.AppRunner, str]:
    """Serve `app` in the running event loop; return (runner, URL). Port 0 takes any free port.

    Raises OSError if the port is taken, ValueError if other machines could call and there is no API key.
    """
    auth.require_key(host, app[GUARD].has_key)
    return await start_on(app, connections.bind(host, port), host)


async def start_on(app: web.Application, listening: socket.socket, host: str) -> tuple[web.AppRunner, str]:
    """Serve `app` on a bound socket; see `start`."""
    app[GUARD].hosts.add(auth.host_name(host))
    # requests under way time out within the grace time, so that the client gets an answer before the connection ends
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=app[STATE].limits.grace_seconds + 2)
    await runner.setup()
    assert runner.server is not None
    await app[LISTENER].open(runner.server, listening)
    return runner, url(host, listening.getsockname()[1])


async def stop(runner: web.AppRunner) -> None:
    """Accept no new request, let those under way finish within the grace time, close the port."""
    state = runner.app[STATE]
    last = asyncio.get_running_loop().time() + state.limits.grace_seconds
    state.draining = True
    runner.app[LISTENER].close()
    for limit in state.deadlines:
        if not limit.expired():  # that request is about to end
            limit.reschedule(min(limit.when() or last, last))
    await runner.cleanup()


def key_in_shell(options: argparse.Namespace, has_key: bool) -> str:
    """Return how a shell is told the API key, which stays where it is: in a file, or in the environment variable."""
    if not has_key:
        return ""
    return f"$(cat {shlex.quote(options.api_key_file)})" if options.api_key_file is not None else f"${KEY}"


def why_not_listening(options: argparse.Namespace, error: Exception) -> str:
    """Return why the address cannot be listened on, and which of its two parts to change."""
    port = isinstance(error, OverflowError) or getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
    return f"cannot listen on {options.host}:{options.port} ({error}): choose another {'--port' if port else '--host'}"


def read_key(file: str | None) -> str | None:
    """Return the API key from a file or else from the environment, None if neither has one; raises ValueError."""
    if file is None:
        key = os.environ.get(KEY)
        return auth.check_key(key) if key else None
    try:
        return auth.check_key(Path(file).read_text("utf-8-sig").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API key from {file}: {error}") from None


def served(options: argparse.Namespace) -> str:
    """Return what answers: "the chat model of run 'songci'"."""
    return f"the {options.room} model of run '{options.run}'"


def serve(
    options: argparse.Namespace, key: str | None, limits: Limits, listening: socket.socket, ready: Callable[[], None]
) -> int:
    """Serve a run on a bound socket until SIGTERM or Ctrl-C; return the exit code. Calls `ready` once it serves.

    If the engine fails for good, the server stops by itself, with exit code 1: whoever started it can start another.
    """
    try:
        threads = max(1, torch.get_num_threads() // options.processes)  # torch knows real cores and OMP_NUM_THREADS
        model, tokenizer = generate.load(options.run, options.room)
        if options.room != "base":  # this model was made to answer
            dialogue.check_tokenizer(tokenizer)
        engine = Engine(model, tokenizer, limits, threads=threads)
        app = make_app(
            engine, limits, name=options.run, api_key=key, hosts=options.allow_host, origins=options.origin,
            proxies=options.proxy,
        )  # fmt: skip
    except (RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1

    async def until_stopped() -> int:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        on_signal(signal.SIGTERM, stopped.set)
        if parent := multiprocessing.parent_process():  # if it dies, no signal comes
            loop.add_reader(parent.sentinel, stopped.set)
        else:
            on_signal(signal.SIGINT, stopped.set)
        engine.on_failure = partial(loop.call_soon_threadsafe, stopped.set)
        engine.start()
        runner, address = await start_on(app, listening, options.host)
        ready()
        in_shell = key_in_shell(options, bool(key))
        if not parent:
            print(f"{served(options)} answers at {address} until Ctrl-C. Try: {curl(address, in_shell)}", flush=True)
        await stopped.wait()
        code = 0 if engine.alive else 1
        if code:
            print("the engine has failed: this server stops, so that another one can take its place", file=sys.stderr)
        if parent:
            loop.remove_reader(parent.sentinel)
        else:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends at once
        await stop(runner)
        return code

    # what is here now stays to the end: each search for garbage in it would stop all threads, for about 0.2 s
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return asyncio.run(until_stopped())
    except OSError as error:  # another server took the port while the model was loaded
        print(why_not_listening(options, error), file=sys.stderr)
        return 1
    finally:
        engine.close(cancel=True)
        gc.unfreeze()


def on_signal(number: int, call: Callable[[], None]) -> None:
    """Let the running event loop make this call when a signal comes: also on Windows, where loops know no signals."""
    loop = asyncio.get_running_loop()
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


def parser() -> argparse.ArgumentParser:
    """Return the command line: who may call, and every limit of `Limits`."""
    made = argparse.ArgumentParser(
        prog="python -m helpers.serve",
        description="Serve a trained run over HTTP.",
        epilog=f"The API key comes from the environment variable {KEY}, or from --api-key-file.",
    )
    made.add_argument("--run", required=True, help="the run whose model answers")
    rooms = f"which of its models: {', '.join(paths.MODELS)}; by default the last of them that the run has"
    made.add_argument("--room", choices=list(paths.MODELS), help=rooms)
    made.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can call")
    made.add_argument("--port", type=int, default=5005, help="default 5005; 0 takes any free port")
    made.add_argument("--processes", type=int, default=1, help="servers that share the port, each with its own model")
    made.add_argument("--api-key-file", help="a file that holds the key that callers must send")
    made.add_argument("--allow-host", action="append", default=[], help="a name of this server; repeatable")
    made.add_argument("--origin", action="append", default=[], help="a web origin whose pages may call; repeatable")
    made.add_argument("--proxy", action="append", default=[], help="a reverse proxy's address; repeatable")
    Limits.add_options(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Serve a trained run until SIGINT or SIGTERM; return the exit code."""
    let_console_replace()
    # 1. check what costs nothing to check
    options = parser().parse_args(arguments)
    try:
        limits = Limits.from_options(options)
        key = read_key(options.api_key_file)
        auth.require_key(options.host, bool(key))
        auth.Guard(key, options.allow_host, options.origin, options.proxy)
        if options.processes < 1:
            raise ValueError(f"--processes is {options.processes}: it must be 1 or more")
        if options.processes > 1 and sys.platform != "linux":
            raise ValueError("only Linux deals connections to one port out among processes: leave --processes out")
        options.room = options.room or generate.latest_model(options.run)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    # 2. take the port before the model is loaded: it fails faster
    try:
        listening = connections.bind(options.host, options.port)
    except (OSError, OverflowError) as error:
        print(why_not_listening(options, error), file=sys.stderr)
        return 1
    # 3. serve, in this process or in several
    with listening:
        if options.processes == 1:
            return serve(options, key, limits, listening, lambda: None)
        options.port = listening.getsockname()[1]

    def announce() -> None:
        address = url(options.host, options.port)
        where = f"{served(options)} answers at {address} in {options.processes} processes."
        print(f"{where} Try: {curl(address, key_in_shell(options, bool(key)))}", flush=True)

    run = partial(serve, options, key, limits)
    return Supervisor(run, options.host, options.port, options.processes, announce).run()
