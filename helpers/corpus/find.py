"""Find the files that a corpus is made from: a file, a folder, a pattern, an archive, or what is downloaded first.

This is the door to room 01 for the runner: what it must know of a corpus without reading one.
"""

import os
import re
from collections import Counter
from collections.abc import Container, Iterator
from itertools import filterfalse
from pathlib import Path

from helpers.corpus import archives, download
from helpers.corpus.archives import ARCHIVES, FILE_KINDS, Input, NoDocuments, is_ignored, kind_of
from helpers.corpus.encodings import BadFile
from helpers.wording import did_you_mean, say

BUILT_IN = "sample"  # the source that is no file: the course's own corpus


def resolve_source(source: str) -> str:
    """Return the source of a corpus, a path as an absolute one, because a kernel may work in another folder.

    What names no file here stays: "sample", an address, "hf:owner/name", a corpus known by its name. Raises
    NoDocuments for a path that does not exist.
    """
    if source == BUILT_IN or source in download.CORPORA or source.startswith(download.HUBS) or "://" in source:
        return source
    _require_name(source)
    path = Path(os.path.abspath(os.path.expanduser(source)))
    if not path.exists() and not any(sign in source for sign in "*?["):
        raise NoDocuments(say("{} does not exist", path) + did_you_mean(source, [BUILT_IN, *download.CORPORA]))
    return str(path)


def _require_name(source: str) -> None:
    """Raise NoDocuments for a name that is empty: as a path it would mean the whole working folder."""
    if not source.strip():
        raise NoDocuments(say("the name of the corpus is empty: give a file, or a folder ('.' for this one)"))


def same_files(source: str, known: Container[Path]) -> bool:
    """Return whether no file was put into a corpus folder or pattern beside the known ones; `source` is resolved."""
    if not os.path.isabs(source):
        return True
    try:
        inputs, _ = find_inputs(source)
    except NoDocuments:
        return False
    return all(item.path in known for item in inputs)


def find_inputs(source: str, root: Path | None = None) -> tuple[list[Input], Counter]:
    """Return what there is to read, sorted by name, and what is left out, by extension or reason.

    `source` is a file, a folder (with its folders), a glob (`books/*.txt`, `**/*.jsonl.gz`) or an archive; a relative
    one starts at `root` (default: the working folder). An archive's members follow each other in its own order; a
    broken archive is one Input, and reading that raises. Raises NoDocuments where there is nothing to read.
    """
    _require_name(source)
    path = (root or Path()) / os.path.expanduser(source)
    left_out: Counter = Counter()
    # 1. the files, by name
    if path.is_file():
        base, files = path.parent, [(path.name, path.stat().st_size)]
        if kind_of(path.name)[0] not in FILE_KINDS + ARCHIVES:
            raise NoDocuments(say("{} is not one of {}: save it as one of these", path, archives.IN_WORDS))
    elif path.is_dir():
        base, files = path, sorted(_walk(path, left_out))
    elif re.search(r"[*?\[]", source):
        base = next(parent for parent in path.parents if parent.exists())  # which may have such a sign in its own name
        glob = "/".join(part if part == "**" else part.replace("**", "*") for part in path.relative_to(base).parts)
        found = ((file.relative_to(base), file) for file in set(base.glob(glob)) if file.is_file())
        kept = [(name, file) for name, file in found if not any(map(is_ignored, name.parts))]
        files = sorted((name.as_posix(), file.stat().st_size) for name, file in kept)
        if not files:
            raise NoDocuments(say("no file is named like {}: '*' is any part of a name, '**' any folders", path))
    else:
        raise NoDocuments(say("{} does not exist: give a file or a folder ({})", path, archives.IN_WORDS))
    # 2. those of a kind that is read, and the members of archives
    inputs: list[Input] = []
    for name, size in files:
        kind = kind_of(name)[0]
        # a name that is not UTF-8 on disk is shown with escapes
        item = Input(base / name, os.fsencode(name).decode("utf-8", "backslashreplace"), size=size)
        if kind in FILE_KINDS:
            inputs.append(item)
        elif kind in ARCHIVES:
            try:
                inputs += archives.list_archive(item, left_out)
            except (BadFile, OSError):  # reading it will say why
                inputs.append(item)
        else:
            left_out[kind or "(none)"] += 1
    if not inputs:
        others = ", ".join(f"{n} {kind}" for kind, n in left_out.most_common(5)) or say("no file at all")
        raise NoDocuments(say("no file of the kinds {} in {}; there: {}", archives.IN_WORDS, path, others))
    return inputs, left_out


def _walk(base: Path, left_out: Counter) -> Iterator[tuple[str, int]]:
    """Yield the files under a folder with their sizes; each folder once, whatever links lead to it."""

    def on_error(error: OSError) -> None:
        if not isinstance(error, PermissionError):
            raise error
        left_out["folders that may not be opened"] += 1

    seen: set[str] = set()
    for folder, folders, files in os.walk(base, onerror=on_error, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or os.path.realpath(base).startswith(os.path.join(real, "")):
            left_out["links to folders that are read already, or that hold this one"] += 1
            folders.clear()
            continue
        seen.add(real)
        # links last, so that a folder keeps its own name
        folders[:] = sorted(filterfalse(is_ignored, folders), key=lambda name: (Path(folder, name).is_symlink(), name))
        for path in (Path(folder, name) for name in filterfalse(is_ignored, files)):
            if path.is_file():
                yield path.relative_to(base).as_posix(), path.stat().st_size
            else:
                left_out["links that lead nowhere" if path.is_symlink() else "pipes, devices, locked files"] += 1
