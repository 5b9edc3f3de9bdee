"""token_files: ids that another program made are trained on as they are, and what cannot be read says where it is."""

import json
import pickle

import numpy as np
import pytest

from helpers import paths
from helpers.manifest import write_manifest
from helpers.tokens import token_files
from helpers.tokens.token_files import import_shards
from helpers.tokens.windows import TokenStream
from helpers.vocab import tokenizer

BOOK = tokenizer.parse_special_tokens("sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]")  # ids 0 … 4
WORDS = {"绿萝": 9, "浇水": 5, "，": 7, "怎么": 4}  # ids 5 … 8
START, END = 2, 1
SIZE = 5 + len(WORDS)  # of the list; the tokenizer has ASCII and bytes besides, which no piece can mean
DOCUMENTS = [[START, *(5 + i * j % 4 for j in range(1, 2 + i % 9)), END] for i in range(1, 120)]


def make_rooms(special=BOOK, corpus=None, **vocab):
    tok = tokenizer.build_words(WORDS, "", special)
    tok.save_pretrained(paths.room("t", "vocab"))
    given = {"val_fraction": 0.1, "seed": 0}
    write_manifest("t", "corpus", parameters=given, inputs=[], outputs=[], result=corpus or {})
    result = {"moved_lines": vocab.pop("moved_lines", 0), "lines": SIZE}
    write_manifest("t", "vocab", parameters=vocab or {"vocab_file": "a.txt"}, inputs=[], outputs=[], result=result)
    return tok


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """A function that writes files and imports them; it returns what was made."""
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))
    make_rooms()
    (tmp_path / "brought").mkdir()

    def bring(num_pieces=3, **files):
        for name, text in files.items():
            file = tmp_path / "brought" / name.replace("__", ".")
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return import_shards("t", str(tmp_path / "brought"), num_pieces)

    return bring


def piece(documents):
    """A piece as the book writes it: every id with a space behind it, no line ends."""
    return "".join(f"{i} " for document in documents for i in document)


def written(split):
    """Return the documents of a split of the room."""
    stream = TokenStream("t", split, "uint16")
    return [ids.tolist() for ids in np.split(stream.read(0, len(stream)), stream.documents[1:])]


def check_documents(made, wanted):
    train, val = written("train"), written("val")
    assert sorted(train + val) == sorted(wanted) and len(val) < len(train) / 3
    position = {str(ids): i for i, ids in enumerate(wanted)}
    assert train == sorted(train, key=lambda ids: position[str(ids)])  # in the order of the files
    for split, documents in (("train", train), ("val", val)):
        facts = made.shards[split]
        assert sum(shard["documents"] for shard in facts) == len(documents)
        assert sum(shard["tokens"] for shard in facts) == sum(map(len, documents))
        texts = [tokenizer.decode(tokenizer.load_tokenizer(paths.room("t", "vocab")), ids) for ids in documents]
        assert sum(shard["characters"] for shard in facts) == sum(map(len, texts))


