"""Raw text to documents: encodings, cleaning, splitting, and what is said of what was dropped. Makes its own dirt."""

import json
import re
import tracemalloc
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import cleaning, corpus, paths, reading, sample_corpus

SENTENCE = "绿萝喜欢散射光，土干了再浇水。"
PROSE = "".join(f"第{n}天，{SENTENCE}\n" for n in range(60))
CHINESE = st.text(
    st.sampled_from("绿萝喜欢散射光，。！？“”《》—…、；：的一是不了人在有我他这個們國𠮷㐂ABCxyz0123.,!?+=%"),
    max_size=60,
)
ANY = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
DIRTY = st.lists(
    st.sampled_from(
        [
            *"<>/&;#abp绿 \t\u3000\n\r\u200b\u200d\ufeff\ufffd\ue000\u0301\u0338\xa0\u2028😀-!=\"'",
            "&amp;",
            "&lt;",
            "<p>",
        ]
        + ["</p>", "<b>", "</b>", "<br/>", "<!--", "-->", "<div class='x'>", "</div>", "&#60;", "<script>", "</script>"]
    ),
    max_size=30,
).map("".join)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_DIR", str(tmp_path / "runs"))


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


def build(source: Path, **settings) -> corpus.Report:
    return corpus.build("test", str(source), **{"workers": 1, "min_length": 1, **settings})


def all_texts(run="test") -> list[str]:
    """Return the texts of both splits, sorted: which side a document falls on does not matter here."""
    return sorted([*corpus.texts(run, "train"), *corpus.texts(run, "val")])


# ---------------------------------------------------------------- encodings


