"""word_file: a list that somebody brings is the vocabulary, line for line (test_tokenizer: no text is lost by it)."""

import pytest

from helpers.vocab import tokenizer
from helpers.vocab.word_file import read_word_file

BOOK = tokenizer.parse_special_tokens("sep:[SEP] eos:[CLS] bos:[MASK] pad:[PAD] unk:[UNK]")
LINES = ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "绿萝", "浇水", "怎么浇水", "，", "the", "散射光"]


def read(folder, text, special=tokenizer.SPECIAL_TOKENS, codec="utf-8"):
    (folder / "vocab_user.txt").write_bytes(text.encode(codec) if isinstance(text, str) else text)
    return read_word_file(str(folder / "vocab_user.txt"), special)


def build(found, special, characters="怎么办？", counts=None):
    return tokenizer.build_words(found.with_counts(counts or {}), characters, special, found.tokens)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_the_number_of_a_line_is_the_id_of_its_word(codec, end, last, tmp_path):
    found = read(tmp_path, end.join(LINES) + end * last, BOOK, codec)
    assert (found.tokens, list(found.words), found.refused) == (LINES, LINES[5:], {})
    made = build(found, BOOK)
    assert made.convert_ids_to_tokens(list(range(len(LINES)))) == LINES
    assert (made.bos_token_id, made.eos_token_id, made.pad_token_id, made.unk_token_id) == (2, 1, 3, 4)
    assert len(made) == len(set(made.get_vocab().values()))


def test_words_alone_are_followed_by_our_special_tokens(tmp_path):
    found = read(tmp_path, "绿萝\n浇水\n")
    assert found.tokens == ["绿萝", "浇水", *tokenizer.SPECIAL_TOKENS.values()]
    made = build(found, tokenizer.SPECIAL_TOKENS)
    assert (made.bos_token_id, made.pad_token_id, made.user_token_id) == (3, 2, 6)
    assert tokenizer.encode(made, "绿萝浇水") == [0, 1]


def test_special_tokens_without_a_meaning_here_keep_their_ids_and_are_said(tmp_path):
    """The book's list with this course's own names: no text ever turns into one of its five."""
    found = read(tmp_path, "\n".join(LINES))
    assert found.nameless == LINES[:5] and "[SEP] [CLS] [MASK] [PAD] [UNK]" in found.summary()
    made = build(found, tokenizer.SPECIAL_TOKENS)
    assert made.convert_ids_to_tokens(list(range(len(LINES)))) == LINES
    assert made.bos_token == "<bos>" and set(range(5)) <= set(made.all_special_ids)
    assert not set(tokenizer.encode(made, "[CLS]绿萝[MASK]")) & set(made.all_special_ids)
    assert tokenizer.decode(made, [0, 5, 1]) == "绿萝"


def test_a_word_counts_as_its_line_says_else_as_the_corpus_says(tmp_path):
    found = read(tmp_path, "绿萝\t90\n浇水\n \n散射光\t0\n怎么\t\n")
    assert found.with_counts({"浇水": 7, "绿萝": 1}) == {"绿萝": 90, "浇水": 7, "散射光": 1, "怎么": 1}
    # 怎么浇水 has two cuts: which one wins is decided by the counts of the list
    often = read(tmp_path, "怎么\t50\n浇水\t50\n怎么浇\t1\n水\t1")
    rarely = read(tmp_path, "怎么\t1\n浇水\t1\n怎么浇\t50\n水\t50")
    cuts = [tokenizer.to_pieces(build(found, BOOK), "怎么浇水") for found in (often, rarely)]
    assert cuts == [["怎么", "浇水"], ["怎么浇", "水"]]


def test_a_list_of_jieba_is_read_but_a_word_with_a_space_stays_one(tmp_path):
    found = read(tmp_path, "绿萝 5\n换盆 2 v\n散射光 3 n\n怎么\n富贵竹 nz\npot_plant 3 eng\nGreen House 温室 20\n")
    assert found.words == {"绿萝": 5, "换盆": 2, "散射光": 3, "怎么": 0, "富贵竹": 0, "pot_plant": 3}
    assert found.refused == {"with a space in the word": [7]}
    assert list(read(tmp_path, "小米 14\n绿萝\n浇水\n").words) == ["绿萝", "浇水"]


def test_refused_lines_are_counted_with_their_reason_and_place(tmp_path):
    found = read(tmp_path, "绿萝\n\n浇 水\n 浇水 \n绿萝\n<0x41>\n花\tn\n花\n\n\n")
    assert list(found.words) == ["绿萝", "浇水", "花"]
    assert found.refused == {
        "empty": [2], "with a space in the word": [3], "a word that an earlier line has": [5],
        "the name of a byte": [6], "no count after the tab": [7],
    }  # fmt: skip
    assert "1 line refused, a word that an earlier line has: line 5" in found.summary()
    assert "the lines after a refused one" in found.summary()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no line with a word"),
        ("[PAD]\n[UNK]\n", "no line with a word"),
        ("绿萝\n".encode() * 9 + b"B\xff\nC", r"not utf-8: line 10 \(character 2, hex ff"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]\x94(" * 9, "cannot be read as text"),
        ("[PAD]\n[UNK]\n绿\n萝\n##绿\n##萝\n##a", "pretrained_model"),
    ],
)
def test_what_is_no_word_list_is_refused(content, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, content)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.txt"):
        read_word_file(str(tmp_path / "nothing.txt"), BOOK)
