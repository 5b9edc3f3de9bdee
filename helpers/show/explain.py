"""What was found out about a text: chances in colour, copied stretches, measures in a grid, where a head looks.

Gets the records of `insight` and `copying` and knows nothing of how they came about. Everything is HTML with a
plain-text twin, as in `text`: the stronger a colour, the less the model expected it.
"""

from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean

from helpers.show.text import HUES, LINE, card, number, padded, percent, render_table, show_html, visible, width

HEAT = HUES[1]
END = "■"  # stands for the document's end
# a character's probability, from here up -> how strong its ground is; what the model was sure of stays plain
LEVELS = ((0.5, 0.0), (0.2, 0.18), (0.05, 0.34), (0.01, 0.5), (0.0, 0.7))
MOST_TOKENS = 40  # of the picture of a head: n tokens are n² / 2 fields


# ---- chances ----


def heat(text: str, probability: float, note: str = "") -> str:
    """Return text as HTML on a ground that is the stronger, the less probable it was; `note` shows under the mouse."""
    alpha = next(alpha for least, alpha in LEVELS if probability >= least)
    title = f' title="{escape(note)}"' if note else ""
    ground = f' style="background:rgba({HEAT},{alpha});border-radius:2px"' if alpha else ""
    return f"<span{ground}{title}>{escape(text)}</span>" if ground or title else escape(text)


def legend() -> str:
    """Return what the grounds of `heat` mean, as a line of HTML."""
    names = ["a half or more", *(f"from {100 * least:.0f} %" for least, _ in LEVELS[1:-1]), "less"]
    spans = [heat(f" {name} ", least) for name, (least, _) in zip(names, LEVELS, strict=True)]
    return f'<div style="font-size:.8em;opacity:.8">probability of a character: {" · ".join(spans)}</div>'


def listed(alternatives: Iterable[tuple[str, float]]) -> str:
    """Return (text, probability) pairs as words: 水 34.5 %, 光 12.0 %; ■ is the end, which has no text."""
    return ", ".join(f"{visible(text) or END} {percent(probability)}" for text, probability in alternatives)


def grouped(steps: Sequence) -> list[list]:
    """Return steps in groups that add text: the byte pieces of a character together; at the end, what adds none."""
    groups, group = [], []
    for step in steps:
        group.append(step)
        if step.text:
            groups.append(group)
            group = []
    return groups + ([group] if group else [])


def described(step) -> str:
    """Return all that a `Step` knows, a line each, for under the mouse."""
    lines = [f"{percent(step.probability)}, number {step.rank:,} of the model's choices, {step.bits:.2f} bits"]
    lines.append(f"likeliest: {listed(step.alternatives)}")
    for work in step.filters:
        line = f"{work.name}: {percent(work.chosen)}"
        if work.removed:
            line += f"; took away {work.removed:,} tokens with {percent(work.lost)}: {listed(work.likeliest)} …"
        lines.append(line)
    return "\n".join(lines)


def render_explained(steps: Sequence, prompt: str = "") -> tuple[str, str]:
    """Return the steps of a text as (HTML, plain text)."""
    body = f'<span style="opacity:.55">{escape(prompt)}</span>'
    for group in grouped(steps):
        text = group[-1].text
        bits = sum(step.bits for step in group) / max(1, len(text))
        body += heat(text or END, 2**-bits, "\n\n".join(map(described, group)))
    rows = []
    for step in steps:
        text = step.text or (END if step is steps[-1] else "…")  # a byte is no character yet
        rows.append((text, percent(step.probability), step.rank, round(step.bits, 2), listed(step.alternatives[:3])))
    _, plain = render_table(rows, ["text", "probability", "rank", "bits", "likeliest"])
    return card(body) + legend(), plain


def explained(steps: Sequence, prompt: str = "") -> None:
    """Show a text that `insight.explain` explained: each character by its probability, more under the mouse."""
    show_html(*render_explained(steps, prompt))


def filters(steps: Sequence) -> None:
    """Show which filter took away how much of a text's steps: on average, and at the place where it took the most."""
    rows = []
    for i, name in enumerate(work.name for work in (steps[0].filters if steps else ())):
        works = [step.filters[i] for step in steps]
        worst = max(range(len(steps)), key=lambda at: works[at].lost)
        changed = [work.chosen - before for work, before in zip(works, _before(steps, i), strict=True)]
        some = listed(works[worst].likeliest[:3])
        context = visible("".join(step.text for step in steps[:worst])[-6:])
        where = f"{context}▸ {some}" if works[worst].removed else ""
        rows.append((name, round(fmean(work.removed for work in works)), percent(fmean(w.lost for w in works)),
                     f"{100 * fmean(changed):+.1f}", where))  # fmt: skip
    header = ["filter", "tokens it took away", "their probability", "written token, points", "took most at"]
    show_html(*render_table(rows, header))


def _before(steps: Sequence, i: int) -> list[float]:
    """Return the probabilities of the written tokens before filter i."""
    return [step.filters[i - 1].chosen if i else step.probability for step in steps]


# ---- create or copy? ----


