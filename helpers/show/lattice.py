"""Pictures computed from data, as SVG: a text's lattice of pieces, a path through the grammar."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from helpers.show.svg import BLUE, GOLD, GREY, INK, PALE_BLUE, PALE_GOLD, Picture, shortened, width_of
from helpers.show.text import plain_table, with_marks
from helpers.wording import say

LONGEST_TEXT = 10  # characters of a text whose lattice can still be read


# ---- the lattice of a Unigram model ----


def stacked(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return a level for each span (start, end), short ones lowest, such that spans of one level do not touch."""
    levels: dict[tuple[int, int], int] = {}
    for start, end in sorted(spans, key=lambda span: (span[1] - span[0], span[0])):
        taken = {level for (a, b), level in levels.items() if a < end and start < b}
        levels[start, end] = min(set(range(len(taken) + 1)) - taken)
    return [levels[span] for span in spans]


def lattice(text: str, scores: Mapping[str, float], cut: Sequence[str]) -> None:
    """Show all ways to cut a text into pieces: positions as nodes, pieces as arcs with scores, one cut of it bold.

    scores: {piece: logarithm of its probability}; what is not part of the text is left out. cut: the pieces that the
    tokenizer makes of it. Raises ValueError for a text of more than `LONGEST_TEXT` characters.
    """
    if not 1 <= len(text) <= LONGEST_TEXT:
        raise ValueError(f"the text has {len(text)} characters: a lattice can be read with 1 to {LONGEST_TEXT}")
    # every piece at every position where it fits
    spans = [(i, j) for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in scores]
    path = set(pairwise(accumulate(map(len, cut), initial=0)))
    words = say("best path {}: {:.2f}", " + ".join(map(with_marks, cut)), sum(scores[piece] for piece in cut))
    rows = [[*map(say, ("from", "to", "piece", "score")), ""]]
    for i, j in spans:
        mark = say("on the path") if (i, j) in path else ""
        rows.append([str(i), str(j), with_marks(text[i:j]), f"{scores[text[i:j]]:.2f}", mark])
    plain = plain_table(rows, [True, True, False, True, False])
    _draw_lattice(text, scores, spans, path, words).show([*plain, words])


def _draw_lattice(
    text: str, scores: Mapping[str, float], spans: list[tuple[int, int]], path: set[tuple[int, int]], words: str
) -> Picture:
    """Return the picture: positions are nodes on the ground, arcs stand above them."""
    levels = stacked(spans)
    step = min(116.0, 780 / len(text))
    size = 12 if step < 70 else 13
    ground = 58 + 44 * (max(levels) + 1)
    left = max(40.0, (320 - step * len(text)) / 2)
    picture = Picture(
        max(2 * left + step * len(text), 2 * 28 + width_of(words, 14)), ground + 84,
        f"The lattice of {with_marks(text)}",
        f"Each arc is a piece with its score, each node a position between characters. {words[0].upper()}{words[1:]}",
    )  # fmt: skip
    arcs = [(i, j, (i, j) in path, ground - 42 - 44 * level) for (i, j), level in zip(spans, levels, strict=True)]
    for i, j, on_path, y in sorted(arcs, key=lambda arc: (arc[2], -arc[3])):
        x0, x1 = left + i * step + 7, left + j * step - 7
        colour, width = (BLUE, 3.0) if on_path else ("#a4a9b3", 1.4)
        picture.arrow((x0, ground - 7), (x0, y), (x1, y), (x1, ground - 9), colour=colour, width=width, head=9)
    for i, j, on_path, y in arcs:  # above all lines
        label = f"{with_marks(text[i:j])} {scores[text[i:j]]:.2f}"
        room, middle = width_of(label, size) + 10, left + (i + j) / 2 * step
        fill, colour = (PALE_BLUE, BLUE) if on_path else ("#ffffff", "#a4a9b3")
        picture.rect(middle - room / 2, y - 11, room, 22, fill, colour, 5)
        picture.text(middle, y, label, size, INK if on_path else GREY, bold=on_path)
    nodes = {0} | {end for _, end in path}
    for i in range(len(text) + 1):
        fill, colour = (BLUE, BLUE) if i in nodes else ("#ffffff", GREY)
        picture.circle(left + i * step, ground, 6, fill, colour, 1.6)
    for i, character in enumerate(text):
        picture.text(left + (i + 0.5) * step, ground + 18, with_marks(character), 20, bold=True)
    picture.text(picture.width / 2, ground + 56, words, 14)
    return picture