@pytest.mark.parametrize(
    ("codec", "mark", "name"),
    [
        ("utf-8", b"", "utf-8"),
        ("utf-8", b"\xef\xbb\xbf", "utf-8 with BOM"),
        ("gb18030", b"", "gb18030"),
        ("utf-16-le", b"\xff\xfe", "utf-16-le with BOM"),
        ("utf-16-be", b"\xfe\xff", "utf-16-be with BOM"),
        ("utf-16-le", b"", "utf-16-le"),
        ("utf-16-be", b"", "utf-16-be"),
        ("utf-32-le", b"\xff\xfe\0\0", "utf-32-le with BOM"),
    ],
)
@pytest.mark.parametrize("block", [3, 2**20])
def test_encoding_is_found_and_text_comes_back(raw, monkeypatch, codec, mark, name, block):
    """GBK files were what users of the book's code asked about: open() on them fails, or reads another text."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)  # characters and \r\n in two blocks
    text = PROSE + "生僻字：𠮷㐂\n"  # four bytes each in GB18030
    (raw / "a.txt").write_bytes(mark + text.replace("\n", "\r\n").encode(codec))
    report = build(raw, document="line")
    assert [file.encoding for file in report.files] == [name]
    assert all_texts() == sorted(text.splitlines())
    assert report.rules["line ends"] == text.count("\n")
    assert not report.warnings()


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_english_in_utf16_without_a_mark(raw, codec):
    (raw / "a.txt").write_bytes("Water the plant.\nWait a week.\n".encode(codec))
    assert reading.find_encoding(raw / "a.txt").name == codec
    assert build(raw, document="line").documents == 2


@pytest.mark.parametrize("codec", ["utf-8", "gb18030", "utf-16-le"])
def test_cut_last_character_is_left_out_and_reported(raw, codec):
    mark = b"\xff\xfe" if codec == "utf-16-le" else b""
    data = mark + PROSE.rstrip().encode(codec)[:-1]
    (raw / "a.txt").write_bytes(data)
    report = build(raw, document="line")
    last = PROSE.rstrip().splitlines()[-1]
    assert last[:-1] in all_texts()
    at = len(mark + PROSE.rstrip()[:-1].encode(codec))
    assert f"byte {at:,}" in report.warnings()[0]


def test_mixed_encodings_are_refused_with_the_byte_and_the_run_goes_on(raw):
    first = PROSE.encode()
    (raw / "mixed.txt").write_bytes(first + PROSE.encode("gb18030"))
    (raw / "good.txt").write_text(PROSE, "utf-8")
    report = build(raw, document="line")
    assert report.documents == 60
    bad = {file.source: file.bad for file in report.files}
    assert bad["good.txt"] == ""
    assert f"byte {len(first):,} (line 61, " in bad["mixed.txt"]
    assert report.result()["bad_files"] == 1
    assert {document["source"] for document in corpus.read_shards("test", "train")} == {"good.txt"}


def test_binary_is_refused(raw):
    (raw / "a.txt").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(reading.BadFile, match="byte 0 is 0x00.*binary"):
        reading.find_encoding(raw / "a.txt")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (PROSE.encode().decode("gbk", "replace"), "UTF-8 read as GBK"),
        (PROSE.encode("gbk").decode("latin-1"), "Latin-1"),
        (PROSE.encode().decode("latin-1"), "Latin-1"),
        (PROSE + "坏\ufffd字", "U+FFFD"),
        (PROSE + "坏\ue123字", "private-use"),
        (PROSE.replace("萝", "?"), "'?'"),
    ],
)
def test_mojibake_is_recognised(raw, text, word):
    (raw / "a.txt").write_text(text, "utf-8", newline="")
    report = build(raw, document="line")
    assert any(word in line for line in report.warnings()), report.warnings()


@pytest.mark.parametrize(
    "text", [PROSE, "Où est le café ? À côté de l'hôtel.\n" * 20, "為什麼在這裡？因為喜歡。\n" * 9, "What? Why? 好?\n"]
)
def test_decent_text_is_not_suspected(text):
    seen = Counter()
    reading.look(text * 3, seen)
    assert not [line for line in reading.suspicions(seen, Counter()) if "mojibake" in line]


# ---------------------------------------------------------------- cleaning


@pytest.mark.parametrize(
    ("dirt", "clean", "rule"),
    [
        ("绿\ufeff萝", "绿萝", "BOM in the text"),
        ("绿\u200b萝\u2060", "绿萝", "zero-width"),
        ("绿\u200d萝", "绿萝", "joiners"),
        ("绿\x00萝\x07", "绿萝", "control characters"),
        ("\x1b[31m红\x1b[0m", "红", "terminal colours"),
        ("绿\ue001萝", "绿萝", "private-use characters"),
        ("绿\ufffd萝", "绿萝", "U+FFFD"),
        ("一\u2028二\x85三\r四\r\n五", "一\n二\n三\n四\n五", "line ends"),
        ("<p>一</p><p>二</p>", "一\n二", "HTML tags"),
        ('<a href="/x">链接</a>', "链接", "HTML tags"),
        ("绿萝&nbsp;&amp;&#32;吊兰", "绿萝 & 吊兰", "HTML entities"),
        ("<!-- 广告 -->绿萝", "绿萝", "HTML comments and scripts"),
        ("<script>if (a<b) {}</script>绿萝", "绿萝", "HTML comments and scripts"),
        ("e\u0301", "é", "NFC"),
        ("\u3000\u3000绿萝\n    吊兰", "绿萝\n吊兰", "indentation"),
        ("绿萝  \n吊兰\u3000", "绿萝\n吊兰", "trailing spaces"),
        ("绿萝    吊兰", "绿萝 吊兰", "repeated spaces"),
        ("绿萝\n\n\n\n\n吊兰", "绿萝\n\n吊兰", "blank lines"),
    ],
)
def test_a_rule_cleans_and_counts(dirt, clean, rule):
    counts = Counter()
    assert cleaning.clean(dirt, counts) == clean
    assert counts[rule] >= 1


@pytest.mark.parametrize(
    "text",
    [
        "若a<b>c且x<y，则A & B。",
        "p < 0.05 且 n > 3",
        "模板用 <think> 和 <tool_call>，还有 <|im_start|>",
        "git clone <path>",
        "?a=1&copy=2&lt=3",
        "AT&T; R&D",
        "第一回　灵根育孕源流出　心性修持大道生",
        "👨\u200d👩\u200d👧 ♥\ufe0f 1\ufe0f\u20e3",
        "می\u200cخواهم",
        "def f(x):\n    if x:\n        return 1",
        "一\n\n二",
        "□缺字□",
    ],
)
def test_text_that_only_looks_like_dirt_stays(text):
    """The book's cleaning threw away what it did not expect; here a character goes only if a rule names it."""
    counts = Counter()
    assert cleaning.clean(text, counts) == text
    assert not counts


