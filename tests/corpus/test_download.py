"""From the net to a folder: a local server that stalls, breaks off, redirects, lies and never ends."""

import gzip
import hashlib
import json
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from helpers.corpus import download
from helpers.corpus.download import Corpus, FetchError

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
        """ModelScope: lists two files a page, and gives each by its path."""
        files = ["data/a.jsonl", "README.md", "data/b/a.jsonl", "a.jsonl"]
        asked = {name: value[0] for name, value in parse_qs(urlsplit(self.path).query).items()}
        if "FilePath" in asked:
            return self.good(json.dumps({"text": asked["FilePath"]}).encode())
        start = 2 * (int(asked["PageNumber"]) - 1)
        listed = [{"Path": path, "Type": "blob"} for path in files[start : start + 2]]
        self.missing() if "gone" in self.path else self.good(json.dumps({"Data": {"Files": listed}}).encode())

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
        ("page", "is a web page"),
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
    packed = download.fetch(f"{server.url}/encoded/a.txt", tmp_path)
    assert packed.name == "a.txt.gz" and gzip.decompress(packed.read_bytes()) == TEXT
    assert download.fetch(f"{server.url}/good/..%2F..%2Fetc%2Fa.txt", tmp_path).parent.parent == tmp_path


def test_what_is_no_address_is_a_path(tmp_path):
    assert download.fetch("books/*.txt", tmp_path) == "books/*.txt"
    with pytest.raises(FetchError, match="only http"):
        download.fetch("ftp://127.0.0.1/a.txt", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_data_set_of_modelscope_comes_file_by_file(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MODELSCOPE", server.url)
    monkeypatch.setattr(download, "PAGE", 2)
    folder = download.fetch("modelscope:owner/name", tmp_path)
    texts = {path.name: json.loads(path.read_text("utf-8"))["text"] for path in folder.iterdir()}
    assert texts == {"data_a.jsonl": "data/a.jsonl", "data_b_a.jsonl": "data/b/a.jsonl", "a.jsonl": "a.jsonl"}
    with pytest.raises(FetchError, match="lists no files of it .*404"):
        download.fetch("modelscope:owner/gone", tmp_path)


# ---- the Hub, by a stand-in ----


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the library `datasets`: a stream of rows, what was asked for in `asked`."""
    stand_in = types.ModuleType("datasets")
    stand_in.asked, stand_in.fault = [], None

    class Rows(list):
        info = types.SimpleNamespace(license="cc-by-4.0")

        def __iter__(self):
            for number, row in enumerate(list.__iter__(self)):
                if stand_in.fault and number == 3:
                    raise stand_in.fault
                yield row

    def load_dataset(name, config, **settings):
        stand_in.asked.append((name, config, settings))
        if settings["split"] == "nowhere":
            raise ValueError("Bad split: nowhere. Available splits: ['train']")
        return Rows({"text": f"第{n}句\ud83d", "n": n, "tags": ["一"], "photo": b"x", "when": time} for n in range(9))

    stand_in.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    return stand_in


def test_a_data_set_of_the_hub_becomes_json_lines(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "MOST_ROWS", 5)
    path = download.fetch("hf:owner/name/20231101.zh:test", tmp_path)
    # and no trust_remote_code
    assert hub.asked == [("owner/name", "20231101.zh", {"split": "test", "streaming": True})]
    assert path.name == "owner--name--20231101.zh.test.jsonl"
    assert "has more rows: the first 5 are taken" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert rows == [{"text": f"第{n}句\ud83d", "n": n, "tags": ["一"], "photo": None, "when": None} for n in range(5)]
    assert download.fetch("hf:owner/name/20231101.zh:test", tmp_path) == path and len(hub.asked) == 1
    entry = download.read_fetched(tmp_path)["hf:owner/name/20231101.zh:test"]
    (file,) = entry["files"].values()
    assert (entry["licence"], file["rows"]) == ("cc-by-4.0", 5)
    monkeypatch.setattr(download, "MOST_ROWS", 9)
    download.fetch("hf:owner/name/20231101.zh:test", tmp_path)
    assert len(path.read_bytes().splitlines()) == 9 and not capsys.readouterr().out


@pytest.mark.parametrize("source", ["hf:", "hf:json", "hf:a/b/c/d", "hf:../x", "hf:a/b:c:d", "hf:owner/name:nowhere"])
def test_data_sets_that_are_not_there(hub, tmp_path, source):
    with pytest.raises(FetchError, match=source.replace(".", r"\.")):
        download.fetch(source, tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_folder_of_the_same_name_is_not_taken_for_a_data_set(hub, tmp_path, monkeypatch):
    """`datasets` looks on the disk first, and would read whatever lies there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(FetchError, match="the folder owner/name that is here"):
        download.fetch("hf:owner/name", tmp_path)
    assert not hub.asked


def test_a_stream_that_breaks_leaves_nothing_half(hub, tmp_path):
    hub.fault = ConnectionError("gone")
    with pytest.raises(FetchError, match="gone"):
        download.fetch("hf:owner/name", tmp_path)
    assert not list(tmp_path.rglob("*.jsonl"))
    hub.fault = None
    assert len(download.fetch("hf:owner/name", tmp_path).read_bytes().splitlines()) == 9


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FetchError, match="pip install"):
        download.fetch("hf:owner/name", tmp_path)