def render_copied(found: Iterable) -> tuple[str, str]:
    """Return texts with their copied stretches as (HTML, plain text)."""
    html, plain = [], []
    for copied in found:
        owners: list = [None] * len(copied.text)  # of each character, the longest stretch that it is in
        for stretch in sorted(copied.stretches, key=len):
            owners[stretch.start : stretch.end] = [stretch] * len(stretch)
        body = flat = ""
        hue, start = 0, 0
        for end in range(1, len(owners) + 1):
            if end < len(owners) and owners[end] is owners[start]:
                continue
            part, stretch = copied.text[start:end], owners[start]
            if stretch is None:
                body, flat = body + escape(part), flat + part
            else:
                note = f"{len(stretch)} characters, {stretch.times:,} times, first in document {stretch.document:,}"
                alpha = 0.28 if 2 * len(part) >= len(stretch) else 0.14  # what a longer stretch has left of it: paler
                style = f"background:rgba({HUES[hue % 2]},{alpha});border-radius:2px"
                body += f'<span style="{style}" title="{note}">{escape(part)}</span>'
                flat += f"【{part}】"
                hue += 1
            start = end
        note = f"longest stretch {copied.longest} characters · {percent(copied.share)} of its {copied.n}-grams known"
        html.append(card(body, note))
        plain.append(f"[{note}]\n{flat}")
    return "\n".join(html), "\n\n".join(plain)


def copied(found: Iterable) -> None:
    """Show texts that `copying.Index.copied` looked up: what stands in the training text is on coloured ground.

    Of stretches that overlap the longest is whole; two hues take turns, so that neighbours stay apart.
    """
    show_html(*render_copied(found))


# ---- the grid ----

MEASURES = (
    ("diversity", "diversity: n-grams that differ", lambda cell: f"{cell.diversity:.2f}"),
    ("repetition", "repetition within a text", lambda cell: f"{cell.repetition:.2f}"),
    ("longest", "longest copied stretch, characters", lambda cell: f"{cell.longest:.1f}"),
    ("share", "n-grams known from training", lambda cell: percent(cell.share)),
)


def grid(cells: Sequence) -> None:
    """Show the cells of `insight.grid`: for each measure a table, temperature down, top-p across."""
    html, plain = [], []
    top_ps = list(dict.fromkeys(cell.top_p for cell in cells))
    temperatures = list(dict.fromkeys(cell.temperature for cell in cells))
    at = {(cell.temperature, cell.top_p): cell for cell in cells}
    head = f'style="text-align:right;padding:.2em .7em;border-bottom:1px solid {LINE};font-weight:normal"'
    for field, title, say in MEASURES:
        values = [getattr(cell, field) for cell in cells]
        if not values or None in values:
            continue
        low, high = min(values), max(values)
        rows, flat = [], []
        for t in temperatures:
            boxes = ""
            for p in top_ps:
                alpha = 0.55 * (getattr(at[t, p], field) - low) / max(high - low, 0.05)
                style = f"text-align:right;padding:.2em .7em;background:rgba({HUES[0]},{alpha:.2f})"
                boxes += f'<td style="{style}">{say(at[t, p])}</td>'
            rows.append(f'<tr style="background:none"><th {head}>{number(t)}</th>{boxes}</tr>')
            flat.append([number(t), *(say(at[t, p]) for p in top_ps)])
        tops = "".join(f"<th {head}>{number(p)}</th>" for p in top_ps)
        html.append(
            f'<div style="display:inline-block;margin:.4em 2em .4em 0"><div style="font-size:.85em">{title}</div>'
            f'<table style="border-collapse:collapse"><tr style="background:none"><th {head}>t \\ p</th>{tops}</tr>'
            f"{''.join(rows)}</table></div>"
        )
        flat = [["t \\ p", *map(number, top_ps)], *flat]
        widths = [max(width(row[i]) for row in flat) for i in range(len(top_ps) + 1)]
        plain.append("\n".join([title, *(padded(row, widths, [True] * len(row)) for row in flat)]))
    show_html("\n".join(html), "\n\n".join(plain))


# ---- attention ----


def attention(names: Sequence[str], weights, title: str = "") -> None:
    """Show where one head looks: a row for each token, a field for each token that it may see; dark is much weight.

    `weights` (T, T): a tensor, an array or lists, rows that sum to 1. Of many tokens the last 40 are shown. The
    numbers are under the mouse; the plain-text twin says where each token looks most.
    """
    weights = [[float(weight) for weight in row] for row in weights]
    if len(names) != len(weights):
        raise ValueError(f"{len(names)} tokens and {len(weights)} rows of weights: each token needs its row")
    first = max(0, len(names) - MOST_TOKENS)
    shown = [visible(name) for name in names]
    note = f"{title} (the last {MOST_TOKENS} of {len(names)} tokens)" if first else title
    edge = "font-weight:normal;font-size:.85em;padding:.1em .3em"
    rows, plain = [], [note] if note else []
    for i in range(first, len(names)):
        fields = ""
        for j in range(first, i + 1):
            weight = weights[i][j]
            words = f' title="{escape(shown[i])} → {escape(shown[j])} {percent(weight)}"' if weight >= 0.05 else ""
            fields += f'<td style="background:rgba({HUES[0]},{0.03 + 0.9 * weight**0.7:.2f});padding:0"{words}></td>'
        rows.append(
            f'<tr style="background:none"><th style="{edge};text-align:right;white-space:nowrap">{escape(shown[i])}'
            f"</th>{fields}</tr>"
        )
        best = max(range(i + 1), key=weights[i].__getitem__)
        plain.append(f"{shown[i]} → {shown[best]} {percent(weights[i][best])}")
    tops = "".join(
        f'<th style="{edge};writing-mode:vertical-rl;text-align:left;min-width:1.3em">{escape(name)}</th>'
        for name in shown[first:]
    )
    body = "\n".join(rows)
    html = (
        f'<div style="font-size:.85em;opacity:.8">{escape(note)}</div><table style="border-collapse:separate;'
        f'border-spacing:1px;line-height:1.2"><tr style="background:none;vertical-align:bottom"><th></th>{tops}</tr>'
        f"\n{body}\n</table>"
    )
    show_html(html, "\n".join(plain))
