"""Chinese text as HTML with a plain-text twin: tables, documents, tokens in colours, bars of probabilities, labels.

It knows no tokenizer and no model, only strings and numbers. Colours are half transparent and text has the page's own
colour, so that it is readable in light and dark themes; styles are inline, so that an export keeps them.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TypeGuard

from IPython.display import display
from wcwidth import wcswidth

# half transparent; the hues differ in lightness too, so that colour-blind readers can distinguish neighbours
HUES = ("66,133,244", "244,160,0", "15,157,88", "219,68,85", "142,68,173")
LINE = "rgba(128,128,128,.35)"
MARKS = {" ": "␣", "\u3000": "␣", "\n": "↵", "\r": "␍", "\t": "⇥"}


def visible(text: str) -> str:
    """Return the text with spaces and control characters replaced by visible signs."""

    def sign(character: str) -> str:
        if character in MARKS:
            return MARKS[character]
        return f"‹{ord(character):X}›" if unicodedata.category(character)[0] in "CZ" else character

    return "".join(map(sign, text))


def visible_at_edges(cell: str) -> str:
    """Return a cell as plain text: spaces between words stay, spaces at its edges become visible."""
    if cell != cell.strip(" "):
        return visible(cell)
    return " ".join(map(visible, cell.split(" ")))


def show_html(html: str, plain: str) -> None:
    """Display a fragment of HTML, or `plain` where HTML is not drawn."""
    display({"text/html": html, "text/plain": plain}, raw=True)


def number(value: object) -> str:
    """Return a cell's text: 12345 as 12,345, a float with four digits (from 1,000 on without decimals), else str()."""
    if not is_number(value):
        return str(value)
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a cell holds a number; True and False are words."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def percent(share: float) -> str:
    """Return a probability as a percentage; zero is a dash, and only zero is: what is small never rounds to zero."""
    if share == 0:
        return "–"
    return f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"


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
    """Return a table as (HTML, plain text), columns of numbers aligned to the right."""
    rows = [list(row) for row in rows]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table with {len(header)} columns got a row of {len(row)}: {row}")
    right = [bool(rows) and all(is_number(row[i]) for row in rows) for i in range(len(header))]
    texts = [[number(cell) for cell in row] for row in rows]
    align = [f"text-align:{'right' if to_right else 'left'}" for to_right in right]

    def line(tag: str, cells: Sequence[str], style: str) -> str:
        boxes = [
            f'<{tag} style="{where};{style}">{escape(box)}</{tag}>' for where, box in zip(align, cells, strict=True)
        ]
        return f"<tr>{''.join(boxes)}</tr>"

    head = line("th", list(header), f"padding:.25em .9em;border-bottom:1px solid {LINE}")
    body = "\n".join(line("td", row, "padding:.2em .9em;white-space:pre-wrap") for row in texts)
    html = f'<table style="border-collapse:collapse">\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>'
    flat = [[visible_at_edges(cell) for cell in row] for row in [list(header), *texts]]
    return html, "\n".join(plain_table(flat, right))


def table(rows: Iterable[Sequence], header: Sequence[str]) -> None:
    """Show rows of numbers and text under a header."""
    show_html(*render_table(rows, header))


def card(body: str, note: str = "") -> str:
    """Return a framed block of HTML; line breaks in `body` are kept."""
    small = f'<div style="font-size:.8em;opacity:.6">{note}</div>' if note else ""
    return (
        f'<div style="border-left:3px solid rgba({HUES[0]},.55);padding:.15em 0 .15em .9em;margin:.6em 0">{small}'
        f'<div style="white-space:pre-wrap;line-height:1.7">{body}</div></div>'
    )


def shortened(text: str, characters: int) -> str:
    """Return a text cut after so many characters, with a sign that it was cut."""
    return text if len(text) <= characters else text[:characters].rstrip() + " …"


def documents(texts: Iterable[str], limit: int = 3, characters: int = 400) -> None:
    """Show the first `limit` documents, each cut after `characters` characters."""
    html, plain = [], []
    for i, text in enumerate(islice(texts, limit), 1):
        note, short = f"{i} · {len(text):,} characters", shortened(text, characters)
        html.append(card(escape(short), note))
        plain.append(f"[{note}]\n{short}")
    show_html("\n".join(html), "\n\n".join(plain))


def chip(text: str, hue: str, alpha: float = 0.28) -> str:
    """Return a token in colour; as a <code> element, it can be distinguished where styles are dropped, too."""
    style = f"background:rgba({hue},{alpha});color:inherit;font-family:inherit;border-radius:3px;padding:.1em .2em"
    return f'<code style="{style};margin:0 1px;white-space:pre">{escape(visible(text))}</code>'


def pieces(cuts: Mapping[str, Sequence[str]]) -> None:
    """Show how one text is cut in several ways: {"thulac": ["我", "喜欢"], "tokenizer": [...]}."""
    rows, plain = [], []
    for name, tokens in cuts.items():
        chips = [chip(token, HUES[i % len(HUES)]) + ("<br>" if "\n" in token else "") for i, token in enumerate(tokens)]
        rows.append(
            '<tr style="background:none"><th style="text-align:left;vertical-align:top;padding:.4em 1em .4em 0;'
            f'white-space:nowrap">{escape(name)}<br><span style="font-weight:normal;opacity:.6">{len(tokens)} pieces'
            f'</span></th><td style="text-align:left;padding:.4em 0;line-height:2">{"".join(chips)}</td></tr>'
        )
        plain.append(f"{name} ({len(tokens)}): " + "|".join(map(visible, tokens)))
    show_html('<table style="border-collapse:collapse">\n' + "\n".join(rows) + "\n</table>", "\n".join(plain))


