"""examples/nginx.conf, tried as its first lines say: a real nginx before two real servers.

The clients have addresses of their own, 127.0.0.2 and so on, which Linux gives to everybody.
"""

import contextlib
import os
import pwd
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from service import tiny_tokenizer, wait_until

from helpers import paths
from helpers.manifest import write_manifest
from helpers.serve.server import KEY
from helpers.train.model import build_model, make_config

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])  # Debian keeps nginx there
pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not shutil.which("nginx", path=PATH), reason="nginx is not installed"),
    pytest.mark.timeout(180),
]

CONF = paths.repo_root() / "examples" / "nginx.conf"
PORTS = (5005, 5006, 8080)  # two servers, and nginx: what the example says
SENTENCE = "绿萝怎么浇水"
LIMIT = 40  # connections per client


def make_slow_run() -> None:
    """Make a run whose model writes a token in some five milliseconds, and never ends a text before it must."""
    net = build_model(make_config("gpt2", tiny_tokenizer(), n_ctx=64, n_embd=384, n_layer=12, n_head=4), seed=0)
    with torch.no_grad():  # the end's logit is far below all others
        net.transformer.ln_f.bias.fill_(1)
        net.transformer.wte.weight[tiny_tokenizer().eos_token_id] = -10
    folder = paths.room("tiny", "train") / "final_model"
    net.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    write_manifest("tiny", "train", parameters={}, inputs=[], outputs=folder.iterdir(), result={})


