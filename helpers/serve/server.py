"""Start and stop the service: `start_server(make_app(engine))` in a notebook, `python -m helpers.serve` for a run.

This module knows how a server begins and ends, and how long a connection may be silent (timeout); it does not know what
is answered: that is `app`. Crowds of connections and clients that read slowly are left to a proxy, examples/nginx.conf.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import shlex
import signal
import socket
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.generate import dialogue, generate
from helpers.generate.settings import default_settings
from helpers.manifest import RoomError, read_manifest
from helpers.model.gpt import GPT
from helpers.serve import auth, static
from helpers.serve.app import NO_TOOLS, STATE, make_app
from helpers.serve.engine import Engine
from helpers.serve.limits import Limits
from helpers.serve.schema import ChatRequest, GenerateRequest, Tools, read_request
from helpers.vocab.chat import call_form
from helpers.wording import let_console_replace, say

KEY = "CHINESE_GPT_API_KEY"  # the environment variable
# how long the engine's thread may wait for Python while requests are answered; Python's default is 5 ms
_SWITCH_SECONDS = 5e-4
_BACKLOG = 1024  # connections that may wait to be accepted
_connection_log = logging.getLogger(f"{__name__}.connections")


def url(host: str, port: int) -> str:
    """Return the address by which this machine calls a server; an IPv6 host is written in brackets."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # those that mean every address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(address: str, key: str = "", has_chat: bool = False) -> str:
    """Return a shell command that asks the server for a text so short that no limit of the server can refuse it."""
    path, body = ("/v1/chat/completions", ChatRequest) if has_chat else ("/generate", GenerateRequest)
    header = f' -H "Authorization: Bearer {key}"' if key else ""
    return f"curl {address}{path} -H 'Content-Type: application/json'{header} -d '{body.example}'"


def _without_words(record: logging.LogRecord) -> bool:
    """Keep the words of a request out of the log, where an error of aiohttp may quote them.

    Broken HTTP and a client that leaves are no news.
    """
    error = record.exc_info[1] if record.exc_info else None
    record.msg, record.args, record.exc_info = f"a connection failed: {type(error).__name__}", None, None
    return not isinstance(error, HttpProcessingError | ConnectionError)


_connection_log.addFilter(_without_words)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address: who calls before the server runs has to wait. Raises OSError."""
    family, dual = (socket.AF_INET6, socket.has_dualstack_ipv6()) if ":" in host else (socket.AF_INET, False)
    return socket.create_server((host, port), family=family, dualstack_ipv6=dual, backlog=_BACKLOG)


async def start_server(
    app: web.Application, host: str = "127.0.0.1", port: int = 0, listening: socket.socket | None = None
) -> tuple[web.AppRunner, str]:
    """Serve `app` in the running event loop; return (runner, URL). Port 0 takes any free port.

    listening: a socket on this address. Raises OSError if the port is taken, ValueError if other machines could call
    and there is no API key.
    """
    guard, limits = app[STATE].guard, app[STATE].limits
    auth.require_key(host, guard.has_key)
    guard.hosts.add(auth.host_name(host))
    listening = listening or bind(host, port)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        # requests under way time out within the grace time, so that a client is answered before its connection ends
        shutdown_timeout=limits.grace_seconds + 2,
        keepalive_timeout=limits.header_seconds,
        lingering_time=1.0,  # how long to go on reading from a refused client, so that it can read the refusal
        auto_decompress=False,
        max_field_size=32 * 1024,  # a browser sends this host the cookies of all its ports, Jupyter's too
        access_log=None,  # a request line may hold text
        logger=_connection_log,
    )
    await runner.setup()
    # asyncio accepts so many in a row; where no more files can be opened it says so each time, and tries again later
    await web.SockSite(runner, listening, backlog=1).start()
    listening.listen(_BACKLOG)
    return runner, url(host, listening.getsockname()[1])


async def stop_server(runner: web.AppRunner) -> None:
    """Accept no new request, let those under way finish within the grace time, close the port."""
    state = runner.app[STATE]
    last = asyncio.get_running_loop().time() + state.limits.grace_seconds
    state.draining = True
    for site in runner.sites:
        await site.stop()
    for limit in state.deadlines:
        if not limit.expired():  # that request is about to end
            limit.reschedule(min(limit.when() or last, last))
    await runner.cleanup()


def read_key(file: str | None) -> str | None:
    """Return the API key from a file or else from the environment, None if neither has one; raises ValueError."""
    if file is None:
        key = os.environ.get(KEY)
        return auth.check_key(key) if key else None
    try:
        return auth.check_key(Path(file).read_text("utf-8-sig").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the API key from {file}: {error}") from None


def base_folder(run: str, model: str) -> Path:
    """Return the folder of the model that one of a run's models began as, and whose settings suit texts."""
    if model == "base":
        return generate.model_folder(run)
    room = read_manifest(run, paths.MODELS[model])
    if any(name.startswith("chat/") for name in room["inputs"]):  # it was taught to answer before
        return base_folder(run, "chat")
    return Path(room["parameters"].get("pretrained_model") or generate.model_folder(run))


def examples(run: str) -> list[str]:
    """Return four short questions of documents that were kept out of training, which the page offers to begin with.

    None of anybody's own documents: a page is for strangers, and nobody has asked to publish these.
    """
    with contextlib.suppress(RoomError):
        if read_manifest(run, "corpus")["result"].get("source") == "sample":
            with paths.shards(run, "corpus", "val", ".jsonl")[0].open(encoding="utf-8") as lines:
                firsts = [json.loads(line)["text"].split("\n")[0] for line in islice(lines, 300)]
            return [first for first in dict.fromkeys(firsts) if first.endswith("？") and len(first) <= 16][:4]
    return []


