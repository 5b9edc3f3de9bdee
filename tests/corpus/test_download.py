"""From the net to a folder: a local server that stalls, breaks off, redirects, lies and never ends."""

import gzip
import hashlib
import json
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from helpers.corpus import download
from helpers.corpus.download import Corpus, FetchError
from helpers.corpus.find import find_inputs

TEXT = "".join(f"第{n}句，绿萝喜欢散射光。\n\n" for n in range(3000)).encode()  # 130 KB
HALF = 50_000


class Handler(BaseHTTPRequestHandler):
    """Answers by the path: /<behaviour>/name. The server keeps `log`, the requests, and counts them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        log = self.server.log
        log.append((self.path, dict(self.headers)))
        self.attempt = sum(path == self.path for path, _ in log)
        getattr(self, self.path.split("/")[1])()

    def head(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def good(self, data=TEXT, stop=None, **headers):
        """Send the data; break off at `stop`."""
        self.head(Content_Length=len(data), **headers)
        self.wfile.write(data[:stop])
        self.close_connection = bool(stop)

    def breaks_once(self):
        self.good(stop=HALF if self.attempt == 1 else None)

    def breaks(self):
        self.good(stop=HALF)

    def slow(self):
        self.server.wait.wait(0.5)
        self.good()

    def stalls(self):
        if self.attempt > 1:
            return self.good()
        self.head(Content_Length=len(TEXT))
        self.wfile.write(TEXT[:HALF])
        self.server.wait.wait(5)
        self.close_connection = True

    def endless(self):
        self.head(Transfer_Encoding="chunked")
        try:
            while not self.server.wait.is_set():
                self.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            self.close_connection = True

    def huge(self):
        self.head(Content_Length=10**15)
        self.close_connection = True

    def circle(self):
        self.head(302, Location=self.path, Content_Length=0)

    def moved(self):
        self.head(301, Location="/good/new.txt", Content_Length=0)

    def to_file(self):
        self.head(302, Location="file:///etc/hostname", Content_Length=0)

    def missing(self):
        self.head(404, Content_Length=0)

    def busy(self):
        self.head(503, Content_Length=0) if self.attempt < 3 else self.good()

    def never(self):
        self.head(503, Content_Length=0)

    def page(self):
        self.good(b"<html>log in</html>", Content_Type="text/html; charset=utf-8")

    def json(self):
        self.good('["一", "二"]'.encode(), Content_Type="application/json")

    def api(self):
        """The Hub: what is in a data set."""
        files = [{"rfilename": path, "path": path, "type": "file", "oid": "1", "size": len(SET[path])} for path in SET]
        said = {"id": "owner/name", "sha": "0" * 40, "siblings": files, "cardData": {"license": "cc-by-4.0"}}
        if "/owner/name" not in self.path or "namex" in self.path:
            return self.missing()
        self.good(json.dumps(files if "/tree/" in self.path else said).encode(), Content_Type="application/json")

    def datasets(self):
        data = SET[unquote(self.path).partition(f"/{'0' * 40}/")[2]]
        self.good(data, ETag=f'"{len(data)}"', X_Repo_Commit="0" * 40)

    do_HEAD = do_GET

    def encoded(self):
        self.good(gzip.compress(TEXT), Content_Encoding="gzip")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "WAIT", 0.001)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.log, server.wait = True, [], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.wait.set()
    server.shutdown()
    thread.join()
    server.server_close()


def left_over(folder):
    return [path for path in folder.rglob(".*") if path.suffix != ".lock" and path.stat().st_size]


def test_a_file_is_fetched_once_and_recorded(server, tmp_path):
    url = f"{server.url}/good/%E4%B9%A6.txt?x=1"
    path = download.fetch(url, tmp_path)
    assert path.name == "书.txt" and path.read_bytes() == TEXT
    assert download.fetch(url, tmp_path) == path and len(server.log) == 1
    entry = json.loads((tmp_path / "fetched.json").read_text("utf-8"))[url]
    assert "not known" in entry["licence"]
    (file,) = entry["files"].values()
    assert (file["url"], file["bytes"], file["sha256"]) == (url, len(TEXT), hashlib.sha256(TEXT).hexdigest())
    assert not left_over(tmp_path)
    path.write_bytes(TEXT[:10])  # no longer what was fetched
    assert download.fetch(url, tmp_path).read_bytes() == TEXT


@pytest.mark.parametrize("behaviour", ["breaks_once", "stalls", "busy", "moved"])
def test_what_another_attempt_mends(server, tmp_path, monkeypatch, behaviour):
    monkeypatch.setattr(download, "STALL", 0.3)
    assert download.fetch(f"{server.url}/{behaviour}/a.txt", tmp_path).read_bytes() == TEXT
    assert not left_over(tmp_path)


def test_two_runs_that_want_the_same_file_fetch_it_once(server, tmp_path):
    url = f"{server.url}/slow/a.txt"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: download.fetch(url, tmp_path), range(2))
    assert first == second and first.read_bytes() == TEXT and len(server.log) == 1
    assert list(download.read_fetched(tmp_path)) == [url]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("missing", "answers 404"),
        ("never", "answers 503.*6 times in a row"),
        ("circle", "no address of a file.*redirects"),
        ("to_file", "no address of a file"),
        ("breaks", "6 times in a row. Run this again"),
        ("endless", "more bytes than the limit of 1,000,000"),
        ("huge", "more bytes than the limit of 1,000,000"),
    ],
)
def test_what_cannot_be_mended_is_said(server, tmp_path, monkeypatch, behaviour, why):
    monkeypatch.setattr(download, "MAX_BYTES", 1_000_000)
    with pytest.raises(FetchError, match=why):
        download.fetch(f"{server.url}/{behaviour}/a", tmp_path)
    assert not [path for path in tmp_path.rglob("[!.]*") if path.is_file()]
    assert len(server.log) < 30


def test_a_corpus_by_name(server, tmp_path, monkeypatch):
    files = tuple(f"{server.url}/{name}" for name in ("good/a.txt", "json/b.json"))
    monkeypatch.setitem(download.CORPORA, "two", Corpus("two files", "MIT", "https://example.org", files))
    folder = download.fetch("two", tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.json"]
    (folder / "b.json").unlink()
    assert download.fetch("two", tmp_path) == folder
    assert [path for path, _ in server.log] == ["/good/a.txt", "/json/b.json", "/json/b.json"]
    assert download.read_fetched(tmp_path)["two"]["licence"] == "MIT"
    assert sorted(download.read_fetched(tmp_path)["two"]["files"]) == ["two/a.txt", "two/b.json"]


def test_names_of_files(server, tmp_path):
    assert download.fetch(f"{server.url}/json/export", tmp_path).name == "export.json"
    assert download.fetch(f"{server.url}/page/%E7%BB%BF%E8%90%9D", tmp_path).name == "绿萝.html"
    packed = download.fetch(f"{server.url}/encoded/a.txt", tmp_path)
    assert packed.name == "a.txt.gz" and gzip.decompress(packed.read_bytes()) == TEXT
    assert download.fetch(f"{server.url}/good/..%2F..%2Fetc%2Fa.txt", tmp_path).parent.parent == tmp_path


def test_what_is_no_address_is_a_path(tmp_path):
    assert download.fetch("books/*.txt", tmp_path) == "books/*.txt"
    assert not list(tmp_path.iterdir())


# ---- data sets of hubs ----

SET = {"data/a.jsonl": b'{"text": "a"}', "README.md": b"", "b [1].txt": TEXT}


@pytest.fixture
def hub(server, monkeypatch):
    """The library of the Hugging Face Hub, which asks our server."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    return server


