"""Token files that somebody brings: ids that another program made become the shards of room 03, as they are.

Read are pieces of text, ids with spaces between them, in which a document begins at each start token (the book's
tokenized_train_0.txt), and JSON lists of ids, one for each document (.json, .jsonl). Pickles are refused: to open one
runs whatever program it holds. The text of ids is never encoded again, because their tokenizer may cut it otherwise.
"""

import glob
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from helpers import paths
from helpers.files import occupied
from helpers.manifest import read_manifest
from helpers.tokens.shards import dtype_for, join_parts, remove_shards
from helpers.vocab.tokenizer import load_tokenizer

_KINDS = (".txt", ".json", ".jsonl")
_BLOCK = 2**22  # characters of a file that are held at a time
_BATCH = 1000  # documents that are written at once
_LIST = re.compile(r"\[([^\[\]]*)\]")  # an innermost list: a document
_CONVERT = (
    "import json, pickle; json.dump([[int(i) for i in ids] for ids in pickle.load(open('train.pkl', 'rb'))], "
    "open('train.json', 'w'))"
)


class Brought(NamedTuple):
    """What `import_shards` has made."""

    shards: dict[str, list[dict]]  # as `shards.write_shards` returns them
    files: list[Path]  # that were read
    summary: str


def import_shards(run: str, token_files: str, num_pieces: int) -> Brought:
    """Write the ids of a file, a folder or a pattern into `tokens/`, in shards as `shards.write_shards` makes them.

    A share of the documents, val_fraction of notebook 01, is for validation, chosen by a hash of its ids. A document
    that does not begin with the start token gets one; an end is not added. Characters are those of the decoded ids.
    Raises ValueError for a file that cannot be used, with its line, and where the run has another vocabulary.
    """
    if num_pieces < 1:
        raise ValueError(f"num_pieces is {num_pieces}: at least one shard is needed")
    corpus, vocab = read_manifest(run, "corpus"), read_manifest(run, "vocab")
    tokenizer = load_tokenizer(paths.room(run, "vocab"))
    _check_rooms(corpus, vocab)
    files = _find(token_files)
    folder, dtype = paths.room(run, "tokenize"), dtype_for(len(tokenizer))
    size = vocab["result"].get("lines", len(tokenizer))  # what follows the lines of a word list is of this course alone
    documents = (document for file in files for document in _documents(file, tokenizer, size))
    given = {name: corpus["parameters"][name] for name in ("val_fraction", "seed")}
    with occupied(folder):
        shutil.rmtree(folder / "parts", ignore_errors=True)
        (folder / "parts").mkdir(parents=True)
        try:
            parts, counts = _write_parts(documents, tokenizer, folder / "parts", dtype, **given)
            remove_shards(folder)  # only now: what is refused leaves the room as it was
            facts = join_parts(parts, folder, num_pieces, dtype)
        finally:
            shutil.rmtree(folder / "parts")
    names = [file.name for file in files[:2]] + ["…"] * (len(files) > 2)
    tokens = sum(shard["tokens"] for shards in facts.values() for shard in shards)
    said = [f"{counts['documents']:,} documents, {tokens:,} ids, as they stand in {', '.join(names)}"]
    if count := counts["start added"]:
        said.append(f"{count:,} documents had no start token: {tokenizer.bos_token} was put in front")
    if count := counts["without end"]:
        said.append(f"{count:,} documents do not end with {tokenizer.eos_token}: no end is learned from them")
    if count := counts["unknown"]:
        said.append(
            f"{count / tokens:.2%} of the ids are {tokenizer.unk_token}: text that was lost when they were made"
        )
    return Brought(facts, files, "\n".join(said))


