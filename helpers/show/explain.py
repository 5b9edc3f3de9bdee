"""A written text explained: probability in colours, filters, copied stretches, the attention of one head.

Draws the records of `generate.explain` and `generate.memorization`. Texts are HTML with a plain-text twin, as in
`text`: the stronger a colour, the less the model expected the token. The attention is SVG.
"""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle, groupby
from statistics import fmean
from typing import TYPE_CHECKING, SupportsFloat

from helpers.generate.surprisal import LEVELS, level
from helpers.show import text as page
from helpers.show.svg import BLUE, GREY, INK, Picture, between, shortened, width_of
from helpers.wording import say

if TYPE_CHECKING:  # these load torch
    from helpers.generate.explain import Step
    from helpers.generate.memorization import Copied, Stretch

END = "■"  # stands for the document's end
PIECE = "…"  # and for a byte that is not yet a character
# how strong the colour of each level of surprisal is; the first has none, and on the last white text can still be read
ALPHAS = (0.0, 0.18, 0.34, 0.48, 0.6)
SURPRISE = 2  # from this level of surprisal on, a token is underlined and has its bits where styles are stripped
MOST_TOKENS = 30  # of the picture of a head: n tokens are n² / 2 cells
PRINTED = 0.1  # weights from here on are printed in it


def coloured(text: str, probability: float, note: str = "") -> str:
    """Return text as HTML, coloured by how probable it was; `note` is shown under the mouse."""
    alpha = ALPHAS[level(probability)]
    title = f' title="{escape(note)}"' if note else ""
    colour = f' style="background:rgba({page.HUES[1]},{alpha});border-radius:2px"' if alpha else ""
    return f"<span{colour}{title}>{escape(text)}</span>" if colour or title else escape(text)


def legend() -> str:
    """Return what the colours of `coloured` mean, and what stands for them without styles, as a line of HTML."""
    names = [say("a half or more"), *(say("from {:.0f} %", 100 * least) for least in LEVELS[1:]), say("less")]
    spans = [coloured(f" {name} ", least) for name, least in zip(names, [*LEVELS, 0.0], strict=True)]
    below = 100 * LEVELS[SURPRISE - 1]
    signs = page.unstyled(say(" (in colours; without them less than {:.0f} % is underlined, with its bits)", below))
    return f'<div style="font-size:.8em">{say("probability of a token:")} {" · ".join(spans)}{signs}</div>'


def with_bits(html: str, bits: float) -> str:
    """Return a piece of text in colour; without styles a surprising one is underlined, its bits above its end."""
    if level(2**-bits) < SURPRISE:
        return html
    return f'<u style="text-decoration:none">{html}</u><sup style="font-size:0;line-height:0">{bits:.1f}</sup>'


def probabilities_in_words(alternatives: Iterable[tuple[str, float]]) -> str:
    """Return (text, probability) pairs in words: 水 34.5 %, 光 12.0 %; ■ is the end, which has no text."""
    return ", ".join(f"{page.with_marks(text) or END} {page.percent(share)}" for text, share in alternatives)


def whole_characters(steps: Sequence["Step"]) -> list[list["Step"]]:
    """Return the steps in groups that each add text: byte pieces of one character together.

    Pieces of a character that is never completed are a group without text.
    """
    groups: list[list[Step]] = [[]]
    for step in steps:
        groups[-1].append(step)
        if step.text:
            groups.append([])
    return [group for group in groups if group]


def step_in_words(step: "Step") -> str:
    """Return all that is known of a step, for under the mouse: a line for the model, then one per filter."""
    share, likeliest = page.percent(step.probability), probabilities_in_words(step.alternatives)
    words = "{}, number {:,} of the model's choices, {:.2f} bits\nlikeliest: {}"
    lines = [say(words, share, step.rank, step.bits, likeliest)]
    for work in step.filters:
        line = f"{work.name}: {page.percent(work.chosen)}"
        if work.removed:
            likeliest = probabilities_in_words(work.likeliest)
            line += say("; took away {:,} tokens with {}: {} …", work.removed, page.percent(work.lost), likeliest)
        lines.append(line)
    return "\n".join(lines)