def free_ports(count: int) -> list[int]:
    """Return free ports of those that no outgoing connection takes: a server must find its own again."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            found += [] if port in found else [port]
    return found


class Site:
    """The processes that the first lines of the example start, on ports that are free."""

    def __init__(self, folder: Path):
        self.folder, self.environment = folder, os.environ | {KEY: "a-key", "PATH": PATH, "OMP_NUM_THREADS": "1"}
        self.ports = dict(zip(PORTS, free_ports(3), strict=True))
        self.conf = self.with_ports(CONF.read_text("utf-8"))
        commands = re.findall(r"^#   (.+?)(?: &)?$", self.conf, re.M)
        self.serve = [each for each in commands if "helpers.serve" in each]
        self.rest = [each for each in commands if re.match("mkdir|nginx", each)]
        assert len(self.serve) == 2 and len(self.rest) == 2, commands
        self.servers: list[subprocess.Popen | None] = [None, None]

    def with_ports(self, text: str) -> str:
        """Return a text with the ports of this site; nothing else changes."""
        for example, port in self.ports.items():
            text, found = re.subn(rf"\b{example}\b", str(port), text)
            assert found >= 1, f"the example does not name port {example}"
        return text

    def start_servers(self) -> None:
        """Start those servers that do not run, and wait until they answer."""
        for number, command in enumerate(self.serve):
            if self.servers[number] is None or self.servers[number].poll() is not None:
                python, *arguments = shlex.split(command.replace("--run sample", "--run tiny"))
                assert python == "python"
                # two requests at a time, so that a few clients show what is refused
                self.servers[number] = subprocess.Popen(
                    [sys.executable, *arguments, "--max-concurrent", "2"],
                    env=self.environment, cwd=paths.repo_root(), stdout=subprocess.DEVNULL,
                )  # fmt: skip
        for number in range(2):
            wait_until(lambda number=number: self.answers(number), 60)

    def answers(self, number: int) -> bool:
        assert self.servers[number].poll() is None, "a server ended"
        with contextlib.suppress(httpx.TransportError):
            return self.metric(number, "rows") == 0
        return False

    def metric(self, number: int, name: str) -> float:
        """Return a figure that a server itself reports, all its labels together; the proxy gives them to nobody."""
        with client(self.ports[PORTS[number]]) as direct:
            text = direct.get("/metrics").text
        return sum(map(float, re.findall(rf"^chinese_gpt_{name}(?:{{.*}})? (.+)$", text, re.M)))

    def both(self, name: str) -> float:
        return sum(self.metric(number, name) for number in range(2))

    def rows(self) -> list[float]:
        return [self.metric(number, "rows") for number in range(2)]

    def written(self, number: int) -> float:
        return self.metric(number, "tokens_written_total")

    def stop_server(self, number: int, how: signal.Signals) -> None:
        self.servers[number].send_signal(how)
        self.servers[number].wait(30)

    @contextlib.contextmanager
    def nginx(self, name: str, conf: str):
        """Run nginx as its command says, as a user who may write nowhere else; yield its folder."""
        home = self.folder / name
        (home / "examples").mkdir(parents=True)
        (home / "examples" / CONF.name).write_text(conf, "utf-8")
        user = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

        def shell(command):
            return subprocess.run(
                command, shell=True, cwd=home, env=self.environment | {"PWD": str(home)}, check=True, timeout=20, **user
            )

        for command in self.rest:
            shell(command)
        folder = home / "runs" / ".nginx"
        pid = folder / "logs" / "nginx.pid"
        wait_until(lambda: pid.exists() and pid.read_text())
        master = psutil.Process(int(pid.read_text()))
        try:
            yield folder
        finally:
            processes = [master, *master.children()]
            shell(f"{self.rest[-1]} -s quit")
            _, left = psutil.wait_procs(processes, timeout=10)
            for process in left:
                process.kill()
        assert not left


@pytest.fixture(scope="module")
def house(own_runs_dir):
    """Two servers and nginx, for all tests of this module."""
    make_slow_run()
    folder = Path(tempfile.mkdtemp(prefix="nginx-"))  # pytest's own are closed to other users
    site = Site(folder)
    try:
        site.start_servers()
        with site.nginx("as it is", site.conf) as site.nginx_folder:
            yield site
    finally:
        for server in site.servers:
            if server is not None:
                server.kill()
                server.wait()
        shutil.rmtree(folder)


@pytest.fixture
def site(house):
    """The same with both servers at work, whatever the test before did to them, and nothing to write."""
    house.start_servers()
    wait_until(lambda: house.rows() == [0, 0])
    return house


def client(port: int, address: str = "127.0.0.1", key: str = "a-key") -> httpx.Client:
    """Return a client at an address of its own."""
    headers = {"Host": "example.org"} | ({"Authorization": f"Bearer {key}"} if key else {})
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(
        base_url=f"http://127.0.0.1:{port}", transport=transport, headers=headers, trust_env=False, timeout=60
    )


def visit(site: Site, number: int = 2, key: str = "a-key") -> httpx.Client:
    """Return a client of the proxy, the one with this number."""
    return client(site.ports[8080], f"127.0.0.{number}", key)


def ask(client: httpx.Client, tokens: int = 3, n: int = 1, headers: dict | None = None) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": SENTENCE, "max_tokens": tokens, "n": n}, headers=headers)


# ---- what is answered, and what is refused ----


def test_requests_are_answered_with_the_key_and_refused_without(site):
    with visit(site) as known, visit(site, key="") as unknown, visit(site, key="wrong") as wrong:
        assert known.get("/v1/models").json()["data"][0]["id"] == "tiny"
        answer = ask(known)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
        assert known.post("/generate", json={"context": "绿萝", "samples": 1}).json()[0].startswith("绿萝")
        assert "<html" in known.get("/").text
        for other in (unknown, wrong):
            refused = ask(other)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert "www-authenticate" in refused.headers
            assert other.get("/healthz").status_code == 200


def test_another_host_name_is_refused_by_the_servers(site):
    with visit(site) as known:
        for name in ("example.org", "EXAMPLE.org:8080", "localhost"):
            assert known.get("/v1/models", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", "example.org.evil.example"):
            refused = known.get("/v1/models", headers={"Host": name})
            assert (refused.status_code, refused.json()["error"]["code"]) == (421, "host_not_allowed"), name


def raw(site: Site, target: str) -> int:
    """Return the status of a GET whose address is sent as it is written."""
    with socket.create_connection(("127.0.0.1", site.ports[8080]), 20) as wire:
        head = f"GET {target} HTTP/1.1\r\nHost: example.org\r\nAuthorization: Bearer a-key\r\nConnection: close\r\n\r\n"
        wire.sendall(head.encode())
        return int(wire.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "target",
    ["/metrics", "/metrics?x=1", "//metrics", "/%6detrics", "/page/../metrics", "/x/..%2fmetrics", "/metrics/",
     "http://example.org/metrics"],
)  # fmt: skip
def test_the_metrics_are_not_for_the_public(site, target):
    assert raw(site, "/healthz") == 200 and site.metric(0, "rows") == 0  # both ways work
    assert raw(site, target) == 404


def test_a_large_body_is_refused_and_one_that_fits_touches_no_disk(site):
    written, refused = site.both("tokens_written_total"), site.both("rejects_total")
    with visit(site) as known:
        body = b'{"prompt": "%s", "max_tokens": 1, "n": 1}' % SENTENCE.encode()
        head = {"Content-Type": "application/json"}

        def pieces(size):  # without a length in the header: nginx must count
            data = body.ljust(size)
            yield from (data[at : at + 100] for at in range(0, size, 100))

        for content in (body.ljust(2**16), pieces(2**16)):
            assert known.post("/v1/completions", content=content, headers=head).status_code == 200
        for content in (body.ljust(2**16 + 1), pieces(2**16 + 1)):
            assert known.post("/v1/completions", content=content, headers=head).status_code == 413
    assert site.both("tokens_written_total") == written + 2
    assert site.both("rejects_total") == refused  # the servers do not hear of what is too large
    assert "temporary file" not in (site.nginx_folder / "logs" / "error.log").read_text()


# ---- streams ----


def silence(client: httpx.Client) -> float:
    """Return the longest time without a piece of a stream, as a share of the time that the whole stream takes."""
    times, data = [time.perf_counter()], b""
    wanted = {"prompt": SENTENCE, "max_tokens": 60, "stream": True}
    with client.stream("POST", "/v1/completions", json=wanted) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for piece in response.iter_raw():
            times.append(time.perf_counter())
            data += piece
    assert data.endswith(b"data: [DONE]\n\n") and data.count(b"data: ") > 10
    return max(after - before for before, after in pairwise(times)) / (times[-1] - times[0])


def test_a_stream_arrives_piece_by_piece(site):
    with visit(site) as known:
        assert min(silence(known) for _ in range(3)) < 0.4  # a busy machine may be silent once


def test_the_measure_sees_a_proxy_that_waits_for_the_end(site):
    """The servers ask nginx not to buffer, and the example says so too: the fault takes away both, and the chunks."""
    port = free_ports(1)[0]
    waiting = "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering; proxy_buffers 4 64k; proxy_buffer_size 64k;"
    faulty = site.conf.replace(str(site.ports[8080]), str(port))
    for line, fault in (("proxy_buffering off;", waiting), ("proxy_http_version 1.1;", "")):
        assert line in faulty
        faulty = faulty.replace(line, fault)
    with site.nginx("that waits", faulty), client(port) as known:
        assert silence(known) > 0.9


# ---- clients ----


@contextlib.contextmanager
def held(client: httpx.Client, count: int):
    """Hold requests under way, each of two long texts, and leave them before their end."""
    with contextlib.ExitStack() as stack:
        pieces = []  # an iterator that is dropped closes its response
        for _ in range(count):
            wanted = {"prompt": SENTENCE, "max_tokens": 500, "n": 2, "stream": True}
            response = stack.enter_context(client.stream("POST", "/v1/completions", json=wanted))
            assert response.status_code == 200, response.read()
            pieces.append(response.iter_raw())
            next(pieces[-1])
        yield


def test_the_client_is_whom_the_proxy_saw(site):
    """Nobody gets more by inventing an address, and nobody can use up what is another's."""
    with visit(site, 2) as one, visit(site, 3) as other, held(one, 4):
        assert site.rows() == [4, 4]  # the next request went to the freer server
        for invented in ({}, *({"X-Forwarded-For": name} for name in ("10.9.9.9", "127.0.0.3", "10.9.9.9, 127.0.0.3"))):
            refused = ask(one, headers=invented)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests"), invented
        assert ask(other, headers={"X-Forwarded-For": "127.0.0.2"}).status_code == 200
    wait_until(lambda: site.rows() == [0, 0], 2)  # the servers hear that the clients have left


