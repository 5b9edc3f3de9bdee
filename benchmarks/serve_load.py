"""How the service behaves under overload, and how it compares with a server that computes in its event loop.

    python -m benchmarks.serve_load --run sample [--seconds 20] [--quick]

The servers run in processes of their own, on 127.0.0.1; this process only sends. In turn:

1. load: an open loop (requests arrive by a Poisson process, whether or not earlier ones are answered) at 0.5, 1, 2 and
   5 times the capacity, which a closed loop has measured before. Latency counts from the planned arrival.
2. rival: the same model in a server as the book has it: one blocking `generate` per request, in the event loop. Tokens
   per second at 8 and 16 clients, and the latency of a short request that arrives while a long one is written.
3. health: /healthz while the engine is full.
4. slow: 500 connections that are silent, send one byte of a header per second, or half a body.
5. leavers: 1,000 clients that leave in the middle of a text.

A client is an address: requests come from many addresses of 127.0.0.0/8 where the system has them all (Linux).
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import aiohttp
import psutil
import torch
from aiohttp import web

from benchmarks.machine import describe_machine, report
from helpers.device import pick_device
from helpers.generate import generate
from helpers.generate.batch import prompt_ids

FACTORS = (0.5, 1, 2, 5)  # of the capacity
MOST = 10_000  # requests of one load, about
CLIENTS = (8, 16)
PROMPTS = ("请教大家，", "新手求助，", "楼主好，", "我家的")
AIMS = {  # figure -> (aim, whether more is better)
    "times_rival_tokens_8": (8, True),
    "times_rival_tokens_16": (8, True),
    "times_rival_short_latency": (10, True),
    "goodput_of_peak_at_5": (0.95, True),
    "refused_ms_p99": (50, False),
    "refused_without_retry_after": (0, False),
    "healthz_ms_p99": (20, False),
    "memory_growth": (1.1, False),
    "slow_closed_seconds_max": (10, False),
    "slow_others_p99_ratio": (1.2, False),
    "leavers_rows_left": (0, False),
    "leavers_files_left": (0, False),
}
MIB = 2**20
SOURCES = [f"127.0.1.{n}" for n in range(1, 65)] if sys.platform == "linux" else ["127.0.0.1"]


# ---- the rival ----


def rival(run: str) -> None:
    """Serve `run` as the book does: the handler computes, and the event loop waits for it. Prints its address."""
    model, tokenizer = generate.load(run)

    async def complete(request: web.Request) -> web.Response:
        wanted = await request.json()
        ids = torch.tensor([prompt_ids(tokenizer, wanted["prompt"])] * wanted["n"], device=model.device)
        with torch.inference_mode():
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=wanted["max_tokens"], do_sample=True,
                temperature=float(wanted["temperature"]), top_k=0, pad_token_id=tokenizer.pad_token_id,
            )[:, ids.shape[1] :]  # fmt: skip
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        written = int((made != tokenizer.pad_token_id).sum())
        return web.json_response({"choices": [{"text": t} for t in texts], "usage": {"completion_tokens": written}})

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        gc.freeze()  # as our server does
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


# ---- servers and requests ----


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, int]]:
    """Start `python -m …` and yield the address that it prints, and its process id; end it afterwards."""
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            raise SystemExit(f"{arguments[0]} ended before it listened, with exit code {process.wait()}")
        yield found[0], process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return psutil.Process(pid).memory_info().rss / MIB


def open_files(pid: int) -> int:
    """Return how many files and sockets a process holds."""
    return psutil.Process(pid).num_fds()


@dataclass
class Answer:
    """How a request ended."""

    status: int  # of HTTP; 0: no answer
    latency: float  # seconds since it was due
    sent: float  # seconds since it was sent
    tokens: int
    end: float  # by the clock `time.perf_counter`
    retry_after: bool  # whether it has the header Retry-After


class Wire(asyncio.Protocol):
    """A connection that is kept alive, for one request at a time.

    A client like aiohttp's takes so much time per request that a thousand of them per second would take the server's:
    both share the machine.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    async def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """Send a request and return head and body of the answer; raises ConnectionError."""
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and self._answer and not self._answer.done():
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            if length and len(body) >= int(length[1]):
                self._answer.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))


