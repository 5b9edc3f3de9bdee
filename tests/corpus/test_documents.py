"""PDF, Word, EPUB, web pages: what of them is text, what is counted as lost or refused. Makes its own files."""

import sys
import zipfile

import pytest
from corpora import SENTENCE, all_texts, build, everything

from helpers.corpus.encodings import BadFile

pytest.importorskip("pypdfium2"), pytest.importorskip("resiliparse")
FONT = "<</Type/Font/Subtype/Type0/Encoding/UniGB-UTF16-H/DescendantFonts[<</Type/Font/Subtype/CIDFontType0>>]>>"
PAGE = "<!DOCTYPE html><title>题</title><header>植物网</header><nav>首页</nav><script>if (a < b) c()</script><main>"
PAGE += f"<header><h1>绿萝</h1></header><form><p>{SENTENCE}</p><p>一行<br>又一行</p><table><tr><td>一<td>二</table>"
PAGE += "<ul><li>甲</ul></form></main><footer>版权</footer>"


def make_pdf(path, *pages, trailer=""):
    """Write a PDF: of each page its lines, (points from the left, points from the bottom, text), in this order."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>", FONT]
    for lines in pages:
        page = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 500 700]/Resources<</Font<</F 3 0 R>>>>/Contents {} 0 R>>"
        shown = " ".join(f"1 0 0 1 {x} {y} Tm <{text.encode('utf-16-be').hex()}> Tj" for x, y, text in lines)
        stream = f"<</Length {len(shown) + 12}>>\nstream\nBT /F 10 Tf {shown}\nendstream"
        objects += [page.format(len(objects) + 2), stream]
    body = "".join(f"{number} 0 obj\n{each}\nendobj\n" for number, each in enumerate(objects, 1))
    path.write_text(f"%PDF-1.4\n{body}trailer\n<</Root 1 0 R{trailer}>>\n%%EOF\n", "ascii")


def make_zip(path, parts):
    with zipfile.ZipFile(path, "w") as file:
        [file.writestr(name, text) for name, text in parts.items()]


def column(x, *lines):
    return [(x, 640 - 15 * n, line) for n, line in enumerate(lines)]


def test_a_pdf_becomes_paragraphs_less_what_its_pages_repeat(tmp_path):
    """Columns, words cut at line ends, a full line of some 22 characters; browsers write header and footer first."""
    pages, paragraphs = [], []
    for n, number in enumerate("一二三四", 6):
        left = [f"第{number}天，绿萝喜欢散射光，土干了再浇水。它的叶子", "在夏天长得很快，冬天要少浇水。"]
        english = ["A feed-forward layer was re-", "trained with a feed-", f"forward one, {n}."]
        right = [f"右边这一栏也有第{number}天，一直写到最右边的地方，在这", f"里第{number}次说完，⽂字不少。"]
        edges = [(50, 670, "植物养护手册"), (240, 20, f"第 {n} 页 共 12 页")]
        pages.append(edges + column(50, *left, *english, edges[0][2]) + column(280, *right))
        paragraphs += ["".join(left), f"A feed-forward layer was retrained with a feed-forward one, {n}.", edges[0][2]]
        paragraphs += ["".join(right).replace("⽂", "文")]
    make_pdf(tmp_path / "a.pdf", *pages)
    texts, report = everything(tmp_path / "a.pdf")
    assert texts == ["\n".join(paragraphs)] and report.lost == {"headers, footers and page numbers": 4 * (6 + 12)}
    make_pdf(tmp_path / "b.pdf", column(50, "静夜思", "床前明月光，", "疑是地上霜。", "举头望明月，", "低头思故乡。"))
    assert everything(tmp_path / "b.pdf")[0] == ["静夜思\n床前明月光，\n疑是地上霜。\n举头望明月，\n低头思故乡。"]


def test_what_gives_no_text_is_refused_with_a_reason(tmp_path, monkeypatch):
    make_pdf(tmp_path / "scan.pdf", [])
    make_pdf(tmp_path / "b.pdf", trailer="/ID[<0><0>]/Encrypt<</Filter/Standard/V 1/R 2/P 0/O<0>/U<0>>>")
    make_zip(tmp_path / "c.docx", {"word/other.xml": "<x/>"})
    (tmp_path / "d.epub").write_bytes(b"PK")
    whys = {
        "scan.pdf": "a scan",
        "b.pdf": "damaged, .*without one .*password error",
        "c.docx": "no .docx",
        "d.epub": "no .epub",
    }
    for name, why in whys.items():
        with pytest.raises(BadFile, match=why):
            everything(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(BadFile, match=r"reading .pdf needs a library: .*\[documents\]"):
        everything(tmp_path / "scan.pdf")


def test_a_zip_of_web_pages_books_and_word_files_is_read_and_balances(raw):
    chapter = "<html><head><title/></head><body><h1>第{}<ruby>章<rp>(</rp><rt>zh</ruby></h1><a id='x'/>{}</body></html>"
    opf = "<package><manifest><item id='b' href='../b%20%E7%AB%A0.xhtml'/><item id='a' href='a.xhtml'/></manifest>"
    opf += "<spine><itemref idref='b'/><itemref idref='a'/></spine></package>"
    container = "<container><rootfiles><rootfile full-path='O/x.opf'/></rootfiles></container>"
    book = {"META-INF/container.xml": container, "O/x.opf": opf, "b 章.xhtml": chapter.format("一", "<nav/>甲乙")}
    book["O/a.xhtml"] = chapter.format("二", f"{SENTENCE}<aside>注释</aside><pre>a\n  b</pre>")
    make_zip(raw / "b.epub", book)
    word = "<w:d xmlns:w='w'>{}<w:tbl><w:tr><w:tc>{}</w:tc><w:tc>{}</w:tc></w:tr></w:tbl><w:del>{}</w:del></w:d>"
    p = "<w:p xmlns:w='w'><w:pPr><w:tab/></w:pPr><w:r><w:t>{}</w:t></w:r><w:r><w:br/><w:t>&lt;b&gt;</w:t></w:r></w:p>"
    parts = {"word/document.xml": word.format(*map(p.format, ["甲", "一月", "两次", "删去"]))}
    parts |= {"word/header1.xml": p.format("眉"), "word/footnotes.xml": p.format("脚注")}
    make_zip(raw / "c.docx", parts)
    make_zip(raw / "all.zip", {name: (raw / name).read_bytes() for name in ("b.epub", "c.docx")})
    (raw / "d.htm").write_bytes(PAGE.encode("gb18030"))
    report = build(raw)
    texts = ["第一章\n\n甲乙", f"第二章\n\n{SENTENCE}\n注释\na\n  b", "甲\n<b>\n一月 <b>\t两次 <b>\n脚注\n<b>"]
    page = f"绿萝\n\n{SENTENCE}\n\n一行\n又一行\n\n一\t二\n甲"
    assert all_texts() == sorted([*texts, page]) and report.dropped["duplicate"] == 3
    for file in report.files:
        balance = file.balance()
        assert balance.pop("read") == sum(balance.values()) > 0 and not file.notes
    assert report.files[-1].encoding.startswith("gb18030")
    assert report.lost["menus, forms, footers and ruby"] == 11 + 4 * len("(zh")
    assert report.lost["headers, footers, comments, deleted text and ruby"] == 2 * len("删去<b>眉<b>")