def explained(steps: Sequence["Step"], prompt: str = "") -> None:
    """Show the steps of `explain.explain_text`: each token coloured by its probability, details under the mouse.

    A token without text is a piece of a character, and is shown as … where that is not completed.
    """
    body = page.render_continuation(prompt, prompt) + (page.unstyled(page.CONTINUES) if prompt else "")
    for group in whole_characters(steps):
        text = group[-1].text
        bits = sum(step.bits for step in group)
        body += with_bits(coloured(text or PIECE, 2**-bits, "\n\n".join(map(step_in_words, group))), bits)
    rows = []
    for step in steps:
        likeliest = probabilities_in_words(step.alternatives[:3])
        rows.append((step.text or PIECE, page.percent(step.probability), step.rank, round(step.bits, 2), likeliest))
    _, plain = page.render_table(rows, ["text", "probability", "rank", "bits", "likeliest"])
    page.show_html(page.card(body) + legend(), plain)


def filters(steps: Sequence["Step"]) -> None:
    """Show how much each filter removed: on average over the steps, and at the step where it removed the most."""
    rows = []
    for i, works in enumerate(zip(*(step.filters for step in steps), strict=True)):
        before = [step.filters[i - 1].chosen if i else step.probability for step in steps]
        gained = fmean(work.chosen - p for work, p in zip(works, before, strict=True))
        worst = max(range(len(steps)), key=lambda at: works[at].lost)
        context = page.with_marks("".join(step.text for step in steps[:worst])[-6:])
        example = f"{context}▸ {probabilities_in_words(works[worst].likeliest[:3])}" if works[worst].removed else ""
        removed, lost = round(fmean(work.removed for work in works)), page.percent(fmean(work.lost for work in works))
        rows.append((works[0].name, removed, lost, f"{100 * gained:+.1f}", example))
    header = ["filter", "tokens it took away", "their probability", "written token, points", "took most at"]
    page.table(rows, header)


def render_copied(copied: "Copied") -> tuple[str, str]:
    """Return a text with its copied stretches as (HTML, plain text)."""
    # 1. the longest stretch that each character is in
    owners: list[Stretch | None] = [None] * len(copied.text)
    for stretch in sorted(copied.stretches, key=len):
        owners[stretch.start : stretch.end] = [stretch] * len(stretch)
    # 2. runs of characters with the same owner
    html = plain = ""
    hues = cycle(page.HUES[:2])
    for owner, indices in groupby(range(len(owners)), key=owners.__getitem__):
        run = "".join(copied.text[i] for i in indices)
        if owner is None:
            html, plain = html + escape(run), plain + run
            continue
        note = say("{} characters, {:,} times, first in document {:,}", len(owner), owner.times, owner.document)
        alpha = 0.28 if 2 * len(run) >= len(owner) else 0.14  # paler: the rest is in a longer stretch
        style = f"background:rgba({next(hues)},{alpha});border-radius:2px"
        html += f'{page.unstyled("【")}<span style="{style}" title="{note}">{escape(run)}</span>{page.unstyled("】")}'
        plain += f"【{run}】"
    words, share = "longest stretch {} characters · {} of its {}-grams known", page.percent(copied.share)
    note = say(words, copied.longest, share, copied.n)
    return page.card(html, note), f"[{note}]\n{plain}"


def copied(texts: Iterable["Copied"]) -> None:
    """Show the results of `memorization.Index.copied`: stretches of the training text have a coloured background.

    In plain text, and without styles, they stand in 【】. Of stretches that overlap, the longest is shown whole; two
    hues alternate, so that neighbours can be distinguished.
    """
    page.show_all(map(render_copied, texts))


