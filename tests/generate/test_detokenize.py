"""Ids become characters while a text is written: never half a character, nothing after its end, nothing taken back."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers.generate import detokenize
from helpers.generate.detokenize import Detokenizer
from helpers.vocab.tokenizer import decode, encode, load_pretrained_tokenizer


@settings(max_examples=200)
@given(
    words=st.lists(st.sampled_from(["绿萝", "浇", "水", "浇水", "。", "é", "🌱", "a"]), max_size=12),
    stop=st.lists(st.text("绿萝浇水。é🌱a", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_are_a_search_in_the_text(tok, words, stop):
    """Whatever the cuts: the text ends where the first stop string to be complete begins; nothing settled changes."""
    whole, written, settled = "".join(words), Detokenizer(tok, tuple(stop)), ""
    for token in encode(tok, whole):
        ended = written.push(token)
        assert written.text.startswith(settled)
        settled = written.text[: written.settled]
        if ended:
            break
    complete = [end for end in range(len(whole) + 1) if any(whole[:end].endswith(each) for each in stop)]
    assert written.stopped == bool(complete)
    if not complete:
        assert written.text == whole
    else:  # a token may complete several: then the one that begins first
        assert not any(each in written.text for each in stop)
        assert whole.startswith(written.text) and len(written.text) <= complete[0]


@pytest.mark.parametrize(
    ("text", "ended"),
    [("看土。浇", "看土。"), ("看土。", None), ("\n\n看土\n浇", "\n\n看土\n"), ("“看土！？”浇", "“看土！？”"),
     ("看……看土。浇", "看……看土。"), ("……看土。浇", "……看土。"), ("看土……\n浇", "看土……\n"), ("看土……", None),
     ("看土……？浇", "看土……？"), ("？？看土。浇", "？？看土。"), ('"看土！"浇', '"看土！"'), ("'看土？'浇", "'看土？'"),
     ("。\n看土。浇", "。\n看土。"), ('看土。"浇', "看土。"), ('看"土。"浇', '看"土。"')],
)  # fmt: skip
def test_a_sentence_ends_with_the_character_after_it(tok, text, ended):
    """Only the next character shows that no closing quote follows."""
    written = Detokenizer(tok, sentence=True).extend(encode(tok, text))
    assert (written.text, written.stopped) == (ended or text, ended is not None)


def test_tokens_after_the_end_do_not_count_and_broken_bytes_hold_nothing_back_for_long(tok):
    written = Detokenizer(tok, stop=("土",)).extend(encode(tok, "绿萝看土"))
    assert written.text == "绿萝看" and written.tokens == 2
    broken = [tok.convert_tokens_to_ids("<0xF0>")] * 9
    assert Detokenizer(tok).extend([*broken, *encode(tok, "水")]).text == "\ufffd" * 9 + "水"
    assert Detokenizer(tok).extend([broken[0], *encode(tok, "水土")]).starts == [0, 1, 2]


def test_each_token_is_decoded_once_however_long_the_text(tok, monkeypatch):
    """To decode the whole text again for each token would take a time that grows with its square."""
    decoded = []
    monkeypatch.setattr(detokenize, "decode", lambda tok, ids: decoded.append(len(ids)) or decode(tok, ids))
    ids = encode(tok, "绿萝浇水🌱" * 500)
    Detokenizer(tok, stop=("不在",), sentence=True).extend(ids)
    assert sum(decoded) == len(ids) + 500 * (1 + 2 + 3)  # the four bytes of a character are tried one, two, three, four


# ---- tokenizers of pretrained models ----


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Return a WordPiece tokenizer as BERT has it, loaded as this course loads one."""
    folder = tmp_path_factory.mktemp("bert")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"明月光的.", "the", "cat", "##s", "cats", "and", "a"]
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", "utf-8")
    return load_pretrained_tokenizer(str(folder))


@given(
    words=st.lists(st.sampled_from(["明", "月", "the", "cat", "##s", "and", "."]), max_size=8), cut=st.integers(0, 8)
)
def test_spaces_between_words_are_those_of_the_whole_text(bert, words, cut):
    ids = bert.convert_tokens_to_ids(words)
    prompt, new = ids[:cut], ids[cut:]
    written = Detokenizer(bert, before=prompt).extend(new)
    assert decode(bert, prompt) + written.text == decode(bert, ids)


def test_characters_that_tokens_cut_again_and_again_come_back(tok):
    """Byte-level BPE may join the end of a character with the beginning of the next one."""
    text = "浇水看土光肥"
    letters = "".join(piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text))
    ends = [0, 4, 7, 10, 13, 16, 18]  # of tokens, in bytes; a character has three
    pieces = [letters[start:end] for start, end in pairwise(ends)]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    backend.decoder = decoders.ByteLevel()
    written, seen = Detokenizer(PreTrainedTokenizerFast(tokenizer_object=backend)), []
    for token in range(len(pieces)):
        written.push(token)
        seen.append(written.text)
    assert seen == ["浇", "浇水", "浇水看", "浇水看土", "浇水看土光", text]
