"""Bytes to text: every encoding comes back exactly, what fits none is refused with its place."""

import codecs
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings
from helpers.corpus.encodings import BadFile, Encoding

PROSE = "".join(f"第{n}天，绿萝喜欢散射光，土干了再浇水。\n" for n in range(60))
TRADITIONAL = "".join(f"第{n}天，綠蘿喜歡散射光，這個國家的人說：「土乾了再澆水！」\n" for n in range(60))
TEXT = st.lists(
    st.text(st.sampled_from("绿萝喜欢散射光的一是不了人在有我他𠮷㐂ABC xyz0129.,!?，。“”《》\t…"), max_size=30),
    max_size=30,
).map("\n".join)


@pytest.fixture(scope="module", autouse=True)
def bytes_file(tmp_path_factory):
    global FILE
    FILE = tmp_path_factory.mktemp("bytes") / "a.txt"


def find(data: bytes) -> Encoding:
    FILE.write_bytes(data)
    return encodings.find_encoding(FILE)


def read(data: bytes) -> str:
    return "".join(encodings.read_blocks(FILE, find(data)))


@pytest.mark.parametrize(
    ("codec", "mark", "name"),
    [
        ("utf-8", b"", "utf-8"),
        ("utf-8", codecs.BOM_UTF8, "utf-8 with BOM"),
        ("gb18030", b"", "gb18030"),
        ("utf-16-le", codecs.BOM_UTF16_LE, "utf-16-le with BOM"),
        ("utf-16-be", codecs.BOM_UTF16_BE, "utf-16-be with BOM"),
        ("utf-16-le", b"", "utf-16-le"),
        ("utf-16-be", b"", "utf-16-be"),
        ("utf-32-le", codecs.BOM_UTF32_LE, "utf-32-le with BOM"),
    ],
)
@pytest.mark.parametrize("block", [3, 2**20])
def test_an_encoding_is_found_and_the_text_comes_back(tmp_path, monkeypatch, codec, mark, name, block):
    """GBK files were what users of the book's code asked about: open() on them fails, or reads another text."""
    monkeypatch.setattr(encodings, "BLOCK_BYTES", block)  # characters in two blocks
    text = PROSE + "生僻字：𠮷㐂\r\n"  # four bytes each in GB18030
    (tmp_path / "a.txt").write_bytes(mark + text.encode(codec))
    encoding = encodings.find_encoding(tmp_path / "a.txt")
    assert str(encoding) == name
    assert "".join(encodings.read_blocks(tmp_path / "a.txt", encoding)) == text
    assert encoding.notes() == []


@given(TEXT, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_what_says_its_encoding_comes_back(text, codec):
    assert read(text.encode(codec)) == text


@given(TEXT)
def test_gb18030_comes_back_where_it_is_not_utf8(text):
    assert read((PROSE + text).encode("gb18030")) == PROSE + text  # a few characters alone may be anything


@pytest.mark.parametrize("text", ["為什麼在這裡？因為喜歡。", "春眠不覺曉，處處聞啼鳥。\n夜來風雨聲，花落知多少。\n"])
def test_short_big5_and_short_gbk(text):
    assert read(text.encode("big5")) == text
    assert read(text.encode("gb18030")) == text  # traditional characters in GBK


def test_big5_of_hong_kong():
    text = TRADITIONAL + "佢哋喺度嘅嘢，冚唪唥都係啱嘅。\n"
    with pytest.raises(UnicodeEncodeError):
        text.encode("cp950")
    assert read(text.encode("big5hkscs")) == text


def test_confidence_is_shown_where_it_is_low():
    doubtful = "錕簫鎧".encode("gb18030")
    assert read(doubtful) == "錕簫鎧"
    assert "%" in str(find(doubtful))
    assert str(find(PROSE.encode("gb18030"))) == "gb18030"
    japanese = find("これはペンです。日本語の文章です。".encode("shift_jis") * 9)
    assert "cp932" in " ".join(japanese.notes())


def test_english_with_western_quotes_does_not_become_chinese():
    text = "I don’t know “the café” at all, and it doesn’t matter to me.\n" * 9
    encoding = find(text.encode("cp1252"))
    assert read(text.encode("cp1252")) == text
    assert encoding.name == "cp1252"
    assert encoding.confidence < 1


@pytest.mark.parametrize("codec", ["utf-8", "gb18030", "utf-16-le"])
def test_a_cut_last_character_is_left_out_and_said(codec):
    mark = codecs.BOM_UTF16_LE if codec == "utf-16-le" else b""
    text = PROSE.rstrip()
    data = mark + text.encode(codec)[:-1]
    assert read(data) == text[:-1]
    at = len(mark + text[:-1].encode(codec))
    assert f"byte {at:,}" in find(data).notes()[0]


def test_binary_is_refused():
    with pytest.raises(BadFile, match="byte 0 is 0x00.*binary"):
        find(bytes(range(256)) * 8)


@pytest.mark.parametrize("codec", ["utf-8", "gb18030", "utf-16-le"])
def test_damage_is_refused_with_its_place(codec):
    """One bad byte must never become another character."""
    mark = codecs.BOM_UTF16_LE if codec == "utf-16-le" else b""
    data = bytearray(mark + PROSE.encode(codec))
    at = data.index("萝".encode(codec), 200)
    data[at : at + 2] = b"\x00\xdc" if codec == "utf-16-le" else b"\xff\xff"
    with pytest.raises(BadFile, match=rf"byte {at:,} \(line \d+, hex .. ..\) is not {codec}.*damaged") as error:
        find(bytes(data))
    if codec == "utf-8":
        assert f"line {data[:at].count(10) + 1}," in str(error.value)


@pytest.mark.parametrize(("first", "second"), [("utf-8", "gb18030"), ("gb18030", "utf-8"), ("utf-8", "cp950")])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_file_that_changes_its_encoding_is_read_whole(first, second, mark):
    if mark and first != "utf-8":
        mark = b""
    text = TRADITIONAL if second == "cp950" else PROSE
    data = mark + text.encode(first) + text.encode(second)
    encoding = find(data)
    assert read(data) == text * 2
    assert str(encoding).replace("cp950", "big5") == f"{first} + {second}".replace("cp950", "big5")
    at = len(mark + text.encode(first))
    assert f"from byte {at:,} (line 61)" in encoding.notes()[0]


def test_two_files_joined_inside_a_line():
    text = PROSE.rstrip()
    assert read(text.encode() + PROSE.encode("gb18030")) == text + PROSE
    assert read(text.encode("gb18030") + PROSE.encode()) == text + PROSE


LINES = st.lists(
    st.tuples(st.text(st.sampled_from("绿萝喜欢散射光土干再浇水天地人"), min_size=5, max_size=20), st.booleans()),
    min_size=2,
    max_size=12,
)


@given(LINES, st.booleans())
@example([("绿萝喜欢散射光", True), ("土干了再浇水", False), ("绿萝喜欢散射光", True)], True)
@settings(max_examples=200)
def test_no_character_is_lost_in_any_mixture(lines, end):
    """Each line is UTF-8 or GB18030; a comma and a stop make it a sentence."""
    rows = [(f"我说，{text}。\n", "utf-8" if utf8 else "gb18030") for text, utf8 in lines]
    if not end:
        rows[-1] = (rows[-1][0].rstrip("\n"), rows[-1][1])
    data = b"".join(row.encode(codec) for row, codec in rows)
    assert read(data) == "".join(row for row, _ in rows)


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["绿萝喜欢散射光，土干了再浇水。\n", "abc\n", "𠮷㐂\n", "é ü\n", "這個國家\n", "\n", "，。"]),
        st.sampled_from(["utf-8", "gb18030", "cp950", "utf-16-le", "latin-1"]),
    ),
    max_size=8,
)
MARKS = st.sampled_from([b"", b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])


