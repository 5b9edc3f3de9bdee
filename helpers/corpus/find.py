"""Find the files that a corpus is made from: a file, a folder, a pattern, an archive, or what is downloaded first."""

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers import paths
from helpers.corpus import download
from helpers.corpus.archives import list_archive
from helpers.corpus.encodings import BadFile
from helpers.corpus.inputs import ARCHIVES, KINDS, PACKED, Input, NoDocuments, is_ignored, kind_of


def find_inputs(source: str, root: Path | None = None) -> tuple[list[Input], Counter]:
    """Return what there is to read, sorted by name, and what is left out, by extension or reason.

    `source` is a file, a folder (with its folders), a glob ("books/*.txt", "**/*.jsonl.gz") or an archive; a relative
    one starts at `root` (default: the working folder). An archive's members follow each other in its own order; one
    that cannot be opened stands for itself, and `read` says why. Raises NoDocuments where there is nothing to read.
    """
    place, others = (root or Path()) / Path(source).expanduser(), Counter()
    kinds = f"{', '.join(KINDS)}, each also {' or '.join(PACKED)}, {', '.join(ARCHIVES)}"
    if place.is_file():
        base, names = place.parent, [(place.name, place.stat().st_size)]
        if kind_of(place.name)[0] not in KINDS + ARCHIVES:
            raise NoDocuments(f"{place} is not one of {kinds}: save it as one of these")
    elif place.is_dir():
        base, names = place, sorted(_walk(place, None, others))
    elif re.search(r"[*?\[]", source):
        base, pattern = _glob(place)
        found = _walk(base, pattern, others)
        names = sorted((name, size) for name, size in found if _matches(tuple(name.split("/")), pattern))
        if not names:
            raise NoDocuments(f"no file is named like {place}: '*' stands for any part of a name, '**' for any folders")
    else:
        raise NoDocuments(f"{place} does not exist: give 'sample', a file or a folder ({kinds})")
    inputs = []
    for name, size in names:
        kind = kind_of(name)[0]
        # a name that is not UTF-8 on disk becomes readable text
        item = Input(base / name, os.fsencode(name).decode("utf-8", "replace"), size=size)
        if kind in KINDS:
            inputs.append(item)
        elif kind in ARCHIVES:
            inputs += _members(item, others)
        else:
            others[kind or "(none)"] += 1
    if not inputs:
        there = ", ".join(f"{n} {kind}" for kind, n in others.most_common(5)) or "no file at all"
        raise NoDocuments(f"no file of the kinds {kinds} in {place} or its folders; there: {there}")
    return inputs, others


def _walk(base: Path, pattern: Sequence[str] | None, others: Counter) -> Iterator[tuple[str, int]]:
    """Yield the files under a folder with their sizes; links to folders are not followed, so there is no circle."""
    deep = len(pattern) - 1 if pattern and "**" not in pattern else 10**6
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            entries = list(os.scandir(base / folder))
        except PermissionError:
            others["folders that may not be opened"] += 1
            continue
        for entry in entries:
            name = f"{folder}{entry.name}"
            if is_ignored(entry.name):
                continue
            if entry.is_file():
                yield name, entry.stat().st_size
            elif depth < deep and entry.is_dir(follow_symlinks=False):
                folders.append((f"{name}/", depth + 1))


def _glob(place: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder before a glob's first wildcard, and the parts from there on."""
    parts = place.parts
    first = next(i for i, part in enumerate(parts) if re.search(r"[*?\[]", part))
    base = Path(*parts[:first])
    if not base.is_dir():
        raise NoDocuments(f"{base} is not a folder: nothing can be named like {place}")
    return base, parts[first:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatch(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _members(item: Input, others: Counter) -> list[Input]:
    """Return the members of an archive, or the archive itself if it is broken."""
    counts: Counter = Counter()
    try:
        inputs = list_archive(item, counts)
    except BadFile:
        return [item]
    others.update(counts)
    return inputs


def find_corpus(source: str) -> tuple[list[Input], Counter]:
    """Return what a corpus is made from, and the files of other kinds by extension; fetch what is on the net first.

    A relative path starts at the repository root; what is fetched is kept in runs/fetched, for every run. Raises
    NoDocuments where there is nothing to read.
    """
    found = download.fetch(source, paths.runs_dir() / "fetched")
    return find_inputs(str(found), paths.repo_root())


def input_files(source: str) -> list[Path]:
    """Return the files a corpus is made from, for the manifest; the built-in corpus is made from the table in data/."""
    if source == "sample":
        return sorted(file for file in (paths.repo_root() / "data").iterdir() if file.is_file())
    return list(dict.fromkeys(item.path for item in find_corpus(source)[0]))
