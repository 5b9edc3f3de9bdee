"""Download text to a local folder: public corpora by name, http(s) addresses, data sets of two hubs.

A file comes whole or not at all. What was downloaded, from where and under which licence is in fetched.json beside it.
Knows nothing of documents.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from itertools import chain
from mimetypes import guess_extension
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from filelock import FileLock

from helpers.corpus.archives import EXTENSIONS
from helpers.files import sha256, write_text
from helpers.progress import Bar
from helpers.wording import install

FETCHED = "fetched.json"
MAX_BYTES = 20 * 2**30  # of one file, or one data set
ATTEMPTS = 6  # at one file
WAIT = 0.5  # seconds before the second attempt, doubled for each further one
STALL = 30.0  # seconds without a byte
HUBS = ("hf:", "modelscope:")


class FetchError(RuntimeError):
    """A download failed for good; the message says what, why, and what may help."""


@dataclass(frozen=True)
class Corpus:
    """A public corpus that is known by name."""

    what: str  # in words
    licence: str
    home: str  # address of its page
    files: tuple[str, ...]  # their addresses
    text_key: str = "text"  # where the text is; see `settings.CorpusSettings`


_POETRY = "https://github.com/chinese-poetry/chinese-poetry"


def _poetry(what: str, commit: str, name: str, last: int) -> Corpus:
    raw = _POETRY.replace("github.com", "raw.githubusercontent.com")
    files = tuple(f"{raw}/{commit}/{name.format(n)}" for n in range(0, last + 1, 1000))
    return Corpus(what, "texts in the public domain; collection MIT, (c) 2016 JackeyGao", _POETRY, files, "paragraphs")


CORPORA: dict[str, Corpus] = {
    "tang-poems": _poetry(
        "全唐诗, about 57,600 poems of the Tang, traditional characters", "fa1814a8044db4fb0c7a9e0a0449974e8c3463b7",
        "全唐诗/poet.tang.{}.json", 57000,
    ),
    "song-ci": _poetry(
        "全宋词, about 21,000 ci of the Song, simplified characters", "bdd8a3bd9ad00429f9ab7e52fa2ce4d02de8f630",
        "宋词/ci.song.{}.simplified.json", 21000,
    ),
}  # fmt: skip


def fetch(source: str, folder: Path) -> Path | str:
    """Return where the text of a source is on this machine, after downloading what is not there yet.

    `source` is a name in CORPORA, an http(s) address, or "hf:owner/name", "modelscope:owner/name", each perhaps with
    "/FILES", a pattern; anything else is a path, and returned as it is. Files go to `folder`; those that are there
    already are not fetched again. MAX_BYTES limits each file, and each data set. Raises FetchError.
    """
    if source in CORPORA:
        _fetch_files(source, CORPORA[source], folder / source, folder)
        return folder / source
    if re.match("https?://", source, re.I):
        host = urlsplit(source).hostname or "net"
        target = folder / f"{host}-{hashlib.sha256(source.encode()).hexdigest()[:10]}"
        single = Corpus(source, f"not known: ask those who run {host}", source, (source,))
        return _fetch_files(source, single, target, folder)[0]
    if source.startswith(HUBS):
        return _fetch_hub(source, folder)
    return source


def read_fetched(folder: Path) -> dict:
    """Return what fetched.json says: source -> what, licence, files (name -> address, bytes, sha256)."""
    path = folder / FETCHED
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _record(folder: Path, source: str, entry: dict) -> None:
    with FileLock(folder / f".{FETCHED}.lock"):
        fetched = read_fetched(folder) | {source: entry}
        write_text(folder / FETCHED, json.dumps(fetched, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def _fetch_files(source: str, corpus: Corpus, target: Path, folder: Path) -> list[Path]:
    """Download what is missing of the files of one source into `target`, one run at a time; return their paths."""
    target.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{target.name}.lock"), httpx.Client(timeout=STALL, follow_redirects=True) as client:
        files = read_fetched(folder).get(source, {}).get("files", {})
        entry = {"what": corpus.what, "licence": corpus.licence, "home": corpus.home, "files": files}
        there = {file["url"] for name, file in files.items() if _size(folder / name) == file["bytes"]}
        missing = [url for url in corpus.files if url not in there]
        with Bar(f"fetching {source[:40]}" if len(missing) > 1 else "", len(missing), "files") as bar:
            for url in missing:
                path = _fetch_file(client, url, target)
                file = {"url": url, "bytes": path.stat().st_size, "sha256": sha256(path)}
                files[path.relative_to(folder).as_posix()] = file | {"fetched": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
                _record(folder, source, entry)  # after each: what is there is not downloaded again
                bar.update()
    return [folder / name for name, file in files.items() if file["url"] in corpus.files]


# ---- one file ----


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch_file(client: httpx.Client, url: str, target: Path) -> Path:
    """Download one file whole, attempt after attempt, and give it its name."""
    part = target / f".{hashlib.sha256(url.encode()).hexdigest()[:10]}.part"
    for attempt in range(ATTEMPTS):
        time.sleep(WAIT * 2 ** (attempt - 1) if attempt else 0)
        try:
            headers = _attempt(client, url, part)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise FetchError(f"{url} leads to no address of a file: {error}") from None
        except httpx.TransportError as error:
            why = error or type(error).__name__
        else:
            path = target / _name(url, headers, part)
            os.replace(part, path)
            return path
    raise FetchError(
        f"{url}: {why}, {ATTEMPTS} times in a row. Run this again, or download it by hand and give the file"
    )


def _attempt(client: httpx.Client, url: str, part: Path) -> httpx.Headers:
    """Ask for a file, and write what comes; httpx raises if less comes than is announced."""
    # the bytes as they are, so that they can be counted
    with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
        status = f"{answer.status_code} {answer.reason_phrase}"
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise httpx.TransportError(f"the server answers {status}")
        if answer.status_code != 200:
            raise FetchError(f"{url}: the server answers {status}. Is the address right?")
        hops = [hop.url for hop in [*answer.history, answer]]
        if hops[0].scheme == "https" and (open_to_all := [hop for hop in hops if hop.scheme != "https"]):
            raise FetchError(f"{url} redirects to {open_to_all[0]}, which anybody on the way can change")
        length = answer.headers.get("content-length", "")
        total = int(length) if length.isdigit() else None
        with Bar(f"fetching {part.parent.name[:30]}", total, "B", scaled=True) as bar, open(part, "wb") as file:
            for block in chain([b""], answer.iter_raw()):
                bar.update(file.write(block))
                if max(total or 0, file.tell()) > MAX_BYTES:
                    file.truncate(0)
                    raise FetchError(f"{url} has more bytes than the limit of {MAX_BYTES:,}: nothing was kept")
        return answer.headers


def _name(url: str, headers: httpx.Headers, part: Path) -> str:
    """Return a file name from the address, with an extension that can be read, if the server says the kind."""
    name = re.sub(r"[^\w.-]+", "_", unquote(urlsplit(url).path).rpartition("/")[2]).lstrip(".")
    name = name[-60:] or "file"  # 180 bytes of Chinese: file systems take 255
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name.lower().endswith(EXTENSIONS):
        name += ".jsonl" if kind in ("application/jsonl", "application/x-ndjson") else guess_extension(kind) or ""
    with open(part, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return f"{name}.gz" if packed and not name.lower().endswith((".gz", ".tgz")) else name


# ---- the Hugging Face Hub, ModelScope ----


def _fetch_hub(source: str, folder: Path) -> Path:
    """Download the files of a data set that can be read, all or those of a pattern; its own code is not run."""
    parts = re.fullmatch(r"(hf|modelscope):([\w-][\w.-]*/[\w-][\w.-]*)(?:/(.+))?", source)
    if not parts:
        raise FetchError(f"'{source}': give hf:owner/name, or hf:owner/name/FILES, where * stands for any characters")
    hub, name, pattern = parts[1], parts[2], parts[3] or "*"
    target = folder / re.sub(r"[^\w.-]+", "--", source)
    known = read_fetched(folder).get(source, {}).get("files", {})
    if known and all(_size(folder / path) == file["bytes"] for path, file in known.items()):
        return target
    try:
        if hub == "hf":
            import huggingface_hub

            download: Callable = huggingface_hub.snapshot_download
            info = huggingface_hub.HfApi().dataset_info(name, files_metadata=True)
            sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
            home, licence = f"https://huggingface.co/datasets/{name}", getattr(info.card_data, "license", "")
        else:
            from modelscope_hub import HubApi, compat

            download = compat.snapshot_download
            sizes = {file.path: file.size for file in HubApi().list_repo_files(name, "dataset") if not file.is_dir}
            home, licence = f"https://modelscope.cn/datasets/{name}", ""
        wanted = [path for path in sizes if path.lower().endswith(EXTENSIONS) and fnmatchcase(path, pattern)]
        if not wanted:
            raise ValueError(f"none of its {len(sizes):,} files is of a kind that is read, and named like {pattern}")
        if (total := sum(sizes[path] for path in wanted)) > MAX_BYTES:
            some = f"choose some of them, such as {hub}:{name}/{wanted[0]}"
            raise ValueError(f"its files have {total:,} bytes, and the limit is {MAX_BYTES:,}: {some}")
        names = list(map(escape, wanted))
        download(repo_id=name, repo_type="dataset", local_dir=str(target), allow_patterns=names)
    except ImportError:
        raise FetchError(f"{source} needs a library: {install('text')}") from None
    except Exception as error:  # each of the libraries has errors of its own
        raise FetchError(f"{source}: {str(error)[:500]}") from error
    files = {}
    for path in (target / name for name in wanted):
        files[path.relative_to(folder).as_posix()] = {"url": home, "bytes": _size(path), "sha256": sha256(path)}
    entry = {"what": name, "licence": licence or "not known: see its page", "home": home, "files": files}
    _record(folder, source, entry)
    return target
