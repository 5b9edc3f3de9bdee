"""tokenizer: each kind gives any text back exactly, reads no special token from it, loads in plain Hugging Face."""

import json
import math
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, PreTrainedTokenizerFast

from helpers import paths
from helpers.manifest import RoomError, notebook_parameters
from helpers.vocab import tokenizer
from helpers.vocab.words import write_words

WORDS = {"绿萝": 90, "叶子": 60, "叶": 20, "发黄": 10, "浇水": 50, "，": 80, "的": 70, "the": 5, "<b": 2, "os": 2}
TEXT = "绿萝的叶子发黄，怎么办？\n浇水。"
NAMES = ["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>"]
N = len(NAMES)
BOOK = tokenizer.parse_special_tokens("sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]")


def build(special: dict[str, str]) -> dict[str, PreTrainedTokenizerFast]:
    texts = [TEXT, "绿萝叶子发黄，绿萝浇水。[CLS]的 <0x41>的<bos>的<assistant>"] * 9
    return {
        "words": tokenizer.build_words(WORDS, TEXT, special),
        "characters": tokenizer.build_characters(Counter(TEXT), special),
        "bpe": tokenizer.build_bpe(texts, 400, 2, special),
        "bytes": tokenizer.build_bytes(special),
    }


TOKENIZERS = build(tokenizer.SPECIAL_TOKENS)
tok = TOKENIZERS["words"]
made_by = [(kind, made) for kind, made in TOKENIZERS.items()]
made_by += [(f"{kind}, the book's names", made) for kind, made in build(BOOK).items()]
made_by.append(("a list's order", tokenizer.build_words(WORDS, TEXT, order=[*BOOK.values(), *WORDS])))
each_kind = pytest.mark.parametrize("tok", [pytest.param(made, id=kind) for kind, made in made_by])
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LOOK_ALIKES = [*NAMES, *BOOK.values(), "<0x41>", "<0xE7>", "▁", "Ġ", "##a", "</s>", "\x00", "\u0301", "\ufeff",
               "\u200d", "👨‍👩‍👧", "𠮷", "\U0010ffff", "\r\n", " .", " n't", "绿萝", "叶子"]  # fmt: skip
any_piece = st.one_of(st.text(max_size=8), st.sampled_from(LOOK_ALIKES), st.sampled_from(BYTES))
any_text = st.lists(any_piece, max_size=12).map("".join)


@each_kind
def test_any_text_comes_back_is_never_a_special_token_and_has_the_ids_of_hugging_face(tok):
    @settings(max_examples=200)
    @given(any_text)
    def check(text):
        ids = tokenizer.encode(tok, text)
        assert tokenizer.decode(tok, ids) == text
        assert not set(ids) & set(tok.all_special_ids)
        assert "".join(tokenizer.to_pieces(tok, text)) == text
        assert tokenizer.encode_batch(tok, ["绿", text, ""])[1:] == [ids, []]
        assert tok(text)["input_ids"] == [tok.bos_token_id, *ids]  # the document's start and no end: a prompt goes on
        assert tok(text, add_special_tokens=False)["input_ids"] == ids
        assert tok.decode(tok(text)["input_ids"], skip_special_tokens=True) == tok.decode(ids) == text

    check()


@each_kind
def test_our_functions_add_nothing_whatever_was_asked_of_the_tokenizer_before(tok):
    """They share the Rust tokenizer with the Hugging Face call, whose settings stay there."""
    plain = tokenizer.encode(tok, "<bos>绿萝")
    tok(["绿萝", "绿"], padding=True, truncation=True, max_length=2)
    tok("<bos>绿萝", split_special_tokens=False)
    assert tokenizer.encode(tok, "<bos>绿萝") == plain
    assert tokenizer.to_pieces(tok, "绿萝\n")[-1] == "\n"
    assert tokenizer.decode(tok, plain) == "<bos>绿萝"


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("special", [tokenizer.SPECIAL_TOKENS, BOOK], ids=["ours", "the book's"])
def test_special_tokens_have_their_names_ids_and_meanings(kind, special):
    tok, names = build(special)[kind], list(special.values())
    assert tok.convert_ids_to_tokens(range(len(names))) == tokenizer.readable_tokens(tok)[: len(names)] == names
    assert [getattr(tok, f"{meaning}_token") for meaning in special] == names
    assert [getattr(tok, f"{meaning}_token_id") for meaning in special] == list(range(len(names)))
    assert sorted(tok.all_special_ids) == list(range(len(names)))  # the roles too: what is special is never sampled
    assert set(tok("绿萝")) == {"input_ids", "attention_mask"}


