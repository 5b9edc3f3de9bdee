"""Bytes to text: every encoding comes back exactly, what fits none is refused with its place."""

import codecs
import tracemalloc

import pytest
from corpora import PROSE, TRADITIONAL
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.corpus import encodings
from helpers.corpus.encodings import BadFile, Encoding


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
    japanese = "これはペンです。日本語の文章です。" * 9
    for codec in ("shift_jis", "euc_jp"):
        assert "or Japanese or Korean?" in " ".join(find(japanese.encode(codec)).notes())


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
    assert "the last character is cut" in find(data).notes()[0]


def test_binary_is_refused():
    with pytest.raises(BadFile, match="byte 0 is 0x00.*binary"):
        find(bytes(range(256)) * 8)


@pytest.mark.parametrize("codec", ["utf-8", "gb18030", "cp950", "utf-16-le"])
@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("line", [0, 7, 59])
def test_a_bad_byte_costs_its_line(codec, end, line):
    """It must never become another character, nor stop the file."""
    rows = TRADITIONAL.splitlines()
    mark = codecs.BOM_UTF16_LE if codec == "utf-16-le" else b""
    data = [row.encode(codec) + end.encode(codec) for row in rows]
    data[line] = data[line][:6] + (b"\x00\xdc" if mark else b"\xff\xff") + data[line][6:]
    encoding = find(mark + b"".join(data))
    assert read(mark + b"".join(data)) == "".join(row + end for row in rows[:line] + rows[line + 1 :])
    assert encoding.name == codec and encoding.bad_lines == 1
    assert f"left out: line {line + 1} (character" in encoding.notes()[0]


NAMES = [a + b for a in "张王李赵陈杨周吴" for b in ("丽颖", "芳", "国强", "敏", "小军")]


@pytest.mark.parametrize("names", [NAMES, NAMES[:5]])
@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 4), slice(1, None)])
def test_a_cut_name_is_not_read_as_another_encoding(names, cut):
    """On the evidence of its own broken bytes it was GBK, and in a short list all others with it."""
    rows = [name.encode() for name in names]
    rows[3] = rows[3][cut]
    for after in ("", PROSE):  # in a file with a second encoding, too
        data = b"\n".join([*rows, after.encode("gb18030")])
        assert read(data) == "\n".join([*names[:3], *names[4:], after]) and find(data).bad_lines == 1


def test_where_more_than_a_few_lines_are_bad_the_first_and_the_encoding_are_named():
    rows = [row.encode("gb18030") + b"\xff\n" * (n % 7 == 2) for n, row in enumerate(PROSE.splitlines(keepends=True))]
    with pytest.raises(
        BadFile, match=r"9 of 69 lines hold bytes that are not gb18030, the first line 4 \(character 1,"
    ):
        find(b"".join(rows))


@pytest.mark.parametrize(("first", "second"), [("utf-8", "gb18030"), ("gb18030", "utf-8"), ("utf-8", "cp950")])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_file_that_changes_its_encoding_is_read_whole(first, second, mark):
    mark = mark if first == "utf-8" else b""
    text = TRADITIONAL if second == "cp950" else PROSE
    data = mark + text.encode(first) + text.encode(second)
    assert read(data) == text * 2
    assert find(data).notes() == [f"changes its encoding: each line was read as what it is, {find(data)}"]
    # joined inside a line: that line is in no encoding
    data = mark + text.rstrip().encode(first) + text.encode(second)
    assert read(data).splitlines() == text.splitlines()[:-1] + text.splitlines()[1:] and find(data).bad_lines == 1


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (rb"{\rtf1\ansi text\par}", "RTF.*save it as plain text"),
        (b"%PDF-1.4\n1 0 obj\n", "a PDF"),
        (b"PK\x03\x04text", "a ZIP, as .docx"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an older office program"),
        (b"\x1f\x8b\x08text", "gzip, .gz.*give its name that ending"),
        (b"mail\n\x1b$)A\x0e:C", "ISO-2022.*iconv -f ISO-2022-CN"),
    ],
)
def test_what_is_no_plain_text_is_refused_by_its_name(head, kind):
    with pytest.raises(BadFile, match=f"this is .*{kind}"):
        find(head + b" text" * 9)


def test_a_web_page_is_read_and_said():
    assert "a whole web page" in find("<!DOCTYPE html>\n<p>绿萝</p>".encode()).notes()[0]


def test_zeros_that_fill_up_a_block_of_the_disk_are_no_binary_data():
    assert read(PROSE.encode() + bytes(900)) == PROSE + "\0" * 900


def test_big5_is_read_as_browsers_read_it():
    """The codes are those of the Encoding Standard's index; Python's own table differs in 255 of them."""
    data = TRADITIONAL.encode("big5") + bytes.fromhex("c6e7 c7f2 c6cf c6a1 a145 a3e1 f9d6")
    assert read(data) == TRADITIONAL + "ぁヶ廴①‧€碁"


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
def test_any_bytes_are_refused_or_each_line_is_read_as_it_is_or_counted(mark, pieces, damage, size):
    """What comes out is what strict decoding of each line gives."""
    data = bytearray(mark + b"".join(text.encode(codec, "ignore") for text, codec in pieces))
    for at, byte in damage:
        data[at : at + 1] = bytes([byte])
    data = bytes(data[: len(data) * size // 100])
    try:
        encoding = find(data)
    except BadFile:
        return
    text, at, left_out = read(data), 0, 0
    data = data[encoding.bom : len(data) - encoding.truncated]
    for line in data.splitlines(keepends=True) if encoding.is_in_lines() else [data]:
        names = [
            name for name in (encoding.name, encoding.other) if name and encodings.fits(line + "\n".encode(name), name)
        ]
        found = [len(each) for name in names if text.startswith(each := encodings.decode_strictly(line, name), at)]
        at, left_out = at + max(found, default=0), left_out + (not found)
    assert encoding.truncated < 4
    in_whole = encoding.bad_lines and not encoding.is_in_lines()
    assert in_whole or (at, left_out) == (len(text), encoding.bad_lines)


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


def test_memory_does_not_grow_with_the_longest_line(monkeypatch):
    monkeypatch.setattr(encodings, "BLOCK_BYTES", 2**16)
    data = (PROSE.replace("\n", "") * 5000).encode("gb18030")
    tracemalloc.start()
    assert find(data).name == "gb18030"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(data) / 4