def test_the_processes_of_nginx_count_together(site):
    """Each of two holds a text: the second one knows that the first server is busy."""
    port = free_ports(1)[0]
    conf = site.conf.replace(str(site.ports[8080]), str(port)).replace("worker_processes auto", "worker_processes 2")
    with site.nginx("of two processes", conf) as folder, client(port) as one, client(port) as other:
        master = psutil.Process(int((folder / "logs" / "nginx.pid").read_text()))
        wait_until(lambda: len(master.children()) == 2)
        first, second = master.children()

        def stop(process):
            process.suspend()
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED)  # else it may still take the connection

        try:
            stop(first)
            with held(one, 1):
                first.resume()
                stop(second)
                with held(other, 1):
                    assert site.rows() == [2, 2]
        finally:
            first.resume()
            second.resume()


def test_a_crowd_at_one_address_is_kept_away(site):
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(visit(site, number)) for number in (2, 3))
        for count in range(LIMIT):
            assert one.get("/healthz").status_code == 200, f"beside {count} others"
            stack.enter_context(unfinished(site, "127.0.0.2"))
        assert [one.get("/healthz").status_code for _ in range(3)] == [429] * 3
        assert ask(one).status_code == 429
        assert ask(other).status_code == 200
    with visit(site, 2) as one:
        wait_until(lambda: one.get("/healthz").status_code == 200)


