"""Download text to a local folder: public corpora by name, http(s) addresses, data sets of the Hugging Face Hub.

A broken download is resumed. What was downloaded, from where and under which licence is in fetched.json beside it.
Knows nothing of documents.
"""

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from itertools import chain
from mimetypes import guess_extension
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from filelock import FileLock

from helpers.corpus.inputs import EXTENSIONS
from helpers.files import atomic_write, sha256, write_text
from helpers.progress import Bar

FETCHED = "fetched.json"
MAX_BYTES = 20 * 2**30  # of one file
MAX_ROWS = 1_000_000  # of one data set of the Hub
REDIRECTS = 5
ATTEMPTS = 6  # in a row without progress
WAIT = 0.5  # seconds before the second attempt, doubled for each further one
STALL = 30.0  # seconds without a byte


class FetchError(RuntimeError):
    """A download failed for good; the message says what, why, and what may help."""


@dataclass(frozen=True)
class Corpus:
    """A public corpus that is known by name."""

    what: str  # in words
    licence: str
    home: str  # address of its page
    files: tuple[str, ...]  # their addresses
    text_key: str = "text"  # where the text is; see `records.ReadOptions`


_POETRY = "https://raw.githubusercontent.com/chinese-poetry/chinese-poetry"


def _poetry(what: str, commit: str, name: str, last: int) -> Corpus:
    files = tuple(f"{_POETRY}/{commit}/{name.format(n)}" for n in range(0, last + 1, 1000))
    licence = "texts in the public domain; collection MIT, (c) 2016 JackeyGao"
    return Corpus(what, licence, "https://github.com/chinese-poetry/chinese-poetry", files, "paragraphs")


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
        ("https://www.gutenberg.org/ebooks/23962.txt.utf-8",),
    ),
}