@given(st.one_of(ANY, DIRTY))
def test_cleaning_twice_changes_nothing_more(text):
    once = cleaning.clean(text)
    counts = Counter()
    assert cleaning.clean(once, counts) == once
    assert not counts


@given(st.one_of(ANY, DIRTY))
def test_sparing_rules_changes_nothing(text):
    """Texts without a suspicious character skip most rules: no rule may have had work there."""
    if not cleaning._SUSPECT.search(text):
        assert not [name for name, pattern, _ in cleaning.RULES[:-4] if pattern.search(text)]


@given(st.lists(CHINESE, max_size=5).map("\n".join))
def test_clean_chinese_comes_back_unchanged(text):
    assert cleaning.clean(text) == unicodedata.normalize("NFC", text).strip("\n").replace("\n\n\n\n", "\n\n").replace(
        "\n\n\n", "\n\n"
    )


def test_hostile_text_takes_no_time():
    for text in [
        " " * 50_000 + "x",
        "<!--" * 20_000,
        "<script>" * 10_000,
        "<p " * 20_000,
        "&" * 50_000,
        "<a b=" * 9_999,
    ]:
        cleaning.clean(text)


@given(st.text("绿萝。\n ！a.", max_size=300), st.integers(1, 50))
def test_cutting_loses_nothing(text, max_length):
    parts = cleaning.cut(text, max_length)
    assert "".join(parts) == text
    assert all(0 < len(part) <= max_length for part in parts) or parts == [""]


def test_cuts_are_at_line_ends_then_sentence_ends():
    assert all(part.endswith("\n") for part in cleaning.cut(PROSE, 200))
    assert all(part.endswith("。") for part in cleaning.cut(PROSE.replace("\n", ""), 200))
    assert min(map(len, cleaning.cut("字" * 2010, 2000))) > 900  # not 2000 and a crumb


# ---------------------------------------------------------------- what is a document


@pytest.mark.parametrize(
    ("mode", "text", "documents"),
    [
        ("auto", "问一\n答一\n\n问二\n答二\n", ["问一\n答一", "问二\n答二"]),
        ("auto", "一行\n\u3000 \n二行", ["一行", "二行"]),
        ("block", "一\n\n\n\n二\n三", ["一", "二\n三"]),
        ("line", "一\n\n二\n三", ["一", "三", "二"]),
    ],
)
def test_documents_of_a_txt(raw, mode, text, documents):
    """The book made every line a document, so paragraphs were torn apart."""
    (raw / "a.txt").write_text(text, "utf-8")
    build(raw, document=mode)
    assert all_texts() == documents


def test_a_file_can_be_a_document(raw):
    (raw / "a.txt").write_text("\n一\n\n二\n", "utf-8")
    (raw / "b.txt").write_text("三\n", "utf-8")
    build(raw, document="file")
    assert all_texts() == ["一\n\n二", "三"]


def test_a_novel_without_blank_lines_becomes_many_documents(raw):
    novel = "".join(f"第{n}回\u3000{SENTENCE}{SENTENCE}\n" for n in range(2000))
    (raw / "novel.txt").write_bytes(novel.encode("gb18030"))
    report = build(raw / "novel.txt", max_length=1000)
    assert report.files[0].mode == "file"
    assert report.val_documents >= 1
    assert report.documents > 60
    assert sorted("\n".join(all_texts()).split("\n")) == sorted(novel.strip().split("\n"))
    assert "cut into" in report.warnings()[0]