DISTINCT = [list(ids) for ids in dict.fromkeys(map(tuple, DOCUMENTS))]
FORMS = {
    "the book's pieces": {
        f"tokenized_train_{i}__txt": piece(DISTINCT[at : at + 3]) for i, at in enumerate(range(0, len(DISTINCT), 3))
    },
    "a document a line": {"a__txt": "\r\n".join(" ".join(map(str, ids)) for ids in DISTINCT)},
    "a list of lists": {"train__json": json.dumps(DISTINCT)},
    "a list of lists, indented": {"train__json": "\ufeff" + json.dumps(DISTINCT, indent=2)},
    "a list a line": {"train__jsonl": "".join(json.dumps(ids) + "\n" for ids in DISTINCT)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [1, 7, 2**22])
def test_every_document_arrives_with_its_ids(bring, form, block, monkeypatch):
    monkeypatch.setattr(token_files, "_BLOCK", block)
    monkeypatch.setattr(token_files, "_BATCH", 5)
    made = bring(**FORMS[form])
    check_documents(made, DISTINCT)
    assert f"{len(DISTINCT)} documents" in made.summary and made.summary.count("\n") == 0
    assert len(made.shards["train"]) == 3 and len(made.files) == len(FORMS[form])


def test_a_second_import_takes_the_place_of_the_first(bring):
    bring(num_pieces=7, **FORMS["a list of lists"])
    first = {file.name: file.read_bytes() for file in paths.room("t", "tokenize").iterdir()}
    bring(num_pieces=2)
    bring(num_pieces=7)
    assert {file.name: file.read_bytes() for file in paths.room("t", "tokenize").iterdir()} == first


@pytest.mark.parametrize("form", ["a list a line", "a document a line"])
def test_a_document_of_its_start_alone_is_left_out(bring, form):
    """It has nothing to predict; 32 of them in a batch would be a batch of nothing."""
    alone = {"a list a line": f"[{START}]\n", "a document a line": f"{START}\n"}[form]
    ((name, text),) = FORMS[form].items()
    check_documents(bring(**{name: alone * 3 + text.rstrip() + "\n" + alone * 3}), DISTINCT)


def test_a_single_id_without_a_start_is_a_document(bring):
    """The start that it gets has one token to predict."""
    made = bring(train__json=json.dumps([*DISTINCT, [5]]))
    check_documents(made, [*DISTINCT, [START, 5]])


def test_what_is_refused_leaves_the_room_as_it_was(bring):
    bring(a__txt=piece(DISTINCT))
    before = written("train"), written("val")
    with pytest.raises(ValueError, match="99"):
        bring(b__json="[[2, 5, 99, 1]]")
    assert (written("train"), written("val")) == before
    assert not (paths.room("t", "tokenize") / "parts").exists()


def test_copies_stay_on_one_side_of_the_split(bring):
    bring(train__json=json.dumps(DISTINCT * 3))
    train, val = ({tuple(ids) for ids in written(split)} for split in ("train", "val"))
    assert train and val and not train & val


def test_lists_without_start_or_end_are_said_and_no_end_is_made_up(bring):
    """A window that was cut out of an essay does not end there."""
    inner = [ids[1:-1] + [4] for ids in DISTINCT]
    made = bring(train__json=json.dumps(inner))
    assert sorted(written("train") + written("val")) == sorted([START, *ids] for ids in inner)
    assert f"{len(inner)} documents had no start token: [MASK]" in made.summary
    assert f"{len(inner)} documents do not end with [CLS]" in made.summary
    assert "% of the ids are [UNK]" in made.summary


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a__txt": f"2 5 1\n2 6 {SIZE} 1"}, rf"a\.txt, line 2: the id {SIZE} is out of range.* has {SIZE} tokens"),
        ({"a__json": f"[[2, 5, 1],\n[2,\n{SIZE}, 1]]"}, rf"a\.json, line 3: the id {SIZE} is out of range"),
        ({"a__txt": "2 5 1\n\n2 -6 1"}, r"a\.txt, line 3: '-6' is no id"),
        ({"a__txt": "2 5 1 浇水"}, r"a\.txt, line 1: '浇水' is no id"),
        ({"a__jsonl": "[2, 5, 1]\n[2, 5.0, 1]"}, r"a\.jsonl, line 2: '5\.0' is no id"),
        ({"a__txt": "25672567125" * 9}, "joined without spaces"),
        (
            {"a__txt": "2 5 1", "b__txt": "5 5 1"},
            r"b\.txt begins with the id 5.* starts with '\[MASK\]'.*notebook 02",
        ),
        ({"a__json": '["绿萝", "浇水"]'}, r"a\.json, line 1: '\"绿萝\"' is no id"),
        ({"a__jsonl": '[2, 1]\n{"input_ids": [2, 5, 1]}'}, r"a\.jsonl, line 2: expected a list of ids"),
        ({"a__json": "[[2, 5,\n 1], [2, 5"}, r"a\.json, line 2: expected a list of ids"),
        ({"a__txt": b"2 5 1 \xff\xfe"}, "a.txt is not text"),
        ({"a__csv": "2 5 1"}, r"has no file that ends with \.txt, \.json, \.jsonl"),
        ({"a__txt": "2 5 1"}, "1 documents cannot be split"),
        ({"train__pkl": b"(lp0\nI2\na."}, "train.pkl is a pickle.*import json, pickle"),
        ({"train__json": pickle.dumps(DOCUMENTS)}, "train.json is a pickle"),
    ],
)
def test_what_cannot_be_read_says_where(bring, files, words):
    with pytest.raises(ValueError, match=words):
        bring(**files)


def test_the_conversion_that_is_advised_works(bring, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.pkl").write_bytes(pickle.dumps([np.array(ids) for ids in DISTINCT]))
    exec(token_files._CONVERT, {})
    check_documents(bring(train__json=(tmp_path / "train.json").read_text()), DISTINCT)


@pytest.mark.parametrize(
    ("rooms", "words"),
    [
        ({"segmenter": "thulac"}, "run notebook 02 with vocab_file"),
        ({"vocab_file": "a.txt", "moved_lines": 3}, "3 of its words have other ids"),
        ({"vocab_file": "a.txt", "corpus": {"floor_bits_per_char": 0.5}}, "built-in corpus"),
        ({"pretrained_model": "x", "special": BOOK | {"eos": "[MASK]"}}, "bring JSON lists"),
    ],
)
def test_rooms_that_do_not_fit_are_refused(bring, rooms, words):
    make_rooms(**rooms)
    with pytest.raises(ValueError, match=words):
        bring(**FORMS["the book's pieces"])
    assert not list(paths.room("t", "tokenize").glob("*.bin"))


def test_pieces_are_read_in_the_order_of_their_numbers(bring, tmp_path):
    made = bring(**FORMS["the book's pieces"])
    assert [file.stem for file in made.files] == [f"tokenized_train_{i}" for i in range(len(made.files))]
    some = import_shards("t", str(tmp_path / "brought" / "tokenized_train_[1-9]*.txt"), 1)
    assert some.files == made.files[1:]
    with pytest.raises(ValueError, match="no file"):
        import_shards("t", str(tmp_path / "nothing"), 1)
    with pytest.raises(ValueError, match="num_pieces is 0"):
        import_shards("t", str(tmp_path / "brought"), 0)