@given(MARKS, PIECES, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2), st.integers(1, 200))
@settings(max_examples=500)
def test_any_bytes_are_refused_or_read_to_the_last(mark, pieces, damage, size):
    """What comes out is what strict decoding of each part gives, and the parts are all of the file."""
    data = bytearray(mark + b"".join(text.encode(codec, "ignore") for text, codec in pieces))
    for at, byte in damage:
        data[at : at + 1] = bytes([byte])
    data = bytes(data[: len(data) * size // 100])
    try:
        encoding = find(data)
    except BadFile:
        return
    parts = encoding.sections or ((encoding.bom, 1, encoding.name),)
    ends = [at for at, _, _ in parts[1:]] + [len(data) - encoding.truncated]
    expected = [encodings.decode_strictly(data[at:end], name) for (at, _, name), end in zip(parts, ends, strict=True)]
    # damage may make another mark of the first bytes: FF FE 00 00 is that of UTF-32
    all_marks = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
    assert parts[0][0] == encoding.bom in {0, *(len(each) for each in all_marks if data.startswith(each))}
    assert encoding.truncated < 6  # five bytes of a pair of CESU-8
    assert read(data) == "".join(expected)


def read_in_blocks(data: bytes, size: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "BLOCK_BYTES", size)
        return read(data)


@given(st.lists(st.text("绿萝的，05 \n", max_size=4), max_size=12), st.integers(1, 9))
@example(["土干了", ""], 4)
@example(["", "5\n"], 3)
def test_the_euro_of_windows_comes_back(texts, size):
    """In its GBK, which is cp936, it is the single byte 0x80."""
    data = b"\x80".join(text.encode("gb18030") for text in [PROSE, *texts])
    assert read_in_blocks(data, size) == "€".join([PROSE, *texts])


@given(st.text("绿萝，a \n😀𠮷\u0800\ud7ff", max_size=12), st.integers(1, 9))
def test_cesu8_comes_back(text, size):
    """As Java and Oracle write UTF-8: emoji are two halves of three bytes each."""
    units = memoryview(text.encode("utf-16-le")).cast("H")
    data = "".join(map(chr, units)).encode("utf-8", "surrogatepass")
    assert read_in_blocks(data, size) == text
    assert find(data).name == "utf-8"


def test_damage_in_a_first_line_of_gbk_is_named_there():
    for title in ("绿萝养护", "我的绿萝"):
        data = title.encode("gb18030") + b"\xff\xff\n" + PROSE.encode("gb18030")
        with pytest.raises(BadFile, match=r"byte 8 \(line 1, hex ff ff\) is not gb18030"):
            find(data)


def test_memory_does_not_grow_with_the_longest_line(monkeypatch):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 2**16)
    data = (PROSE.replace("\n", "") * 5000).encode("gb18030")
    tracemalloc.start()
    assert find(data).name == "gb18030"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(data) / 4