def test_folders_are_read_recursively_sorted_and_in_any_case(raw):
    """The book read its files unsorted, in the order the disk gave them."""
    inner = raw / "子目录 空格"
    inner.mkdir()
    (inner / "大写.TXT").write_text("二", "utf-8")
    (raw / "z.JSON").write_text('["三"]', "utf-8")
    (raw / "a.jsonl").write_text('{"text": "一"}\n', "utf-8")
    (raw / "table.csv").write_text("x", "utf-8")
    report = build(raw)
    assert [file.source for file in report.files] == ["a.jsonl", "z.JSON", "子目录 空格/大写.TXT"]
    assert all_texts() == sorted("一二三")
    assert report.left_out == {".csv": 1}
    assert corpus.input_files(str(raw)) == [raw / "a.jsonl", raw / "z.JSON", inner / "大写.TXT"]


# ---------------------------------------------------------------- JSON


def test_json_lists_of_strings_and_objects(raw):
    items = ["一", {"text": "二"}, {"text": ["三", "四"]}, "", None, 5, ["六"], {"title": "七"}]
    (raw / "a.json").write_text(json.dumps(items), "utf-8-sig")
    report = build(raw)
    assert all_texts() == sorted(["一", "二", "三\n四"])
    assert report.dropped == {"empty": 1, "unreadable": 4}
    assert "item 5: a null, not a text" in report.warnings()[0]
    assert "title" in report.warnings()[1]


def test_bad_jsonl_lines_are_counted_and_the_rest_is_used(raw):
    rows = ['{"ask": "一"}', "", '{"ask": "截断', '"二"', '{"text": "三"}', "[" * 100_000, '{"ask": "四"}', "{", "NaN"]
    (raw / "a.jsonl").write_bytes("\r\n".join(rows).encode())
    report = build(raw, json_key="ask")
    assert all_texts() == sorted(["一", "二", "四"])
    assert report.dropped["unreadable"] == 5
    assert "line 3: not JSON" in report.warnings()[0]
    assert "and 2 more" in report.warnings()[0]


def test_json_that_is_really_json_lines(raw):
    (raw / "a.json").write_text('{"text": "一"}\n{"text": "二"}\n', "utf-8")
    assert build(raw).documents == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('["绿萝", 坏]', r"byte 11 \(line 1, column 8\) is not JSON"),
        ('{"text": "一"}', "list is expected"),
        ("[" * 100_000, "too deep"),
        ("[" + "1" * 5000 + "]", "digits"),
    ],
)
def test_json_that_cannot_be_used(raw, text, why):
    (raw / "bad.json").write_text(text, "utf-8")
    (raw / "good.txt").write_text("一\n\n二", "utf-8")
    report = build(raw)
    assert report.documents == 2
    (bad,) = [file.bad for file in report.files if file.bad]
    assert re.search(why, bad), bad


def test_half_characters_are_dropped_and_reported(raw):
    (raw / "a.jsonl").write_text('{"text": "坏\\ud800字"}\n{"text": "好\\ud83d\\ude00"}\n"三"\n', "utf-8")
    report = build(raw)
    assert all_texts() == ["三", "好😀"]
    assert report.dropped == {"with half characters": 1}
    assert "lone surrogate" in report.warnings()[0]


def test_unicode_line_separators_inside_json_do_not_cut_a_line(raw):
    (raw / "a.jsonl").write_text('{"text": "一\u2028二"}\n{"text": "三"}\n', "utf-8")
    build(raw)
    assert all_texts() == ["一\n二", "三"]


# ---------------------------------------------------------------- nothing usable


