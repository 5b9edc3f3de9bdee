"""Pictures computed from data, as SVG: a text's lattice of pieces, merges of BPE, a path through the grammar.

Each picture has a pure function that returns (svg, plain text), and one that displays it.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from helpers.show.drawing import show_svg
from helpers.show.svg import BLUE, EDGE, GOLD, GREY, INK, PALE_BLUE, PALE_GOLD, SHADE, Picture, shortened, width_of
from helpers.show.text import plain_table, visible

LONGEST = 10  # characters of a text whose lattice can still be read
NOTHING = "(nothing)"  # stands for an empty text


# ---- the lattice of a Unigram model ----


def best_cut(text: str, scores: Mapping[str, float]) -> list[str]:
    """Return the pieces with the highest sum of scores that make up the text (Viterbi 1967).

    Raises ValueError if no pieces do.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the text up to a position: its score, where its last piece begins
    for end in range(1, len(text) + 1):
        ways = [(best[start][0] + scores[text[start:end]], start) for start in range(end) if text[start:end] in scores]
        best.append(max(ways, default=(-math.inf, 0)))
    if best[-1][0] == -math.inf:
        raise ValueError(f"no pieces of these make up '{text}': each of its characters needs a score of its own")
    cut, end = [], len(text)
    while end:
        start = best[end][1]
        cut.append(text[start:end])
        end = start
    return cut[::-1]


