"""The page of a sweep: its runs in a table, the best curves over each other, which parameter mattered.

`python -m helpers.show.sweep NAME` writes it anew, also while the sweep goes on.
"""

import argparse
import base64
import html
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import paths
from helpers.files import write_text
from helpers.report import STYLE
from helpers.run import results
from helpers.run.grid import in_words
from helpers.run.results import Effect, Row
from helpers.show.curves import RUN_HUES, compare_figure
from helpers.show.figures import png
from helpers.show.metrics_file import read_metrics

MOST_CURVES = len(RUN_HUES)  # in one figure, each in a hue of its own
LABELS = {
    "val_bits_per_char": "validation, bits per character", "total_steps": "planned", "facts_seen": "facts, seen",
    "facts_held_out": "held out", "plain_questions": "plain questions",
}  # fmt: skip
MORE_STYLE = """
body { max-width: 72rem; } .wide { overflow-x: auto; } td, th { white-space: nowrap; }
.bar { background: #2f6db0; height: .8rem; } .bars td:nth-child(2) { width: 14rem; }
"""


def cell(value: Any) -> str:
    """Return a cell of the table as HTML; a number in few digits."""
    return html.escape(f"{value:.4g}" if isinstance(value, float) else f"{value}")


def render_table(found: list[Row]) -> str:
    """Return the table of all runs; a run that was reported is a link to its report."""
    header = results.header(found)
    lines = ["".join(f"<th>{html.escape(LABELS.get(name, name))}</th>" for name in header)]
    for row, cells in zip(found, results.table(found), strict=True):
        name = html.escape(row.run)
        if (paths.run_dir(row.run) / "report.html").is_file():
            name = f"<a href='../{name}/report.html'>{name}</a>"
        lines.append(f"<td>{name}</td>" + "".join(f"<td>{cell(value)}</td>" for value in cells[1:]))
    return "<div class='wide'><table><tr>" + "</tr>\n<tr>".join(lines) + "</tr></table></div>"


def render_curves(found: list[Row]) -> str:
    """Return the curves of the best runs as a picture, and in words what it shows; empty if none has trained."""
    best = [row for row in found if row.bits is not None][:MOST_CURVES]
    if not best:
        return ""
    figure = compare_figure({row.run: read_metrics(row.run) for row in best})
    words = ", ".join(f"{row.run} {row.bits:.3f}" for row in best)
    data = base64.b64encode(png(figure)).decode()
    more = f" The best {len(best)} of {len(found)} runs." if len(best) < len(found) else ""
    picture = f"<img alt='validation, bits per character: {html.escape(words)}' src='data:image/png;base64,{data}'>"
    return f"<h2>Curves</h2><p>Validation bold, training thin.{more}</p>{picture}"


def render_effects(effects: Sequence[Effect]) -> str:
    """Return what each parameter explains, as bars; empty where too few runs have finished to say."""
    if not effects:
        return ""
    lines = []
    for effect in effects:
        order = " · ".join(f"{html.escape(value)}: {bits:.3f}" for value, bits in effect.means.items())
        lines.append(
            f"<tr><td>{html.escape(effect.name)}</td><td><div class='bar' style='width:{effect.share:.0%}'></div></td>"
            f"<td>{effect.share:.0%}</td><td>{order}</td></tr>"
        )
    return (
        "<h2>Which parameter mattered</h2><p>How much of the variance between the runs that trained to their end its "
        "values explain (η²), and the mean bits per character of each value. A difference that is no larger than that "
        "between two seeds means nothing: <code>seed: [0, 1]</code> in the sweep shows how large that is.</p>"
        "<table class='bars'>" + "\n".join(lines) + "</table>"
    )


def write(sweep: str) -> Path:
    """Write runs/<sweep>/sweep.html from what its runs have so far; return its path.

    Raises ValueError where there is no such sweep.
    """
    found = results.rows(sweep)
    if not found:
        raise ValueError(f"there is no sweep '{sweep}' in {paths.runs_dir()}")
    best = found[0]
    lead = ""
    if best.bits is not None:
        words = html.escape(f"{best.run}, {best.bits:.4f} bits per character ({in_words(best.combination)})")
        lead = f"<p>The best so far: <b>{words}</b></p>"
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{sweep}</title><style>{STYLE}{MORE_STYLE}</style></head>
<body><h1>Sweep “{sweep}”</h1>
{lead}
{render_table(found)}
{render_curves(found)}
{render_effects(results.effects(found))}
</body></html>
"""
    path = paths.run_dir(sweep) / "sweep.html"
    write_text(path, page)
    return path


def main(arguments: list[str] | None = None) -> int:
    """Write a sweep's page anew and print its path; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.show.sweep", description="Write runs/NAME/sweep.html from what its runs have so far."
    )
    parser.add_argument("sweep", metavar="NAME", help="the name that --run gave to the sweep")
    try:
        print(write(parser.parse_args(arguments).sweep))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