def render_probabilities(rows: Iterable[tuple[str, float, float]]) -> tuple[str, str]:
    """Return bars of (token, probability before, probability after) as (HTML, plain text)."""
    rows = list(rows)
    most = max([max(before, after) for _, before, after in rows], default=0) or 1

    def bar(share: float, hue: str) -> str:
        return (
            '<td style="text-align:left;padding:.15em .6em;white-space:nowrap"><div style="display:inline-block;'
            f"vertical-align:middle;height:.85em;width:{9 * share / most:.2f}em;background:rgba({hue},.6);"
            f'border-radius:2px"></div> <span style="font-size:.85em;opacity:.75">{percent(share)}</span></td>'
        )

    head = "".join(
        f'<th style="text-align:left;padding:.25em .6em;border-bottom:1px solid {LINE};min-width:{wide}em">{name}</th>'
        for name, wide in (("token", 4), ("before the filters", 13), ("after the filters", 13))
    )
    html = []
    for token, before, after in rows:
        fade = "" if after else "opacity:.55;"
        html.append(
            f'<tr style="background:none"><td style="{fade}text-align:left;padding:.15em .6em">'
            f"{chip(token, HUES[0], 0.12)}</td>{bar(before, '128,128,128')}{bar(after, HUES[0])}</tr>"
        )
    flat = [
        [visible(token), f"{percent(before):>7}", f"{percent(after):>7}", "█" * round(24 * after / most)]
        for token, before, after in rows
    ]
    table_html = f'<table style="border-collapse:collapse">\n<tr style="background:none">{head}</tr>\n'
    return table_html + "\n".join(html) + "\n</table>", "\n".join(plain_table(flat, [False] * 4))


def probabilities(rows: Iterable[tuple[str, float, float]]) -> None:
    """Show the distribution of the next token as bars: rows of (token, probability before, probability after)."""
    show_html(*render_probabilities(rows))


def render_continuation(text: str, prompt: str = "") -> str:
    """Return generated text as HTML, its prompt dimmed."""
    if not prompt or not text.startswith(prompt):
        return escape(text)
    return f'<span style="opacity:.55">{escape(prompt)}</span>{escape(text[len(prompt) :])}'


def samples(texts: Iterable[str], prompt: str = "") -> None:
    """Show generated texts, the prompt at their beginning dimmed."""
    texts = list(texts)
    notes = [f"sample {i}" if len(texts) > 1 else "" for i in range(1, len(texts) + 1)]
    html = [card(render_continuation(text, prompt), note) for text, note in zip(texts, notes, strict=True)]
    plain = [f"[{note}]\n{text}" if note else text for text, note in zip(texts, notes, strict=True)]
    show_html("\n".join(html), "\n\n".join(plain))


def labels(inputs: Sequence[str], labels: Sequence[str | None], columns: int = 96) -> None:
    """Show each input token above the label that it is trained to predict; a label None is masked, and dimmed.

    `columns` is the width of a line in half-width characters.
    """
    if len(inputs) != len(labels):
        raise ValueError(f"{len(inputs)} inputs and {len(labels)} labels: a window has as many of one as of the other")
    # 1. break the pairs (input, label) into lines
    pairs = [
        (visible(token), "–" if label is None else visible(label), label is None)
        for token, label in zip(inputs, labels, strict=True)
    ]
    lines: list[list[tuple[str, str, bool]]] = []
    used = 0  # columns of the last line
    for pair in pairs:
        width = max(map(wcswidth, pair[:2])) + 2
        if not lines or used + width > columns:
            lines.append([])
            used = 0
        lines[-1].append(pair)
        used += width
    # 2. draw each line as a table of two rows
    html, plain = [], []
    for line in lines:
        tops = "".join(
            label_cell(token, f"background:rgba({HUES[0]},.12)" + (";opacity:.4" if masked else ""))
            for token, _, masked in line
        )
        bottoms = "".join(
            label_cell(label, "opacity:.4" if masked else f"background:rgba({HUES[1]},.22)")
            for _, label, masked in line
        )
        html.append(
            '<table style="border-collapse:separate;border-spacing:2px;margin:.5em 0">'
            f'<tr style="background:none">{label_cell("input", "opacity:.6;font-size:.85em")}{tops}</tr>'
            f'<tr style="background:none">{label_cell("label", "opacity:.6;font-size:.85em")}{bottoms}</tr></table>'
        )
        rows = [["input", *(token for token, _, _ in line)], ["label", *(label for _, label, _ in line)]]
        plain += plain_table(rows, [False] * len(rows[0]))
    show_html("\n".join(html), "\n".join(plain))


def label_cell(text: str, style: str) -> str:
    """Return one cell of the table of inputs and labels."""
    return f'<td style="text-align:center;padding:.1em .35em;white-space:nowrap;{style}">{escape(text)}</td>'