@pytest.fixture
def modelscope(monkeypatch):
    """Stands in for the library of ModelScope."""
    library = types.ModuleType("modelscope_hub")

    def list_repo_files(_, name, repo_type):
        if name != "owner/name":
            raise Exception("404, no such data set")
        found = [types.SimpleNamespace(path=path, size=len(data), is_dir=False) for path, data in SET.items()]
        return [*found, types.SimpleNamespace(path="data", size=0, is_dir=True)]

    def snapshot_download(repo_id, repo_type, local_dir, allow_patterns):
        for path in (path for path in SET if any(fnmatchcase(path, pattern) for pattern in allow_patterns)):
            Path(local_dir, path).parent.mkdir(parents=True, exist_ok=True)
            Path(local_dir, path).write_bytes(SET[path])

    library.HubApi = type("HubApi", (), {"list_repo_files": list_repo_files})
    library.compat = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "modelscope_hub", library)


@pytest.mark.parametrize("name", ["hf", "modelscope"])
def test_a_data_set_comes_file_by_file(hub, modelscope, tmp_path, monkeypatch, name):
    source = f"{name}:owner/name"
    folder = download.fetch(source, tmp_path)
    inputs, left_out = find_inputs(str(folder))
    assert {item.name: item.path.read_bytes() for item in inputs} == {n: SET[n] for n in SET if n != "README.md"}
    asked = len(hub.log)
    assert download.fetch(source, tmp_path) == folder and len(hub.log) == asked and not left_out
    entry = download.read_fetched(tmp_path)[source]
    assert entry["licence"].startswith("cc-by" if name == "hf" else "not known")
    assert sum(file["bytes"] for file in entry["files"].values()) == len(TEXT) + 13
    part = download.fetch(f"{source}/data/*", tmp_path)
    assert [item.name for item in find_inputs(str(part))[0]] == ["data/a.jsonl"]
    monkeypatch.setattr(download, "MAX_BYTES", 1000)
    whys = {"x": "404", "/*.csv": "none of its 3 files", "/b*": f"limit is 1,000: choose .* {source}/b "}
    for more, why in whys.items():
        with pytest.raises(FetchError, match=why):
            download.fetch(source + more, tmp_path)


@pytest.mark.parametrize("source", ["hf:", "hf:json", "hf:../x", "hf:owner/name:train", "modelscope:a"])
def test_names_of_data_sets(tmp_path, source):
    with pytest.raises(FetchError, match=f"{source}.*give hf:owner/name"):
        download.fetch(source, tmp_path)


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)
    with pytest.raises(FetchError, match="pip install"):
        download.fetch("modelscope:owner/name", tmp_path)