class Crowd:
    """Clients of one server, each with an address of its own and with connections that are kept alive."""

    def __init__(self, address: str, clients: int = len(SOURCES)) -> None:
        host, port = address.removeprefix("http://").split(":")
        self._server, self._host = (host, int(port)), address.removeprefix("http://").encode()
        self._idle: list[list[Wire]] = [[] for _ in SOURCES[:clients]]  # of each client
        self._turn = 0

    async def __aenter__(self) -> "Crowd":
        return self

    async def __aexit__(self, *_: object) -> None:
        for wire in (wire for wires in self._idle for wire in wires if wire.transport):
            wire.transport.close()

    async def post(self, body: dict) -> tuple[bytes, bytes]:
        """Send a completion request as the next client; return head and body of the answer.

        The connection of a client that leaves before is closed. Raises ConnectionError.
        """
        # 1. a connection: an idle one, or a new one
        self._turn = (self._turn + 1) % len(self._idle)
        idle, wire = self._idle[self._turn], None
        while idle and wire is None:
            wire = idle.pop()
            wire = wire if wire.transport and not wire.transport.is_closing() else None
        if wire is None:
            local = (SOURCES[self._turn], 0) if len(SOURCES) > 1 else None
            _, wire = await asyncio.get_running_loop().create_connection(Wire, *self._server, local_addr=local)
        # 2. the request
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n" % self._host
        try:
            answer = await wire.ask(head + b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        except BaseException:
            if wire.transport:
                wire.transport.abort()
            raise
        idle.append(wire)
        return answer

    async def ask(self, body: dict, due: float | None = None) -> Answer:
        """Send a completion request and wait for its whole answer; `due` is when it should have been sent."""
        sent = time.perf_counter()
        due = due or sent
        status, tokens, later = 0, 0, False
        with contextlib.suppress(OSError, TimeoutError):  # no answer: status 0, which the tables show
            async with asyncio.timeout(90):
                head, answer = await self.post(body)
            status, later = int(head.split()[1]), b"\r\nretry-after:" in head.lower()
            if status == 200:
                tokens = json.loads(answer)["usage"]["completion_tokens"]
        end = time.perf_counter()
        return Answer(status, end - due, end - sent, tokens, end, later)


def request(max_tokens: int, temperature: float = 1.0, n: int = 1) -> dict:
    """Return the body of a completion request with a random prompt."""
    return {"prompt": random.choice(PROMPTS), "max_tokens": max_tokens, "temperature": temperature, "n": n}


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie; not a number if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def milliseconds(values: list[float]) -> list[float]:
    """Return p50 and p99 of seconds, in milliseconds."""
    return [round(1000 * percentile(values, share), 1) for share in (0.5, 0.99)]


async def closed_loop(crowd: Crowd, clients: int, seconds: float, body: Callable[[], dict]) -> list[Answer]:
    """Let each of `clients` send one request after the other for `seconds`; return all answers."""
    answers, end = [], time.perf_counter() + seconds

    async def one() -> None:
        while time.perf_counter() < end:
            answers.append(await crowd.ask(body()))

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers


def rate(answers: list[Answer], begin: float, end: float) -> float:
    """Return the tokens per second of what was answered between two moments."""
    return sum(answer.tokens for answer in answers if begin <= answer.end < end) / (end - begin)


async def open_loop(crowd: Crowd, per_second: float, seconds: float, body: Callable[[], dict]) -> list[Answer]:
    """Send requests by a Poisson process, whatever happens to earlier ones; return all answers."""
    tasks, due = [], time.perf_counter()
    end = due + seconds
    while (due := due + random.expovariate(per_second)) < end:
        await asyncio.sleep(due - time.perf_counter())
        tasks.append(asyncio.create_task(crowd.ask(body(), due)))
    return await asyncio.gather(*tasks)


# ---- the parts ----


async def load(address: str, pid: int, options: argparse.Namespace) -> dict:
    """Print a line per load, return the figures."""
    body = partial(request, options.tokens)
    async with Crowd(address) as crowd:
        await closed_loop(crowd, 16, min(2, options.seconds), body)  # warm
        begin = time.perf_counter()
        answers = await closed_loop(crowd, 32, options.seconds, body)
        capacity = sum(answer.status == 200 for answer in answers) / (time.perf_counter() - begin)
        print(f"\ncapacity: {capacity:.1f} requests per second of at most {options.tokens} new tokens, by 32 clients")
        print("load     sent  answered   p50 ms   p99 ms  refused   p50 ms   p99 ms  other   tokens/s    MiB")
        goodput, rows, before = {}, {}, memory(pid)
        for factor in FACTORS:
            begin = time.perf_counter()
            seconds = min(options.seconds, MOST / (factor * capacity))
            answers = await open_loop(crowd, factor * capacity, seconds, body)
            # the queue fills in the first quarter; what is answered after the last arrival does not count
            goodput[factor] = rate(answers, begin + seconds / 4, begin + seconds)
            good = [answer.latency for answer in answers if answer.status == 200]
            refused = [answer for answer in answers if answer.status == 429]
            rows[factor] = {
                "sent": len(answers),
                "generator_late_ms_p99": milliseconds([answer.latency - answer.sent for answer in answers])[1],
                "answered_ms": milliseconds(good),
                "refused_share": round(len(refused) / len(answers), 3),
                "refused_ms": milliseconds([answer.sent for answer in refused]) if refused else None,
                "without_retry_after": sum(not answer.retry_after for answer in refused),
                "other": dict(Counter(answer.status for answer in answers if answer.status not in (200, 429))),
                "tokens_per_second": round(goodput[factor], 1),
                "mib": memory(pid),
            }
            p50, p99 = rows[factor]["answered_ms"]
            refused_p50, refused_p99 = rows[factor]["refused_ms"] or ("", "")
            others = len(answers) - len(good) - len(refused)
            print(
                f"{factor:3}× {len(answers):8} {len(good):9} {p50:8} {p99:8} {len(refused):8} {refused_p50:>8} "
                f"{refused_p99:>8} {others:6} {goodput[factor]:10.1f} {rows[factor]['mib']:6.0f}",
                flush=True,
            )
    top = FACTORS[-1]
    figures = {
        "capacity_requests_per_second": round(capacity, 1),
        "load": rows,
        "goodput_of_peak_at_5": round(goodput[top] / max(goodput.values()), 3),
        "accepted_ms_p99_at_5": rows[top]["answered_ms"][1],
        "refused_without_retry_after": sum(row["without_retry_after"] for row in rows.values()),
    }
    if rows[top]["refused_ms"]:
        figures["refused_ms_p99"] = rows[top]["refused_ms"][1]
    figures["memory_growth"] = round(rows[top]["mib"] / before, 3)
    return figures


async def against(address: str, options: argparse.Namespace) -> dict:
    """Return tokens per second of closed loops, and the latency of short requests that arrive behind long ones."""
    speed = {}
    async with Crowd(address, clients=16) as crowd:
        await closed_loop(crowd, 2, 0.5, partial(request, 8))  # warm
        for clients in CLIENTS:
            begin = time.perf_counter()
            answers = await closed_loop(crowd, clients, options.seconds / 2, partial(request, options.tokens))
            speed[clients] = rate(answers, begin, time.perf_counter())
        short, end = [], time.perf_counter() + options.seconds
        while time.perf_counter() < end and len(short) < 50:
            # hot, so that it wanders and does not end early
            long = asyncio.create_task(crowd.ask(request(4 * options.tokens, temperature=2, n=4)))
            await asyncio.sleep(0.02)
            short.append((await crowd.ask(request(4))).latency)
            await long
    return {"tokens_per_second": speed, "short": short}


async def health(address: str, options: argparse.Namespace) -> dict:
    """Return p50 and p99 of /healthz, asked a hundred times per second while 32 clients keep the engine full."""
    waits = []
    async with Crowd(address) as crowd, aiohttp.ClientSession(address) as session:
        busy = asyncio.create_task(closed_loop(crowd, 32, options.seconds, partial(request, options.tokens)))
        await asyncio.sleep(options.seconds / 10)
        while not busy.done():
            since = time.perf_counter()
            async with session.get("/healthz") as response:
                await response.read()
            waits.append(time.perf_counter() - since)
            await asyncio.sleep(0.01)
        await busy
    p50, p99 = milliseconds(waits)
    return {"healthz_asked": len(waits), "healthz_ms_p50": p50, "healthz_ms_p99": p99}


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"


async def dawdle(address: str, kind: str, source: str) -> float:
    """Open a connection, be slow in one of three ways, and return the seconds until the server closes it."""
    host, port = address.removeprefix("http://").split(":")
    local = (source, 0) if len(SOURCES) > 1 else None
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=local)
    begin = time.perf_counter()

    async def drip() -> None:
        for byte in HEAD:
            writer.write(bytes([byte]))  # to a closed connection: nothing happens
            await asyncio.sleep(1)

    if kind == "half a body":
        writer.write(HEAD + b'\r\n{"prompt": ')
    dripping = asyncio.create_task(drip()) if kind == "dripping" else None
    # reset is closed too; a connection that is still open after 15 s counts as 15 s
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(15):
            while await reader.read(4096):
                pass
    if dripping:
        dripping.cancel()
    writer.close()
    return time.perf_counter() - begin


