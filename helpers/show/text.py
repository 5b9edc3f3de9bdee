"""Chinese text as HTML with a plain-text twin: tables, documents, tokens in colours, bars of probabilities, labels.

It knows no tokenizer and no model, only strings and numbers. Colours are half transparent and text has the page's own
colour, so that it is readable in light and dark themes; styles are inline, so that an export keeps them. GitHub strips
styles: what a colour or a width says is therefore also there in signs (`unstyled`) or in words.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TypeGuard

from IPython.display import display
from wcwidth import wcswidth

from helpers.wording import say

# half transparent; the hues differ in lightness too, so that colour-blind readers can distinguish neighbours
HUES = ("66,133,244", "244,160,0", "15,157,88", "219,68,85", "142,68,173")
CONTINUES = "▸"  # between a prompt and what was written
UNDER_HEADER = "border-bottom:1px solid rgba(128,128,128,.35)"
_COLUMNS = 96  # of a line of labels, in half-width characters
_MARKS = {" ": "␣", "\u3000": "␣", "\n": "↵", "\r": "␍", "\t": "⇥"}


# ---- cells as text ----


def with_marks(text: str) -> str:
    """Return the text with spaces and control characters replaced by visible signs."""

    def mark(character: str) -> str:
        if character in _MARKS:
            return _MARKS[character]
        return f"‹{ord(character):X}›" if unicodedata.category(character)[0] in "CZ" else character

    return "".join(map(mark, text))


def with_marks_at_edges(cell: str) -> str:
    """Return a cell as plain text: spaces between words stay, spaces at its edges become visible."""
    return with_marks(cell) if cell != cell.strip(" ") else " ".join(map(with_marks, cell.split(" ")))


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a cell holds a number; True and False are words."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell_text(value: object) -> str:
    """Return a cell's text: 12345 as 12,345, a float with four digits (from 1,000 on without decimals), else str()."""
    if not is_number(value):
        return str(value)
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Return a probability as a percentage; zero and NaN are a dash, and what is small never rounds to zero."""
    if share == 0 or math.isnan(share):
        return "–"
    return f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"


def bar_of_blocks(share: float, width: int = 12) -> str:
    """Return a bar of block characters, `width` long for a share of 1, to an eighth of a character; none for NaN."""
    if math.isnan(share):
        return ""
    whole, eighths = divmod(round(8 * width * min(max(share, 0.0), 1.0)), 8)
    return "█" * whole + ("", *"▏▎▍▌▋▊▉")[eighths]


# ---- pieces of HTML ----


def element(tag: str, style: str, html: str) -> str:
    """Return an element of HTML around HTML."""
    return f'<{tag} style="{style}">{html}</{tag}>'


def unstyled(sign: str) -> str:
    """Return a sign that shows only where styles are stripped, and stands there for what a style says elsewhere."""
    return f'<span style="font-size:0">{escape(sign)}</span>'


def lines_kept(html: str) -> str:
    """Return HTML with <br> for each line break of its text; those within tags, in an attribute, stay."""
    return re.sub(r"\r?\n(?![^<>]*>)", "<br>", html)


def table_row(cells: str) -> str:
    """Return a table's row around its cells; without a background, where the page would stripe it."""
    return element("tr", "background:none", cells)


def card(body: str, note: str = "") -> str:
    """Return a framed block of HTML; line breaks in `body` are kept, without styles too."""
    above = element("div", "font-size:.8em;opacity:.7", note) if note else ""
    inside = element("div", "white-space:pre-wrap;line-height:1.7", lines_kept(body))
    frame = f"border-left:3px solid rgba({HUES[0]},.55);padding:.15em 0 .15em .9em;margin:.6em 0;color:inherit"
    return element("blockquote", frame, above + inside)


def chip(text: str, hue: str, alpha: float = 0.28) -> str:
    """Return a token in colour, in a <code> element."""
    style = f"background:rgba({hue},{alpha});color:inherit;font-family:inherit;border-radius:3px;padding:.1em .2em"
    return f'<code style="{style};margin:0 1px;white-space:pre">{escape(with_marks(text))}</code>'


# ---- on the page ----


def show_html(html: str, plain: str) -> None:
    """Display a fragment of HTML, or `plain` where HTML is not drawn."""
    display({"text/html": html, "text/plain": plain}, raw=True)