@contextlib.contextmanager
def unfinished(site: Site, address: str):
    """Send a request without its body; "100 Continue" says that the proxy waits for that, and has counted it."""
    with socket.create_connection(("127.0.0.1", site.ports[8080]), 20, (address, 0)) as wire:
        head = "POST /v1/completions HTTP/1.1\r\nHost: example.org\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 100")
        yield


# ---- servers that end ----


class Asking(threading.Thread):
    """A client that asks for one short text after the other until it is told to stop."""

    def __init__(self, site: Site, number: int):
        super().__init__()
        self.client, self.stop, self.statuses = visit(site, number), threading.Event(), []

    def run(self):
        with self.client:
            while not self.stop.is_set():
                self.statuses.append(ask(self.client).status_code)


@contextlib.contextmanager
def askers(site: Site, least: int):
    """Let four clients ask meanwhile, and in all at least so many times; each of their requests must succeed."""
    clients = [Asking(site, number) for number in range(2, 6)]
    for each in clients:
        each.start()
    try:
        yield
        wait_until(
            lambda: sum(len(each.statuses) for each in clients) >= least or not all(map(Asking.is_alive, clients))
        )
    finally:
        for each in clients:
            each.stop.set()
        for each in clients:
            each.join()
    statuses = [status for each in clients for status in each.statuses]
    assert len(statuses) >= least and set(statuses) == {200}, statuses


def test_a_server_that_is_killed_is_skipped_and_used_at_once_when_it_is_back(site):
    with askers(site, 40):
        pass
    assert site.written(0) and site.written(1)  # both have answered
    site.stop_server(0, signal.SIGKILL)  # it had nothing to do: the proxy learns of it when it wants to connect
    with askers(site, 40):
        site.start_servers()
    # the next server on this port is used at once: as soon as it answers, the other one may go
    site.stop_server(1, signal.SIGKILL)
    with askers(site, 40):
        pass
    assert site.written(0) > 0


def test_what_a_killed_server_was_writing_is_lost_and_not_written_again(site):
    with long_texts(site) as (busy, answers):
        other = 1 - busy
        before = site.written(other)
        site.stop_server(busy, signal.SIGKILL)
    assert answers == [502]
    assert site.metric(other, "rows") == 0 and site.written(other) == before
    with askers(site, 40):
        pass


@contextlib.contextmanager
def long_texts(site: Site):
    """Let a client wait meanwhile for texts that take some seconds; yield (who writes them, [the answer's status])."""
    answers: list[int] = []
    with visit(site) as one:
        asking = threading.Thread(target=lambda: answers.append(ask(one, 500, n=4).status_code))
        asking.start()
        try:
            wait_until(lambda: 4 in site.rows())
            yield site.rows().index(4), answers
        finally:
            asking.join()


def test_a_server_that_is_told_to_end_finishes_its_text_while_the_other_one_goes_on(site):
    with long_texts(site) as (leaving, answers):
        site.servers[leaving].send_signal(signal.SIGTERM)
        wait_until(lambda: not listens(site.ports[PORTS[leaving]]))
        time.sleep(0.2)  # a request that meets the very moment at which a connection is closed may be lost
        with askers(site, 40):
            pass
        assert answers == []  # all of this happened before its end
    assert answers == [200] and site.servers[leaving].wait(30) == 0


def listens(port: int) -> bool:
    with socket.socket() as wire:
        return wire.connect_ex(("127.0.0.1", port)) == 0


def test_no_log_says_what_was_asked(site):
    """Also where something fails: a body that is refused, a crowd, a server that has gone, all of them seen above."""
    with visit(site) as known:
        assert ask(known).status_code == 200
    wait_until(lambda: " POST 200 " in (site.nginx_folder / "logs" / "access.log").read_text("utf-8"))
    for file in site.nginx_folder.rglob("*"):
        if file.is_file():
            text = file.read_bytes()
            assert SENTENCE.encode() not in text and b"a-key" not in text, file