async def slow(address: str, options: argparse.Namespace) -> dict:
    """Return how long slow connections were kept, and the latency of other requests before and during them."""
    kinds = ("silent", "dripping", "half a body")
    async with Crowd(address, clients=4) as crowd:
        arrive = partial(open_loop, crowd, 40.0, min(7, options.seconds), partial(request, 4))
        before = [answer.latency for answer in await arrive()]
        slow_ones = [
            asyncio.create_task(dawdle(address, kinds[n % 3], SOURCES[n % len(SOURCES)])) for n in range(options.slow)
        ]
        await asyncio.sleep(0.5)
        meanwhile = await arrive()
        kept = await asyncio.gather(*slow_ones)
    good = [answer.latency for answer in meanwhile if answer.status == 200]
    (_, p99_before), (_, p99_meanwhile) = milliseconds(before), milliseconds(good)
    return {
        "slow_connections": len(kept),
        "slow_closed_seconds_max": round(max(kept), 2),
        "slow_others_refused": len(meanwhile) - len(good),
        "slow_others_ms_p99_before": p99_before,
        "slow_others_ms_p99": p99_meanwhile,
        "slow_others_p99_ratio": round(p99_meanwhile / p99_before, 2),
    }


async def figure(address: str, name: str) -> float:
    """Return a figure of /metrics."""
    async with aiohttp.ClientSession(address) as session, session.get("/metrics") as response:
        return float(re.search(rf"^{name} (\S+)$", await response.text(), re.MULTILINE)[1])