def _write_parts(
    documents: Iterator[np.ndarray], tokenizer: PreTrainedTokenizerFast, folder: Path, dtype: str, val_fraction: float,
    seed: int,
) -> tuple[dict[str, list[Path]], Counter[str]]:  # fmt: skip
    """Write the documents of each split to one part, see `shards.join_parts`; return the parts and some counts."""
    files = {split: folder / f"{split}.bin" for split in ("train", "val")}
    lengths: dict[str, list[tuple[int, int]]] = {split: [] for split in files}  # in tokens and in characters
    counts: Counter[str] = Counter()
    # GPT-2's tokenizer has one token for its start, its end and what is unknown
    unknown = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, None}
    with open(files["train"], "wb") as train, open(files["val"], "wb") as val:
        for batch in _batches(documents):
            texts = tokenizer.backend_tokenizer.decode_batch([ids.tolist() for ids in batch], skip_special_tokens=True)
            for ids, text in zip(batch, texts, strict=True):
                split = "val" if _draw(ids, seed) < val_fraction else "train"
                counts["documents"] += 1
                counts["without end"] += int(ids[-1] != tokenizer.eos_token_id)
                counts["unknown"] += sum(int((ids == number).sum()) for number in unknown)
                if ids[0] != tokenizer.bos_token_id:  # what the model writes begins with it
                    counts["start added"] += 1
                    ids = np.concatenate([[tokenizer.bos_token_id], ids])
                ids.astype(dtype).tofile(val if split == "val" else train)
                lengths[split].append((len(ids), len(text)))
    if not all(lengths.values()):
        raise ValueError(
            f"token_files: {counts['documents']} documents cannot be split into training and validation, which gets "
            f"{val_fraction:.0%} of them by chance: bring more, or set another val_fraction in notebook 01"
        )
    for split, file in files.items():
        np.save(file.with_suffix(".npy"), np.array(lengths[split], np.int64).T)
    return {split: [file] for split, file in files.items()}, counts


def _check_rooms(corpus: dict, vocab: dict) -> None:
    """Raise ValueError unless the vocabulary can be that of the ids, and the corpus their text."""
    if not (vocab["parameters"].get("vocab_file") or vocab["parameters"].get("pretrained_model")):
        raise ValueError(
            "token_files: ids mean something only with the vocabulary that they were made with: run notebook 02 with "
            "vocab_file (a word list) or pretrained_model (a tokenizer's folder)"
        )
    if moved := vocab["result"].get("moved_lines", 0):
        raise ValueError(
            f"token_files: notebook 02 refused lines of vocab_file, so {moved:,} of its words have other ids than "
            "in your files: these ids cannot be kept. Leave token_files empty, and the text is encoded anew"
        )
    if "floor_bits_per_char" in corpus["result"]:
        raise ValueError(
            "token_files: room 01 holds the built-in corpus: run notebook 01 with the text that the ids were made "
            "from (--corpus), because later notebooks compare with it what the model writes"
        )


def _find(token_files: str) -> list[Path]:
    """Return the files in the order of the numbers in their names; raise ValueError where there are none."""
    path = Path(token_files).expanduser()
    found = list(path.iterdir()) if path.is_dir() else [Path(name) for name in glob.glob(str(path))] or [path]
    for file in found:
        if file.suffix in (".pkl", ".pickle", ".pt", ".pth") or (file.is_file() and _is_pickle(file)):
            raise ValueError(
                f"token_files: {file.name} is a pickle, and to open one runs whatever program it holds. Convert it "
                f'where it was made: python -c "{_CONVERT}"'
            )
    files = [file for file in found if file.is_file() and file.suffix in _KINDS and file.name[0] != "."]
    if not files:
        raise ValueError(f"token_files: {path} has no file that ends with {', '.join(_KINDS)}")
    numbered = {
        file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(file))] for file in files
    }
    return sorted(files, key=lambda file: numbered[file])