def test_the_parameter_says_what_each_token_means_in_the_order_of_the_ids():
    assert tokenizer.SPECIAL_TOKENS == tokenizer.parse_special_tokens(notebook_parameters("vocab")["special_tokens"])
    assert list(tokenizer.SPECIAL_TOKENS) == ["pad", "bos", "eos", "unk", "user", "assistant"]
    swapped = tokenizer.parse_special_tokens("  unk:<|?|>\n eos:<|=|>  pad:__ bos:«开始» ")
    assert swapped == {"unk": "<|?|>", "eos": "<|=|>", "pad": "__", "bos": "«开始»"}
    assert tokenizer.build_words(WORDS, TEXT, swapped).convert_ids_to_tokens(range(5))[-2:] == ["«开始»", "绿萝"]


FOUR = "pad:<pad> bos:<bos> eos:<eos> unk:<unk>"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "padding is missing: add pad:<pad>"),
        (FOUR.replace("bos:<bos>", "start:<bos>"), "a document's start is missing"),
        (FOUR.replace("eos:<eos>", ""), "a document's end is missing"),
        (FOUR + " bos:<s>", "'bos' comes twice"),
        (FOUR + " user:<bos>", "'<bos>' comes twice"),
        (FOUR.replace("bos:", "bos : "), "'bos' is not written as meaning:name"),
        (FOUR + " User:<user>", "'User:<user>' is not written"),
        (FOUR + " user:user", "'user' cannot be the name of user"),  # BPE may merge it
        (FOUR + " user:<", "two characters or more"),
        (FOUR + " user:<0x41>", "not the name of a byte"),
        (FOUR + " user:<a:0>", "neither ':' nor '\\$'"),
        (FOUR + " user:$A", "neither ':' nor '\\$'"),
    ],
)
def test_a_list_of_special_tokens_that_cannot_work_is_refused_in_words(text, message):
    with pytest.raises(ValueError, match=f"^special_tokens: .*{message}"):
        tokenizer.parse_special_tokens(text)


