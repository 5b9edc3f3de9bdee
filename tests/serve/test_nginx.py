"""examples/nginx.conf, tried as its first lines say: nginx starts with that file, and streams through it."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import httpx
import pytest
from displays import until as wait_until
from service import FakeEngine, in_thread

from helpers import paths

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])  # Debian keeps nginx there
CONF = (paths.repo_root() / "examples" / "nginx.conf").read_text("utf-8")


@contextlib.contextmanager
def nginx(conf):
    """Run nginx as the example's commands do, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        (Path(folder) / "examples").mkdir()
        (Path(folder) / "examples" / "nginx.conf").write_text(conf, "utf-8")
        make, start = re.findall(r"^#   (mkdir.+|nginx.+)$", conf, re.M)

        def shell(command):
            subprocess.run(command, shell=True, cwd=folder, env=os.environ | {"PATH": PATH, "PWD": folder}, check=True)

        shell(f"{make} && {start}")
        pid = Path(folder) / "runs" / ".nginx" / "logs" / "nginx.pid"
        wait_until(lambda: pid.exists() and pid.read_text())
        try:
            yield
        finally:
            shell(f"{start} -s quit")
            wait_until(lambda: not pid.exists())


@pytest.mark.outside
@pytest.mark.skipif(not shutil.which("nginx", path=PATH), reason="nginx is not installed")
def test_nginx_starts_with_the_example_and_streams_through_it():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    engine = FakeEngine(held=True)

    def write():
        wait_until(lambda: engine.futures)
        engine.write(0, 0, "你")

    with in_thread(engine, hosts=["example.org"], proxies=["127.0.0.1"]) as address:
        conf = re.sub(r"\b500[56]\b", address.rpartition(":")[2], CONF).replace("8080", port)
        with nginx(conf), httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Host": "example.org"}) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
            assert client.get("/metrics").status_code == 404  # not for the public
            assert client.post("/generate", content=b"x" * 70_000).status_code == 413
            threading.Thread(target=write).start()
            with client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
                pieces = response.iter_text()
                assert "你" in next(pieces) and engine.waiting == 1  # it is here before the text is done
                engine.release()
                assert "".join(pieces).endswith("data: [DONE]\n\n")