def show_all(rendered: Iterable[tuple[str, str]], otherwise: str = "") -> None:
    """Display fragments (HTML, plain text) one below the other; `otherwise`, a word or two, if there are none."""
    html, plain = zip(*(list(rendered) or [(f"<div>{otherwise}</div>", otherwise)]), strict=True)
    show_html("\n".join(html), "\n\n".join(plain))


def plain_table(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return the lines of a table in a fixed-width font, where a Chinese character takes two columns."""
    widths = [max(map(wcswidth, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            space = " " * (width - wcswidth(cell))
            cells.append(space + cell if to_right else cell + space)
        lines.append("  ".join(cells).rstrip())
    return lines


def render_table(rows: Iterable[Sequence], header: Sequence[str]) -> tuple[str, str]:
    """Return a table as (HTML, plain text), columns of numbers aligned to the right, heads in the reader's language."""
    rows, header = [list(row) for row in rows], [say(name) for name in header]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table with {len(header)} columns got a row of {len(row)}: {row}")
    right = [bool(rows) and all(is_number(row[i]) for row in rows) for i in range(len(header))]
    texts = [[cell_text(cell) for cell in row] for row in rows]
    align = [f"text-align:{'right' if to_right else 'left'}" for to_right in right]

    def line(tag: str, cells: Sequence[str], style: str) -> str:
        seen = [cell if cell.strip() else with_marks(cell) for cell in cells]  # a cell of nothing but "\n" is no blank
        boxes = (element(tag, f"{at};{style}", lines_kept(escape(cell))) for at, cell in zip(align, seen, strict=True))
        return f"<tr>{''.join(boxes)}</tr>"

    head = line("th", header, f"padding:.25em .9em;{UNDER_HEADER}")
    body = "\n".join(line("td", row, "padding:.2em .9em;white-space:pre-wrap") for row in texts)
    html = f'<table style="border-collapse:collapse">\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>'
    flat = [[with_marks_at_edges(cell) for cell in row] for row in [header, *texts]]
    return html, "\n".join(plain_table(flat, right))


def table(rows: Iterable[Sequence], header: Sequence[str]) -> None:
    """Show rows of numbers and text under a header."""
    show_html(*render_table(rows, header))


def render_noted(text: str, note: str, characters: int | None = None) -> tuple[str, str]:
    """Return a text with a note above it as (HTML, plain text); a text is cut after `characters`, with a sign."""
    if characters is not None and len(text) > characters:
        text = text[:characters].rstrip() + " …"
    return card(escape(text), escape(note)), f"[{note}]\n{text}"


def documents(texts: Iterable[str], limit: int = 3) -> None:
    """Show the first `limit` documents, each cut after 400 characters."""
    first = enumerate(islice(texts, limit), 1)
    show_all(render_noted(text, say("{} · {:,} characters", i, len(text)), 400) for i, text in first)


def pieces(cuts: Mapping[str, Sequence[str]]) -> None:
    """Show how one text is cut in several ways: {"thulac": ["我", "喜欢"], "tokenizer": [...]}."""
    rows, plain = [], []
    for name, tokens in cuts.items():
        boxes = [chip(token, HUES[i % len(HUES)]) + ("<br>" if "\n" in token else "") for i, token in enumerate(tokens)]
        count = element("span", "font-weight:normal;opacity:.7", say("{} pieces", len(tokens)))
        head = "text-align:left;vertical-align:top;padding:.4em 1em .4em 0;white-space:nowrap"
        cells = element("th", head, f"{escape(name)}<br>{count}")
        rows.append(
            table_row(cells + element("td", "text-align:left;padding:.4em 0;line-height:2", unstyled("|").join(boxes)))
        )
        plain.append(f"{name} ({len(tokens)}): " + "|".join(map(with_marks, tokens)))
    show_html('<table style="border-collapse:collapse">\n' + "\n".join(rows) + "\n</table>", "\n".join(plain))


def render_probabilities(rows: Iterable[tuple[str, float, float]]) -> tuple[str, str]:
    """Return bars of (token, probability before, probability after) as (HTML, plain text)."""
    rows = list(rows)
    most = max((share for _, *both in rows for share in both if not math.isnan(share)), default=0) or 1

    def bar(share: float, hue: str) -> str:
        look = f"color:rgb({hue});font-family:monospace;letter-spacing:-.5px"
        drawn = element("span", look, bar_of_blocks(share / most))
        words = element("span", "font-size:.85em;opacity:.75", percent(share))
        return element("td", "text-align:left;padding:.15em .6em;white-space:nowrap", f"{drawn} {words}")

    edge = f"text-align:left;padding:.25em .6em;{UNDER_HEADER}"
    heads = (("token", 4), ("before the filters", 13), ("after the filters", 13))
    lines = [table_row("".join(element("th", f"{edge};min-width:{width}em", say(name)) for name, width in heads))]
    flat = []
    for token, before, after in rows:
        fade = "" if after else "opacity:.7;"
        name = element("td", f"{fade}text-align:left;padding:.15em .6em", chip(token, HUES[0], 0.12))
        lines.append(table_row(name + bar(before, "128,128,128") + bar(after, HUES[0])))
        flat.append(
            [with_marks(token), f"{percent(before):>7}", f"{percent(after):>7}", bar_of_blocks(after / most, 24)]
        )
    html = "\n".join(['<table style="border-collapse:collapse">', *lines, "</table>"])
    return html, "\n".join(plain_table(flat, [False] * 4))


def probabilities(rows: Iterable[tuple[str, float, float]]) -> None:
    """Show the distribution of the next token as bars: rows of (token, probability before, probability after)."""
    show_html(*render_probabilities(rows))


def render_continuation(text: str, prompt: str = "") -> str:
    """Return generated text as HTML, its prompt dimmed; without styles, ▸ stands between the two."""
    if not prompt or not text.startswith(prompt):
        return escape(text)
    rest = text[len(prompt) :]
    sign = unstyled(CONTINUES) if rest else ""
    return f'<span style="opacity:.7">{escape(prompt)}</span>{sign}{escape(rest)}'


def samples(texts: Iterable[str], prompt: str = "") -> None:
    """Show generated texts, the prompt at their beginning dimmed; in plain text, ▸ ends it."""
    texts, rendered = list(texts), []
    for i, text in enumerate(texts, 1):
        note = say("sample {}", i) if len(texts) > 1 else ""
        begun = prompt and text.startswith(prompt) and text != prompt
        plain = f"{prompt}{CONTINUES}{text[len(prompt) :]}" if begun else text
        rendered.append((card(render_continuation(text, prompt), note), f"[{note}]\n{plain}" if note else plain))
    show_all(rendered)


def labels(inputs: Sequence[str], labels: Sequence[str | None]) -> None:
    """Show each input token above the label that it is trained to predict; a label None is masked, and dimmed."""
    if len(inputs) != len(labels):
        raise ValueError(f"{len(inputs)} inputs and {len(labels)} labels: a window has as many of one as of the other")
    # 1. break the pairs (input, label) into lines
    lines: list[list[tuple[str, str, bool]]] = []
    used = _COLUMNS  # of the last line
    for token, label in zip(inputs, labels, strict=True):
        pair = (with_marks(token), "–" if label is None else with_marks(label), label is None)
        width = max(map(wcswidth, pair[:2])) + 2
        if used + width > _COLUMNS:
            lines.append([])
            used = 0
        lines[-1].append(pair)
        used += width

    # 2. draw each line as a table of two rows
    def cell(text: str, style: str) -> str:
        return element("td", f"text-align:center;padding:.1em .35em;white-space:nowrap;{style}", escape(text))

    html, plain = [], []
    for line in lines:
        tops, bottoms = (cell(name, "opacity:.7;font-size:.85em") for name in (say("input"), say("label")))
        for token, label, masked in line:
            tops += cell(token, f"background:rgba({HUES[0]},.12)" + (";opacity:.7" if masked else ""))
            bottoms += cell(label, "opacity:.7" if masked else f"background:rgba({HUES[1]},.22)")
        look = "border-collapse:separate;border-spacing:2px;margin:.5em 0"
        html.append(element("table", look, table_row(tops) + table_row(bottoms)))
        rows = [[say("input"), *(token for token, _, _ in line)], [say("label"), *(label for _, label, _ in line)]]
        plain += plain_table(rows, [False] * len(rows[0]))
    show_html("\n".join(html), "\n".join(plain))