def _levels(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return a level for each span (start, end), short ones lowest, such that spans of one level do not touch."""
    levels, taken = [0] * len(spans), list[list[tuple[int, int]]]()
    for i in sorted(range(len(spans)), key=lambda i: (spans[i][1] - spans[i][0], spans[i][0])):
        start, end = spans[i]
        free = (at for at, others in enumerate(taken) if all(end <= a or b <= start for a, b in others))
        levels[i] = next(free, len(taken))
        if levels[i] == len(taken):
            taken.append([])
        taken[levels[i]].append((start, end))
    return levels


def render_lattice(text: str, scores: Mapping[str, float], cut: Sequence[str] | None = None) -> tuple[str, str]:
    """Return the lattice of a text as (SVG, plain text); arguments as those of `lattice`."""
    if not 1 <= len(text) <= LONGEST:
        raise ValueError(f"the text has {len(text)} characters: a lattice can be read with 1 to {LONGEST}")
    cut = best_cut(text, scores) if cut is None else list(cut)
    if "".join(cut) != text or any(piece not in scores for piece in cut):
        raise ValueError(f"the cut {'|'.join(cut)} is not one of '{text}' into pieces that have a score")
    # 1. the arcs: every piece at every position where it fits
    spans = [(i, j) for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in scores]
    levels = _levels(spans)
    ends = [sum(map(len, cut[: i + 1])) for i in range(len(cut))]
    path = set(zip([0, *ends], ends, strict=False))
    total, most = (sum(scores[piece] for piece in pieces) for pieces in (cut, best_cut(text, scores)))
    words = f"{'best path' if total > most - 1e-9 else 'this path'} {' + '.join(map(visible, cut))}: {total:.2f}"
    # 2. the picture: positions are nodes on the ground, arcs stand above them
    step = min(116.0, 780 / len(text))
    size = 12 if step < 70 else 13
    ground = 58 + 44 * (max(levels) + 1)
    left = max(40.0, (320 - step * len(text)) / 2)
    picture = Picture(
        max(2 * left + step * len(text), 2 * 28 + width_of(words, 14)), ground + 84, f"The lattice of {visible(text)}",
        f"Each arc is a piece with its score, each node a position between characters. {words[0].upper()}{words[1:]}",
    )  # fmt: skip
    for (i, j), level in sorted(zip(spans, levels, strict=True), key=lambda arc: (arc[0] in path, arc[1])):
        on_path = (i, j) in path
        x0, x1, y = left + i * step + 7, left + j * step - 7, ground - 42 - 44 * level
        colour, width = (BLUE, 3.0) if on_path else ("#a4a9b3", 1.4)
        picture.arrow((x0, ground - 7), (x0, y), (x1, y), (x1, ground - 9), colour=colour, width=width, head=9)
    for (i, j), level in zip(spans, levels, strict=True):  # above all lines
        on_path, y = (i, j) in path, ground - 42 - 44 * level
        label = f"{visible(text[i:j])} {scores[text[i:j]]:.2f}"
        room = width_of(label, size) + 10
        middle = left + (i + j) / 2 * step
        fill, colour = (PALE_BLUE, BLUE) if on_path else ("#ffffff", "#a4a9b3")
        picture.rect(middle - room / 2, y - 11, room, 22, fill, colour, 5)
        picture.text(middle, y, label, size, INK if on_path else GREY, bold=on_path)
    for i in range(len(text) + 1):
        on_path = i == 0 or i in ends
        picture.circle(left + i * step, ground, 6, BLUE if on_path else "#ffffff", BLUE if on_path else GREY, 1.6)
    for i, character in enumerate(text):
        picture.text(left + (i + 0.5) * step, ground + 18, visible(character), 20, bold=True)
    picture.text(picture.width / 2, ground + 56, words, 14)
    # 3. in words
    rows = [["from", "to", "piece", "score", ""]]
    for i, j in spans:
        mark = "on the path" if (i, j) in path else ""
        rows.append([str(i), str(j), visible(text[i:j]), f"{scores[text[i:j]]:.2f}", mark])
    return picture.svg(), "\n".join([*plain_table(rows, [True, True, False, True, False]), words])


def lattice(text: str, scores: Mapping[str, float], cut: Sequence[str] | None = None) -> None:
    """Show all ways to cut a text into pieces: positions as nodes, pieces as arcs with scores, one path bold.

    scores: {piece: logarithm of its probability}; what is not part of the text is left out. cut: the pieces of the
    bold path; without it, the path with the highest sum is found. Raises ValueError for a text of more than
    `LONGEST` characters, or for a cut that is none.
    """
    show_svg(*render_lattice(text, scores, cut))


# ---- merges of BPE ----


def merged(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Return the pieces with each occurrence of the pair, from left to right, made one piece."""
    out, i = [], 0
    while i < len(pieces):
        both = tuple(pieces[i : i + 2]) == pair
        out.append("".join(pieces[i : i + 2]) if both else pieces[i])
        i += 2 if both else 1
    return out


def render_merges(lines: Sequence[str], merges: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the walk of `merges` as (SVG, plain text)."""
    # 1. the states: before the first merge, after each
    states = [[list(line) for line in lines]]
    titles, news = ["start: characters"], [""]
    for number, (left, right) in enumerate(merges, 1):
        pairs = Counter(pair for pieces in states[-1] for pair in zip(pieces, pieces[1:], strict=False))
        times = pairs[left, right]
        states.append([merged(pieces, (left, right)) for pieces in states[-1]])
        news.append(left + right)
        how_often = "once" if times == 1 else f"{times} times"
        titles.append(f"merge {number}: {visible(left)} + {visible(right)} → {visible(left + right)}, {how_often}")
    # 2. the picture: a band per state, its lines one after the other
    size, height, width = 15, 30, 880
    bands, y = [], 20.0
    for state in states:
        x, row, boxes = 28.0, 0, []
        for pieces in state:
            widths = [width_of(visible(piece), size) + 12 for piece in pieces]
            if x > 28 and x + sum(widths) + 2 * len(widths) > width - 28:
                x, row = 28.0, row + 1
            for piece, box in zip(pieces, widths, strict=True):
                if x > 28 and x + box > width - 28:
                    x, row = 28.0, row + 1
                boxes.append((x, row, box, piece))
                x += box + 2
            x += 20
        bands.append((y, boxes))
        y += 30 + (row + 1) * (height + 6) + 16
    picture = Picture(width, y + 4, f"{len(merges)} merges of byte-pair encoding (BPE)", f"{'. '.join(titles)}")
    for (top, boxes), title, new in zip(bands, titles, news, strict=True):
        if top > 20:
            picture.path([(28, top - 10), (width - 28, top - 10)], EDGE, 1.2)
        picture.text(28, top + 10, title, 14.5, anchor="start", bold=True)
        for x, row, box, piece in boxes:
            is_new = piece == new
            at = top + 28 + row * (height + 6)
            picture.rect(x, at, box, height, PALE_GOLD if is_new else SHADE, GOLD if is_new else "#b9b5ab", 5)
            picture.text(x + box / 2, at + height / 2, visible(piece), size, bold=is_new)
    # 3. in words
    plain = []
    for title, state in zip(titles, states, strict=True):
        plain += [title, *("    " + "|".join(map(visible, pieces)) for pieces in state)]
    return picture.svg(), "\n".join(plain)


def merges(lines: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    """Show how byte-pair encoding (BPE; Sennrich et al. 2016) joins a few short lines, one merge after the other.

    merges: the pairs (left, right) in their order; how often each occurs is counted here.
    """
    show_svg(*render_merges(lines, merges))


# ---- a document as a path through the grammar ----


def odds(bits: float) -> str:
    """Return how rare something of so many bits is: 1 in 8; from a million on with a power of two."""
    if bits <= 0:
        return ""
    ways = 2**bits
    return f"1 in {ways:.1f}" if ways < 9.95 else f"1 in {ways:,.0f}" if bits < 20 else f"1 in 2^{bits:.1f}"


def render_grammar_path(steps: Sequence[tuple[str, str, float]]) -> tuple[str, str]:
    """Return a document's path through the grammar as (SVG, plain text)."""
    total = sum(bits for _, _, bits in steps)
    rows = [["choice", "taken", "bits", "about"]]
    rows += [[slot, visible(text) or NOTHING, f"{bits:.2f}", odds(bits)] for slot, text, bits in steps]
    words = f"{len(steps)} choices, {total:.2f} bits in all"
    # 1. columns: slot, branches, text, bits
    trunk, x, line, top = 170.0, 232.0, 34, 62.0
    longest = max((width_of(row[1], 14) for row in rows[1:]), default=0)
    column = min(max(longest + 24, 150.0), 384.0)
    bars = x + column + 22
    most = max((bits for _, _, bits in steps), default=1) or 1
    picture = Picture(
        bars + 232, top + line * len(steps) + 52, "One document as a path through the grammar",
        f"Each row is a choice with the wording that was taken and its bits: {words}.",
    )  # fmt: skip
    for at, name, anchor in ((trunk - 18, "choice", "end"), (x, "taken", "start"), (bars, "bits", "start")):
        picture.text(at, 28, name, 14, GREY, anchor, bold=True)
    picture.path([(trunk, 44), (trunk, top + line * len(steps))], GREY, 2)
    # 2. a row per choice: as many faint branches as there were equally likely ones, up to seven
    for i, ((_, _, bits), (slot, text, figure, rarity)) in enumerate(zip(steps, rows[1:], strict=True)):
        y = top + line * i + line / 2
        text = shortened(text, 14, column - 20)
        branches = min(7, max(1, round(2**bits)))
        for k in range(branches):
            aside = (k - (branches - 1) / 2) * 4.2
            if aside:
                picture.path([(trunk, y), (x - 20, y + aside)], "#c9c4b8", 1)
        picture.arrow((trunk, y), (x - 3, y), colour=BLUE, width=2.2)
        picture.circle(trunk, y, 4.5, BLUE, None)
        picture.text(trunk - 18, y, slot, 13, GREY, "end")
        empty = text == NOTHING
        picture.rect(x, y - 13, width_of(text, 14) + 18, 26, "#ffffff" if empty else PALE_BLUE, GREY if empty else BLUE,
                     5, dash="3 3" if empty else None)  # fmt: skip
        picture.text(x + 9, y, text, 14, GREY if empty else INK, "start")
        picture.rect(bars, y - 8, max(1.0, 90 * max(bits, 0) / most), 16, PALE_GOLD, GOLD, 2)
        picture.text(bars + 100, y, figure, 13, anchor="start", bold=True)
        picture.text(bars + 142, y, rarity, 13, GREY, "start")
    end = top + line * len(steps) + 24
    picture.path([(x, end - 18), (bars + 214, end - 18)], GREY, 1.2)
    picture.text(x, end + 2, f"{words}: {odds(total)}" if total > 0 else words, 14, anchor="start", bold=True)
    return picture.svg(), "\n".join([*plain_table(rows, [False, False, True, False]), words])


def grammar_path(steps: Sequence[tuple[str, str, float]]) -> None:
    """Show one document as a path through the grammar: each choice (slot, text, bits), and the sum of the bits.

    steps: as `corpus.built_in.explain_draw` returns them.
    """
    show_svg(*render_grammar_path(steps))
