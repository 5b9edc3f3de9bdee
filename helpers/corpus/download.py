"""Download text to a local folder: public corpora by name, http(s) addresses, data sets of the Hugging Face Hub.

A broken download is resumed. What was downloaded, from where and under which licence is in fetched.json beside it.
Knows nothing of documents.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from tqdm.auto import tqdm

from helpers.corpus.inputs import EXTENSIONS
from helpers.files import atomic_write, sha256, write_text

FETCHED = "fetched.json"
MAX_BYTES = 20 * 2**30  # of one file
MAX_ROWS = 1_000_000  # of one data set of the Hub
REDIRECTS = 5
ATTEMPTS = 6  # in a row without progress
WAIT = 0.5  # seconds before the second attempt, doubled for each further one
STALL = 30.0  # seconds in which at least PACE bytes must come
PACE = 1024  # bytes


class FetchError(RuntimeError):
    """A download failed for good; the message says what, why, and what may help."""


@dataclass(frozen=True)
class Corpus:
    """A public corpus that is known by name."""

    what: str  # in words
    licence: str
    home: str  # address of its page
    files: tuple[tuple[str, str | None], ...]  # address and SHA-256 of each (None: not known before)
    text_key: str = "text"  # where the text is; see `formats.ReadOptions`


_POETRY = "https://raw.githubusercontent.com/chinese-poetry/chinese-poetry"
_POETRY_LICENCE = "texts in the public domain; collection MIT, (c) 2016 JackeyGao"
_POETRY_HOME = "https://github.com/chinese-poetry/chinese-poetry"


def _poetry(what: str, commit: str, name: str, last: int) -> Corpus:
    files = tuple((f"{_POETRY}/{commit}/{name.format(n)}", None) for n in range(0, last + 1, 1000))
    return Corpus(what, _POETRY_LICENCE, _POETRY_HOME, files, "paragraphs")


CORPORA: dict[str, Corpus] = {
    "tang-poems": _poetry(
        "全唐诗, about 57,600 poems of the Tang, traditional characters",
        "fa1814a8044db4fb0c7a9e0a0449974e8c3463b7",
        "全唐诗/poet.tang.{}.json",
        57000,
    ),
    "tang-poems-simplified": _poetry(
        "全唐诗, about 57,600 poems of the Tang, simplified characters",
        "bdd8a3bd9ad00429f9ab7e52fa2ce4d02de8f630",
        "全唐诗/poet.tang.{}.simplified.json",
        57000,
    ),
    "song-ci": _poetry(
        "全宋词, about 21,000 ci of the Song, simplified characters",
        "bdd8a3bd9ad00429f9ab7e52fa2ce4d02de8f630",
        "宋词/ci.song.{}.simplified.json",
        21000,
    ),
    "journey-to-the-west": Corpus(
        "西游记, a novel of 100 chapters, traditional characters, with Project Gutenberg's preface in English",
        "public domain in the USA; Project Gutenberg licence",
        "https://www.gutenberg.org/ebooks/23962",
        (("https://www.gutenberg.org/ebooks/23962.txt.utf-8", None),),
    ),
}


def fetch(source: str, folder: Path) -> Path | str:
    """Return where the text of a source is on this machine, after downloading what is not there yet.

    `source` is a name in CORPORA, an http(s) address, or "hf:owner/name" or "hf:owner/name:split" (default: train);
    anything else is a path, and returned as it is. Files go to `folder`; a broken download is resumed, also by a later
    call. MAX_BYTES limits each file, MAX_ROWS a data set of the Hub. Raises FetchError.
    """
    if source in CORPORA:
        corpus = CORPORA[source]
        return _fetch_files(source, corpus.files, folder / source, folder, corpus)
    if re.match("https?://", source, re.I):
        target = folder / f"{urlsplit(source).hostname or 'net'}-{hashlib.sha256(source.encode()).hexdigest()[:10]}"
        return _fetch_files(source, ((source, None),), target, folder)
    if source.startswith("hf:"):
        return _fetch_hub(source, folder)
    if re.match(r"[a-z][a-z0-9+.-]+://", source, re.I):
        raise FetchError(f"{source}: only http:// and https:// addresses are fetched")
    return source


def read_fetched(folder: Path) -> dict:
    """Return what fetched.json says: source -> what, licence, files (name -> address, bytes, sha256)."""
    try:
        return json.loads((folder / FETCHED).read_text("utf-8"))
    except FileNotFoundError:
        return {}


def _record(folder: Path, source: str, entry: dict) -> None:
    fetched = read_fetched(folder) | {source: entry}
    write_text(folder / FETCHED, json.dumps(fetched, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def _fetch_files(source: str, files: tuple, target: Path, folder: Path, corpus: Corpus | None = None) -> Path:
    """Download the files of one source into `target`; return this folder, or for one address the file."""
    entry = read_fetched(folder).get(source, {})
    known = {file["url"]: (name, file) for name, file in entry.get("files", {}).items()}
    licence = corpus.licence if corpus else f"not known: ask those who run {urlsplit(source).hostname}"
    what, home = (corpus.what, corpus.home) if corpus else (source, source)
    entry = {"what": what, "licence": licence, "home": home, "files": entry.get("files", {})}
    missing = [
        (url, digest)
        for url, digest in files
        if url not in known or not _is_there(folder / known[url][0], known[url][1]["bytes"])
    ]
    if missing:
        target.mkdir(parents=True, exist_ok=True)
        with httpx.Client(
            timeout=httpx.Timeout(STALL, connect=10.0), follow_redirects=True, max_redirects=REDIRECTS,
            event_hooks={"response": [_check_redirect]},
        ) as client:  # fmt: skip
            for url, digest in tqdm(missing, desc=f"fetching {source[:40]}", disable=_quiet() or len(missing) == 1):
                path, file = _fetch_file(client, url, digest, target)
                entry["files"][path.relative_to(folder).as_posix()] = file
                _record(folder, source, entry)  # after each: what is there is not downloaded again
    if corpus:
        return target
    return folder / next(name for name, file in entry["files"].items() if file["url"] == source)


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _quiet() -> bool:
    return bool(os.environ.get("HEADLESS"))


# ---- one file ----


def _fetch_file(client: httpx.Client, url: str, digest: str | None, target: Path) -> tuple[Path, dict]:
    """Download one file whole, check it, and give it its name; return its path and what to record of it."""
    key = hashlib.sha256(url.encode()).hexdigest()[:10]
    download = _Download(client, url, target / f".{key}.part")
    headers = download.run()
    actual = sha256(download.part)
    if digest and actual != digest:
        download.forget()
        raise FetchError(f"{url} is not the file that is expected: SHA-256 {actual}, not {digest}. Nothing was kept")
    path = target / _name(url, headers, download.part)
    os.replace(download.part, path)
    download.forget()
    size = path.stat().st_size
    fetched = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return path, {"url": url, "bytes": size, "sha256": actual, "etag": headers.get("etag", ""), "fetched": fetched}


_TYPES = {
    "text/plain": ".txt",
    "application/json": ".json",
    "application/x-ndjson": ".jsonl",
    "application/jsonl": ".jsonl",
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/zip": ".zip",
    "application/x-tar": ".tar",
}


def _name(url: str, headers: dict, part: Path) -> str:
    """Return a file name from the address, with an extension that can be read, if the server says the kind."""
    name = re.sub(r"[^\w.-]+", "_", unquote(urlsplit(url).path).rpartition("/")[2]).lstrip(".")[-100:] or "file"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name.lower().endswith(EXTENSIONS):
        if kind == "text/html":
            raise FetchError(f"{url} is a web page, not a file of text: give the address of the file itself")
        name += _TYPES.get(kind, "")
    with open(part, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return f"{name}.gz" if packed and not name.lower().endswith((".gz", ".tgz")) else name


def _check_redirect(answer: httpx.Response) -> None:
    """Refuse what httpx would follow too: a redirect from https to http, or to what is no file of the net."""
    if answer.is_redirect:
        location = answer.headers.get("location", "")
        target = answer.url.join(location)
        if target.scheme not in ("http", "https") or (answer.url.scheme, target.scheme) == ("https", "http"):
            raise FetchError(f"{answer.url} redirects to {location[:200]}, which is not a safe address for a file")


class _Broken(Exception):
    """An attempt failed; another one may succeed."""


class _Download:
    """One resumable download: the bytes that are there (.part), and which version of the file they are of (.info)."""

    def __init__(self, client: httpx.Client, url: str, part: Path):
        self.client, self.url, self.part = client, url, part
        self.info = part.with_suffix(".info")

    def run(self) -> dict:
        """Download until the file is whole, resuming where the connection broke; return the server's headers."""
        failures = 0
        while True:
            before = self._there()
            try:
                return self._attempt()
            except httpx.InvalidURL as error:
                raise FetchError(f"{self.url} is no address: {error}") from None
            except httpx.TooManyRedirects as error:
                last = error.request.url
                raise FetchError(f"{self.url} redirects more than {REDIRECTS} times, at last to {last}") from None
            except (httpx.TransportError, _Broken) as error:
                failures = 1 if self._there() >= before + 2**20 else failures + 1
                if failures >= ATTEMPTS:
                    raise FetchError(
                        f"{self.url}: {error or type(error).__name__}, {failures} times in a row. {self._there():,} "
                        "bytes are kept: run this again to go on from there, or download it by hand and give the file"
                    ) from None
            time.sleep(WAIT * 2 ** (failures - 1))

    def forget(self) -> None:
        """Remove what is left of the download."""
        self.part.unlink(missing_ok=True)
        self.info.unlink(missing_ok=True)

    def _there(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self) -> dict:
        asked = {"Accept-Encoding": "identity"}  # the bytes as they are, so that they can be counted
        have, version = self._there(), self._version()
        if have and version:
            asked |= {"Range": f"bytes={have}-", "If-Range": version}
        with self.client.stream("GET", self.url, headers=asked) as answer:
            if answer.status_code >= 500 or answer.status_code in (408, 429):
                raise _Broken(f"the server answers {answer.status_code} {answer.reason_phrase}")
            if answer.status_code not in (200, 206, 416):
                status = f"{answer.status_code} {answer.reason_phrase}"
                raise FetchError(f"{self.url}: the server answers {status}. Is the address right?")
            start, total = self._range(answer, have)
            if total is not None and total > MAX_BYTES:
                self.forget()
                raise FetchError(f"{self.url} has {total:,} bytes, more than the limit of {MAX_BYTES:,}")
            validators = [answer.headers.get("etag", ""), answer.headers.get("last-modified", "")]
            strong = [validator for validator in validators if validator and not validator.startswith("W/")]
            write_text(self.info, json.dumps({"url": self.url, "version": strong[0] if strong else ""}))
            if total is None or start < total:
                self._take(answer, start, total)
            return dict(answer.headers)

    def _version(self) -> str:
        """Return the ETag or date of the version of which a part is there; "" if there is none, or of another file."""
        try:
            info = json.loads(self.info.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return ""
        return info["version"] if info["url"] == self.url else ""

    def _range(self, answer: httpx.Response, have: int) -> tuple[int, int | None]:
        """Return the byte that the answer starts with, and the length of the whole (None: unknown)."""
        parts = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", answer.headers.get("content-range", ""))
        if answer.status_code == 416:
            if parts and parts[2] == str(have):
                return have, have  # it was whole already
            self.forget()
            raise _Broken("the part that was there does not fit")
        if answer.status_code == 206:
            if not parts or parts[1] != str(have) or answer.headers.get("etag", self._version()) != self._version():
                self.forget()
                raise _Broken("the server sends another part, or of another file, than it was asked for")
            return have, None if parts[2] == "*" else int(parts[2])
        length = answer.headers.get("content-length", "")
        return 0, int(length) if length.isdigit() else None

    def _take(self, answer: httpx.Response, start: int, total: int | None) -> None:
        """Append the answer's bytes to the part; raise if it breaks off, stalls, or grows too large."""
        size, mark, marked = start, time.monotonic(), start
        bar = tqdm(
            total=total, initial=start, unit="B", unit_scale=True, desc=self.part.parent.name[:30], leave=False,
            disable=_quiet(),
        )  # fmt: skip
        with bar, open(self.part, "ab" if start else "wb") as file:
            for block in answer.iter_raw():
                file.write(block)
                size += len(block)
                bar.update(len(block))
                if size > MAX_BYTES:
                    file.close()
                    self.forget()
                    raise FetchError(f"{self.url} has more than the limit of {MAX_BYTES:,}: nothing was kept")
                if (now := time.monotonic()) - mark > STALL:
                    if size - marked < PACE:
                        raise _Broken(f"less than {PACE:,} bytes came in {STALL:g} seconds")
                    mark, marked = now, size
        if total is not None and size != total:
            if size > total:
                self.forget()
            raise _Broken(f"{size:,} bytes came of {total:,}")


# ---- the Hugging Face Hub ----


def _fetch_hub(source: str, folder: Path) -> Path:
    """Write the first rows of a data set of the Hub as JSON lines; its own code is not run."""
    parts = re.fullmatch(r"hf:([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?", source)
    if not parts:
        raise FetchError(f"'{source}': give hf:owner/name or hf:owner/name:split")
    if Path(parts[1]).exists():
        raise FetchError(f"{source}: the library would take the folder {parts[1]} that is here: give its path instead")
    name, split = parts[1], parts[2] or "train"
    path = folder / "hf" / f"{name.replace('/', '--')}.{split}.jsonl"
    file = read_fetched(folder).get(source, {}).get("files", {}).get(path.relative_to(folder).as_posix())
    if file and file["rows_limit"] == MAX_ROWS and _is_there(path, file["bytes"]):
        return path
    try:
        import datasets
    except ImportError:
        raise FetchError(f'{source} needs a library: pip install -e ".[text]"') from None
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise FetchError(f"{source}: {str(error)[:500]}") from None
    count, size, left_out = 0, 0, set()
    with atomic_write(path) as out, tqdm(desc=source[:40], unit=" rows", disable=_quiet()) as bar:
        for row in _rows(source, rows):
            if count == MAX_ROWS or size > MAX_BYTES:
                break
            plain = {key: value for key, value in row.items() if _is_plain(value)}
            left_out |= row.keys() - plain.keys()
            size += out.write(json.dumps(plain, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            count += 1
            bar.update()
    file = {"url": f"https://huggingface.co/datasets/{name}", "bytes": size, "sha256": sha256(path)}
    file |= {"rows": count, "rows_limit": MAX_ROWS, "columns_left_out": sorted(left_out)}
    licence = getattr(getattr(rows, "info", None), "license", "") or "not known: see its page"
    entry = {"what": f"{name}, split {split}", "licence": licence, "home": file["url"]}
    _record(folder, source, entry | {"files": {path.relative_to(folder).as_posix(): file}})
    return path


def _rows(source: str, rows) -> Iterator[dict]:
    try:
        yield from rows
    except (OSError, ValueError, RuntimeError) as error:
        raise FetchError(f"{source}: {str(error)[:500]}") from None


def _is_plain(value) -> bool:
    """Return whether JSON can hold a value: text, numbers, and lists and objects of them."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float | bool)