def read_tools(folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the tools that a model's folder offers on the page, if it has a tools.json; raises ValueError."""
    file = folder / "tools.json"
    if not file.is_file():
        return {}
    try:
        tools = read_request(Tools, file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from None
    if not call_form(tokenizer):
        raise ValueError(f"{file} cannot be used: {NO_TOOLS}")
    return {"tools": tools.model_dump(exclude_unset=True)}


def load_served(run: str, room: str) -> tuple[GPT, PreTrainedTokenizerFast, dict[str, Any]]:
    """Return a run's model, its tokenizer, and what the page is told about it.

    Raises RoomError or ValueError, which say why it cannot be served.
    """
    model, tokenizer = generate.load(run, room)
    if room != "base":  # this model was made to answer
        dialogue.check_tokenizer(tokenizer)
    folder = generate.model_folder(run, room)
    answers = default_settings(folder, chat=True)
    about = {
        "defaults": {"texts": default_settings(base_folder(run, room)), "chat": answers},
        "examples": examples(run),
        "parameters": model.config.sizes()["parameters"],
        "context": model.config.window,
        **read_tools(folder, tokenizer),
    }
    return model, tokenizer, about


def write_static(options: argparse.Namespace, limits: Limits) -> int:
    """Write a run's page as a folder that needs no server; return the exit code."""
    folder = Path(options.static)
    try:
        model, tokenizer, about = load_served(options.run, options.room)
        size = static.write_page(folder, model, tokenizer, limits, about | {"id": options.run})
    except (OSError, RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    words = "{} holds {:.1f} MB: any host of plain files can serve it, and the browser computes."
    print(say(words, folder, size / 1e6))
    print(say("Try it: {}", f"python -m http.server 8000 --bind 127.0.0.1 --directory {shlex.quote(str(folder))}"))
    return 0


def serve(options: argparse.Namespace, key: str | None, limits: Limits, listening: socket.socket) -> int:
    """Serve a run on a bound socket until SIGTERM or Ctrl-C; return the exit code.

    If the engine fails for good, the server stops by itself, with exit code 1: whoever started it can start another.
    """
    try:
        model, tokenizer, about = load_served(options.run, options.room)
        engine = Engine(model, tokenizer, limits)
        app = make_app(
            engine, limits, name=options.run, api_key=key, hosts=options.allow_host, origins=options.origin,
            proxies=options.proxy, about=about,
        )  # fmt: skip
    except (RoomError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1

    async def until_stopped() -> int:
        stopped = asyncio.Event()
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)
        for number in (signal.SIGTERM, signal.SIGINT):  # not by the loop, which on Windows knows no signals
            signal.signal(number, lambda *_: stop())
        engine.on_failure = stop
        engine.start()
        runner, address = await start_server(app, options.host, listening=listening)
        # how a shell is told the key, which stays where it is
        told = f"$(cat {shlex.quote(options.api_key_file)})" if options.api_key_file else f"${KEY}"
        call = curl(address, told if key else "", has_chat=app[STATE].no_chat is None)
        print(say("open {} in a browser", address))
        words = "the {} model of run '{}' answers at {} until Ctrl-C. Try: {}"
        print(say(words, options.room, options.run, address, call), flush=True)
        await stopped.wait()
        code = 0 if engine.alive else 1
        if code:
            words = "the engine has failed: this server stops, so that another one can take its place"
            print(say(words), file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends at once
        await stop_server(runner)
        return code

    # what is here now stays to the end: each search for garbage in it would stop all threads, for about 0.2 s
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return asyncio.run(until_stopped())
    finally:
        engine.close(cancel=True)
        gc.unfreeze()


def server_parser() -> argparse.ArgumentParser:
    """Return the command line: who may call, and every limit of `Limits`."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.serve",
        description="Serve a trained run over HTTP.",
        epilog=f"The API key comes from the environment variable {KEY}, or from --api-key-file.",
    )
    parser.add_argument("--run", default="sample", help="the run whose model answers (default: sample)")
    rooms = f"which of its models: {', '.join(paths.MODELS)}; by default reward, else chat, else base"
    parser.add_argument("--room", choices=list(paths.MODELS), help=rooms)
    parser.add_argument("--static", metavar="FOLDER", help="write the page as a folder instead: the browser computes")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: only this machine can call")
    parser.add_argument("--port", type=int, default=5005, help="default 5005; 0 takes any free port")
    parser.add_argument("--api-key-file", help="a file that holds the key that callers must send")
    parser.add_argument("--allow-host", action="append", default=[], help="a name of this server; repeatable")
    parser.add_argument("--origin", action="append", default=[], help="a web origin whose pages may call; repeatable")
    parser.add_argument("--proxy", action="append", default=[], help="a reverse proxy's address; repeatable")
    Limits.add_options(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Serve a trained run until SIGINT or SIGTERM; return the exit code."""
    let_console_replace()
    options = server_parser().parse_args(arguments)
    try:
        limits = Limits.from_options(options)
        key = read_key(options.api_key_file)
        auth.require_key(options.host, bool(key))
        auth.Guard(key, options.allow_host, options.origin, options.proxy)
        options.room = options.room or generate.latest_model(options.run)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.static:
        return write_static(options, limits)
    # take the port before the model is loaded: it fails faster
    try:
        listening = bind(options.host, options.port)
    except (OSError, OverflowError) as error:
        words = "cannot listen on {}:{} ({}): choose another --port or --host"
        print(say(words, options.host, options.port, error), file=sys.stderr)
        return 1
    with listening:
        return serve(options, key, limits, listening)