async def leavers(address: str, pid: int, options: argparse.Namespace) -> dict:
    """Return what the server still holds one second after the last of many clients left in the middle of a text."""
    await figure(address, "chinese_gpt_rows")
    before, started = open_files(pid), time.perf_counter()
    async with Crowd(address) as crowd:

        async def leave(number: int) -> None:
            body = request(500, temperature=2) | {"stream": number % 2 == 0}
            with contextlib.suppress(TimeoutError, OSError):  # that is leaving
                async with asyncio.timeout(random.uniform(0.001, 0.2)):
                    await crowd.post(body)

        for begin in range(0, options.leavers, 32):
            await asyncio.gather(*(leave(n) for n in range(begin, min(options.leavers, begin + 32))))
    await asyncio.sleep(1)
    left = [await figure(address, f"chinese_gpt_{name}") for name in ("rows", "waiting")]
    figures = {"leavers": options.leavers, "leavers_rows_left": sum(left), "leavers_mib": memory(pid)}
    figures["leavers_files_left"] = max(0, open_files(pid) - before)
    return figures | {"leavers_seconds": round(time.perf_counter() - started, 1)}


# ---- all of it ----


async def measure(options: argparse.Namespace) -> dict:
    """Run the parts in turn and return all figures."""
    figures, sides = {}, {}
    with serving("helpers.serve", "--run", options.run, "--port", "0") as (address, pid):
        parts: dict[str, Callable[[], Awaitable[dict]]] = {
            "load": lambda: load(address, pid, options),
            "health": lambda: health(address, options),
            "slow": lambda: slow(address, options),
            "leavers": lambda: leavers(address, pid, options),
        }
        for name, part in parts.items():
            if name in options.parts:
                measured = await part()
                figures |= measured
                if name != "load":
                    print(f"\n{name}: " + ", ".join(f"{key} {value}" for key, value in measured.items()), flush=True)
        if "rival" in options.parts:
            sides["ours"] = await against(address, options)
    if "rival" in options.parts:
        with serving("benchmarks.serve_load", "--rival", "--run", options.run) as (address, _):
            sides["rival"] = await against(address, options)
        print(f"\n{'':6} {'8 clients':>10} {'16 clients':>11} tokens per second {'short behind long, p50 ms':>28}")
        for name, side in sides.items():
            speed, (p50, _) = side["tokens_per_second"], milliseconds(side["short"])
            print(f"{name:6} {speed[8]:10.0f} {speed[16]:11.0f} {p50:46}")
            figures[f"{name}_tokens_per_second"] = {clients: round(value, 1) for clients, value in speed.items()}
            figures[f"{name}_short_ms_p50"] = p50
        for clients in CLIENTS:
            speed, rival_speed = (sides[name]["tokens_per_second"][clients] for name in ("ours", "rival"))
            figures[f"times_rival_tokens_{clients}"] = round(speed / rival_speed, 2)
        latency, rival_latency = (statistics.median(sides[name]["short"]) for name in ("ours", "rival"))
        figures["times_rival_short_latency"] = round(rival_latency / latency, 1)
    return figures