def test_ids_follow_the_word_list_and_strangers_are_spelled_in_bytes():
    assert tok.convert_tokens_to_ids(list(WORDS)) == list(range(N, N + len(WORDS)))
    letters = {*TEXT, "\t", "\n", "\r", *map(chr, range(32, 127))} - set(WORDS)
    assert len(tok) == tok.vocab_size == N + len(WORDS) + len(letters) + 256
    assert tokenizer.to_pieces(tok, "绿萝的叶子，") == ["绿萝", "的", "叶子", "，"]
    tokens = tok.convert_ids_to_tokens(tokenizer.encode(tok, "绿é"))
    assert tokens == ["绿", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("piece, count", [("绿萝", 90), ("叶", 20), ("黄", 1)])  # 黄 is no word of its own
def test_a_score_is_the_log_of_the_frequency(piece, count):
    assert tokenizer.piece_scores(tok)[piece] == pytest.approx(math.log(count / sum(WORDS.values())))


@each_kind
def test_a_lone_surrogate_is_refused_with_its_place(tok):
    with pytest.raises(ValueError, match=r"character 2: '\\ud800' is half a surrogate pair"):
        tokenizer.encode(tok, "绿萝\ud800")
    with pytest.raises(ValueError, match="text 1, character 0"):
        tokenizer.encode_batch(tok, ["绿萝", "\udfff"])


@each_kind
def test_decoding_skips_special_tokens_and_survives_broken_bytes(tok):
    ids = tokenizer.encode(tok, "绿萝")
    assert tokenizer.decode(tok, [tok.bos_token_id, *ids, tok.eos_token_id, tok.pad_token_id]) == "绿萝"
    assert "\ufffd" in tokenizer.decode(tok, tok.convert_tokens_to_ids(["<0xE7>"]))
    assert tokenizer.decode(tok, []) == ""


def test_words_named_like_special_or_byte_pieces_do_no_harm():
    odd = tokenizer.build_words({"<eos>": 500, "<user>": 500, "<0x41>": 500, "绿萝": 9}, "")
    for text in ("<eos>", "<0x41>", "A绿萝<eos>é<user>"):
        ids = tokenizer.encode(odd, text)
        assert tokenizer.decode(odd, ids) == text and not set(ids) & set(odd.all_special_ids)
    assert odd.convert_tokens_to_ids(["<eos>", "<user>"]) == [2, 4]


@each_kind
@pytest.mark.parametrize("line", [("绿萝的叶子发黄，" * 5000)[:39_000] + "é😀" * 500, "绿萝" * 20_000, "é" * 40_000])
def test_a_very_long_line_comes_back(tok, line):
    """In 0.03 s; a quadratic cut takes minutes."""
    assert tokenizer.decode(tok, tokenizer.encode(tok, line)) == line


def test_characters_are_single_and_the_commonest_come_first():
    made = tokenizer.build_characters(Counter("绿绿绿萝萝水a\n\n"))
    assert made.convert_ids_to_tokens(range(N, N + 5)) == ["绿", "\n", "萝", "a", "水"]
    assert tokenizer.to_pieces(made, "萝水\n绿a") == list("萝水\n绿a")
    assert len(made) == N + len({*"绿萝水", "\t", "\n", "\r", *map(chr, range(32, 127))}) + 256


def test_bytes_are_all_there_is():
    made = tokenizer.build_bytes()
    assert made.convert_ids_to_tokens(range(262)) == [*NAMES, *BYTES] and len(made) == 262
    for text in ("绿é a\n", *LOOK_ALIKES):
        assert tokenizer.encode(made, text) == [N + byte for byte in text.encode()]
    assert tokenizer.to_pieces(made, "绿é") == ["绿", "é"]


def test_a_bpe_vocabulary_has_its_size_and_all_characters():
    texts = [f"第{i}天，给绿萝浇水，{i * 7}盆" for i in range(300)]
    made = tokenizer.build_bpe(texts, 450)
    assert len(made) == 450
    assert tokenizer.to_pieces(made, "给绿萝浇水，") == ["给绿萝浇水", "，"]
    small = tokenizer.build_bpe(texts, 0)  # no room for a merge: characters and bytes remain
    assert tokenizer.to_pieces(small, "绿萝浇水") == list("绿萝浇水")
    assert len(small) == N + len({*"".join(texts), *tokenizer._ASCII}) + 256


def test_no_merge_crosses_a_mark_a_sign_or_a_blank():
    made = tokenizer.build_bpe(["，我[CLS]<bos><assistant><0x41>1+1\n好  好"] * 50, 10_000)
    learnt = made.convert_ids_to_tokens(range(N, len(made) - 256))
    assert all(len(token) == 1 or token.isalnum() for token in learnt)
    assert {"CLS", "bos", "assistant"} < set(learnt)  # what is between the brackets is a word like any other


def test_listed_has_a_readable_line_for_each_token(tmp_path):
    for made in TOKENIZERS.values():
        lines = tokenizer.readable_tokens(made)
        assert len(lines) == len(made)
        write_words(tmp_path / "words.txt", lines)
    assert {"绿萝", "␣", "<0xE7>"} <= set(tokenizer.readable_tokens(TOKENIZERS["bpe"]))


@pytest.mark.slow
def test_bpe_is_the_same_in_every_process(tmp_path):
    """Counted by several threads over hashed tables: neither may show in the file."""
    code = """if True:
        import sys
        from helpers.vocab import tokenizer
        texts = [f"第{i % 97}天给绿萝浇水，{i * 7}盆花" for i in range(3000)]
        tokenizer.build_bpe(texts, 900, 2).save_pretrained(sys.argv[1])
    """
    for name, threads in (("a", "1"), ("b", "4")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"}
        command = [sys.executable, "-c", code, tmp_path / name]
        subprocess.run(command, env=environment, cwd=paths.repo_root(), check=True)
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


def test_the_same_words_give_the_same_bytes_whatever_the_order_of_the_characters(tmp_path):
    for name, characters in (("a", TEXT), ("b", set(TEXT)), ("c", TEXT[::-1])):
        tokenizer.build_words(WORDS, characters).save_pretrained(tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert files == ["tokenizer.json", "tokenizer_config.json"]
    for name in files:
        assert len({(tmp_path / folder / name).read_bytes() for folder in "abc"}) == 1


def test_load_gives_the_tokenizer_back_or_says_what_to_run(tmp_path):
    tok.save_pretrained(tmp_path)
    for again in (tokenizer.load_tokenizer(tmp_path), tokenizer.load_pretrained_tokenizer(str(tmp_path))):
        assert again.special_tokens_map == tok.special_tokens_map and again.user_token_id == 4  # the roles with it
        assert again(TEXT)["input_ids"] == tok(TEXT)["input_ids"]
        for text in (TEXT, *LOOK_ALIKES):
            assert tokenizer.encode(again, text) == tokenizer.encode(tok, text)
            assert tokenizer.decode(again, tokenizer.encode(again, text)) == text
    with pytest.raises(RoomError, match="02_vocab"):
        tokenizer.load_tokenizer(tmp_path / "nowhere")


OUTSIDE = """
import json, sys
from transformers import AutoTokenizer
found = []
for folder, texts in json.load(sys.stdin):
    for model_type in (None, "gpt2", "llama", "mistral", "qwen3", "qwen3_moe"):
        if model_type:  # the config of a model beside it, as in final_model/
            with open(folder + "/config.json", "w") as file:
                json.dump({"model_type": model_type}, file)
        tok = AutoTokenizer.from_pretrained(folder)
        ids = tok(texts)["input_ids"]
        specials = [tok.bos_token_id, tok.eos_token_id, tok.pad_token_id, tok.unk_token_id, tok.sep_token_id]
        again = tok.batch_decode(ids, skip_special_tokens=True)
        found.append([ids, again, specials, len(tok), sorted(tok.all_special_ids)])
assert not any(name.split(".")[0] == "helpers" for name in sys.modules)
print(json.dumps(found))
"""


def outside(folders, texts: list[str], cwd) -> list:
    """What plain Hugging Face makes of the texts, in another process: of each folder, six times."""
    jobs = json.dumps([(str(folder), texts) for folder in folders])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", OUTSIDE]
    done = subprocess.run(command, input=jobs, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_plain_hugging_face_loads_the_folder_in_another_process(tmp_path):
    texts, expected = [TEXT, *LOOK_ALIKES, "".join(LOOK_ALIKES)], []
    for kind, made in TOKENIZERS.items():
        made.save_pretrained(tmp_path / kind)
        started = [[1, *ids] for ids in tokenizer.encode_batch(made, texts)]
        expected += [[started, texts, [1, 2, 0, 3, None], len(made), list(range(N))]] * 6
    assert outside([tmp_path / kind for kind in TOKENIZERS], texts, tmp_path) == expected


# ---------------------------------------------------------------- tokenizers of pretrained models

POEM = "床前明月光，疑是地上霜。举头望明月，低头思故乡。"
BERT = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT += [*dict.fromkeys(POEM), "the", "cat", "##s", "cls", "sep", "gpt", *"[]'.,a15"]


@pytest.fixture
def bert(tmp_path):
    """The folder of a GPT-2 with a BERT vocabulary as it lies on many disks: a config, vocab.txt and nothing else."""
    (tmp_path / "vocab.txt").write_text("\n".join(BERT) + "\n", "utf-8")
    GPT2Config(vocab_size=len(BERT)).save_pretrained(tmp_path)  # its bos_token_id is 50256, of another vocabulary
    return tmp_path


def own_bpe(folder, **names):
    """Write the tokenizer of a LLaMA-like model, byte-level BPE, trained on one poem; as tokenizer.json."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<pad>", "<s>", "</s>"],
                                  show_progress=False)  # fmt: skip
    backend.train_from_iterator([POEM] * 3, trainer)
    backend.enable_truncation(4)
    if "pad_token" in names:
        backend.enable_padding(length=99, pad_id=0, pad_token=names["pad_token"])
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    return folder


def test_a_bert_vocabulary_has_its_ids_and_starts_and_ends_documents(bert):
    theirs = tokenizer.load_pretrained_tokenizer(str(bert))
    assert len(theirs) == len(BERT)
    ids = [theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.mask_token_id]
    assert ids == [0, 100, 101, 102, 103]
    ids = tokenizer.encode(theirs, POEM)
    assert ids == [BERT.index(character) for character in POEM]
    assert theirs(POEM)["input_ids"] == [101, *ids]  # its start, and no end: BERT's own would write [SEP] behind it
    assert theirs(POEM, "床")["input_ids"] == [101, *ids, BERT.index("床")]


@pytest.mark.parametrize(
    "text, back",
    [
        (POEM, POEM),  # no blank between Chinese characters
        ("the cats 明月 a cat", "the cats明月a cat"),  # but between English words
        ("The CATS\n明月\r\n光", "the cats明月光"),  # what BERT changes is lost
        ("床the cat, a. 5", "床the cat, a. 5"),
    ],
)
def test_a_bert_vocabulary_is_joined_without_blanks_between_chinese_characters(bert, text, back):
    theirs = tokenizer.load_pretrained_tokenizer(str(bert))
    ids = tokenizer.encode(theirs, text)
    assert tokenizer.decode(theirs, [theirs.bos_token_id, *ids, theirs.eos_token_id, theirs.pad_token_id]) == back
    assert tokenizer.decode(theirs, theirs.convert_tokens_to_ids(["##s", "明"])) == "s明"
    assert "".join(tokenizer.to_pieces(theirs, text)) == text


def folders(bert, tmp_path_factory):
    names = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    return bert, own_bpe(tmp_path_factory.mktemp("bpe"), **names)


def test_a_users_text_never_signals_anything_to_a_pretrained_model_either(bert, tmp_path_factory):
    for folder in folders(bert, tmp_path_factory):
        theirs = tokenizer.load_pretrained_tokenizer(str(folder))
        signals = {theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id}
        for token in [*theirs.all_special_tokens, "[CLS]床前[SEP]", "<s>床</s>", "[cls]", *LOOK_ALIKES]:
            assert not set(tokenizer.encode(theirs, token)) & signals, token
            assert "".join(tokenizer.to_pieces(theirs, token)) == token
    for text in (POEM, "é😀 the  cats\n", "<s>", *LOOK_ALIKES):  # byte-level BPE: exact, neither cut nor padded
        assert tokenizer.decode(theirs, tokenizer.encode(theirs, text)) == text
        assert theirs(text)["input_ids"] == [theirs.bos_token_id, *tokenizer.encode(theirs, text)]


@pytest.mark.slow
def test_the_saved_pretrained_tokenizer_loads_the_same_here_and_in_plain_hugging_face(bert, tmp_path_factory):
    texts, rooms, expected = [POEM, "[CLS] the cats", "明月 the 光"], [], []
    for folder in folders(bert, tmp_path_factory):
        theirs, room = tokenizer.load_pretrained_tokenizer(str(folder)), tmp_path_factory.mktemp("vocab")
        theirs.save_pretrained(room)
        ids = tokenizer.encode_batch(theirs, texts)
        specials = [theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id]
        specials.append(theirs.sep_token_id)
        started, back = [[theirs.bos_token_id, *row] for row in ids], [tokenizer.decode(theirs, row) for row in ids]
        expected += [[started, back, specials, len(theirs), sorted(theirs.all_special_ids)]] * 6
        again = tokenizer.load_tokenizer(room)
        assert tokenizer.encode_batch(again, texts) == ids and again.bos_token_id == theirs.bos_token_id
        once_more = tokenizer.load_pretrained_tokenizer(str(room))  # a run's own final model is a pretrained one too
        assert tokenizer.encode_batch(once_more, texts) == ids and len(once_more) == len(theirs)
        rooms.append(room)
    assert outside(rooms, texts, tmp_path_factory.mktemp("elsewhere")) == expected


def test_what_a_vocabulary_does_not_name_is_taken_from_the_end_or_refused(tmp_path):
    theirs = tokenizer.load_pretrained_tokenizer(str(own_bpe(tmp_path / "a", eos_token="</s>")))
    assert theirs.bos_token == theirs.eos_token == theirs.pad_token == "</s>"
    with pytest.raises(ValueError, match="names no token that ends a document"):
        tokenizer.load_pretrained_tokenizer(str(own_bpe(tmp_path / "b", pad_token="<pad>")))


def test_a_vocabulary_that_reads_signals_in_plain_text_is_refused(tmp_path):
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((letter, -9.0) for letter in "</s>")], 0))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="any text could end a document"):
        tokenizer.load_pretrained_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/folder", "{here}"])
def test_a_tokenizer_that_is_not_there_is_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="no tokenizer could be read from .*Give a folder with tokenizer.json"):
        tokenizer.load_pretrained_tokenizer(name.format(here=tmp_path))


def test_without_a_network_the_reason_comes_after_one_look_up(monkeypatch):
    asked = []

    def unreachable(name, **options):
        asked.append(name)
        raise OSError("ConnectError: Name or service not known")

    monkeypatch.setattr(tokenizer, "snapshot_download", unreachable)
    with pytest.raises(ValueError, match="Name or service not known.*while you are online"):
        tokenizer.load_pretrained_tokenizer("somebody/some-model")
    assert asked == ["somebody/some-model"]


def test_a_model_that_cannot_be_trained_and_pieces_that_cannot_be_read_are_refused_in_room_02(bert):
    (bert / "config.json").write_text(json.dumps({"model_type": "bloom"}), "utf-8")
    with pytest.raises(ValueError, match="kind 'bloom': this course trains gpt2, llama"):
        tokenizer.load_pretrained_tokenizer(str(bert))
    for file in bert.iterdir():
        file.unlink()
    for name in ("tokenizer.model", "spiece.model"):
        (bert / name).write_bytes(b"\n\x0e")
        with pytest.raises(ValueError, match=r"\.model alone is not read here: .*tokenizer\.json .*sentencepiece"):
            tokenizer.load_pretrained_tokenizer(str(bert))
