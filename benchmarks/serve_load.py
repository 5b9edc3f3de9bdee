"""How the service behaves under overload, and how it compares with a server that computes in its event loop.

    python -m benchmarks.serve_load --run sample [--seconds 20] [--quick]

The servers run in processes of their own, on 127.0.0.1; this process only sends. In turn:

1. load: an open loop (requests arrive by a Poisson process, whether or not earlier ones are answered) at 0.5, 1, 2 and
   5 times the capacity, which a closed loop has measured before. Latency counts from the planned arrival.
2. rival: the same model in a server as the book has it: one blocking `generate` per request, in the event loop. Tokens
   per second at 8 and 16 clients, and the latency of a short request that arrives while a long one is written.
3. health: /healthz while the engine is full.

Crowds of connections, and clients that read or send slowly, are the work of a proxy (examples/nginx.conf). A client is
an address: requests come from many addresses of 127.0.0.0/8 where the system has them all (Linux).
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import aiohttp
import numpy as np
import psutil
import torch
from aiohttp import web

from benchmarks.machine import MIB, command_line, describe_machine, met, report
from helpers.device import pick_device
from helpers.generate import generate
from helpers.generate.batch import prompt_ids

FACTORS = (0.5, 1, 2, 5)  # of the capacity
MOST = 10_000  # requests of one load, about
CLIENTS = (8, 16)
PROMPTS = ("请教大家，", "新手求助，", "楼主好，", "我家的")
AIMS = {
    "times_rival_tokens_8": 8,
    "times_rival_tokens_16": 8,
    "times_rival_short_latency": 10,
    "goodput_of_peak_at_5": 0.95,
    "refused_ms_p99": 50,
    "refused_without_retry_after": 0,
    "healthz_ms_p99": 20,
    "memory_growth": 1.1,
}
AT_LEAST = {name for name in AIMS if name.startswith(("times_rival", "goodput"))}  # the others are aims not to pass
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
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


@dataclass
class Answer:
    """How a request ended."""

    status: int  # of HTTP; 0: no answer
    latency: float  # seconds since it was due
    sent: float  # seconds since it was sent
    tokens: int
    end: float  # by the clock `time.perf_counter`
    retry_after: bool  # whether it has the header Retry-After


class Crowd:
    """Clients of one server, each with an address of its own and with connections that are kept alive.

    Plain streams: a client like aiohttp's takes so much time per request that a thousand of them per second would take
    the server's, for both share the machine.
    """

    def __init__(self, address: str, clients: int = len(SOURCES)) -> None:
        host, port = address.removeprefix("http://").split(":")
        self._server, self._host = (host, int(port)), address.removeprefix("http://").encode()
        self._idle: list[list[Connection]] = [[] for _ in SOURCES[:clients]]  # of each client
        self._turn = 0

    async def __aenter__(self) -> "Crowd":
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in sum(self._idle, []):
            writer.close()

    async def post(self, body: dict) -> tuple[bytes, bytes]:
        """Send a completion request as the next client; return head and body of the answer.

        Raises OSError, and EOFError where the server closes the connection.
        """
        self._turn = (self._turn + 1) % len(self._idle)
        idle = self._idle[self._turn] = [each for each in self._idle[self._turn] if not each[0].at_eof()]
        local = (SOURCES[self._turn], 0) if len(SOURCES) > 1 else None
        reader, writer = idle.pop() if idle else await asyncio.open_connection(*self._server, local_addr=local)
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n" % self._host
        try:
            writer.write(head + b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            head = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1]))
        except BaseException:
            writer.transport.abort()
            raise
        idle.append((reader, writer))
        return head, answer

    async def ask(self, body: dict, due: float | None = None) -> Answer:
        """Send a completion request and wait for its whole answer; `due` is when it should have been sent."""
        sent = time.perf_counter()
        due = due or sent
        status, tokens, later = 0, 0, False
        with contextlib.suppress(OSError, EOFError):  # no answer: status 0, which the tables show
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


def milliseconds(values: list[float]) -> list[float]:
    """Return p50 and p99 of seconds, in milliseconds; no numbers if there are none."""
    return [round(1000 * float(each), 1) for each in np.percentile(values or [float("nan")], (50, 99))]


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
            print(f"{factor} times: {rows[factor]}", flush=True)
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


# ---- all of it ----


def compare(ours: dict, rival: dict) -> dict:
    """Return what the two servers reach, and ours as a multiple of the rival."""
    figures: dict = {}
    for name, side in {"ours": ours, "rival": rival}.items():
        figures[f"{name}_tokens_per_second"] = {n: round(value, 1) for n, value in side["tokens_per_second"].items()}
        figures[f"{name}_short_ms_p50"] = milliseconds(side["short"])[0]
    for clients in CLIENTS:
        speed, rival_speed = (side["tokens_per_second"][clients] for side in (ours, rival))
        figures[f"times_rival_tokens_{clients}"] = round(speed / rival_speed, 2)
    latency, rival_latency = (statistics.median(side["short"]) for side in (ours, rival))
    return figures | {"times_rival_short_latency": round(rival_latency / latency, 1)}


async def measure(options: argparse.Namespace) -> dict:
    """Run the parts in turn and return all figures."""
    figures: dict = {}
    with serving("helpers.serve", "--run", options.run, "--port", "0") as (address, pid):
        parts = {"load": partial(load, address, pid), "health": partial(health, address)}
        for name in [name for name in parts if name in options.parts]:
            figures |= await parts[name](options)
        if "rival" in options.parts:
            ours = await against(address, options)
    if "rival" in options.parts:
        with serving("benchmarks.serve_load", "--rival", "--run", options.run) as (address, _):
            figures |= compare(ours, await against(address, options))
    return figures


def main() -> None:
    """Measure, print tables, and as the last line one JSON object."""
    parts = ("load", "health", "rival")
    parser = command_line("serve_load", __doc__)
    parser.add_argument("--run", required=True, help="a trained run")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts, help="default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load; default 8")
    parser.add_argument("--tokens", type=int, default=32, help="the longest continuation of a usual request")
    parser.add_argument("--quick", action="store_true", help="a second each, no aims: does it work?")
    parser.add_argument("--rival", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rival:
        return rival(options.run)
    if options.quick:
        options.seconds = min(options.seconds, 1.0)
    random.seed(0)
    gc.freeze()  # a search through torch's modules for garbage would delay what is to be measured
    figures = asyncio.run(measure(options))
    aims = {} if options.quick else met(figures, AIMS, AIMS.keys() - AT_LEAST)
    report("serve_load", describe_machine(pick_device("auto")), figures, aims)


if __name__ == "__main__":
    main()