# ---- a document as a path through the grammar ----


def odds(bits: float) -> str:
    """Return how rare something of so many bits is: 1 in 8; from a million on with a power of two."""
    if bits <= 0:
        return ""
    ways = 2**bits
    near = say("1 in {:.1f}", ways) if ways < 9.95 else say("1 in {:,.0f}", ways)
    return near if bits < 20 else say("1 in 2^{:.1f}", bits)


def grammar_path(steps: Sequence[tuple[str, str, float]]) -> None:
    """Show one document as a path through the grammar: each choice (slot, text, bits), and the sum of the bits.

    steps: as `corpus.built_in.explain_draw` returns them.
    """
    total = sum(bits for _, _, bits in steps)
    heads, nothing = [say(each) for each in ("choice", "taken", "bits", "about")], say("(nothing)")
    rows = [[slot, with_marks(text) or nothing, f"{bits:.2f}", odds(bits)] for slot, text, bits in steps]
    words = say("{} choices, {:.2f} bits in all", len(steps), total)
    # 1. columns: slot, branches, text, bits
    trunk, x, line, top = 170.0, 232.0, 34, 62.0
    column = min(max(max((width_of(row[1], 14) for row in rows), default=0) + 24, 150.0), 384.0)
    bars, end = x + column + 22, top + line * len(steps)
    most = max((bits for _, _, bits in steps), default=1) or 1
    picture = Picture(
        bars + 232, end + 52, "One document as a path through the grammar",
        f"Each row is a choice with the wording that was taken and its bits: {words}.",
    )  # fmt: skip
    for at, name, anchor in zip((trunk - 18, x, bars), heads, ("end", "start", "start"), strict=False):
        picture.text(at, 28, name, 14, GREY, anchor, bold=True)
    picture.path([(trunk, 44), (trunk, end)], GREY, 2)
    # 2. a row per choice: as many faint branches as there were equally likely ones, up to seven
    for i, ((_, _, bits), (slot, text, figure, rarity)) in enumerate(zip(steps, rows, strict=True)):
        y = top + line * i + line / 2
        branches = min(7, max(1, round(2**bits)))
        for k in range(branches):
            if aside := (k - (branches - 1) / 2) * 4.2:
                picture.path([(trunk, y), (x - 20, y + aside)], "#c9c4b8", 1)
        picture.arrow((trunk, y), (x - 3, y), colour=BLUE, width=2.2)
        picture.circle(trunk, y, 4.5, BLUE, None)
        picture.text(trunk - 18, y, slot, 13, GREY, "end")
        text, empty = shortened(text, 14, column - 20), text == nothing
        picture.rect(x, y - 13, width_of(text, 14) + 18, 26, "#ffffff" if empty else PALE_BLUE, GREY if empty else BLUE,
                     5, dash="3 3" if empty else None)  # fmt: skip
        picture.text(x + 9, y, text, 14, GREY if empty else INK, "start")
        picture.rect(bars, y - 8, max(1.0, 90 * max(bits, 0) / most), 16, PALE_GOLD, GOLD, 2)
        picture.text(bars + 100, y, figure, 13, anchor="start", bold=True)
        picture.text(bars + 142, y, rarity, 13, GREY, "start")
    picture.path([(x, end + 6), (bars + 214, end + 6)], GREY, 1.2)
    picture.text(x, end + 26, f"{words}: {odds(total)}" if total > 0 else words, 14, anchor="start", bold=True)
    picture.show([*plain_table([heads, *rows], [False, False, True, False]), words])