def main() -> None:
    """Measure, print tables, and as the last line one JSON object."""
    parts = ("load", "health", "slow", "leavers", "rival")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_load")
    parser.add_argument("--run", required=True, help="a trained run")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts, help="default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load; default 8")
    parser.add_argument("--tokens", type=int, default=32, help="the longest continuation of a usual request")
    parser.add_argument("--quick", action="store_true", help="a second each, few connections, no aims: does it work?")
    parser.add_argument("--rival", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rival:
        return rival(options.run)
    options.slow, options.leavers = (60, 64) if options.quick else (500, 1000)
    if options.quick:
        options.seconds = min(options.seconds, 1.0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if most == resource.RLIM_INFINITY else min(4096, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))  # a socket each; the servers inherit it
    random.seed(0)
    gc.freeze()  # a search through torch's modules for garbage would delay what is to be measured
    figures = asyncio.run(measure(options))
    met = {}
    for name, (aim, more) in {} if options.quick else AIMS.items():
        if name in figures:
            value = figures[name]
            met[name] = {"value": value, "aim": aim, "met": value >= aim if more else value <= aim}
    device = pick_device("auto")
    result = {"benchmark": "serve_load", "machine": describe_machine(device), "figures": figures, "aims": met}
    report(result)


if __name__ == "__main__":
    main()