def test_errors_say_what_was_looked_for_and_where(raw):
    with pytest.raises(corpus.NoDocuments, match=r"nowhere does not exist: give 'sample', a file or a folder"):
        build(raw / "nowhere")
    with pytest.raises(corpus.NoDocuments, match=r"no file of the kinds \.txt, \.json, \.jsonl.*no file at all"):
        build(raw)
    (raw / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(corpus.NoDocuments, match=r"1 \.pdf"):
        build(raw)
    with pytest.raises(corpus.NoDocuments, match=r"a\.pdf is not one of"):
        build(raw / "a.pdf")
    (raw / "a.txt").write_bytes(b"\xff\xfe\xfd" * 5 + b"\x00")
    (raw / "b.txt").write_bytes(b"\xef\xbb\xbf")
    (raw / "c.txt").write_text("\n\r\n \u3000\t\n", "utf-8", newline="")
    (raw / "d.txt").write_text("短\n", "utf-8")
    with pytest.raises(corpus.NoDocuments) as error:
        build(raw, min_length=5)
    message = str(error.value)
    assert "no usable document in 4 file(s)" in message
    assert "b.txt: no text in it" in message
    assert "d.txt: 1 too short" in message
    assert not paths.room("test", "corpus").joinpath("parts").exists()


def test_one_document_cannot_be_split(raw):
    (raw / "a.txt").write_text("一\n二\n", "utf-8")
    with pytest.raises(corpus.NoDocuments, match="document='line'"):
        build(raw)
    assert build(raw, document="line").documents == 2


@pytest.mark.parametrize("settings", [{"document": "page"}, {"val_fraction": 0}, {"min_length": 9, "max_length": 5}])
def test_senseless_settings_are_refused(raw, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        build(raw, **settings)


def test_a_full_disk_is_not_a_bad_file(raw, monkeypatch):
    """A bare except once turned a failed sentence into nothing; only what concerns one file is forgiven."""

    def full(*_):
        raise OSError(28, "No space left on device")

    (raw / "a.txt").write_text("一\n二", "utf-8")
    monkeypatch.setattr(corpus, "_part_line", full)
    with pytest.raises(OSError, match="No space left"):
        build(raw, document="line")


# ---------------------------------------------------------------- duplicates, lengths, split, shards


def test_duplicates_and_short_documents_are_reported_in_documents_and_characters(raw):
    (raw / "a.txt").write_text("绿萝绿萝\n一\n吊兰吊兰\n绿萝绿萝  \n", "utf-8")
    (raw / "b.txt").write_text("吊兰吊兰\n", "utf-8")
    report = build(raw, document="line", min_length=2)
    assert all_texts() == sorted(["绿萝绿萝", "吊兰吊兰"])
    assert report.dropped == {"duplicate": 2, "too short": 1}
    assert report.lost == {"duplicate": 8, "too short": 1}
    assert [file.documents for file in report.files] == [2, 0]
    assert report.result()["dropped"] == 3
    assert report.result()["dropped_characters"] == 9


def test_the_default_length_keeps_nearly_everything(raw):
    """The book's min_length of 128 silently dropped a third of the characters."""
    (raw / "a.txt").write_text(PROSE + "好的\n", "utf-8")
    report = corpus.build("test", str(raw), document="line", workers=1)
    assert report.documents == 61
    assert report.characters == len(PROSE.replace("\n", "")) + 2


def test_a_document_stays_on_its_side_when_the_corpus_grows(raw):
    rows = [f"第{n}句" for n in range(400)]
    (raw / "a.txt").write_text("\n".join(rows[:300]), "utf-8")
    build(raw, document="line", val_fraction=0.1)
    before = set(corpus.texts("test", "val"))
    (raw / "0.txt").write_text("\n".join(rows[300:]), "utf-8")
    report = build(raw, document="line", val_fraction=0.1)
    after = set(corpus.texts("test", "val"))
    assert after & set(rows[:300]) == before
    assert 15 < report.val_documents < 75
    build(raw, document="line", val_fraction=0.1, seed=1)
    assert set(corpus.texts("test", "val")) != after


@given(st.sets(st.text("0123456789abcdef", min_size=4, max_size=8), min_size=2, max_size=30), st.floats(1e-6, 0.999))
def test_both_sides_have_a_document(keys, fraction):
    below = corpus._threshold(keys, fraction, seed=0)
    sides = [corpus.side(key, 0) < below for key in keys]
    assert any(sides) and not all(sides)


def test_the_bytes_do_not_depend_on_the_workers(raw, monkeypatch):
    monkeypatch.setattr(corpus, "TASK_BYTES", 1)  # a task a file
    for n in range(4):
        (raw / f"{n}.txt").write_text("\n".join(f"第{n}篇第{i % 7}句" for i in range(9)), "utf-8")
    written = {}
    for workers in (1, 2):
        report = build(raw, document="line", workers=workers)
        written[workers] = {file.name: file.read_bytes() for file in report.outputs}
    assert written[1] == written[2]
    assert report.documents == 28


def test_shards_are_bounded_and_old_ones_go_away(raw, monkeypatch):
    monkeypatch.setattr(corpus, "SHARD_DOCUMENTS", 25)
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    assert len(corpus.shard_paths("test", "train")) == 3
    train = list(corpus.texts("test", "train"))
    assert train == [row for row in PROSE.splitlines() if row in train]  # in order
    (paths.room("test", "corpus") / paths.MANIFEST).write_text("{}")
    report = build(raw, document="line", max_documents=20)
    assert report.documents == 20
    assert report.dropped == {"over max_documents": 40}
    assert [path.name for path in corpus.shard_paths("test", "train")] == ["train-00000.jsonl"]
    assert not (paths.room("test", "corpus") / paths.MANIFEST).exists()


def test_memory_is_bounded_by_a_block_not_by_the_corpus(raw):
    """The book held the whole corpus in memory, several times over."""
    with open(raw / "big.txt", "w", encoding="utf-8") as file:
        for n in range(6000):
            file.write(f"{n} {SENTENCE * 40}\n")
    size = (raw / "big.txt").stat().st_size
    tracemalloc.start()
    report = build(raw, document="line")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.documents == 6000
    assert peak < 0.75 * size


def test_report_is_written_and_readable(raw):
    (raw / "a.txt").write_text("<p>一</p>\n<p>二</p>\n", "utf-8")
    report = build(raw, document="line")
    written = json.loads((paths.room("test", "corpus") / "report.json").read_text("utf-8"))
    assert written["rules"] == dict(report.rules) == {"HTML tags": 4}
    assert written["files"][0]["rules"] == {"HTML tags": 4}
    assert report.rows()[0][:4] == ("a.txt", "utf-8", 2, 2)


def test_a_room_that_is_not_there_names_the_notebook():
    with pytest.raises(paths.RoomError, match="01_corpus"):
        corpus.shard_paths("nobody", "train")


def test_the_json_list_can_be_read_again(raw):
    (raw / "a.txt").write_text(PROSE, "utf-8")
    build(raw, document="line")
    texts = list(corpus.texts("test", "train"))
    path = corpus.write_json_list("test")
    assert json.loads(path.read_text("utf-8")) == texts
    again = corpus.build("again", str(path), workers=1)
    assert again.documents == len(texts)


# ---------------------------------------------------------------- the built-in corpus


def test_the_built_in_corpus_is_clean_distinct_and_has_a_floor():
    report = corpus.build("test", "sample", max_documents=400, workers=1)
    assert report.documents == 400
    assert not report.dropped and not report.rules
    expected = {document.text: document.bits for document in sample_corpus.documents(400, seed=0)}
    assert all_texts() == sorted(expected)
    validation = list(corpus.texts("test", "val"))
    bits = sum(expected[text] for text in validation) / sum(map(len, validation))
    assert report.floor_bits_per_char == pytest.approx(bits, abs=1e-6)
    assert 0.1 < bits < 6