def _is_pickle(file: Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(1) == b"\x80"


def _batches(documents: Iterator[np.ndarray]) -> Iterator[list[np.ndarray]]:
    batch: list[np.ndarray] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _draw(ids: np.ndarray, seed: int) -> float:
    """Return a number in [0, 1) that depends on the ids and the seed alone: copies stay on one side of the split."""
    digest = blake2b(ids.astype("<u4").tobytes(), digest_size=8, salt=str(seed).encode()[:16]).digest()
    return int.from_bytes(digest, "big") / 2**64


def _documents(file: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> Iterator[np.ndarray]:
    """Yield the documents of one file, (length,) int64 each, none of them empty."""
    split = _split_pieces if file.suffix == ".txt" else _read_lists
    return (ids for ids in split(file, tokenizer, vocab_size) if _has_text(ids, tokenizer.bos_token_id))


def _split_pieces(file: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> Iterator[np.ndarray]:
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if start == end:
        raise ValueError(
            f"token_files: the vocabulary has one token, {tokenizer.eos_token}, for start and end of a document: "
            f"nobody can tell where the documents of {file.name} begin: bring JSON lists, one for each document"
        )
    held = np.empty(0, np.int64)  # of a document whose end is not read yet
    for line, text in _blocks(file, " \n\t\r"):
        ids = np.concatenate([held, _parse(text, file, line, vocab_size)])
        if len(ids) and ids[0] != start:
            names = tokenizer.convert_ids_to_tokens([int(ids[0]), start])
            raise ValueError(
                f"token_files: {file.name} begins with the id {ids[0]}, {names[0]!r}, but a document here starts with "
                f"{names[1]!r}: say what the special tokens of your vocabulary mean, in special_tokens of notebook 02 "
                "(preset book has those of the book), or for a pretrained_model as bos_token and eos_token in its "
                "tokenizer_config.json"
            )
        *whole, held = np.split(ids, np.flatnonzero(ids == start)[1:])
        yield from whole
    yield held


def _has_text(ids: np.ndarray, start: int) -> bool:
    """Return whether a document is more than its start, behind which there is nothing to predict."""
    return len(ids) > 1 or len(ids) == 1 and ids[0] != start


def _read_lists(file: Path, tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> Iterator[np.ndarray]:
    for line, text in _blocks(file, "]"):
        outside = _LIST.sub(lambda found: "\n" * found[0].count("\n"), text)  # every line keeps its number
        if wrong := re.search(r"[^\s\[\],]", outside):
            here = line + outside.count("\n", 0, wrong.start())
            raise ValueError(
                f"token_files: {file.name}, line {here}: expected a list of ids for each document, [1, 2, 3]"
            )
        for found in _LIST.finditer(text):
            yield _parse(found[1].replace(",", " "), file, line + text.count("\n", 0, found.start()), vocab_size)


def _blocks(file: Path, ends: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) of a file in blocks that end with one of these characters."""
    line, rest = 1, ""
    try:
        with open(file, encoding="utf-8-sig") as stream:
            while block := stream.read(_BLOCK):
                rest += block
                cut = max(map(rest.rfind, ends)) + 1
                yield line, rest[:cut]
                line, rest = line + rest.count("\n", 0, cut), rest[cut:]
    except UnicodeDecodeError:
        raise ValueError(f"token_files: {file.name} is not text: ids with spaces between them, or JSON lists") from None
    yield line, rest


def _parse(text: str, file: Path, line: int, vocab_size: int) -> np.ndarray:
    """Return the ids of a text that begins in this line of the file; raise ValueError at what is none."""
    words = text.split()
    try:
        ids = np.array(list(map(int, words)), np.int64)
        if not len(ids) or (ids.min() >= 0 and ids.max() < vocab_size):
            return ids
    except (ValueError, OverflowError):
        pass  # the search below says which
    for number, row in enumerate(text.split("\n"), line):
        for word in row.split():
            shown = word if len(word) <= 20 else f"{word[:20]}…"
            if not word.isdecimal():
                raise ValueError(f"token_files: {file.name}, line {number}: {shown!r} is no id")
            if len(word) > 20 or int(word) >= vocab_size:
                why = ". Were the ids joined without spaces? Then nobody can read them back" if len(word) > 20 else ""
                raise ValueError(
                    f"token_files: {file.name}, line {number}: the id {shown} is out of range, for the vocabulary "
                    f"has {vocab_size:,} tokens{why}"
                )
    raise AssertionError("a word that is no id was seen, and not found again")