def attention(names: Sequence[str], weights: Iterable[Iterable[SupportsFloat]], title: str = "") -> None:
    """Show where one head attends: a row per token, a cell per token that it may see; the darker, the more weight.

    `weights` (T, T): a tensor, an array or lists, rows that sum to 1. Of many tokens the last 30 are shown. Weights
    from 10 % on are printed; the plain text says where each token attends most.
    """
    matrix = [[float(weight) for weight in row] for row in weights]
    if len(names) != len(matrix):
        raise ValueError(f"{len(names)} tokens and {len(matrix)} rows of weights: each token needs its row")
    first, seen = max(0, len(names) - MOST_TOKENS), list(map(page.with_marks, names))
    note = f"{title} (the last {MOST_TOKENS} of {len(names)} tokens)" if first else title
    plain = [note] if note else []
    for i, row in enumerate(matrix[first:], first):
        most = sorted(range(i + 1), key=lambda j: -row[j])[:3]
        likeliest = [j for j in most if row[j] >= PRINTED] or most[:1]
        plain.append(f"{seen[i]} → " + ", ".join(f"{seen[j]} {page.percent(row[j])}" for j in likeliest))
    _draw_attention(seen[first:], [row[first:] for row in matrix[first:]], title, note, cut=first > 0).show(plain)


def _draw_attention(names: list[str], rows: list[list[float]], title: str, note: str, cut: bool) -> Picture:
    """Return the picture of one head; `cut`: the first tokens are left out."""
    # 1. sizes: a cell has space for two digits; names stand left of the rows and above the columns, upright if long
    cell = max(24.0, min(46.0, 700 / max(len(rows), 1)))
    size = 14 if cell > 34 else 12
    short = [shortened(name, 14, 76) for name in names]
    longest = max((width_of(name, size) for name in short), default=0) + 12
    upright = longest - 12 > cell - 2
    left, top = max(longest + 16, 104), 74 + (0.8 * longest - 14 if upright else 0)
    heading = shortened(note or "attention", 14, 830)
    width = left + cell * len(rows) + (0.8 * longest if upright else 0) + 24
    picture = Picture(
        max(width, 400, width_of(heading, 14) + 60), top + cell * len(rows) + 46,
        f"Attention: {title}" if title else "Attention of one head",
        f"A row per token, a column per token that it may look at; the darker a cell, the larger its weight. {note}",
    )  # fmt: skip
    # 2. the cells: a row sums to 1
    picture.text(24, 28, heading, 14, anchor="start", bold=True)
    for i, row in enumerate(rows):
        y = top + cell * i
        picture.text(left - 8, y + cell / 2, short[i], size, anchor="end")
        for j, weight in enumerate(row[: i + 1]):
            x = left + cell * j
            picture.rect(x + 1, y + 1, cell - 2, cell - 2, between(BLUE, "#eef2f7", min(1.0, max(0.0, weight))), r=3)
            if weight >= PRINTED:
                digits, ink = f"{100 * weight:.0f}", "#ffffff" if weight > 0.45 else INK
                figures = 13 if cell > 34 else 12 if len(digits) < 3 else 10
                picture.text(x + cell / 2, y + cell / 2, digits, figures, ink)
        if upright:
            x, y = left + cell * (i + 0.5), top - 8
            picture.add("text", short[i], x=x, y=y, font_size=size, fill=INK, transform=f"rotate(-50 {x:.1f} {y:.1f})")
        else:
            picture.text(left + cell * (i + 0.5), top - 14, short[i], size)
    picture.text(24, top - 14, "from ↓  to →", 12, GREY, "start")
    words = f"weights in %, from {100 * PRINTED:.0f} % on; without the first tokens a row sums to less" if cut else ""
    words = words or f"weights in %, printed from {100 * PRINTED:.0f} % on; a row sums to 100"
    picture.text(24, picture.height - 24, words, 13, GREY, "start")
    return picture