def fetch(source: str, folder: Path) -> Path | str:
    """Return where the text of a source is on this machine, after downloading what is not there yet.

    `source` is a name in CORPORA, an http(s) address, or "hf:owner/name[/config][:split]" (default: train);
    anything else is a path, and returned as it is. Files go to `folder`; a broken download is resumed, also by a later
    call. MAX_BYTES limits each file, MAX_ROWS a data set of the Hub. Raises FetchError.
    """
    if source in CORPORA:
        _fetch_files(source, CORPORA[source], folder / source, folder)
        return folder / source
    if re.match("https?://", source, re.I):
        host = urlsplit(source).hostname or "net"
        target = folder / f"{host}-{hashlib.sha256(source.encode()).hexdigest()[:10]}"
        single = Corpus(source, f"not known: ask those who run {host}", source, (source,))
        return _fetch_files(source, single, target, folder)[0]
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
    with FileLock(folder / f".{FETCHED}.lock"):
        fetched = read_fetched(folder) | {source: entry}
        write_text(folder / FETCHED, json.dumps(fetched, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def _fetch_files(source: str, corpus: Corpus, target: Path, folder: Path) -> list[Path]:
    """Download what is missing of the files of one source into `target`; return their paths.

    Another run that wants the same source at the same time waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{target.name}.lock"):
        return _fetch_missing(source, corpus, target, folder)


def _fetch_missing(source: str, corpus: Corpus, target: Path, folder: Path) -> list[Path]:
    files = read_fetched(folder).get(source, {}).get("files", {})
    entry = {"what": corpus.what, "licence": corpus.licence, "home": corpus.home, "files": files}
    there = {file["url"] for name, file in files.items() if _is_there(folder / name, file["bytes"])}
    missing = [url for url in corpus.files if url not in there]
    if missing:
        target.mkdir(parents=True, exist_ok=True)
        with httpx.Client(
            timeout=httpx.Timeout(STALL, connect=10.0), follow_redirects=True, max_redirects=REDIRECTS,
            event_hooks={"response": [_check_redirect]},
        ) as client:  # fmt: skip
            with Bar(f"fetching {source[:40]}" if len(missing) > 1 else "", len(missing), "files") as bar:
                for url in missing:
                    path, file = _fetch_file(client, url, target)
                    files[path.relative_to(folder).as_posix()] = file
                    _record(folder, source, entry)  # after each: what is there is not downloaded again
                    bar.update()
    return [folder / name for name, file in files.items() if file["url"] in corpus.files]


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


# ---- one file ----


def _fetch_file(client: httpx.Client, url: str, target: Path) -> tuple[Path, dict]:
    """Download one file whole, and give it its name; return its path and what to record of it."""
    part = target / f".{hashlib.sha256(url.encode()).hexdigest()[:10]}.part"
    headers = _download(client, url, part)
    path = target / _name(url, headers, part)
    os.replace(part, path)
    _forget(part)
    size, fetched = path.stat().st_size, time.strftime("%Y-%m-%dT%H:%M:%S%z")
    etag = headers.get("etag", "")
    return path, {"url": url, "bytes": size, "sha256": sha256(path), "etag": etag, "fetched": fetched}


def _name(url: str, headers: httpx.Headers, part: Path) -> str:
    """Return a file name from the address, with an extension that can be read, if the server says the kind."""
    name = re.sub(r"[^\w.-]+", "_", unquote(urlsplit(url).path).rpartition("/")[2]).lstrip(".")
    name = name[-60:] or "file"  # 180 bytes of Chinese: file systems take 255
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name.lower().endswith(EXTENSIONS):
        if kind == "text/html":
            raise FetchError(f"{url} is a web page, not a file of text: give the address of the file itself")
        name += ".jsonl" if kind in ("application/jsonl", "application/x-ndjson") else guess_extension(kind) or ""
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


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _version(part: Path) -> Path:
    """Return the file that holds the ETag or date of the version of which a part is there; "" if none was named."""
    return part.with_suffix(".version")


def _forget(part: Path) -> None:
    """Remove what is left of a download."""
    part.unlink(missing_ok=True)
    _version(part).unlink(missing_ok=True)


def _download(client: httpx.Client, url: str, part: Path) -> httpx.Headers:
    """Download until the file is whole, resuming where the connection broke; return the server's headers."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _attempt(client, url, part)
        except httpx.InvalidURL as error:
            raise FetchError(f"{url} is no address: {error}") from None
        except httpx.TooManyRedirects as error:
            raise FetchError(f"{url} redirects more than {REDIRECTS} times, at last to {error.request.url}") from None
        except (httpx.TransportError, _Broken) as error:
            failures = 1 if _size(part) >= before + 2**20 else failures + 1
            if failures >= ATTEMPTS:
                raise FetchError(
                    f"{url}: {error or type(error).__name__}, {failures} times in a row. {_size(part):,} bytes are "
                    "kept: run this again to go on from there, or download it by hand and give the file"
                ) from None
        time.sleep(WAIT * 2 ** (failures - 1))


def _attempt(client: httpx.Client, url: str, part: Path) -> httpx.Headers:
    """Ask for the bytes that are missing, and append what comes; httpx raises if less comes than is announced."""
    # 1. ask, with the version of which a part is there: the server then sends the rest of that, or else all
    headers = {"Accept-Encoding": "identity"}  # the bytes as they are, so that they can be counted
    have, version = _size(part), _version(part).read_text("utf-8") if _version(part).exists() else ""
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    with client.stream("GET", url, headers=headers) as answer:
        # 2. what kind of answer it is
        status = f"{answer.status_code} {answer.reason_phrase}"
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise _Broken(f"the server answers {status}")
        if answer.status_code not in (200, 206, 416):
            raise FetchError(f"{url}: the server answers {status}. Is the address right?")
        resumes = answer.headers.get("content-range", "").startswith(f"bytes {have}-")
        # a version that is a date was already checked by the server, with If-Range
        changed = version.startswith('"') and answer.headers.get("etag", version) != version
        if answer.status_code != 200 and (not resumes or changed):
            _forget(part)
            raise _Broken("the server sends another part, or of another file, than it was asked for")
        start = have if answer.status_code == 206 else 0
        length = answer.headers.get("content-length", "")
        total = start + int(length) if length.isdigit() else None
        validators = (answer.headers.get("etag", "W/"), answer.headers.get("last-modified", "W/"))
        write_text(_version(part), next((name for name in validators if not name.startswith("W/")), ""))  # W/: weak
        # 3. take the bytes
        bar = Bar(f"fetching {part.parent.name[:30]}", total, "B", done=start, scaled=True)
        with bar, open(part, "ab" if start else "wb") as file:
            for block in chain([b""], answer.iter_raw()):
                bar.update(file.write(block))
                if max(total or 0, file.tell()) > MAX_BYTES:
                    file.close()
                    _forget(part)
                    raise FetchError(f"{url} has more bytes than the limit of {MAX_BYTES:,}: nothing was kept")
        return answer.headers


# ---- the Hugging Face Hub ----


def _fetch_hub(source: str, folder: Path) -> Path:
    """Write the first rows of a data set of the Hub as JSON lines; its own code is not run."""
    parts = re.fullmatch(r"hf:([\w-][\w.-]*/[\w-][\w.-]*)(?:/([\w-][\w.-]*))?(?::([\w.-]+))?", source)
    if not parts:
        raise FetchError(f"'{source}': give hf:owner/name, hf:owner/name:split or hf:owner/name/config:split")
    if Path(parts[1]).exists():
        raise FetchError(f"{source}: the library would take the folder {parts[1]} that is here: give its path instead")
    name, config, split = parts[1], parts[2], parts[3] or "train"
    path = folder / "hf" / f"{'--'.join(filter(None, [*name.split('/'), config]))}.{split}.jsonl"
    file = read_fetched(folder).get(source, {}).get("files", {}).get(path.relative_to(folder).as_posix())
    if file and file["rows_limit"] == MAX_ROWS and _is_there(path, file["bytes"]):
        return path
    try:
        import datasets
    except ImportError:
        raise FetchError(f'{source} needs a library: pip install -e ".[text]"') from None
    count, size, left_out, more = 0, 0, set(), False
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
        with atomic_write(path) as out, Bar(f"fetching {source[:40]}", None, "rows") as bar:
            for row in rows:
                bar.update()
                if more := count == MAX_ROWS or size > MAX_BYTES:
                    break
                plain = {key: value for key, value in row.items() if _is_plain(value)}
                left_out |= row.keys() - plain.keys()
                size += out.write(json.dumps(plain, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
                count += 1
    except (OSError, ValueError, RuntimeError) as error:
        raise FetchError(f"{source}: {str(error)[:500]}") from None
    if more:
        print(f"{source} has more rows: the first {count:,} are taken (at most {MAX_ROWS:,}, or {MAX_BYTES:,} bytes)")
    file = {"url": f"https://huggingface.co/datasets/{name}", "bytes": size, "sha256": sha256(path)}
    file |= {"rows": count, "rows_limit": MAX_ROWS, "columns_left_out": sorted(left_out)}
    licence = getattr(getattr(rows, "info", None), "license", "") or "not known: see its page"
    entry = {"what": f"{name}, split {split}", "licence": licence, "home": file["url"]}
    _record(folder, source, entry | {"files": {path.relative_to(folder).as_posix(): file}})
    return path


def _is_plain(value) -> bool:
    """Return whether JSON can hold a value: text, numbers, and lists and objects of them."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float | bool)
